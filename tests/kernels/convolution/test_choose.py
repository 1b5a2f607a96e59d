"""The choice of the kernels of a convolution: the candidates of each device class, their order, and preferences."""
from __future__ import annotations

from dataclasses import replace

import pytest

from ocaffe.errors import Error
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref, Role
from ocaffe.ir.tuned import ESTIMATES, Tuned
from ocaffe.kernels.convolution import convolution
from ocaffe.kernels.convolution.choose import Direction, candidates
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.matmul.gemm import gemm
from ocaffe.profiling.tune import Survey
from tests.kernels.convolution.test_convolution import geometry
from tests.kernels.matmul.test_gemm import recorder

H100 = Target(kind="gpu", runtime="nvidia", compute_units=132, tensor_cores=True)
HOPPER = replace(H100, math="bf16", wgmma=True)
WINDOW = geometry(8, 64, 64, (1, 28, 28), (1, 3, 3), pad=(0, 1, 1))
POINT = geometry(8, 64, 64, (1, 28, 28), (1, 1, 1))
DEPTHWISE = geometry(8, 64, 64, (1, 28, 28), (1, 3, 3), pad=(0, 1, 1), group=64)
NARROW = geometry(8, 64, 64, (1, 7, 7), (1, 3, 3), pad=(0, 1, 1), group=64)
FIRST = geometry(8, 3, 64, (1, 224, 224), (1, 7, 7), stride=(1, 2, 2), pad=(0, 3, 3))
STRIDED = geometry(8, 64, 64, (1, 28, 28), (1, 3, 3), stride=(1, 2, 2), pad=(0, 1, 1))
FOUR_AXES = ConvGeometry(2, 3, 4, 1, (5, 5, 5, 5), (3, 3, 3, 3), (3, 3, 3, 3), (1, 1, 1, 1), (0, 0, 0, 0), (1, 1, 1, 1))


def programs(rec: Recorder, g: ConvGeometry) -> set[str]:
    """Record forward and return the programs of its launches."""
    x, w, y = (Ref(name, shape, Role.ACTIVATION) for name, shape in (("x", g.input_shape), ("w", g.weight_shape), ("y", g.output_shape)))
    convolution.forward(rec, g, x, w, None, y)
    return {launch.call.program for launch in rec.launches if launch.call is not None}


@pytest.mark.parametrize(
    ("target", "direction", "g", "names"),
    [
        (Target(), "forward", WINDOW, {"winograd", "direct"}),
        (Target(math="ieee"), "forward", WINDOW, {"direct"}),
        (Target(), "backward_data", WINDOW, {"winograd", "direct", "scatter"}),
        (Target(), "backward_data", STRIDED, {"scatter"}),
        (Target(), "backward_filter", POINT, {"pointwise", "direct"}),
        (Target(), "forward", DEPTHWISE, {"depthwise", "winograd", "direct"}),
        (Target(vector_width=16), "forward", NARROW, {"narrow", "depthwise", "winograd", "direct"}),
        (Target(), "forward", FOUR_AXES, {"unroll"}),
        (H100, "forward", WINDOW, {"winograd", "direct", "winograd 2", "winograd 3", "winograd 4"}),
        (H100, "backward_filter", WINDOW, {"winograd", "direct"}),
        (HOPPER, "forward", POINT, {"blocks", "direct", "mma", "pointwise"}),
        (HOPPER, "forward", WINDOW, {"blocks", "direct", "mma", "patch", "winograd", "winograd 2", "winograd 3", "winograd 4"}),
        (HOPPER, "forward", FIRST, {"blocks first", "direct"}),
        (HOPPER, "forward", DEPTHWISE, {"blocks", "depthwise", "direct", "winograd", "winograd 2", "winograd 3", "winograd 4"}),
    ],
)
def test_candidates(target: Target, direction: Direction, g: ConvGeometry, names: set[str]) -> None:
    assert names <= (found := {each.names[0] for each in candidates(recorder(target), direction, g)}), found
    assert found - names <= {"mma", "patch", "direct"}


def test_blocks_come_last_where_they_do_not_pay() -> None:
    """Few pixels in a net without backward."""
    for batch, place in ((1, -1), (256, 0)):
        rec = Recorder(HOPPER, train=False)
        assert [each.names[0] for each in candidates(rec, "forward", replace(POINT, batch=batch, size=(1, 7, 7), out=(1, 7, 7)))][place] == "blocks"


