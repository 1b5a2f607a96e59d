"""Windows over the spatial axes in ONNX: pads at begin and end may differ, or follow from the image size (auto_pad)."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ocaffe.convert.importer.builder import Builder
from ocaffe.convert.importer.graph import Node

Axes = tuple[int, ...]


@dataclass(frozen=True)
class Windows:
    """Sizes in pixels, one number for each spatial axis."""

    kernel: Axes
    stride: Axes
    dilation: Axes
    begin: Axes
    end: Axes

    @classmethod
    def read(cls, net: Builder, node: Node, image: Axes, kernel: Sequence[int]) -> Windows:
        axes = len(image)
        given = node.get("kernel_shape", kernel)
        fact = f"kernel_shape is {list(given)}, the weights are for {list(kernel)}"
        net.check(node, tuple(given) == tuple(kernel), fact, f"export with kernel_shape {list(kernel)}")
        stride, dilation = tuple(node.get("strides", [1] * axes)), tuple(node.get("dilations", [1] * axes))
        dilation = tuple(1 if size == 1 else step for size, step in zip(kernel, dilation))  # a window of one pixel has no distances
        pads = list(node.get("pads", [0] * 2 * axes))
        windows = cls(tuple(kernel), stride, dilation, tuple(pads[:axes]), tuple(pads[axes:]))
        if node.get("auto_pad", "NOTSET").startswith("SAME"):
            outputs = [-(-size // step) for size, step in zip(image, stride)]
            total = [max(0, (out - 1) * step + extent - size) for out, step, extent, size in zip(outputs, stride, windows.extent, image)]
            less, more = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
            lower = node.get("auto_pad") == "SAME_LOWER"
            windows = replace(windows, begin=more if lower else less, end=less if lower else more)
        return windows

    @property
    def extent(self) -> Axes:
        """The pixels that a window spans, with dilation."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation))

    @property
    def symmetric(self) -> bool:
        return self.begin == self.end and min(self.begin, default=0) >= 0

    def around(self, image: Axes, outputs: Axes) -> Windows:
        """Return the same windows with end pads that just complete the last window."""
        ends = ((o - 1) * s + e - n - b for o, s, e, n, b in zip(outputs, self.stride, self.extent, image, self.begin))
        return replace(self, end=tuple(max(0, end) for end in ends))

    def of_a_row(self) -> Windows:
        """Return the same windows over an image of one row."""
        return Windows((1, *self.kernel), (1, *self.stride), (1, *self.dilation), (0, *self.begin), (0, *self.end))

    def without_pads(self) -> Windows:
        zeros = (0,) * len(self.begin)
        return replace(self, begin=zeros, end=zeros)


def padded(net: Builder, node: Node, x: str, windows: Windows, value: float = 0) -> str:
    """Add a Pad layer with the pads of the windows around x."""
    net.check(node, min(*windows.begin, *windows.end) >= 0, f"pads {[*windows.begin, *windows.end]} crop the image", "crop it before, with a Slice")
    parameters = {"begin": windows.begin, "end": windows.end} | ({"value": value} if value else {})
    return net.layer(node, "Pad", [x], parameters, part="pad")
