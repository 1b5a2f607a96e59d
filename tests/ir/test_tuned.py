"""Tuned tables: their effect, and the messages for damaged tables."""
from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.cl import tuned_tables
from ocaffe.cl.session import Session
from ocaffe.errors import Error
from ocaffe.graph.build import build
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref, Role
from ocaffe.ir.tuned import ESTIMATES, Problem, Tuned
from ocaffe.kernels.convolution import convolution
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.matmul.gemm import gemm
from ocaffe.profiling.tune import OPERATIONS, Survey, Tuner, flops, problems
from tests.api.nets import LEARNING, message
from tests.harness import execute

G = ConvGeometry(2, 12, 20, 1, (1, 9, 9), (1, 9, 9), (1, 3, 3), (1, 1, 1), (0, 1, 1), (1, 1, 1))
CONV = "n2 12@1x9x9 20@1x9x9 k1x3x3 s1x1x1 p0x1x1 d1x1x1 g1 fp32"
GEMM = "gemm 70x90x600x0x1 fp32"
H100 = Target(kind="gpu", runtime="nvidia", name="NVIDIA H100 80GB HBM3", compute_units=132)


def choices(table: dict[str, str]) -> Tuned:
    return Tuned(table, dict.fromkeys(table, "table.json"))


def forward(rec: Recorder) -> tuple[dict[Ref, np.ndarray], Ref]:
    rng = np.random.default_rng(1)
    x, w, y = Ref("x", G.input_shape, Role.ACTIVATION), Ref("w", G.weight_shape, Role.PARAMETER), Ref("y", G.output_shape, Role.ACTIVATION)
    convolution.forward(rec, G, x, w, None, y)
    return {ref: rng.standard_normal(ref.shape).astype(np.float32) for ref in (x, w)}, y


def backward_filter(rec: Recorder) -> tuple[dict[Ref, np.ndarray], Ref]:
    rng = np.random.default_rng(2)
    x, w, y = Ref("x", G.input_shape, Role.ACTIVATION), Ref("w", G.weight_shape, Role.ACTIVATION), Ref("y", G.output_shape, Role.ACTIVATION)
    convolution.backward_filter(rec, G, x, y, w)
    return {ref: rng.standard_normal(ref.shape).astype(np.float32) for ref in (x, y)}, w


def product(rec: Recorder) -> tuple[dict[Ref, np.ndarray], Ref]:
    rng = np.random.default_rng(3)
    a, b, c = Ref("a", (70, 600), Role.ACTIVATION), Ref("b", (90, 600), Role.ACTIVATION), Ref("c", (70, 90), Role.ACTIVATION)
    gemm(rec, a, b, c, trans_b=True)
    return {ref: rng.standard_normal(ref.shape).astype(np.float32) for ref in (a, b)}, c


def recorded(target: Target, table: Tuned, operation: Callable[[Recorder], Any]) -> tuple[Recorder, Any]:
    rec = Recorder(replace(target, tuned=table), train=True)
    rec.enter("layer", "forward")
    return rec, operation(rec)


def launches(rec: Recorder) -> list[Any]:
    return [(launch.what, launch.call and (launch.call.defines, launch.call.scalars, launch.call.size)) for launch in rec.launches]


@pytest.mark.parametrize(
    ("kind", "operation", "key", "names"),
    [
        ("gpu", forward, f"forward {CONV}", ("32x32x18 by 4x4 /1", "64x64x9 by 8x8 /1")),
        ("gpu", product, GEMM, ("32x32x16 by 4x4 /1", "32x64x16 by 4x8 /4")),
        ("cpu", forward, f"forward {CONV}", ("winograd", "direct")),
        ("cpu", backward_filter, f"backward_filter {CONV}", ("winograd", "direct")),
        ("cpu", product, GEMM, ("256x1", "64x2")),
    ],
    ids=["tile", "tile and split", "algorithm", "algorithm of a gradient", "block of a product"],
)
def test_a_table_decides_and_the_numbers_stay(device: Any, kind: str, operation: Callable[[Recorder], Any], key: str, names: tuple[str, str]) -> None:
    if kind == "cpu" and not device.target.is_cpu:
        pytest.skip("the CPU class is for CPU runtimes")
    target = replace(device.target, kind=kind)
    made, results = [], []
    for name in names:
        rec, (feeds, result) = recorded(target, choices({key: name}), operation)
        made.append(launches(rec))
        results += execute(rec, device.context, feeds, [result])
    assert made[0] != made[1]
    assert np.abs(results[0] - results[1]).max() < 1e-4 * np.abs(results[0]).max()
    survey = Survey(ESTIMATES)
    recorded(target, survey, operation)
    assert key in {str(problem) for problem in survey.asked}
    assert launches(recorded(target, ESTIMATES, operation)[0]) in [
        launches(recorded(target, choices({key: name}), operation)[0]) for each, names in survey.names.items() if str(each) == key for name in names
    ], "what is taken without a table is one of the candidates"


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(Error) as caught:
        recorded(H100, choices({f"forward {CONV}": "31x7x1 by 1x1 /1"}), forward)
    assert "'31x7x1 by 1x1 /1', which does not exist" in str(caught.value) and "there are " in str(caught.value)
    assert caught.value.place == "table.json" and "ocaffe tune" in str(caught.value.fix)


