"""Interp: bilinear resampling as in DeepLab and PSPNet."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.rearrange.alias import alias_diff
from ocaffe.kernels.resampling.interp import Resampling
from ocaffe.layers.base import Layer, register, stated
from ocaffe.onnx.graph import OnnxGraph


@register("Interp")
class Interp(Layer):
    """Bilinear resampling of N x C x H x W with aligned corners to height x width, or by zoom_factor or shrink_factor.

    shrink_factor turns size n into floor((n - 1) / shrink) + 1, zoom_factor into n + (n - 1) (zoom - 1). If both factors are given, height and
    width take precedence; without these the layer shrinks first. A single factor takes precedence over height and width. pad_beg and pad_end are 0 or
    negative: they crop pixels at the beginning and the end of both axes.
    """

    origin = "DeepLab, PSPNet"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, x = self.own(), bottoms[0]
        self.check_axes(x, "N x C x H x W")
        for name in ("pad_beg", "pad_end"):
            self.check(getattr(p, name) <= 0, stated(p, name), f"set {name} to 0, or below 0 to crop")
        part = x[2] + p.pad_beg + p.pad_end, x[3] + p.pad_beg + p.pad_end
        self.check(
            min(part) > 0,
            f"pad_beg {p.pad_beg} and pad_end {p.pad_end} leave nothing of the {x[2]} x {x[3]} image",
            f"set pad_beg and pad_end so that together they cut at most {min(x[2:]) - 1} pixels",
        )
        for name in ("shrink_factor", "zoom_factor"):
            self.check(getattr(p, name) >= 1, stated(p, name), f"set {name} to 1 or more, or remove it")
        outputs = self.outputs(part)
        self.check(min(outputs) > 0, f"height is {p.height}, width is {p.width}", f"set {'height' if outputs[0] < 1 else 'width'} to 1 or more")
        self.resampling = Resampling(-p.pad_beg, part, outputs)
        self.moves_data = not (outputs == part == x[2:])
        return [(*x[:2], *outputs)]

    def outputs(self, part: tuple[int, int]) -> tuple[int, int]:
        p = self.own()
        shrink, zoom, sized = p.HasField("shrink_factor"), p.HasField("zoom_factor"), p.HasField("height") and p.HasField("width")
        self.check(
            shrink or zoom or sized,
            "interp_param gives no size",
            f"{self.written('height: H width: W')}, the pixels of the top; or zoom_factor, or shrink_factor",
        )
        if sized and shrink == zoom:
            return p.height, p.width
        shrunk = [(size - 1) // p.shrink_factor + 1 for size in part]
        height, width = (size + (size - 1) * (p.zoom_factor - 1) for size in shrunk)
        return height, width

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.moves_data:
            self.resampling.forward(rec, bottoms[0].data, tops[0].data)
        else:
            rec.alias(tops[0], bottoms[0])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        r, x = self.resampling, graph.values[bottoms[0]]
        if r.part != bottoms[0].shape[2:]:
            same = r.part == r.outputs
            ends = [r.begin + size for size in r.part]
            x = graph.op("Slice", x, [r.begin] * 2, ends, [2, 3], to=tops[0] if same else None)
        if r.part != r.outputs:
            sizes, how = graph.sizes(bottoms[0], 2, r.outputs), {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
            graph.op("Resize", x, None, None, sizes, to=tops[0], **how)
        elif not self.moves_data:
            graph.alias(tops[0], x)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        if self.moves_data:
            assert bottoms[0].diff is not None
            self.resampling.backward(rec, tops[0].diff, bottoms[0].diff)
        else:
            alias_diff(rec, bottoms[0], tops[0])
