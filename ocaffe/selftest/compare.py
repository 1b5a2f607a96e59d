"""Runs one net twice, on two devices or with two settings, and compares all values in the order of computation.

No blob is kept for the comparison, so memory is shared and launches are fused as in training. Each value is read directly after the launch that
completes it. Values that a fused launch never writes are not compared.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ocaffe.cl.device import Device
from ocaffe.cl.session import Session
from ocaffe.compiler.network import Network
from ocaffe.formats.weights import Weights
from ocaffe.graph.options import NetOptions
from ocaffe.graph.record import Recording
from ocaffe.ir.graph import Blob, Node
from ocaffe.ir.launch import Access, Launch, Measure
from ocaffe.ir.tensor import Ref, widened

MAX_SAMPLED_ELEMENTS = 1 << 20  # maximum number of elements that are compared per value; larger values are sampled evenly
ROUNDING = 1e-3  # the error of a parameter's gradient is in units of at least this fraction of the layer's largest gradient
PARAMETER = "parameter "
Key = tuple[str, int, str]  # phase, number of the layer, blob


class Sample(NamedTuple):
    """Every `step`-th element of a value of `shape`. `largest` is the largest magnitude of all elements."""

    shape: tuple[int, ...]
    step: int
    values: np.ndarray
    largest: float


@dataclass(frozen=True)
class Row:
    """The comparison of one value.

    `error` is in units of its largest magnitude; None if a fused launch on one side never writes the value. `place` describes the largest difference.
    """

    phase: str
    layer: str
    blob: str
    error: float | None
    place: str = ""


class Side:
    """The net on one device. `plain`: without fusion and recompute, and with separate memory for every value."""

    def __init__(self, message: Any, phase: int, device: Device, plain: bool, weights: Sequence[Weights] = (), seed: int = 1) -> None:
        self.network = Network(message, phase, Session(device), seed, weights=weights, quiet=True)
        learns = any(top.loss_weight for node in self.network.graph.nodes for top in node.tops)  # without a loss there is no backward pass
        self.options = NetOptions(backward=learns, hold_gradients=True, fuse=not plain, recompute="none" if plain else "auto")
        self.network.nets.switches = replace(self.network.nets.switches, share=self.network.nets.switches.share and not plain, single=True)
        self.network.fill_parameters()
        self._enliven()
        for each in weights:
            self.network.copy_weights(each)

    def _enliven(self) -> None:
        """Replace constant weights by random numbers.

    Prototxts that are meant for trained weights often have constant fillers. With constant weights no difference could appear.
    """
        for number, parameter in enumerate(self.network.group.params):
            array = self.network.session.read(parameter.data)
            if array.ndim > 1 and array.size > 1 and np.ptp(array) == 0:
                fan_in = max(array.size // array.shape[0], 1)
                self.network.session.write(parameter.data, np.random.default_rng(number).standard_normal(array.shape) * (2 / fan_in) ** 0.5)

    def values(self) -> dict[Key, Sample]:
        """Run one pass and return every value that has memory."""
        network = self.network
        network.inputs.start()
        network.follow_batch()
        compiled = self._settled()
        commands, schedule = compiled.commands, compiled.recording.schedule
        network.session.clear(network.group.held)
        self._start(compiled)
        at: dict[int, list[tuple[Key, Ref]]] = {}
        for key, ref in self._wanted(compiled.recording):
            step = completed(schedule, ref, key[0])
            if step is not None:
                at.setdefault(step, []).append((key, ref))
        found = {}
        for step in range(len(schedule)):
            commands.run(step, step + 1)
            for key, ref in at.get(step, ()):
                values = commands.read(ref)
                values = widened(values) if ref.in_bf16 else values
                found[key] = sample(ref.root.layout.to_planes(values) if ref.root.blocked else values)
        for index, node in enumerate(network.graph.nodes):
            for parameter in node.params:
                gradient = network.group.held_gradient(parameter)
                if gradient is not None and self.options.backward:
                    found["backward", index, f"{PARAMETER}{parameter.index}"] = sample(network.session.read(gradient))
        return found

    def _settled(self) -> Any:
        """The net compiled for the shapes of this batch, also where they depend on data."""
        compiled = self.network.nets.bound(self.options)
        if any(isinstance(launch, Measure) for launch in compiled.recording.schedule):
            self._start(compiled)
            compiled = self.network.nets.run(compiled)
            self.network.inputs.seek({})
        return compiled

    def _start(self, compiled: Any) -> None:
        compiled.commands.set_step(RATE=0.0, ITERATION=0, PASS=0, SAMPLE=0)
        for number, blob in enumerate(self.network.graph.inputs):
            array = np.zeros(blob.shape) if _tells_classes(blob) else np.random.default_rng(number).standard_normal(blob.shape)
            compiled.commands.write(compiled.recording.first_data[blob.name], array)

    def _wanted(self, recording: Recording) -> Iterator[tuple[Key, Ref]]:
        nodes = self.network.graph.nodes
        for index, node in enumerate(nodes):
            if node.layer.moves_data:
                data = ((top.name, recording.blobs[top][0]) for top in node.tops)
                yield from ((("forward", index, name), ref) for name, ref in data if ref is not None)
        for index, node in enumerate(nodes):
            if node.layer.moves_data and node.backward:
                diffs = ((blob.name, recording.blobs[blob][1]) for blob, wanted in zip(node.bottoms, node.propagate) if wanted)
                yield from ((("backward", index, name), ref) for name, ref in diffs if ref is not None)


def _tells_classes(blob: Blob) -> bool:
    """Whether a blob holds labels (of a loss or an Accuracy layer) or word indices (of an Embed layer). Such blobs must not be random."""
    reader = blob.consumer
    if reader is None:
        return False
    if reader.type == "Split":
        return any(_tells_classes(top) for top in reader.tops)
    return reader.type == "Embed" or ((reader.layer.is_loss or reader.type == "Accuracy") and reader.bottoms.index(blob) > 0)


def _bases(ref: Ref | None) -> Iterator[Ref]:
    while ref is not None:
        yield ref
        ref = None if ref.reuses_storage else ref.base


def completed(schedule: Sequence[Launch], value: Ref, phase: str) -> int | None:
    """Return the step after which `value` is complete, or None if no launch writes it.

    It is the last step that writes the value, a part of it, or the base of which it is a view. A step that works in place on the value does not
    count, because it overwrites the value.
    """
    last = None
    for step, launch in enumerate(schedule):
        if launch.phase != phase:
            continue
        for operand in launch.operands:
            if operand.access is Access.READ:
                continue
            if launch.mask is not None and value in _bases(operand.ref.base):
                return None  # the launch writes the sum with the fused ReLU backward applied, so the value itself never exists
            part_of_it = value in _bases(operand.ref)
            if not part_of_it and operand.ref not in _bases(value):
                continue
            sources = [launch[source] for source, result in launch.inplace if result == operand.name]
            if part_of_it and operand.ref is not value and any(source.root is operand.ref.root for source in sources):
                continue
            last = step
    return last


def sample(array: np.ndarray) -> Sample:
    flat = array.reshape(-1)
    step = max(1, -(-flat.size // MAX_SAMPLED_ELEMENTS))
    with np.errstate(invalid="ignore"):
        return Sample(array.shape, step, flat[::step].copy(), float(np.abs(flat.astype(np.float64)).max(initial=0)))


def difference(a: Sample, b: Sample, floor: float = 0) -> tuple[float, str]:
    """Return the largest difference and its position. The unit is the largest magnitude, but at least `floor`.

    NaN and infinities must be at the same positions on both sides.
    """
    if a.shape != b.shape:
        return np.inf, f"its shape is {list(a.shape)} on the first, {list(b.shape)} on the second"
    if not a.values.size:
        return 0.0, ""
    scales = [scale for scale in (a.largest, b.largest) if np.isfinite(scale)]
    with np.errstate(invalid="ignore"):
        errors = np.abs(a.values.astype(np.float64) - b.values) / max([*scales, floor, 1e-30])
        errors = np.where((a.values == b.values) | (np.isnan(a.values) & np.isnan(b.values)), 0, np.nan_to_num(errors, nan=np.inf, posinf=np.inf))
    worst = int(errors.argmax())
    where = [int(n) for n in np.unravel_index(worst * a.step, a.shape)]
    return float(errors[worst]), f"at {where}: {a.values[worst]:.7g} on the first, {b.values[worst]:.7g} on the second"


def compare(first: Side, second: Side) -> list[Row]:
    """Return a row for every value of either side, in the order of computation: forward, then backward from the last layer to the first."""
    a, b = first.values(), second.values()
    nodes: list[Node] = first.network.graph.nodes

    def order(key: Key) -> tuple[int, int, str]:
        phase, index, blob = key
        return (0, index, "") if phase == "forward" else (1, -index, blob)

    largest: dict[int, float] = {}  # largest magnitude of a parameter gradient in each layer
    for phase, index, blob in a:
        if phase == "backward" and blob.startswith(PARAMETER):
            largest[index] = max(largest.get(index, 0), a[phase, index, blob].largest)
    rows = []
    for key in sorted({**a, **b}, key=order):
        phase, index, blob = key
        # The gradient of a bias before a normalisation is zero up to rounding. It is compared in units of the layer's other gradients.
        floor = ROUNDING * largest.get(index, 0) if blob.startswith(PARAMETER) else 0
        error, place = difference(a[key], b[key], floor) if key in a and key in b else (None, "")
        rows.append(Row(phase, f"'{nodes[index].name}' ({nodes[index].type})", blob, error, place))
    return rows
