"""Differences that are known. Each rule is a small predicate with its reason; what no rule names is a finding.

VENDOR: layers whose code in the package tpu-mlir differs from BVLC's and the forks'. DOCUMENTED: what ocaffe does otherwise on purpose (docs/differences.md).
ABORTS: nets that Caffe refuses and ocaffe runs. NOT_DRAWN and FORMS: what random nets leave out.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ocaffe import proto
from tests.oracle import values
from tests.oracle.case import Case
from tests.oracle.graph import Graph
from tests.oracle.judge import Finding

GRADIENTS = ("diff", "parameter diff")
UNDEFINED = (
    "Accuracy", "ArgMax", "Pooling", "SPP", "Eltwise", "Threshold", "Clip", "ReLU", "ReLU6", "PReLU", "ELU", "BNLL", "ROIPooling", "HingeLoss",
    "Normalize",
)  # fmt: skip
RECURRENT = ("LSTM", "RNN")  # with one step, the output and the last state share memory
VIEWS = ("Reshape", "Flatten", "Split", "Dropout")


@dataclass(frozen=True)
class Rule:
    """`covers` says whether the rule explains a finding."""

    name: str
    reason: str
    covers: Callable[[Case, Finding, Graph], bool]


def place(finding: Finding) -> str:
    """The blob or layer of a finding."""
    return finding.name.rsplit("/", 1)[0] if finding.part.startswith("parameter") else finding.name


# Rules of the vendor


def wrong_gradient(case: Case, finding: Finding, graph: Graph) -> bool:
    return finding.part in GRADIENTS and bool(graph.types_after(place(finding)) & {"Mish", "MatMul", "BN"})


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
    """Whether an AVE pooling, also one in SPP, is before the finding, or after that of a gradient. Double precision says that ocaffe is right."""
    layers = graph.around(place(finding))[1 if finding.part in GRADIENTS else 0] | (graph.around(place(finding))[0] if finding.part in GRADIENTS else set())
    average = proto.PoolingParameter.AVE
    own = [graph.layers[name].spp_param if graph.layers[name].type == "SPP" else graph.layers[name].pooling_param for name in layers]
    return not finding.verdict.startswith(("ocaffe", "caffe and")) and any(param.pool == average for param in own)


VENDOR: Sequence[Rule] = (
    Rule("gradient of Mish, MatMul and BN", "the package has no backward pass of MatMul and wrong ones of Mish and of BN's statistics", wrong_gradient),
    Rule("first prior", "where fewer scores than top_k are above confidence_threshold, the package fills up with the first prior", fills_with_the_first),
    Rule("divisor of AVE", "the package divides by the whole window where it reaches beyond the padded image; BVLC clips the window", whole_window),
)

# Documented rules


def unneeded(case: Case, finding: Finding, graph: Graph) -> bool:
    """Caffe has the loss weight, or scratch values of HingeLoss, Scale and others, in diffs that no gradient needs; ocaffe has zeros."""
    if finding.part != "diff" or np.any(finding.ocaffe):
        return False
    if not any(finding.name in layer.bottom for layer in graph.net.layer) and not any(layer.bottom for layer in graph.net.layer if finding.name in layer.top):
        return True  # a diff that the script gave to the top of a data layer
    return finding.name not in graph.needed


def shares(layer: Any) -> bool:
    """Whether a layer's top shares memory with its bottom in Caffe."""
    return layer.type in VIEWS or (layer.type in ("Slice", "Concat") and len(layer.top) == len(layer.bottom) == 1)


