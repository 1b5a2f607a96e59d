"""Random solvers: a small net, all types and policies, and the exchange of states between the two programs in both directions."""
from __future__ import annotations

import os
import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ocaffe.formats.state import read_state
from tests.oracle.judge import SAMPLES, TOLERANCE, Finding, _reach, _within, difference
from tests.oracle.oracle import Oracle
from tests.oracle.peer import Peer, Result

POLICIES: dict[str, dict[str, Any]] = {  # the fields that each needs, with their values
    "fixed": {}, "step": {"gamma": [0.5, 0.9, 0.1], "stepsize": [1, 2, 3, 5]}, "exp": {"gamma": [0.5, 0.9]},
    "inv": {"gamma": [0.5, 0.1], "power": [0.5, 0.75, 2]},
    "multistep": {"gamma": [0.5, 0.1]}, "poly": {"power": [0.5, 1, 2]}, "sigmoid": {"gamma": [0.1, 0.5], "stepsize": [1, 2, 5]},
}  # fmt: skip
TYPES: dict[str, dict[str, Any]] = {
    "SGD": {"base_lr": [0.1, 0.01, 0.5], "momentum": [0, 0.5, 0.9]}, "Nesterov": {"base_lr": [0.1, 0.01], "momentum": [0, 0.5, 0.95]},
    "AdaGrad": {"base_lr": [0.1, 0.01]}, "RMSProp": {"base_lr": [0.1, 0.01], "rms_decay": [0.9, 0.99, 0.5]},
    "AdaDelta": {"base_lr": [1, 0.5], "momentum": [0.9, 0.95]}, "Adam": {"base_lr": [0.01, 0.001], "momentum": [0.5, 0.9], "momentum2": [0.999, 0.9]},
}  # fmt: skip
BETWEEN = (
    "", "", 'layer { name: "bn" type: "BatchNorm" bottom: "c1" top: "c1" } '
    'layer { name: "sc" type: "Scale" bottom: "c1" top: "c1" scale_param { bias_term: true } }',
    'layer { name: "pr" type: "PReLU" bottom: "c1" top: "c1" }', 'layer { name: "p" type: "Pooling" bottom: "c1" top: "p" pooling_param { kernel_size: 2 } } '
    'layer { name: "up" type: "Deconvolution" bottom: "p" top: "c1b" convolution_param { num_output: 3 kernel_size: 2 } } '
    'layer { name: "e" type: "Eltwise" bottom: "c1b" bottom: "c1" top: "c1e" } layer { name: "s" type: "Silence" bottom: "c1e" }',
)  # fmt: skip


@dataclass(frozen=True)
class Training:
    """A solver, its net and its iterations, `first` to `last`, with a snapshot after `snapshot` iterations."""

    seed: int
    solver: str
    net: str
    last: int
    snapshot: int
    first: int = 0
    restore: str = ""
    debug: str = ""  # further words of OCAFFE_DEBUG

    def order(self) -> dict[str, Any]:
        inputs = {"data": ("normal", 1.0), "label": ("integers", 0, 4)}
        return {
            "kind": "solver", "seed": self.seed, "solver": self.solver, "text": self.net, "first": self.first, "last": self.last, "snapshot": self.snapshot,
            "restore": self.restore, "debug": self.debug, "inputs": inputs, "weights": {},
        }  # fmt: skip


def random_training(seed: int) -> Training:
    draw = random.Random(seed)
    kind, policy = draw.choice(list(TYPES)), draw.choice(list(POLICIES))
    fields = {name: draw.choice(options) for name, options in (TYPES[kind] | POLICIES[policy]).items()}
    if policy == "multistep":
        fields["stepvalue"] = sorted(draw.sample(range(1, 12), draw.randint(1, 3)))
    if kind in ("AdaGrad", "RMSProp", "AdaDelta", "Adam") and draw.random() < 0.7:
        fields["delta"] = draw.choice([1e-8, 1e-4, 1e-2])
    for name, share, options in (
        ("weight_decay", 0.6, [0.1, 0.01, 0.0005]), ("regularization_type", 0.5, ['"L1"', '"L2"']), ("clip_gradients", 0.4, [0.1, 1, 10]),
        ("iter_size", 0.4, [2, 3]),
    ):  # fmt: skip
        if draw.random() < share:
            fields[name] = draw.choice(options)
    named = f"solver_type: {kind.upper()}" if draw.random() < 0.15 else f'type: "{kind}"'
    lines = [f"{name}: {value}" for name, given in fields.items() for value in (given if isinstance(given, list) else [given])]
    solver = "\n".join([named, f'lr_policy: "{policy}"', *lines, "max_iter: 100 display: 0 snapshot_after_train: false solver_mode: CPU"])
    last = draw.randint(5, 14)
    return Training(seed, solver, _net(draw), last, max(1, last - 5), debug="poison" if draw.random() < 0.4 else "")


