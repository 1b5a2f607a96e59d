"""Include and exclude rules: compared with Caffe's filtering of golden/nets/Rules and the reasons in its log."""
from __future__ import annotations

import json
from pathlib import Path

import pytest

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.formats.filter import filter_net
from ocaffe.formats.text import parse, read_net

pytestmark = pytest.mark.quick

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
CASES = sorted((GOLDEN / "nets").glob("Rules@*.json"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_rules(path):
    case = json.loads(path.read_text())
    phase, level, stages = path.stem.removeprefix("Rules@").replace("-l-", "-lm").split("-")
    state = proto.NetState(
        phase=getattr(proto, phase),
        level=int(level.removeprefix("l").replace("m", "-")),
        stage=[] if stages == "none" else stages.split("+"),
    )
    net = read_net(GOLDEN / "nets" / "Rules.prototxt")
    before = net.SerializeToString()
    kept = filter_net(net, state)
    assert [layer.name for layer in kept.layer] == [layer["name"] for layer in case["layers"] if layer["type"] != "Split"]
    assert kept.state == state and kept.layer[0].source_line == net.layer[0].source_line
    assert net.SerializeToString() == before


def test_cases_are_all_there():
    assert len(CASES) == 11


@pytest.mark.parametrize(("phase", "log"), [("TRAIN", "caffe_train.log"), ("TEST", "caffe_test.log")])
def test_reasons_are_in_caffes_words(phase, log):
    lines: list[str] = []
    filter_net(read_net(GOLDEN / "files" / "train_net.prototxt"), proto.NetState(phase=getattr(proto, phase)), lines.append)
    logged = [line.split("] ", 1)[1] for line in (GOLDEN / "files" / log).read_text().splitlines() if "The NetState" in line]
    assert lines and lines == logged[: len(lines)]


REASONS = [  # rule, state, words
    ("min_level: 2", "level: 1", "The NetState level (1) is above the min_level (2) specified by a rule in layer a"),
    ("max_level: 0", "level: 1", "The NetState level (1) is above the max_level (0) specified by a rule in layer a"),
    ("stage: 'A' stage: 'B'", "stage: 'A'", "The NetState did not contain stage 'B' specified by a rule in layer a"),
    ("not_stage: 'A'", "stage: 'A'", "The NetState contained a not_stage 'A' specified by a rule in layer a"),
]


@pytest.mark.parametrize(("rule", "state", "words"), REASONS)
def test_reasons(rule, state, words):
    lines: list[str] = []
    net = parse(f"layer {{ name: 'a' include {{ {rule} }} }}", proto.NetParameter)
    assert not filter_net(net, parse(state, proto.NetState), lines.append).layer
    assert lines == [words]


def test_the_nets_own_state_is_the_default():
    net = parse(
        "state { phase: TRAIN } layer { name: 'a' include { phase: TRAIN } } layer { name: 'b' include { phase: TEST } }",
        proto.NetParameter,
    )
    assert [layer.name for layer in filter_net(net).layer] == ["a"]
    net.ClearField("state")
    assert [layer.name for layer in filter_net(net).layer] == ["b"], "the schema's default phase is TEST"


def test_both_kinds_of_rule_are_refused():
    path = GOLDEN / "errors" / "include_and_exclude.prototxt"
    with pytest.raises(Error, match="include and exclude rules") as caught:
        filter_net(read_net(path))
    assert caught.value.place.file == str(path) and caught.value.place.line > 0
