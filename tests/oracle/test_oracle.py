"""The oracle against a real Caffe (marker oracle), and its parts without one."""
from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.oracle import kinds, peer, tables, values
from tests.oracle.case import Case, Step, read
from tests.oracle.draft import KINDS, random_net
from tests.oracle.files import from_file
from tests.oracle.graph import Graph
from tests.oracle.judge import Arbiter, Finding, compare, difference
from tests.oracle.peer import VARIABLE, Peer, Result
from tests.oracle.shrink import shrink, unread
from tests.oracle.solvers import POLICIES, TYPES, random_training
from tests.oracle.specs import random_script

pytest.importorskip("torch")  # double precision (exact.py)

CAFFE = os.environ.get(VARIABLE, "")
needs_caffe = pytest.mark.skipif(not CAFFE or not shutil.which(CAFFE), reason=f"${VARIABLE} does not name a Python that can import caffe")
NET = """force_backward: true
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: [2, 3] } } }
layer { name: "t" type: "TanH" bottom: "x" top: "t" } layer { name: "i" type: "InnerProduct" bottom: "t" top: "y" inner_product_param { num_output: 2 } }"""


def case_of(text: str = NET, **fields: Any) -> Case:
    shapes = {"x": (2, 3), "t": (2, 3), "y": (2, 2)}
    return Case(1, read(text), "TRAIN", {"x": ("normal", 1.0)}, shapes=shapes, **fields)


# Parts


def test_a_seed_gives_one_net() -> None:
    for seed in range(12):
        assert random_net(seed).order() == random_net(seed).order()
        assert random_script(seed) == random_script(seed) and random_training(seed) == random_training(seed)


def test_random_nets_have_all_kinds() -> None:
    drawn = {kind for seed in range(400) for kind in random_net(seed).types}
    assert drawn >= set(KINDS)
    trainings = [random_training(seed).solver for seed in range(120)]
    assert all(any(f'"{name}"' in text for text in trainings) for name in (*TYPES, *POLICIES))


@pytest.mark.parametrize("name", sorted(values.DISTRIBUTIONS))
def test_values_depend_on_the_key_alone(name: str) -> None:
    arguments: dict[str, tuple[Any, ...]] = {
        "normal": (1.0,), "ties": (0.5,), "positive": (2.0,), "constant": (3.0,), "integers": (0, 4), "labels": (0, 4, 255), "bits": (0.5,), "listed": (1, 2),
        "priors": (0.1, 0.1, 0.2, 0.2), "rois": (2, 9), "truths": (2, 3), "detections": (2, 3), "region": (3,),
    }  # fmt: skip
    shape = {"priors": (1, 2, 8), "rois": (3, 5), "truths": (3, 8), "detections": (3, 7), "region": (3, 5)}.get(name, (4, 6))
    spec = (name, *arguments.get(name, ()))
    first = values.draw(spec, shape, 7, "input", "x", 0)
    assert first.dtype == np.float32 and first.shape == shape
    assert np.array_equal(first, values.draw(list(spec), list(shape), 7, "input", "x", 0))
    assert name in ("constant", "listed") or not np.array_equal(first, values.draw(spec, shape, 8, "input", "x", 0))


def result(**arrays: np.ndarray) -> Result:
    return Result(None, {}, {key.replace("__", " ").replace("_of_", "/"): array for key, array in arrays.items()})


def test_differences() -> None:
    one = np.array([1.0, 2.0], np.float32)
    assert difference(one, one) == 0 and difference(one, one * 1.001) == pytest.approx(0.001, rel=0.01)
    assert difference(one, np.array([1.0, np.nan], np.float32)) == np.inf
    assert difference(np.array([np.inf, 1.0]), np.array([np.inf, 1.0])) == 0 and difference(np.array([np.inf]), np.array([-np.inf])) == np.inf
    found = compare(case_of(), result(data__0_of_t=one), result(data__0_of_t=one * 1.001))
    assert [(finding.part, finding.step, finding.name) for finding in found] == [("data", 0, "t")]
    assert [finding.part for finding in compare(case_of(), result(data__0_of_t=one), result(data__0_of_t=one[:1]))] == ["shape"]


def test_refusals() -> None:
    def refused(stage: str, error: str = "Error") -> Result:
        return Result({"stage": stage, "error": error, "message": ""}, {})

    ran = Result(None, {})
    assert [finding.part for finding in compare(case_of(), refused("build"), ran)] == ["refusal"]
    assert compare(case_of(), refused("forward 0"), refused("build")) == []  # both refuse before a value is computed
    assert [finding.part for finding in compare(case_of(), refused("backward 0"), refused("build"))] == ["refusal"]
    assert [finding.part for finding in compare(case_of(), refused("build"), refused("build", "KeyError"))] == ["refusal"]  # ocaffe must raise its own Error


