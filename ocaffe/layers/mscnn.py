"""DecodeBBox and BoxOutput of MS-CNN: boxes from the outputs of its detection branches, and boxes that Cascade R-CNN refines."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import Read, pointwise
from ocaffe.kernels.rearrange.rows import gather, select
from ocaffe.layers.base import TEST_PHASE, Layer, register, stated, times
from ocaffe.onnx.graph import OnnxGraph

SUPPRESSIONS = ("IOU", "IOMU", "IOFU")  # the intersection over: the union, the smaller box, the box with the higher score
NO_BOX = (0, 1, 1, 10, 10)  # the region if there is no box


def normal(layer: Layer) -> tuple[list[float], list[float]]:
    """Return bbox_mean and bbox_std of bbox_reg_param, or zeros and ones."""
    p = layer.param.bbox_reg_param
    means, deviations = list(p.bbox_mean), list(p.bbox_std)
    if not (means and deviations):
        return [0.0] * 4, [1.0] * 4
    for name, values in (("bbox_mean", means), ("bbox_std", deviations)):
        layer.check(len(values) == 4, f"{name} is given {times(len(values))}", f"write {name} in bbox_reg_param 4 times: for x, y, width and height")
    layer.check(min(deviations) > 0, f"bbox_std has {min(deviations):g}", "set each bbox_std in bbox_reg_param above 0")
    return means, deviations


@register("DecodeBBox")
class DecodeBBox(Layer):
    """Boxes R x 5 (image, x1, y1, x2, y2) that bottom 0 (R x 8: changes for the background and the object) makes of the boxes R x 5 in bottom 1.

    In TRAIN, inverted boxes are left out, and with a third bottom those whose last number there, the overlap with the true box, is gt_iou_thr or more.
    The changes are times bbox_std plus bbox_mean. There is no gradient. Source: zhaoweicai/mscnn, src/caffe/layers/decode_bbox_layer.cpp.
    """

    origin = "MS-CNN, Cascade R-CNN"
    bottoms = (2, 3)
    inplace_top = False
    has_backward = False
    extent_axis = 0

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        changes, boxes = bottoms[:2]
        fits = len(changes) >= 2 and math.prod(changes[1:]) == 8
        self.check(fits, f"bottom 0 is {shape_text(changes)}, it must be R x 8", "give the changes of R boxes as bottom 0: num_output: 8 in the layer before")
        fits = len(boxes) >= 2 and math.prod(boxes[1:]) == 5
        self.check(fits, f"bottom 1 is {shape_text(boxes)}, it must be R x 5: image, x1, y1, x2, y2", "give the boxes as bottom 1")
        fact = f"bottom 0 is {shape_text(changes)}, bottom 1 is {shape_text(boxes)}"
        self.check(changes[0] == boxes[0], fact, f"give {boxes[0]} rows as bottom 0, one for each box of bottom 1")
        for other in bottoms[2:]:
            self.check(
                other[:1] == boxes[:1] and len(other) >= 2,
                f"bottom 2 is {shape_text(other)}, bottom 1 is {shape_text(boxes)}",
                f"give {boxes[0]} rows as bottom 2, one for each box",
            )
            self.check(
                self.phase == proto.TRAIN,
                "bottom 2 is given in the TEST phase, and is for training",
                "add include { phase: TRAIN } to this layer, or remove bottom 2",
            )
        self.filters = self.phase == proto.TRAIN
        self.means, self.deviations = normal(self)
        count = boxes[:1] if self.extent is None or not self.filters else self.extent
        return [(*count, *boxes[1:])]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        rows = bottoms[0].shape[0]
        changes = [bottoms[0].data.view((rows,), 4 + k, 8) for k in range(4)]
        boxes = [bottoms[1].data.view((rows,), k, 5) for k in range(5)]
        decoded, keep = rec.scratch("decoded", (rows, 5)), rec.scratch("keep", (rows,))
        reads: list[Read] = [*changes, *boxes]
        text = "w = x7 - x5 + 1; h = x8 - x6 + 1; nw = w * exp(x2 * std2 + mean2); nh = h * exp(x3 * std3 + mean3)"
        text += "; left = (x0 * std0 + mean0) * w + 0.5 * (x5 + x7) - (nw - 1) / 2; upper = (x1 * std1 + mean1) * h + 0.5 * (x6 + x8) - (nh - 1) / 2"
        text += "; y0 = x4; y1 = left; y2 = upper; y3 = left + nw - 1; y4 = upper + nh - 1; y5 = nw < 1 || nh < 1 ? 0 : 1"
        scalars = {**{f"mean{k}": float(each) for k, each in enumerate(self.means)}, **{f"std{k}": float(each) for k, each in enumerate(self.deviations)}}
        writes = [*(decoded.view((rows,), k, 5) for k in range(5)), keep]
        if len(bottoms) > 2:
            columns = math.prod(bottoms[2].shape[1:])
            reads.append(bottoms[2].data.view((rows,), columns - 1, columns))
            text = text.replace("nw < 1 || nh < 1", "nw < 1 || nh < 1 || x9 >= most")
            scalars["most"] = float(self.own().gt_iou_thr)
        pointwise(rec, text, reads=reads, writes=writes, scalars=scalars)
        if not self.filters:
            pointwise(rec, "y0 = x0", reads=[decoded], writes=[tops[0].data.view((rows, 5))])
            return
        chosen, places, extent = (rec.scratch(name, (size,), np.int32) for name, size in (("chosen", rows), ("places", rows), ("extent", 1)))
        select(rec, keep, chosen, places, extent)
        rec.measure(self, extent)
        count = tops[0].shape[0]
        gather(rec, decoded, chosen.view((count,)), tops[0].data.view((count, 5)))


    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.filters:
            raise graph.refused("it leaves boxes out in the TRAIN phase", TEST_PHASE)
        _, changes = graph.ops("Split", graph.reshape(bottoms[0], (-1, 8)), [4, 4], to=[None, None], axis=1)
        image, low, high = graph.ops("Split", graph.reshape(bottoms[1], (-1, 5)), [1, 2, 2], to=[None] * 3, axis=1)
        given = graph.op("Add", graph.op("Mul", changes, np.array(self.deviations, np.float32)), np.array(self.means, np.float32))
        shift, growth = graph.ops("Split", given, [2, 2], to=[None, None], axis=1)
        size = graph.op("Add", graph.op("Sub", high, low), 1.0)
        grown = graph.op("Mul", size, graph.op("Exp", growth))
        centre = graph.op("Add", graph.op("Mul", shift, size), graph.op("Mul", graph.op("Add", low, high), 0.5))
        less = graph.op("Sub", grown, 1.0)
        corner = graph.op("Sub", centre, graph.op("Mul", less, 0.5))
        graph.reshape(graph.op("Concat", image, corner, graph.op("Add", corner, less), axis=1), (-1, *tops[0].shape[1:]), to=tops[0])


@register("BoxOutput")
class BoxOutput(Layer):
    """Regions R x 5 (image, x1, y1, x2, y2) from the outputs of detection branches; a second top has the scores too: R x 6.

    Each bottom is N x (classes + 4) x H x W: scores with the background first, and the shift and growth of a box of field_w x field_h pixels, one cell for
    each downsample_rate pixels. The score of a box is its largest class score less that of the background. Boxes with at least fg_thr and sides of at least
    min_size are sorted, the first max_nms_num are suppressed by nms_type above iou_thr, and max_post_nms_num of an image are kept (0: all). If there is no
    box, the region is 1 1 10 10. The layer runs on the host, as in the fork. There is no gradient.
    Source: zhaoweicai/mscnn, src/caffe/layers/box_output_layer.cpp.
    """

    origin = "MS-CNN"
    bottoms, tops = (1, None), (1, 2)
    inplace_top = False
    has_backward = False
    found: np.ndarray  # the regions of the last pass

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p = self.own()
        for index, x in enumerate(bottoms):
            self.check_axes(x, "N x C x H x W", index)
            self.check(
                x[1] > 5,
                f"bottom {index} is {shape_text(x)}: {x[1]} channels",
                "set num_output of the layer before to the number of classes + 4: 6 or more",
            )
            fact = f"bottom {index} is {shape_text(x)}, bottom 0 is {shape_text(bottoms[0])}"
            self.check(x[:2] == bottoms[0][:2], fact, f"give bottom {index} the batch size {bottoms[0][0]} and {bottoms[0][1]} channels, as bottom 0 has")
        for name in ("field_h", "field_w", "downsample_rate"):
            given = list(getattr(p, name))
            fact = f"{name} is given {times(len(given))} for {len(bottoms)} bottoms"
            self.check(len(given) == len(bottoms), fact, f"write {name} {times(len(bottoms))}, one for each bottom")
            self.check(min(given) > 0, f"{name} is {min(given)}", f"set each {name} to 1 or more")
        self.check(p.nms_type in SUPPRESSIONS, f"nms_type is '{p.nms_type}'", f"set nms_type to {' or '.join(SUPPRESSIONS)}")
        self.check(p.field_whr > 1, stated(p, "field_whr"), "set field_whr above 1")
        self.check(p.field_xyr > 0, stated(p, "field_xyr"), "set field_xyr above 0")
        self.normal = normal(self)
        most = bottoms[0][0] * sum(math.prod(x[2:]) for x in bottoms)
        count = most if self.extent is None else self.extent[0]
        return [(count, width, 1, 1) for width in (5, 6)][: max(1, len(self.param.top))]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        inputs, outputs = [bottom.data for bottom in bottoms], [top.data for top in tops]

        def measure(commands: Any) -> tuple[Any, ...]:
            self.found = self.regions([np.array(commands.read(ref), np.float32) for ref in inputs])
            return (max(1, len(self.found)),)

        def hand_over(commands: Any) -> None:  # it may belong to a later recording than `measure`, so that the rows are an attribute
            for ref, width in zip(outputs, (5, 6)):
                none = np.array([NO_BOX], np.float32) if width == 5 else np.zeros((1, 6), np.float32)
                values = self.found[:, :width] if len(self.found) else none
                commands.write(ref, np.ascontiguousarray(values, np.float32).reshape(ref.shape))

        rec.measure(self, measure, inputs)
        rec.host(hand_over, reads=inputs, writes=outputs, what="BoxOutput")

    def regions(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Return the regions of all images with their scores, n x 6."""
        p = self.own()
        kept = []
        for image in range(len(arrays[0])):
            boxes = np.concatenate([self._decoded(index, array[image]) for index, array in enumerate(arrays)])
            order = np.lexsort((np.arange(len(boxes)), boxes[:, 4]))[::-1]
            boxes = boxes[order][: p.max_nms_num or None]
            chosen = boxes[suppressed(boxes, p.iou_thr, p.nms_type)][: p.max_post_nms_num or None]
            corners = np.concatenate([chosen[:, :2], chosen[:, :2] + chosen[:, 2:4]], 1)
            kept.append(np.concatenate([np.full((len(chosen), 1), image, np.float32), corners, chosen[:, 4:]], 1))
        return np.concatenate(kept)

    def _decoded(self, index: int, x: np.ndarray) -> np.ndarray:
        """Return the boxes of one bottom and one image: n x 5 (x, y, width, height, score)."""
        p, (means, deviations) = self.own(), self.normal
        rate, sides = np.float32(p.downsample_rate[index]), np.array([p.field_w[index], p.field_h[index]], np.float32)
        classes, (height, width) = len(x) - 4, x.shape[1:]
        scores = (x[1:classes].max(0) - x[0]).ravel()
        changes = x[classes:].reshape(4, -1) * np.array(deviations, np.float32)[:, None] + np.array(means, np.float32)[:, None]
        rows, columns = np.indices((height, width), np.float32).reshape(2, -1)
        cells = (np.stack([columns, rows]) + np.float32(0.5)) * rate
        shift = np.clip(changes[:2], np.float32(-1 / p.field_xyr), np.float32(1 / p.field_xyr))
        growth = np.clip(changes[2:], np.float32(-math.log(p.field_whr)), np.float32(math.log(p.field_whr)))
        size = sides[:, None] * np.exp(growth)
        corner = np.maximum(shift * sides[:, None] + cells - size / 2, 0)
        size = np.minimum(size, np.array([[width], [height]], np.float32) * rate - corner)
        good = (scores >= p.fg_thr) & (size >= p.min_size).all(0)
        return np.concatenate([corner, size, scores[None]])[:, good].T


def suppressed(boxes: np.ndarray, most: float, kind: str) -> list[int]:
    """Return the boxes (n x 5: x, y, width, height, score; the best first) that stay: none overlaps a better one by more than `most`."""
    left = np.arange(len(boxes))
    stay = []
    areas = boxes[:, 2] * boxes[:, 3]
    while len(left):
        best, left = left[0], left[1:]
        stay.append(int(best))
        low, high = np.maximum(boxes[best, :2], boxes[left, :2]), np.minimum(boxes[best, :2] + boxes[best, 2:4], boxes[left, :2] + boxes[left, 2:4])
        shared = np.maximum(high - low, 0).prod(1)
        union = {"IOU": areas[best] + areas[left] - shared, "IOMU": np.minimum(areas[best], areas[left]), "IOFU": np.full(len(left), areas[best])}
        left = left[~(shared / np.maximum(union[kind], 1e-20) > most)]
    return stay