def test_keys_tell_problems_apart() -> None:
    """Keys identify problems in users' tables. A changed key format makes every table useless."""
    assert str(Problem("forward", G, "fp32")) == f"forward {CONV}"
    assert str(Problem("gemm", (70, 90, 600, 0, 1), "fp32")) == GEMM
    others = [
        replace(G, batch=4), replace(G, num_output=24), replace(G, group=2), replace(G, dilation=(1, 2, 2), pad=(0, 2, 2)),
        replace(G, stride=(1, 2, 2), out=(1, 5, 5)), replace(G, size=(1, 9, 8), out=(1, 9, 8)), replace(G, kernel=(1, 3, 1), pad=(0, 1, 0)),
    ]  # fmt: skip
    assert len({str(Problem("forward", g, "fp32")) for g in [G, *others]}) == 8
    assert len({str(Problem(*each)) for each in (("forward", G, "fp32"), ("forward", G, "tf32"), ("backward_filter", G, "fp32"))}) == 3


@pytest.mark.parametrize(
    ("text", "place", "fact"),
    [
        ('{"format": 1,\n "choices": {,}}', "table.json:2", "damaged: "),
        ("[1, 2]", "table.json", "it needs 'format'"),
        ("[" * 100_000, "table.json", "nested too deep"),
        ('{"format": 1, "for": {}, "choices": {"gemm": 3}}', "table.json", "it needs 'format'"),
        ('{"choices": {}}', "table.json", "it needs 'format'"),
        ('{"format": 1, "for": {}, "choices": {}, "measured": []}', "table.json", "it needs 'format'"),
        (b"\xff\xfe\x00", "table.json", "it is no text"),
        (None, "table.json", "cannot be read"),
    ],
)
def test_a_damaged_table_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | bytes | None, place: str, fact: str) -> None:
    path = tmp_path / "table.json"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    monkeypatch.setenv("OCAFFE_TUNED", str(path))
    with pytest.raises(Error) as caught:
        tuned_tables.load(H100)
    assert fact in str(caught.value) and caught.value.place == str(tmp_path / place) and "ocaffe tune --reset" in str(caught.value.fix)


def test_a_table_of_another_format_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "table.json"
    path.write_text('{"format": 99, "for": {}, "choices": [["something", "else"]]}')
    monkeypatch.setenv("OCAFFE_TUNED", str(path))
    assert not tuned_tables.load(H100).choices and not tuned_tables.load(H100).choices
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("W") and str(path) in said and "format 99" in said and "ocaffe tune" in said


def test_the_users_table_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCAFFE_TUNED", raising=False)
    monkeypatch.setenv("OCAFFE_CACHE", str(tmp_path))
    brought = json.loads(tuned_tables.table({"kind": "gpu", "runtime": "nvidia", "name": "H100"}, {"a": "1", "b": "1"}))
    other = json.loads(tuned_tables.table({"kind": "gpu", "runtime": "amd"}, {"c": "1"}))
    monkeypatch.setattr(tuned_tables, "_shipped_files", lambda: [("ours.json", brought), ("theirs.json", other)])
    assert tuned_tables.load(H100).choices == {"a": "1", "b": "1"}
    own = tuned_tables.user_file(H100)
    assert own is not None and own.parent.parent == tmp_path
    own.parent.mkdir(exist_ok=True)
    own.write_text(tuned_tables.table({}, {"b": "2", "d": "2"}))
    found = tuned_tables.load(H100)
    assert found.choices == {"a": "1", "b": "2", "d": "2"} and found.files == (("ours.json", 1), (str(own), 2))
    assert found.digest and found.digest in str(found) and found.digest != tuned_tables.load(replace(H100, runtime="amd")).digest
    assert tuned_tables.load(replace(H100, name="NVIDIA A100")).choices == {}
    monkeypatch.setenv("OCAFFE_TUNED", "off")
    assert tuned_tables.load(H100).choices == {}


