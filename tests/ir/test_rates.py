"""Predicted times of launches: positive, larger for more work, the same in every call, and those of the formula for a known launch."""
from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from ocaffe.cl.rates import FILES, assumed
from ocaffe.ir.kernel import Access, Kernel
from ocaffe.ir.launch import Call, Launch, Operand, Upload
from ocaffe.ir.rates import OTHER, PRODUCT, Cost, Rates, name_of, work_of
from ocaffe.ir.target import MATHS, Target
from ocaffe.ir.tensor import Ref, Role
from tests.zoo.counts import H100, compiled

RATES = Rates(flops=1e12, bandwidth=1e11, launch=1e-5, enqueue=1.5, operand=0.5, to_host=2e10, from_host=1e10,
              costs={"copy.copy": Cost(0.5, 0, 0, 2, 3), PRODUCT: Cost(1, 2, 8, 1, 1), OTHER: Cost(1, 0, 0, 1, 1)})  # fmt: skip
R, W, RW = Access.READ, Access.WRITE, Access.MODIFY
INTEL = Target(runtime="intel", vector_width=16, max_allocation=1 << 40)
TARGETS = {"generic": Target(), "intel": INTEL, "H100": H100, "H100 bf16": replace(H100, math="bf16"),
           "other GPU": Target(kind="gpu", runtime="amd", name="gfx1100", compute_units=48)}  # fmt: skip


def ref(name: str, *shape: int, dtype: type = np.float32) -> Ref:
    return Ref(name, shape, Role.ACTIVATION, np.dtype(dtype))


def launch(kernel: str, *operands: tuple[str, Access, Ref], size: tuple[int, ...] = (1,), flops: int = 0) -> Launch:
    call = Call(kernel.partition(".")[0], "f", (), (), size, None)
    return Launch("layer", "forward", [Operand(each, access, name) for name, access, each in operands], Kernel(kernel), call, flops=flops)


def product(rows: int, columns: int, depth: int, batches: int = 1, flops: int | None = None) -> Launch:
    operands = ("a", R, ref("a", batches * rows, depth)), ("b", R, ref("b", batches * depth, columns)), ("c", W, ref("c", batches * rows, columns))
    given = 2 * batches * rows * columns * depth if flops is None else flops
    return launch("gemm_gpu.gemm", *operands, size=(64, 1, batches), flops=given)


def test_bytes_take_the_time_of_the_formula() -> None:
    """A start of half a launch; 4000 read bytes cost twice, 2000 written ones three times the time of a copy."""
    moved = launch("copy.copy", ("x", R, ref("x", 1000)), ("y", W, ref("y", 1000, dtype=np.uint16)))
    assert RATES.seconds(moved) == pytest.approx(0.5e-5 + (2 * 4000 + 3 * 2000) / 1e11)


def test_operand_that_repeats_another_counts_once() -> None:
    x = ref("x", 1000)
    assert work_of(launch("k.f", ("x", R, x), ("bias", R, x), ("y", RW, ref("y", 10)))) == (0, 0, 4040, 40)


def test_product_takes_the_time_of_its_flops_and_of_its_narrow_side() -> None:
    found = product(8, 100, 50)
    flops, moved = 2 * 8 * 100 * 50, 4 * (8 * 50 + 50 * 100 + 8 * 100)
    assert work_of(found)[:2] == pytest.approx((flops, flops / 8))
    assert RATES.seconds(found) == pytest.approx(1e-5 + (2 * flops + 8 * flops / 8) / 1e12 + moved / 1e11)


def test_flops_of_batches_are_those_of_the_kernel() -> None:
    """Winograd's algorithm computes fewer than the direct one, by which `flops` counts. It has costs of its own."""
    found = product(64, 128, 32, batches=36, flops=10**9)
    assert work_of(found).flops == pytest.approx(2 * 36 * 64 * 128 * 32)
    assert name_of(found, work_of(found)) == "gemm_gpu.gemm/winograd"
    attention = product(64, 128, 32, batches=36)
    assert name_of(attention, work_of(attention)) == "gemm_gpu.gemm"


def test_parts_of_a_split_depth_are_no_batches() -> None:
    found = product(64, 128, 4096)
    found.operands.append(Operand(ref("parts", 2, 6, 1024), W, "parts"))
    assert found.call is not None
    found.call = replace(found.call, size=(64, 1, 6))
    assert work_of(found).flops == pytest.approx(2 * 64 * 128 * 4096)


