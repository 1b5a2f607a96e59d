"""From a Graph to a Schedule: Refs for every blob and parameter, then the launches of all layers, forward and backward."""
from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ocaffe.graph.debug import DebugInfo
from ocaffe.graph.fuse_layers import fused_nodes
from ocaffe.graph.microbatch import MicrobatchedPart
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import MAX_ROWS_BYTES, PARAMETER_ALIGNMENT, Flush, ParameterGroup
from ocaffe.ir.graph import Blob, Graph, Node, Parameter
from ocaffe.ir.launch import Schedule
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import FLOAT, Ref, Role, Shape
from ocaffe.ops.expression import pointwise

WORKSPACE_DIVISOR, MIN_WORKSPACE_BYTES = 14, 64 << 20  # what one convolution may take: this part of the bytes that all layers make, but 64 MiB at any rate


@dataclass(eq=False)
class Recording:
    """A schedule, where the launches of each node lie in it, and the Refs of what the user can name."""

    schedule: Schedule
    forward_end: int  # forward is schedule[:forward_end]
    backward_end: int  # backward follows up to here; then the update, if any
    forward_ranges: list[tuple[int, int]]
    backward_ranges: dict[int, tuple[int, int]]
    step: Ref
    data: dict[str, Ref]  # the last value of each name
    diff: dict[str, Ref | None]
    first_data: dict[str, Ref]  # the first value of each name, which differs where a layer works in place
    first_diff: dict[str, Ref | None]
    losses: list[tuple[Ref, float]]  # tops with their loss weight
    debug: DebugInfo | None = None
    blobs: dict[Blob, tuple[Ref, Ref | None]] = field(default_factory=dict)  # data and diff of every value of every name


class Update(Protocol):
    """A solver's update."""

    @property
    def in_parts(self) -> bool:
        """Whether parameters may be updated one after another."""

    def __call__(self, rec: Recorder, gradients: Ref, step: Ref, begin: int = 0) -> None:
        """Record the launches that update, from `gradients`, the part of the group that begins at element `begin`."""


