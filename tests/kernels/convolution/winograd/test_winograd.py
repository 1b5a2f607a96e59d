"""Winograd's convolution on CPU runtimes, compared with numpy in float64, and the choice of it."""
from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.convolution import convolution
from ocaffe.kernels.convolution.choose import Direction, candidates
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.convolution.winograd import winograd_cpu
from tests.harness import execute
from tests.kernels.convolution.test_convolution import RESULTS, arrays, geometry, record, reference, refs
from tests.kernels.matmul.test_gemm import close, hold, merge_relu, recorder

TOLERANCE = 1e-5  # relative to the largest magnitude; the transforms add rounding errors

GEOMETRIES = {
    "one tile": geometry(1, 3, 5, (1, 4, 4), (1, 3, 3), pad=(0, 1, 1)),
    "edges cut tiles": geometry(2, 20, 13, (1, 14, 14), (1, 3, 3), pad=(0, 1, 1)),
    "no padding": geometry(2, 9, 8, (1, 13, 11), (1, 3, 3)),
    "padding beyond the window": geometry(1, 4, 3, (1, 5, 6), (1, 3, 3), pad=(0, 3, 4)),
    "rows longer than a vector of tiles": geometry(1, 5, 9, (1, 6, 150), (1, 3, 3), pad=(0, 1, 1)),
    "a pixel a sample": geometry(40, 6, 4, (1, 1, 1), (1, 3, 3), pad=(0, 1, 1)),
    "groups": geometry(3, 12, 20, (1, 7, 7), (1, 3, 3), pad=(0, 1, 1), group=2),
    "more channels than a block": geometry(1, 600, 8, (1, 7, 7), (1, 3, 3), pad=(0, 1, 1)),
    "whole tiles": geometry(2, 6, 5, (1, 8, 12), (1, 3, 3), pad=(0, 1, 1)),
    "many outputs": geometry(2, 5, 200, (1, 7, 6), (1, 3, 3), pad=(0, 1, 1)),
}


@pytest.fixture(autouse=True)
def cpu_class(request: pytest.FixtureRequest) -> None:
    if "device" in request.fixturenames and not request.getfixturevalue("device").target.is_cpu:
        pytest.skip("the CPU class is for CPU runtimes")


def run(device: Any, g: ConvGeometry, target: Target | None = None, *, strided: bool = False, add: bool = False) -> list[np.ndarray]:
    """Compute y, dx, dw, db, compare them with the reference and return them."""
    given = arrays(g)
    want = reference(g, *given.values())
    at = refs(g, given, want, strided)
    rec = recorder(target or device.target)
    feeds = {at[key]: array for key, array in given.items()}
    if add:
        at["y"] = Ref("y", at["y"].shape, Role.DIFF)
        for number, result in enumerate(RESULTS):
            hold(rec, at[result])
            feeds[at[result]] = np.random.default_rng(number).standard_normal(at[result].shape)
            want[result] = want[result] + feeds[at[result]]
    with rec.prefer("winograd"):
        record(rec, g, at)
    used = {launch.call.function for launch in rec.launches if launch.call and launch.call.program == "winograd_cpu"}
    assert used == {"filter", "forward", "input", "gradient", "product", "window"}
    got = execute(rec, device.context, feeds, [at[result] for result in RESULTS])
    for result, array in zip(RESULTS, got):
        close(array, want[result], TOLERANCE)
    return got


@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometries(device: Any, name: str) -> None:
    run(device, GEOMETRIES[name])


@pytest.mark.parametrize("name", ["edges cut tiles", "groups", "rows longer than a vector of tiles"])
@pytest.mark.parametrize("add", [False, True])
def test_samples_apart_and_accumulation(device: Any, name: str, add: bool) -> None:
    """Positions of samples follow the batch stride. Results are added to diffs of earlier nodes."""
    run(device, GEOMETRIES[name], strided=True, add=add)


@pytest.mark.parametrize("width", [4, 8, 16])
@pytest.mark.parametrize("name", ["edges cut tiles", "rows longer than a vector of tiles"])
def test_vector_widths(device: Any, width: int, name: str) -> None:
    run(device, GEOMETRIES[name], replace(device.target, vector_width=width))


@pytest.mark.parametrize("name", ["many outputs", "a pixel a sample"])
def test_many_cores_and_the_same_bits_twice(device: Any, name: str) -> None:
    target = replace(device.target, compute_units=64)
    for first, second in zip(run(device, GEOMETRIES[name], target), run(device, GEOMETRIES[name], target)):
        np.testing.assert_array_equal(first, second)


def test_filters_from_some_tiles_after_others(device: Any) -> None:
    """There are more tiles than are transformed at a time."""
    g = geometry(1, 600, 8, (1, 56, 57), (1, 3, 3), pad=(0, 1, 1))
    assert winograd_cpu.POINTS * (g.channels + g.num_output) * math.ceil(g.out[1] / 4) * math.ceil(g.out[2] / 4) > winograd_cpu.ROOM
    run(device, g)


