"""From a Graph to a Schedule: Refs for every blob and parameter, then the launches of all layers, forward and backward."""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from ocaffe.graph.debug import DebugInfo
from ocaffe.graph.ir import Blob, Graph, Node, Parameter, Ref, Role, Schedule, Shape
from ocaffe.graph.recorder import Recorder
from ocaffe.ops.expression import pointwise
from ocaffe.target import Target

ALL = frozenset({"*"})
PARAMETER_ALIGNMENT = 256  # elements; each parameter of a group begins at a multiple: the block of one update work-item


@dataclass(frozen=True)
class Choices:
    """What a recording may choose; everything else follows from the graph.

    `backward`: record it; `keep`: blobs that stay readable after a run (ALL = every one); `observed_diffs`: keep also their diffs and take
    the diffs of net outputs from the user; `accumulate`: add to the gradients instead of overwriting them; `hold_gradients`: they
    survive the run. `fuse`: merge what nobody looks at. `debug`: compute what debug_info shows.
    """

    backward: bool = True
    keep: frozenset[str] = frozenset()
    observed_diffs: bool = False
    accumulate: bool = False
    hold_gradients: bool = False
    fuse: bool = True
    debug: bool = False
    seed: int = 0

    def keeps(self, name: str) -> bool:
        return "*" in self.keep or name in self.keep


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


