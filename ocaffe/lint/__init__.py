"""Classic mistakes in nets and solvers: rules over messages, without a device and, where they ask for data, only if it is there.

A rule is a generator of Findings with `@net_rule` (called for each phase's net) or `@job_rule` (called once, with all nets and the solver). Its
docstring is what `ocaffe lint --rules` and docs/tools.md say of it.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ocaffe import proto
from ocaffe.errors import Place
from ocaffe.layers.base import param_field, registry
from ocaffe.model.sniff import read_text_file
from ocaffe.model.text import read_net, read_solver
from ocaffe.model.upgrade import upgrade_net, upgrade_solver
from ocaffe.network import phase_net
from ocaffe.solver.nets import net_messages

_SOLVER = re.compile(r"^\s*(net|train_net|net_param|train_net_param|base_lr|lr_policy|max_iter)\s*[:{]", re.M)
NO_EFFECT = "no-effect"  # the rule of what the upgrade of old files says
FED = ("Input", "DummyData", "Parameter")  # layers without bottoms that read no data


class Finding(NamedTuple):
    """One mistake; `rule` is its name, '' for what makes the net impossible."""

    rule: str
    place: Place
    layer: str
    fact: str
    fix: str

    def __str__(self) -> str:
        head = f"{self.place}: layer {self.layer}" if self.layer else str(self.place)
        name = f" [{self.rule}]" if self.rule else ""
        return f"{head}\n  {self.fact}{name}" + (f"\n  fix: {self.fix}" if self.fix else "")


@dataclass
class File:
    """A prototxt and the lines of its fields; `net` is as it stands there."""

    path: str
    message: Any
    lines: dict[str, int]

    def place(self, path: str, otherwise: int = 0) -> Place:
        return Place(self.path, self.lines.get(path, otherwise))


@dataclass
class View:
    """The net of one phase, upgraded and filtered. A value is (layer, top), both numbers."""

    file: File
    net: Any
    phase: int

    @property
    def layers(self) -> list[Any]:
        return list(self.net.layer)

    @property
    def train(self) -> bool:
        return self.phase == proto.TRAIN

    @cached_property
    def reads(self) -> list[list[tuple[int, int] | None]]:
        """Of each layer and bottom: the value that it reads; None: the net has no such blob."""
        last: dict[str, tuple[int, int]] = {}
        found = []
        for index, layer in enumerate(self.net.layer):
            found.append([last.get(name) for name in layer.bottom])
            last.update((name, (index, top)) for top, name in enumerate(layer.top))
        return found

    @cached_property
    def readers(self) -> dict[tuple[int, int], list[int]]:
        """Of each value: the layers that read it."""
        found: dict[tuple[int, int], list[int]] = {(i, j): [] for i, layer in enumerate(self.net.layer) for j in range(len(layer.top))}
        for index, values in enumerate(self.reads):
            for value in values:
                if value is not None:
                    found[value].append(index)
        return found

    def followers(self, index: int, top: int = 0) -> list[Any]:
        return [self.net.layer[reader] for reader in self.readers.get((index, top), ())]

    def source(self, index: int, bottom: int = 0) -> Any:
        """The layer that makes a bottom; None if nothing does."""
        value = self.reads[index][bottom] if bottom < len(self.reads[index]) else None
        return None if value is None else self.net.layer[value[0]]

    def finding(self, rule: str, layer: Any, fact: str, fix: str, path: str = "") -> Finding:
        """`path` is the field that is wrong, such as 'batch_norm_param.use_global_stats'; where it is absent, what it is missing in is pointed at."""
        number = next((number for number, each in enumerate(self.file.message.layer) if each.source_line == layer.source_line), None)
        line = 0
        while path and not line and number is not None:
            line = self.file.lines.get(f"layer[{number}].{path}", 0)
            path = path.rpartition(".")[0]
        return Finding(rule, Place(self.file.path, line or layer.source_line), f"'{layer.name}' ({layer.type})", fact, fix)

    @cached_property
    def losses(self) -> list[int]:
        return [index for index, layer in enumerate(self.net.layer) if is_loss(layer)]


@dataclass
class Job:
    """What is looked at: a solver with its nets, or the phases of one net. `solver` is None for a net."""

    views: list[View]
    solver: Any = None
    file: File | None = None
    findings: list[Finding] = field(default_factory=list)  # made while the files were read

    @property
    def training(self) -> View | None:
        return next((view for view in self.views if view.train), None)

    @property
    def tests(self) -> list[View]:
        return [view for view in self.views if not view.train]

    def finding(self, rule: str, path: str, fact: str, fix: str) -> Finding:
        assert self.file is not None
        return Finding(rule, self.file.place(path), "", fact, fix)


NetRule = Callable[[View], Iterator[Finding]]
JobRule = Callable[[Job], Iterator[Finding]]
NET_RULES: dict[str, NetRule] = {}
JOB_RULES: dict[str, JobRule] = {}


def net_rule(rule: NetRule) -> NetRule:
    NET_RULES[rule.__name__.replace("_", "-")] = rule
    return rule


def job_rule(rule: JobRule) -> JobRule:
    JOB_RULES[rule.__name__.replace("_", "-")] = rule
    return rule


def is_loss(layer: Any) -> bool:
    """Whether a layer adds to the loss."""
    if layer.loss_weight:
        return any(layer.loss_weight)
    return layer.type in registry() and registry()[layer.type].is_loss


def own_param(layer: Any) -> Any:
    """The message of the layer's own settings, such as convolution_param; None if its type has none."""
    name = param_field(layer.type)
    return getattr(layer, name) if name else None


