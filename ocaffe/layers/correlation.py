"""Correlation and Correlation1D: how well the surroundings of each pixel of one image match those of displaced pixels of another."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.convolution.correlation import Correlator
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph


@register("Correlation")
class Correlation(Layer):
    """Means of products of a window of bottom 0 with windows of bottom 1 that are displaced by up to max_displacement in rows and columns.

    Both bottoms are N x C x H x W with `pad` zeros around them. Displacements are multiples of stride_2, and the windows of kernel_size x kernel_size pixels
    are stride_1 apart: N x D^2 x h x w with D = 2 (max_displacement / stride_2) + 1. correlation_type: SUBTRACT takes |a - b| instead of the product.
    FlowNet's layer reads do_abs and does not use it. Source: lmb-freiburg/flownet2, src/caffe/layers/correlation_layer.cu.
    """

    origin = "FlowNet, FlowNet 2, LiteFlowNet, PWC-Net"
    message = "correlation_param"
    bottoms = 2
    by_sample = True
    inplace_top = False
    lines = False  # displacements along rows only

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, (x, other) = self.own(), bottoms
        self.check_axes(x, "N x C x H x W", values=True)
        self.check(x == other, f"bottom 0 is {shape_text(x)}, bottom 1 is {shape_text(other)}", f"give bottom 1 the shape {shape_text(x)}, as bottom 0 is")
        self.check(p.kernel_size % 2 == 1, f"kernel_size is {p.kernel_size}", "set kernel_size to an odd number; FlowNet has 1")
        self.positive(p, {"stride_1": "the step between pixels of bottom 0, 1 or more", "stride_2": "the step between displacements, 1 or more"})
        self.check(
            self.lines or not p.single_direction,
            f"single_direction is {p.single_direction}, which Correlation1D has alone",
            "use the type Correlation1D, or remove single_direction",
        )
        self.check(-1 <= p.single_direction <= 1, f"single_direction is {p.single_direction}", "set single_direction to -1 (left), 1 (right) or 0 (both)")
        pads, reach = ((0, p.pad), (0, p.max_displacement)) if self.lines else ((p.pad, p.pad), (p.max_displacement, p.max_displacement))
        radius, steps = p.kernel_size // 2, p.max_displacement // p.stride_2
        out = tuple(-(-(n + 2 * pad - 2 * (far + radius)) // p.stride_1) for n, pad, far in zip(x[2:], pads, reach))
        fact = f"kernel_size {p.kernel_size}, max_displacement {p.max_displacement} and pad {p.pad} leave {shape_text(out)} of {shape_text(x[2:])} pixels"
        self.check(min(out) > 0, fact, f"set pad to {p.max_displacement + radius}, or max_displacement to less")
        across = (steps + 1, 0 if p.single_direction > 0 else -steps) if p.single_direction else (2 * steps + 1, -steps)
        down = (1, 0) if self.lines else across
        subtract = p.correlation_type == p.SUBTRACT
        self.correlator = Correlator(
            x[1:], (out[0], out[1]), (p.kernel_size, p.kernel_size), (down[0], across[0]), (down[1], across[1]), (reach[0] - pads[0], reach[1] - pads[1]),
            p.stride_2, p.stride_1, 1 / (p.kernel_size**2 * x[1]), subtract,
        )  # fmt: skip
        return [(x[0], down[0] * across[0], *out)]

    def flops(self) -> int:
        c = self.correlator
        return 2 * c.image[0] * c.kernel[0] * c.kernel[1] * c.grid[0] * c.grid[1] * c.out[0] * c.out[1]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        self.correlator.forward(rec, bottoms[0].data, bottoms[1].data, tops[0].data)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        """Add a slice, a product, and a mean over channels and windows for each displacement."""
        c = self.correlator
        height, width = (graph.fixed(bottoms[0], axis) for axis in (2, 3))
        ends = [(o - 1) * c.step + corner + k for o, corner, k in zip(c.out, c.corner, c.kernel)]
        low = [max(0, -corner - min(0, first * c.jump)) for corner, first in zip(c.corner, c.first)]
        high = [max(0, end + max(0, (first + n - 1) * c.jump) - size) for end, first, n, size in zip(ends, c.first, c.grid, (height, width))]
        padded = [graph.op("Pad", bottom, [0, 0, *low, 0, 0, *high]) for bottom in bottoms]

        def part(image: str, move: tuple[int, int]) -> str:
            starts, stops = ([corner + step + before for corner, step, before in zip(side, move, low)] for side in (c.corner, ends))
            return graph.op("Slice", image, starts, stops, [2, 3])

        def compared(move: tuple[int, int]) -> str:
            other = part(padded[1], move)
            values = graph.op("Abs", graph.op("Sub", first, other)) if c.subtract else graph.op("Mul", first, other)
            return graph.op("AveragePool", graph.reduce("ReduceMean", values, [1]), kernel_shape=c.kernel, strides=[c.step, c.step])

        first = part(padded[0], (0, 0))
        moves = [((c.first[0] + i) * c.jump, (c.first[1] + j) * c.jump) for i in range(c.grid[0]) for j in range(c.grid[1])]
        graph.op("Concat", *map(compared, moves), to=tops[0], axis=1)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        diffs = [rec.diff_of(bottom) if wanted else None for bottom, wanted in zip(bottoms, propagate)]
        self.correlator.backward(rec, tops[0].diff, bottoms[0].data, bottoms[1].data, *diffs)


@register("Correlation1D")
class Correlation1D(Correlation):
    """Correlation with displacements along rows only: N x D x h x w. `pad` is at the left and the right.

    single_direction: -1 leaves displacements to the right out, and 1 those to the left. Source: lmb-freiburg/flownet2,
    src/caffe/layers/correlation_layer1d.cu.
    """

    origin = "DispNet, FlowNet 2"
    lines = True