class ParameterGroup:
    """All parameters of a net in one Ref, those with a gradient first; gradients and history have the same layout (DESIGN §4.5)."""

    def __init__(self, params: Iterable[Parameter]) -> None:
        self.params = sorted(params, key=lambda parameter: not parameter.propagate)  # stable: order within stays Caffe's
        self.offsets: list[int] = []
        total = self.gradient_count = 0
        for parameter in self.params:
            self.offsets.append(total)
            total += -(-parameter.count // PARAMETER_ALIGNMENT) * PARAMETER_ALIGNMENT
            if parameter.propagate:
                self.gradient_count = total
        self.data = Ref("parameters", (total,), Role.PARAMETER, value=0)
        self.held = Ref("gradients", (self.gradient_count,), Role.GRADIENT, persist=True, value=0)
        for parameter, offset in zip(self.params, self.offsets):
            parameter.data = self.data.view(parameter.shape, offset, name=str(parameter))

    def gradients(self, choices: Choices) -> Ref:
        """The gradient Ref of a recording: a new one, or the one that survives runs; sets the parameters' diffs."""
        group = self.held if choices.hold_gradients else Ref("gradients", (self.gradient_count,), Role.GRADIENT)
        for parameter, offset in zip(self.params, self.offsets):
            parameter.diff = group.view(parameter.shape, offset, name=f"{parameter}.diff") if parameter.propagate else None
        return group


Update = Callable[[Recorder, Ref, Ref], None]  # (recorder, gradients, step) -> records the launches of a solver's update


def record(graph: Graph, group: ParameterGroup, target: Target, choices: Choices, update: Update | None = None) -> Recording:
    """The launches of `graph`: forward, then backward if chosen, then `update`. Parameters must have their data Refs."""
    rec = Recorder(target, train=choices.backward, seed=choices.seed, accumulate_gradients=choices.accumulate, fuse=choices.fuse)
    outputs = {*graph.outputs, *(top for node in graph.nodes for top in node.tops if top.loss_weight)}
    for node in graph.nodes:
        for top in node.tops:
            top.data = top.diff = None  # type: ignore[assignment]
    forward_ranges = []
    debug = DebugInfo() if choices.debug else None
    for node in graph.nodes:
        begin = len(rec.launches)
        rec.enter(node.name, "forward")
        _forward(rec, node, graph, outputs, choices)
        if debug is not None:
            debug.after_forward(rec, node)
        forward_ranges.append((begin, len(rec.launches)))
    forward_end = len(rec.launches)
    backward_ranges: dict[int, tuple[int, int]] = {}
    gradients = group.gradients(choices)
    if choices.backward:
        _share_split_diffs(graph, choices)
        for index in reversed(range(len(graph.nodes))):
            node = graph.nodes[index]
            if node.backward and node.layer.has_backward:
                begin = len(rec.launches)
                _backward(rec, node, graph, choices)
                if debug is not None:
                    debug.after_backward(rec, node)
                backward_ranges[index] = (begin, len(rec.launches))
        _zero_unwritten(rec, graph.params)
        if debug is not None:
            debug.at_the_end(rec, graph.params)
    backward_end = len(rec.launches)
    if update is not None:
        update(rec, gradients, rec.step)
    return Recording(
        rec.launches, forward_end, backward_end, forward_ranges, backward_ranges, rec.step,
        {name: blob.data for name, blob in graph.blobs.items()}, {name: blob.diff for name, blob in graph.blobs.items()},
        {name: blob.data for name, blob in graph.first.items()}, {name: blob.diff for name, blob in graph.first.items()},
        [(top.data, top.loss_weight) for node in graph.nodes for top in node.tops if top.loss_weight], debug,
    )  # fmt: skip


def _forward(rec: Recorder, node: Node, graph: Graph, outputs: Collection[Blob], choices: Choices) -> None:
    for top in node.tops:
        if node.layer.moves_data:
            if node.type == "Input":
                top.data = _held(graph, top.name, top.shape)
            elif top not in outputs and _looked_at(top, graph, choices):
                which = "first" if top is graph.first.get(top.name) else "last"
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
        if _looked_at(top, graph, choices):
            top.data.root.persist = True


def _without_elements(node: Node) -> bool:
    """Whether all bottoms are empty (a Filter selected nothing): then the layer has nothing to do, and its tops are zero where they are not empty."""
    return bool(node.bottoms) and not any(bottom.count for bottom in node.bottoms)


def _looked_at(top: Blob, graph: Graph, choices: Choices) -> bool:
    """Whether a script can reach the value: the last of a kept name is read, the first written to."""
    return choices.keeps(top.name) and top in (graph.blobs.get(top.name), graph.first.get(top.name))


def _backward(rec: Recorder, node: Node, graph: Graph, choices: Choices) -> None:
    if not any(node.propagate) and all(parameter.diff is None for parameter in node.params):
        return  # propagate_down: false on a layer that learns nothing
    rec.enter(node.name, "backward")
    for top in node.tops:
        if node.type != "Split" or top.loss_weight or top in graph.outputs or top.diff is not None:  # a Split skips tops without a diff
            _ready_top_diff(rec, top, graph, choices)
    for bottom, wanted in zip(node.bottoms, node.propagate):
        if wanted and bottom.diff is None and node.layer.moves_data:
            bottom.diff = Ref(f"{bottom.name}.diff", bottom.shape, Role.DIFF)
    rec.enter(node.name, "backward")
    if _without_elements(node):  # what its parameters miss is zeroed at the end
        for bottom, wanted in zip(node.bottoms, node.propagate):
            if wanted and bottom.diff is None:
                bottom.diff = Ref(f"{bottom.name}.diff", bottom.shape, Role.DIFF)
    else:
        node.layer.backward(rec, node.tops, node.bottoms, node.propagate)
    for bottom, wanted in zip(node.bottoms, node.propagate):
        if wanted and bottom.diff is not None and choices.observed_diffs and choices.keeps(bottom.name):
            bottom.diff.root.persist = True


def _held(graph: Graph, name: str, shape: Shape, value: float = 0) -> Ref:
    """A Ref that is set from outside and keeps what it holds when the net is recorded again."""
    return graph.held.setdefault((name, shape), Ref(name, shape, Role.INPUT, value=value))


def _ready_top_diff(rec: Recorder, top: Blob, graph: Graph, choices: Choices) -> None:
    """The diff of a top before its producer's backward: loss weight, what consumers wrote, what the user set, or zero."""
    consumed = top.diff is not None and rec.written(top.diff)
    if top.loss_weight and not consumed:
        if choices.observed_diffs:
            top.diff = _held(graph, f"{top.name}.diff", top.shape, top.loss_weight)
        else:
            top.diff = Ref(f"{top.name}.diff", top.shape, Role.CONSTANT, value=top.loss_weight)
    elif top.loss_weight:
        assert top.diff is not None
        pointwise(rec, "y0 = w", reads=[], writes=[top.diff], scalars={"w": float(top.loss_weight)})
    elif top in graph.outputs and choices.observed_diffs:
        top.diff = _held(graph, f"{top.name}.diff", top.shape)
    elif not consumed:
        if top.diff is None:
            top.diff = Ref(f"{top.name}.diff", top.shape, Role.DIFF)
        pointwise(rec, "y0 = 0", reads=[], writes=[top.diff])


def _share_split_diffs(graph: Graph, choices: Choices) -> None:
    """Accumulation instead of a diff per consumer (DESIGN §4.2): the diffs of split tops are the bottom's, the first backward overwrites.

    A top keeps a diff of its own where it is looked at, carries a loss, or is read by a layer that reads another top of the split too: a layer
    writes the diffs of its bottoms one by one and overwrites each.
    """
    for node in graph.nodes:
        if node.type != "Split" or not node.backward or not node.propagate[0]:
            continue
        bottom = node.bottoms[0]
        bottom.diff = Ref(f"{bottom.name}.diff", bottom.shape, Role.DIFF)
        served: set[Node] = set()
        for top in node.tops:
            reader = top.consumer
            writes = reader is not None and reader.backward and reader.propagate[reader.bottoms.index(top)]
            observed = choices.debug or (choices.observed_diffs and choices.keeps(top.name))
            if reader is not None and writes and not top.loss_weight and not observed and reader not in served:
                served.add(reader)
                top.diff = bottom.diff.view(top.shape, name=f"{top.name}.diff")


def _zero_unwritten(rec: Recorder, params: Iterable[Parameter]) -> None:
    """Gradients that no layer wrote (a branch without loss) are zero, not whatever lies there."""
    rec.enter("zero", "backward")
    for parameter in params:
        if parameter.diff is not None and not rec.accumulates(parameter.diff):  # in an accumulating pass it holds a sum
            pointwise(rec, "y0 = 0", reads=[], writes=[parameter.diff])
