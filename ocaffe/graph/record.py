"""From a Graph to a Schedule: Refs for every blob and parameter, then the launches of all layers, forward and backward."""
from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from ocaffe.graph.debug import DebugInfo
from ocaffe.graph.exchange import Exchanges
from ocaffe.graph.fuse_layers import fused_nodes
from ocaffe.graph.microbatch import MicrobatchedLayers
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import MAX_ROWS_BYTES, PARAMETER_ALIGNMENT, Flush, ParameterGroup
from ocaffe.graph.rounded_weights import RoundedWeights
from ocaffe.ir.graph import Blob, Graph, Node, Parameter
from ocaffe.ir.launch import Schedule
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import FLOAT, Ref, Role, Shape
from ocaffe.kernels.expression.expression import pointwise
from ocaffe.kernels.loss.labels import check_labels

# The workspace of one convolution: this share of the bytes of all blobs, but at least MIN_WORKSPACE_BYTES.
WORKSPACE_DIVISOR, MIN_WORKSPACE_BYTES = 14, 64 << 20


@dataclass(eq=False)
class Recording:
    """A schedule, the range of launches of each node in it, and the Refs of the names that a user can give."""

    schedule: Schedule
    forward_end: int  # forward is schedule[:forward_end]
    backward_end: int  # backward follows up to here; then the update, if any
    forward_ranges: list[tuple[int, int]]
    backward_ranges: dict[int, tuple[int, int]]
    step: Ref
    data: dict[str, Ref]  # the last value of each name
    diff: dict[str, Ref | None]
    first_data: dict[str, Ref]  # the first value of each name, which differs where a layer works in place
    first_diff: dict[str, Ref | None]  # of the first value that has one
    losses: list[tuple[Ref, float]]  # tops with their loss weight
    debug: DebugInfo | None = None
    blobs: dict[Blob, tuple[Ref, Ref | None]] = field(default_factory=dict)  # data and diff of every value of every name
    wrong_label: Ref | None = None  # the output of the last check of labels on the device (ocaffe/kernels/loss/labels.py)


class Update(Protocol):
    """A solver's update."""

    @property
    def can_flush(self) -> bool:
        """Whether some parameters may be updated before the gradients of others are complete: by flushes."""

    def __call__(self, rec: Recorder, gradients: Ref, step: Ref, begin: int = 0) -> None:
        """Record the launches that update, from `gradients`, the range of the group that begins at element `begin`."""


def record(graph: Graph, group: ParameterGroup, target: Target, options: NetOptions, update: Update | None = None) -> Recording:
    """The launches of `graph`: forward, then backward if chosen, then `update`. Parameters must have their data Refs.

    While the layers record, the blobs and parameters of the graph hold the Refs. The result keeps them, and the graph does not.
    """
    try:
        return _NetRecorder(graph, group, target, options, update).record()
    finally:
        graph.forget_refs()