def exact_arrays(case: Case) -> dict[str, np.ndarray]:
    from tests.oracle.exact import Evaluation

    given = {"parameter 0/i/0": np.zeros((2, 3)), "parameter 0/i/1": np.zeros(2)}
    return {key: array.astype(np.float32) for key, array in Evaluation(case, Graph(case, given)).arrays.items()}


def test_arbitration_tells_rounding_from_a_fault() -> None:
    case = case_of(diffs=("y",))
    arrays = exact_arrays(case)
    arbiter, right = Arbiter(case, Graph(case, arrays)), arrays["data 0/y"]
    assert arbiter.judged(Finding("data", 0, "y", right, right * np.float32(1 + 1e-7), 1e-7)) is None
    judged = arbiter.judged(Finding("data", 0, "y", right, right * np.float32(1.01), 0.01))
    assert judged is not None and judged.verdict.startswith("ocaffe off")
    judged = arbiter.judged(Finding("diff", 0, "x", arrays["diff 0/x"] + 1, arrays["diff 0/x"], 1.0))
    assert judged is not None and judged.verdict.startswith("caffe off")


IN_PLACE = """force_backward: true
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: [2, 3] } } }
layer { name: "t" type: "TanH" bottom: "x" top: "t" }
layer { name: "r" type: "Reshape" bottom: "t" top: "r" reshape_param { shape { dim: -1 } } }
layer { name: "p" type: "Power" bottom: "r" top: "r" power_param { scale: 3 } }"""


def test_memory_of_caffe_explains_what_it_gives_and_nothing_else() -> None:
    """Power in place writes its factor into the diff that it reads, and changes the value from which TanH computes its gradient."""
    case = Case(1, read(IN_PLACE), "TRAIN", {"x": ("normal", 1.0)}, shapes={"x": (2, 3), "t": (2, 3), "r": (6,)}, diffs=("r",))
    x = values.draw(("normal", 1.0), (2, 3), 1, "input", "x", 0).astype(np.float64)
    y, dy = np.tanh(x), values.draw(values.NORMAL, (6,), 1, "diff", "r", 0).reshape(2, 3)
    arbiter = Arbiter(case, Graph(case, {}))
    for name, part, caffe, ocaffe in (("t", "data", 3 * y, y), ("x", "diff", 9 * (1 - (3 * y) ** 2), 3 * dy * (1 - y**2))):
        wrong, right = caffe.astype(np.float32), ocaffe.astype(np.float32)
        judged = arbiter.judged(Finding(part, 0, name, wrong, right, 1.0))
        assert judged is not None and judged.verdict.startswith("caffe off;") and arbiter.is_memory(judged)
        assert tables.explained(case, judged, arbiter.graph, arbiter) == "in place"
        for a, b in ((wrong * np.float32(1.01), right), (wrong, right * np.float32(1.01))):
            judged = arbiter.judged(Finding(part, 0, name, a, b, 1.0))
            assert judged is not None and tables.explained(case, judged, arbiter.graph, arbiter) is None


def test_only_what_depends_on_a_nan_is_explained_by_it() -> None:
    text = """layer { name: "in" type: "Input" top: "x" input_param { shape { dim: [2, 3] } } }
layer { name: "l" type: "Power" bottom: "x" top: "l" power_param { power: 0.5 } } layer { name: "r" type: "ReLU" bottom: "l" top: "r" }"""
    case = Case(2, read(text), "TEST", {"x": ("normal", 1.0)}, shapes=dict.fromkeys("xlr", (2, 3)))
    root = np.sqrt(np.where((x := values.draw(("normal", 1.0), (2, 3), 2, "input", "x", 0)) < 0, np.nan, x)).astype(np.float32)
    arbiter = Arbiter(case, Graph(case, {"data 0/l": root}))
    top = np.nan_to_num(root)
    assert np.isnan(root).any() and (root > 0).any()
    for changed, name in ((np.isnan(root), "NaN"), (root > 0, None)):
        finding = Finding("data", 0, "r", np.where(changed, 7, top).astype(np.float32), top, 1.0)
        assert tables.explained(case, finding, arbiter.graph, arbiter) == name


@pytest.mark.parametrize("in_root", [True, False])
def test_gradient_of_a_normalized_value(in_root: bool) -> None:
    """MVN's is not the derivative if eps counts."""
    import torch

    from tests.oracle.exact import At, normalized

    at = At(read(NET).layer[0], True, [], [], {}, lambda tensor: tensor)
    x = torch.tensor(np.random.default_rng(1).standard_normal((3, 2, 4)), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: normalized(at, x, [0, 2], 0.1 if in_root else 1e-9, in_root)[0], x)


