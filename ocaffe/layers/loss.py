"""What losses and Accuracy share: the rule for labels, the normalizer, and the fields of forks that they do not take."""
from __future__ import annotations

import math
from typing import Any

from ocaffe import proto
from ocaffe.errors import shape_text
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import Layer

COUNTED = 0.0  # normalizer: the number of positions whose label is not ignored, known on the device alone


def normalization(loss: Any, default: int) -> int:
    """The NormalizationMode of a LossParameter: `normalization` before the legacy `normalize` before `default`."""
    mode = proto.LossParameter
    if loss.HasField("normalization"):
        return loss.normalization
    if loss.HasField("normalize"):
        return mode.VALID if loss.normalize else mode.BATCH_SIZE
    return default


def normalizer(layer: Layer, outer: int, inner: int, default: int | None = None) -> float:
    """What the sum over outer x inner positions is divided by, at least 1; COUNTED where only the device knows.

    `default` is the mode without `normalization` and `normalize`; None means VALID.
    """
    mode, loss = proto.LossParameter, layer.param.loss_param
    divisor = {
        mode.FULL: float(outer * inner),
        mode.VALID: COUNTED if loss.HasField("ignore_label") else float(outer * inner),
        mode.BATCH_SIZE: float(outer),
        mode.NONE: 1.0,
        mode.PRE_FIXED: loss.pre_fixed_normalizer,
    }
    chosen = normalization(loss, mode.VALID if default is None else default)
    layer.check(
        chosen != mode.PRE_FIXED or loss.pre_fixed_normalizer > 0,
        f"pre_fixed_normalizer is {loss.pre_fixed_normalizer:g}, the loss cannot be divided by it",
        "a positive pre_fixed_normalizer",
    )
    return divisor[chosen]


def segnet_default(layer: Layer) -> int | None:
    """The mode of a prototxt that has the fields of SegNet's fork, which divides by the batch size (golden data); None for all others."""
    loss = layer.param.loss_param
    return proto.LossParameter.BATCH_SIZE if loss.HasField("weight_by_label_freqs") or loss.class_weighting else None


def check_batch(layer: Layer, scores: Shape, labels: Shape) -> None:
    """A loss has as many labels (targets) as data, counted along the first axis."""
    layer.check(
        labels[:1] == scores[:1],
        f"data and label should have the same first dimension: bottom 0 is {shape_text(scores)}, bottom 1 is {shape_text(labels)}",
        "give both the same batch size",
    )


def check_labels(layer: Layer, scores: Shape, labels: Shape, positions: int) -> None:
    """One label for each position, in their order, whatever the axes."""
    layer.check(
        math.prod(labels) == positions,
        f"number of labels must match number of predictions ({math.prod(labels)} and {positions}): "
        f"bottom 0 is {shape_text(scores)}, bottom 1 is {shape_text(labels)}",
        "for scores N x C x H x W and axis 1, N x H x W labels: whole numbers from 0 to C - 1",
    )


def ignored(param: Any) -> tuple[int, int]:
    """(whether there is an ignore_label, the label) of a LossParameter or AccuracyParameter, as kernels take it."""
    return int(param.HasField("ignore_label")), param.ignore_label


def label_smoothing(layer: Layer) -> float:
    """The share of each target that goes to all classes evenly."""
    share = float(layer.param.loss_param.label_smoothing)
    layer.check(0 <= share < 1, f"label_smoothing is {share:g}", "a share of the target: 0 or more and less than 1, for example 0.1")
    return share


def refuse_smoothing(layer: Layer) -> None:
    """Raise where the prototxt asks for it and the layer has none."""
    fix = "remove label_smoothing, or use SoftmaxWithLoss"
    layer.check(not layer.param.loss_param.label_smoothing, "loss_param { label_smoothing } is not supported by this layer", fix)
