"""Layers that work on each element, normalisations, and sums of blobs."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.oracle.draft import Draft, kind

IN_PLACE = 0.25

FIELDS: dict[str, Callable[[Draft], dict[str, Any]]] = {
    "AbsVal": lambda net: {},
    "BNLL": lambda net: {},
    "Sigmoid": lambda net: {},
    "TanH": lambda net: {},
    "Mish": lambda net: {},
    "ReLU6": lambda net: {},
    "ReLU": lambda net: {"relu_param": net.some(negative_slope=[0, 0.1, -0.5, 1.5], engine=["CAFFE"])},
    "ELU": lambda net: {"elu_param": net.some(alpha=[0, 0.5, 1, 2, -1])},
    "Swish": lambda net: {"swish_param": net.some(beta=[0, 0.5, 1, 2, -1])},
    "Clip": lambda net: {"clip_param": {"min": net.pick(-1, -0.5, 0), "max": net.pick(0, 0.5, 1)}},
    "Threshold": lambda net: {"threshold_param": net.some(threshold=[0, 0.5, -1, 1])},
    "Power": lambda net: {"power_param": net.some(0.8, power=[0, 1, 2, 3, -1, 0.5, 1.5], scale=[0, 1, -2, 0.5], shift=[0, 1, -1, 3])},
    "Exp": lambda net: {"exp_param": net.some(base=[-1, 2, 0.5, 10], scale=[1, 0.1, -0.5, 0], shift=[0, 1, -1])},
    "Log": lambda net: {"log_param": net.some(base=[-1, 2, 0.5, 10], scale=[1, 0.1, 2], shift=[5, 20, 20]) | net.some(0.2, shift=[0])},
}


@kind(*FIELDS)
def pointwise(net: Draft, type: str) -> None:
    net.add(type, [net.blob()], in_place=IN_PLACE, **FIELDS[type](net))


@kind("Dropout")
def dropout(net: Draft) -> None:
    if net.phase == "TEST":  # in TRAIN it draws
        net.add("Dropout", [net.blob()], in_place=IN_PLACE, dropout_param=net.some(dropout_ratio=[0.1, 0.5, 0.9]))


@kind("PReLU")
def prelu(net: Draft) -> None:
    net.add("PReLU", [net.blob()], in_place=IN_PLACE, prelu_param=net.some(channel_shared=[True, False]))


@kind("Scale", "Bias", weight=3)
def broadcast(net: Draft, type: str) -> None:
    """With a learned operand, or one from a second bottom."""
    name = net.blob()
    shape = net.shapes[name]
    first = net.random.randrange(len(shape))
    fields: dict[str, Any] = {"axis": first - len(shape) if net.chance(0.3) else first}
    bottoms = [name]
    if net.chance(0.35):
        last = net.random.randint(first, len(shape))
        bottoms.append(net.data(shape[first:last] or (1,)) if net.chance(0.9) else net.data((shape[first] + 1,)))
    else:
        fields["num_axes"] = net.pick(-1, *range(len(shape) - first + 1))
    if net.chance(0.4):
        fields = {}
    if type == "Scale":
        fields |= net.some(bias_term=[True, False])
    net.add(type, bottoms, in_place=IN_PLACE, **{f"{type.lower()}_param": fields})


@kind("BatchNorm", weight=3)
def batch_norm(net: Draft) -> None:
    fields = net.some(0.5, use_global_stats=[True, False], moving_average_fraction=[0.9, 0.5, 0, 1], eps=[1e-5, 1e-3, 0.1])
    statistics = [("normal", 1.0), ("positive", 3.0), ("constant", net.pick(1.0, 2.0, 0.5, 0.0))]
    net.add("BatchNorm", [net.blob(suits=lambda shape: len(shape) > 1)], in_place=IN_PLACE, weights=statistics, batch_norm_param=fields)


@kind("BN")
def bn(net: Draft) -> None:
    fields = {"slope_filler": {"type": "constant", "value": 1}, "bias_filler": {"type": "constant", "value": 0}}
    fields |= net.some(0.5, momentum=[0.9, 0.5], frozen=[True, False], eps=[1e-5, 1e-2])
    net.add("BN", [net.blob(4)], in_place=IN_PLACE, weights=[("normal", 0.5), ("normal", 0.5), ("normal", 0.5), ("positive", 2.0)], bn_param=fields)


@kind("LRN")
def lrn(net: Draft) -> None:
    fields = net.some(local_size=[1, 3, 5, 7, 9, 2], alpha=[1, 0.1, 1e-4, 5], beta=[0.75, 0.5, 1, 2], k=[1, 2, 0.5], engine=["CAFFE"])
    net.add("LRN", [net.blob(4)], in_place=0.02, lrn_param=fields | net.some(norm_region=["ACROSS_CHANNELS", "WITHIN_CHANNEL"]))


@kind("MVN")
def mvn(net: Draft) -> None:
    fields = net.some(0.5, normalize_variance=[True, False], across_channels=[True, False], eps=[1e-9, 1e-3, 0.5])
    net.add("MVN", [net.blob(net.pick(2, 4, 4))], mvn_param=fields)


@kind("Softmax")
def softmax(net: Draft) -> None:
    name = net.blob()
    axes = len(net.shapes[name])
    net.add("Softmax", [name], in_place=0.1, softmax_param=net.some(axis=[net.axis(axes) if net.chance(0.95) else axes]) | net.some(0.1, engine=["CAFFE"]))


@kind("Normalize")
def normalize(net: Draft) -> None:
    fields = net.some(across_spatial=[True, False], channel_shared=[True, False], eps=[1e-10, 1e-3])
    net.add("Normalize", [net.blob(4)], norm_param=fields | {"scale_filler": {"type": "constant", "value": 2}})


@kind("Eltwise", weight=3)
def eltwise(net: Draft) -> None:
    first = net.blob()
    bottoms = [first, *(net.like(net.shapes[first]) for _ in range(net.pick(1, 1, 2, 3)))]
    fields = net.some(operation=["PROD", "SUM", "MAX"], stable_prod_grad=[True, False])
    if net.chance(0.5) and fields.get("operation", "SUM") == "SUM":
        fields["coeff"] = [net.pick(1, -1, 0.5, 0, 2) for _ in bottoms]
    elif net.chance(0.05):
        fields["coeff"] = [1]
    net.add("Eltwise", bottoms, in_place=0.1 if bottoms.count(first) == 1 else 0, eltwise_param=fields)


@kind("Axpy")
def axpy(net: Draft) -> None:
    x = net.blob(4)
    shape = net.shapes[x]
    net.add("Axpy", [net.data((*shape[:2], 1, 1)[: net.pick(4, 2)]), x, net.like(shape)])
