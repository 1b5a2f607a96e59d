"""Tests: forward passes over many batches, the means of their outputs, and scores over all batches."""
from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ocaffe.cl.command_list import RING
from ocaffe.cl.outputs import Fetched
from ocaffe.compiler.compile import CompiledNet
from ocaffe.compiler.network import Network
from ocaffe.errors import Error
from ocaffe.graph.options import NetOptions
from ocaffe.ir.graph import Graph
from ocaffe.layers.detection_evaluate import DetectionEvaluate
from ocaffe.layers.seg_accuracy import SegAccuracy, figures
from ocaffe.parallel.world import World
from ocaffe.solver.average_precision import Detections
from ocaffe.support import log
from ocaffe.support.log import number

Output = tuple[str, np.ndarray, float]  # name, values, loss weight


class Means:
    """Sums outputs over batches as Caffe does, in single precision. Outputs in `detections` are collected there; their mean is the mean AP."""

    def __init__(self, detections: Mapping[str, Detections] | None = None) -> None:
        self.detections = detections or {}
        self.batches = 0
        self.loss = np.float32(0)
        self._sums: list[Output] = []

    def add(self, loss: np.float32, outputs: Sequence[Output]) -> None:
        """Add the outputs of a batch. Raises Error if an output has another number of values than before."""
        self.batches += 1
        self.loss += loss
        for name, values, _ in outputs:
            if name in self.detections:
                self.detections[name].add(values)
        outputs = [(name, np.zeros(1, np.float32) if name in self.detections else values, weight) for name, values, weight in outputs]
        for (name, values, _), (_, total, _) in zip(outputs, self._sums):
            if values.shape != total.shape:
                fact = f"output '{name}' has {len(values)} values in batch {self.batches - 1}, and {len(total)} in those before, so it has no mean"
                raise Error(fact, fix="end the TEST net with a layer that gives the same number of values, such as DetectionEvaluate; or use Silence")
        if self._sums:
            outputs = [(name, total + values, weight) for (name, values, weight), (_, total, _) in zip(outputs, self._sums)]
        self._sums = list(outputs)

    @property
    def mean_loss(self) -> np.float32:
        return np.float32(self.loss / np.float32(max(self.batches, 1)))

    @property
    def outputs(self) -> list[Output]:
        """The mean of every output."""
        return [
            (name, np.array([self.detections[name].mean], np.float32) if name in self.detections else total / np.float32(self.batches), weight)
            for name, total, weight in self._sums
        ]


def detections_of(graph: Graph, version: str) -> dict[str, Detections]:
    """Return an empty collection for each output of a net that is a top of DetectionEvaluate. `version`: the rule of the AP."""
    return {blob.name: Detections(version) for blob in graph.outputs if blob.producer and isinstance(blob.producer.layer, DetectionEvaluate)}


def segmentations_of(graph: Graph) -> dict[str, SegAccuracy]:
    """Return the SegAccuracy layers of a net by the name of the score of a whole test."""
    return {f"{node.tops[0].name}/mean_iou": node.layer for node in graph.nodes if isinstance(node.layer, SegAccuracy)}


def segmentation_counts(graph: Graph, world: World) -> dict[str, np.ndarray]:
    """Return pixels by true and predicted class of each SegAccuracy layer, over all batches since its `restart`, of all ranks."""
    return {name: np.sum(world.gather(layer.whole), 0) for name, layer in segmentations_of(graph).items()}


def segmentation_scores(graph: Graph, world: World) -> list[Output]:
    """Return the mean IoU of each SegAccuracy layer, over all batches since its `restart`, of all ranks. Classes that do not occur do not count."""
    return [(name, np.array([figures(counts).mean_iou], np.float32), 0.0) for name, counts in segmentation_counts(graph, world).items()]


def restart_scores(network: Network, world: World) -> None:
    """Begin the scores of a test. Raises Error if a layer counts batches, which several ranks share."""
    nodes = network.graph.nodes
    cursor = network.inputs.cursor
    images = next((cursor[node.name] * node.tops[0].shape[0] for node in nodes if node.name in cursor), 0)
    for node in nodes:
        if isinstance(node.layer, SegAccuracy):
            node.layer.restart()
        elif isinstance(node.layer, DetectionEvaluate):
            node.layer.seek(images)
    for node in nodes if world.several else ():
        layer, field = node.layer, ""
        if isinstance(layer, DetectionEvaluate) and layer.own().name_size_file:
            field = "name_size_file"
        if isinstance(layer, SegAccuracy) and not layer.own().reset:
            field = "reset: false"
        if field:
            fact = f"{field} needs all batches in order, and {world.size} ranks share those of a test"
            raise layer.error(fact, f"remove {field}, or test on one device")


def log_outputs(source: str, prefix: str, outputs: Sequence[Output], before: Mapping[str, Sequence[str]] | None = None) -> None:
    """Log one line per element. A '#' in `prefix` becomes the running number of the element. `before`: lines to log before those of an output."""
    count = 0
    for name, values, weight in outputs:
        for line in (before or {}).get(name, ()):
            log.info(source, line)
        for value in values:
            extra = f" (* {number(weight)} = {number(np.float32(weight) * value)} loss)" if weight else ""
            log.info(source, f"{prefix.replace('#', f'#{count}')}{name} = {number(value)}{extra}")
            count += 1


def run_batches(network: Network, options: NetOptions, batches: int) -> Iterator[tuple[CompiledNet, Fetched]]:
    """Run forward for `batches` batches and yield the results. The host is at most RING runs ahead of the device.

    Several ranks share the batches if `Inputs.share` says so.
    """
    pending: deque[tuple[CompiledNet, Fetched]] = deque()
    inputs = network.inputs
    start = inputs.cursor
    for _ in range(inputs.first, batches, inputs.stride):
        network.follow_batch()
        compiled = network.nets.bound(options)
        network.begin(compiled, {"ITERATION": max(inputs.cursor.values()) + inputs.first} if inputs.sources else None)
        compiled = network.nets.run(compiled)
        fetched = compiled.commands.fetch()
        network.log_debug(compiled, fetched, backward=False)
        pending.append((compiled, fetched))
        if len(pending) >= RING:
            pending[-RING][1].finish()
        while pending and (pending[0][1].arrived or network.reads_late(compiled)):
            yield pending.popleft()
    if inputs.stride > 1:
        inputs.seek({name: batch + batches for name, batch in start.items()})
    yield from pending


def as_lists(outputs: Sequence[Output]) -> dict[str, list[float]]:
    """Return outputs as lists, for JSON."""
    return {name: [float(value) for value in values] for name, values, _ in outputs}
