"""Run a net and its rewriting in ocaffe on the same inputs, and report the first value that differs.

The rewritten net is cut at every value that the source has too, and each piece gets the source's numbers, as `ocaffe.convert.pieces` describes for ONNX.
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.api.net import Net as Running
from ocaffe.convert.caffe.net import Net
from ocaffe.convert.caffe.rewrite import Rewritten
from ocaffe.convert.cost import check_cost
from ocaffe.convert.pieces import PREFIX, SAMPLES, SINGLE, Piece, change, rounding, sample
from ocaffe.convert.reference import Tell
from ocaffe.convert.verify import CHOOSING, NOT_EQUAL, TOLERANCE, Feeds, difference
from ocaffe.errors import Error
from ocaffe.layers.base import layer_type

SUMS = frozenset({"Conv", "Exp"})  # a piece may sum and saturate


@dataclass(frozen=True)
class Verified:
    """The difference of each output of the whole nets, relative to its largest magnitude.

    `share`: the largest difference of a value as a share of its bound. `layers`: the number of values that were compared.
    """

    differences: dict[str, float] = field(default_factory=dict)
    share: float = 0.0
    layers: int = 0

    @property
    def worst(self) -> float:
        return max(self.differences.values(), default=0.0)

    def __str__(self) -> str:
        return f"equal to the source in {self.layers} values, each compared alone; largest difference of an output {self.worst:.2g} of its magnitude"


def check_rewriting(made: Rewritten, place: str) -> None:
    """Raise Error if the comparison takes too much memory or work."""
    inputs = made.graph.inputs
    firsts = {blob.name: 0 for blob in inputs if blob.shape[:1] == inputs[0].shape[:1] != ()}
    check_cost(made, place, firsts, 0, "source")


def verify(made: Rewritten, runs: Sequence[Feeds], device: Any = None, tolerance: float | None = None, tell: Tell = lambda text: None) -> Verified:
    """Compare every value of the rewritten net with the source's, for every set of feeds, which have the names of the inputs' blobs.

    `tolerance` (a share of a value's largest magnitude) replaces the bound of the rounding errors. `tell` is called with a text at each step. Raises
    Error that names the first value that differs, with the line of its layer.
    """
    worst, share = dict.fromkeys(made.net.outputs, 0.0), 0.0
    cuts = [top for layer in made.net.layers if layer.bottom for top in layer.top if top in made.source.shapes]
    names = made.net.names()
    for feeds in runs:
        tell("the source")
        with _running(made.source, made.source.message(in_place=False), device) as net:
            given = {value: _prepared(made, name, feeds[name]) for value, name in _inputs(made.source).items()}
            expected = _run(net, given, [*given, *dict.fromkeys([*cuts, *made.net.outputs])])
        tell("the new net")
        with _running(made.net, made.net.message(), device) as net:
            found = _run(net, {names[value]: feeds[name] for value, name in _inputs(made.net).items()}, [names[value] for value in made.net.outputs])
        for value in made.net.outputs:
            worst[value] = max(worst[value], difference(found[names[value]], expected[value]))
        there = [value for value in cuts if 0 not in expected[value].shape]  # no input can be empty, as regions may be
        read = {value: feeds[name] for value, name in _inputs(made.net).items()} | {value: expected[value] for value in there}
        tell(f"{len(there)} values, each alone")
        share = max(share, _check(made, device, there, read, expected, tolerance))
    return Verified(worst, share, len(cuts))


def _check(made: Rewritten, device: Any, cuts: Sequence[str], feeds: Feeds, expected: Feeds, tolerance: float | None) -> float:
    """Return the largest difference as a share of its bound. Raise Error with the first value whose piece computes something else."""
    errors, moved = dict[str, float](), list[Feeds]()
    for value, actual in _computed(made, device, cuts, cuts, [feeds])[0].items():
        errors[value] = difference(*_common(made.net, value, actual, expected[value]))
    found, share, unequal = _reads(made.net, cuts), 0.0, [value for value, error in errors.items() if error]
    if unequal and not tolerance:
        moved = _computed(made, device, cuts, unequal, (feeds, *(sample(feeds, SINGLE, seed, whole) for seed, whole in enumerate(SAMPLES))))
    for value in unequal:
        layer = made.net.producer(value)
        magnitude = max(float(np.abs(expected[value][np.isfinite(expected[value])]).max(initial=0)), 1e-30)
        if tolerance or layer_type(layer) in CHOOSING or len(layer.top) > 1:
            bound = tolerance or TOLERANCE
        else:
            actual, *others = (each[value] for each in moved)
            changed = max(change(found[value], actual, other, whole) for other, whole in zip(others, SAMPLES))
            bound = rounding(found[value], actual.astype(np.float64), changed, feeds, SINGLE) / magnitude
        if not errors[value] <= bound:
            limit = f"the tolerance is {tolerance:g}" if tolerance else f"rounding explains at most {bound:.2g}"
            fact = f"the first value that differs is '{value}', by {errors[value]:.3g} of its largest magnitude; {limit}"
            source = made.source.producer(value)
            raise Error(fact, place=made.source.place(source), layer=f"'{source.name}' ({source.type})", fix=NOT_EQUAL)
        share = max(share, errors[value] / bound)
    return share


def _common(net: Net, value: str, actual: np.ndarray, expected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that both arrays have. Where layers read regions or boxes, rows without one fill up the blob, else the layer that makes them does not."""
    axis = net.computed(net.producer(value)).extent_axis
    if axis is None or actual.ndim != expected.ndim:
        return actual, expected
    count = range(min(actual.shape[axis], expected.shape[axis]))
    return actual.take(count, axis), expected.take(count, axis)


def _computed(made: Rewritten, device: Any, cuts: Sequence[str], wanted: Sequence[str], runs: Iterable[Feeds]) -> list[Feeds]:
    """Return what the pieces of the values `wanted` make, for each set of values `cuts` and inputs."""
    if not wanted:
        return [{} for _ in runs]
    message = _pieces(made, cuts, wanted)
    there = {top for layer in message.layer for top in layer.top}
    with _running(made.net, message, device) as net:
        found = [_run(net, {name: values for name, values in feeds.items() if name in there}, [PREFIX + value for value in wanted]) for feeds in runs]
    return [{value: values[PREFIX + value] for value in wanted} for values in found]


def _pieces(made: Rewritten, cuts: Sequence[str], wanted: Sequence[str]) -> Any:
    """Return the layers that make the values `wanted`, with Inputs for the values `cuts`, and PREFIX + value for what is made in their place."""
    own, read, kept = set(cuts), {PREFIX + value for value in wanted}, list[Any]()
    for layer in reversed(made.net.layers):
        copy = proto.LayerParameter()
        copy.CopyFrom(layer)
        copy.top[:] = [PREFIX + value if value in own else value for value in layer.top]
        if not read.isdisjoint(copy.top):
            read.update(copy.bottom)
            kept.append(copy)
    message = proto.NetParameter()
    for value in cuts:
        if value in read:
            message.layer.add(name=f"input {value}", type="Input", top=[value]).input_param.shape.add(dim=made.source.shapes[value])
    message.layer.extend(reversed(kept))
    return message


def _reads(net: Net, cuts: Sequence[str]) -> dict[str, Piece]:
    """Return the piece of each of the values `cuts`."""
    own, read = set(cuts), dict[str, frozenset[str]]()
    for layer in net.layers:
        inputs = frozenset[str]().union(*(frozenset([name]) if name in own or not read.get(name) else read[name] for name in layer.bottom))
        read |= dict.fromkeys(layer.top, inputs)
    return {value: Piece(read[value], SUMS) for value in cuts}


def _inputs(net: Net) -> dict[str, str]:
    """Return the values of the inputs, each with its blob."""
    return {value: net.blobs[value] for layer in net.layers if layer.type == "Input" for value in layer.top}


def _prepared(made: Rewritten, name: str, values: np.ndarray) -> np.ndarray:
    return made.how[name](values) if name in made.how else values


@contextlib.contextmanager
def _running(net: Net, message: Any, device: Any) -> Iterator[Running]:
    """Open a message of a net, with the net's arrays."""
    running, arrays = Running(message, proto.TEST, device=device), net.weights()
    try:
        for parameter in running._network.graph.params:
            running._network.session.write(parameter.data, arrays[parameter.layer][parameter.index].reshape(parameter.shape))
        yield running
    finally:
        running.close()


def _run(net: Running, feeds: Mapping[str, np.ndarray], names: Sequence[str]) -> Feeds:
    """Return the values of the blobs `names`."""
    for name, value in feeds.items():
        if net.blobs[name].shape != value.shape:
            net.blobs[name].reshape(*value.shape)
    for name, value in feeds.items():
        net.blobs[name].data[...] = value
    net.forward()
    return {name: np.array(net.blobs[name].data) for name in names}
