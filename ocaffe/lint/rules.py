"""Findings, the views of nets that rules read, and the decorators that register a rule."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from ocaffe import proto
from ocaffe.data.databases.assumed import assumed_data
from ocaffe.errors import Error, Place, stated
from ocaffe.graph.build import build
from ocaffe.ir.graph import Graph
from ocaffe.layers.base import param_field, registry
from ocaffe.lint.data import absent
from ocaffe.shown import Lines, lines_of

NO_EFFECT = "no-effect"  # the rule name of the messages of the upgrade of old files
FED = ("Input", "DummyData", "Parameter", "ContinuationIndicator")  # layers without bottoms that read no data from files


class Finding(NamedTuple):
    """One mistake. `rule` is the name of its rule; '' for an error that prevents building the net."""

    rule: str
    place: Place
    layer: str
    fact: str
    fix: str

    def __str__(self) -> str:
        fact = lines_of(f"{self.fact} [{self.rule}]") if isinstance(self.fact, Lines) else f"{self.fact} [{self.rule}]"
        return stated(self.place, self.layer or None, fact if self.rule else self.fact, self.fix or None)


@dataclass
class File:
    """A prototxt: its message before any upgrade, and the line of each field."""

    path: str
    message: Any
    lines: dict[str, int]

    def place(self, path: str, otherwise: int = 0) -> Place:
        return Place(self.path, self.lines.get(path, otherwise))


@dataclass
class View:
    """The net of one phase, upgraded and filtered. A value is a pair (index of the layer, index of the top).

    `inputs`: the parts of --shape for the inputs that the file does not have, because its data layers are for other stages.
    """

    file: File
    net: Any
    phase: int
    inputs: Sequence[str] = ()

    @cached_property
    def layers(self) -> list[Any]:
        return list(self.net.layer)

    @property
    def train(self) -> bool:
        return self.phase == proto.TRAIN

    @cached_property
    def reads(self) -> list[list[tuple[int, int] | None]]:
        """For each layer and bottom: the value that it reads, or None if the net has no such blob."""
        last: dict[str, tuple[int, int]] = {}
        found = []
        for index, layer in enumerate(self.net.layer):
            found.append([last.get(name) for name in layer.bottom])
            last.update((name, (index, top)) for top, name in enumerate(layer.top))
        return found

    @cached_property
    def readers(self) -> dict[tuple[int, int], list[int]]:
        """For each value: the layers that read it."""
        found: dict[tuple[int, int], list[int]] = {(i, j): [] for i, layer in enumerate(self.net.layer) for j in range(len(layer.top))}
        for index, values in enumerate(self.reads):
            for value in values:
                if value is not None:
                    found[value].append(index)
        return found

    def followers(self, index: int, top: int = 0) -> list[Any]:
        return [self.net.layer[reader] for reader in self.readers.get((index, top), ())]

    def source(self, index: int, bottom: int = 0) -> Any:
        """Return the layer that computes a bottom; None if no layer does."""
        value = self.reads[index][bottom] if bottom < len(self.reads[index]) else None
        return None if value is None else self.net.layer[value[0]]

    @cached_property
    def graph(self) -> Graph | None:
        """The net with its shapes. None if data is missing, or if a Python layer makes it. Raises Error if the net cannot be built."""
        fed = [layer for layer in self.layers if not layer.bottom and layer.type not in FED]
        if any(layer.type == "Python" or absent(layer) for layer in fed):
            return None
        return build(self.net, self.phase)

    @cached_property
    def shaped(self) -> Graph | None:
        """`graph`, or if data is missing, a net of assumed images. None if the layers do not say their size. Raises Error if the net cannot be built."""
        if self.graph is not None:
            return self.graph
        with assumed_data() as data:
            try:
                net = type(self.net)()
                net.CopyFrom(self.net)
                net = data.complete(net)
            except Error:  # it needs --shape
                return None
            if any(not layer.bottom and layer.type not in FED and (layer.type == "Python" or absent(layer)) for layer in net.layer):
                return None
            return build(net, self.phase)

    def finding(self, rule: str, layer: Any, fact: str, fix: str, path: str = "") -> Finding:
        """Return a Finding at the line of the field `path`, such as 'batch_norm_param.use_global_stats'. If it is absent, use the line of its parent."""
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
    """The input of `lint`: a solver with its nets, or the phases of one net. `solver` is None for a net."""

    views: list[View]
    solver: Any = None
    file: File | None = None
    findings: list[Finding] = field(default_factory=list)  # made while the files were read
    samples: dict[str, Any] = field(default_factory=dict)  # boxes of data layers that were read (box_sample.py)

    @property
    def training(self) -> View | None:
        return next((view for view in self.views if view.train), None)

    @property
    def tests(self) -> list[View]:
        return [view for view in self.views if not view.train]

    def finding(self, rule: str, path: str, fact: str, fix: str) -> Finding:
        assert self.file is not None
        return Finding(rule, self.file.place(path), "", fact, fix)


# Rules may raise Error, for a net that cannot be built and for data that cannot be read. It becomes a finding without a rule.
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
    """Return the message with the settings of the layer's type, such as convolution_param; None if the type has none."""
    name = param_field(layer.type)
    return getattr(layer, name) if name else None
