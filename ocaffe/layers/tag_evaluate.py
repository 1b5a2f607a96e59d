"""TagEvaluate: which tags of images are right."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import register
from ocaffe.layers.detection_evaluate import NOTHING, DetectionEvaluate
from ocaffe.layers.loss import check_batch


@register("TagEvaluate")
class TagEvaluate(DetectionEvaluate):
    """For each image and tag, the score and whether the image has the tag; and the number of images with each tag.

    Bottoms: scores of the tags (N x tags), of which larger ones mean the tag, and as many labels: 1 with the tag, 0 without it, others do not count.
    Top 1 x 1 x k x 5 as of DetectionEvaluate: first one row per tag: -1, tag, number of images with it, -1, -1. The tag is -1 if no image has it, so that
    the mean is one of the tags that occur. Then one row per image and tag: image,
    tag, score, 1 if the image has the tag, 1 if it has not. The mean average precision is computed from the rows over all batches of a test.
    """

    origin = "ocaffe"
    message = "detection_evaluate_param"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        scores, labels = bottoms
        check_batch(self, scores, labels)
        self.check(len(scores) >= 1 and math.prod(scores) == math.prod(labels),
                   f"bottom 0 is {shape_text(scores)}, bottom 1 is {shape_text(labels)}: they must have equally many values",
                   f"give bottom 1 the shape {shape_text(scores)}: one label for each tag")  # fmt: skip
        self.images = scores[0]
        self.tags = math.prod(scores[1:])
        return [(1, 1, self.tags + math.prod(scores), 5)]

    def measures(self, tops: Sequence[Blob]) -> bool:
        return False

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        inputs, output = [bottom.data for bottom in bottoms], tops[0].data

        def hand_over(commands: Any) -> None:
            scores, labels = (commands.read(ref).reshape(self.images, self.tags) for ref in inputs)
            commands.write(output, self.evaluate(scores, labels).reshape(output.shape))

        rec.host(hand_over, reads=inputs, writes=[output], what="TagEvaluate")

    def evaluate(self, scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the rows of the top."""
        images, tags = np.divmod(np.arange(scores.size), self.tags)
        has, lacks = labels == 1, labels == 0
        numbers = np.array([(NOTHING, tag if count else NOTHING, count, -1, -1) for tag, count in enumerate(has.sum(0))], np.float32)
        return np.concatenate([numbers, np.stack([images, tags, scores.ravel(), has.ravel(), lacks.ravel()], 1).astype(np.float32)])
