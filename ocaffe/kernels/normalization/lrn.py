"""Local response normalization, across channels and within each: kernels/lrn*.cl."""
from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ocaffe.ir.kernel import JOIN, SIGN, BlockedForm, Can, Kernel, Order, read, write
from ocaffe.ir.launch import Call, Launch
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Layout, Ref
from ocaffe.kernels.pooling.pooling import rows_of_item

LONGEST_SPAN = 1024  # SPAN of lrn_cpu.cl
CPU_ITEMS = 4  # minimum work-items per core
GPU_ITEMS = 1 << 17  # work-items that keep a large GPU busy
FEW_POSITIONS = 1 << 14  # up to this number, a GPU needs chunks of channels, even though they prevent in-place operation
GPU_GROUP = 64
CHUNK = 16  # minimum channels per chunk; each chunk reads size - 1 additional channels


def in_blocks(launch: Launch, layout: Layout) -> Call | None:
    """Return the call of lrn_blocks.cl for a launch of lrn.cl: chunks are whole blocks of channels."""
    call, response = launch.call, launch.details
    if call is None or response.size > layout.channels + 1:  # windows, and those of their channels, must reach only the next blocks
        return None
    channels, _, chunk = (int(scalar) for scalar in call.scalars[:3])
    chunk = -(-chunk // layout.channels) * layout.channels
    size = (call.size[0], -(-channels // chunk), call.size[2])
    return replace(call, program="lrn_blocks", scalars=(*call.scalars[:2], np.int32(chunk), *call.scalars[3:]), size=size)


def _in_blocks_cpu(launch: Launch, layout: Layout) -> BlockedForm | None:
    """Return how across-channel LRN runs on CPUs with channels in blocks (lrn_blocked_cpu.cl)."""
    width, response = layout.channels, launch.details
    possible = launch["x"].shape[1] % width == 0 and response.size <= 2 * width + 1
    return BlockedForm(response.across_blocked) if possible else None


FORWARD = Kernel("lrn.forward", read("x", bf16="SOURCE", order=Order.EITHER), write("y", bf16="RESULT", order=Order.EITHER), can=Can(in_blocks=in_blocks))
BACKWARD = Kernel(
    "lrn.backward",
    read("x", bf16="SOURCE", order=Order.EITHER), read("dy", bf16="GIVEN", order=Order.EITHER), SIGN, write("dx", bf16="RESULT", order=Order.EITHER),
    can=Can(in_blocks=in_blocks),
)  # fmt: skip
FORWARD_CPU = Kernel("lrn_cpu.forward", read("x"), write("y"), can=Can(join=True, in_blocks=_in_blocks_cpu))
BACKWARD_CPU = Kernel("lrn_cpu.backward", read("x"), read("dy"), write("dx"), can=JOIN)
FORWARD_BLOCKED_CPU = Kernel("lrn_blocked_cpu.forward", read("x", order=Order.BLOCKS), write("y", order=Order.BLOCKS), can=JOIN)
WITHIN, WITHIN_CPU = (Kernel(f"{file}.forward", read("x"), write("y"), can=can) for file, can in (("lrn_within", Can()), ("lrn_within_cpu", JOIN)))
TERMS, TERMS_CPU = (
    Kernel(f"{file}.terms", read("x"), read("dy"), write("terms"), can=Can(helper=True, join=file == "lrn_within_cpu"))
    for file in ("lrn_within", "lrn_within_cpu")
)
WITHIN_BACKWARD, WITHIN_BACKWARD_CPU = (
    Kernel(f"{file}.backward", read("x"), read("dy"), read("terms"), write("dx"), can=can) for file, can in (("lrn_within", Can()), ("lrn_within_cpu", JOIN))
)


@dataclass(frozen=True)
class Response:
    """y = x s^-beta, s = k + alpha / n * sum of x^2 over a window of n values: `size` channels, or size x size pixels of a channel.

    Backward recomputes s from x; nothing is saved.
    """

    size: int
    alpha: float
    beta: float
    k: float

    @property
    def _defines(self) -> dict[str, object]:
        return {"SIZE": self.size, "BETA_075": int(math.isclose(self.beta, 0.75))}

    # -- across channels ---------------------------------------------------------------------------------------------

    def across(self, rec: Recorder, x: Ref, y: Ref) -> None:
        """y = x s^-beta. The planner may choose in-place operation."""
        self._across(rec, FORWARD_CPU if rec.target.is_cpu else FORWARD, y, [], ("x", "y"), x=x, y=y)

    def across_blocked(self, rec: Recorder, x: Ref, y: Ref, blocked: bool) -> None:
        """The same with channels in blocks (lrn_blocked_cpu.cl)."""
        assert blocked, "x is as y"
        samples, channels, height, width = y.shape
        plane = height * width
        span = self._span(rec, samples, plane, rec.channel_block)
        rec.launch(
            FORWARD_BLOCKED_CPU(x=x, y=y),
            args=[channels, plane, span, self.alpha / self.size, self.k, self.beta],
            size=(-(-plane // span), samples, 1),
            local=(1, 1, 1),
            defines=self._defines | {"V": rec.channel_block},
            inplace=[("x", "y")],
        )

    def across_backward(self, rec: Recorder, x: Ref, dy: Ref, dx: Ref) -> None:
        """dx from x and dy."""
        self._across(rec, BACKWARD_CPU if rec.target.is_cpu else BACKWARD, dx, [rec.accumulates(dx)], ("dy", "dx"), x=x, dy=dy, dx=dx)

    def _across(self, rec: Recorder, kernel: Kernel, over: Ref, args: list[bool], inplace: tuple[str, str], **operands: Ref) -> None:
        """Record a kernel for all elements of `over`. `inplace`: operands that may share memory if a work-item has all channels."""
        samples, channels, height, width = over.shape
        plane = height * width
        size: tuple[int, ...]
        local: tuple[int, ...]
        if rec.target.is_cpu:
            span, chunk = min(LONGEST_SPAN, self._span(rec, samples, plane, 16)), channels
            size, local = (-(-plane // span), samples), (1, 1)
        else:
            span = chunk = self._chunk(rec, samples * plane, channels)
            size, local = (plane, -(-channels // chunk), samples), (GPU_GROUP, 1, 1)
        rec.launch(
            kernel(**operands),
            args=[channels, plane, span, self.alpha / self.size, self.k, self.beta, *args],
            size=size,
            local=local,
            defines=self._defines,
            inplace=[inplace] if chunk >= channels else [],
            details=self,
        )

    @staticmethod
    def _span(rec: Recorder, samples: int, plane: int, vector: int) -> int:
        """Return the positions per work-item of a CPU: whole vectors, and work-items for all cores."""
        spans = -(-CPU_ITEMS * rec.target.compute_units // samples)
        return -(-plane // (spans * vector)) * vector

    @staticmethod
    def _chunk(rec: Recorder, positions: int, channels: int) -> int:
        """Return the channels per GPU work-item: all of them in inference, which allows in-place operation, unless the device would idle."""
        if not rec.train and positions >= FEW_POSITIONS:
            return channels
        chunks = min(-(-GPU_ITEMS // positions), -(-channels // CHUNK))
        return -(-channels // chunks)

    # -- within a channel --------------------------------------------------------------------------------------------

    def within(self, rec: Recorder, x: Ref, y: Ref) -> None:
        """y = x s^-beta with k = 1."""
        self._within(rec, WITHIN_CPU if rec.target.is_cpu else WITHIN, y, [], x=x, y=y)

    def within_backward(self, rec: Recorder, x: Ref, dy: Ref, dx: Ref) -> None:
        """dx from x and dy."""
        terms, cpu = rec.scratch("terms", x.shape), rec.target.is_cpu
        self._within(rec, TERMS_CPU if cpu else TERMS, terms, [], x=x, dy=dy, terms=terms)
        self._within(rec, WITHIN_BACKWARD_CPU if cpu else WITHIN_BACKWARD, dx, [rec.accumulates(dx)], x=x, dy=dy, terms=terms, dx=dx)

    def _within(self, rec: Recorder, kernel: Kernel, over: Ref, args: list[bool], **operands: Ref) -> None:
        samples, channels, height, width = over.shape
        size: tuple[int, ...]
        local: tuple[int, ...]
        if rec.target.is_cpu:
            first = rows_of_item(rec.target, height, samples * channels)
            size, local = (-(-height // first), channels, samples), (1, 1, 1)
        else:
            first = channels * height * width
            size, local = (first, samples), (GPU_GROUP, 1)
        rec.launch(
            kernel(**operands),
            args=[first, height, width, self.alpha / self.size**2, self.beta, *args],
            size=size,
            local=local,
            defines=self._defines,
        )
