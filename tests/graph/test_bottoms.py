"""Unknown bottoms and repeated tops: the message has the cause, and the net is right once its remedy is typed."""
from __future__ import annotations

import re
from pathlib import Path

import pytest

from ocaffe import proto
from ocaffe.compiler.network import phase_net
from ocaffe.errors import Error
from ocaffe.formats.text import parse, read_net
from ocaffe.graph.build import build

pytestmark = pytest.mark.quick

SHAPE = "dummy_data_param { shape { dim: 2 dim: 3 } }"
DATA = f'layer {{ name: "d" type: "DummyData" top: "data" {SHAPE} %s }}\n'
FULL = 'layer { name: "ip" type: "InnerProduct" bottom: "%s" top: "ip" inner_product_param { num_output: 2 } }\n'
LAST = 'layer { name: "last" type: "ReLU" bottom: "ip" top: "last" }\n'


def built(path: Path, phase: int = proto.TEST, level: int = 0, stages: tuple[str, ...] = ()) -> list[str]:
    return [node.name for node in build(phase_net(read_net(path), phase, level, stages), phase).nodes]


def refusal(path: Path, phase: int = proto.TEST, stages: tuple[str, ...] = ()) -> Error:
    with pytest.raises(Error) as caught:
        built(path, phase, stages=stages)
    return caught.value


EXCLUDED = [  # the rule, the phase and stages of the net, words of the message, the flags
    ("include { phase: TRAIN }", proto.TEST, (), "include { phase: TRAIN }", "--phase=TRAIN"),
    ('include { stage: "s0" }', proto.TEST, (), "no stage", "--stage=s0"),
    ('include { stage: "s0" }', proto.TRAIN, ("old",), "stage 'old'", "--stage=old,s0"),
    ('include { phase: TRAIN stage: "s0" stage: "s1" }', proto.TEST, (), "phase TEST", "--phase=TRAIN --stage=s0,s1"),
    ('include { not_stage: "s0" }', proto.TEST, ("s0", "s1"), "stage 's0', 's1'", "--stage=s1"),
    ("include { min_level: 2 }", proto.TEST, (), "level 0", "--level=2"),
    ("include { min_level: 2 max_level: 3 phase: TRAIN }", proto.TEST, (), "level 0", "--phase=TRAIN --level=2"),
    ("include { max_level: -1 }", proto.TEST, (), "level 0", "--level=-1"),
    ("exclude { phase: TEST }", proto.TEST, (), "exclude { phase: TEST }", "--phase=TRAIN"),
    ('exclude { stage: "s0" }', proto.TEST, ("s0",), "stage 's0'", "--stage="),
    ('exclude { not_stage: "s0" }', proto.TRAIN, (), "no stage", "--stage=s0"),
    ("exclude { min_level: 0 }", proto.TEST, (), "level 0", "--level=-1"),
    ("exclude { max_level: 0 phase: TEST }", proto.TEST, (), "level 0", "--level=1"),
    ("exclude { }", proto.TEST, (), "exclude { }", ""),
    ('include { phase: TRAIN stage: "s0" } include { stage: "s1" }', proto.TEST, (), 'include { stage: "s1" }', "--stage=s1"),
]


@pytest.mark.parametrize(("rule", "phase", "stages", "words", "flags"), EXCLUDED, ids=[f"{case[0]}-{case[1]}" for case in EXCLUDED])
def test_excluded_by_a_rule(rule: str, phase: int, stages: tuple[str, ...], words: str, flags: str, tmp_path: Path) -> None:
    """The message names the layer, its rule and the state, and with the flags of the remedy the net has the layer."""
    path = tmp_path / "net.prototxt"
    path.write_text(DATA % f"\n{rule}" + FULL % "data")
    problem = refusal(path, phase, stages)
    assert f"layer 'd' ({path}:1) makes it" in problem.fact and f"({path}:2)" in problem.fact and words in problem.fact, str(problem)
    assert problem.fix is not None and problem.fix.startswith(flags) and "remove the rule of 'd'" in problem.fix, str(problem)
    path.with_name("free.prototxt").write_text(DATA % "" + FULL % "data")
    assert built(path.with_name("free.prototxt")) == ["d", "ip"], "the other remedy"
    if flags:
        given = dict(re.findall(r"--(\w+)=(\S*)", problem.fix.split(" (")[0]))
        wanted = proto.Phase.Value(given["phase"]) if "phase" in given else phase
        names = tuple(filter(None, given["stage"].split(","))) if "stage" in given else stages
        assert built(path, wanted, int(given.get("level", 0)), names) == ["d", "ip"]


def test_excluded_twice(tmp_path: Path) -> None:
    """All layers that could make the blob are named, each with its flags."""
    path = tmp_path / "net.prototxt"
    path.write_text(DATA % 'include { stage: "train" }' + DATA.replace('"d"', '"v"') % 'include { stage: "val" }' + FULL % "data")
    problem = refusal(path)
    assert f"'d' ({path}:1)" in problem.fact and f"'v' ({path}:2)" in problem.fact and "--stage=train or --stage=val (" in (problem.fix or "")


