"""BatchNormalization, LRN, Softmax and their kin."""
from __future__ import annotations

import numpy as np

from ocaffe.onnx.importer.builder import Builder
from ocaffe.onnx.importer.graph import Node
from ocaffe.onnx.importer.rules import operator
from ocaffe.onnx.importer.rules.shape import flatten_to


@operator("BatchNormalization")
def batch_normalization(net: Builder, node: Node) -> None:
    """BatchNorm and Scale. ONNX keeps averages, Caffe sums of which each step forgets a part, and their weight in a third blob. A weight of
    1 / (1 - momentum), what it tends to in Caffe, makes each later batch count as it did where the net was trained."""
    scale, bias, mean, variance = (net.constant(node, index).reshape(-1) for index in range(1, 5))
    net.check(node, not any(node.outputs[1:]) or not set(node.outputs[1:]) & _read(net), "the net reads its running statistics", "export it for inference")
    momentum = node.get("momentum", 0.9)
    remembered = 0 <= momentum < 1
    weight = np.float32(1 / (1 - momentum)) if remembered else np.float32(1)
    fields = {"eps": node.get("epsilon", 1e-5)} | ({"moving_average_fraction": momentum} if remembered else {})
    blobs = [mean * weight, variance * weight, np.array([weight])]
    top = net.layer(node, "BatchNorm", [net.bottom(node)], fields, part="norm", suffix="", blobs=blobs)
    net.layer(node, "Scale", [top], {"bias_term": True}, suffix="scale", blobs=[scale, bias])


def _read(net: Builder) -> set[str]:
    return {name for node in net.graph.nodes for name in node.inputs} | set(net.graph.outputs)


@operator("LRN")
def lrn(net: Builder, node: Node) -> None:
    fields = {"local_size": node.get("size"), "alpha": node.get("alpha", 1e-4), "beta": node.get("beta", 0.75), "k": node.get("bias", 1.0)}
    net.layer(node, "LRN", [net.bottom(node)], fields)


@operator("Softmax", "LogSoftmax")
def softmax(net: Builder, node: Node) -> None:
    """Before opset 13 all axes from `axis` on were one."""
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
    fact = f"axis {node.get('axis', -1)}, p {node.get('p', 2)}: Caffe's Normalize takes p 2 along the channels"
    net.check(node, channel, fact, "--cut_at with a tensor before it")
    net.layer(node, "Normalize", [x])


@operator("ArgMax")
def argmax(net: Builder, node: Node) -> None:
    x = net.bottom(node)
    axis = node.get("axis", 0) % len(net.shape(x))
    kept = node.get("keepdims", 1)
    top = net.layer(node, "ArgMax", [x], {"axis": axis}, part="" if kept else "index")
    if not kept:
        flatten_to(net, node, top, net.output_shape(node))
