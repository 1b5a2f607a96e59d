"""Matrix product on both device classes, through `ocaffe.kernels.matmul.gemm`, compared with numpy in float64."""
from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.matmul import gemm_cpu
from ocaffe.kernels.matmul.gemm import gemm
from tests.harness import execute

pytestmark = pytest.mark.quick

KINDS = ("cpu", "gpu")
SIZES = ((1, 1, 1), (7, 33, 17), (8, 32, 16), (64, 10, 50), (13, 40, 300), (1, 100, 30), (30, 1, 20), (50, 300, 40), (90, 150, 600),
         (1, 45, 1300), (6, 9, 1300))  # M, N, K


@pytest.fixture(autouse=True)
def cpu_class_on_cpus(request: pytest.FixtureRequest) -> None:
    """Skip kernels of the CPU class on GPUs.

    Their tiles take up to 128 KiB of private memory per work-item, more than a GPU has for all work-items in flight.
    """
    if "device" in request.fixturenames and not request.getfixturevalue("device").target.is_cpu and request.node.callspec.params.get("kind") != "gpu":
        pytest.skip("the CPU class is for CPU runtimes")



def recorder(target: Target, phase: str = "backward") -> Recorder:
    rec = Recorder(target, train=True)
    rec.enter("layer", phase)
    return rec


def close(got: np.ndarray, want: np.ndarray, tolerance: float = 1e-5) -> None:
    assert got.shape == want.shape
    error = np.abs(got - want).max() / max(np.abs(want).max(), 1e-30)
    assert error < tolerance, f"{error:.1e} of the largest magnitude"


def matrix(name: str, rows: int, columns: int, role: Role, gap: int) -> Ref:
    """Return a matrix with gaps of `gap` elements between rows that starts `gap` elements into its root."""
    if not gap:
        return Ref(name, (rows, columns), role)
    return Ref(f"{name}.root", (rows * (columns + gap) + gap,), role).view((rows, columns), gap, columns + gap, name)


def hold(rec: Recorder, ref: Ref) -> None:
    """Mark `ref` as written by an earlier node."""
    rec._pending.add(rec._diff_key(ref))
    rec.enter("layer", "backward")
    assert rec.accumulates(ref)


def check(
    device: Any, target: Target, size: tuple[int, int, int], trans_a: bool, trans_b: bool, *,
    gap: int = 0, with_bias: bool = False, add: bool = False, slope: float = 1.0,
) -> None:  # fmt: skip
    m, n, k = size
    rng = np.random.default_rng(m + 100 * n + 10000 * k)
    rec = recorder(target, "backward" if add else "forward")
    a = matrix("a", *((k, m) if trans_a else (m, k)), Role.ACTIVATION, gap)
    b = matrix("b", *((n, k) if trans_b else (k, n)), Role.PARAMETER, gap)
    c = matrix("c", m, n, Role.DIFF if add else Role.ACTIVATION, gap)
    bias = Ref("bias", (n,), Role.PARAMETER)
    feeds = {ref: rng.standard_normal(ref.shape) for ref in (a, b)}
    want = (feeds[a].T if trans_a else feeds[a]) @ (feeds[b].T if trans_b else feeds[b])
    if with_bias:
        feeds[bias] = rng.standard_normal(n)
        want = want + feeds[bias]
    if add:
        hold(rec, c)
        feeds[c] = rng.standard_normal((m, n))
        want = want + feeds[c]
    gemm(rec, a, b, c, trans_a=trans_a, trans_b=trans_b, bias=bias if with_bias else None)
    if slope != 1.0:
        merge_relu(rec, slope)
        want = np.where(want > 0, want, slope * want)
    close(execute(rec, device.context, feeds, [c])[0], want)


def merge_relu(rec: Recorder, slope: float) -> None:
    """Fuse a following ReLU: set the slope of the last launch."""
    launch = rec.launches[-1]
    assert launch.epilogue is not None and launch.scalar(launch.epilogue.activation[0]) == np.float32(1)
    launch.set_scalar(launch.epilogue.activation[0], np.float32(slope))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("trans_a", "trans_b"), itertools.product((False, True), repeat=2))