def parsed(key: str) -> Problem:
    operation, *words, math = key.split()
    if len(words) == 1:
        return Problem(operation, tuple(map(int, words[0].split("x"))), math)

    def axes(text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split("x")))

    (channels, size), (outputs, out) = (word.split("@") for word in words[1:3])
    steps = {word[0]: axes(word[1:]) for word in words[3:7]}
    shape = ConvGeometry(
        int(words[0][1:]), int(channels), int(outputs), int(words[7][1:]), axes(size), axes(out), steps["k"], steps["s"], steps["p"], steps["d"]
    )
    return Problem(operation, shape, math)


def test_tables_that_are_brought() -> None:
    """Every choice of a shipped table is a candidate for its problem on the table's device, and is not the estimate's first choice."""
    tables = tuned_tables._shipped_files()
    assert tables
    for file, content in tables:
        assert content["format"] == tuned_tables.FORMAT and content["choices"]
        target = replace(H100, tensor_cores=True, **content["for"])
        for key, name in content["choices"].items():
            problem = parsed(key)
            survey = Survey(choices({key: name}))
            rec = Recorder(replace(target, math=problem.math, tuned=survey), train=True)
            rec.enter("layer", "backward")
            OPERATIONS[problem.operation](rec, problem.shape, lambda name, shape: Ref(name, shape, Role.INPUT))
            assert problem in survey.asked and name in survey.names[problem][1:], (file, key, name)


def test_a_key_holds_the_whole_problem() -> None:
    for problem in (Problem("backward_data", replace(G, group=2), "tf32"), Problem("gemm", (7, 8, 9, 1, 0), "fp32")):
        assert parsed(str(problem)) == problem


def test_tuner(device: Any) -> None:
    """Every candidate is measured, including the estimate's choice, and the best is at most as slow as that."""
    session = Session(device)
    tuner = Tuner(session, ESTIMATES)
    survey = Survey(ESTIMATES)
    recorded(device.target, survey, forward)
    recorded(device.target, survey, product)
    found = list(tuner.tune(survey.asked))
    assert {each.problem for each in found} == set(survey.asked) == set(tuner.found) and not session.command_lists
    for each in found:
        assert each.default == survey.names[each.problem][0] and len(each.seconds) > 1
        assert each.seconds[each.best] <= each.seconds[each.default] and set(each.seconds) <= set(survey.names[each.problem])
        assert flops(each.problem) > 0
    assert tuner.choices == {str(each.problem): each.best for each in found if each.best != each.default}
    assert list(Tuner(session, ESTIMATES).tune(survey.asked, seconds=-1)) == [], "no time, nothing is begun"


def test_what_does_not_fit_is_left_out(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(device)
    tuner = Tuner(session, ESTIMATES)
    survey = Survey(ESTIMATES)
    recorded(device.target, survey, product)

    allocate = session.allocate

    def refuse(size: int, what: str, **more: bool) -> Any:
        if what == "the outputs":  # a few bytes
            return allocate(size, what, **more)
        raise Error(f"'{device.name}' refused a buffer")

    monkeypatch.setattr(session, "allocate", refuse)
    assert list(tuner.tune(survey.asked)) == [] and not session.command_lists and not tuner.choices
    assert [(str(problem), error.fact) for problem, error in tuner.refused.items()] == [(GEMM, f"'{device.name}' refused a buffer")]


def test_what_a_net_asks_for() -> None:
    for phase, wanted in ((proto.TRAIN, 2), (proto.TEST, 1)):
        graph = build(message(LEARNING), phase, lambda source, text: None)
        asked = problems(H100, [graph])
        assert sum(asked.values()) == wanted
        assert {str(problem) for problem in asked} <= {"gemm 4x2x3x0x1 fp32", "gemm 2x3x4x1x0 fp32"}
