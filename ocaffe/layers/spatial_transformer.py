"""SpatialTransformer: an affine map of each image."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.expression.expression import Read, pointwise
from ocaffe.kernels.matmul.gemm import gemm
from ocaffe.kernels.resampling.grid_sample import Sampler
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph
from ocaffe.onnx.sampling import pixel_sample

NAMES = tuple(f"theta_{row}_{column}" for row in (1, 2) for column in (1, 2, 3))


@register("SpatialTransformer")
class SpatialTransformer(Layer):
    """The values of bottom 0 (N x C x H x W) at places that an affine map for each image in bottom 1 gives, interpolated between four pixels.

    Pixel (i, j) of the output_H x output_W top has the coordinates r = 2 i / output_H - 1 and c = 2 j / output_W - 1. It is taken from row
    (theta_1_1 r + theta_1_2 c + theta_1_3 + 1) H / 2 and column (theta_2_1 r + theta_2_2 c + theta_2_3 + 1) W / 2. Bottom 1 has those of the six numbers that
    the layer does not set. Pixels outside the image are 0. Both bottoms get gradients; with to_compute_dU: false that of bottom 0 is 0.
    Source: daerduoCarey/SpatialTransformerLayer, src/caffe/layers/st_layer.cpp.
    """

    origin = "daerduoCarey/SpatialTransformerLayer"
    message = "st_param"
    bottoms = 2
    by_sample = True
    inplace_top = False
    sampler = Sampler(pixels=True, planar=True, rows_first=True)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, (x, theta) = self.own(), bottoms
        self.check_axes(x, "N x C x H x W", values=True)
        self.check(p.transform_type == "affine", f"transform_type is '{p.transform_type}', and affine is the only one", "remove transform_type")
        self.check(p.sampler_type == "bilinear", f"sampler_type is '{p.sampler_type}', and bilinear is the only one", "remove sampler_type")
        self.fixed = {k: float(getattr(p, name)) for k, name in enumerate(NAMES) if p.HasField(name)}
        self.free = [k for k in range(len(NAMES)) if k not in self.fixed]
        fits = theta[:1] == x[:1] and math.prod(theta[1:]) == len(self.free)
        self.check(fits, f"bottom 1 is {shape_text(theta)}, bottom 0 is {shape_text(x)}, and the layer sets {len(self.fixed)} of the 6 numbers of an image",
                   f"give bottom 1 the shape {x[0]} x {len(self.free)}: num_output: {len(self.free)} in the layer before")  # fmt: skip
        size = p.output_H if p.HasField("output_H") else x[2], p.output_W if p.HasField("output_W") else x[3]
        for name, value in zip(("output_H", "output_W"), size):
            self.check(value > 0, f"{name} is {value}", f"set {name} to 1 or more, or remove it for the size of bottom 0")
        rows, columns = np.indices(size)
        self.grid = np.array([rows.ravel() * 2 / size[0] - 1, columns.ravel() * 2 / size[1] - 1, np.ones(rows.size)], np.float32)
        self.half = (x[2] / 2, x[3] / 2)
        return [(*x[:2], *size)]

    def _places(self, rec: Recorder, theta: Ref) -> Ref:
        """Record the launch that computes the places: N x 2 x pixels, rows first."""
        images, points = theta.shape[0], self.grid.shape[1]
        places = rec.scratch("places", (images, 2, points))
        reads: list[Read] = [(theta.view((images, 1), place, len(self.free)), 0) for place in range(len(self.free))]
        k = len(reads)
        reads += [(rec.constant(name, self.grid[row]), 1) for row, name in enumerate(("r", "c"))]
        terms = [f"fixed{i}" if i in self.fixed else f"x{self.free.index(i)}" for i in range(len(NAMES))]
        text = "; ".join(
            f"y{row} = ({terms[3 * row]} * x{k} + {terms[3 * row + 1]} * x{k + 1} + {terms[3 * row + 2]} + 1) * half{row}" for row in (0, 1)
        )
        scalars = {**{f"fixed{i}": value for i, value in self.fixed.items()}, **{f"half{row}": self.half[row] for row in (0, 1)}}
        writes = [places.view((images, points), row * points, 2 * points) for row in (0, 1)]
        pointwise(rec, text, reads=reads, writes=writes, scalars=scalars)
        return places

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        self.sampler.forward(rec, bottoms[0].data, self._places(rec, bottoms[1].data), tops[0].data)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        chosen, own = np.zeros((len(self.free), len(NAMES)), np.float32), np.zeros(len(NAMES), np.float32)
        for k in range(len(NAMES)):
            place = (k + 3) % len(NAMES)  # ONNX has columns first
            if k in self.fixed:
                own[place] = self.fixed[k]
            else:
                chosen[self.free.index(k), place] = 1
        flat = graph.reshape(bottoms[1], (-1, len(self.free)))
        theta = graph.reshape(graph.op("Add", graph.op("MatMul", flat, chosen), own), (-1, 2, 3))
        half = np.array(self.half[::-1], np.float32).reshape(1, 2, 1)
        pixels = graph.op("Mul", graph.op("Add", graph.op("MatMul", theta, self.grid), 1.0), half)
        grid = graph.reshape(graph.op("Transpose", pixels, perm=[0, 2, 1]), (-1, *tops[0].shape[2:], 2))
        pixel_sample(graph, graph.values[bottoms[0]], grid, (bottoms[0].shape[2], bottoms[0].shape[3]), "zeros", tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        dy = tops[0].diff
        assert dy is not None
        places = self._places(rec, bottoms[1].data)
        if propagate[0]:
            dx = rec.diff_of(bottoms[0])
            if self.own().to_compute_dU:
                self.sampler.backward_image(rec, dy, places, dx)
            else:
                pointwise(rec, "y0 = 0", writes=[dx])
        if propagate[1] and self.free:
            images, points = places.shape[0], places.shape[2]
            moved, full = rec.scratch("places.diff", places.shape), rec.scratch("theta.diff", (2 * images, 3))
            self.sampler.backward_grid(rec, dy, bottoms[0].data, places, moved)
            gemm(rec, moved.view((2 * images, points)), rec.constant("grid", self.grid), full, trans_b=True, mergeable=False)
            chosen = np.zeros((len(NAMES), len(self.free)), np.float32)
            for place, k in enumerate(self.free):
                chosen[k, place] = self.half[k // 3]
            to = rec.diff_of(bottoms[1]).view((images, len(self.free)))
            gemm(rec, full.view((images, len(NAMES))), rec.constant("chosen", chosen), to, mergeable=False)
