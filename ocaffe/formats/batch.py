"""Another batch size in a net."""
from __future__ import annotations

from typing import Any

from ocaffe.formats.upgrade import upgrade_net


def batched(net: Any, batch: int) -> Any:
    """Return the net with another batch size in every data and Input layer; 0: as it is."""
    return with_batch(upgrade_net(net), batch) if batch else net


def with_batch(net: Any, batch: int) -> Any:
    """Set the batch size in every data and Input layer of an upgraded net, and return the net; 0: as it is."""
    for layer in net.layer if batch else ():
        for field, value in layer.ListFields():
            if field.name.endswith("_param") and hasattr(value, "batch_size"):
                value.batch_size = batch
        for shape in layer.input_param.shape if layer.type == "Input" else ():
            shape.dim[0] = batch
    return net
