"""Resize: bilinear resampling without aligned corners."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.rearrange.rearrange import crop, uncrop
from ocaffe.kernels.resampling.interp import Resampling
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph

START = (0, 0, 0, 0)


@register("Resize")
class Resize(Layer):
    """Bilinear resampling of N x C x H x W to height x width, or with is_pyramid_test by the factors out_height_scale and out_width_scale.

    Output i of n is at i H / n. The image is 0 beyond its last row and column, as in the fork, so that an enlarged image fades at these two borders.
    Source: happynear/caffe-windows, src/caffe/layers/resize_layer.cpp at 7612850.
    """

    origin = "happynear, MSRCCS"
    inplace_top = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, x = self.own(), bottoms[0]
        self.check_axes(x, "N x C x H x W")
        sizes = (p.height, p.width)
        fact, fix = f"height is {p.height}, width is {p.width}", f"{self.written('height: H width: W')}, the pixels of the top"
        if p.is_pyramid_test:
            factors = [np.float32(factor) for factor in (p.out_height_scale, p.out_width_scale)]
            height, width = (int(factor * np.float32(n)) for factor, n in zip(factors, x[2:]))
            sizes = height, width
            fact = f"the scales {factors[0]:g} and {factors[1]:g} make {sizes[0]} x {sizes[1]} of {x[2]} x {x[3]} pixels"
            fix = "set out_height_scale and out_width_scale to larger numbers"
        self.check(min(sizes) > 0, fact, fix)
        self.framed: Shape = (*x[:2], x[2] + 1, x[3] + 1)  # with a row and a column of zeros
        ratios = np.float32(x[2]) / np.float32(sizes[0]), np.float32(x[3]) / np.float32(sizes[1])
        self.resampling = Resampling(0, (x[2] + 1, x[3] + 1), sizes, ratios)
        return [(*x[:2], *sizes)]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        framed = rec.scratch("framed", self.framed)
        uncrop(rec, bottoms[0].data, framed, START)
        self.resampling.forward(rec, framed, tops[0].data)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        framed = graph.op("Pad", bottoms[0], [0] * 6 + [1, 1])
        scales = np.array([1, 1, *(n / old for n, old in zip(self.resampling.outputs, bottoms[0].shape[2:]))], np.float32)
        resized = graph.op("Resize", framed, None, scales, mode="linear", coordinate_transformation_mode="asymmetric")
        graph.op("Slice", resized, [0, 0], list(self.resampling.outputs), [2, 3], to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None and bottoms[0].diff is not None
        framed = rec.scratch("framed", self.framed)
        self.resampling.backward(rec, tops[0].diff, framed)
        crop(rec, framed, bottoms[0].diff, START)
