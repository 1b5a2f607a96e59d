"""Pooling over windows: the choice of the kernel family for a window, a method and a device (kernels/pooling*.cl)."""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ocaffe.ir.launch import RELU_MASK, BlockedForm, Call, Launch
from ocaffe.ir.recorder import STEP, Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import BLOCK, Ref

MAX, AVE, STOCHASTIC = range(3)  # as in PoolingParameter and kernels/pooling.h
INDEX = {"uint8": "uchar", "uint16": "ushort", "uint32": "uint"}  # types of an index, in numpy and in OpenCL C
GROUP = 64  # work-items per group, if each computes one element
STRIP_GROUP, STRIP_ROWS = 128, 4  # work-items per group and rows per work-item in kernels/strip_gpu.h
STRIP_TAPS, STRIP_STRIDE = 81, 4  # maximum taps of a window and maximum stride for which these kernels are unrolled
GPU_GROUP = 32  # work-items that reduce a whole plane
CPU_PIECE = 1024  # pixels of a whole plane per work-item in backward
FUSED_RELU_FAMILIES = frozenset({"pooling_gpu", "pooling_plane"})  # families that support fused ReLU backward (kernels/fused_relu.h)
PARTS = 4  # minimum work-items per CPU core
Pair = tuple[int, int]
Axes = tuple[int, ...]


