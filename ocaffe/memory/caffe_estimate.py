"""The memory that BVLC Caffe allocates for the same nets, by its own rules: it recycles nothing and keeps much of it twice.

"""
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from ocaffe import proto
from ocaffe.ir.graph import Blob, Graph, Node

ITEM = 4  # bytes of a float, and of the ints of masks
PREFETCHED = 4  # batches that a data layer keeps, as floats
ALIASES = frozenset({"Split", "Reshape", "Flatten"})  # tops share the bottom's data
DIFF_ALIASES = frozenset({"Reshape", "Flatten"})  # and these its diff


def caffe_memory(train: Graph | None, tests: Sequence[Graph], solver_blobs: int) -> dict[str, int]:
    """Bytes by category for a TRAIN net with a solver that keeps `solver_blobs` blobs a parameter (0: none), and TEST nets that share its parameters."""
    result: Counter[str] = Counter()
    owners = [train] if train is not None else list(tests)
    for graph in owners:
        count = ITEM * sum(parameter.count for parameter in graph.params)
        result["parameters"] += count
        if graph is train:
            result["gradients"] += ITEM * sum(parameter.count for parameter in graph.params if parameter.propagate)
    if train is not None:
        result["solver"] += solver_blobs * result["parameters"]
    for graph in [*owners[:1], *(test for test in tests if test is not owners[0])]:
        _net(graph, graph is train, result)
    return dict(result)


def _net(graph: Graph, backward: bool, result: Counter[str]) -> None:
    for node in graph.nodes:
        in_place = bool(node.bottoms) and bool(node.tops) and node.bottoms[0].name == node.tops[0].name
        if not in_place and node.type not in ALIASES:
            result["data of blobs"] += ITEM * sum(top.count for top in node.tops)
        if backward and not in_place and node.type not in DIFF_ALIASES:
            touched = node.backward or any(top.loss_weight or _is_touched(top) for top in node.tops)
            result["diffs of blobs"] += ITEM * sum(top.count for top in node.tops) * touched
        if not node.bottoms and node.layer.source is not None:
            result["prefetched batches"] += PREFETCHED * ITEM * sum(top.count for top in node.tops)
        for category, count in SCRATCH.get(node.type, lambda node, backward, in_place: {})(node, backward, in_place).items():
            result[category] += ITEM * count


def _is_touched(top: Blob) -> bool:
    """Whether a layer allocates the diff of a blob that needs none, as Convolution does."""
    return top.consumer is not None and top.consumer.backward and top.consumer.type in ("Convolution", "Deconvolution")


Rule = Callable[[Node, bool, bool], dict[str, int]]


def _columns(node: Node, backward: bool, in_place: bool) -> dict[str, int]:
    """One unrolled image per layer, unless the window is a pixel; with a bias, a row of ones."""
    x, y, weight = node.bottoms[0].shape, node.tops[0].shape, node.params[0].shape
    if node.type == "Deconvolution":
        x, y = y, x
    group = max(1, x[1] // weight[1]) if node.type == "Convolution" and len(weight) > 1 else 1
    spatial, taps = math.prod(y[2:]), math.prod(weight[2:])
    plain = taps == 1 and x[2:] == y[2:]
    return {"column buffers": 0 if plain else weight[1] * taps * group * spatial, "masks and copies": spatial * (len(node.params) > 1)}


def _copies(data: int, diff_in_place: int = 0, only_in_place: bool = False) -> Rule:
    """A layer that keeps `data` values of the bottom's size, and some more where it works in place."""

    def rule(node: Node, backward: bool, in_place: bool) -> dict[str, int]:
        count = 0 if only_in_place and not in_place else data
        return {"masks and copies": node.bottoms[0].count * (count + diff_in_place * (in_place and backward))}

    return rule


def _mask(node: Node, backward: bool, in_place: bool) -> dict[str, int]:
    """An int for each element of the top."""
    return {"masks and copies": node.tops[0].count}


def _pooling(node: Node, backward: bool, in_place: bool) -> dict[str, int]:
    masked = node.layer.own().pool != proto.PoolingParameter.AVE and len(node.tops) == 1
    return _mask(node, backward, in_place) if masked else {}


def _dropout(node: Node, backward: bool, in_place: bool) -> dict[str, int]:
    return _mask(node, backward, in_place) if node.layer.phase == proto.TRAIN else {}


SCRATCH: dict[str, Rule] = {
    "Convolution": _columns,
    "Deconvolution": _columns,
    "BatchNorm": _copies(2, diff_in_place=1),  # temp_ and x_norm_
    "Scale": _copies(1, only_in_place=True),
    "LRN": _copies(1),
    "Pooling": _pooling,
    "Dropout": _dropout,
    "SoftmaxWithLoss": _copies(1),  # the probabilities
    "PReLU": _copies(1),
}
SOLVER_BLOBS = {"SGD": 1, "Nesterov": 2, "AdaGrad": 3, "RMSProp": 3, "AdaDelta": 4, "Adam": 4}  # history, update, temporary: what a rule touches