def test_convolution_is_narrow_by_its_channels() -> None:
    images = ("x", R, ref("x", 4, 3, 32, 32)), ("filter", R, ref("f", 16, 3, 3, 3)), ("y", W, ref("y", 4, 16, 32, 32))
    assert work_of(launch("conv_gpu.forward", *images, flops=600)).narrow == 200


def test_a_variant_without_costs_has_those_of_its_kernel() -> None:
    found = product(64, 128, 32, batches=36, flops=10**9)
    cost = Cost(3, 1, 1, 1, 1)
    rates, variant = (replace(RATES, costs={name: cost}) for name in ("gemm_gpu.gemm", "gemm_gpu.gemm/winograd"))
    assert rates.seconds(found) == variant.seconds(found) != RATES.seconds(found)


def test_uploads_take_the_time_of_the_link_and_other_steps_of_the_host_none() -> None:
    upload = Upload("data", "forward", [Operand(ref("data", 250), W, "data")])
    assert RATES.seconds(upload) == pytest.approx(1e-7)
    assert replace(RATES, from_host=0.0).seconds(upload) == 0


def test_step_takes_the_time_of_the_slower_side() -> None:
    small, large = (launch("copy.copy", ("x", R, ref("x", count)), ("y", W, ref("y", 1))) for count in (1, 10**8))
    assert RATES.step([small] * 3) == pytest.approx(3 * (1.5 + 2 * 0.5) * 1e-5)
    assert RATES.step([large, small]) == pytest.approx(RATES.seconds(large) + RATES.seconds(small))


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_times_are_positive_and_grow_with_the_work(target: Target) -> None:
    rates = assumed(target)
    for kernel in (*rates.costs, "unknown.kernel"):
        name, pages = kernel.partition("/")[0], [(n, ref("x", n, 8, 8, 8), ref("y", n, 8, 8, 8)) for n in (1, 10, 10**6)]
        times = [rates.seconds(launch(name, ("x", R, x), ("y", W, y), flops=n * 10**6)) for n, x, y in pages]
        assert 0 < times[0] <= times[1] <= times[2] < math.inf, kernel
        assert times[0] < times[2], kernel


@pytest.mark.parametrize("math", MATHS)
def test_every_arithmetic_has_costs(math: str) -> None:
    """Those of kernels that were not fitted in it are those in another one."""
    assert {"conv_gpu.forward", "conv_blocks.forward", "gemm_mma.gemm", PRODUCT, OTHER} <= assumed(replace(H100, math=math)).costs.keys()


def test_files_have_whole_costs() -> None:
    for kind in FILES:
        rates = assumed(Target(kind=kind))
        assert {PRODUCT, OTHER, "pointwise", "reduction", "update.update"} <= rates.costs.keys()
        assert all(len(cost) == len(Cost._fields) and min(cost) >= 0 and max(cost) > 0 for cost in rates.costs.values())


def test_time_depends_on_nothing_but_the_launch() -> None:
    """Two compilations of a net give the same times, launch by launch, also once expressions are kernels."""
    schedules = [compiled("lenet", "TRAIN", H100).recording.schedule for _ in range(2)]
    rates = assumed(H100)
    times = [[rates.seconds(each) for each in schedule] for schedule in schedules]
    assert times[0] == times[1]
    for each in schedules[0]:
        if each.lower is not None:
            each.final()
    assert [rates.seconds(each) for each in schedules[0]] == times[0]


@pytest.mark.parametrize("name", ["intel", "H100", "H100 bf16"])
def test_larger_batch_takes_longer(name: str) -> None:
    small, large = (assumed(TARGETS[name]).step(compiled("cifar10_quick", "TRAIN", TARGETS[name], batch=batch).recording.schedule) for batch in (256, 2048))
    assert 2 * small < large < 10 * small


@pytest.mark.parametrize(("math", "milliseconds"), [("fp32", 15.3), ("bf16", 4.2)])
def test_step_of_a_net_is_that_of_the_measured_device(math: str, milliseconds: float) -> None:
    """ResNet-18 64 on an H200. If kernels get other names, or a table does not match them, the error grows: fit again (benchmarks/rates.py)."""
    target = replace(H100, math=math, wgmma=math == "bf16")
    rates = replace(assumed(target), flops=6.6e13, bandwidth=3.8e12, launch=8.3e-6)
    assert 1e3 * rates.step(compiled("resnet18", "TRAIN", target, batch=64).recording.schedule) == pytest.approx(milliseconds, rel=0.15)
