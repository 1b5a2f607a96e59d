"""Helpers of losses and Accuracy: checks of labels, the normalizer, and checks for unsupported fields of forks."""
from __future__ import annotations

import math
from typing import Any

from ocaffe import proto
from ocaffe.errors import shape_text
from ocaffe.ir.labels import LabelRange
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import Layer, stated

COUNTED = 0.0  # a normalizer that only the device knows: the number of positions whose label is not ignored


def normalization(loss: Any, default: int) -> int:
    """Return the NormalizationMode of a LossParameter: `normalization`, else the legacy `normalize`, else `default`."""
    mode = proto.LossParameter
    if loss.HasField("normalization"):
        return loss.normalization
    if loss.HasField("normalize"):
        return mode.VALID if loss.normalize else mode.BATCH_SIZE
    return default


def normalizer(layer: Layer, outer: int, inner: int, default: int | None = None) -> float:
    """Return the divisor of the sum over outer x inner positions, or COUNTED if only the device knows it.

    A divisor below 1 counts as 1, except for PRE_FIXED in SoftmaxWithLoss. `default` is the mode if neither `normalization` nor `normalize` is set;
    None means VALID.
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
        f"{stated(loss, 'pre_fixed_normalizer')}, and normalization: PRE_FIXED divides the loss by it",
        "set pre_fixed_normalizer to the divisor, above 0, or write another normalization",
    )
    return divisor[chosen]


def segnet_default(layer: Layer) -> int | None:
    """Return BATCH_SIZE for a prototxt with fields of SegNet's fork, else None. The golden data show that this fork divides by the batch size."""
    loss = layer.param.loss_param
    return proto.LossParameter.BATCH_SIZE if loss.HasField("weight_by_label_freqs") or loss.class_weighting else None


def check_batch(layer: Layer, scores: Shape, labels: Shape) -> None:
    """Raise the layer's error unless labels (targets) and data have the same first axis."""
    layer.check(
        labels[:1] == scores[:1],
        f"data and label should have the same first dimension: bottom 0 is {shape_text(scores)}, bottom 1 is {shape_text(labels)}",
        f"give both the same batch size, {scores[0] if scores else 1} or {labels[0] if labels else 1}",
    )


def check_labels(layer: Layer, scores: Shape, labels: Shape, positions: int) -> None:
    """Raise the layer's error unless there is one label for each position. The axes of the labels do not matter."""
    wanted = (*scores[:1], *scores[2:])
    shape = f": {shape_text(wanted)}" if math.prod(wanted) == positions else ""
    fix = f"give {positions} labels as bottom 1, one for each {'pixel' if len(scores) > 2 else 'sample'}{shape}, whole numbers from 0 on"
    if scores and len(labels) == len(scores) and labels[0] == scores[0]:
        fix += ". Labels of mixup and cutmix: SoftmaxWithLoss, and as many scores as label_classes"
    layer.check(
        math.prod(labels) == positions,
        f"number of labels must match number of predictions ({math.prod(labels)} and {positions}): "
        f"bottom 0 is {shape_text(scores)}, bottom 1 is {shape_text(labels)}",
        fix,
    )


def is_soft(scores: Shape, labels: Shape, class_axis: int) -> bool:
    """Return whether labels are probabilities of the classes (soft labels). With one class, Caffe reads this shape as whole labels."""
    return labels == scores and scores[class_axis] > 1


def ignored(param: Any) -> tuple[int, int]:
    """Return (whether ignore_label is set, ignore_label) of a LossParameter or AccuracyParameter, as kernel arguments."""
    return int(param.HasField("ignore_label")), param.ignore_label


def label_bottom(layer: Layer, classes: int) -> dict[int, LabelRange]:
    """Return the labels that a loss with ignore_label accepts in bottom 1."""
    has, ignore = ignored(layer.param.loss_param)
    return {1: LabelRange(layer.title, classes, ignore if has else None)}


def label_smoothing(layer: Layer) -> float:
    """Return label_smoothing: the share of each target that is spread evenly over all classes."""
    share = float(layer.param.loss_param.label_smoothing)
    layer.check(0 <= share < 1, f"label_smoothing is {share:g}", "set label_smoothing to a share of the target, 0 or more and less than 1")
    return share


def refuse_smoothing(layer: Layer) -> None:
    """Raise the layer's error if the prototxt sets label_smoothing."""
    fix = "remove label_smoothing, or use SoftmaxWithLoss"
    layer.check(not layer.param.loss_param.label_smoothing, f"loss_param {{ label_smoothing }} is not supported by {layer.param.type}", fix)
