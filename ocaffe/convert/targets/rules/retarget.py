"""Make the net of a target: `retarget`."""
from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ocaffe.convert.caffe.net import Net, net_of
from ocaffe.convert.targets.rewriter import Refused, Rewriter
from ocaffe.convert.targets.table import Table
from ocaffe.errors import Error

OTHER = (43, 47, 53, 59, 61)  # batches, of which one divides no size of the inputs


@dataclass
class Retargeted:
    """The net of a target. `changed`: how many layers of each type were expressed by others. `fixed`: why it takes one batch only, or ''."""

    net: Net
    table: Table
    changed: collections.Counter[str]
    fixed: str = ""

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(self.changed.items()))
        return f"for {self.table.name}, these were expressed by its own layer types: {counts}" if counts else f"all layers are of {self.table.name}'s types"


def retarget(source: Net, table: Table, place: str, free: Sequence[str] = (), cuts: Mapping[str, Sequence[str]] | None = None) -> Retargeted:
    """Return the net with the target's layers alone. Values that it still has keep their names. Raises Refused with the first layer without a form.

    `free`: the inputs whose axis 0 is the batch. The new net then takes any batch, unless a layer fixes it. `cuts`: see `Rewriter`.
    """
    fixed = ""
    if free:
        made = _of_any_batch(source, table, place, free, cuts)
        if isinstance(made, Retargeted):
            return made
        fixed = made
    rewriter = Rewriter(source, table, place, cuts, source.shapes[free[0]][0] if free else 1)
    return Retargeted(_named(rewriter.run(), source), table, rewriter.changed, fixed)


def batch_inputs(net: Net) -> list[str]:
    """Return the inputs whose first size is that of the first input."""
    inputs = [value for layer in net.layers if layer.type == "Input" for value in layer.top]
    return [value for value in inputs if net.shapes[value][:1] == net.shapes[inputs[0]][:1] != ()]


def _of_any_batch(source: Net, table: Table, place: str, free: Sequence[str], cuts: Mapping[str, Sequence[str]] | None) -> Retargeted | str:
    """Rewrite the net for another batch, and return it with its own. Return why not, if a layer fixes the batch.

    With a batch of 1, the shapes would not tell the axis of the batch from others of size 1.
    """
    message, arrays = source.message(in_place=False), source.weights()
    sizes = {dim for layer in message.layer for shape in layer.input_param.shape for dim in shape.dim}
    size = next(size for size in OTHER if all(dim % size for dim in sizes if dim))
    own = {value: source.shapes[value][0] for value in free}
    _set_batch(message, dict.fromkeys(own, size))
    try:
        other = net_of(message, arrays, source.outputs)
    except Error as problem:
        return f"layer {problem.layer}: {problem.fact}" if problem.layer else problem.fact
    rewriter = Rewriter(other, table, place, cuts, size)
    try:
        made = rewriter.run()
    except Refused as problem:  # the target may have layers for one batch
        return f"layer {problem.layer}: {problem.fact}"
    message, arrays = made.message(in_place=False), made.weights()
    for layer in message.layer:
        if any(dim and dim % size == 0 for dim in (*layer.reshape_param.shape.dim, layer.tile_param.tiles if layer.HasField("tile_param") else 1)):
            return f"layer '{layer.name}' ({layer.type}) has the batch in its fields"
    _set_batch(message, own)
    return Retargeted(_named(net_of(message, arrays, source.outputs), source), table, rewriter.changed)


def _set_batch(message: Any, sizes: Mapping[str, int]) -> None:
    for layer in message.layer:
        for top, shape in zip(layer.top, layer.input_param.shape):
            if layer.type == "Input" and top in sizes:
                shape.dim[0] = sizes[top]


def _named(net: Net, source: Net) -> Net:
    """Give the net the name of the source, and the inputs the names of their blobs."""
    net.name, net.source_file = source.name, source.source_file
    net.blobs = {value: source.blobs.get(value, value) for layer in net.layers if layer.type == "Input" for value in layer.top}
    return net
