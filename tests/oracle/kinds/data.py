"""Layers that take arrays from a script, and Python layers."""
from __future__ import annotations

from typing import Any

from tests.oracle.draft import Draft, Rejected, kind

MODULE = "tests.oracle.python_layers"
CLASSES = 10  # of the labels


@kind("MemoryData")
def memory_data(net: Draft) -> None:
    """pycaffe gives arrays to the first layer of a net only. No layer works in place on the tops. Sometimes a loss reads the labels."""
    if net.memory:
        raise Rejected
    shape, batch = (net.pick(1, 3), net.random.randint(1, 6), net.random.randint(1, 6)), net.random.randint(1, 3)
    data, labels = net.add("MemoryData", [], 2, memory_data_param=dict(zip(("batch_size", "channels", "height", "width"), (batch, *shape))))
    net.read.update((data, labels))
    net.shapes.pop(labels)
    net.closed.add(labels)
    layers = [type(layer).FromString(layer.SerializeToString()) for layer in net.net.layer]
    place = next(index for index, layer in enumerate(layers) if layer.type == "MemoryData")
    net.net.ClearField("layer")
    net.net.layer.extend([layers.pop(place), *layers])
    net.memory = {"shape": [batch * net.random.randint(1, 3), *shape], "classes": CLASSES}
    if net.chance(0.4):
        scores = net.add("InnerProduct", [data], inner_product_param={"num_output": CLASSES})
        net.add("SoftmaxWithLoss", [*scores, labels], open=False)


@kind("Python", weight=4)
def python(net: Draft) -> None:
    made = net.pick("Affine", "Affine", "Product", "Gain")
    fields: dict[str, Any] = {"module": MODULE, "layer": made}
    if made == "Affine":
        fields["param_str"] = f"{net.pick(1, -2, 0.5)} {net.pick(0, 1)}"
        net.add("Python", [net.blob()], in_place=0.2, python_param=fields)
    elif made == "Gain":
        net.add("Python", [net.blob(suits=lambda shape: len(shape) > 1)], python_param=fields)
    else:
        name = net.blob()
        net.add("Python", [name, net.like(net.shapes[name])], 2, python_param=fields)
