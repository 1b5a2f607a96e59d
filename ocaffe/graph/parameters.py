"""ParameterGroup: all parameters of a net in one buffer, and where in backward each part of them can be updated."""
from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ocaffe.graph.options import NetOptions
from ocaffe.ir.graph import Graph, Parameter
from ocaffe.ir.tensor import Ref, Role

MIN_FLUSH_BYTES = 8 << 20  # bytes of gradients that are worth an update launch of their own
MAX_ROWS_BYTES = 16 << 20  # bytes of the gradient of a large fully connected layer that are computed and used at a time
PARAMETER_ALIGNMENT = 256  # elements; each parameter of a group begins at a multiple: the block of one update work-item


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

    def gradients(self, options: NetOptions, flushes: Sequence[Flush] = ()) -> list[Ref]:
        """The gradient Refs of a recording: the one that survives runs, or a new one for each flush (one for all); sets the parameters' diffs."""
        if options.hold_gradients:
            parts, groups = [Flush(0, 0, self.gradient_count)], [self.held]
        else:
            parts = list(flushes) or [Flush(0, 0, self.gradient_count)]
            groups = [Ref(f"gradients{i or ''}", (part.end - part.begin,), Role.GRADIENT) for i, part in enumerate(parts)]
        for parameter, offset in zip(self.params, self.offsets):
            parameter.diff = None
            for part, group in zip(parts, groups):
                if parameter.propagate and part.begin <= offset < part.end:
                    parameter.diff = group.view(parameter.shape, offset - part.begin, name=f"{parameter}.diff")
        return groups

    def flushes(self, graph: Graph, in_rows: Collection[Parameter]) -> list[Flush]:
        """Where in backward parameters can be updated: as early as MIN_FLUSH_BYTES bytes of gradients are complete. Those `in_rows` update themselves.

        Each flush is a range of the group, which is in the order of the net, so that backward completes it from the end on. A parameter is complete
        after the earliest layer that uses it.
        """
        complete: dict[Parameter, int] = {}
        for index, node in reversed(list(enumerate(graph.nodes))):
            if node.backward:
                complete.update(dict.fromkeys(node.params, index))
        waiting = [(parameter, offset) for parameter, offset in zip(self.params, self.offsets) if parameter.propagate]
        result: list[Flush] = []
        begin = end = self.gradient_count
        for index in reversed(range(len(graph.nodes))):
            while waiting and complete.get(waiting[-1][0], index) >= index:
                parameter, offset = waiting.pop()
                if parameter not in in_rows:
                    begin = offset
                    continue
                if begin < end:
                    result.append(Flush(index, begin, end))
                begin = end = offset
            if begin < end and (4 * (end - begin) >= MIN_FLUSH_BYTES or not waiting):
                result.append(Flush(index, begin, end))
                end = begin
        return result

    def in_rows(self, graph: Graph) -> set[Parameter]:
        """Large parameters whose layer gives the gradient some rows at a time."""
        able = {p for node in graph.nodes if node.backward and node.layer.gradient_in_rows for p in node.params[:1]}
        return {p for p in able if p.propagate and len(p.users) == 1 and 4 * p.count >= 2 * MAX_ROWS_BYTES}


@dataclass(frozen=True)
class Flush:
    """After backward of node `node`, the elements [begin, end) of the parameter group are updated."""

    node: int
    begin: int
    end: int
