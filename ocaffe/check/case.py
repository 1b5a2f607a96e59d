"""One comparison with numpy: a small net, its inputs, and what it must give in float64. Gradients are compared with differences of that reference."""
from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cl.device import Device
from ocaffe.model.text import parse

Arrays = dict[str, np.ndarray]
TOLERANCE = 1e-4  # of the largest magnitude of an array, as for the golden data
ROUNDED = {"tf32": 2e-2, "fp16": 2e-2, "bf16": 1e-1}  # where operands have 11 bits of mantissa, or 8; a gradient goes through several products
STEP = 1e-6  # of the differences
DIRECTIONS = 3  # random ones, in which each gradient is compared


class Finding(NamedTuple):
    """How far an array is from the reference: `error` in units of the largest magnitude; `place` names the element that is farthest."""

    what: str
    error: float
    place: str = ""


@dataclass(frozen=True)
class Case:
    """`net`: layers in text form, a blob `x0`, `x1`, .. for every input. `make(rng)` gives the inputs and parameters ('layer/0'); `values` the outputs
    for these (and for what the device found, for layers that draw). `smooth`: the inputs and parameters that have a gradient. `prepare(folder)` makes
    files, which `net` names by {folder}.
    """

    name: str
    net: str
    make: Callable[[np.random.Generator], Arrays]
    values: Callable[[Arrays, Arrays], Arrays]
    smooth: Sequence[str] = ()
    phase: str = "TRAIN"
    prepare: Callable[[str], None] = field(default=lambda folder: None)

    def message(self, arrays: Arrays, folder: str) -> Any:
        """The whole net."""
        inputs = "".join(
            f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {" ".join(f"dim: {n}" for n in array.shape)} }} }} }}\n'
            for name, array in arrays.items()
            if "/" not in name
        )
        layers = self.net.replace("{folder}", folder)
        return parse(f'name: "{self.name}" force_backward: {str(bool(self.smooth)).lower()}\n{inputs}{layers}', proto.NetParameter, self.name)

    def arrays(self) -> Arrays:
        return {name: np.asarray(array, np.float32) for name, array in self.make(np.random.default_rng(len(self.name))).items()}

    def run(self, device: Device) -> list[Finding]:
        """Forward, and backward where there are gradients."""
        with tempfile.TemporaryDirectory() as folder:
            self.prepare(folder)
            arrays = self.arrays()
            message = self.message(arrays, folder)
            inputs = [name for name in arrays if "/" not in name]
            net = Net(message, getattr(proto, self.phase), device=device, keep=inputs, seed=1)
            try:
                return self._compare(net, arrays)
            finally:
                net.close()

    def _compare(self, net: Net, arrays: Arrays) -> list[Finding]:
        for name, array in arrays.items():
            layer, _, index = name.partition("/")
            (net.params[layer][int(index)] if index else net.blobs[name]).data[...] = array
        exact = {name: array.astype(np.float64) for name, array in arrays.items()}
        found = {name: array.copy() for name, array in net.forward().items()}
        expected = self.values(exact, found)
        findings = [difference(name, found[name], value) for name, value in expected.items()]
        if not self.smooth:
            return findings
        rng = np.random.default_rng(1)
        slopes = {name: rng.standard_normal(value.shape) for name, value in expected.items()}
        net.clear_param_diffs()
        net.backward(None, None, None, **slopes)
        for name in self.smooth:
            layer, _, index = name.partition("/")
            gradient = (net.params[layer][int(index)] if index else net.blobs[name]).diff.astype(np.float64)
            findings.append(self._gradient(name, gradient, exact, found, slopes, rng))
        return findings

    def _gradient(self, name: str, gradient: np.ndarray, exact: Arrays, found: Arrays, slopes: Arrays, rng: np.random.Generator) -> Finding:
        """In a few random directions: the slope that the gradient tells, beside the slope of the reference."""
        told, true = [], []
        for _ in range(DIRECTIONS):
            aim = rng.standard_normal(gradient.shape)
            ends = [self.values({**exact, name: exact[name] + sign * STEP * aim}, found) for sign in (1, -1)]
            true.append(sum(float(((ends[0][top] - ends[1][top]) * slope).sum()) for top, slope in slopes.items()) / (2 * STEP))
            told.append(float((gradient * aim).sum()))
        return difference(f"gradient of {name}", np.array(told), np.array(true), float(np.linalg.norm(gradient)))


def difference(what: str, found: np.ndarray, expected: np.ndarray, scale: float = 0) -> Finding:
    """The largest difference, as a share of `scale` or of the largest magnitude that is expected."""
    if found.shape != tuple(np.shape(expected)):
        return Finding(what, float("inf"), f"shape {found.shape}, numpy has {np.shape(expected)}")
    if not found.size:
        return Finding(what, 0.0)
    scale = max(scale, float(np.abs(expected).max()), 1e-30)
    errors = np.nan_to_num(np.abs(found.astype(np.float64) - expected) / scale, nan=np.inf, posinf=np.inf)
    at = np.unravel_index(int(errors.argmax()), errors.shape)
    return Finding(what, float(errors[at]), f"at {[int(n) for n in at]}: {found[at]:.6g} here, {np.asarray(expected)[at]:.6g} in numpy")
