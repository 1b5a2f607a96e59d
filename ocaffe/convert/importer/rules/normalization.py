"""Rules of BatchNormalization, LRN, Softmax and similar operators."""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from ocaffe.convert.importer.builder import Builder
from ocaffe.convert.importer.graph import Node
from ocaffe.convert.importer.rules import operator
from ocaffe.convert.importer.rules.shape import flatten_to
from ocaffe.errors import shape_text


@operator("BatchNormalization")
def batch_normalization(net: Builder, node: Node) -> None:
    """Add BatchNorm and Scale.

    ONNX stores running averages. Caffe stores decaying sums, and the sum of their weights in a third blob. In Caffe this weight converges to
    1 / (1 - momentum). With that value, a new batch counts as much as in the framework that trained the net.
    """
    scale, bias, mean, variance = (net.constant(node, index).reshape(-1) for index in range(1, 5))
    net.check(node, not net.wanted & set(filter(None, node.outputs[1:])), "the net reads its running statistics", "export it for inference (net.eval())")
    momentum = node.get("momentum", 0.9)
    remembered = 0 <= momentum < 1
    weight = np.float32(1 / (1 - momentum)) if remembered else np.float32(1)
    fields = {"eps": node.get("epsilon", 1e-5)} | ({"moving_average_fraction": momentum} if remembered else {})
    blobs = [mean * weight, variance * weight, np.array([weight])]
    top = net.layer(node, "BatchNorm", [net.bottom(node)], fields, part="norm", suffix="", blobs=blobs)
    net.layer(node, "Scale", [top], {"bias_term": True}, suffix="scale", blobs=[scale, bias])


@operator("InstanceNormalization")
def instance_normalization(net: Builder, node: Node) -> None:
    """Add LayerNorm and Scale.

    PyTorch exports a group norm as an InstanceNormalization over groups. Its scale of ones is not a parameter, so it needs no Scale layer.
    """
    scale, bias = net.constant(node, 1), net.constant(node, 2)
    plain = not node.input(1).endswith("weight") and (scale == 1).all() and not bias.any()
    fields = {"axis": 2, "eps": node.get("epsilon", 1e-5)}
    top = net.layer(node, "LayerNorm", [net.bottom(node)], fields, part="" if plain else "norm", suffix="")
    if not plain:
        _affine(net, node, top, scale, bias, 1)


@operator("LayerNormalization")
def layer_normalization(net: Builder, node: Node) -> None:
    """Add LayerNorm and Scale. The scale (input 1) may be omitted: the pattern for models before opset 17 does not include it."""
    x = net.bottom(node)
    axis = node.get("axis", -1) % len(net.shape(x))
    net.check(node, not net.wanted & set(filter(None, node.outputs[1:])), "the net reads its mean or deviation")
    scale, bias = net.constant(node, 1), net.constant(node, 2)
    part = "norm" if scale is not None else ""
    top = net.layer(node, "LayerNorm", [x], {"axis": axis, "eps": node.get("epsilon", 1e-5)}, part=part, suffix="")
    if scale is not None:
        normalized = net.shape(x)[axis:]
        for name, values in (("scale", scale), ("bias", bias)):
            if values is None:
                continue
            fits = values.ndim <= len(normalized) and all(size in (1, own) for size, own in zip(values.shape[::-1], normalized[::-1]))
            fact = f"its {name} is {shape_text(values.shape)}, and it normalizes {shape_text(normalized)}"
            net.check(node, fits, fact, f"export with a {name} of {shape_text(normalized)}")
        _affine(net, node, top, np.broadcast_to(scale, normalized), None if bias is None else np.broadcast_to(bias, normalized), axis)


