"""Mean: adds or subtracts a mean image, or a mean for each channel."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ocaffe.errors import Error, shape_text
from ocaffe.formats.blob import read_finite
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import Read, pointwise
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph


@register("Mean")
class Mean(Layer):
    """y = output_scale (input_scale x + mean_scale m) with operation: ADD, or with -m with SUBTRACT, for each bottom and its top.

    m is one `value` for each channel, or the mean image in `file` (.binaryproto). Values and channels of the image repeat over the channels of the bottom.
    FlowNet's layer has no gradient; here it has one. Source: lmb-freiburg/flownet2, src/caffe/layers/mean_layer.cpp.
    """

    origin = "FlowNet, FlowNet 2"
    bottoms, tops = (1, None), (1, None)
    by_sample = True

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p = self.own()
        self.check_tops(bottoms)
        self.check(
            p.value or p.HasField("file"),
            "mean_param has no value and no file",
            f"{self.written('value: N')}, once for each channel; or file: \"PATH\" of a .binaryproto file",
        )
        self.check(not (p.value and p.HasField("file")), f"mean_param has {len(p.value)} value and file: \"{p.file}\"", "remove value, or file")
        try:
            mean = read_finite(p.file) if p.file else np.array(p.value, np.float32).reshape(1, -1, 1, 1)
        except Error as problem:
            raise self.error(f'file: "{p.file}" {problem.fact}', problem.fix) from problem
        mean = mean.reshape(mean.shape[-3:]) * np.float32(-1 if p.operation == p.SUBTRACT else 1)
        self.means = []
        for index, x in enumerate(bottoms):
            self.check_axes(x, "N x C x H x W", index)
            what = f"the mean image in {p.file} is {shape_text(mean.shape)}" if p.file else f"{len(mean)} value are given"
            fix = f"give a mean of 1 or {x[1]} channels" if p.file else f"write value once, or {x[1]} times: once for each channel"
            self.check(x[1] % len(mean) == 0, f"bottom {index} is {shape_text(x)}, {what}", fix)
            fits = not p.file or mean.shape[1:] == x[2:]
            self.check(fits, f"bottom {index} is {shape_text(x)}, {what}", f"give a mean image of {shape_text(x[2:])} pixels, or one value for each channel")
            self.means.append(np.tile(mean, (x[1] // len(mean), 1, 1)).reshape(x[1], -1))
        self.factor, self.mean_factor = p.output_scale * p.input_scale, p.output_scale * p.mean_scale
        return list(bottoms)

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        for index, (bottom, top, mean) in enumerate(zip(bottoms, tops, self.means)):
            flat = (*bottom.shape[:2], math.prod(bottom.shape[2:]))
            reads: list[Read] = [bottom.data.view(flat), (rec.constant(f"mean{index}", mean), 1)]
            scalars = {"factor": self.factor, "mean_factor": self.mean_factor}
            pointwise(rec, "y0 = factor * x0 + mean_factor * x1", reads=reads, writes=[top.data.view(flat)], scalars=scalars)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        for bottom, top, mean in zip(bottoms, tops, self.means):
            image = mean.reshape(1, len(mean), *((1, 1) if mean.shape[1] == 1 else bottom.shape[2:])) * np.float32(self.mean_factor)
            graph.op("Add", graph.op("Mul", bottom, float(self.factor)), image, to=top)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        for bottom, top, wanted in zip(bottoms, tops, propagate):
            if wanted:
                assert top.diff is not None
                pointwise(rec, "y0 = factor * x0", reads=[top.diff], writes=[rec.diff_of(bottom)], scalars={"factor": self.factor})
