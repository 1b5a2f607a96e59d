"""Rules of elementwise functions: activations, powers, logarithms."""
from __future__ import annotations

from typing import Any

import numpy as np

from ocaffe.convert.importer.builder import Builder
from ocaffe.convert.importer.graph import Node
from ocaffe.convert.importer.rules import operator
from ocaffe.errors import shape_text

FLOAT_MAX = float(np.finfo(np.float32).max)

# Operator -> Caffe's layer and {field: (ONNX attribute, its default)}
TABLE: dict[str, tuple[str, dict[str, tuple[str, Any]]]] = {
    "Relu": ("ReLU", {}),
    "LeakyRelu": ("ReLU", {"negative_slope": ("alpha", 0.01)}),
    "Elu": ("ELU", {"alpha": ("alpha", 1.0)}),
    "Sigmoid": ("Sigmoid", {}),
    "Tanh": ("TanH", {}),
    "Abs": ("AbsVal", {}),
    "Softplus": ("BNLL", {}),
    "Exp": ("Exp", {}),
    "Log": ("Log", {}),
    "Sin": ("Sin", {}),
    "Cos": ("Cos", {}),
    "HardSigmoid": ("HardSigmoid", {"alpha": ("alpha", 0.2), "beta": ("beta", 0.5)}),
    "HardSwish": ("HardSwish", {}),
    "Mish": ("Mish", {}),
    "Swish": ("Swish", {"beta": ("alpha", 1.0)}),
    "Floor": ("Floor", {}),
    "Ceil": ("Ceil", {}),
    "Round": ("Round", {}),
}
POWERS = {"Neg": {"scale": -1.0}, "Sqrt": {"power": 0.5}, "Reciprocal": {"power": -1.0}}


@operator(*TABLE)
def function(net: Builder, node: Node) -> None:
    kind, fields = TABLE[node.op]
    net.layer(node, kind, [net.bottom(node)], {field: node.get(attribute, default) for field, (attribute, default) in fields.items()})


@operator("Gelu")
def gelu(net: Builder, node: Node) -> None:
    net.layer(node, "Gelu", [net.bottom(node)], {"approximate": True} if node.get("approximate", "none") == "tanh" else {})


@operator("FakeQuantize")
def grid(net: Builder, node: Node) -> None:
    net.layer(node, "FakeQuantize", [net.bottom(node)], node.attributes, blobs=[np.array([node.get("scale")], np.float32)])


@operator(*POWERS)
def power(net: Builder, node: Node) -> None:
    net.layer(node, "Power", [net.bottom(node)], POWERS[node.op])


@operator("Sign")
def sign(net: Builder, node: Node) -> None:
    """Subtract whether -x is above 0 from whether x is."""
    x = net.bottom(node)
    above = net.layer(node, "Threshold", [x], part="above")
    top = net.layer(node, "Power", [x], {"scale": -1.0}, part="negative")
    below = net.layer(node, "Threshold", [top], part="below")
    net.layer(node, "Eltwise", [above, below], {"coeff": [1, -1]})


@operator("Clip")
def clip(net: Builder, node: Node) -> None:
    low, high = net.number(node, "min", 1), net.number(node, "max", 2)
    bounded(net, node, net.bottom(node), -FLOAT_MAX if low is None else low, FLOAT_MAX if high is None else high)


def bounded(net: Builder, node: Node, x: str, low: float, high: float) -> None:
    """Clamp x to two bounds with ReLU6, ReLU or Clip."""
    if low == 0 and high == 6:
        net.layer(node, "ReLU6", [x])
    elif low == 0 and high >= FLOAT_MAX:
        net.layer(node, "ReLU", [x])
    else:
        net.layer(node, "Clip", [x], {"min": max(low, -FLOAT_MAX), "max": min(high, FLOAT_MAX)})


@operator("PRelu")
def prelu(net: Builder, node: Node) -> None:
    """Add PReLU with one slope, or one for each channel."""
    x, slope = net.bottom(node), net.constant(node, 1)
    axes = len(net.shape(x))
    channels = net.shape(x)[1] if axes > 1 else 1
    of_channels = (1,) * (axes - slope.ndim) + slope.shape == tuple(channels if axis == 1 else 1 for axis in range(axes))
    fact = f"its slopes are {shape_text(slope.shape)}, and its input is {shape_text(net.shape(x))}"
    net.check(node, slope.size == 1 or of_channels, fact, f"export with one slope, or one for each of the {channels} channels")
    shared = slope.size == 1 and channels > 1
    net.layer(node, "PReLU", [x], {"channel_shared": True} if shared else {}, blobs=[slope.reshape(() if shared else -1)])


@operator("Selu")
def selu(net: Builder, node: Node) -> None:
    top = net.layer(node, "ELU", [net.bottom(node)], {"alpha": node.get("alpha", 1.6732632)}, part="elu")
    net.layer(node, "Power", [top], {"scale": node.get("gamma", 1.0507010)})


@operator("Celu")
def celu(net: Builder, node: Node) -> None:
    """Compute alpha ELU(x / alpha)."""
    alpha = node.get("alpha", 1.0)
    top = net.layer(node, "Power", [net.bottom(node)], {"scale": 1 / alpha}, part="narrow")
    top = net.layer(node, "ELU", [top], part="elu")
    net.layer(node, "Power", [top], {"scale": alpha})


@operator("Dropout")
def dropout(net: Builder, node: Node) -> None:
    ratio = net.number(node, "ratio", 1, 0.5)
    net.layer(node, "Dropout", [net.bottom(node)], {"dropout_ratio": ratio})
