"""Differences that are known. Each rule is a small predicate with its reason; what no rule names is a finding.

A rule with evidence covers only what double precision confirms: Caffe's values are those of its shared memory, or the elements depend on a NaN.

VENDOR: layers whose code in the package tpu-mlir differs from BVLC's and the forks'. DOCUMENTED: what ocaffe does otherwise on purpose (docs/differences.md).
ABORTS: nets that Caffe refuses and ocaffe runs. NOT_DRAWN and FORMS: what random nets leave out.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.oracle import values
from tests.oracle.case import Case
from tests.oracle.graph import OWNERS, UNDEFINED, Graph, shares
from tests.oracle.judge import Arbiter, Finding

GRADIENTS = ("diff", "parameter diff")


@dataclass(frozen=True)
class Rule:
    """`covers` says whether the rule explains a finding, as far as the net shows it. `evidence` is what double precision must say, if given."""

    name: str
    reason: str
    covers: Callable[[Case, Finding, Graph], bool]
    evidence: Callable[[Arbiter, Finding], bool] | None = None


def place(finding: Finding) -> str:
    """The blob or layer of a finding."""
    return finding.name.rsplit("/", 1)[0] if finding.part.startswith("parameter") else finding.name


# Rules of the vendor


def wrong_gradient(case: Case, finding: Finding, graph: Graph) -> bool:
    own = any(graph.types_after(name) & {"Mish", "MatMul", "BN"} for name in (place(finding), *graph.sharing(place(finding))))
    return finding.part in GRADIENTS and own and not finding.verdict.startswith(("ocaffe", "caffe and"))


def fills_with_the_first(case: Case, finding: Finding, graph: Graph) -> bool:
    """Whether the finding is after a DetectionOutput with fewer scores above the threshold than top_k, in some class and image."""
    for name in graph.around(place(finding))[0]:
        layer = graph.layers[name]
        if layer.type == "DetectionOutput" and layer.bottom[1] in case.inputs:
            own, blob = layer.detection_output_param, layer.bottom[1]
            shape = case.steps[finding.step].shapes.get(blob, case.shapes[blob])
            scores = values.draw(case.inputs[blob], shape, case.seed, "input", blob, finding.step).reshape(shape[0], -1, own.num_classes)
            above = np.delete((scores > own.confidence_threshold).sum(1), own.background_label_id, 1)
            if (above < min(own.nms_param.top_k, scores.shape[1])).any():
                return True
    return False


def whole_window(case: Case, finding: Finding, graph: Graph) -> bool:
    """Whether an AVE pooling with a window beyond the padded image is before the finding, or after that of a gradient."""
    layers = set().union(*graph.around(place(finding))) if finding.part in GRADIENTS else graph.around(place(finding))[0]
    return any(_beyond(graph.layers[name], graph, finding.step) for name in layers)


def _beyond(layer: Any, graph: Graph, step: int) -> bool:
    own = layer.pooling_param
    if layer.type == "SPP":
        return layer.spp_param.pool == layer.spp_param.AVE
    image = graph.arrays.get(f"data {step}/{layer.bottom[0]}", np.zeros(())).shape[2:] if layer.type == "Pooling" else ()
    if own.pool != own.AVE or own.global_pooling or len(image) != 2:
        return False
    for size, extent, stride, pad, count in zip(
        image, (own.kernel_h or own.kernel_size, own.kernel_w or own.kernel_size), (own.stride_h or own.stride, own.stride_w or own.stride),
        (own.pad_h or own.pad, own.pad_w or own.pad), graph.arrays[f"data {step}/{layer.top[0]}"].shape[2:],
    ):  # fmt: skip
        if (count - 1) * stride - pad + extent > size + pad:
            return True
    return False


def unchecked_channels(case: Case, finding: Finding, graph: Graph) -> bool:
    """After a reshape, a ConvolutionDepthwise has another number of channels than its filters."""
    return finding.part == "refusal" and "(ConvolutionDepthwise)" in finding.ocaffe and "would need a parameter of" in finding.ocaffe


def other_order(case: Case, finding: Finding, graph: Graph) -> bool:
    """A Reorg with a stride is before the finding, or its gradient is compared."""
    return any(layer.type == "Reorg" and layer.reorg_param.stride > 1 for layer in graph.net.layer)


def no_gradient_of_reorg(case: Case, finding: Finding, graph: Graph) -> bool:
    return finding.part in GRADIENTS and "Reorg" in graph.types_after(place(finding)) and finding.verdict.startswith("caffe off")


def named_otherwise(case: Case, finding: Finding, graph: Graph) -> bool:
    return finding.part == "types" and [{"LSTMEM": "Lstm"}.get(name, name) for name in finding.caffe] == list(finding.ocaffe)


def diff_of_sequences(case: Case, finding: Finding, graph: Graph) -> bool:
    """An Lstm is after the finding. The package adds up the gradients of the steps in the diff of its top, from which the next pass starts."""
    return finding.part in GRADIENTS and "Lstm" in graph.types_after(place(finding)) | graph.types_before(place(finding))


def all_states(case: Case, finding: Finding, graph: Graph) -> bool:
    """The gradient of W_h of an Lstm with indicators."""
    name, _, index = finding.name.partition("/")
    own = finding.part == "parameter diff" and index == "1" and graph.layers[name].type == "Lstm" and len(graph.layers[name].bottom) == 2
    return own and finding.verdict.startswith("caffe off;")


VENDOR: Sequence[Rule] = (
    Rule("gradient of Mish, MatMul and BN", "the package has no backward pass of MatMul and wrong ones of Mish and of BN's statistics", wrong_gradient),
    Rule("first prior", "where fewer scores than top_k are above confidence_threshold, the package fills up with the first prior", fills_with_the_first),
    Rule("divisor of AVE", "the package divides by the whole window where BVLC clips it to the padded image", whole_window, Arbiter.is_memory),
    Rule("channels of ConvolutionDepthwise", "the package does not check them after a reshape", unchecked_channels),
    Rule("order of Reorg", "the package's order of the values is not darknet's", other_order, Arbiter.is_memory),
    Rule("gradient of Reorg", "the package has none", no_gradient_of_reorg),
    Rule("name of Lstm", "the package names the type LSTMEM", named_otherwise),
    Rule("top diff of Lstm", "the package adds the gradients of the recurrence to it", diff_of_sequences, Arbiter.is_memory),
    Rule("W_h of Lstm", "its gradient has the states that an indicator ends, and memory that was never written", all_states),
)

# Documented rules


def unneeded(case: Case, finding: Finding, graph: Graph) -> bool:
    """Caffe has the loss weight, or scratch values of HingeLoss, Scale and others, in diffs that no gradient needs; ocaffe has zeros."""
    if finding.part != "diff" or np.any(finding.ocaffe):
        return False
    if not any(finding.name in layer.bottom for layer in graph.net.layer) and not any(layer.bottom for layer in graph.net.layer if finding.name in layer.top):
        return True  # a diff that the script gave to the top of a data layer
    return finding.name not in graph.needed


def in_place(case: Case, finding: Finding, graph: Graph) -> bool:
    """A layer works in place."""
    return any(set(layer.top) & set(layer.bottom) for layer in graph.net.layer)


def not_propagated(case: Case, finding: Finding, graph: Graph) -> bool:
    """A layer passes no gradient, but shares its diff with its bottom, does not read propagate_down, or has scratch values in the diff."""
    idle = any(layer.type == "HingeLoss" and layer.name not in graph.backward for layer in graph.net.layer)
    return finding.part in GRADIENTS and (idle or any(not all(layer.propagate_down) for layer in graph.net.layer))


def undefined(case: Case, finding: Finding, graph: Graph) -> bool:
    """A layer that compares values, or multiplies them by 0, gets NaN."""
    for layer in graph.net.layer:
        if layer.type in UNDEFINED and any(np.isnan(graph.arrays.get(f"data {finding.step}/{bottom}", np.zeros(0))).any() for bottom in layer.bottom):
            return True
    return False


def empty_window(case: Case, finding: Finding, graph: Graph) -> bool:
    """A pooling has a stride above its kernel. Its last window can be empty, and Caffe's backward pass then writes outside of the bottom (quirk 3)."""
    own = [layer.pooling_param for layer in graph.net.layer if layer.type == "Pooling" and not layer.pooling_param.global_pooling]
    sizes = [(p.kernel_size, p.kernel_h, p.kernel_w) for p in own]
    steps = [(max(p.stride, p.stride_h, p.stride_w), min(filter(None, kernel), default=1)) for p, kernel in zip(own, sizes)]
    broken = "corruption" in str(finding.caffe) or "free()" in str(finding.caffe) or finding.verdict.startswith("caffe off")
    return any(stride > kernel for stride, kernel in steps) and broken and finding.part in ("refusal", *GRADIENTS)


