"""Finds common mistakes in nets and solvers. The rules work on messages and need no device. Rules about data are skipped if the data is missing.

A rule is a generator of Findings with `@net_rule` (called for each phase's net) or `@job_rule` (called once, with all nets and the solver).
`ocaffe lint --rules` prints the rule's docstring, and docs/tools.md repeats it.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ocaffe import proto
from ocaffe.compiler.network import phase_net
from ocaffe.convert.deploy import DATA, add_missing
from ocaffe.convert.targets.table import Table
from ocaffe.data.databases.assumed import image_of
from ocaffe.errors import Error, Place
from ocaffe.formats.sniff import read_text_file
from ocaffe.formats.states import check_stages
from ocaffe.formats.text import read_net, read_solver
from ocaffe.formats.upgrade import upgrade_net, upgrade_solver
from ocaffe.layers.base import layer_type
from ocaffe.lint import boxes, detectors, learning, net_rules, priors, refusals, solver_rules  # noqa: F401 (this registers their rules)
from ocaffe.lint.rules import FED as FED
from ocaffe.lint.rules import JOB_RULES as JOB_RULES
from ocaffe.lint.rules import NET_RULES as NET_RULES
from ocaffe.lint.rules import NO_EFFECT as NO_EFFECT
from ocaffe.lint.rules import File as File
from ocaffe.lint.rules import Finding as Finding
from ocaffe.lint.rules import Job as Job
from ocaffe.lint.rules import View as View
from ocaffe.lint.rules import is_loss as is_loss
from ocaffe.lint.rules import job_rule as job_rule
from ocaffe.lint.rules import net_rule as net_rule
from ocaffe.lint.rules import own_param as own_param
from ocaffe.lint.targets import RULE as TARGET
from ocaffe.lint.targets import check_target
from ocaffe.lint.weights import RULE as WEIGHTS
from ocaffe.lint.weights import check_weights
from ocaffe.solver.nets import net_messages
from ocaffe.support.whole import whole

_SOLVER = re.compile(r"(?<!\w)(net|train_net|net_param|train_net_param|base_lr|lr_policy|max_iter)\s*[:{]")
_QUIET = re.compile(r"#[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'")  # comments and strings
_INNER = re.compile(r"\{[^{}]*\}")  # a message without messages in it


Prepare = Callable[[Any, int], Any]


def lint(
    path: str, ignore: frozenset[str] = frozenset(), level: int = 0, stages: tuple[str, ...] = (), weights: str = "", prepare: Prepare | None = None,
    target: Table | None = None,
) -> list[Finding]:  # fmt: skip
    """Return all findings in a net, or in a solver and its nets, each once and in the order of lines. Raise Error if the file cannot be read.

    `weights`: a weights file to compare with the net. `target`: the table of a compiler that shall read the net. `prepare` returns a changed net for a
    phase, as --imdb and --cfg of `ocaffe train` change it.
    """
    job = _job(path, level, stages, prepare)
    if job.solver is not None and job.solver.weights:  # the initial weights then come from files, not from fillers
        ignore = ignore | {"weights-start-at-zero"}
    found = [] if NO_EFFECT in ignore else list(job.findings)
    for view in job.views:
        for name, rule in NET_RULES.items():
            found += _findings(rule, view, view.file.path) if name not in ignore else ()
    for name, check in JOB_RULES.items():
        found += _findings(check, job, path) if name not in ignore else ()
    if weights and WEIGHTS not in ignore:
        found += check_weights(job, weights)
    if target is not None and TARGET not in ignore:
        found += _findings(lambda checked: check_target(checked, target, weights), job, path)
    return sorted(dict.fromkeys(found), key=lambda finding: (finding.place.file != path, finding.place.file, finding.place.line))


def _findings(rule: Callable[[Any], Iterator[Finding]], subject: Any, path: str) -> Iterator[Finding]:
    """Yield the findings of a rule for a view or a job. An Error is the last one."""
    try:
        yield from rule(subject)
    except Error as problem:
        place = problem.place if isinstance(problem.place, Place) else Place(path)
        yield Finding("", place, problem.layer or "", problem.fact, problem.fix or "")


def _job(path: str, level: int, stages: tuple[str, ...], prepare: Prepare | None) -> Job:
    files: dict[str, File] = {}
    notes: list[Finding] = []

    def net(name: str) -> Any:
        if name not in files:
            lines: dict[str, int] = {}
            files[name] = File(name, read_net(name, lines=lines), lines)
            notes.extend(_notes(files[name]))
        return files[name].message

    def view(message: Any, phase: int, inputs: Sequence[str] = ()) -> View:
        message = prepare(message, phase) if prepare is not None else message
        for layer in message.layer:
            if layer.type == "Python":
                layer.type = layer_type(layer)  # the layers of py-faster-rcnn
        return View(files.get(message.source_file) or File(path, message, {}), message, phase, inputs)

    if not _is_solver(path):
        message = net(path)
        check_stages(stages, message)
        both = [view(*_with_inputs(phase_net(message, phase, level, stages), message, stages)) for phase in (proto.TRAIN, proto.TEST)]
        return Job([each for each in both if each.phase in _phases(message, both)], findings=notes)
    lines: dict[str, int] = {}
    solver = read_solver(path, lines=lines)
    file = File(path, solver, lines)
    solver = upgrade_solver(solver)
    train, tests = net_messages(solver, net, path)
    views = [view(train(), proto.TRAIN), *(view(test(), proto.TEST) for test in tests)]
    return Job(views, solver, file, notes)


def _with_inputs(net: Any, whole: Any, stages: tuple[str, ...]) -> tuple[Any, int, list[str]]:
    """Add inputs to a net without data layers, for bottoms that the file's data layers of other stages make, as `convert --stage` does with --shape.

    Return the net, its phase and the parts of --shape. Layers that do not say the size of images give no input.
    """
    tops = {top for layer in net.layer for top in layer.top}
    made = {layer.top[0]: layer for layer in upgrade_net(whole).layer if layer.type in DATA and layer.top}
    missing = {name for layer in net.layer for name in layer.bottom if name not in tops}
    shapes = {name: (1, *size) for name in sorted(missing & set(made)) if (size := image_of(made[name])) is not None}
    if not any(stages) or any(layer.type in DATA for layer in net.layer) or not shapes:
        return net, net.state.phase, []
    add_missing(net, shapes)
    return net, net.state.phase, [f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes.items()]


def _phases(message: Any, both: list[View]) -> set[int]:
    """Return the phases of a net that is checked without a solver.

    A net without a loss that no data layer feeds is a deploy net. If the layers differ between TRAIN and TEST, both phases are checked, but not a
    phase without a layer that feeds the others, or with a layer that only a data layer of the other phase feeds. Otherwise the
    phase follows from the net's `state`, from its losses, and from the file's name.
    """
    train, test = both
    if not message.state.HasField("phase") and not train.losses and not test.losses and all(layer.type in FED for layer in message.layer if not layer.bottom):
        return {proto.TEST}  # a deploy net: only arrays of scripts feed it, and nothing is learned
    if [layer.source_line for layer in train.layers] != [layer.source_line for layer in test.layers]:
        fed = {view.phase for view in both if any(not layer.bottom for layer in view.layers)}
        meant = {view.phase for view, other in ((train, test), (test, train)) if view.phase in fed and not _unfed(view, other)}
        return meant or fed or {proto.TRAIN, proto.TEST}
    if message.state.HasField("phase"):
        return {message.state.phase}
    deployed = not train.losses and all(layer.type in FED for layer in train.layers if not layer.bottom)
    return {proto.TEST if deployed or re.search(r"test|val|deploy|infer|predict", Path(message.source_file).stem.replace("train_val", "")) else proto.TRAIN}


def _unfed(view: View, other: View) -> bool:
    """Whether a layer reads a blob that only data layers of the other phase make."""
    made = {name for layer in view.layers for name in layer.top}
    given = {name for layer in other.layers if not layer.bottom for name in layer.top}
    return any(name in given - made for layer in view.layers for name in layer.bottom)


def _is_solver(path: str) -> bool:
    """Whether a file has a field of solvers outside of all messages. Layers of forks can have such fields too."""
    text, inner = _QUIET.sub(" ", read_text_file(path)), 1
    while inner:
        text, inner = _INNER.subn(": ", text)
    return _SOLVER.search(text) is not None


def _notes(file: File) -> Iterator[Finding]:
    """Yield the messages of the upgrade of an old file: fields that have no effect."""
    said: list[str] = []
    upgrade_net(file.message, said.append)
    for text in said:
        place, colon, fact = text.partition(": ")
        name, _, line = place.rpartition(":")
        if colon and whole(line) >= 0:
            yield Finding(NO_EFFECT, Place(name, int(line)), "", fact, "")
