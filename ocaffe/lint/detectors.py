"""Rules over the layers of a detector, in the nets of both phases."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ocaffe.layers.base import param_field
from ocaffe.lint.rules import Finding, Job, View, job_rule, net_rule, own_param

LOSSES = ("MultiBoxLoss", "AlignedBoxLoss")
# fields of a loss, each with the field of other layers that must have the same value
SAME = {
    "num_classes": {"DetectionOutput": "num_classes", "DetectionEvaluate": "num_classes"},
    "background_label_id": {"DetectionOutput": "background_label_id", "DetectionEvaluate": "background_label_id"},
    "share_location": {"DetectionOutput": "share_location"},
    "code_type": {"DetectionOutput": "code_type"},
    "encode_variance_in_target": {"DetectionOutput": "variance_encoded_in_target"},
}
LEAST_SCORE = 0.1  # a higher confidence_threshold removes detections that the average precision needs; SSD has 0.01
PROBABILITIES = {"Softmax": "SOFTMAX", "Sigmoid": "LOGISTIC"}  # layer: the conf_loss_type that includes it


@job_rule
def detector_settings_differ(job: Job) -> Iterator[Finding]:
    """A number of classes, a background, a code of boxes or variances that differ between the loss, the detections and their test."""
    found = [(view, layer) for view in job.views for layer in view.layers]
    losses = [layer for _, layer in found if layer.type in LOSSES]
    if len({layer.name for layer in losses}) == 1:  # with several losses the others cannot be assigned
        for field, others in SAME.items():
            if field not in own_param(losses[0]).DESCRIPTOR.fields_by_name:
                continue
            wanted = _value(losses[0], field)
            for view, layer in found:
                other = others.get(layer.type)
                agnostic = field == "num_classes" and losses[0].multibox_loss_param.map_object_to_agnostic
                if other is not None and not agnostic and _value(layer, other) != wanted:
                    fact = f"{other} is {_value(layer, other)}, and {field} of '{losses[0].name}' ({losses[0].type}) is {wanted}"
                    path = f"{param_field(layer.type)}.{other}"
                    yield view.finding("detector-settings-differ", layer, fact, f"{other}: {wanted} here, or set both to the same other value", path)
    first: dict[str, Any] = {}
    for view, layer in found:
        if layer.type == "PriorBox":
            other, own = first.setdefault(layer.name, layer).prior_box_param, layer.prior_box_param
            names = sorted(each.name for each in own.DESCRIPTOR.fields if getattr(own, each.name) != getattr(other, each.name))
            if names:
                fact = f"{names[0]} differs from that of the layer of the same name in line {first[layer.name].source_line}"
                fix = f"set {names[0]} to the same value in both layers, because TRAIN and TEST need equal priors"
                yield view.finding("detector-settings-differ", layer, fact, fix, f"prior_box_param.{names[0]}")


def _value(layer: Any, field: str) -> str:
    """Return the value of a field as the prototxt writes it."""
    own = own_param(layer)
    value, kind = getattr(own, field), own.DESCRIPTOR.fields_by_name[field].enum_type
    return kind.values_by_number[value].name if kind is not None else str(value).lower()


@net_rule
def detector_scores(view: View) -> Iterator[Finding]:
    """Confidences with a Softmax before a loss that includes it, or without one before DetectionOutput, or over another number of classes."""
    for index, layer in enumerate(view.layers):
        if layer.type not in (*LOSSES, "DetectionOutput"):
            continue
        before = list(_before(view, index))
        own = [each for each in before if each.type in PROBABILITIES]
        if layer.type in LOSSES and own:
            fact = f"its confidences come from '{own[0].name}' ({own[0].type}), which this loss contains already"
            yield view.finding("detector-scores", layer, fact, f'set the second bottom: "{own[0].bottom[0]}", with one row for each image', "bottom[1]")
        elif layer.type == "DetectionOutput" and before and not own and before[-1].type in ("Concat", "Convolution"):
            fact = f"its confidences come from '{before[-1].name}' ({before[-1].type}) without a Softmax: they are not between 0 and 1"
            fix = "put before it: a Reshape to 0 x -1 x num_classes, a Softmax with axis: 2, and a Flatten"
            yield view.finding("detector-scores", layer, fact, fix, "bottom[1]")
        elif layer.type == "DetectionOutput":
            classes = layer.detection_output_param.num_classes
            for each in before:
                dims = list(each.reshape_param.shape.dim) if each.type == "Reshape" else []
                if len(dims) == 3 and dims[2] not in (0, -1, classes) and own:
                    fact = f"it makes rows of {dims[2]} confidences for '{own[0].name}' ({own[0].type}), and num_classes of '{layer.name}' is {classes}"
                    yield view.finding("detector-scores", each, fact, f"reshape_param {{ shape {{ dim: 0 dim: -1 dim: {classes} }} }}", "reshape_param.shape")


def _before(view: View, index: int) -> Iterator[Any]:
    """Yield the layers that compute the confidences, bottom 1 of layer number `index`, from the last one to the first with several bottoms."""
    value = view.reads[index][1] if len(view.reads[index]) > 1 else None
    while value is not None:
        layer = view.layers[value[0]]
        yield layer
        if len(layer.bottom) != 1 or layer.type == "Convolution":
            return
        value = view.reads[value[0]][0]


@net_rule
def detections_cut(view: View) -> Iterator[Finding]:
    """A high confidence_threshold in a net that is tested. Average precision needs the weak detections too, and is 0 for a net at its start."""
    for index, layer in enumerate(view.layers):
        threshold = layer.detection_output_param.confidence_threshold
        scored = any(each.type == "DetectionEvaluate" for each in view.followers(index))
        if layer.type == "DetectionOutput" and scored and threshold > LEAST_SCORE:
            fact = f"confidence_threshold is {threshold:g}: detections with lower scores do not count for the average precision"
            fix = "confidence_threshold: 0.01, as in SSD; a high one belongs into deploy.prototxt"
            yield view.finding("detections-cut", layer, fact, fix, "detection_output_param.confidence_threshold")


@job_rule
def detections_not_scored(job: Job) -> Iterator[Finding]:
    """eval_type: "detection" without DetectionEvaluate in the TEST net, or the layer without this eval_type."""
    for view in job.tests if job.solver is not None else ():
        scores = [layer for layer in view.layers if layer.type in ("DetectionEvaluate", "TagEvaluate")]
        if scores and job.solver.eval_type != "detection":
            fact = f"eval_type is '{job.solver.eval_type}', and '{scores[0].name}' ({scores[0].type}) has no mean: its average precision is computed only for"
            yield job.finding("detections-not-scored", "eval_type", f"{fact} 'detection'", 'eval_type: "detection"')
        elif not scores and job.solver.eval_type == "detection":
            fact = "eval_type is 'detection', and the TEST net has no DetectionEvaluate"
            fix = 'put a layer { type: "DetectionEvaluate" } behind DetectionOutput, or remove eval_type'
            yield job.finding("detections-not-scored", "eval_type", fact, fix)