def test_the_solver_field_and_the_script(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(DATA % 'include { stage: "a" min_level: 1 }' + FULL % "data")
    fix = refusal(path).fix or ""
    assert 'in a script: level=1, stages=["a"]; in a solver: test_state { level: 1 stage: "a" }' in fix
    state = parse(fix[fix.index("test_state") :].partition("}")[0] + "}", proto.SolverParameter).test_state[0]
    assert len(build(phase_net(read_net(path), proto.TEST, state=state), proto.TEST).nodes) == 2
    assert "train_state {" in (refusal(path, proto.TRAIN).fix or "")


OTHERS = [  # the net, words of the fact, the remedy, the net with the remedy
    (LAST + DATA % "" + FULL % "data", "layer 'ip' ({}:3) makes it, but comes later", "move layer 'ip' before layer 'last'", DATA % "" + FULL % "data" + LAST),
    (DATA % "" + FULL % "dta", "layer 'd' ({}:1) makes 'data'", 'bottom: "data"', DATA % "" + FULL % "data"),
    (DATA % "" + FULL % "Data", "layer 'd' ({}:1) makes 'data'", 'bottom: "data"', DATA % "" + FULL % "data"),
    (DATA % "" + FULL % "d", "it is the name of layer 'd' ({}:1), whose top is 'data'", 'bottom: "data"', DATA % "" + FULL % "data"),
    (DATA % "" + FULL % "unlike", "no layer makes it; the blobs at this layer are 'data'", "name one of these", DATA % "" + FULL % "data"),
    (FULL % "data", "no layer comes before this one", 'layer { name: "data" type: "Input"', None),
    ('layer { name: "r" type: "ReLU" bottom: "x" top: "x" }\n', "only this layer itself has that top", 'layer { name: "x" type: "Input"', None),
]


@pytest.mark.parametrize(("net", "words", "fix", "right"), OTHERS, ids=[case[1][:30] for case in OTHERS])
def test_other_causes(net: str, words: str, fix: str, right: str | None, tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(net)
    problem = refusal(path)
    assert words.format(path) in problem.fact and fix in (problem.fix or ""), str(problem)
    path.write_text(right or f"{(problem.fix or '').partition(' (')[0]}\n{net}")
    assert built(path)


def test_a_loop_cannot_be_moved(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(DATA % "" + 'layer { name: "s" type: "Eltwise" bottom: "data" bottom: "ip" top: "s" }\n' + FULL % "s")
    problem = refusal(path)
    assert "is a loop" in problem.fact and "move" not in (problem.fix or "")


def test_a_net_without_a_file(tmp_path: Path) -> None:
    net = parse(DATA % "include { phase: TRAIN }" + FULL % "data", proto.NetParameter)
    with pytest.raises(Error) as caught:
        build(phase_net(net, proto.TEST), proto.TEST)
    assert caught.value.place is None and "layer 'd' makes it, but its rule include { phase: TRAIN } leaves it out" in caught.value.fact


TWICE = [  # what each of two data layers has, the remedy, the same as pairs of a layer and its rule
    ("", "", [("a", "TRAIN"), ("b", "TEST")]),
    ("phase: TRAIN", "phase: TEST", [("a", "TRAIN"), ("b", "TEST")]),
    ("include { phase: TRAIN }", "", [("b", "TEST")]),
    ("", "include { phase: TEST }", [("a", "TRAIN")]),
]


@pytest.mark.parametrize(("first", "second", "rules"), TWICE, ids=[f"{case[0]}-{case[1]}" for case in TWICE])
def test_two_data_layers_without_rules(first: str, second: str, rules: list[tuple[str, str]], tmp_path: Path) -> None:
    """The remedy names the rules that are missing. With them both phases are right."""
    path = tmp_path / "net.prototxt"
    layers = {name: DATA.replace('"d"', f'"{name}"') % text for name, text in (("a", first), ("b", second))}
    path.write_text("".join(layers.values()) + FULL % "data")
    phase = proto.TRAIN if "TRAIN" in first else proto.TEST
    problem = refusal(path, phase)
    assert "top blob 'data' is produced by more than one layer" in problem.fact and f"'a' ({path}:1)" in problem.fact
    found = re.findall(r"include \{ phase: (\w+) \} in layer '(\w+)'", problem.fix or "")
    assert [(name, rule) for rule, name in found] == rules, problem.fix
    assert ("has no effect" in (problem.fix or "")) == (first == "phase: TRAIN")
    for name, rule in rules:
        layers[name] = layers[name].replace('type: "DummyData"', f'type: "DummyData" include {{ phase: {rule} }}')
    path.write_text("".join(layers.values()) + FULL % "data")
    assert [built(path, each) for each in (proto.TRAIN, proto.TEST)] == [["a", "ip"], ["b", "ip"]]


def test_the_layer_for_tests_is_recognised_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(DATA.replace('"d"', '"val-data"') % "" + DATA % "" + FULL % "data")
    assert "TRAIN } in layer 'd' in line 2 and include { phase: TEST } in layer 'val-data'" in (refusal(path).fix or "")


def test_other_repeated_tops(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(DATA % "" + FULL % "data" + FULL.replace('"ip" type', '"ip2" type') % "data")
    problem = refusal(path)
    assert f"layer 'ip' ({path}:2) makes it too" in problem.fact
    assert problem.fix == """give the top another name, such as 'ip_ip2', and add an Eltwise layer if 'ip' is to be the sum: bottom: "ip" bottom: "ip_ip2\""""
    path.write_text(DATA % 'include { stage: "a" }' + DATA.replace('"d"', '"e"') % "" + FULL % "data")
    assert "rules to both layers" in (refusal(path, stages=("a",)).fix or "")
