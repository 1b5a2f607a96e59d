"""Summary of a net: shapes, parameters and multiply-accumulates of each layer, and its memory."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ocaffe import proto
from ocaffe.errors import shape_text
from ocaffe.ir.graph import Graph
from ocaffe.ir.launch import Schedule
from ocaffe.ir.tensor import Role
from ocaffe.memory.caffe_estimate import caffe_memory
from ocaffe.memory.plan import MemoryPlan
from ocaffe.memory.report import persistent, size_text


class Line(NamedTuple):
    """A layer. `parameters`: number of parameters that it owns. `macs`: multiply-accumulates of a forward pass of the batch. `bytes`: size of its tops."""

    name: str
    type: str
    shapes: list[tuple[int, ...]]
    parameters: int
    shared: bool  # it uses parameters of an earlier layer
    macs: int
    bytes: int


def lines(net: Any, graph: Graph) -> list[Line]:
    """Return the layers of `net` in order, without the inserted Splits of its graph."""
    given = {layer.name for layer in net.layer}
    found = []
    owned: set[int] = set()
    for node in graph.nodes:
        if node.name not in given:
            continue
        new = [parameter for parameter in node.params if id(parameter) not in owned]
        owned.update(map(id, new))
        names = {blob.name for blob in node.bottoms}
        size = sum(4 * top.count for top in node.tops if top.name not in names)
        shapes = [tuple(top.shape) for top in node.tops]
        found.append(Line(node.name, node.type, shapes, sum(each.count for each in new), len(new) < len(node.params), node.layer.flops() // 2, size))
    return found


def text(net: Any, graph: Graph, schedule: Schedule, plan: MemoryPlan) -> Iterator[str]:
    """Yield the lines of the table, its totals, and the memory of the net."""
    rows = lines(net, graph)
    cells = [("layer", "type", "output", "parameters", "MACs", "output bytes")]
    for row in rows:
        shapes = ", ".join(map(shape_text, row.shapes)) or "-"
        owned = f"{row.parameters:,}" if row.parameters else "shared" if row.shared else ""
        cells.append((row.name, row.type, shapes, owned, count_text(row.macs), size_text(row.bytes) if row.bytes else "in place" if row.shapes else ""))
    yield from _table(cells)
    parameters = sum(parameter.count for parameter in graph.params)
    fixed = sum(parameter.count for parameter in graph.params if not parameter.learned)
    macs = sum(row.macs for row in rows)
    batch = _batch(graph)
    yield ""
    yield f"layers       {len(rows)}"
    yield f"parameters   {parameters:,} ({size_text(4 * parameters)})" + (f", {fixed:,} of them not learned" if fixed else "")
    yield f"MACs         {count_text(macs) or '0'} forward" + (f", batch {batch}: {count_text(macs / batch)} for one" if batch > 1 else "")
    held = persistent([schedule])
    weights = held.pop(Role.PARAMETER, 0)
    train = graph.phase == proto.TRAIN
    theirs = sum(caffe_memory(graph if train else None, [] if train else [graph], 0).values())
    yield f"memory       {size_text(plan.total + weights + sum(held.values()))}: parameters {size_text(weights)}, recycled {size_text(plan.total)}, " + (
        f"other {size_text(sum(held.values()))}; Caffe takes {size_text(theirs)}"
    )


def count_text(number: float) -> str:
    """Format as in `1.43 G`; 0 gives an empty text."""
    for unit in ("", "k", "M", "G"):
        if number < 1000 or unit == "G":
            return f"{number:,.0f}" if unit == "" and number else f"{number:,.2f} {unit}" if number else ""
        number /= 1000
    raise AssertionError


def _batch(graph: Graph) -> int:
    return next((top.shape[0] for node in graph.nodes if not node.bottoms for top in node.tops if top.shape), 1)


def _table(cells: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    for row in cells:
        yield "  ".join(cell.ljust(width) if column < 3 else cell.rjust(width) for column, (cell, width) in enumerate(zip(row, widths))).rstrip()