def _net(draw: random.Random) -> str:
    def rates() -> str:
        if draw.random() < 0.4:
            return ""
        return " ".join(f"param {{ lr_mult: {draw.choice([0, 1, 1, 2, 0.5])} decay_mult: {draw.choice([0, 1, 2])} }}" for _ in range(2))

    shared = draw.random() < 0.2
    names = 'param { name: "w" } param { name: "b" }' if shared else rates()
    between = draw.choice(BETWEEN)
    bias = " bias_term: false" if "BatchNorm" in between else ""  # its gradient would be rounding errors
    more = f'layer {{ name: "ip3" type: "InnerProduct" bottom: "ip2" top: "ip3" {names} inner_product_param {{ num_output: 4 }} }}' if shared else ""
    return f"""layer {{ name: "in" type: "Input" top: "data" top: "label" input_param {{ shape {{ dim: [4, 2, 5, 5] }} shape {{ dim: 4 }} }} }}
layer {{ name: "c1" type: "Convolution" bottom: "data" top: "c1" {rates() if not bias else ""} convolution_param {{ num_output: 3 kernel_size: 3{bias} }} }}
{between}
layer {{ name: "ip1" type: "InnerProduct" bottom: "c1" top: "ip1" {rates()} inner_product_param {{ num_output: 4 }} }}
layer {{ name: "r" type: "ReLU" bottom: "ip1" top: "ip1" }}
layer {{ name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2" {names} inner_product_param {{ num_output: 4 }} }}
{more}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "{'ip3' if shared else 'ip2'}" bottom: "label" top: "loss" loss_weight: {draw.choice([1, 1, 0.5])} }}
"""


def _differences(caffe: Result, ocaffe: Result, what: str) -> list[Finding]:
    if (caffe.refusal or ocaffe.refusal) and not _refuses_nan(caffe, ocaffe):
        same = caffe.refusal and ocaffe.refusal
        return [] if same else [Finding("refusal", 0, what, caffe.refusal or "runs", ocaffe.refusal or "runs")]
    found = []
    for key, array in caffe.arrays.items():
        other = ocaffe.arrays.get(key)
        if other is None and ocaffe.refusal:
            continue
        error = difference(array, other) if other is not None and other.shape == array.shape else float("inf")
        if error > TOLERANCE:
            head, name = key.split("/", 1)
            part, step = head.rsplit(" ", 1)
            found.append(Finding(f"{part} ({what})", int(step), name, array, other, error))
    return found


def _refuses_nan(caffe: Result, ocaffe: Result) -> bool:
    """Whether ocaffe alone refuses, and that is a snapshot of parameters that are NaN or infinite in Caffe, too (docs/differences.md)."""
    if caffe.refusal or not ocaffe.refusal or "no snapshot is written" not in ocaffe.refusal["message"]:
        return False
    step = ocaffe.stage.rsplit(" ", 1)[-1]
    return any(key.startswith(f"parameter {step}/") and not np.isfinite(array).all() for key, array in caffe.arrays.items())


