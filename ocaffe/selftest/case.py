"""Case: run a small net on a device and compare it with a numpy function in float64.

The outputs are compared with the function's values. The gradients are compared with central differences of the function.
`ocaffe selftest` runs the cases of layers.py and boxes.py. A test of a layer makes its own Case and calls `check` (docs/layers.md).
"""
from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cl.device import Device
from ocaffe.compiler.compile import compile_net
from ocaffe.compiler.network import phase_net
from ocaffe.formats.text import parse
from ocaffe.graph.build import build
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.ir.launch import Schedule
from ocaffe.ir.target import Target
from ocaffe.support.switches import Switches

Arrays = dict[str, np.ndarray]
TOLERANCE = 1e-4  # in units of the largest magnitude of an array, as for the golden data
ROUNDED = {"tf32": 2e-2, "fp16": 2e-2, "bf16": 1e-1}  # for operands with 11 bits of mantissa, or 8; a gradient's error accumulates over several products
STEP = 1e-6  # of the central differences
DIRECTIONS = 3  # random directions in which each gradient is compared


def layer(kind: str, bottoms: str, top: str, more: str = "") -> str:
    """Return a layer in text form, named like its first top. `bottoms` and `top` are names separated by blanks; `more` is further text of the layer."""
    bottom = "".join(f' bottom: "{name}"' for name in bottoms.split())
    tops = "".join(f' top: "{name}"' for name in top.split())
    return f'layer {{ name: "{top.split()[0]}" type: "{kind}"{bottom}{tops} {more} }}\n'


def normal(**shapes: Sequence[int]) -> Callable[[np.random.Generator], Arrays]:
    """`make` of a Case: a standard normal array of each shape. The keyword `x0` is the input x0, `y_1` is parameter 1 of layer y."""
    return lambda rng: {name.replace("_", "/"): rng.standard_normal(tuple(shape)) for name, shape in shapes.items()}


class Finding(NamedTuple):
    """The error of one array, as a fraction of the largest magnitude; `place` names the element with the largest error."""

    what: str
    error: float
    place: str = ""

    def text(self) -> str:
        """Return the finding as a line of text."""
        return f"{self.what}: off by {self.error:.2g} of the largest magnitude; {self.place}"


@dataclass(frozen=True)
class Case:
    """One comparison.

    name: names the case; its length seeds `make`.
    net: the layers in text form (`layer` writes one). An Input layer is added for each array of `make` without a slash in its name.
    make: draws the arrays from a random generator: inputs `x0`, `x1`, .. and parameters `LAYER/INDEX`. The net runs on them in float32.
    values: the reference. It gets the arrays in float64 and the device's outputs, and returns the expected outputs by name.
        The device's outputs are for layers that draw random numbers; other references ignore them.
    smooth: names of the arrays whose gradient is compared. Empty: forward only.
    phase: TRAIN or TEST.
    prepare: makes files in a temporary folder; `net` names the folder by {folder}.

    `values` must be differentiable at the arrays of `make`. Keep them away from kinks and ties, or leave them out of `smooth`.
    """

    name: str
    net: str
    make: Callable[[np.random.Generator], Arrays]
    values: Callable[[Arrays, Arrays], Arrays]
    smooth: Sequence[str] = ()
    phase: str = "TRAIN"
    prepare: Callable[[str], None] = field(default=lambda folder: None)

    def message(self, arrays: Arrays, folder: str) -> Any:
        """Return the whole net as a message."""
        inputs = "".join(
            f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {" ".join(f"dim: {n}" for n in array.shape)} }} }} }}\n'
            for name, array in arrays.items()
            if "/" not in name
        )
        layers = self.net.replace("{folder}", folder)
        return parse(f'name: "{self.name}" force_backward: {str(bool(self.smooth)).lower()}\n{inputs}{layers}', proto.NetParameter, self.name)

    def arrays(self) -> Arrays:
        """Return the inputs and parameters. Every call returns the same values."""
        return {name: np.asarray(array, np.float32) for name, array in self.make(np.random.default_rng(len(self.name))).items()}

    def launches(self, target: Target) -> Schedule:
        """Return the launches that `run` gives a device."""
        with tempfile.TemporaryDirectory() as folder:
            self.prepare(folder)
            arrays, phase = self.arrays(), getattr(proto, self.phase)
            graph = build(phase_net(self.message(arrays, folder), phase), phase, lambda source, text: None, seed=1)
            options = NetOptions(backward=phase == proto.TRAIN, keep=frozenset(name for name in arrays if "/" not in name), observed_diffs=True,
                                 prepack_weights=phase == proto.TEST)  # fmt: skip
            schedule = compile_net(graph, ParameterGroup(graph.params), target, options.holding_gradients(), Switches.read()).recording.schedule
            for node in graph.nodes:
                if node.layer.source is not None:
                    node.layer.source.close()
            return schedule

    def check(self, device: Device, tolerance: float = TOLERANCE) -> None:
        """Run on `device`; raise an AssertionError that names every array with an error above `tolerance`."""
        wrong = [finding for finding in self.run(device) if not finding.error <= tolerance]
        assert not wrong, "\n".join([f"{self.name}: not the values of the reference", *(finding.text() for finding in wrong)])

    def run(self, device: Device) -> list[Finding]:
        """Run on `device`; return the error of every output, then of every gradient."""
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
        """Compare the directional derivatives of the device's gradient with central differences of the reference, in a few random directions."""
        told, true = [], []
        for _ in range(DIRECTIONS):
            aim = rng.standard_normal(gradient.shape)
            ends = [self.values({**exact, name: exact[name] + sign * STEP * aim}, found) for sign in (1, -1)]
            true.append(sum(float(((ends[0][top] - ends[1][top]) * slope).sum()) for top, slope in slopes.items()) / (2 * STEP))
            told.append(float((gradient * aim).sum()))
        return difference(f"gradient of {name}", np.array(told), np.array(true), float(np.linalg.norm(gradient)), "in random direction {}")


def difference(what: str, found: np.ndarray, expected: np.ndarray, scale: float = 0, place: str = "at [{}]") -> Finding:
    """Return the largest difference as a fraction of the larger of `scale` and the largest expected magnitude. `place` words its index."""
    if found.shape != tuple(np.shape(expected)):
        return Finding(what, float("inf"), f"shape {found.shape}, numpy has {np.shape(expected)}")
    if not found.size:
        return Finding(what, 0.0)
    scale = max(scale, float(np.abs(expected).max()), 1e-30)
    errors = np.nan_to_num(np.abs(found.astype(np.float64) - expected) / scale, nan=np.inf, posinf=np.inf)
    at = np.unravel_index(int(errors.argmax()), errors.shape)
    return Finding(what, float(errors[at]), f"{place.format(', '.join(map(str, at)))}: {found[at]:.6g} here, {np.asarray(expected)[at]:.6g} in numpy")