def test_exact_values_are_those_of_ocaffe() -> None:
    case = case_of(diffs=("y",))
    with Peer("ocaffe") as program:
        got = program.run(case.order())
    assert got.refusal is None
    exact = exact_arrays(case)
    for key in ("data 0/y", "output 0/y", "parameter diff 0/i/0", "parameter diff 0/i/1", "diff 0/t"):
        assert difference(got.arrays[key], exact[key]) < 1e-5, key


def test_rules_do_not_cover_a_plain_difference() -> None:
    case = case_of()
    graph = Graph(case, {})
    array = np.ones((2, 2), np.float32)
    for part, name in (("data", "y"), ("data", "t"), ("parameter diff", "i/0"), ("shape", "y")):
        for verdict in ("", "caffe off", "ocaffe off"):
            finding = Finding(part, 0, name, array, array + 1, 0.5, verdict)
            assert tables.explained(case, finding, graph, Arbiter(case, graph)) is None, (part, name)
    assert tables.explained(case, Finding("refusal", 0, "", "refuses at build: signal 6: F x.cpp] Check failed", "runs"), graph, Arbiter(case, graph)) is None


def test_a_diff_that_no_gradient_needs_is_explained() -> None:
    loss = NET.removeprefix("force_backward: true") + ' layer { name: "e" type: "EuclideanLoss" bottom: "x" bottom: "t" top: "l" }'
    case = case_of(loss)
    finding = Finding("diff", 0, "l", np.array(1.0, np.float32), np.array(0.0, np.float32), 1.0)
    graph = Graph(case, {})
    assert tables.explained(case, finding, graph, Arbiter(case, graph)) == "diffs that no gradient needs"


def test_shrink_keeps_what_is_needed() -> None:
    case = case_of(steps=[Step(), Step()])

    def test(smaller: Case) -> list[Finding]:
        return [Finding("data", 0, "y", 1, 2)] if "InnerProduct" in smaller.types else []

    small = shrink(case, test, "data")
    assert small.types == ["Input", "InnerProduct"] and len(small.steps) == 1
    assert unread(small).types == small.types and small.inputs == {"t": ("normal", 1.0)}


def test_a_worker_that_dies_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    with Peer("ocaffe") as program:
        order = case_of().order()
        assert program.run(order).refusal is None
        late = program.run(order, limit=0.0)
        assert late.refusal is not None and late.refusal["error"] == "TimeoutError"
        assert program.run(order).refusal is None  # another process


# With a real Caffe


@pytest.fixture(scope="module")
def oracle() -> Any:
    from tests.oracle.oracle import Oracle

    with Oracle() as both:
        yield both


@pytest.mark.oracle
@needs_caffe
def test_every_type_of_caffe_is_drawn_or_has_a_reason(oracle: Any) -> None:
    kinds.register()
    types = set(oracle.caffe.run({"kind": "types", "seed": 0}).facts["types"])
    assert types <= set(KINDS) | set(tables.NOT_DRAWN)
    assert set(tables.NOT_DRAWN) <= types


@pytest.mark.oracle
@needs_caffe
def test_nets(oracle: Any) -> None:
    found = {seed: str(findings[0]) for seed in range(100) if (findings := oracle.findings(random_net(seed)))}
    assert found == {} and oracle.counts.nets >= 100 and oracle.counts.arrays > 1000