class _Rounding:
    """The effect of rounding on a training. The real Caffe trains again with errors in parameters and inputs, because a training can be chaotic."""

    def __init__(self, oracle: Oracle, training: Training) -> None:
        self.oracle, self.training = oracle, training
        self._runs: list[tuple[dict[str, np.ndarray], list[np.ndarray]]] = []

    def runs(self) -> list[tuple[dict[str, np.ndarray], list[np.ndarray]]]:
        """Arrays and histories of the training without errors, and then of those with errors."""
        for noise in (None, *range(SAMPLES)) if not self._runs else ():
            result = self.oracle.caffe.run({**self.training.order(), "noise": noise})
            history = [] if result.refusal else [np.asarray(array, np.float32).ravel() for array in read_state(_state(result)).history]
            self._runs.append((result.arrays, history))
            self.oracle.caffe.forget(result)
        return self._runs

    def explains(self, finding: Finding) -> bool:
        """Whether the two programs are as near as rounding allows."""
        if not isinstance(finding.caffe, np.ndarray) or not isinstance(finding.ocaffe, np.ndarray) or finding.caffe.size != finding.ocaffe.size:
            return False
        (arrays, history), *samples = self.runs()
        key = f"{finding.part.split(' (')[0]} {finding.step}/{finding.name}"
        exact = (history[int(finding.name)] if finding.part == "history" else arrays[key]).ravel().astype(np.float64)
        with np.errstate(all="ignore"):
            others = [(own[int(finding.name)] if finding.part == "history" else sample[key]).ravel() for sample, own in samples]
            spread = np.max([np.abs(other - exact) for other in others])
            reach = _reach(exact, np.broadcast_to(spread, exact.shape))
        return _within(finding.caffe.ravel(), finding.ocaffe.ravel().astype(np.float64), reach)


def _state(result: Result) -> str:
    return os.path.join(result.folder, next(name for name in result.facts["files"] if name.endswith(".solverstate")))


def _states(caffe: Result, ocaffe: Result) -> list[Finding]:
    """Compare the files of the snapshots: their names, the iteration, and the history."""
    if caffe.facts["files"] != ocaffe.facts["files"]:
        return [Finding("files", 0, "", caffe.facts["files"], ocaffe.facts["files"])]
    a, b = read_state(_state(caffe)), read_state(_state(ocaffe))
    found = [Finding("files", 0, name, x, y) for name, x, y in (("iter", a.iter, b.iter), ("current_step", a.current_step, b.current_step)) if x != y]
    if len(a.history) != len(b.history):
        return [*found, Finding("files", 0, "history", len(a.history), len(b.history))]
    for number, (x, y) in enumerate(zip(a.history, b.history)):
        x, y = np.asarray(x, np.float32), np.asarray(y, np.float32)
        frozen = not y.any()  # the history of statistics (docs/differences.md)
        error = difference(x.ravel(), y.ravel()) if x.size == y.size else float("inf")
        if error > TOLERANCE and not frozen:
            found.append(Finding("history", a.iter, str(number), x, y, error))
    return found


def findings(oracle: Oracle, training: Training) -> list[Finding]:
    """Train with both programs, and go on in each from the state of the other."""
    caffe, ocaffe = oracle.caffe.run(training.order()), oracle.ocaffe.run(training.order())
    oracle.counts.solvers += 1
    oracle.counts.arrays += len(caffe.arrays)
    if _refuses_nan(caffe, ocaffe):
        oracle.counts.explained["no snapshot of NaN"] += 1
    rounding = _Rounding(oracle, training)
    found = _left(oracle, rounding, _differences(caffe, ocaffe, "training"))
    if not caffe.refusal and not ocaffe.refusal and not found:
        found += _left(oracle, rounding, _states(caffe, ocaffe))
        for peer, own, other in ((oracle.ocaffe, ocaffe, caffe), (oracle.caffe, caffe, ocaffe)):
            found += _left(oracle, rounding, _resumed(oracle, peer, training, own, other))
    for peer, result in ((oracle.caffe, caffe), (oracle.ocaffe, ocaffe)):
        peer.forget(result)
    return found


def _left(oracle: Oracle, rounding: _Rounding, found: list[Finding]) -> list[Finding]:
    """The findings that rounding does not explain."""
    left = [finding for finding in found if not rounding.explains(finding)]
    oracle.counts.rounding += len(found) - len(left)
    return left


def _resumed(oracle: Oracle, peer: Peer, training: Training, own: Result, other: Result) -> list[Finding]:
    """Go on in one program from the state of the other, and compare with its own training."""
    resumed = peer.run(replace(training, first=training.snapshot, snapshot=0, restore=_state(other)).order())
    oracle.counts.states += 1
    rest = {key: array for key, array in own.arrays.items() if int(key.split("/")[0].rsplit(" ", 1)[1]) >= training.snapshot}
    peer.forget(resumed)
    return _differences(Result(None, {}, rest), resumed, f"{peer.program} from the other's state")
