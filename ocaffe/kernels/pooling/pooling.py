"""Pooling over windows: the choice of the kernel family for a window, a method and a device (pooling*.cl)."""
from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ocaffe.ir.kernel import SIGN, BlockedForm, Can, Kernel, Order, Slot, read, write
from ocaffe.ir.launch import Call, Launch
from ocaffe.ir.recorder import STEP, Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Layout, Ref

MAX, AVE, STOCHASTIC = range(3)  # as in PoolingParameter and pooling.h
INDEX = {"uint8": "uchar", "uint16": "ushort", "uint32": "uint"}  # types of an index, in numpy and in OpenCL C
GROUP = 64  # work-items per group, if each computes one element
STRIP_GROUP, STRIP_ROWS = 128, 4  # work-items per group and rows per work-item in kernels/common/strip_gpu.h
STRIP_TAPS, STRIP_STRIDE = 81, 4  # maximum taps of a window and maximum stride for which these kernels are unrolled
GPU_GROUP = 32  # work-items that reduce a whole plane
CPU_PIECE = 1024  # pixels of a whole plane per work-item in backward
ITEMS_PER_CORE = 4  # minimum work-items per CPU core
Pair = tuple[int, int]
Axes = tuple[int, ...]


def rows_of_item(target: Target, height: int, planes: int) -> int:
    """Return the rows of a plane per CPU work-item: the whole plane, unless there are too few planes for all cores."""
    items = min(height, -(-ITEMS_PER_CORE * target.compute_units // max(1, planes)))
    return -(-height // items)


def strip_counts(size: Pair, stride: Pair) -> Pair:
    """Return the strips per plane and work-items per strip for `size` rows and columns (kernels/common/strip_gpu.h). The stride is 1 in forward."""
    rows = STRIP_ROWS // stride[0] * stride[0] if stride[0] < STRIP_ROWS else stride[0]
    return -(-size[0] // rows), -(-size[1] // stride[1])


def chosen(launch: Launch) -> Ref | None:
    """Return the index that a MAX backward launch reads if its kernel supports fused ReLU backward, else None."""
    fuses = launch.kernel.can.scatters and launch.kernel.slot(SIGN.name) is not None
    return launch["index"] if fuses and launch.details.method == MAX else None


def is_linear_scatter(launch: Launch) -> bool:
    """Whether a launch is AVE's backward pass alone: dx gets, or adds up, a linear function of dy. Its last scalar is `accumulate`."""
    return launch.kernel.can.scatters and launch.details.method == AVE and launch.mask is None


def _in_blocks(launch: Launch, layout: Layout) -> Call | None:
    """Return the call of pooling_blocks.cl for a launch of pooling_gpu.cl."""
    return None if launch.call is None else _divided(launch.call, layout, launch.kernel.can.scatters)


def _divided(call: Call, layout: Layout, back: bool) -> Call:
    """Return the call of pooling_blocks.cl, backward if `back`: a work-item for each block of channels of a pixel."""
    planes, _, height, width, out_height, out_width = (int(scalar) for scalar in call.scalars[:6])
    blocks, pixels = planes // layout.channels, height * width if back else out_height * out_width
    return replace(call, program="pooling_blocks", scalars=(np.int32(blocks), *call.scalars[1:]), size=(blocks * pixels, call.size[1]))


def _whole_in_blocks(launch: Launch, layout: Layout) -> Call | None:
    """Return the call of pooling_blocks.cl for a launch of pooling_plane.cl on a GPU. The window is a define there."""
    call, pool, back = launch.call, launch.details, launch.kernel.can.scatters
    image = pool.image
    if call is None or pool.method != AVE or len(image) != 2 or math.prod(image) > STRIP_TAPS:
        return None
    defines = {**dict(call.defines), "KH": str(image[0]), "KW": str(image[1]), "SH": "1", "SW": "1"}
    group = int(defines.pop("GROUP"))
    planes, rest = (int(call.scalars[0]), call.scalars[3:]) if back else (call.size[0] // group, ())
    sizes = [np.int32(value) for value in (planes, 0, *image, 1, 1)]
    return _divided(replace(call, defines=tuple(sorted(defines.items())), scalars=(*sizes, *rest)), layout, back)


def _in_blocks_cpu(launch: Launch, layout: Layout) -> BlockedForm | None:
    """Return how a pooling runs on CPUs with channels in blocks (pooling_blocked_cpu.cl)."""
    pool = launch.details
    plain = pool.method != STOCHASTIC and len(pool.image) == 2 and not pool.dilated
    return BlockedForm(pool.forward_blocked) if plain and launch["x"].shape[1] % layout.channels == 0 else None


class _Family(NamedTuple):
    """The kernels of a file kernels/pooling*.cl that compute windows."""

    forward: Kernel
    forward_index: Kernel
    backward: Kernel

    @classmethod
    def of(cls, file: str, can: Can, *, random: tuple[Slot, ...] = (), mask: tuple[Slot, ...] = ()) -> _Family:
        """`can`: the abilities of forward. `random`: operands for STOCHASTIC. `mask`: SIGN, if backward supports fused ReLU backward.

        Kernels with such a mask also store bfloat16, and run on channels in blocks.
        """
        source, result, order = ("SOURCE", "RESULT", Order.EITHER) if mask else ("", "", Order.PLANES)
        x, y = read("x", bf16=source, order=order), write("y", bf16=result, order=order)
        index, dy, dx = read("index", optional=True, order=order), read("dy", bf16=source, order=order), write("dx", bf16=result, order=order)
        with_index = can if mask else replace(can, in_blocks=None)  # CPUs have channels in blocks without backward alone
        backward = Can(in_blocks=with_index.in_blocks, scatters=True, join=can.join)
        return cls(
            Kernel(f"{file}.forward", x, y, can=can),
            Kernel(f"{file}.forward_index", x, *random, y, write("index", order=order), can=with_index),
            Kernel(f"{file}.backward", dy, index, *mask, dx, can=backward),
        )


PIXELS = _Family.of("pooling", Can(recompute=True, in_blocks=_in_blocks_cpu), random=(read("step", optional=True),))
ROWS_CPU = _Family.of("pooling_cpu", Can(join=True, recompute=True, in_blocks=_in_blocks_cpu))
STRIPS = _Family.of("pooling_gpu", Can(recompute=True, in_blocks=_in_blocks), mask=(SIGN,))
PLANE = _Family.of("pooling_plane", Can(recompute=True, in_blocks=_whole_in_blocks), mask=(SIGN,))
PLANE_CPU = _Family.of("pooling_plane", Can(recompute=True, in_blocks=_in_blocks_cpu), mask=(SIGN,))
MASK, PLANE_MASK = (Kernel(f"{file}.mask", read("index"), write("y"), can=Can(helper=True)) for file in ("pooling", "pooling_plane"))
FORWARD_BLOCKED = Kernel("pooling_blocked_cpu.forward", read("x", order=Order.BLOCKS), write("y", order=Order.BLOCKS), can=Can(join=True, recompute=True))


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
        """Whether pooling_gpu.cl supports this window."""
        plain = len(self.image) == 2 and not self.dilated and self.method != STOCHASTIC
        return plain and math.prod(self.kernel) <= STRIP_TAPS and max(self.stride) <= STRIP_STRIDE

    @property
    def index_dtype(self) -> str:
        """The smallest type with a spare value for `none`. It is uint32 for whole planes, whose size must not be a define."""
        area = math.prod(self.kernel)
        return "uint32" if self.whole or area > 65535 else "uint16" if area > 255 else "uint8"

    def forward(self, rec: Recorder, x: Ref, y: Ref, index: Ref | None = None, stream: str = "pooling") -> None:
        """y = pool(x). With `index`, MAX writes it, and STOCHASTIC samples from the layer's `stream` instead of computing the expectation."""
        if index is None:
            self._launch(rec, "forward", y, [], x=x, y=y)
        elif self.method == STOCHASTIC:
            self._launch(rec, "forward_index", y, [*rec.key(stream)], x=x, step=rec.step, y=y, index=index)
        else:
            self._launch(rec, "forward_index", y, [], x=x, y=y, index=index)

    def forward_blocked(self, rec: Recorder, x: Ref, y: Ref, blocked: bool) -> None:
        """The same with channels in blocks (pooling_blocked_cpu.cl)."""
        assert blocked, "pooling mixes no channels, so that x is as y"
        blocks, height = y.shape[1] // rec.channel_block, self.outputs[0]
        rows = rows_of_item(rec.target, height, y.shape[0] * blocks)
        defines = {"V": rec.channel_block, "METHOD": self.method, "PADDING_COUNTS": int(self.include_pad)}
        args = [*self.kernel, *self.stride, *self.pad, *self.image, *self.outputs, rows]
        size = -(-height // rows), blocks, y.shape[0]
        rec.launch(FORWARD_BLOCKED(x=x, y=y), args=args, size=size, local=(1, 1, 1), defines=defines)

    def backward(self, rec: Recorder, dy: Ref, index: Ref | None, dx: Ref) -> None:
        """dx = gradient. `index` is the index that forward wrote, or None for AVE."""
        self._launch(rec, "backward", dx, [rec.accumulates(dx)], dy=dy, index=index, dx=dx)

    def mask(self, rec: Recorder, index: Ref, y: Ref) -> None:
        """y = Caffe's mask: the place in the plane as a float, -1 for none."""
        self._launch(rec, "mask", y, [], index=index, y=y)

    def _launch(self, rec: Recorder, function: str, over: Ref, args: list[Any], **operands: Ref | None) -> None:
        """Record the kernel `function` of the suitable family for all elements of `over`."""
        size_over = self.image if function == "backward" else self.outputs
        samples, planes = over.shape[0], math.prod(over.shape[1:]) // math.prod(size_over)
        cpu = rec.target.is_cpu
        elementwise, forward = function == "mask", function.startswith("forward")
        size: tuple[int, ...]
        local: tuple[int, ...] = (GROUP, 1)
        defines: Mapping[str, object]
        if self.whole:
            group = 1 if cpu else rec.target.group(GPU_GROUP)
            family, defines = PLANE_CPU if cpu else PLANE, {"METHOD": self.method, "GROUP": group}
            pixels = math.prod(self.image)
            if forward:
                size, local, geometry = (group * planes, samples), (group, 1), [pixels]
            else:
                piece = pixels if elementwise else CPU_PIECE if cpu else 1
                size, geometry = (-(-pixels // piece) * planes, samples), [planes] if elementwise else [planes, pixels, piece]
        elif cpu and len(self.image) == 2 and not self.dilated and self.method != STOCHASTIC and not elementwise:
            family, defines, local = ROWS_CPU, self._defines(), (1, 1, 1)
            height = size_over[0]
            rows = rows_of_item(rec.target, height, samples * planes)
            size, geometry = (-(-height // rows), planes, samples), [rows, *self.image, *self.outputs]
        elif not cpu and self._strips and not elementwise:
            family, defines, local = STRIPS, self._defines(), (rec.target.group(STRIP_GROUP), 1)
            strips, columns = strip_counts((size_over[0], size_over[1]), (1, 1) if forward else (self.stride[0], self.stride[1]))
            size, geometry = (planes * strips * columns, samples), [planes, strips, *self.image, *self.outputs]
        else:
            family, defines = PIXELS, self._defines()
            count = planes * math.prod(size_over)
            size, geometry = (count, samples), [count, *self.image, *self.outputs]
        kernel = (PLANE_MASK if self.whole else MASK) if elementwise else getattr(family, function)
        rec.launch(kernel(**operands), args=[*geometry, *args], size=size, local=local, defines=defines, details=self)

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
