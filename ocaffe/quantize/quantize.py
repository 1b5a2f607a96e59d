"""The whole way from a net in floats to one with integers: equalise, observe, choose, correct, reconstruct."""
from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from ocaffe.convert.caffe.net import Net
from ocaffe.errors import Error
from ocaffe.quantize.choose import AUTO, choose
from ocaffe.quantize.correct import correct
from ocaffe.quantize.counts import Counts
from ocaffe.quantize.equalise import equalise, find_pairs
from ocaffe.quantize.images import Images
from ocaffe.quantize.measure import measure, output_error
from ocaffe.quantize.observe import Tell, channel_ranges, observe
from ocaffe.quantize.places import places, rounded_products
from ocaffe.quantize.reconstruct import STEPS, reconstruct
from ocaffe.quantize.scheme import Scheme
from ocaffe.quantize.sensitivity import sensitivities, widen
from ocaffe.quantize.simulate import copied, rounded_weights
from ocaffe.quantize.table import Table
from ocaffe.quantize.thresholds import METHODS

JUDGES = 128  # images on which grids are compared and errors are measured
Told = Callable[[str, int], AbstractContextManager[Tell]]  # of a step: its name and the number of its images


@dataclass(frozen=True)
class Settings:
    """`method`: of the ranges, 'auto' for the best of the whole net. `steps`: of the reconstruction, 0 for none. `mixed`: products that get 16 bits."""

    scheme: Scheme
    method: str = AUTO
    equalise: bool = True
    correct: bool = True
    steps: int = STEPS
    mixed: int = 0


@dataclass
class Quantized:
    """The result. `source`: the folded net in floats, equalised if that helps. `net`: the same with the weights of the rounded net, not yet rounded.

    `errors`: of the whole net, by value. `stages`: the error of the outputs after each step that was kept or tried.
    """

    source: Net
    net: Net
    table: Table
    counts: dict[str, Counts]
    errors: dict[str, float] = field(default_factory=dict)
    stages: list[tuple[str, float]] = field(default_factory=list)
    sensitivities: dict[str, float] = field(default_factory=dict)

    def rounded(self) -> Net:
        """Return the net in floats whose weights are on the grid."""
        made = copied(self.net)
        for layer in made.layers:
            if layer.name in self.table.products:
                weight, *others = made.arrays[layer.name]
                made.arrays[layer.name] = [rounded_weights(made, layer, weight, self.table.scheme, self.table.bits(layer.name)), *others]
        return made


@contextlib.contextmanager
def silent(what: str, count: int) -> Iterator[Tell]:
    """Tell nothing."""
    yield lambda done: None


def quantize(net: Net, settings: Settings, images: Images, device: Any = None, told: Told = silent) -> Quantized:
    """Return the net with integers. `net` is folded, in its TEST phase. Raise Error if it has nothing to round, or images give no finite values."""
    scheme, judges = settings.scheme, images.first(JUDGES)
    if not rounded_products(net, scheme, places(net, scheme)):
        fact = f"has no layer that computes with integers: {', '.join(scheme.products)}"
        raise Error(fact, place=net.source_file or None, fix="give a net with such a layer, or another --scheme")
    tried = [_calibrated(net, settings, images, judges, device, told, "")]
    if settings.equalise:
        other = copied(net)
        pairs = find_pairs(other)
        if pairs:
            with told("values of channels", images.count) as tell:
                ranges = channel_ranges(net, [pair.value for pair in pairs], images, device, tell)
            equalise(other, pairs, ranges, scheme.per_channel)
            tried.append(_calibrated(other, settings, images, judges, device, told, " of the equalised net"))
    found = min(tried, key=_error)
    for each in tried:
        if each is not found:
            found.stages.insert(0, each.stages[-1])
    if settings.mixed:
        with told("sensitivity of products", len(found.table.products)) as tell:
            for number, (name, error) in enumerate(sensitivities(found.net, found.table, judges, device), 1):
                found.sensitivities[name] = error
                tell(number)
        widen(found.net, found.table, sorted(found.sensitivities, key=lambda name: -found.sensitivities[name])[: settings.mixed])
        _measured(found, "16 bits", judges, device, told)
    if settings.correct:
        before = copied(found.net)
        with told("bias correction", images.count) as tell:
            correct(found.net, found.table, images, device, tell)
        _kept(found, before, found.table, "bias correction", judges, device, told)
    if settings.steps:
        net_before, table = copied(found.net), Table(scheme, dict(found.table.values), list(found.table.products), list(found.table.wide))
        with told("reconstruction", settings.steps) as tell:
            reconstruct(found.net, found.table, images.behind(JUDGES), settings.steps, device, tell, found.source)
        _kept(found, net_before, table, "reconstruction", judges, device, told)
    return found


def _calibrated(net: Net, settings: Settings, images: Images, judges: Images, device: Any, told: Told, what: str) -> Quantized:
    at = places(net, settings.scheme)
    with told(f"values{what}", images.count) as tell:
        counts = observe(net, at, images, device, tell)
    products = [layer.name for layer in rounded_products(net, settings.scheme, at)]
    found = list[Quantized]()
    # What is best for each product alone need not be best for the whole net: `auto` takes the best of all.
    for method in (AUTO, *METHODS) if settings.method == AUTO else (settings.method,):
        with told(f"ranges by {method}{what}", judges.count) as tell:
            entries = choose(net, at, counts, settings.scheme, method, judges, device, tell)
        found.append(Quantized(copied(net), copied(net), Table(settings.scheme, entries, products), counts))
        _measured(found[-1], f"ranges by {method}{what}", judges, device, told)
    best = min(found, key=_error)
    if _error(best) == math.inf:
        fact = "the outputs have NaN or infinity on the calibration images"
        raise Error(fact, place=net.source_file or None, fix="look at the images and the weights: `ocaffe predict` on one")
    best.stages[:] = [*(stage for each in found if each is not best for stage in each.stages), *best.stages]
    return best


def _error(found: Quantized) -> float:
    """Return the error of the outputs after the last stage, infinite if it is no number."""
    error = found.stages[-1][1]
    return error if math.isfinite(error) else math.inf


def _measured(found: Quantized, what: str, judges: Images, device: Any, told: Told) -> None:
    with told("errors", judges.count) as tell:
        found.errors = measure(found.net, found.table, judges, device, tell, original=found.source)
    found.stages.append((what, output_error(found.net, found.errors)))


def _kept(found: Quantized, net: Net, table: Table, what: str, judges: Images, device: Any, told: Told) -> None:
    """Keep a change if the outputs are nearer to those in floats, else take back the net and the table."""
    errors, last = found.errors, found.stages[-1][1]
    _measured(found, what, judges, device, told)
    if not found.stages[-1][1] <= last:  # nor if it is no number
        found.net, found.table, found.errors = net, table, errors
        found.stages[-1] = (f"{what} (taken back)", found.stages[-1][1])
        found.stages.append(("as before", last))
