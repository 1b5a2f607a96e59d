"""DetectionEvaluate: which detections are right."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.data.changes.resizing import without_padding
from ocaffe.errors import Error, shape_text
from ocaffe.formats.nearby import MissingPath
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import Layer, register
from ocaffe.support.files import text_lines
from ocaffe.support.whole import whole

NOTHING = -1  # the number of an image, or the label, of a row without a box
Size = tuple[int, int]  # height and width of an image in pixels


@register("DetectionEvaluate")
class DetectionEvaluate(Layer):
    """For each detection, whether it is right; and the number of true boxes of each class.

    Bottoms: the rows of DetectionOutput (1 x 1 x n x 7) and of AnnotatedData's boxes (1 x 1 x m x 8). Top 1 x 1 x k x 5. First one row per class but
    the background: -1, label, number of true boxes, -1, -1. Then one row per detection: image, label, score, 1 if it is right, 1 if it is wrong. Both
    are 0 if it detects a difficult box that does not count. A detection counts for the true box of its class that it overlaps most. Of several
    detections of a true box, the one with the highest score is right, and the others are wrong.

    The host computes this. A detection that overlaps no true box of its class by overlap_threshold is wrong. With name_size_file the boxes are compared
    in pixels of the images, as in SSD (docs/quirks.md, quirk 42). `ocaffe test`, and tests of solvers with `eval_type: "detection"`, compute the average
    precision from the rows (ocaffe/solver/average_precision.py).
    """

    origin = "SSD"
    bottoms = 2
    has_backward = False
    inplace_top = False
    _sizes: Sequence[Size] | None = None
    _at = _first = 0  # the next entry of `_sizes`, and the first one of the present pass
    _rows: np.ndarray  # of the top in the present pass

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p = self.own()
        for i, (shape, columns, source) in enumerate(zip(bottoms, (7, 8), ("a DetectionOutput layer", "the second top of an AnnotatedData layer"))):
            fits = len(shape) == 4 and shape[:2] == (1, 1) and shape[3] == columns
            self.check(fits, f"bottom {i} is {shape_text(shape)}, it must be 1 x 1 x n x {columns}", f"give the rows of {source} as bottom {i}")
        self.positive(p, {"num_classes": "the number of classes, with the background among them"})
        self.check(p.overlap_threshold > 0, f"overlap_threshold is {p.overlap_threshold:g}", "set overlap_threshold above 0; SSD has 0.5")
        if p.name_size_file and self._sizes is None:
            resize = p.resize_param
            given = not p.HasField("resize_param") or min(resize.height, resize.width) > 0
            fact = f"resize_param {{ height: {resize.height} width: {resize.width} }}"
            self.check(
                given,
                fact,
                "set both in resize_param of detection_evaluate_param to the pixels of the net's input, as in transform_param of the data layer",
            )
            self._sizes = self._read_sizes(p.name_size_file)
        self.classes = [c for c in range(p.num_classes) if c != p.background_label_id]
        rows = bottoms[0][2]
        (left_out,) = self.extent or (0,)  # rows of bottom 0 without a detection; their number rarely changes, so the net is rarely recorded again
        return [(1, 1, len(self.classes) + rows - min(left_out, rows), 5)]

    def _read_sizes(self, path: str) -> list[Size]:
        sizes = []
        try:
            for number, line in enumerate(text_lines(path, errors="replace"), 1):
                words = line.split()
                if not words:
                    continue
                right = len(words) == 3 and all(whole(word) > 0 for word in words[1:])
                if not right:
                    raise Error(
                        f"'{line.strip()}' is not a name, a height and a width",
                        place=f"{path}:{number}",
                        fix="write a line NAME HEIGHT WIDTH for each image, such as 000001 500 353",
                    )
                sizes.append((int(words[1]), int(words[2])))
        except OSError as reason:
            fact, fix = f"name_size_file '{path}' cannot be read: {reason.strerror}", "give the path of a file with a line NAME HEIGHT WIDTH for each image"
            raise MissingPath(fact, path, "name_size_file", fix, place=self.place, layer=self.title) from None
        self.check(sizes, f"name_size_file '{path}' is empty", "write a line NAME HEIGHT WIDTH for each image, in the order of the data")
        return sizes

    def measures(self, tops: Sequence[Blob]) -> bool:
        return True

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        inputs, output = [bottom.data for bottom in bottoms], tops[0].data

        def measure(commands: Any) -> tuple[int]:
            if self.repeats:
                self._at = self._first
            self._first = self._at
            detections, truth = (commands.read(ref).reshape(ref.shape[2:]) for ref in inputs)
            self._rows = self.evaluate(detections, truth)
            return (len(self.classes) + len(detections) - len(self._rows),)

        def hand_over(commands: Any) -> None:
            commands.write(output, self._rows.reshape(output.shape))

        rec.measure(self, measure, inputs)
        rec.host(hand_over, reads=inputs, writes=[output], what="DetectionEvaluate")

    def evaluate(self, detections: np.ndarray, truth: np.ndarray) -> np.ndarray:
        """Return the rows of the top for those of the bottoms."""
        p = self.own()
        truth, detections = (rows[rows[:, 0].astype(int) != NOTHING] for rows in (truth, detections))
        for what, rows in (("bottom 1 has a true box", truth), ("bottom 0 has a detection", detections)):
            background = (rows[:, 1].astype(int) == p.background_label_id).any()
            self.check(
                not background,
                f"{what} of the class {p.background_label_id}, which background_label_id names",
                "set background_label_id to the class of the background, in the DetectionOutput layer too",
            )
        counted = truth if p.evaluate_difficult_gt else truth[truth[:, 7] == 0]
        numbers = [(NOTHING, c, (counted[:, 1].astype(int) == c).sum(), -1, -1) for c in self.classes]
        return np.array([*numbers, *self._judged(detections, truth)], np.float32)

    def _judged(self, detections: np.ndarray, truth: np.ndarray) -> Iterator[tuple[float, ...]]:
        """Yield the rows of detections, in the order of images and classes. Where there are true boxes the order is that of the scores."""
        images, labels, true_images, true_labels = (column.astype(int) for rows in (detections, truth) for column in rows[:, :2].T)
        for image in np.unique(images):
            size = self._next_size()
            for label in np.unique(labels[images == image]):
                if label == NOTHING:
                    continue
                mine, true = detections[(images == image) & (labels == label)], truth[(true_images == image) & (true_labels == label)]
                if not len(true):
                    yield from ((image, label, row[2], 0, 1) for row in mine)
                    continue
                mine = mine[np.argsort(-mine[:, 2], kind="stable")]
                yield from ((image, label, row[2], *verdict) for row, verdict in zip(mine, self._verdicts(mine[:, 3:], true[:, 3:7], true[:, 7] != 0, size)))

    def _verdicts(self, boxes: np.ndarray, true: np.ndarray, difficult: np.ndarray, size: Size | None) -> Iterator[tuple[int, int]]:
        """Yield (right, wrong) of each box of an image and class. The boxes have descending scores."""
        p, taken = self.own(), set[int]()
        table = overlaps(self._areas(boxes, size), self._areas(true, size), 0 if size is None else 1)
        for row, best in zip(table, table.argmax(1)):
            if not row[best] >= np.float32(p.overlap_threshold):
                yield 0, 1
            elif difficult[best] and not p.evaluate_difficult_gt:
                yield 0, 0
            else:
                yield (0, 1) if best in taken else (1, 0)
                taken.add(int(best))

    def seek(self, images: int) -> None:
        """Continue with the size of the image of this number."""
        if self._sizes is not None:
            self._at = images % len(self._sizes)

    def _next_size(self) -> Size | None:
        """Return the size of the next image, None without name_size_file. After the last image the first one follows."""
        if self._sizes is None:
            return None
        at, self._at = self._at, (self._at + 1) % len(self._sizes)
        return self._sizes[at]

    def _areas(self, boxes: np.ndarray, size: Size | None) -> tuple[np.ndarray, np.ndarray]:
        """Return boxes, in pixels of an image if `size` is given, and their areas."""
        if size is None:
            return boxes, areas(boxes, 0)
        p = self.own()
        resize, scales = p.resize_param, np.array([p.resize_param.width_scale, p.resize_param.height_scale] * 2, np.float32)
        sides = np.array([size[1], size[0]] * 2, np.float32)
        mode = resize.resize_mode if p.HasField("resize_param") else proto.ResizeParameter.WARP
        if mode == proto.ResizeParameter.FIT_SMALL_SIZE and scales.all():
            boxes = np.clip(boxes * scales, 0, sides)
            return boxes, areas(boxes, 0)
        if mode == proto.ResizeParameter.FIT_LARGE_SIZE_AND_PAD:
            boxes = without_padding(boxes, size, (resize.height, resize.width))
        boxes = np.clip(boxes, 0, 1) * sides
        return boxes, areas(boxes, 1)


def areas(boxes: np.ndarray, pixel: int) -> np.ndarray:
    """Return the areas of boxes (n x 4: xmin, ymin, xmax, ymax). `pixel` 1: corners are inclusive. A box with xmax < xmin or ymax < ymin has area 0."""
    sides = boxes[:, 2:] - boxes[:, :2]
    with np.errstate(invalid="ignore", over="ignore"):  # areas of an untrained YOLO may be infinite, or inf x 0: its boxes are far from others
        return np.where((sides < 0).any(1), np.float32(0), (sides + np.float32(pixel)).prod(1))


def overlaps(a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray], pixel: int) -> np.ndarray:
    """Return the intersection over union of each box of a with each of b, in single precision. Both are boxes and their areas.

    In pixels, SSD's boxes that do not touch have one pixel in common.
    """
    (boxes, own), (others, theirs) = a, b
    low, high = np.maximum(boxes[:, None, :2], others[None, :, :2]), np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    apart = ((others[None, :, :2] > boxes[:, None, 2:]) | (others[None, :, 2:] < boxes[:, None, :2])).any(-1, keepdims=True)
    sides = np.where(apart, np.float32(0), high - low) + np.float32(pixel)
    shared = np.where((sides > 0).all(-1), sides.prod(-1), np.float32(0))
    union = own[:, None] + theirs[None] - shared
    with np.errstate(divide="ignore"):
        return np.divide(shared, union, out=np.zeros_like(shared), where=shared > 0)
