"""Cases for the kernels of the solvers: every rule, clipping, weight decay and the average of the weights.

Each case runs a few iterations with given gradients.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.cl.device import Device
from ocaffe.cl.session import Session
from ocaffe.compiler.compiled_nets import of_launches
from ocaffe.formats.text import parse
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.ir.graph import Parameter
from ocaffe.ir.labels import LabelRange
from ocaffe.ir.launch import Schedule
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.loss.labels import check_labels, label_guard
from ocaffe.selftest.case import Finding, difference
from ocaffe.solver.update import RULES, Updater

SHAPES = [(7, 65), (300,), (1,), (3, 2, 5, 5)]
ITERATIONS, RATE = 3, 0.1
LABELS = 300  # more than a work-group has work-items
SOLVER = "weight_decay: 0.01 momentum2: 0.99 rms_decay: 0.9 delta: 1e-6 ema_decay: 0.9 iter_size: 2"
OF_FORKS = {  # fields of NVCaffe and Intel, each with clip_gradients
    "larc: true larc_eta: 2": -1, 'larc: true larc_eta: 0.5 larc_policy: "clip" max_iter: 4 momentum_policy: "poly" max_momentum: 0.99': 5,
    "local_lr_auto: true local_gw_ratio: 0.5": -1, 'momentum_policy: "opt" max_iter: 4 weight_decay_policy: "poly" max_weight_decay: 0.1': -1,
}  # fmt: skip
State = dict[str, np.ndarray]


def changed(rule: str, s: Any, state: State, g: np.ndarray, rate: float, t: int) -> np.ndarray:
    """Return the update that is subtracted from the weights. `state` has the history h, and v for rules with two histories."""
    h, m = state["h"], s.momentum
    if rule == "SGD":
        state["h"] = m * h + rate * g
        return state["h"]
    if rule == "Nesterov":
        state["h"] = m * h + rate * g
        return (1 + m) * state["h"] - m * h
    if rule == "AdaGrad":
        state["h"] = h + g * g
        return rate * g / (np.sqrt(state["h"]) + s.delta)
    if rule == "RMSProp":
        state["h"] = s.rms_decay * h + (1 - s.rms_decay) * g * g
        return rate * g / (np.sqrt(state["h"]) + s.delta)
    if rule == "AdaDelta":
        state["h"] = m * h + (1 - m) * g * g
        step = g * np.sqrt((state["v"] + s.delta) / (state["h"] + s.delta))
        state["v"] = m * state["v"] + (1 - m) * step * step
        return rate * step
    state["h"] = m * h + (1 - m) * g
    state["v"] = s.momentum2 * state["v"] + (1 - s.momentum2) * g * g
    return rate * np.sqrt(1 - s.momentum2**t) / (1 - m**t) * state["h"] / (np.sqrt(state["v"]) + s.delta)


def _rate(s: Any, rate: float, multiplier: float, weight: float, gradient: float) -> float:
    """Return the rate of a parameter from the L2 norms of its weights and its gradient, as in NVCaffe (larc) and Intel's fork (local_lr_auto)."""
    if s.local_lr_auto:
        return rate * s.local_gw_ratio * weight / (gradient + s.weight_decay * weight)
    if s.larc:
        own = (1 - s.momentum) * s.larc_eta * weight / gradient
        return min(rate, own) if s.larc_policy == "clip" else rate * own
    return rate * multiplier


def _parameters() -> list[Parameter]:
    params = [Parameter("layer", i, shape, None, lr_mult=1 + i % 2, decay_mult=1 - i % 2) for i, shape in enumerate(SHAPES)]
    for parameter in params:
        parameter.propagate = True
    return params


