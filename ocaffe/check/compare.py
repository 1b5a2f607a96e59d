"""One net run twice, on two devices or in two ways, and compared value by value in the order in which they are computed.

Nothing is kept for the comparison, so that memory is shared and launches are merged as in a training: each value is read right behind the launch that
completes it. Values that a merged launch never writes have nothing to compare.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ocaffe.cl.device import Device
from ocaffe.cl.session import Session
from ocaffe.compiler.network import Network
from ocaffe.graph.options import NetOptions
from ocaffe.ir.graph import Blob, Node
from ocaffe.ir.launch import Access, Launch, Measure
from ocaffe.ir.tensor import Ref, widened
from ocaffe.model.weights import read_weights

MAX_SAMPLED_ELEMENTS = 1 << 20  # elements of a value that are compared; of larger ones evenly spread ones
ROUNDING = 1e-3
PARAMETER = "parameter "
Key = tuple[str, int, str]  # phase, number of the layer, blob


class Sample(NamedTuple):
    """Evenly spread elements of a value of `shape`, every `step`-th; `largest` magnitude of all."""

    shape: tuple[int, ...]
    step: int
    values: np.ndarray
    largest: float


@dataclass(frozen=True)
class Row:
    """A value: `error` in units of its largest magnitude, None where one side has merged it into something else; `place` of the largest difference."""

    phase: str
    layer: str
    blob: str
    error: float | None
    place: str = ""


class Side:
    """The net on one device; `plain`: nothing merged or computed again, and every value in memory of its own."""

    def __init__(self, message: Any, phase: int, device: Device, plain: bool, weights: Sequence[str] = (), seed: int = 1) -> None:
        options = NetOptions(backward=True, hold_gradients=True, fuse=not plain, recompute=not plain, seed=seed)
        self.network = Network(message, phase, Session(device), options, weights=weights, quiet=True)
        if not any(top.loss_weight for node in self.network.graph.nodes for top in node.tops):
            self.network.options = replace(options, backward=False)  # nothing to go back from
        if plain:
            self.network.switches = replace(self.network.switches, share=False)
        self.network.fill_parameters()
        self._enliven()
        for file in weights:
            self.network.copy_weights(read_weights(file), file)

    def _enliven(self) -> None:
        """Random numbers where the filler makes all weights equal, as in prototxts that are meant to be run with weights: nothing could differ."""
        for number, parameter in enumerate(self.network.group.params):
            array = self.network.session.read(parameter.data)
            if array.ndim > 1 and array.size > 1 and np.ptp(array) == 0:
                fan_in = max(array.size // array.shape[0], 1)
                self.network.session.write(parameter.data, np.random.default_rng(number).standard_normal(array.shape) * (2 / fan_in) ** 0.5)

    def values(self) -> dict[Key, Sample]:
        """Run one pass and read every value that has memory."""
        network = self.network
        network.start_prefetch()
        shapes = network.next_shapes()
        if shapes:
            network.reshape(shapes)
        compiled = self._settled()
        commands, schedule = compiled.commands, compiled.recording.schedule
        network.session.clear(network.group.held)
        self._start(compiled)
        at: dict[int, list[tuple[Key, Ref]]] = {}
        for key, ref in self._wanted():
            step = completed(schedule, ref, key[0])
            if step is not None:
                at.setdefault(step, []).append((key, ref))
        found = {}
        for step in range(len(schedule)):
            commands.run(step, step + 1)
            slot = commands.runs - (step + 1 == len(schedule))
            for key, ref in at.get(step, ()):
                values = commands.read(ref, slot)
                found[key] = sample(widened(values) if ref.in_bf16 else values)
        for index, node in enumerate(network.graph.nodes):
            for parameter in node.params:
                if parameter.diff is not None and network.options.backward:
                    found["backward", index, f"{PARAMETER}{parameter.index}"] = sample(network.session.read(parameter.diff))
        return found

    def _settled(self) -> Any:
        """The compiled for the shapes that this batch gives, also where these depend on data."""
        compiled = self.network.bound()
        if any(isinstance(launch, Measure) for launch in compiled.recording.schedule):
            self._start(compiled)
            compiled = self.network.run(compiled)
            self.network.seek({})
        return compiled

    def _start(self, compiled: Any) -> None:
        compiled.commands.set_step(RATE=0.0, ITERATION=0, PASS=0, SAMPLE=0)
        for number, blob in enumerate(self.network.graph.inputs):
            array = np.zeros(blob.shape) if _tells_classes(blob) else np.random.default_rng(number).standard_normal(blob.shape)
            compiled.commands.write(compiled.recording.first_data[blob.name], array)

    def _wanted(self) -> Iterator[tuple[Key, Ref]]:
        nodes = self.network.graph.nodes
        for index, node in enumerate(nodes):
            if node.layer.moves_data:
                yield from ((("forward", index, top.name), top.data) for top in node.tops if top.data is not None)
        for index, node in enumerate(nodes):
            if node.layer.moves_data and node.backward:
                pairs = zip(node.bottoms, node.propagate)
                yield from ((("backward", index, blob.name), blob.diff) for blob, wanted in pairs if wanted and blob.diff is not None)


def _tells_classes(blob: Blob) -> bool:
    """Whether a blob has the labels of a loss or an Accuracy layer, or numbers of words: no random numbers there."""
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
    """The step after which `value` is whole: the last one that writes it, part of it, or what it is a view of. None: no launch writes it.

    Not a step that works in place on it: there the value ends.
    """
    last = None
    for step, launch in enumerate(schedule):
        if launch.phase != phase:
            continue
        for place, operand in enumerate(launch.operands):
            if operand.access is Access.READ:
                continue
            if launch.has_fused_relu and value in _bases(operand.ref.base):
                return None  # the last sum is written as what a ReLU makes of it
            part_of_it = value in _bases(operand.ref)
            if not part_of_it and operand.ref not in _bases(value):
                continue
            sources = [launch.operands[i].ref for i, j in launch.inplace if j == place]
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
    """The largest difference in units of the largest magnitude (at least `floor`), and where; NaN and infinities must stand in the same places."""
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
    """A row for every value of either side, in the order of computation: forward, then the layers from the last to the first."""
    a, b = first.values(), second.values()
    nodes: list[Node] = first.network.graph.nodes

    def order(key: Key) -> tuple[int, int, str]:
        phase, index, blob = key
        return (0, index, "") if phase == "forward" else (1, -index, blob)

    largest: dict[int, float] = {}  # gradient of each layer
    for phase, index, blob in a:
        if phase == "backward" and blob.startswith(PARAMETER):
            largest[index] = max(largest.get(index, 0), a[phase, index, blob].largest)
    rows = []
    for key in sorted({**a, **b}, key=order):
        phase, index, blob = key
        # A gradient that is zero but for rounding (of a bias in front of a normalisation) is measured by the layer's others.
        floor = ROUNDING * largest.get(index, 0) if blob.startswith(PARAMETER) else 0
        error, place = difference(a[key], b[key], floor) if key in a and key in b else (None, "")
        rows.append(Row(phase, f"'{nodes[index].name}' ({nodes[index].type})", blob, error, place))
    return rows