class _NetRecorder:
    """The state of one recording."""

    def __init__(self, graph: Graph, group: ParameterGroup, target: Target, options: NetOptions, update: Update | None) -> None:
        count = sum(blob.count for blob in graph.blobs.values() if blob.producer is not None and blob.producer.bottoms)
        fed = tuple(top.shape for node in graph.nodes if not node.bottoms for top in node.tops)
        blobs = graph.counts.setdefault(fed, count) * FLOAT.itemsize  # of the first recording, so that all have the same launches before a measurement
        target = replace(target, workspace=min(target.workspace, max(MIN_WORKSPACE_BYTES, blobs // WORKSPACE_DIVISOR)))
        if options.debug or graph.message.debug_info:
            options = replace(options, debug=True, on_host=options.on_host - {Role.GRADIENT})  # its numbers need all gradients
        self.graph, self.group, self.options, self.update = graph, group, options, update
        self.rec = Recorder(target, train=options.backward, seed=graph.seed, accumulate_gradients=options.accumulate, fuse=options.fuse,
                            prepack_weights=options.prepack_weights, statistics_ranks=options.statistics_ranks,
                            on_host=options.on_host)  # fmt: skip
        self.rounded = RoundedWeights(self.rec)
        self.outputs = {*graph.outputs, *(top for node in graph.nodes for top in node.tops if top.loss_weight)}
        self.debug = DebugInfo() if options.debug else None
        self.microbatched = MicrobatchedLayers(graph, options.microbatch) if options.microbatch is not None else None
        self.microbatched_nodes = frozenset(self.microbatched.indices) if self.microbatched is not None else frozenset[int]()
        self.nodes: Sequence[Node | None] = graph.nodes
        for parameter in graph.reshaped:
            assert parameter.source is not None
            parameter.data = parameter.source.data.view(parameter.shape)
        self.wrong_label: Ref | None = None
        self.takes = self.taker()
        self.unfetched: dict[Ref, int] = {}  # ranges of held gradients whose sum is in the host's memory, each with its begin in the group
        self.exchanges = Exchanges(self.rec, options.in_flight) if options.in_flight is not None and update is not None else None
        if options.fuse and not options.debug and not any(node.unfit for node in graph.nodes):
            self.nodes = fused_nodes(graph, lambda blob: blob in self.outputs or self.is_observed(blob))

    def record(self) -> Recording:
        graph, rec = self.graph, self.rec
        forward_ranges = self.forward_pass()
        forward_end = len(rec.launches)
        gradients, flushes, in_rows = self.gradients()
        backward_ranges = self.backward_pass(flushes, updates_at_end=not flushes and not in_rows) if self.options.backward else {}
        backward_end = len(rec.launches)
        if self.update is not None and self.takes is not self.update:
            self.updated(self.update, self.group.held if self.options.hold_gradients else gradients[0], 0)
        if self.exchanges is not None:
            self.exchanges.finish(self.options.late_rows)
        if self.microbatched is not None:
            self.microbatched.end()
        return Recording(
            rec.launches, forward_end, backward_end, forward_ranges, backward_ranges, rec.step,
            {name: blob.data for name, blob in graph.blobs.items()}, {name: blob.diff for name, blob in graph.blobs.items()},
            {name: blob.data for name, blob in graph.first.items()}, self.first_diffs(),
            [(top.data, top.loss_weight) for node in graph.nodes for top in node.tops if top.loss_weight], self.debug,
            {top: (top.data, top.diff) for node in graph.nodes for top in node.tops}, self.wrong_label,
        )  # fmt: skip

    def first_diffs(self) -> dict[str, Ref | None]:
        """The diff of the first value of each name that has one: where layers work in place, Caffe's buffer has it after the backward pass."""
        diffs: dict[str, Ref | None] = {}
        for node in self.graph.nodes:
            for top in node.tops:
                if diffs.get(top.name) is None:
                    diffs[top.name] = top.diff
        return diffs

    # -- forward -----------------------------------------------------------------------------------------------------

    def forward_pass(self) -> list[tuple[int, int]]:
        """Record forward; the range of launches of each node."""
        ranges = []
        for index, node in enumerate(self.nodes):
            begin = len(self.rec.launches)
            if index in self.microbatched_nodes:
                if self.microbatched is not None and index == self.microbatched.last:
                    self.forward_in_microbatches(self.microbatched)
            elif node is not None:
                self.forward(node)
            if self.debug is not None and node is not None:
                self.debug.after_forward(self.rec, node)
            ranges.append((begin, len(self.rec.launches)))
        return ranges

    def forward_in_microbatches(self, layers: MicrobatchedLayers) -> None:
        """Record the microbatched layers once for each microbatch.

        The top of the last of these layers holds the whole batch. The other tops hold one microbatch.
        """
        layers.begin()
        layers.top.data = Ref(layers.top.name, layers.top.shape, Role.ACTIVATION)
        for number in range(layers.count):
            with layers.current(number):
                for node in layers.nodes:
                    self.forward(node)

    def forward(self, node: Node, phase: str = "forward") -> None:
        """Record one layer. In phase 'backward' its launches repeat those of forward."""
        begin = len(self.rec.launches)
        self.rec.enter(node.name, phase)
        for top in node.tops:
            if node.layer.moves_data and top.data is None:
                top.data = self.new_data(node, top)
        if _idle(node):
            for top in node.tops:
                if top.data is None:
                    top.data = Ref(top.name, top.shape, Role.ACTIVATION)
                pointwise(self.rec, "y0 = 0", writes=[top.data])
        else:
            with self.rounded.read_by(node, forward=True):
                node.layer.forward(self.rec, node.bottoms, node.tops)
            if self.rec.train and phase == "forward":
                self.check_labels(node)
        for top in node.tops:
            if top in self.outputs and top.data.root.role is Role.ACTIVATION:
                top.data.root.role = Role.OUTPUT  # also where the output is a view, for example of a reshaped blob
            if self.is_observed(top):
                top.data.root.persist = True
        for launch in self.rec.launches[begin:]:
            launch.recomputed = phase == "backward"

    def check_labels(self, node: Node) -> None:
        """Record the check of the node's labels, if no data layer checks them."""
        for number, (loss, bottom) in enumerate(self.graph.unchecked):
            if loss is node:
                assert self.graph.guard is not None
                self.wrong_label = check_labels(self.rec, node.bottoms[bottom].data, node.layer.labels[bottom], self.graph.guard, number)

    def new_data(self, node: Node, top: Blob) -> Ref:
        """The Ref of a top that its layer fills."""
        if node.type == "Input":
            return self.held(top.name, top.shape)
        if top in self.outputs or not self.is_observed(top):
            return Ref(top.name, top.shape, Role.OUTPUT if top in self.outputs else Role.ACTIVATION)
        which = "first" if top is self.graph.first.get(top.name) else "last" if top is self.graph.blobs.get(top.name) else f"of {node.name}"
        return self.graph.held.setdefault((f"{top.name} {which}", top.shape), Ref(top.name, top.shape, Role.ACTIVATION, persist=True))

    def is_observed(self, top: Blob) -> bool:
        """Whether a script can reach the value: it reads the last value of a kept name, and writes to the first."""
        options = self.options
        return options.apart or (options.keeps(top.name) and top in (self.graph.blobs.get(top.name), self.graph.first.get(top.name)))

    def is_diff_observed(self, blob: Blob) -> bool:
        """Whether a script can read the diff."""
        return self.options.observed_diffs and (self.options.apart or self.options.keeps(blob.name))

    # -- gradients ---------------------------------------------------------------------------------------------------

    def taker(self) -> Update | None:
        """Return the function that takes ranges of gradients as soon as they are complete, so that they need little memory.

        None: all stay until backward ends.
        """
        options, update = self.options, self.update
        if not options.backward or options.debug:
            return None
        if options.hold_gradients:
            return _Held(self.group.held) if Role.GRADIENT in options.on_host else None
        return update if update is not None and update.can_flush else None

    def gradients(self) -> tuple[list[Ref], dict[int, list[tuple[Flush, Ref]]], set[Parameter]]:
        """The gradient Refs; for each node the updates that follow its backward; the parameters that are updated some rows at a time."""
        options, takes, group = self.options, self.takes, self.group
        flushes: list[Flush] = []
        in_rows: set[Parameter] = set()
        if takes is not None:
            nodes = self.graph.nodes
            whole = {parameter for index, node in enumerate(nodes) if index in self.microbatched_nodes or _idle(node) for parameter in node.params}
            in_rows = group.in_rows(self.graph) - whole
            flushes = group.flushes(self.graph, in_rows)
        gradients = group.gradients(options, flushes)
        flush_after: dict[int, list[tuple[Flush, Ref]]] = defaultdict(list)
        for flush, ref in zip(flushes, gradients):
            flush_after[flush.node].append((flush, ref))
            if isinstance(takes, _Held) and options.accumulate:
                self.unfetched[ref] = flush.begin
        for parameter, offset in zip(group.params, group.offsets):
            if parameter in in_rows:
                assert takes is not None
                parameter.diff = Ref(f"{parameter}.diff", parameter.shape, Role.GRADIENT)  # says that there is one; `rows` makes its memory
                self.rec.in_rows[parameter.diff] = self.rows(takes, parameter, offset)
        for parameter in self.graph.reshaped:
            assert parameter.source is not None
            parameter.diff = parameter.source.diff.view(parameter.shape) if parameter.source.diff is not None else None
        return gradients, flush_after, in_rows

    def rows(self, update: Update, parameter: Parameter, offset: int) -> Iterator[tuple[int, Ref]]:
        """Row ranges of a large parameter, each with memory for its gradient. Each range is updated before the next one is computed."""
        rec = self.rec
        width = parameter.count // parameter.shape[0]
        step = PARAMETER_ALIGNMENT // math.gcd(width, PARAMETER_ALIGNMENT)  # rows that fill whole chunks of the update
        rows = max(step, MAX_ROWS_BYTES // (4 * width) // step * step)
        for start in range(0, parameter.shape[0], rows):
            shape = min(rows, parameter.shape[0] - start), width
            padded = -(-math.prod(shape) // PARAMETER_ALIGNMENT) * PARAMETER_ALIGNMENT
            gradient = Ref(f"{parameter}.rows", (padded,), Role.GRADIENT)
            layer, phase = rec.layer, rec.phase
            first = len(rec.launches)
            begin = offset + start * width
            if isinstance(update, _Held) and self.options.accumulate:
                rec.fetch(update.range(gradient, begin), gradient)
            yield start, gradient.view(shape)
            if self.exchanges is not None:
                self.exchanges.postpone(first, gradient, begin, partial(update, rec, gradient, rec.step, begin))
            else:
                update(rec, gradient, rec.step, begin)
            rec.enter(layer, phase)

    def updated(self, update: Update, gradients: Ref, begin: int) -> None:
        """Record the update of the range of the group that starts at element `begin`, after the exchange of its gradients if there are several ranks."""
        if self.exchanges is None or not gradients.count:
            update(self.rec, gradients, self.rec.step, begin)
        else:
            self.exchanges.add(gradients, begin, partial(update, self.rec, gradients, self.rec.step, begin))

    # -- backward ----------------------------------------------------------------------------------------------------

    def backward_pass(self, flush_after: dict[int, list[tuple[Flush, Ref]]], updates_at_end: bool) -> dict[int, tuple[int, int]]:
        """Record backward, with the updates that need not wait for its end; the range of launches of each node."""
        graph, rec = self.graph, self.rec
        ranges: dict[int, tuple[int, int]] = {}
        self.share_split_diffs(node for index, node in enumerate(graph.nodes) if index not in self.microbatched_nodes)
        for index, node in reversed(list(enumerate(self.nodes))):
            if node is not None and node.backward and node.layer.has_backward:
                begin = len(rec.launches)
                if index not in self.microbatched_nodes:
                    self.fetch_gradients([node])
                    self.backward(node)
                elif self.microbatched is not None and index == self.microbatched.last:
                    self.fetch_gradients(self.microbatched.nodes)
                    self.backward_in_microbatches(self.microbatched)
                if self.debug is not None:
                    self.debug.after_backward(rec, node)
                ranges[index] = (begin, len(rec.launches))
            for flush, ref in flush_after.get(index, ()):
                assert self.takes is not None
                self.zero_unwritten(p for p in graph.params if p.diff is not None and p.diff.root is ref)
                if ref not in self.unfetched:  # else no layer has added to it
                    self.updated(self.takes, ref, flush.begin)
            if self.exchanges is not None and not self.options.late_rows and node is not None and _learns(node):
                self.exchanges.resume(1 / sum(1 for other in self.nodes[: index + 1] if other is not None and _learns(other)))
        if updates_at_end:
            self.zero_unwritten(graph.params)
        if self.debug is not None:
            self.debug.at_the_end(rec, graph.params)
        return ranges

    def fetch_gradients(self, nodes: Iterable[Node]) -> None:
        """Record the copies from the host of the sums to which backward of these nodes adds."""
        for root in {parameter.diff.root: None for node in nodes for parameter in node.params if parameter.diff is not None}:
            if root in self.unfetched:
                assert isinstance(self.takes, _Held)
                self.rec.enter("gradients", "backward")
                self.rec.fetch(self.takes.range(root, self.unfetched.pop(root)), root)

    def backward_in_microbatches(self, layers: MicrobatchedLayers) -> None:
        """Record forward and then backward of the microbatched layers for each microbatch. Their gradients add up."""
        for number in range(layers.count):
            with layers.current(number):
                layers.top.data = None  # type: ignore[assignment]  # computed again, but no layer reads it
                for node in layers.nodes:
                    self.forward(node, "backward")
                self.share_split_diffs(layers.nodes)
                for node in reversed(layers.nodes):
                    if node.backward:
                        self.backward(node)

    def backward(self, node: Node) -> None:
        rec = self.rec
        if not any(node.propagate) and all(parameter.diff is None for parameter in node.params):
            return  # propagate_down: false on a layer that learns nothing
        rec.enter(node.name, "backward")
        for top in node.tops:
            if node.type != "Split" or top.loss_weight or top in self.graph.outputs or top.diff is not None:  # a Split skips tops without a diff
                self.prepare_top_diff(top)
        wanted = [bottom for bottom, propagate in zip(node.bottoms, node.propagate) if propagate]
        new = [bottom for bottom in wanted if bottom.diff is None and (_idle(node) or (node.layer.moves_data and not node.layer.passes_diff))]
        rec.enter(node.name, "backward")
        for bottom in new:
            bottom.diff = Ref(f"{bottom.name}.diff", bottom.shape, Role.DIFF)
            if node.unfit is not None:
                pointwise(rec, "y0 = 0", writes=[bottom.diff])
        if not _idle(node):  # else the gradients of its parameters are set to zero at the end
            with self.rounded.read_by(node, forward=False):
                node.layer.backward(rec, node.tops, node.bottoms, node.propagate)
        for bottom in wanted:
            if bottom.diff is not None and self.is_diff_observed(bottom):
                bottom.diff.root.persist = True

    def prepare_top_diff(self, top: Blob) -> None:
        """The diff of a top before its producer's backward: the loss weight, the sum of its consumers' diffs, a diff that the user set, or zero."""
        options = self.options
        consumed = top.diff is not None and self.rec.written(top.diff)
        if top.loss_weight and not consumed:
            if options.observed_diffs:
                top.diff = self.held(f"{top.name}.diff", top.shape, top.loss_weight)
            else:
                top.diff = Ref(f"{top.name}.diff", top.shape, Role.CONSTANT, value=top.loss_weight)
        elif top.loss_weight:
            assert top.diff is not None
            pointwise(self.rec, "y0 = w", reads=[], writes=[top.diff], scalars={"w": float(top.loss_weight)})
        elif top in self.graph.outputs and options.observed_diffs:
            top.diff = self.held(f"{top.name}.diff", top.shape)
        elif not consumed:
            if top.diff is None:
                top.diff = Ref(f"{top.name}.diff", top.shape, Role.DIFF, persist=options.apart or self.is_diff_observed(top))
            pointwise(self.rec, "y0 = 0", reads=[], writes=[top.diff])

    def share_split_diffs(self, nodes: Iterable[Node]) -> None:
        """Make the diffs of split tops views of the bottom's diff. The first backward overwrites it, the others add to it.

        A top keeps its own diff where a script reads it, where it carries a loss, or where one layer reads two tops of the split: a layer
        writes the diffs of its bottoms one by one and overwrites each.
        """
        for node in nodes:
            if node.type != "Split" or not node.backward or not node.propagate[0]:
                continue
            bottom = node.bottoms[0]
            bottom.diff = Ref(f"{bottom.name}.diff", bottom.shape, Role.DIFF)
            sharing: set[Node] = set()
            for top in node.tops:
                reader = top.consumer
                writes = reader is not None and reader.backward and reader.propagate[reader.bottoms.index(top)]
                observed = self.options.debug or self.is_diff_observed(top)
                if reader is not None and writes and not top.loss_weight and not observed and reader not in sharing:
                    sharing.add(reader)
                    top.diff = bottom.diff.view(top.shape, name=f"{top.name}.diff")

    def zero_unwritten(self, params: Iterable[Parameter]) -> None:
        """Set the gradients that no layer wrote (a branch without loss) to zero. In an accumulating pass they hold a sum."""
        self.rec.enter("zero", "backward")
        for parameter in params:
            if parameter.diff is not None and not self.rec.accumulates(parameter.diff):
                pointwise(self.rec, "y0 = 0", reads=[], writes=[parameter.diff])

    def held(self, name: str, shape: Shape, value: float = 0) -> Ref:
        """A Ref that is set from outside and keeps its content when the net is recorded again."""
        return self.graph.held.setdefault((name, shape), Ref(name, shape, Role.INPUT, value=value))


class _Held:
    """Takes gradients that survive the run: copies them to the host's memory."""

    can_flush = True

    def __init__(self, held: Ref) -> None:
        self.held = held

    def range(self, gradients: Ref, begin: int) -> Ref:
        """The place of gradients that start at element `begin` of the group."""
        return self.held.view(gradients.shape, begin)

    def __call__(self, rec: Recorder, gradients: Ref, step: Ref, begin: int = 0) -> None:
        if gradients.count:
            rec.enter("gradients", "backward")
            rec.store(gradients, self.range(gradients, begin))


def _learns(node: Node) -> bool:
    """Whether the layer has parameters, and backward passes it."""
    return bool(node.params) and node.backward


def _idle(node: Node) -> bool:
    """Whether all bottoms are empty (a Filter selected nothing), or the layer is unfit. Then it does nothing, and its tops and diffs are zero."""
    return node.unfit is not None or (bool(node.bottoms) and not any(bottom.count for bottom in node.bottoms))