@pytest.mark.parametrize("bias", [0, 1, 2])
def test_epilogues(device: Any, bias: int) -> None:
    """Epilogues: none, offsets, or offsets and factors per output; each with a ReLU."""
    g = GEOMETRIES["groups"]
    given = arrays(g)
    table = np.stack([given["bias"], np.linspace(-2, 2, g.num_output)])
    given["bias"] = table[0] * 0
    want = reference(g, *given.values())
    at = refs(g, given, want, strided=False)
    rec = recorder(device.target, "forward")
    offsets = Ref("table", table.shape, Role.PARAMETER)
    with rec.prefer("winograd"):
        convolution.forward(rec, g, at["x"], at["w"], at["bias"] if bias == 0 else None, at["y"])
    launch = rec.launches[-1]
    assert launch.call is not None and launch.epilogue is not None
    if bias:
        launch.set_scalar(launch.epilogue.bias, np.int32(bias))
        launch.operands[2] = replace(launch.operands[2], ref=offsets)
    merge_relu(rec, 0.25)
    y = want["y"] * (table[1].reshape(-1, 1, 1, 1) if bias == 2 else 1) + (table[0].reshape(-1, 1, 1, 1) if bias else 0)
    feeds = {at["x"]: given["x"], at["w"]: given["w"]} | ({offsets: table} if bias else {at["bias"]: given["bias"]})
    close(execute(rec, device.context, feeds, [at["y"]])[0], np.where(y > 0, y, 0.25 * y), TOLERANCE)


def test_error_of_a_deep_sum(device: Any) -> None:
    """Positive inputs, as after a ReLU, and 512 channels are the worst case of the zoo's nets."""
    g = geometry(1, 512, 16, (1, 14, 14), (1, 3, 3), pad=(0, 1, 1))
    given = arrays(g)
    given["x"] = np.abs(given["x"])
    want = reference(g, *given.values())
    at = refs(g, given, want, strided=False)
    rec = recorder(device.target)
    with rec.prefer("winograd"):
        record(rec, g, at)
    for result, array in zip(RESULTS, execute(rec, device.context, {at[key]: array for key, array in given.items()}, [at[key] for key in RESULTS])):
        close(array, want[result], TOLERANCE)


# -- what is recorded: no device needed ------------------------------------------------------------------------------------


def best(rec: Recorder, g: ConvGeometry, direction: Direction = "forward") -> str:
    return next(candidates(rec, direction, g)).names[0]


@pytest.mark.parametrize(
    ("numbers", "chosen"),
    [((4, 64, 64, 56), True), ((8, 512, 512, 7), True), ((4, 3, 64, 224), False), ((1, 512, 512, 7), False), ((2, 4, 8, 14), False)],
)
def test_it_is_chosen_where_it_pays(numbers: tuple[int, int, int, int], chosen: bool) -> None:
    batch, channels, outputs, size = numbers
    g = geometry(batch, channels, outputs, (1, size, size), (1, 3, 3), pad=(0, 1, 1))
    assert (best(recorder(Target(vector_width=16)), g) == "winograd") == chosen


@pytest.mark.parametrize(("numbers", "chosen"), [((8, 512, 512, 7), True), ((16, 192, 384, 7), True), ((4, 3, 64, 224), False)])
def test_gradients_of_filters(numbers: tuple[int, int, int, int], chosen: bool) -> None:
    batch, channels, outputs, size = numbers
    g = geometry(batch, channels, outputs, (1, size, size), (1, 3, 3), pad=(0, 1, 1))
    assert (best(recorder(Target(vector_width=16)), g, "backward_filter") == "winograd") == chosen


def test_filters_that_are_kept_cost_nothing() -> None:
    g = geometry(1, 256, 256, (1, 14, 14), (1, 3, 3), pad=(0, 1, 1))
    chosen = []
    for prepare in (False, True):
        rec = Recorder(Target(vector_width=16), train=False, prepack_weights=prepare)
        chosen.append(best(rec, g))
    assert chosen == ["direct", "winograd"]


@pytest.mark.parametrize("other", [{"stride": (1, 2, 2)}, {"dilation": (1, 2, 2)}, {"kernel": (1, 5, 5)}])
def test_other_windows_are_not_for_it(other: dict[str, tuple[int, int, int]]) -> None:
    g = geometry(4, 64, 64, (1, 56, 56), **{"kernel": (1, 3, 3), **other})
    assert "winograd" not in {each.names[0] for each in candidates(recorder(Target(vector_width=16)), "forward", g)}


@pytest.mark.parametrize("units", [2, 64])
def test_workspace_holds_what_a_work_item_transforms(units: int) -> None:
    """The workspace never holds the whole transformed image, which would be more than twice the image."""
    g = geometry(4, 64, 64, (1, 224, 224), (1, 3, 3), pad=(0, 1, 1))
    rec = recorder(Target(vector_width=16, compute_units=units))
    winograd_cpu.forward(rec, g, Ref("x", (4, 64, 1, 224, 224), Role.ACTIVATION), Ref("w", g.weight_shape, Role.PARAMETER), None,
                         Ref("y", (4, 64, 1, 224, 224), Role.ACTIVATION))  # fmt: skip
    (space,) = (ref for launch in rec.launches for ref in launch.writes if ref.name.endswith("transformed"))
    assert space.shape[0] == math.prod(rec.launches[-1].call.size) <= 4 * units  # type: ignore[union-attr]