def sibling_weights(case: Case, finding: Finding, graph: Graph) -> bool:
    """A top with a loss weight is also read: the Split layer after it makes Caffe forget the weights of the layer's other tops."""
    read = {bottom for layer in case.built.layer for bottom in layer.bottom}
    forgets = any(sum(map(bool, layer.loss_weight)) > 1 and read & set(layer.top) for layer in case.built.layer)
    return forgets and finding.part in ("loss", *GRADIENTS) and not finding.verdict.startswith(("ocaffe", "caffe and"))


def views_in_a_row(case: Case, finding: Finding, graph: Graph) -> bool:
    """A Flatten, or a Permute that changes no order, takes the diff of its top. A view, recurrent layer or Parameter before it still has the old one."""
    taking = [layer for layer in graph.net.layer if layer.type == "Flatten" or (layer.type == "Permute" and shares(layer))]
    views = {top for layer in graph.net.layer if shares(layer) or layer.type in OWNERS for top in layer.top}
    return finding.part in GRADIENTS and any(views & set(layer.bottom) for layer in taking)


def empty_average(case: Case, finding: Finding, graph: Graph) -> bool:
    return finding.part == "refusal" and finding.caffe == "runs" and "AVE window" in finding.ocaffe and "covers no pixel" in finding.ocaffe


