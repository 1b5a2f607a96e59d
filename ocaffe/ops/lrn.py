"""Local response normalization, across channels and within each: kernels/lrn*.cl."""
from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ocaffe.ir.launch import RELU_MASK, BlockedForm, Call
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import BLOCK, Ref
from ocaffe.ops.pooling import rows_of_item

LONGEST_SPAN = 1024  # SPAN of kernels/lrn_cpu.cl
CPU_ITEMS = 4  # minimum work-items per core
GPU_ITEMS = 1 << 17  # work-items that keep a large GPU busy
FEW_POSITIONS = 1 << 14  # up to this number, a GPU needs chunks of channels, even though they prevent in-place operation
GPU_GROUP = 64
CHUNK = 16  # minimum channels per chunk; each chunk reads size - 1 additional channels


def in_blocks(call: Call) -> Call:
    """Return the call of kernels/lrn_blocks.cl for a call of lrn.cl: chunks are whole blocks of channels."""
    channels, _, chunk = (int(scalar) for scalar in call.scalars[:3])
    chunk = -(-chunk // BLOCK) * BLOCK
    size = (call.size[0], -(-channels // chunk), call.size[2])
    return replace(call, program="lrn_blocks", scalars=(*call.scalars[:2], np.int32(chunk), *call.scalars[3:]), size=size)


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
        self._across(rec, "forward", [x], y, [], 0)
        width = rec.channel_block
        if width and x.shape[1] % width == 0 and self.size <= 2 * width + 1:
            rec.launches[-1].block_form = BlockedForm(self._across_blocked)

    def _across_blocked(self, rec: Recorder, x: Ref, y: Ref, blocked: bool) -> None:
        """The same with channels in blocks (kernels/lrn_blocked_cpu.cl)."""
        assert blocked, "x is as y"
        samples, channels, height, width = y.shape
        plane = height * width
        span = self._span(rec, samples, plane, rec.channel_block)
        rec.launch(
            "lrn_blocked_cpu.forward",
            reads=[x],
            writes=[y],
            args=[channels, plane, span, self.alpha / self.size, self.k, self.beta],
            size=(-(-plane // span), samples, 1),
            local=(1, 1, 1),
            defines=self._defines | {"V": rec.channel_block},
            inplace=[(0, 0)],
        )

    def across_backward(self, rec: Recorder, x: Ref, dy: Ref, dx: Ref) -> None:
        """dx from x and dy."""
        self._across(rec, "backward", [x, dy], dx, [rec.accumulates(dx)], 1)

    def _across(self, rec: Recorder, function: str, reads: list[Ref], write: Ref, args: list[bool], inplace: int) -> None:
        samples, channels, height, width = write.shape
        plane = height * width
        size: tuple[int, ...]
        local: tuple[int, ...]
        mask = None
        if rec.target.is_cpu:
            part, chunk = min(LONGEST_SPAN, self._span(rec, samples, plane, 16)), channels
            family, size, local = "lrn_cpu", (-(-plane // part), samples), (1, 1)
        else:
            part = chunk = self._chunk(rec, samples * plane, channels)
            family, size, local = "lrn", (plane, -(-channels // chunk), samples), (GPU_GROUP, 1, 1)
            mask = RELU_MASK if function == "backward" else None
        reaches_next = not rec.target.is_cpu and self.size <= BLOCK + 1  # windows, and those of their channels, reach only the next blocks
        rec.launch(
            f"{family}.{function}",
            reads=[*reads, mask],
            writes=[write],
            args=[channels, plane, part, self.alpha / self.size, self.k, self.beta, *args],
            size=size,
            local=local,
            defines=self._defines,
            inplace=[(inplace, 0)] if chunk >= channels else [],
            bf16_operands=() if rec.target.is_cpu else (*("SOURCE", "GIVEN")[: len(reads)], "RESULT"),
            any_order=reaches_next,
            in_blocks=in_blocks if reaches_next else None,
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
        self._within(rec, "forward", [x], y, [])

    def within_backward(self, rec: Recorder, x: Ref, dy: Ref, dx: Ref) -> None:
        """dx from x and dy."""
        terms = rec.scratch("terms", x.shape)
        self._within(rec, "terms", [x, dy], terms, [])
        self._within(rec, "backward", [x, dy, terms], dx, [rec.accumulates(dx)])

    def _within(self, rec: Recorder, function: str, reads: list[Ref], write: Ref, args: list[bool]) -> None:
        samples, channels, height, width = write.shape
        size: tuple[int, ...]
        local: tuple[int, ...]
        if rec.target.is_cpu:
            first = rows_of_item(rec.target, height, samples * channels)
            family, size, local = "lrn_within_cpu", (-(-height // first), channels, samples), (1, 1, 1)
        else:
            first = channels * height * width
            family, size, local = "lrn_within", (first, samples), (GPU_GROUP, 1)
        rec.launch(
            f"{family}.{function}",
            reads=reads,
            writes=[write],
            args=[first, height, width, self.alpha / self.size**2, self.beta, *args],
            size=size,
            local=local,
            defines=self._defines,
        )
