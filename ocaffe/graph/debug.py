"""The output of `debug_info: true`: mean magnitudes of blobs, parameters and diffs, and norms of all parameters, in Caffe's order and words.

The numbers are computed on the device between the launches of the layers. They come to the host with the outputs, so a run does not wait for them.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from ocaffe.ir.graph import Node, Parameter
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.expression.expression import pointwise, reduce
from ocaffe.support import log

Value = Callable[[Ref], np.ndarray]


@dataclass
class DebugInfo:
    """The lines of one recording, each with the Ref that holds its number; `norms`: (sum of magnitudes, sum of squares) of each parameter and its gradient."""

    forward: list[tuple[str, str, Ref]] = field(default_factory=list)
    backward: list[tuple[str, str, Ref]] = field(default_factory=list)
    norms: list[tuple[Ref, Ref]] = field(default_factory=list)

    def after_forward(self, rec: Recorder, node: Node) -> None:
        """Record the numbers of a layer's tops and parameters."""
        for top in node.tops:
            text = f"[Forward] Layer {node.name}, top blob {top.name} data: "
            self.forward.append(("net.cpp:593", text, _mean(rec, f"{top.name} forward", top.data)))
        for index, parameter in enumerate(node.params):
            text = f"[Forward] Layer {node.name}, param blob {parameter.name or index} data: "
            self.forward.append(("net.cpp:605", text, _mean(rec, f"{index} data", parameter.data)))

    def after_backward(self, rec: Recorder, node: Node) -> None:
        """Record the numbers of the diffs that a layer computed."""
        for bottom, wanted in zip(node.bottoms, node.propagate):
            if wanted and bottom.diff is not None:
                text = f"[Backward] Layer {node.name}, bottom blob {bottom.name} diff: "
                self.backward.append(("net.cpp:621", text, _mean(rec, f"{bottom.name} backward", bottom.diff)))
        for index, parameter in enumerate(node.params):
            if parameter.diff is not None:
                text = f"[Backward] Layer {node.name}, param blob {parameter.name or index} diff: "
                self.backward.append(("net.cpp:632", text, _mean(rec, f"{index} diff", parameter.diff)))

    def at_the_end(self, rec: Recorder, params: Iterable[Parameter]) -> None:
        """Record the norms of all parameters and gradients."""
        for parameter in params:
            data = _sums(rec, f"{parameter} norms", parameter.data)
            self.norms.append((data, _sums(rec, f"{parameter} gradient norms", parameter.diff)))

    def log_forward(self, value: Value) -> None:
        for source, text, ref in self.forward:
            log.info(source, f"    {text}{log.number(value(ref))}")

    def log_backward(self, value: Value) -> None:
        for source, text, ref in self.backward:
            log.info(source, f"    {text}{log.number(value(ref))}")
        if self.norms:
            (data_l1, data_l2), (diff_l1, diff_l2) = (np.sum([value(pair[i]) for pair in self.norms], axis=0) for i in (0, 1))
            l1, l2 = f"({log.number(data_l1)}, {log.number(diff_l1)})", f"({log.number(data_l2**0.5)}, {log.number(diff_l2**0.5)})"
            log.error("net.cpp:721", f"    [Backward] All net params (data, diff): L1 norm = {l1}; L2 norm = {l2}")


def _output(rec: Recorder, name: str, shape: tuple[int, ...]) -> Ref:
    return Ref(f"{rec.layer}.{name}", shape, Role.OUTPUT)


def _mean(rec: Recorder, name: str, ref: Ref) -> Ref:
    """The mean magnitude of a Ref."""
    result = _output(rec, name, ())
    if ref.shape:
        count = float(max(ref.count, 1))
        reduce(rec, "v0 = fabs(x0)", reads=[ref], writes=[result], axes=range(len(ref.shape)), finish="y0 = v0 / n", scalars={"n": count})
    else:
        pointwise(rec, "y0 = fabs(x0)", reads=[ref], writes=[result])
    return result


def _sums(rec: Recorder, name: str, ref: Ref | None) -> Ref:
    """(sum of magnitudes, sum of squares) of a Ref; zeros for none."""
    result = _output(rec, name, (2,))
    if ref is None:
        pointwise(rec, "y0 = 0", writes=[result])
        return result
    parts = [result.view((), i) for i in range(2)]
    axes = range(len(ref.shape))
    reduce(rec, "v0 = fabs(x0); v1 = x0 * x0", reads=[ref if ref.shape else ref.view((1,))], writes=parts, axes=axes or (0,), finish="y0 = v0; y1 = v1")
    return result