def frozen_recurrent(case: Case, finding: Finding, graph: Graph) -> bool:
    if finding.part != "parameter diff" or np.any(finding.ocaffe):
        return False
    name, index = finding.name.rsplit("/", 1)
    layer = graph.layers[name]
    return layer.type in ("LSTM", "RNN", "Python") and int(index) < len(layer.param) and layer.param[int(index)].lr_mult == 0


def propagated_labels(case: Case, finding: Finding, graph: Graph) -> bool:
    """Caffe refuses it in the backward pass, if there is one. ContrastiveLoss ignores it."""
    asked = any(any(layer.propagate_down) for layer in graph.net.layer)
    refused = re.search(r"backprop(agate)? to", finding.caffe) or finding.caffe == "runs" if finding.part == "refusal" else False
    return asked and bool(refused) and "there is no gradient for" in finding.ocaffe and "propagate_down" in finding.ocaffe


def all_rows(case: Case, finding: Finding, graph: Graph) -> bool:
    """The only reader of a DetectionOutput is a DetectionEvaluate: the top has all possible rows."""
    readers = [layer.type for layer in graph.net.layer if finding.name in layer.bottom]
    makers = [layer.type for layer in graph.net.layer if finding.name in layer.top]
    return finding.part == "shape" and makers == ["DetectionOutput"] and readers == ["DetectionEvaluate"]


def quotient(case: Case, finding: Finding, graph: Graph) -> bool:
    """A Power without shift gets 0."""
    divided = [
        layer.bottom[0] for layer in graph.net.layer if layer.type == "Power" and layer.power_param.shift == 0 and layer.power_param.power not in (0, 1, 2)
    ]
    zero = any(np.any(graph.arrays.get(f"data {finding.step}/{name}", np.ones(())) == 0) for name in divided)
    return finding.part in GRADIENTS and zero


def unchecked_top_k(case: Case, finding: Finding, graph: Graph) -> bool:
    """After a reshape, an ArgMax along axis 0 has fewer samples than top_k."""
    late = finding.part == "refusal" and finding.caffe == "runs" and re.match("refuses at forward [1-9]", finding.ocaffe)
    return bool(late) and "(ArgMax)" in finding.ocaffe and "top_k is" in finding.ocaffe


def weight_of_grown(case: Case, finding: Finding, graph: Graph) -> bool:
    """Caffe writes a loss weight once, when the net is made. The diff of a blob that grows is 0 after that."""
    return bool(graph.weighted) and any(step.shapes for step in case.steps[: finding.step + 1])


DOCUMENTED: Sequence[Rule] = (
    Rule("diffs that no gradient needs", "they are zeros in ocaffe, and in Caffe loss weights or scratch values", unneeded, Arbiter.is_memory),
    Rule("in place", "gradients of values that are changed in place are right in ocaffe, and views keep the value of before", in_place, Arbiter.is_memory),
    Rule("propagate_down: false", "Caffe's views, and types that do not read it, pass a gradient; Scale and HingeLoss leave scratch values", not_propagated,
         Arbiter.is_memory),
    Rule("NaN", "which value is the larger one is not defined, and BLAS makes 0 times NaN 0", undefined, Arbiter.depends_on_nan),
    Rule("empty window of MAX", "Caffe's backward pass writes outside of the bottom", empty_window),
    Rule("sibling loss weights", "Caffe forgets the loss weights of a layer's other tops where one of them is also read", sibling_weights),
    Rule("views in a row", "the diff of a Flatten or Permute does not pass another view, LSTM or Parameter before it", views_in_a_row, Arbiter.is_memory),
    Rule("empty window of AVE", "ocaffe refuses it; Caffe gives NaN, the package 0", empty_average),
    Rule("frozen parameters", "Caffe computes gradients of parameters of LSTM, RNN and Python layers whose lr_mult is 0", frozen_recurrent),
    Rule("propagate_down to labels", "ocaffe refuses it when it builds the net, Caffe in the backward pass", propagated_labels),
    Rule("rows of DetectionOutput", "where DetectionEvaluate is the only reader, the top has all possible rows", all_rows),
    Rule("Power at 0", "Caffe divides the top by the bottom, which is NaN at 0; ocaffe computes the power", quotient, Arbiter.is_memory),
    Rule("top_k after a reshape", "Caffe checks it when the net is made, and then reads beyond the values", unchecked_top_k),
    Rule("loss weights of blobs that grow", "Caffe loses the loss weight of a blob that grows", weight_of_grown, Arbiter.is_memory),
)