def in_place(case: Case, finding: Finding, graph: Graph) -> bool:
    """A layer works in place on a value that a backward pass reads, its own or that of the layer before, or on memory that another blob shares in Caffe."""
    changed = [layer for layer in graph.net.layer if set(layer.top) & set(layer.bottom)]
    before, after = graph.around(place(finding))
    if any(layer.type == "Eltwise" and layer.name in before | after for layer in changed):
        return True  # Caffe sets the top to 0 before it adds
    finite = isinstance(finding.ocaffe, np.ndarray) and np.isfinite(finding.ocaffe).all()
    if finite and finding.verdict.startswith(("ocaffe", "caffe and")):
        return False
    is_view = any(shares(layer) and finding.name in layer.top for layer in graph.net.layer)
    if finding.part in GRADIENTS and any(layer.name in after or (is_view and layer.name in before) for layer in changed):
        return True
    seen = {finding.name, *(blob for name in before for blob in graph.layers[name].top)}
    views = [layer for layer in graph.net.layer if shares(layer) and seen & set(layer.bottom)]
    sharing = [*views, *(layer for layer in graph.net.layer if layer.type in RECURRENT and finding.name in layer.top)]
    forward = finding.part not in GRADIENTS and any(layer.name in before for layer in changed)
    return forward or any(layer.name in graph.around(other.name)[1] for layer in changed for other in sharing)


def nan_order(case: Case, finding: Finding, graph: Graph) -> bool:
    """A layer that compares values, or multiplies them by 0, gets NaN."""
    for name in graph.around(place(finding))[0]:
        layer = graph.layers[name]
        values_ = [graph.arrays.get(f"data {finding.step}/{bottom}", np.zeros(0)) for bottom in layer.bottom]
        if layer.type in UNDEFINED and any(np.isnan(array).any() for array in values_):
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


def identity_permute(case: Case, finding: Finding, graph: Graph) -> bool:
    """A Permute that changes no order shares its diff with its bottom, which takes it from a Reshape, Flatten or Split before."""
    after = [graph.layers[name] for name in graph.around(place(finding))[1]]
    same = any(layer.type == "Permute" and list(layer.permute_param.order) == list(range(len(layer.permute_param.order))) for layer in after)
    return finding.part in GRADIENTS and same and finding.verdict.startswith("caffe off")


def frozen_recurrent(case: Case, finding: Finding, graph: Graph) -> bool:
    if finding.part != "parameter diff" or np.any(finding.ocaffe):
        return False
    name, index = finding.name.rsplit("/", 1)
    layer = graph.layers[name]
    return layer.type in ("LSTM", "RNN") and int(index) < len(layer.param) and layer.param[int(index)].lr_mult == 0


def propagated_labels(case: Case, finding: Finding, graph: Graph) -> bool:
    asked = any(layer.propagate_down for layer in graph.net.layer)
    return finding.part == "refusal" and asked and "backpropagate to" in finding.caffe and "propagate_down" in finding.ocaffe


def all_rows(case: Case, finding: Finding, graph: Graph) -> bool:
    """The only reader of a DetectionOutput is a DetectionEvaluate: the top has all possible rows."""
    readers = [layer.type for layer in graph.net.layer if finding.name in layer.bottom]
    makers = [layer.type for layer in graph.net.layer if finding.name in layer.top]
    return finding.part == "shape" and makers == ["DetectionOutput"] and readers == ["DetectionEvaluate"]


def weight_of_grown(case: Case, finding: Finding, graph: Graph) -> bool:
    """Caffe writes a loss weight once, when the net is made. The diff of a blob that grows is 0 after that."""
    grown = any(step.shapes for step in case.steps[: finding.step + 1])
    after = [graph.layers[name] for name in graph.around(place(finding))[1]]
    weights = any(layer.loss_weight and layer.type != "Reduction" for layer in after) or place(finding) in graph.weighted
    return finding.part in GRADIENTS and grown and weights and not finding.verdict.startswith("ocaffe")