@dataclass(frozen=True)
class UpdateCase:
    """One rule with L1 or L2 regularization and clipping by `clip` (negative: none).

    `guarded`: two more iterations follow. The first has a wrong label, so both change nothing.
    """

    rule: str
    kind: str
    clip: float
    guarded: bool = False
    more: str = ""  # further fields of the solver

    @property
    def name(self) -> str:
        return f"update: {self.rule}{', wrong label' if self.guarded else ''}{', ' * bool(self.more)}{self.more}"

    def record(self, target: Target, group: ParameterGroup) -> tuple[Recorder, Updater, Ref]:
        """Return the recorded update, with a check of labels if it is guarded, and the labels."""
        guard = label_guard() if self.guarded else None
        rec, updater, labels = Recorder(target, train=True), Updater(group, self.solver(), guard), Ref("labels", (LABELS,), Role.INPUT)
        if guard is not None:
            check_labels(rec, labels, LabelRange(self.name, LABELS, ignored=-1), guard, 0)
        updater(rec, group.held, rec.step)
        return rec, updater, labels

    def solver(self) -> Any:
        momentum = 0.9 if RULES[self.rule].takes_momentum else 0
        text = f'type: "{self.rule}" regularization_type: "{self.kind}" clip_gradients: {self.clip} momentum: {momentum} {SOLVER} {self.more}'
        return parse(text, proto.SolverParameter, self.name)

    def launches(self, target: Target) -> Schedule:
        """Return the launches that `run` gives a device."""
        return self.record(target, ParameterGroup(_parameters()))[0].launches

    def run(self, device: Device) -> list[Finding]:
        rng, solver = np.random.default_rng(3), self.solver()
        params = _parameters()
        group = ParameterGroup(params)
        session = Session(device)
        rec, updater, labels = self.record(device.target, group)
        assert updater.average is not None
        commands = of_launches(session, rec).commands
        session.bind([commands])
        weights = [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES]
        states: list[State] = [{"w": w.astype(np.float64), "h": np.zeros(w.shape), "v": np.zeros(w.shape), "mean": np.zeros(w.shape)} for w in weights]
        for parameter, array in zip(params, weights):
            session.write(parameter.data, array)
        for iteration in range(ITERATIONS + 2 * self.guarded):
            if self.guarded:
                session.write(labels, np.arange(LABELS) - 1 + 2 * (iteration == ITERATIONS) * np.eye(LABELS)[LABELS - 1])
            gradients = [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES]
            for gradient, offset in zip(gradients, group.offsets):
                session.write(group.held.view(gradient.shape, offset), gradient)
            commands.set_step(**updater.words(iteration, RATE), PASS=0, SAMPLE=0)
            commands.run()
            if iteration < ITERATIONS:
                self._follow(solver, states, params, gradients, iteration)
        found = {"w": group.data, "h": updater.history[0], "v": updater.history[-1], "mean": updater.average}
        names = {"w": "weights", "h": "history", "v": "second history", "mean": "average"}
        if updater.rule.histories == 1:
            del found["v"]
        return [
            difference(names[key], np.concatenate([session.read(ref.view(shape, at)).reshape(-1) for shape, at in zip(SHAPES, group.offsets)]),
                       np.concatenate([state[key].reshape(-1) for state in states]))
            for key, ref in found.items()
        ]  # fmt: skip

    def _follow(self, solver: Any, states: list[State], params: list[Parameter], gradients: list[np.ndarray], iteration: int) -> None:
        """Compute the same update in float64."""
        norm = np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in gradients))
        scale = solver.clip_gradients / norm if 0 <= solver.clip_gradients < norm else 1.0
        moment, decay = solver.momentum, solver.weight_decay
        now = type(solver)()
        now.CopyFrom(solver)
        if solver.momentum_policy == "poly":
            now.momentum = moment + (solver.max_momentum - moment) * (iteration / solver.max_iter) ** solver.momentum_power
        elif solver.momentum_policy == "opt":
            now.momentum = (1 - np.sqrt(RATE) / 2) ** 2
        if solver.weight_decay_policy == "poly":
            decay += (solver.max_weight_decay - decay) * (iteration / solver.max_iter) ** solver.weight_decay_power
        for state, parameter, gradient in zip(states, params, gradients):
            w = state["w"]
            g = gradient * scale / solver.iter_size
            rate = _rate(now, RATE, parameter.lr_mult, np.sqrt((w * w).sum()), np.sqrt((g * g).sum()))
            decayed = decay * parameter.decay_mult * (np.sign(w) if self.kind == "L1" else w)
            g = g + (0 if self.rule == "AdamW" else decayed)
            state["w"] = w - changed(self.rule, now, state, g, rate, iteration + 1) - (rate * decayed if self.rule == "AdamW" else 0)
            kept = min(solver.ema_decay, (1 + iteration) / (10 + iteration))
            state["mean"] = kept * state["mean"] + (1 - kept) * state["w"]


def cases() -> list[UpdateCase]:
    rules = [UpdateCase(rule, "L1" if index % 2 else "L2", 5 if index % 3 == 0 else -1) for index, rule in enumerate(RULES)]
    return [*rules, UpdateCase("SGD", "L2", -1, guarded=True), *(UpdateCase("SGD", "L2", clip, more=more) for more, clip in OF_FORKS.items())]
