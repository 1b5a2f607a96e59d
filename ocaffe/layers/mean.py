"""Mean: adds or subtracts a mean image, or a mean for each channel."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ocaffe.errors import Error, shape_text
from ocaffe.formats.blob import read_blobproto
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
        self.check(len(self.param.top) == len(bottoms), f"{len(bottoms)} bottoms and {len(self.param.top)} tops", "one top for each bottom")
        fact = f"{len(p.value)} value and {'a' if p.file else 'no'} file are given"
        self.check(bool(p.value) != p.HasField("file"), fact, 'give value, such as value: 104, or file: "mean.binaryproto"')
        try:
            mean = read_blobproto(p.file) if p.file else np.array(p.value, np.float32).reshape(1, -1, 1, 1)
        except Error as problem:
            raise self.error(f"file: {problem}", "a .binaryproto file, or value") from problem
        mean = mean.reshape(mean.shape[-3:]).astype(np.float32) * (-1 if p.operation == p.SUBTRACT else 1)
        self.means = []
        for index, x in enumerate(bottoms):
            fits = len(x) == 4 and x[1] % len(mean) == 0 and (not p.file or mean.shape[1:] == x[2:])
            what = f"the mean image is {shape_text(mean.shape)}" if p.file else f"{len(mean)} values are given"
            self.check(fits, f"bottom {index} is {shape_text(x)}, {what}", "means whose number divides the channels, and an image of the size of the bottom")
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