def rows_of_item(target: Target, height: int, planes: int) -> int:
    """Return the rows of a plane per CPU work-item: the whole plane, unless there are too few planes for all cores."""
    parts = min(height, -(-PARTS * target.compute_units // max(1, planes)))
    return -(-height // parts)


def strip_counts(size: Pair, stride: Pair) -> Pair:
    """Return the strips per plane and work-items per strip for `size` rows and columns (kernels/strip_gpu.h). The stride is 1 in forward."""
    rows = STRIP_ROWS // stride[0] * stride[0] if stride[0] < STRIP_ROWS else stride[0]
    return -(-size[0] // rows), -(-size[1] // stride[1])


def chosen(launch: Launch) -> Ref | None:
    """Return the index that a MAX backward launch reads if its family supports fused ReLU backward, else None.

    The first operand of the launch that writes the index is the bottom, the second is the top.
    """
    call = launch.call
    if call is None or call.program not in FUSED_RELU_FAMILIES or call.function != "backward" or ("METHOD", str(MAX)) not in call.defines:
        return None
    return launch.operands[1].ref


def is_linear_scatter(launch: Launch) -> bool:
    """Whether a launch is AVE's backward pass alone: operand 1 gets, or adds up, a linear function of operand 0. Its last scalar is `accumulate`."""
    call = launch.call
    return (call is not None and call.program.startswith("pooling") and call.function == "backward" and ("METHOD", str(AVE)) in call.defines
            and not launch.has_fused_relu and len(launch.operands) == 2)  # fmt: skip


def in_blocks(call: Call) -> Call:
    """Return the call of kernels/pooling_blocks.cl for a call of pooling_gpu.cl: a work-item for each block of channels of a pixel."""
    planes, _, height, width, out_height, out_width = (int(scalar) for scalar in call.scalars[:6])
    blocks, pixels = planes // BLOCK, height * width if call.function == "backward" else out_height * out_width
    return replace(call, program="pooling_blocks", scalars=(np.int32(blocks), *call.scalars[1:]), size=(blocks * pixels, call.size[1]))


def whole_in_blocks(image: Pair, planes: int, call: Call) -> Call:
    """Return the call of kernels/pooling_blocks.cl for a call of pooling_plane.cl. The window is a define there."""
    defines = {**dict(call.defines), "KH": str(image[0]), "KW": str(image[1]), "SH": "1", "SW": "1"}
    del defines["GROUP"]
    rest = call.scalars[3:] if call.function == "backward" else ()
    sizes = [np.int32(value) for value in (planes, 0, *image, 1, 1)]
    return in_blocks(replace(call, defines=tuple(sorted(defines.items())), scalars=(*sizes, *rest)))


@dataclass(frozen=True)
class Pool:
    """One pooling over (height, width) or (depth, height, width). `outputs` is the output size for `image`. An empty dilation means 1.

    `include_pad`: AVE counts the padding that a window covers, as Caffe does. MAX, and STOCHASTIC in training, write an index: the
    place of the chosen pixel in its window. Backward reads nothing else.
    """

    method: int
    kernel: Axes
    stride: Axes
    pad: Axes
    image: Axes
    outputs: Axes
    dilation: Axes = ()
    include_pad: bool = True

    @property
    def whole(self) -> bool:
        """Whether the window is the image. Its size is then an argument of the kernels, not a define."""
        return self.kernel == self.image and max(self.outputs) == 1 and not any(self.pad) and not self.dilated and self.method != STOCHASTIC

    @property
    def dilated(self) -> bool:
        return max(self.dilation, default=1) > 1

    @property
    def _strips(self) -> bool:
        """Whether kernels/pooling_gpu.cl supports this window."""
        plain = len(self.image) == 2 and not self.dilated and self.method != STOCHASTIC
        return plain and math.prod(self.kernel) <= STRIP_TAPS and max(self.stride) <= STRIP_STRIDE

    @property
    def index_dtype(self) -> str:
        """The smallest type with a spare value for `none`. It is uint32 for whole planes, whose size must not be a define."""
        area = math.prod(self.kernel)
        return "uint32" if self.whole or area > 65535 else "uint16" if area > 255 else "uint8"

    def forward(self, rec: Recorder, x: Ref, y: Ref, index: Ref | None = None, stream: str = "pooling") -> None:
        """y = pool(x). With `index`, MAX writes it, and STOCHASTIC samples from the layer's `stream` instead of computing the expectation."""
        reads, writes, args = [x], [y], list[Any]()
        if index is not None:
            writes.append(index)
            if self.method == STOCHASTIC:
                reads.append(rec.step)
                args += rec.key(stream)
        self._launch(rec, "forward" if index is None else "forward_index", reads, writes, args)
        width = rec.channel_block
        if width and index is None and self.method != STOCHASTIC and len(self.image) == 2 and not self.dilated and x.shape[1] % width == 0:
            rec.launches[-1].block_form = BlockedForm(self._forward_blocked)

    def _forward_blocked(self, rec: Recorder, x: Ref, y: Ref, blocked: bool) -> None:
        """The same with channels in blocks (kernels/pooling_blocked_cpu.cl)."""
        assert blocked, "pooling mixes no channels, so that x is as y"
        blocks, height = y.shape[1] // rec.channel_block, self.outputs[0]
        rows = rows_of_item(rec.target, height, y.shape[0] * blocks)
        defines = {"V": rec.channel_block, "METHOD": self.method, "PADDING_COUNTS": int(self.include_pad)}
        args = [*self.kernel, *self.stride, *self.pad, *self.image, *self.outputs, rows]
        size = -(-height // rows), blocks, y.shape[0]
        rec.launch("pooling_blocked_cpu.forward", reads=[x], writes=[y], args=args, size=size, local=(1, 1, 1), defines=defines, cheap=True)

    def backward(self, rec: Recorder, dy: Ref, index: Ref | None, dx: Ref) -> None:
        """dx = gradient. `index` is the index that forward wrote, or None for AVE."""
        self._launch(rec, "backward", [dy] if index is None else [dy, index], [dx], [rec.accumulates(dx)])

    def mask(self, rec: Recorder, index: Ref, y: Ref) -> None:
        """y = Caffe's mask: the place in the plane as a float, -1 for none."""
        self._launch(rec, "mask", [index], [y], [])

    def _launch(self, rec: Recorder, function: str, reads: list[Ref], writes: list[Ref], args: list[Any]) -> None:
        """Record the kernel `function` of the suitable family for all elements of the first write."""
        over = writes[0]
        size_over = self.image if function == "backward" else self.outputs
        samples, planes = over.shape[0], math.prod(over.shape[1:]) // math.prod(size_over)
        cpu = rec.target.is_cpu
        elementwise, forward = function == "mask", function.startswith("forward")
        size: tuple[int, ...]
        local: tuple[int, ...] = (GROUP, 1)
        defines: Mapping[str, object]
        if self.whole:
            group = 1 if cpu else rec.target.group(GPU_GROUP)
            family, defines = "pooling_plane", {"METHOD": self.method, "GROUP": group}
            pixels = math.prod(self.image)
            if forward:
                size, local, geometry = (group * planes, samples), (group, 1), [pixels]
            else:
                piece = pixels if elementwise else CPU_PIECE if cpu else 1
                size, geometry = (-(-pixels // piece) * planes, samples), [planes] if elementwise else [planes, pixels, piece]
        elif cpu and len(self.image) == 2 and not self.dilated and self.method != STOCHASTIC and not elementwise:
            family, defines, local = "pooling_cpu", self._defines(), (1, 1, 1)
            height = size_over[0]
            rows = rows_of_item(rec.target, height, samples * planes)
            size, geometry = (-(-height // rows), planes, samples), [rows, *self.image, *self.outputs]
        elif not cpu and self._strips and not elementwise:
            family, defines, local = "pooling_gpu", self._defines(), (rec.target.group(STRIP_GROUP), 1)
            strips, columns = strip_counts((size_over[0], size_over[1]), (1, 1) if forward else (self.stride[0], self.stride[1]))
            size, geometry = (planes * strips * columns, samples), [planes, strips, *self.image, *self.outputs]
        else:
            family, defines = "pooling", self._defines()
            count = planes * math.prod(size_over)
            size, geometry = (count, samples), [count, *self.image, *self.outputs]
        form: Callable[[Call], Call] | None = in_blocks if family == "pooling_gpu" else None
        if self.whole and not cpu and self.method == AVE and len(self.image) == 2 and math.prod(self.image) <= STRIP_TAPS:
            form = partial(whole_in_blocks, (self.image[0], self.image[1]), planes)
        mask = RELU_MASK if function == "backward" and family in FUSED_RELU_FAMILIES else None
        rec.launch(
            f"{family}.{function}", reads=[*reads, mask], writes=writes, args=[*geometry, *args], size=size, local=local, defines=defines, cheap=forward,
            bf16_operands=("SOURCE", *[""] * (len(reads) - 1), "RESULT") if family in FUSED_RELU_FAMILIES and function != "mask" else (),
            any_order=form is not None, in_blocks=form,
        )  # fmt: skip

    def _defines(self) -> Mapping[str, object]:
        axes = "DHW"[-len(self.image) :]
        steps = {"K": self.kernel, "S": self.stride, "P": self.pad} | ({"D": self.dilation} if self.dilated else {})
        defines: dict[str, object] = {f"{letter}{axis}": n for letter, values in steps.items() for axis, n in zip(axes, values)}
        if self.method == STOCHASTIC:
            defines |= {f"STEP_{name}": STEP[name] for name in ("ITERATION", "PASS", "SAMPLE", "OTHER_RANKS")}
        if len(axes) == 3:
            defines["VOLUME"] = 1
        if self.method == AVE and any(self.pad) and not self.include_pad:
            defines["PADDING_COUNTS"] = 0
        return {"METHOD": self.method, "INDEX": INDEX[self.index_dtype], **defines}