@operator("RMSNormalization")
def rms_normalization(net: Builder, node: Node) -> None:
    """Add RMSNorm and Scale. The scale (input 1) may be omitted: the pattern for models before opset 23 does not include it."""
    x, scale = net.bottom(node), net.constant(node, 1)
    axis = node.get("axis", -1) % len(net.shape(x))
    part = "norm" if scale is not None else ""
    top = net.layer(node, "RMSNorm", [x], {"axis": axis, "eps": node.get("epsilon", 1e-5)}, part=part, suffix="")
    if scale is not None:
        _affine(net, node, top, np.broadcast_to(scale, net.shape(x)[axis:]), None, axis)


@operator("GroupNormalization")
def group_normalization(net: Builder, node: Node) -> None:
    """Add LayerNorm over groups and a Scale. Up to opset 20 there is one scale per group, later one per channel."""
    x, groups = net.bottom(node), node.get("num_groups")
    shape = net.shape(x)
    sizes = [groups, *(net.constant(node, index, np.empty(0)).size for index in (1, 2))]
    for name, size in zip(("num_groups", "the size of its scale", "the size of its bias"), sizes):
        fact = f"{name} is {size}, which does not divide the {shape[1]} channels"
        net.check(node, size and size > 0 and shape[1] % size == 0, fact, f"export with a divisor of {shape[1]}")
    top = flatten_to(net, node, x, (shape[0], groups, math.prod(shape[1:]) // groups), "groups")
    top = net.layer(node, "LayerNorm", [top], {"axis": 2, "eps": node.get("epsilon", 1e-5)}, part="norm", suffix="")
    top = flatten_to(net, node, top, shape, "channels")
    scale, bias = (np.repeat(values, shape[1] // values.size) for values in (net.constant(node, 1), net.constant(node, 2)))
    _affine(net, node, top, scale, bias, 1)


def _affine(net: Builder, node: Node, x: str, scale: np.ndarray, bias: np.ndarray | None, axis: int) -> None:
    """Add a Scale over the axes of `scale`, starting at `axis`."""
    fields: dict[str, Any] = {name: value for name, value, default in (("axis", axis, 1), ("num_axes", scale.ndim, 1)) if value != default}
    blobs = [scale] if bias is None else [scale, bias]
    fields |= {"bias_term": True} if bias is not None else {}
    net.layer(node, "Scale", [x], fields, suffix="scale", blobs=blobs, learn=node.input(1) in net.graph.trained)


@operator("LRN")
def lrn(net: Builder, node: Node) -> None:
    fields = {"local_size": node.get("size"), "alpha": node.get("alpha", 1e-4), "beta": node.get("beta", 0.75), "k": node.get("bias", 1.0)}
    net.layer(node, "LRN", [net.bottom(node)], fields)


@operator("Softmax", "LogSoftmax")
def softmax(net: Builder, node: Node) -> None:
    """Add Softmax, and Log for LogSoftmax. Before opset 13 the softmax is over all axes from `axis` on, flattened."""
    x = net.bottom(node)
    shape, modern = net.shape(x), net.graph.opset >= 13
    axis = node.get("axis", -1 if modern else 1) % len(shape)
    joined = not modern and axis < len(shape) - 1
    if joined:
        x = net.layer(node, "Flatten", [x], {"axis": axis}, part="flat")
    logarithm = node.op == "LogSoftmax"
    top = net.layer(node, "Softmax", [x], {"axis": axis} if axis != 1 else {}, part="softmax" if logarithm or joined else "")
    if logarithm:
        top = net.layer(node, "Log", [top], part="log" if joined else "")
    if joined:
        flatten_to(net, node, top, shape)


@operator("LpNormalization")
def lp_normalization(net: Builder, node: Node) -> None:
    x = net.bottom(node)
    channel = node.get("axis", -1) % len(net.shape(x)) == 1 and node.get("p", 2) == 2
    fact = f"it has axis {node.get('axis', -1)} and p {node.get('p', 2)}; Caffe's Normalize takes p 2 along the channels, axis 1"
    net.check(node, channel, fact)
    net.layer(node, "Normalize", [x])
