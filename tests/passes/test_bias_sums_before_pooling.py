"""Bias gradients before MAX pooling are summed before the scatter, with the same results, and only if the pooling only scatters."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ocaffe.ir.launch import Access, Launch, Operand
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import BFLOAT, Ref, Role
from ocaffe.kernels.expression.expression import Reduce, ReluBackward, pointwise, reduce
from ocaffe.kernels.pooling.pooling import MAX, Pool
from ocaffe.passes import bf16
from ocaffe.passes.bias_sums_before_pooling import sum_before_scatter
from ocaffe.passes.relu_backward_fusion import SIGNS, TOP, fuse_relu_backward, replace_mask
from tests.harness import execute, of_kind
from tests.passes.test_relu_backward_fusion import APART, BIAS, EACH, END, MAXIMA, MEAN, OVERLAPPING, START, filtered, layer, merged, pooled, rectified, squared
from tests.tiers import rest_is_long

SUM, FUSED_RELU_FAMILIES = "v0 = x0", "v0 = x1 > 0 ? x0 : slope * x0"
PLAIN, LOW = filtered("conv", "data"), filtered("conv", "data", bias=-1.3)
UNEQUAL = filtered("more", "data").replace("num_output: 6", "num_output: 4") + rectified("thin", "more")
NETS = {  # a net; blob and expression of the channel reductions, by layer
    "overlapping windows": (MAXIMA + END, {"conv": ("pool.diff", FUSED_RELU_FAMILIES)}),
    "windows apart": (START + pooled("pool", "relu", APART) + END, {"conv": ("pool.diff", FUSED_RELU_FAMILIES)}),
    "a window for each pixel": (START + pooled("pool", "relu", EACH) + END, {"conv": ("pool.diff", FUSED_RELU_FAMILIES)}),
    "whole planes": (LOW + rectified("relu", "conv") + pooled("pool", "relu", "global_pooling: true") + END, {"conv": ("pool.diff", FUSED_RELU_FAMILIES)}),
    "in place": (PLAIN + rectified("relu", "conv", "conv") + pooled("pool", "conv", OVERLAPPING) + END, {"conv": ("pool.diff", FUSED_RELU_FAMILIES)}),
    "ungated": (PLAIN + pooled("pool", "conv", OVERLAPPING) + END, {"conv": ("pool.diff", SUM)}),
    "rectified afterwards": (PLAIN + pooled("pool", "conv", APART) + rectified("pool_relu", "pool", "pool") + END, {"conv": ("pool.diff", SUM)}),
    "branches": (
        START + UNEQUAL + layer("all", "Concat", "relu thin") + pooled("pool", "all", OVERLAPPING) + END,
        {"conv": ("pool.diff", FUSED_RELU_FAMILIES), "more": ("pool.diff", FUSED_RELU_FAMILIES)},
    ),
    "a branch of a Concat": (
        MAXIMA + UNEQUAL + pooled("small", "thin", OVERLAPPING) + layer("all", "Concat", "pool small") + filtered("second", "all") + squared("second"),
        {"conv": ("pool.diff", FUSED_RELU_FAMILIES), "more": ("small.diff", FUSED_RELU_FAMILIES)},
    ),
    "averages": (START + pooled("pool", "relu", f"pool: AVE {OVERLAPPING}") + END, {"conv": ("conv.diff", SUM)}),
    "averages, ungated": (PLAIN + pooled("pool", "conv", f"pool: AVE {OVERLAPPING}") + END, {"conv": ("conv.diff", SUM)}),
    "ReLU mask in bits": (MAXIMA + pooled("mean", "pool", "pool: AVE kernel_size: 2") + squared("mean"), {"conv": ("conv.diff", SUM)}),
    "gradients before": (MAXIMA + MEAN + END + squared("mean"), {"conv": ("conv.diff", SUM)}),
    "gradients afterwards": (START + MEAN + pooled("pool", "relu", OVERLAPPING) + END + squared("mean"), {"conv": ("conv.diff", SUM)}),
    "ungated gradients afterwards": (
        PLAIN + pooled("mean", "conv", "pool: AVE kernel_size: 2") + pooled("pool", "conv", OVERLAPPING) + END + squared("mean"), {"conv": ("conv.diff", SUM)},
    ),
    "maxima of other values": (START + layer("shifted", "Bias", "relu", BIAS) + pooled("pool", "shifted", OVERLAPPING) + END, {"conv": ("conv.diff", SUM)}),
}  # fmt: skip


def sums(launches: list[Launch]) -> dict[str, tuple[str, str]]:
    """Return blob and expression of the channel reductions, by layer."""
    return {launch.layer: (launch.operands[0].ref.name, launch.lower.text) for launch in launches
            if isinstance(launch.lower, Reduce) and launch.phase == "backward" and launch.layer in ("conv", "more")}  # fmt: skip


@pytest.mark.parametrize("slope", rest_is_long([0.25, 0.0], 1))
@pytest.mark.parametrize("name", NETS)
def test_gradients_of_biases(device: Any, name: str, slope: float) -> None:
    text, wanted = NETS[name]
    assert sums(merged(text, slope, device)) == wanted


WINDOWS = {
    "windows": Pool(MAX, (3, 3), (2, 2), (0, 0), (7, 8), (3, 4)),
    "a window for each pixel": Pool(MAX, (3, 3), (1, 1), (1, 1), (7, 8), (7, 8)),
    "planes": Pool(MAX, (7, 8), (1, 1), (0, 0), (7, 8), (1, 1)),
}


def recorded(target: Any, batch: int = 2, window: str = "windows", slope: float | None = 0.25, gate: int = TOP) -> tuple[Recorder, list[Ref], Ref, Ref]:
    """Record a pooling, its backward pass, the backward pass of a ReLU, and a channel reduction.

    Return the recorder, the Refs to feed, the pooling's diff and the sum.
    """
    pool = WINDOWS[window]
    x, y, dy = (Ref(name, (batch, 5, *shape), Role.ACTIVATION) for name, shape in (("x", pool.image), ("y", pool.outputs), ("dy", pool.outputs)))
    index, diff, dx = Ref("index", y.shape, Role.SAVED, np.dtype(pool.index_dtype)), Ref("x.diff", x.shape, Role.DIFF), Ref("dx", x.shape, Role.DIFF)
    bias = Ref("bias", (5,), Role.GRADIENT)
    rec = Recorder(target, train=True)
    rec.enter("pool", "forward")
    pool.forward(rec, x, y, index)
    rec.enter("pool", "backward")
    pool.backward(rec, dy, index, diff)
    scattering = rec.launches[-1]
    if slope is not None:
        pointwise(rec, "y0 = x1 > 0 ? x0 : slope * x0", reads=[diff, x], writes=[dx], scalars={"slope": slope}, means=ReluBackward(slope))
    rec.enter("conv", "backward")
    reduce(rec, "v0 = x0", reads=[diff if slope is None else dx], writes=[bias], axes=(0, 2, 3))
    if slope is not None:
        rec.launches = fuse_relu_backward(rec.launches)
        if gate == TOP:
            replace_mask(scattering, y, TOP)
    return rec, [x, dy], diff, bias


@pytest.mark.parametrize("slope", [None, 0.25], ids=["ungated", "has_fused_relu"])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("chunks", "last_block"), [(1, False), (3, False), (3, True), (50, False), (50, True)], ids=["one launch", "two", "last block", "many", "many, last block"]
)
def test_stages(device: Any, monkeypatch: pytest.MonkeyPatch, chunks: int, last_block: bool, batch: int, window: str, slope: float | None) -> None:
    """The rewrite works for any number of chunks, also for more chunks than there are elements after it."""
    monkeypatch.setattr("ocaffe.kernels.expression.expression.chunk_count", lambda *_: chunks)
    rec, fed, diff, bias = recorded(of_kind(device.target, "gpu", last_block), batch, window, slope)
    count = len(rec.launches)
    rec.launches = sum_before_scatter(rec.launches)
    assert len(rec.launches) == count
    first = next(launch for launch in rec.launches if isinstance(launch.lower, Reduce))
    assert first.operands[0].ref.root is fed[1] and not any(ref.root is diff for ref in first.reads)
    rng = np.random.default_rng(2)
    got, found = execute(rec, device.context, {ref: rng.standard_normal(ref.shape) - 0.5 for ref in fed}, [diff, bias])
    want = got.reshape(batch, 5, -1).astype(np.float64).sum((0, 2))
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-6 * np.abs(want).max())


@pytest.mark.parametrize("changed", ["dy", "y", "neither"])
def test_what_has_changed_meanwhile_is_not_read(device: Any, changed: str) -> None:
    rec, (_, dy), _, _ = recorded(of_kind(device.target, "gpu", False))
    y = rec.launches[0].operands[1].ref
    last = rec.launches.pop()
    pointwise(rec, "y0 = 1", writes=[{"dy": dy, "y": y}.get(changed, Ref("z", y.shape, Role.SCRATCH))])
    rec.launches.append(last)
    assert (sum_before_scatter(rec.launches)[-1] is last) == (changed != "neither")


def test_signs_of_the_bottom_are_not_those_of_maxima(device: Any) -> None:
    """The rewrite must not use the signs of the bottom, although there are as many as windows."""
    rec, _, _, _ = recorded(of_kind(device.target, "gpu", False), window="a window for each pixel", gate=SIGNS)
    assert any(launch.mask is not None for launch in rec.launches) and sum_before_scatter(rec.launches) == rec.launches


def test_what_was_added_to_is_not_read(device: Any) -> None:
    """Another launch writes the diff before the scatter, or adds to it afterwards."""
    for before in (False, True):
        rec, _, diff, _ = recorded(of_kind(device.target, "gpu", False), slope=None)
        last, scattering = rec.launches.pop(), rec.launches.pop()
        if before:
            rec.enter("other", "backward")
            pointwise(rec, "y0 = 1", writes=[diff])
            scattering.operands[-1] = Operand(diff, Access.MODIFY)
            rec.launches += [scattering, last]
        else:
            rec.launches.append(scattering)
            rec.enter("other", "backward")
            pointwise(rec, "m0 = m0 + 1", modifies=[diff])
            rec.launches.append(last)
        assert sum_before_scatter(rec.launches)[-1] is last


def test_sixteen_bits(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bf16, "MIN_VALUE_BYTES", 1)
    rec, fed, _, bias = recorded(replace(of_kind(device.target, "gpu", False), math="bf16"))
    rec.launches = sum_before_scatter(rec.launches)
    bf16.lower_to_bf16(rec.launches, rec.target)
    reads = rec.launches[-1].operands[:2]
    assert all(operand.ref.dtype == operand.ref.root.dtype == BFLOAT for operand in reads)
    rng = np.random.default_rng(2)
    values = [(rng.standard_normal(ref.shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for ref in fed]
    (found,) = execute(rec, device.context, dict(zip(fed, values)), [bias])
    x, dy = ((array.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for array in values)
    y = np.stack([np.stack([x[:, :, i : i + 3, j : j + 3].max((2, 3)) for j in range(0, 8, 2)], 2) for i in range(0, 7, 2) if i < 6], 2)
    want = np.where(y > 0, dy, 0.25 * dy).sum((0, 2, 3))
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-5 * np.abs(want).max())
