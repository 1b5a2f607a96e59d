"""Fold BatchNormalization and per-channel Mul and Add into the preceding convolution or product."""
from __future__ import annotations

from collections import Counter

import numpy as np

from ocaffe.onnx.graph import OnnxGraph, OnnxNode

PRODUCTS = ("Conv", "ConvTranspose", "Gemm")
Affine = tuple[np.ndarray, np.ndarray]  # scale and shift per channel


def fold(graph: OnnxGraph) -> int:
    """Fold all nodes that can be folded, in place. Values must have their final names. Return the number of removed nodes."""
    readers: dict[str, list[OnnxNode]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    uses = Counter(name for node in graph.nodes for name in node.inputs)
    gone = set[OnnxNode]()
    for node in graph.nodes:
        if node.kind not in PRODUCTS or any(name and name not in graph.constants for name in node.inputs[1:]):
            continue
        while node.outputs[0] not in graph.outputs and len(readers.get(node.outputs[0], ())) == 1:
            (after,) = readers[node.outputs[0]]
            affine = _affine(graph, after, node.outputs[0], graph.constants[node.inputs[1]].ndim, _channels(graph, node))
            if affine is None:
                break
            _merge(graph, node, affine, uses)
            node.outputs = after.outputs
            gone.add(after)
    graph.nodes[:] = [node for node in graph.nodes if node not in gone]
    return len(gone)


def _channels(graph: OnnxGraph, node: OnnxNode) -> int:
    shape = graph.constants[node.inputs[1]].shape
    if node.kind == "Conv":
        return shape[0]
    if node.kind == "ConvTranspose":
        return shape[1] * int(node.attributes.get("group", 1))
    return shape[0] if node.attributes.get("transB") else shape[1]


def _affine(graph: OnnxGraph, node: OnnxNode, x: str, rank: int, channels: int) -> Affine | None:
    """Return scale and shift that `node` applies to each channel of x (`rank` axes), or None if `node` is not affine per channel."""
    others = [graph.constants.get(name) for name in node.inputs if name != x]
    if any(other is None for other in others) or node.inputs.count(x) != 1:
        return None
    if node.kind == "BatchNormalization":
        gamma, beta, mean, variance = (np.asarray(other, np.float64) for other in others)
        scale = gamma / np.sqrt(variance + node.attributes["epsilon"])
        return scale, beta - mean * scale
    if node.kind not in ("Mul", "Add") or others[0] is None:
        return None
    shape = others[0].shape
    if others[0].ndim > rank or any(size not in (1, channels if axis == 1 else 1) for axis, size in enumerate(shape, rank - len(shape))):
        return None
    values = np.broadcast_to(others[0].astype(np.float64).reshape(-1), (channels,))
    return (values, np.zeros(channels)) if node.kind == "Mul" else (np.ones(channels), values)


def _merge(graph: OnnxGraph, node: OnnxNode, affine: Affine, uses: Counter[str]) -> None:
    scale, shift = affine
    weight = graph.constants[node.inputs[1]]
    bias = graph.constants[node.inputs[2]] if len(node.inputs) > 2 else np.zeros(len(scale))
    group = int(node.attributes.get("group", 1)) if node.kind == "ConvTranspose" else 1
    if node.kind == "ConvTranspose":  # (channels, outputs / group, ..): the outputs of a group are contiguous
        grouped = weight.reshape(group, -1, *weight.shape[1:]) * scale.reshape(group, 1, -1, *[1] * (weight.ndim - 2))
        scaled = grouped.reshape(weight.shape)
    elif node.kind == "Conv" or node.attributes.get("transB"):
        scaled = weight * scale.reshape(-1, *[1] * (weight.ndim - 1))
    else:
        scaled = weight * scale
    names = [_own(graph, node.inputs[1], uses), _own(graph, node.inputs[2] if len(node.inputs) > 2 else f"{node.layer}/folded_bias", uses)]
    graph.constants[names[0]], graph.constants[names[1]] = scaled.astype(np.float32), (bias * scale + shift).astype(np.float32)
    node.inputs[1:] = names


def _own(graph: OnnxGraph, name: str, uses: Counter[str]) -> str:
    """Return `name`, or a new name if other nodes read that constant too."""
    if uses[name] <= 1:
        uses[name] = 1
        return name
    uses[name] -= 1
    number = 1
    while f"{name}.{number}" in graph.constants:
        number += 1
    uses[f"{name}.{number}"] = 1
    return f"{name}.{number}"
