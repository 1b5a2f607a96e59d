"""The arguments and defines for a geometry in the direct convolution kernels on GPUs (conv_window.h)."""
from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

from ocaffe.ir.kernel import COUNTERS, PARTS, REDUCTION, SIGN, Can, Kernel, own_parts, read, write
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry


def sizes(g: ConvGeometry) -> list[int]:
    """Return the arguments of the macro SIZES."""
    return [g.batch, g.group, g.group_channels, g.group_outputs, *g.size, *g.out]


def window(g: ConvGeometry) -> dict[str, int]:
    """Return the defines of the window."""
    result: dict[str, int] = {}
    for axis, kernel, stride, pad, dilation in zip("DHW", g.kernel, g.stride, g.pad, g.dilation):
        result |= {f"KERNEL_{axis}": kernel, f"STRIDE_{axis}": stride, f"PAD_{axis}": pad, f"DILATION_{axis}": dilation}
        result[f"PHASE_STEP_{axis}"] = stride // math.gcd(stride, dilation)
    return result


def plane_window(g: ConvGeometry) -> dict[str, int]:
    """Return the defines of a window over planes (plane_window.h)."""
    result: dict[str, int] = {}
    for i, axis in enumerate("HW", 1):
        result |= {f"KERNEL_{axis}": g.kernel[i], f"STRIDE_{axis}": g.stride[i], f"PAD_{axis}": g.pad[i], f"DILATION_{axis}": g.dilation[i]}
    return result


def phases(g: ConvGeometry) -> int:
    """Return the number of phases of backward_data (PHASES)."""
    return math.prod(g.stride)


class Directions(NamedTuple):
    """The kernels of a file that computes a convolution in its three directions."""

    forward: Kernel
    backward_data: Kernel
    backward_filter: Kernel

    @classmethod
    def of(cls, file: str, weights: str, *, last_block: bool = False, sums_gradients: bool = False) -> Directions:
        """`weights`: the parameter with the filters, which may be packed. `last_block`: the kernels have last-block reduction."""
        counters, parts = ((COUNTERS,), (PARTS,)) if last_block else ((), ())
        source, given = (partial(read, bf16="SOURCE"), read("dy", bf16="GIVEN"))
        can = Can(parts=own_parts, sums_gradients=sums_gradients)
        return cls(
            Kernel(f"{file}.forward", source("x"), read(weights), *REDUCTION, *counters, read("bias"), write("y", bf16="RESULT"), *parts, can=can),
            Kernel(
                f"{file}.backward_data", source("dy"), read(weights), *REDUCTION, SIGN, *counters, read("bias"), write("dx", bf16="RESULT"), *parts, can=can,
            ),
            Kernel(f"{file}.backward_filter", source("x"), given, *counters, write("dw"), *parts),
        )  # fmt: skip

    def gathering(self, g: ConvGeometry, direction: str, once: bool, source: Ref, to: Ref) -> tuple[Kernel, dict[str, Ref]]:
        """Return the kernel of forward or backward_data, and its operands for the image that it reads and for its result.

        `once`: it writes the whole result. Otherwise it writes partial sums, which are floats and which passes leave alone.
        """
        back = direction == "backward_data"
        kernel, result = (self.backward_data, "dx") if back else (self.forward, "y")
        operands = {"dy" if back else "x": source, result: to}
        if not once:
            return kernel.without(SIGN.name).in_floats(result), operands
        return kernel if can_fuse_relu_backward(g) else kernel.without(SIGN.name), operands


def can_fuse_relu_backward(g: ConvGeometry) -> bool:
    """Whether fused ReLU backward (kernels/common/fused_relu.h) pays for backward_data.

    Phases write floats that are not adjacent. Reading their signs one at a time takes longer than a separate launch.
    """
    return phases(g) == 1


def phase_columns(g: ConvGeometry) -> int:
    """Return the number of positions of the largest phase in the whole batch."""
    return g.batch * math.prod(-(-n // s) for n, s in zip(g.size, g.stride))


def gathered_shape(g: ConvGeometry, direction: str) -> tuple[int, int, int]:
    """Return the rows and columns of the product of forward or backward_data, per group and phase, and the positions of a result sample."""
    if direction == "forward":
        return g.group_outputs, g.batch * g.positions, g.positions
    return g.group_channels, phase_columns(g), g.pixels


def phase_taps(g: ConvGeometry) -> int:
    """Return the number of taps of the largest phase."""
    return math.prod(-(-kernel // (stride // math.gcd(stride, dilation))) for kernel, stride, dilation in zip(g.kernel, g.stride, g.dilation))


def product_shape(g: ConvGeometry, direction: str) -> tuple[int, int, int, int]:
    """Return rows, columns, depth and number of the matrix products of `direction` ("forward", "backward_data", "backward_filter")."""
    if direction == "forward":
        return g.group_outputs, g.batch * g.positions, g.depth, g.group
    if direction == "backward_data":
        return g.group_channels, phase_columns(g), -(-g.group_outputs * g.taps // phases(g)), g.group * phases(g)
    return g.group_outputs, g.depth, g.batch * g.positions, g.group
