"""Another batch size in a net."""
from __future__ import annotations

from typing import Any

from ocaffe.model.upgrade import upgrade_net


def batched(net: Any, batch: int) -> Any:
    """Return the net with another batch size in every data and Input layer."""
    if batch:
        net = upgrade_net(net)
        for layer in net.layer:
            for field, value in layer.ListFields():
                if field.name.endswith("_param") and hasattr(value, "batch_size"):
                    value.batch_size = batch
            for shape in layer.input_param.shape if layer.type == "Input" else ():
                shape.dim[0] = batch
    return net
