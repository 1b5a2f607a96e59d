"""ParameterGroup: all parameters of a net in one buffer, and the points in backward at which ranges of it can be updated."""
from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ocaffe.graph.options import NetOptions
from ocaffe.ir.graph import Graph, Parameter
from ocaffe.ir.tensor import Ref, Role

MIN_FLUSH_BYTES = 8 << 20  # bytes of gradients from which on a separate update launch pays off
MAX_ROWS_BYTES = 16 << 20  # bytes of the gradient of a large fully connected layer that are computed and used at a time
PARAMETER_ALIGNMENT = 256  # elements; each parameter begins at a multiple, so that one update work-item handles one parameter


class ParameterGroup:
    """All parameters of a net in one Ref, those with a gradient first. Gradients and history have the same layout."""

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
        """The gradient Refs of a recording, and the parameters' diffs as views of them.

        There is one Ref for each flush, or one for all parameters; with `hold_gradients` and no flush it is the one that survives runs.
        """
        if options.hold_gradients and Role.GRADIENT not in options.on_host:
            ranges, groups = [Flush(0, 0, self.gradient_count)], [self.held]
        else:
            ranges = list(flushes) or [Flush(0, 0, self.gradient_count)]
            groups = [Ref(f"gradients{i or ''}", (each.end - each.begin,), Role.GRADIENT) for i, each in enumerate(ranges)]
        for parameter, offset in zip(self.params, self.offsets):
            parameter.diff = None
            for each, group in zip(ranges, groups):
                if parameter.propagate and each.begin <= offset < each.end:
                    parameter.diff = group.view(parameter.shape, offset - each.begin, name=f"{parameter}.diff")
        return groups

    def held_gradient(self, parameter: Parameter) -> Ref | None:
        """The gradient of a parameter that survives runs; None: the net computes none. A TEST net of a solver computes none for shared parameters."""
        if not parameter.propagate or parameter not in self.params:
            return None
        return self.held.view(parameter.shape, self.offsets[self.params.index(parameter)], name=f"{parameter}.diff")

    def flushes(self, graph: Graph, in_rows: Collection[Parameter]) -> list[Flush]:
        """The points in backward at which parameters can be updated: as soon as MIN_FLUSH_BYTES of gradients are complete.

        Each flush is a range of the group. The group is in the order of the net, so backward completes it from its end. A parameter is complete
        after the earliest layer that uses it. Parameters `in_rows` are updated by themselves.
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
        """Large parameters whose layer computes the gradient some rows at a time."""
        able = {p for node in graph.nodes if node.backward and node.layer.gradient_in_rows for p in node.params[:1]}
        return {p for p in able if p.propagate and len(p.users) == 1 and 4 * p.count >= 2 * MAX_ROWS_BYTES}


@dataclass(frozen=True)
class Flush:
    """An update: after backward of node `node`, elements [begin, end) of the parameter group are updated."""

    node: int
    begin: int
    end: int