def test_nothing_is_estimated_after_the_best() -> None:
    """Where channels are in blocks, no tile is ranked and no table is asked."""
    survey = Survey(ESTIMATES)
    assert "conv_blocks" in programs(recorder(replace(HOPPER, tuned=survey)), WINDOW) and not survey.asked
    programs(recorder(replace(H100, tuned=survey)), WINDOW)
    assert len(survey.asked) == 1


@pytest.mark.parametrize(
    ("target", "name", "program"),
    [
        (Target(), "winograd", "winograd_cpu"), (Target(), "direct", "conv_cpu"), (H100, "winograd", "winograd_gpu"), (H100, "direct", "conv_gpu"),
        (HOPPER, "blocks", "conv_blocks"), (HOPPER, "mma", "conv_mma"), (HOPPER, "patch", "conv_patch_mma"), (HOPPER, "32x32", "conv_gpu"),
    ],
)
def test_a_preferred_candidate_is_recorded(target: Target, name: str, program: str) -> None:
    """Outside of the block, the best one is recorded as before."""
    plain, rec = recorder(target), recorder(target)
    with rec.prefer(name):
        assert program in programs(rec, WINDOW)
    assert rec.target is target
    rec.launches.clear()
    assert programs(rec, WINDOW) == programs(plain, WINDOW)


def test_the_first_possible_name_counts() -> None:
    rec = recorder(H100)
    with rec.prefer("narrow", "winograd", "direct"):
        assert "winograd_gpu" in programs(rec, WINDOW)


def test_a_tile_is_for_all_products() -> None:
    """For those within Winograd's algorithm and for matrix products, too. Names of algorithms do not concern these."""
    for names, tile in ((("winograd", "32x32"), "32"), (("winograd",), "64")):
        rec = recorder(replace(H100, math="ieee"))
        with rec.prefer(*names):
            programs(rec, WINDOW)
            a, b, c = (Ref(name, (1024, 1024), Role.ACTIVATION) for name in "abc")
            gemm(rec, a, b, c)
        tiles = [dict(launch.call.defines)["BM"] for launch in rec.launches if launch.call is not None and launch.call.function == "gemm"]
        assert len(tiles) == 2 and (set(tiles) == {"32"}) == (tile == "32")


@pytest.mark.parametrize("name", ["winogradd", "narrow", "31x7", "3", ""])
def test_unknown_and_impossible_names_are_refused(name: str) -> None:
    for target, known in ((Target(), "winograd"), (H100, "32x32x18 by 4x4 /1")):
        rec = recorder(target)
        with pytest.raises(Error) as caught, rec.prefer(name):
            programs(rec, WINDOW)
        assert f"cannot be computed by '{name}'" in str(caught.value) and known in str(caught.value.fix) and "direct" in str(caught.value.fix)
        assert rec.target is target, "an error ends the preference, too"


def test_a_refused_tile_of_a_matrix_product() -> None:
    rec = recorder(H100)
    a, b, c = (Ref(name, (64, 64), Role.ACTIVATION) for name in "abc")
    with pytest.raises(Error) as caught, rec.prefer("31x7"):
        gemm(rec, a, b, c)
    assert "'31x7'" in str(caught.value) and "32x32x16 by 4x4 /1" in str(caught.value.fix)


def test_a_target_may_have_the_preference() -> None:
    """So nets have it."""
    assert "winograd_gpu" in programs(recorder(replace(H100, tuned=Tuned(preferred=("winograd",)))), replace(WINDOW, batch=1))


@pytest.mark.parametrize("items", [64, 128, 256])
@pytest.mark.parametrize("math", ["fp32", "tf32", "bf16", "ieee"])
def test_small_work_groups_have_candidates(math: str, items: int) -> None:
    """Each estimate takes a tile that the device has room for. `OCAFFE_DEBUG=limits=...` limits a device with tensor cores so, too."""
    target = replace(H100, math=math, max_work_group=items, local_memory=16 << 10)
    directions: list[Direction] = ["forward", "backward_data", "backward_filter"]
    for g in (WINDOW, POINT, DEPTHWISE, NARROW, FIRST, STRIDED):
        for direction in directions:
            assert list(candidates(recorder(target), direction, g))