def lint(path: str, ignore: frozenset[str] = frozenset(), level: int = 0, stages: tuple[str, ...] = ()) -> list[Finding]:
    """All findings in a net or a solver with its nets, each once, in the order of the lines. Raises Error if the file cannot be read."""
    from ocaffe.lint import net_rules, solver_rules  # noqa: F401 (they register themselves)

    job = _job(path, level, stages)
    if job.solver is not None and job.solver.weights:  # fillers do not count then
        ignore = ignore | {"weights-start-at-zero"}
    found = [] if NO_EFFECT in ignore else list(job.findings)
    for view in job.views:
        for name, rule in NET_RULES.items():
            found += rule(view) if name not in ignore else ()
    for name, check in JOB_RULES.items():
        found += check(job) if name not in ignore else ()
    return sorted(dict.fromkeys(found), key=lambda finding: (finding.place.file != path, finding.place.file, finding.place.line))


def _job(path: str, level: int, stages: tuple[str, ...]) -> Job:
    files: dict[str, File] = {}
    notes: list[Finding] = []

    def net(name: str) -> Any:
        if name not in files:
            lines: dict[str, int] = {}
            files[name] = File(name, read_net(name, lines=lines), lines)
            notes.extend(_notes(files[name]))
        return files[name].message

    def view(message: Any, phase: int) -> View:
        return View(files.get(message.source_file) or File(path, message, {}), message, phase)

    if not _is_solver(path):
        message = net(path)
        both = [view(phase_net(message, phase, level, stages), phase) for phase in (proto.TRAIN, proto.TEST)]
        return Job([each for each in both if each.phase in _phases(message, both)], findings=notes)
    lines: dict[str, int] = {}
    solver = read_solver(path, lines=lines)
    file = File(path, solver, lines)
    solver = upgrade_solver(solver)
    train, tests = net_messages(solver, net, path)
    views = [view(train(), proto.TRAIN), *(view(test(), proto.TEST) for test in tests)]
    return Job(views, solver, file, notes)


def _phases(message: Any, both: list[View]) -> set[int]:
    """The phases that a net given alone is for: those that its rules tell apart; else that of its state, of its file's name, TEST if nothing trains it."""
    train, test = both
    if [layer.source_line for layer in train.layers] != [layer.source_line for layer in test.layers]:
        return {proto.TRAIN, proto.TEST}
    if message.state.HasField("phase"):
        return {message.state.phase}
    fed = [layer.type for layer in train.layers if not layer.bottom]
    deployed = not train.losses and all(kind in FED for kind in fed)
    return {proto.TEST if deployed or re.search(r"test|val|deploy", Path(message.source_file).stem.replace("train_val", "")) else proto.TRAIN}


def _is_solver(path: str) -> bool:
    return _SOLVER.search(read_text_file(path)) is not None


def _notes(file: File) -> Iterator[Finding]:
    """What the upgrade of an old file says: fields that have no effect."""
    said: list[str] = []
    upgrade_net(file.message, said.append)
    for text in said:
        place, colon, fact = text.partition(": ")
        name, _, line = place.rpartition(":")
        if colon and line.isdigit():
            yield Finding(NO_EFFECT, Place(name, int(line)), "", fact, "")