ABORTS: Mapping[str, str] = {  # a pattern of Caffe's message -> why ocaffe runs the net
    r"filter_layer.*cannot backpropagate to filter index inputs": "force_backward: ocaffe gives the selector no gradient",
    r"batch_reindex_layer.*Cannot backprop to index": "force_backward: ocaffe gives the index no gradient",
    r"roi_pooling_layer.*Not Implemented Yet": "the package has the backward pass of ROIPooling for GPUs only",
    r"recurrent_layer.*input number of timesteps changed": "ocaffe lets a reshape change the number of steps",
    r"infogain_loss_layer.*cannot backpropagate to infogain inputs": "force_backward: ocaffe gives the infogain matrix no gradient",
    r"threshold_layer.*Not Implemented Yet": "ocaffe's Threshold passes no gradient",
    r"blob size exceeds INT_MAX|shape\[i\] >= 0 \(-\d+ vs": "the package's ConvolutionDepthwise subtracts unsigned numbers; a window is larger than the image",
    r"Found background label in the detection results": "ocaffe's DetectionEvaluate skips the background",
    r"batch_reindex_layer.*was greater than batch size": "ocaffe's BatchReindex gives NaN for an index out of range",
    r"Cannot use legacy accessors on Blobs with > 4 axes": "ocaffe's layers take blobs of any number of axes",
    r"embed_layer.*Can't backpropagate to EmbedLayer input": "force_backward: ocaffe gives the indices no gradient",
    r"axis_index < num_axes\(\) \(0 vs. 0\) axis 0 out of range for 0-D Blob": "ocaffe's layers take blobs without axes",
    r"AbsVal Layer does not allow in-place computation": "ocaffe's AbsVal can work in place",
}

NOT_DRAWN: Mapping[str, str] = {  # types of the package
    "Input": "is in every net",
    "Data": "the package is built without LMDB and LevelDB, and refuses all databases",
    "ImageData": "the package is built without OpenCV; its ImageData has one top, without images and labels",
    "FrcnDetection": "the vendor's own", "Padding": "the vendor's own", "RetinaFaceDetection": "the vendor's own", "YoloDetection": "the vendor's own",
    "Proposal": "no prototxt is valid in both: the package requires net_input_h and net_input_w in place of im_info, and has none of the forks' fields but "
    "feat_stride. With the forks' anchors, its boxes lie half a pixel lower, and it fills up with rows of zeros",
}  # fmt: skip
FORMS: Mapping[str, str] = {  # forms that are not drawn
    "ROIPooling with another number of regions than images": "the package computes as many regions as there are images",
    "Upsample, RegionLoss, ROIPooling, MatMul, ContrastiveLoss and Reorg after a reshape": "the package keeps the first size, or does not check it",
    "MemoryData with a reshape of Input layers": "its own size stays",
    "DummyData with values other than 0": "the package fills it with zeros",
    "Lstm with several sequences": "the package takes one sequence of T x 1 x I, whatever batch_size says, and refuses flat rows",
    "Reorg with reverse": "the package divides by zero",
    "EvalDetection with equal scores": "the fork's sort is not stable",
    "Upsample with scale 1, Reverse with an axis below 0": "the package refuses them",
}


def explained(case: Case, finding: Finding, graph: Graph, arbiter: Arbiter) -> str | None:
    """The name of the rule that explains a finding, or None."""
    if finding.part == "refusal" and re.match(r"runs|refuses at forward [1-9]", finding.ocaffe):
        reasons = [reason for pattern, reason in ABORTS.items() if re.search(pattern, finding.caffe)]
        if reasons:
            return reasons[0]
    for rule in (*VENDOR, *DOCUMENTED):
        if rule.covers(case, finding, graph) and (rule.evidence is None or rule.evidence(arbiter, finding)):
            return rule.name
    return None