INPUT = 'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: [2, 3, 4, 1] } } } '
LEARNS = 'layer { name: "b" type: "Bias" bottom: "x" top: "b" bias_param { axis: 0 num_axes: 0 } } '
OTHER = 'layer { name: "o" type: "Reduction" bottom: "b" top: "o" loss_weight: 1 reduction_param { operation: SUMSQ } } '
AFTER = (
    'layer { name: "e" type: "Exp" bottom: "y" top: "e" } '
    'layer { name: "l" type: "Reduction" bottom: "e" top: "l" loss_weight: 0.5 reduction_param { operation: SUMSQ } }'
)
RESHAPE, FLATTEN, SAME = 'type: "Reshape" reshape_param { shape { dim: [0, -1] } }', 'type: "Flatten"', 'type: "Permute" permute_param { order: 0 }'
CUT = [
    RESHAPE, FLATTEN, SAME, *(f'type: "{kind}"' for kind in ("Slice", "Concat", "Softmax", "LRN", "MVN", "BatchNorm", "Scale")),
    'type: "Im2col" convolution_param { kernel_size: 1 }', 'type: "Permute" permute_param { order: 1 }',
]  # fmt: skip
POWER = 'type: "Power" power_param { power: 3 scale: 2 }'
HABITS = [  # nets whose values differ, and the rule
    *(("propagate_down: false", LEARNS + OTHER + f'layer {{ name: "y" bottom: "b" top: "y" propagate_down: false {cut} }} ' + AFTER) for cut in CUT),
    *(("views in a row", LEARNS + f'layer {{ name: "v" bottom: "b" top: "v" {first} }} layer {{ name: "y" bottom: "v" top: "y" {then} }} ' + AFTER)
      for first in (RESHAPE, 'type: "Slice"', 'type: "Concat"') for then in (FLATTEN, SAME)),
    *(("in place", LEARNS + f'layer {{ name: "t" type: "TanH" bottom: "b" top: "y" }} layer {{ name: "i" bottom: "y" top: "y" {kind} }} ' + AFTER)
      for kind in (POWER, 'type: "Log" log_param { shift: 3 }', 'type: "LRN" lrn_param { local_size: 3 }', 'type: "Eltwise" bottom: "x"',
                   'type: "Eltwise" bottom: "x" eltwise_param { operation: MAX }', 'type: "ELU"', 'type: "Clip" clip_param { min: -0.1 max: 0.1 }')),
    ("in place", LEARNS + 'layer { name: "t" type: "TanH" bottom: "b" top: "t" } '
     f'layer {{ name: "v" bottom: "t" top: "y" {RESHAPE} }} layer {{ name: "i" bottom: "y" top: "y" {POWER} }} ' + AFTER),
    ("in place", 'layer { name: "p" type: "Parameter" top: "p" parameter_param { shape { dim: [2, 3] } } } '
     'layer { name: "v" type: "Flatten" bottom: "p" top: "y" } layer { name: "i" type: "ReLU6" bottom: "y" top: "y" } ' + AFTER),
    ("in place", 'layer { name: "z" type: "Input" top: "z" input_param { shape { dim: [1, 3, 4] } } } '
     'layer { name: "c" type: "Input" top: "c" input_param { shape { dim: [1, 3] } } } layer { name: "n" type: "RNN" bottom: "z" bottom: "c" top: "y" '
     'recurrent_param { num_output: 2 weight_filler { type: "uniform" } } } layer { name: "i" type: "Sigmoid" bottom: "y" top: "y" } ' + AFTER),
    ("diffs that no gradient needs", LEARNS + OTHER + 'layer { name: "d" type: "Input" top: "d" input_param { shape { dim: 3 } } } '
     'layer { name: "i" type: "BNLL" bottom: "d" top: "d" loss_weight: -2 } '),
    ("Power at 0", LEARNS + 'layer { name: "r" type: "ReLU" bottom: "b" top: "r" } '
     'layer { name: "y" type: "Power" bottom: "r" top: "y" power_param { power: 3 } } ' + AFTER),
    ("divisor of AVE", LEARNS + 'layer { name: "y" type: "Pooling" bottom: "b" top: "y" pooling_param { pool: AVE kernel_h: 3 kernel_w: 1 stride: 2 } } '
     + AFTER),
]  # fmt: skip


@pytest.mark.oracle
@needs_caffe
@pytest.mark.parametrize("rule, text", HABITS)
def test_habits_of_caffe_are_explained_by_its_memory(oracle: Any, tmp_path: Any, rule: str, text: str) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(INPUT + text)
    oracle.counts.explained.clear()
    assert [str(finding) for finding in oracle.findings(from_file(str(path), "TRAIN"))] == []
    assert rule in oracle.counts.explained


@pytest.mark.oracle
@needs_caffe
@pytest.mark.parametrize("what", ["solvers", "specs"])
def test_solvers_and_specs(oracle: Any, what: str) -> None:
    from tests.oracle import solvers, specs

    run: Callable[[int], list[Finding]] = (
        (lambda seed: solvers.findings(oracle, random_training(seed))) if what == "solvers" else (lambda seed: specs.findings(oracle, seed))
    )
    assert {seed: str(findings[0]) for seed in range(20) if (findings := run(seed))} == {}


@pytest.mark.oracle
@needs_caffe
@pytest.mark.parametrize("fault, what", [("pooling", "nets"), ("bias", "nets"), ("rate", "solvers"), ("memory", "nets")])
def test_planted_faults_are_found(fault: str, what: str) -> None:
    from tests.oracle.campaign import Part, run_part

    outcome = run_part(Part(what, range(1000), fault=fault, most=1))
    assert len(outcome.reports) == 1


@pytest.mark.oracle
@needs_caffe
def test_a_net_file_with_weights(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.oracle.__main__ import main

    path = tmp_path / "net.prototxt"
    path.write_text(NET)
    assert main([str(path)]) == 0
    with Peer("caffe", CAFFE) as program:
        saved = program.run(case_of(backward=False).order(save=True))
        assert main([str(path), os.path.join(saved.folder, "net.caffemodel")]) == 0
    assert "arrays compared, 0 differ" in capsys.readouterr().out


def test_missing_caffe_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.oracle.__main__ import main

    monkeypatch.delenv(peer.VARIABLE, raising=False)
    assert main(["--seeds", "0:1"]) == 2 and VARIABLE in capsys.readouterr().err
