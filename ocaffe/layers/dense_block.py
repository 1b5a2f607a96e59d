"""DenseBlock: the dense block of DenseNet as one layer."""
from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ocaffe import proto
from ocaffe.ir.graph import Blob, Parameter
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role, Shape
from ocaffe.kernels.expression.expression import pointwise
from ocaffe.kernels.rearrange.copy import copy as copy_channels
from ocaffe.layers.base import Layer, ParamBlob, register
from ocaffe.layers.batch_norm import BatchNorm
from ocaffe.layers.convolution import Convolution
from ocaffe.onnx.graph import OnnxGraph

BOTTLENECK = 4  # channels of a 1 x 1 convolution per channel of growth


@dataclass
class Step:
    """A layer of a transition with its top. `blobs` are the indices of its parameters among those of the dense block."""

    layer: Layer
    blobs: Sequence[int]
    top: Blob


@register("DenseBlock")
class DenseBlock(Layer):
    """numTransition times: BatchNorm with scale and bias, ReLU, convolution 3 x 3 to growthRate channels, which are appended to the channels before.

    With use_BC, BatchNorm, ReLU and a convolution 1 x 1 to 4 growthRate channels come first. Blobs, each numTransition times: 3 x 3 filters, scales,
    biases, sums of means, sums of variances; with use_BC 1 x 1 filters and the other four again; then the weight of all sums, as in BatchNorm.

    Source: Tongcheng's layer, as src/caffe/layers/DenseBlock_layer.cpp in senlinuc/caffe_ocr at 2ba5370. As in its code for GPUs, the batch is
    normalized with the biased variance. The default of moving_average_fraction is BatchNorm's. initChannel, gpuIdx and workspace_MB have no effect.
    """

    origin = "Tongcheng, caffe_ocr"
    message = "denseblock_param"
    inplace_top = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, x = self.own(), bottoms[0]
        self.check_axes(x, "N x C x H x W")
        self.positive(
            p,
            {"numTransition": "the number of convolutions of the block, 1 or more", "growthRate": "the channels that each of them adds, 1 or more"},
        )
        self.training = self.phase == proto.TRAIN
        self.transitions = [[*self.plan(number, x)] for number in range(p.numTransition)]
        return [(x[0], self.width(p.numTransition, x), *x[2:])]

    def width(self, number: int, x: Shape) -> int:
        """Return the channels before transition `number`."""
        return x[1] + number * int(self.own().growthRate)

    def plan(self, number: int, x: Shape) -> Iterator[Step]:
        """Yield the layers of a transition. The parameters of a BatchNorm are means, variances, weight, scale, bias."""
        p = self.own()
        count, growth = p.numTransition, int(p.growthRate)
        weight = (10 if p.use_BC else 5) * count

        def blob(group: int) -> int:
            return group * count + number

        def step(name: str, layer: Layer, shape: Shape, blobs: Sequence[int]) -> Step:
            return Step(layer, blobs, Blob(f"{self.param.name}/{number}/{name}", tuple(layer.infer(shape)[0])))

        shape: Shape = (x[0], self.width(number, x), *x[2:])
        yield step("bn", self.normalization(), shape, (blob(3), blob(4), weight, blob(1), blob(2)))
        if p.use_BC:
            narrow = step("conv1x1", self.convolution(BOTTLENECK * growth, 1), shape, [blob(5)])
            yield narrow
            yield step("bn1x1", self.normalization(), narrow.top.shape, (blob(8), blob(9), weight, blob(6), blob(7)))
            shape = narrow.top.shape
        yield step("conv", self.convolution(growth, 3), shape, [blob(0)])

    def normalization(self) -> Layer:
        param = proto.LayerParameter(name=self.param.name, type="BatchNorm", bottom=["x"], top=["y"])
        param.batch_norm_param.use_weight_bias = param.batch_norm_param.relu = True
        param.batch_norm_param.moving_average_fraction = self.own().moving_average_fraction
        return BatchNorm(param, self.phase, self.place)

    def convolution(self, outputs: int, kernel: int) -> Layer:
        param = proto.LayerParameter(name=self.param.name, type="Convolution", bottom=["x"], top=["y"])
        p = param.convolution_param
        p.num_output, p.bias_term = outputs, False
        p.kernel_size.append(kernel)
        p.pad.append(kernel // 2)
        return Convolution(param, self.phase, self.place)

    def parameters(self) -> Sequence[ParamBlob]:
        p, zero, one = self.own(), proto.FillerParameter(), proto.FillerParameter(type="constant", value=1)
        result: dict[int, ParamBlob] = {}
        for steps in self.transitions:
            for step in steps:
                if isinstance(step.layer, BatchNorm):
                    fillers = [(zero, False), (one, False), (zero, False), (p.BN_Scaler_Filler, True), (p.BN_Bias_Filler, True)]
                    shapes: list[Shape] = [(1, step.layer.channels, 1, 1)] * 5
                    shapes[2] = (1,)
                    made = [ParamBlob(shape, filler, learned) for shape, (filler, learned) in zip(shapes, fillers)]
                else:
                    made = [ParamBlob(step.layer.parameters()[0].shape, p.Filter_Filler)]
                result.update(zip(step.blobs, made))
        return [result[index] for index in sorted(result)]

    def flops(self) -> int:
        return sum(step.layer.flops() for steps in self.transitions for step in steps)

    def bind(self, flat: bool = True) -> None:
        """Give the parameters of the dense block to its layers. `flat`: as vectors where a BatchNorm reads them."""
        for step in (step for steps in self.transitions for step in steps):
            step.layer.params = [self.params[index] for index in step.blobs]
            if flat and isinstance(step.layer, BatchNorm):
                step.layer.params = [_flat(parameter) for parameter in step.layer.params]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        self.bind()
        x, merged, weight = bottoms[0], tops[0].data, self.params[-1].data
        copy_channels(rec, x.data, merged, 1, x.shape[1])
        for number, steps in enumerate(self.transitions):
            before = self.part(merged, number, x.shape)
            for step in steps:
                keep = rec.saved if rec.train else rec.scratch
                step.top.data = keep(step.top.name, step.top.shape)
                if isinstance(step.layer, BatchNorm) and self.training:  # the weight counts once, after all transitions
                    step.layer.params[2] = copy.copy(step.layer.params[2])
                    step.layer.params[2].data = rec.scratch("weight", (1,))
                    pointwise(rec, "y0 = x0", reads=[weight], writes=[step.layer.params[2].data], side_effect=True)
                step.layer.forward(rec, [before], [step.top])
                before = step.top
            copy_channels(rec, before.data, merged, 1, before.shape[1], y_start=self.width(number, x.shape))
        if self.training:
            scalars = {"fraction": float(self.own().moving_average_fraction)}
            pointwise(rec, "m0 = fraction * m0 + 1", modifies=[weight], scalars=scalars, side_effect=True)

    def part(self, merged: Ref, number: int, x: Shape) -> Blob:
        """Return the channels before a transition, in the memory of all channels."""
        result = Blob(f"{self.param.name}/{number}", (x[0], self.width(number, x), *x[2:]))
        result.data = merged.view(result.shape, 0, merged.dense_stride)
        return result

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.bind()
        assert tops[0].diff is not None
        x, merged = bottoms[0].shape, rec.scratch("merged", tops[0].shape, role=Role.DIFF)
        stride = merged.dense_stride
        pointwise(rec, "y0 = x0", reads=[tops[0].diff], writes=[merged])
        for number in reversed(range(len(self.transitions))):
            steps, channels = self.transitions[number], self.width(number, x)
            before = self.part(tops[0].data, number, x)
            wanted = number > 0 or propagate[0]
            new = rec.scratch("new", steps[-1].top.shape, role=Role.DIFF)
            copy_channels(rec, merged, new, 1, new.shape[1], x_start=channels)
            steps[-1].top.diff = new
            for step, blob in zip(reversed(steps), [*(step.top for step in reversed(steps[:-1])), before]):
                through = wanted or blob is not before
                blob.diff = rec.scratch(f"{blob.name}.diff", blob.shape, role=Role.DIFF) if through else None
                step.layer.backward(rec, [step.top], [blob], [through])
            if before.diff is not None:
                total = merged.view(before.shape, 0, stride)
                pointwise(rec, "m0 = m0 + x0", reads=[before.diff], modifies=[total])
        if propagate[0]:
            assert bottoms[0].diff is not None
            copy_channels(rec, merged, bottoms[0].diff, 1, x[1])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        self.bind(flat=False)
        merged = graph.values[bottoms[0]]
        for number, steps in enumerate(self.transitions):
            before = Blob(f"{self.param.name}/{number}", (bottoms[0].shape[0], self.width(number, bottoms[0].shape), *bottoms[0].shape[2:]))
            graph.values[before] = merged
            for step in steps:
                step.layer.onnx(graph, [before], [step.top])
                before = step.top
            last = number == len(self.transitions) - 1
            merged = graph.op("Concat", merged, before, to=tops[0] if last else None, axis=1)


def _flat(parameter: Parameter) -> Parameter:
    """Return a parameter whose data and diff are vectors."""
    result = copy.copy(parameter)
    result.data = parameter.data.view((parameter.count,))
    result.diff = None if parameter.diff is None else parameter.diff.view((parameter.count,))
    return result
