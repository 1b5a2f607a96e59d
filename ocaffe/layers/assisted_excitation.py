"""AssistedExcitation: activations inside the boxes of objects are increased early in a training."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe import proto
from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.kernel import JOIN, Kernel, read, write
from ocaffe.ir.recorder import STEP, Recorder
from ocaffe.ir.tensor import Shape, split_axes
from ocaffe.kernels.expression.expression import Read, pointwise
from ocaffe.kernels.rearrange.alias import alias_diff
from ocaffe.layers.base import TEST_PHASE, Layer, register
from ocaffe.onnx.graph import OnnxGraph

MASK = Kernel("excitation.mask", read("boxes"), read("mean"), read("step"), write("mask"), can=JOIN)

GPU_GROUP = 64


@register("AssistedExcitation")
class AssistedExcitation(Layer):
    """TRAIN: all channels of bottom 0 plus cos(90 degrees iteration / max_iter) times bottom 2 (N x 1 x H x W) inside boxes; TEST: bottom 0.

    Bottom 1 has the boxes, N x 1 x 300 x 5: class, centre x, centre y, width, height, as AnnotatedData makes them for YOLO. A solver sets max_iter to
    its own. Only bottom 0 gets a gradient, as in the fork.

    Source: eric612/MobileNet-YOLO, src/caffe/layers/assisted_excitation_layer.cpp at 2b83740. There, only the first image of a batch is increased, which
    is a mistake that is not kept. The fork does not define the iteration in TEST.
    """

    origin = "MobileNet-YOLO"
    bottoms = 3

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x, boxes, mean = bottoms
        self.check_axes(x, "N x C x H x W")
        fits = boxes[:1] == x[:1] and boxes[-1:] == (5,) and len(boxes) > 2
        self.check(fits, f"bottom 1 is {shape_text(boxes)}, bottom 0 is {shape_text(x)}",
                   f"give the true boxes as bottom 1: {x[0]} x 1 x G x 5 (class, centre x, centre y, width, height)")  # fmt: skip
        self.check(mean == (x[0], 1, *x[2:]), f"bottom 2 is {shape_text(mean)}, bottom 0 is {shape_text(x)}",
                   f"give the mean over the channels of bottom 0 as bottom 2: {shape_text((x[0], 1, *x[2:]))}")  # fmt: skip
        self.training = self.phase == proto.TRAIN
        fix = "train with a solver, or set assisted_excitation_param { max_iter } to the number of iterations of the training"
        self.check(
            not self.training or self.own().max_iter > 0,
            "the TRAIN net has no solver that gives max_iter, and assisted_excitation_param { max_iter } is missing",
            fix,
        )
        self.moves_data = self.training
        return [x]

    def force_backward(self, bottom: int) -> bool:
        return bottom == 0

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        if not self.training:
            rec.alias(tops[0], bottoms[0])
            return
        x, boxes, mean = bottoms
        pixels, mask = x.shape[2] * x.shape[3], rec.scratch("mask", mean.shape)
        rec.launch(
            MASK(boxes=boxes.data, mean=mean.data, step=rec.step, mask=mask),
            args=[*x.shape[2:], boxes.count // boxes.shape[0] // 5, float(self.own().max_iter)],
            size=(pixels, x.shape[0]),
            local=(1, 1) if rec.target.is_cpu else (GPU_GROUP, 1),
            defines={"STEP_ITERATION": STEP["ITERATION"]},
        )
        planes = split_axes(x.shape, 1)
        reads: list[Read] = [x.data.view(planes), (mask.view((planes[0], 1, planes[2])), 0)]
        pointwise(rec, "y0 = x0 + x1", reads=reads, writes=[tops[0].data.view(planes)])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.training:
            raise graph.refused("it depends on the iteration of the training in the TRAIN phase", TEST_PHASE)
        graph.alias(tops[0], bottoms[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        for bottom, wanted in zip(bottoms[1:], propagate[1:]):
            if wanted:
                pointwise(rec, "y0 = 0", writes=[rec.diff_of(bottom)])
        if not propagate[0]:
            return
        if self.training:
            assert bottoms[0].diff is not None
            pointwise(rec, "y0 = x0", reads=[tops[0].diff], writes=[bottoms[0].diff])
        else:
            alias_diff(rec, bottoms[0], tops[0])
