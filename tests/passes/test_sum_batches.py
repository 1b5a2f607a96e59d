"""Batches of sums (ocaffe/passes/sum_batches.py)."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ocaffe.ir.kernel import Can, Kernel
from ocaffe.ir.launch import Access, Launch, Operand
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.convolution.blocks_gpu import conv_blocks
from ocaffe.passes import jobs, sum_batches
from tests.harness import execute, of_kind


def total(dw: Ref, splits: int = 2) -> Launch:
    rec = Recorder(Target(kind="gpu", compute_units=4), train=True)
    rec.enter("conv", "backward")
    parts = rec.scratch("parts", (splits, dw.count))
    rec.launch(sum_batches.SUM_PARTS(parts0=parts, dw0=dw), args=[splits, 64, 1, 0, 288, 288], size=(288,), local=(288,))
    return rec.launches[0]


def gradient(name: str) -> Ref:
    return Ref(name, (8, 8, 1, 1), Role.GRADIENT)


def test_sums_wait_for_the_last_one_before_a_use() -> None:
    a, b, c, d = (gradient(name) for name in "abcd")
    update = Launch("conv", "backward", [Operand(b, Access.READ)], Kernel("update", can=Can(side_effect=True)))
    other = Launch("conv", "backward", [Operand(gradient("e"), Access.READ)], Kernel("other"))
    schedule = [total(a), other, total(b), update, total(c), total(d), total(c)]
    result = sum_batches.batch_sums(schedule)
    assert [[ref.name for ref in launch.writes] for launch in result] == [[], ["a", "b"], [], ["c", "d"], ["c"]]
    assert result[0] is other and result[1].origin is schedule[2] and result[2] is update
    assert result[1].final().size == (576,) and result[1].final().defines == (("JOBS", "2"),)


def test_limits_of_sums() -> None:
    schedule = [total(gradient(str(i))) for i in range(jobs.MOST_JOBS + 1)]
    assert [len(launch.writes) for launch in sum_batches.batch_sums(schedule)] == [jobs.MOST_JOBS, 1]
    each, most = sum_batches.MOST_EACH // 256, sum_batches.MOST_BYTES // sum_batches.MOST_EACH
    assert [len(launch.writes) for launch in sum_batches.batch_sums([total(gradient(str(i)), each) for i in range(most + 1)])] == [most, 1]
    large = total(gradient("large"), sum_batches.MOST_EACH // 256 + 1)
    small = [total(gradient(str(i))) for i in range(2)]
    assert [len(launch.writes) for launch in sum_batches.batch_sums([small[0], large, small[1]])] == [1, 2]


def test_a_batch_adds_up_the_parts_of_each_job(device: Any) -> None:
    """Of 16 jobs, some of which add to what is there. The gradients are parts of one value, as those of a net."""
    rec = Recorder(replace(of_kind(device.target, "gpu"), wgmma=True, math="bf16"), train=True)
    rec.enter("conv", "backward")
    jobs = [(3, 40, 33, 9), (1, 16, 8, 1), (5, 7, 24, 25), *((2 + n, 8, 8 + n, 3) for n in range(13))]  # splits, outputs, channels, taps
    rng = np.random.default_rng(0)
    whole = Ref("gradients", (sum(outputs * channels * taps for _, outputs, channels, taps in jobs),), Role.GRADIENT)
    before, at, parts, expected = rng.standard_normal(whole.shape).astype(np.float32), 0, {}, []
    for number, (splits, outputs, channels, taps) in enumerate(jobs):
        part, dw = Ref(f"parts{number}", (splits, taps * outputs * channels), Role.SCRATCH), whole.view((outputs, channels, 1, taps), at)
        conv_blocks.sum_parts(rec, part, dw, taps)
        accumulate = number % 3 == 1
        rec.launches[-1].set_scalar(3, np.int32(accumulate))
        parts[part] = rng.standard_normal(part.shape).astype(np.float32)
        total = parts[part].reshape(splits, taps, outputs, channels).sum(0, dtype=np.float64).transpose(1, 2, 0).reshape(-1)
        expected.append(total + (before[at : at + dw.count] if accumulate else 0))
        at += dw.count
    rec.launches[:] = sum_batches.batch_sums(rec.launches)
    assert len(rec.launches) == 1
    (got,) = execute(rec, device.context, {**parts, whole: before}, [whole])
    assert np.abs(got - np.concatenate(expected)).max() <= 1e-5