DOCUMENTED: Sequence[Rule] = (
    Rule("diffs that no gradient needs", "they are zeros in ocaffe, and in Caffe loss weights or scratch values", unneeded),
    Rule("in place", "the gradient of a value that is changed in place is right in ocaffe, and views keep the value before the change", in_place),
    Rule("NaN", "which value is the larger one is not defined, and BLAS makes 0 times NaN 0", nan_order),
    Rule("empty window of MAX", "Caffe's backward pass writes outside of the bottom", empty_window),
    Rule("sibling loss weights", "Caffe forgets the loss weights of a layer's other tops where one of them is also read", sibling_weights),
    Rule("identity Permute", "the diff does not reach the blob before a Reshape, Flatten or Split in Caffe", identity_permute),
    Rule("frozen recurrent parameters", "Caffe computes gradients of parameters of LSTM and RNN whose lr_mult is 0", frozen_recurrent),
    Rule("propagate_down to labels", "ocaffe refuses it when it builds the net, Caffe in the backward pass", propagated_labels),
    Rule("rows of DetectionOutput", "where DetectionEvaluate is the only reader, the top has all possible rows", all_rows),
    Rule("loss weights of blobs that grow", "Caffe loses the loss weight of a blob that grows", weight_of_grown),
)

ABORTS: Mapping[str, str] = {  # a pattern of Caffe's message -> why ocaffe runs the net
    r"filter_layer.*cannot backpropagate to filter index inputs": "force_backward: ocaffe gives the selector no gradient",
    r"batch_reindex_layer.*Cannot backprop to index": "force_backward: ocaffe gives the index no gradient",
    r"roi_pooling_layer.*Not Implemented Yet": "the package has the backward pass of ROIPooling for GPUs only",
    r"recurrent_layer.*input number of timesteps changed": "ocaffe lets a reshape change the number of steps",
    r"infogain_loss_layer.*cannot backpropagate to infogain inputs": "force_backward: ocaffe gives the infogain matrix no gradient",
    r"threshold_layer.*Not Implemented Yet": "ocaffe's Threshold passes no gradient",
    r"blob size exceeds INT_MAX": "the package's ConvolutionDepthwise subtracts unsigned numbers where the window is larger than the image",
    r"Found background label in the detection results": "ocaffe's DetectionEvaluate skips the background",
    r"batch_reindex_layer.*was greater than batch size": "ocaffe's BatchReindex gives NaN for an index out of range",
    r"Cannot use legacy accessors on Blobs with > 4 axes": "ocaffe's layers take blobs of any number of axes",
    r"embed_layer.*Can't backpropagate to EmbedLayer input": "force_backward: ocaffe gives the indices no gradient",
    r"axis_index < num_axes\(\) \(0 vs. 0\) axis 0 out of range for 0-D Blob": "ocaffe's layers take blobs without axes",
    r"AbsVal Layer does not allow in-place computation": "ocaffe's AbsVal can work in place",
}

NOT_DRAWN: Mapping[str, str] = {  # types of the package
    "Data": "reads a database; golden cases have it", "ImageData": "reads files; golden cases have it", "MemoryData": "golden cases have it",
    "Python": "runs code of the user", "Input": "is in every net",
    "FrcnDetection": "the vendor's own", "Padding": "the vendor's own", "RetinaFaceDetection": "the vendor's own", "YoloDetection": "the vendor's own",
    "Lstm": "ocaffe takes sequences T x N x ..., the package flat ones",
    "Proposal": "other fields than those of the forks: it scales to net_input_h x net_input_w",
    "Reorg": "another order of the values than darknet's, no backward pass, and a division by zero with reverse",
}  # fmt: skip
FORMS: Mapping[str, str] = {  # forms that are not drawn
    "ROIPooling with another number of regions than images": "the package computes as many regions as there are images",
    "Upsample, RegionLoss, ROIPooling, MatMul and ContrastiveLoss after a reshape": "the package keeps the first size, or does not check it",
    "DummyData with values other than 0": "the package fills it with zeros",
    "EvalDetection with equal scores": "the fork's sort is not stable",
    "Upsample with scale 1, Reverse with an axis below 0": "the package refuses them",
}


def explained(case: Case, finding: Finding, graph: Graph) -> str | None:
    """The name of the rule that explains a finding, or None."""
    if finding.part == "refusal" and re.match(r"runs|refuses at forward [1-9]", finding.ocaffe):
        return next((reason for pattern, reason in ABORTS.items() if re.search(pattern, finding.caffe)), None)
    return next((rule.name for rule in (*VENDOR, *DOCUMENTED) if rule.covers(case, finding, graph)), None)