def test_sizes(device: Any, kind: str, trans_a: bool, trans_b: bool) -> None:
    target = replace(device.target, kind=kind)
    for size in SIZES:
        check(device, target, size, trans_a, trans_b, with_bias=True)
        check(device, target, size, trans_a, trans_b, add=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("trans_a", "trans_b"), itertools.product((False, True), repeat=2))
def test_rows_apart(device: Any, kind: str, trans_a: bool, trans_b: bool) -> None:
    """The leading dimension of all three operands is the batch stride."""
    check(device, replace(device.target, kind=kind), (19, 37, 29), trans_a, trans_b, gap=5, with_bias=True)
    check(device, replace(device.target, kind=kind), (19, 37, 29), trans_a, trans_b, gap=3, add=True)


@pytest.mark.parametrize("kind", KINDS)
def test_merged_relu(device: Any, kind: str) -> None:
    """The ReLU is applied after the whole sum, which is longer than one panel, and after the bias."""
    for size in ((9, 45, 20), (20, 33, 700)):
        check(device, replace(device.target, kind=kind), size, False, True, with_bias=True, slope=0.25)
        check(device, replace(device.target, kind=kind), size, False, True, with_bias=True, slope=0.0)


@pytest.mark.parametrize("width", [4, 8, 16])
def test_vector_widths(device: Any, width: int) -> None:
    for trans_a, trans_b in itertools.product((False, True), repeat=2):
        check(device, replace(device.target, kind="cpu", vector_width=width), (21, 43, 270), trans_a, trans_b, with_bias=True)


def test_sums_do_not_depend_on_the_number_of_cores(device: Any) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((100, 300)), rng.standard_normal((300, 50))
    results = []
    for units in (1, 2, 64):
        rec = recorder(replace(device.target, kind="cpu", compute_units=units))
        a, b, c = (Ref(name, shape, Role.ACTIVATION) for name, shape in (("a", x.shape), ("b", y.shape), ("c", (100, 50))))
        gemm(rec, a, b, c)
        results.append(execute(rec, device.context, {a: x, b: y}, [c])[0])
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


# -- what is recorded: no device needed ------------------------------------------------------------------------------------


def record(shape: tuple[int, int, int], **options: Any) -> Recorder:
    m, n, k = shape
    rec = recorder(Target(kind="cpu", compute_units=options.pop("compute_units", 2)))
    a, b, c = Ref("a", (m, k), Role.DIFF), Ref("b", (k, n), Role.PARAMETER), Ref("c", (m, n), Role.DIFF)
    gemm(rec, a, b, c, **options)
    return rec


def test_only_the_launch_that_finishes_c_can_take_a_relu() -> None:
    assert [launch.epilogue is None for launch in record((64, 50, 30)).launches] == [True, False]
    assert all(launch.epilogue is None for launch in record((64, 50, 30), mergeable=False).launches)


def test_all_products_share_their_programs() -> None:
    calls = [launch.call for size in ((1, 10, 5), (64, 500, 800), (300, 2, 7)) for launch in record(size).launches]
    assert len({(call.program, call.defines) for call in calls if call}) == len({call.program for call in calls if call}) <= 2


@pytest.mark.parametrize("units", [2, 64])
def test_there_is_work_for_all_cores(units: int) -> None:
    call = record((512, 512, 64), compute_units=units).launches[-1].call
    assert call is not None
    assert np.prod(call.size) >= gemm_cpu.ITEMS_PER_CORE * units


@pytest.mark.parametrize(
    ("shapes", "options"), [([(2, 3), (4, 5), (2, 5)], {}), ([(2, 3), (3, 5), (5, 2)], {}), ([(2, 3), (3, 5), (2, 5)], {"trans_a": True})]
)
def test_shapes_must_agree(shapes: list[tuple[int, int]], options: dict[str, bool]) -> None:
    a, b, c = (Ref(name, shape, Role.ACTIVATION) for name, shape in zip("abc", shapes))
    with pytest.raises(AssertionError):
        gemm(recorder(Target()), a, b, c, **options)


@pytest.mark.parametrize(
    ("rows", "height"), [(64, 13), (20, 10), (50, 13), (96, 12), (12, 12), (4, 4), (1, 4), (1000, 13), (21, 11), (16, 8), (0, 13)]
)
def test_height_of_the_tile_wastes_little(rows: int, height: int) -> None:
    assert gemm_cpu.tile(Target(vector_width=16), rows)["MR"] == height