def _rows(rec: Recorder, update: Update | None, parameter: Parameter, offset: int) -> Iterator[tuple[int, Ref]]:
    """Row ranges of a large parameter, each with memory for its gradient; the parameter is updated from one before the next is asked for."""
    assert update is not None
    width = parameter.count // parameter.shape[0]
    step = PARAMETER_ALIGNMENT // math.gcd(width, PARAMETER_ALIGNMENT)  # rows that fill whole blocks of the update
    rows = max(step, MAX_ROWS_BYTES // (4 * width) // step * step)
    for start in range(0, parameter.shape[0], rows):
        shape = min(rows, parameter.shape[0] - start), width
        padded = -(-math.prod(shape) // PARAMETER_ALIGNMENT) * PARAMETER_ALIGNMENT
        part = Ref(f"{parameter}.rows", (padded,), Role.GRADIENT)
        layer, phase = rec.layer, rec.phase
        yield start, part.view(shape)
        update(rec, part, rec.step, offset + start * width)
        rec.enter(layer, phase)


def record(graph: Graph, group: ParameterGroup, target: Target, options: NetOptions, update: Update | None = None) -> Recording:
    """The launches of `graph`: forward, then backward if chosen, then `update`. Parameters must have their data Refs."""
    blobs = sum(blob.count for blob in graph.blobs.values() if blob.producer is not None and blob.producer.bottoms) * FLOAT.itemsize
    target = replace(target, workspace=min(target.workspace, max(MIN_WORKSPACE_BYTES, blobs // WORKSPACE_DIVISOR)))
    rec = Recorder(target, train=options.backward, seed=options.seed, accumulate_gradients=options.accumulate, fuse=options.fuse,
                   prepack_weights=options.prepack_weights)  # fmt: skip
    outputs = {*graph.outputs, *(top for node in graph.nodes for top in node.tops if top.loss_weight)}
    for each in graph.nodes:
        for top in each.tops:
            top.data = top.diff = None  # type: ignore[assignment]
    forward_ranges = []
    debug = DebugInfo() if options.debug else None
    pieces = MicrobatchedPart(graph, options.microbatch) if options.microbatch is not None else None
    split = frozenset(pieces.indices) if pieces is not None else frozenset[int]()
    merging = options.fuse and not options.debug
    nodes: Sequence[Node | None] = graph.nodes
    if merging:
        nodes = fused_nodes(graph, lambda blob: blob in outputs or _looked_at(blob, graph, options))
    for index, node in enumerate(nodes):
        begin = len(rec.launches)
        if index in split:
            if pieces is not None and index == pieces.last:
                _pieces_forward(rec, pieces, graph, outputs, options)
        elif node is not None:
            _forward(rec, node, graph, outputs, options)
        if debug is not None and node is not None:
            debug.after_forward(rec, node)
        forward_ranges.append((begin, len(rec.launches)))
    forward_end = len(rec.launches)
    backward_ranges: dict[int, tuple[int, int]] = {}
    flushes: list[Flush] = []
    large: set[Parameter] = set()
    if update is not None and options.backward and not (options.hold_gradients or options.debug) and update.in_parts:
        large = {parameter for parameter in group.in_rows(graph) if all(parameter not in graph.nodes[index].params for index in split)}
        flushes = group.flushes(graph, large)
    gradients = group.gradients(options, flushes)
    flush_after: dict[int, list[tuple[Flush, Ref]]] = defaultdict(list)
    for flush, ref in zip(flushes, gradients):
        flush_after[flush.node].append((flush, ref))
    for parameter, offset in zip(group.params, group.offsets):
        if parameter in large:
            parameter.diff = Ref(f"{parameter}.diff", parameter.shape, Role.GRADIENT)  # tells that there is one; `gradient_rows` makes the memory
            rec.in_rows[parameter.diff] = _rows(rec, update, parameter, offset)
    if options.backward:
        _share_split_diffs([node for index, node in enumerate(graph.nodes) if index not in split], options)
        for index, node in reversed(list(enumerate(nodes))):
            if node is not None and node.backward and node.layer.has_backward:
                begin = len(rec.launches)
                if index not in split:
                    _backward(rec, node, graph, options)
                elif pieces is not None and index == pieces.last:
                    _pieces_backward(rec, pieces, graph, outputs, options)
                if debug is not None:
                    debug.after_backward(rec, node)
                backward_ranges[index] = (begin, len(rec.launches))
            for flush, ref in flush_after[index]:
                assert update is not None
                _zero_unwritten(rec, [p for p in graph.params if p.diff is not None and p.diff.root is ref])
                update(rec, ref, rec.step, flush.begin)
        if not flushes and not large:
            _zero_unwritten(rec, graph.params)
        if debug is not None:
            debug.at_the_end(rec, graph.params)
    backward_end = len(rec.launches)
    if update is not None and not flushes and not large:
        update(rec, gradients[0], rec.step, 0)
    if pieces is not None:
        pieces.end()
    return Recording(
        rec.launches, forward_end, backward_end, forward_ranges, backward_ranges, rec.step,
        {name: blob.data for name, blob in graph.blobs.items()}, {name: blob.diff for name, blob in graph.blobs.items()},
        {name: blob.data for name, blob in graph.first.items()}, {name: blob.diff for name, blob in graph.first.items()},
        [(top.data, top.loss_weight) for node in graph.nodes for top in node.tops if top.loss_weight], debug,
        {top: (top.data, top.diff) for node in graph.nodes for top in node.tops},
    )  # fmt: skip


def _pieces_forward(rec: Recorder, pieces: MicrobatchedPart, graph: Graph, outputs: Collection[Blob], options: NetOptions) -> None:
    """Make the cut, some samples after the other."""
    pieces.begin()
    pieces.top.data = Ref(pieces.top.name, pieces.top.shape, Role.ACTIVATION)
    for number in range(pieces.count):
        with pieces.piece(number):
            for node in pieces.nodes:
                _forward(rec, node, graph, outputs, options)


def _pieces_backward(rec: Recorder, pieces: MicrobatchedPart, graph: Graph, outputs: Collection[Blob], options: NetOptions) -> None:
    """The gradients of what makes the cut, from the diff of the cut: each piece runs forward again, then back."""
    for number in range(pieces.count):
        with pieces.piece(number):
            pieces.top.data = None  # type: ignore[assignment]  # made once more, for nobody
            for node in pieces.nodes:
                _forward(rec, node, graph, outputs, options, "backward")
            _share_split_diffs(pieces.nodes, options)
            for node in reversed(pieces.nodes):
                if node.backward:
                    _backward(rec, node, graph, options)


def _forward(rec: Recorder, node: Node, graph: Graph, outputs: Collection[Blob], options: NetOptions, phase: str = "forward") -> None:
    begin = len(rec.launches)
    rec.enter(node.name, phase)
    for top in node.tops:
        if node.layer.moves_data and top.data is None:
            if node.type == "Input":
                top.data = _held(graph, top.name, top.shape)
            elif top not in outputs and _looked_at(top, graph, options):
                which = "first" if top is graph.first.get(top.name) else "last" if top is graph.blobs.get(top.name) else f"of {node.name}"
                top.data = graph.held.setdefault((f"{top.name} {which}", top.shape), Ref(top.name, top.shape, Role.ACTIVATION, persist=True))
            else:
                top.data = Ref(top.name, top.shape, Role.OUTPUT if top in outputs else Role.ACTIVATION)
    if _without_elements(node):
        for top in node.tops:
            if top.data is None:
                top.data = Ref(top.name, top.shape, Role.ACTIVATION)
            pointwise(rec, "y0 = 0", writes=[top.data])
    else:
        node.layer.forward(rec, node.bottoms, node.tops)
    for top in node.tops:
        if top in outputs and top.data.root.role is Role.ACTIVATION:
            top.data.root.role = Role.OUTPUT  # also where the output is a view, for example of what was reshaped
        if _looked_at(top, graph, options):
            top.data.root.persist = True
    for launch in rec.launches[begin:]:
        launch.recomputed = phase == "backward"


def _without_elements(node: Node) -> bool:
    """Whether all bottoms are empty (a Filter selected nothing): then the layer has nothing to do, and its tops are zero where they are not empty."""
    return bool(node.bottoms) and not any(bottom.count for bottom in node.bottoms)


def _looked_at(top: Blob, graph: Graph, options: NetOptions) -> bool:
    """Whether a script can reach the value: the last of a kept name is read, the first written to."""
    return options.apart or (options.keeps(top.name) and top in (graph.blobs.get(top.name), graph.first.get(top.name)))


def _backward(rec: Recorder, node: Node, graph: Graph, options: NetOptions) -> None:
    if not any(node.propagate) and all(parameter.diff is None for parameter in node.params):
        return  # propagate_down: false on a layer that learns nothing
    rec.enter(node.name, "backward")
    for top in node.tops:
        if node.type != "Split" or top.loss_weight or top in graph.outputs or top.diff is not None:  # a Split skips tops without a diff
            _ready_top_diff(rec, top, graph, options)
    for bottom, wanted in zip(node.bottoms, node.propagate):
        if wanted and bottom.diff is None and node.layer.moves_data and not node.layer.passes_diff:
            bottom.diff = Ref(f"{bottom.name}.diff", bottom.shape, Role.DIFF)
    rec.enter(node.name, "backward")
    if _without_elements(node):  # what its parameters miss is zeroed at the end
        for bottom, wanted in zip(node.bottoms, node.propagate):
            if wanted and bottom.diff is None:
                bottom.diff = Ref(f"{bottom.name}.diff", bottom.shape, Role.DIFF)
    else:
        node.layer.backward(rec, node.tops, node.bottoms, node.propagate)
    for bottom, wanted in zip(node.bottoms, node.propagate):
        if wanted and bottom.diff is not None and options.observed_diffs and (options.apart or options.keeps(bottom.name)):
            bottom.diff.root.persist = True


def _held(graph: Graph, name: str, shape: Shape, value: float = 0) -> Ref:
    """A Ref that is set from outside and keeps what it holds when the net is recorded again."""
    return graph.held.setdefault((name, shape), Ref(name, shape, Role.INPUT, value=value))


def _ready_top_diff(rec: Recorder, top: Blob, graph: Graph, options: NetOptions) -> None:
    """The diff of a top before its producer's backward: loss weight, what consumers wrote, what the user set, or zero."""
    consumed = top.diff is not None and rec.written(top.diff)
    if top.loss_weight and not consumed:
        if options.observed_diffs:
            top.diff = _held(graph, f"{top.name}.diff", top.shape, top.loss_weight)
        else:
            top.diff = Ref(f"{top.name}.diff", top.shape, Role.CONSTANT, value=top.loss_weight)
    elif top.loss_weight:
        assert top.diff is not None
        pointwise(rec, "y0 = w", reads=[], writes=[top.diff], scalars={"w": float(top.loss_weight)})
    elif top in graph.outputs and options.observed_diffs:
        top.diff = _held(graph, f"{top.name}.diff", top.shape)
    elif not consumed:
        if top.diff is None:
            top.diff = Ref(f"{top.name}.diff", top.shape, Role.DIFF, persist=options.apart)
        pointwise(rec, "y0 = 0", reads=[], writes=[top.diff])


def _share_split_diffs(nodes: Iterable[Node], options: NetOptions) -> None:
    """Accumulation instead of a diff per consumer (DESIGN §4.2): the diffs of split tops are the bottom's, the first backward overwrites.

    A top keeps a diff of its own where it is looked at, carries a loss, or is read by a layer that reads another top of the split too: a layer
    writes the diffs of its bottoms one by one and overwrites each.
    """
    for node in nodes:
        if node.type != "Split" or not node.backward or not node.propagate[0]:
            continue
        bottom = node.bottoms[0]
        bottom.diff = Ref(f"{bottom.name}.diff", bottom.shape, Role.DIFF)
        served: set[Node] = set()
        for top in node.tops:
            reader = top.consumer
            writes = reader is not None and reader.backward and reader.propagate[reader.bottoms.index(top)]
            observed = options.debug or (options.observed_diffs and (options.apart or options.keeps(top.name)))
            if reader is not None and writes and not top.loss_weight and not observed and reader not in served:
                served.add(reader)
                top.diff = bottom.diff.view(top.shape, name=f"{top.name}.diff")


def _zero_unwritten(rec: Recorder, params: Iterable[Parameter]) -> None:
    """Gradients that no layer wrote (a branch without loss) are zero, not whatever lies there."""
    rec.enter("zero", "backward")
    for parameter in params:
        if parameter.diff is not None and not rec.accumulates(parameter.diff):  # in an accumulating pass it holds a sum
            pointwise(rec, "y0 = 0", reads=[], writes=[parameter.diff])
