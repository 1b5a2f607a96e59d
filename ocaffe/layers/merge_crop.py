"""MergeCrop: a bottom, joined with the middle of a larger one."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Role, Shape
from ocaffe.kernels.expression.expression import pointwise
from ocaffe.kernels.rearrange.copy import copy
from ocaffe.kernels.rearrange.rearrange import crop, uncrop
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph, Value


@register("MergeCrop")
class MergeCrop(Layer):
    """Bottom 0, followed by the middle of bottom 1 with the same size: one after the other along the channels (STACK), or their sum (ADD).

    The middle leaves out as much at both ends of each spatial axis; an odd element is left out at the end. `forward` and `backward` have one value for
    each bottom: a bottom with forward false counts as 0, and one with backward false gets the gradient 0. As in the fork, bottom 1 gets none by default.
    The fork mixes up the channels if bottom 1 has more than bottom 0; that is mended here. U-Nets of the OpenCL branch have the layer.
    Source: naibaf7/caffe, src/caffe/layers/mergecrop_layer.cu.
    """

    origin = "the OpenCL branch"
    message = "mergecrop_param"
    bottoms = 2

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, (a, b) = self.own(), bottoms
        self.forwards, self.backwards = ([*given, *default[len(given) :]] for given, default in ((p.forward, [True, True]), (p.backward, [True, False])))
        texts = f"bottom 0 is {shape_text(a)}, bottom 1 is {shape_text(b)}"
        self.check(
            len(self.forwards) == len(self.backwards) == 2,
            f"{len(p.forward)} forward and {len(p.backward)} backward are given",
            "write forward at most twice, and backward at most twice: once for each bottom",
        )
        self.check(
            len(a) == len(b) >= 3 and a[0] == b[0],
            texts,
            f"give bottom 1 {len(a)} axes and the batch size {a[0]}, as bottom 0 has" if len(a) >= 3 else "give bottoms N x C x H x W",
        )
        self.check(all(x <= y for x, y in zip(a[2:], b[2:])), texts, "exchange the two bottoms: the smaller image is bottom 0")
        self.stacks = p.operation == p.STACK
        self.check(
            self.stacks or a[1] == b[1],
            f"{texts}, and operation is ADD",
            f"set num_output of the layer of bottom 1 to {a[1]}, or write operation: STACK in mergecrop_param",
        )
        self.starts = [0, 0, *((y - x) // 2 for x, y in zip(a[2:], b[2:]))]
        self.middle: Shape = (*b[:2], *a[2:])
        return [(a[0], a[1] + (b[1] if self.stacks else 0), *a[2:])]

    @property
    def by_sample(self) -> bool:
        return True

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        middle, y = rec.scratch("middle", self.middle), tops[0].data
        crop(rec, bottoms[1].data, middle, self.starts)
        parts = [bottoms[0].data, middle]
        if not self.stacks:
            used = [part for part, wanted in zip(parts, self.forwards) if wanted]
            pointwise(rec, f"y0 = {' + '.join(f'x{i}' for i in range(len(used))) or '0'}", reads=used, writes=[y])
            return
        for part, wanted, start in zip(parts, self.forwards, (0, parts[0].shape[1])):
            if not wanted:
                zero = rec.scratch("zero", part.shape)
                pointwise(rec, "y0 = 0", writes=[zero])
                part = zero
            copy(rec, part, y, 1, part.shape[1], y_start=start)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        starts = (0, bottoms[0].shape[1] if self.stacks else 0)
        for index, (bottom, wanted) in enumerate(zip(bottoms, propagate)):
            if not wanted:
                continue
            assert bottom.diff is not None
            if not self.backwards[index]:
                pointwise(rec, "y0 = 0", writes=[bottom.diff])
            elif index:
                middle = rec.scratch("moved", self.middle, role=Role.DIFF)
                copy(rec, tops[0].diff, middle, 1, self.middle[1], x_start=starts[1])
                uncrop(rec, middle, bottom.diff, self.starts)
            else:
                copy(rec, tops[0].diff, bottom.diff, 1, bottom.shape[1], x_start=0)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        axes = list(range(2, len(self.middle)))
        ends = [start + graph.fixed(bottoms[0], axis) for start, axis in zip(self.starts[2:], axes)]
        middle = graph.op("Slice", bottoms[1], self.starts[2:], ends, axes)
        both: list[Value] = [bottoms[0], middle]
        parts = [part if wanted else graph.op("Mul", part, 0.0) for part, wanted in zip(both, self.forwards)]
        if self.stacks:
            graph.op("Concat", *parts, to=tops[0], axis=1)
        else:
            graph.op("Add", *parts, to=tops[0])
