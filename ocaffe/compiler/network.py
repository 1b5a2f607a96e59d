"""`Network`: a net of one phase on a session: its graph and parameters. `Net` and `Solver` are built on it."""
from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.cl.outputs import Fetched
from ocaffe.cl.session import Arena, Session
from ocaffe.compiler.compile import CompiledNet
from ocaffe.compiler.compiled_nets import CompiledNets
from ocaffe.compiler.inputs import Inputs
from ocaffe.compiler.shapes import Shapes
from ocaffe.errors import Error, shape_text, within
from ocaffe.formats.fillers import draw_of, fill, generator
from ocaffe.formats.filter import filter_net
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.formats.weights import Weights, fit
from ocaffe.graph.build import build
from ocaffe.graph.labels import limit_labels
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.ir.graph import Graph, Parameter
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.loss.labels import label_guard
from ocaffe.layers.base import registry
from ocaffe.support import log
from ocaffe.support.process_memory import drop_pages, pieces, return_heaps


def phase_net(net: Any, phase: int, level: int = 0, stages: tuple[str, ...] = (), state: Any = None) -> Any:
    """Return the message of one phase: upgraded, with merged state and filtered layers. `state` (a NetState) overrides the net's own."""
    upgraded = type(net)()
    upgraded.CopyFrom(upgrade_net(net))
    merged = upgraded.state
    if state is not None:
        merged.MergeFrom(state)
    merged.phase = phase
    if level or stages or state is None:
        merged.level = level or merged.level
        merged.stage.extend(stages)
    return filter_net(upgraded, merged, log=lambda text: log.info("net.cpp:296", text))


def recognise(net: Any, weights: Weights) -> None:
    """Set layer fields from the blobs in `weights`, where the prototxt does not determine which fork's layer is meant."""
    blobs = {layer.name: layer.blobs for layer in weights.layers if layer.blobs}
    for param in net.layer:
        if param.type in registry() and param.name in blobs:
            registry()[param.type].recognise(param, blobs[param.name])


class Network:
    """The graph and the parameters of one phase; its `shapes`, its `inputs`, and its compiled `nets`.

    `owner`: a net of the same session whose parameters are shared by layer name (Caffe's ShareTrainedLayersWith).
    `weights`: those that will be copied. They determine which fork's layer is meant where the prototxt does not.
    `arena`: the arena for recycled memory; None: the session's.
    """

    def __init__(
        self,
        message: Any,
        phase: int,
        session: Session,
        seed: int = 0,
        *,
        owner: Network | None = None,
        quiet: bool = False,
        weights: Sequence[Weights] = (),
        arena: Arena | None = None,
    ) -> None:
        for each in weights:
            recognise(message, each)
        self.message, self.phase, self.session = message, phase, session
        session.expect(len(message.layer))
        self.graph = build(message, phase, (lambda source, text: None) if quiet else log.info, seed=seed)
        shared = self._share(owner) if owner is not None else set()
        self.group = ParameterGroup(parameter for parameter in self.graph.params if id(parameter) not in shared)
        self.shapes = Shapes(self.graph)
        self.inputs = Inputs(self.graph.nodes, session)
        self.nets = CompiledNets(self.shapes, self.group, self.inputs, session, arena)
        self.passes = 0  # those that `begin` has begun

    # -- parameters --------------------------------------------------------------------------------------------------

    def _share(self, owner: Network) -> set[int]:
        shared = set()
        for mine, other in shared_parameters(self.graph, owner.graph):
            mine.data = other.data
            shared.add(id(mine))
        return shared

    def fill_parameters(self) -> None:
        """Set first values from the fillers. The net's seed, the layer's name and the blob's index seed the random numbers."""
        def fill(parameter: Parameter) -> None:
            array = self.session.view(parameter.data)
            if array is None:
                self.session.write(parameter.data, first_values(parameter, self.graph.seed))
            else:
                first_values(parameter, self.graph.seed, array)

        for parameter in self.group.params:
            self.session.buffers(parameter.data.root)  # allocate here, because the order of the threads varies
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # each parameter has its own generator, so order does not matter
            deque(pool.map(fill, self.group.params), maxlen=0)
        return_heaps()

    def limit_labels(self) -> None:
        """Refuse labels that a loss of the net does not accept. Call this before the net is compiled.

        Data layers raise Error for them. Where labels come from other layers, `wrong_label` tells them after a run, and no update uses them.
        """
        others = limit_labels(self.graph)
        if others and self.phase == proto.TRAIN:
            self.graph.unchecked, self.graph.guard = others, label_guard()

    def clear_guard(self) -> None:
        """Let updates change the parameters again after a wrong label."""
        if self.graph.guard is not None:
            self.session.write(self.graph.guard, np.zeros(self.graph.guard.shape, np.int32))

    def wrong_label(self, found: np.ndarray) -> Error:
        """Return the error for a label that the device found. `found` has the values of the graph's guard, which becomes 0 again."""
        self.clear_guard()
        node, bottom = self.graph.unchecked[int(found[1])]
        problem = node.layer.labels[bottom].error(float(found[3:].view(np.float32)[0]))
        fact = f"value {int(found[2])} of bottom '{node.bottoms[bottom].name}': {problem.fact}; no update has used it"
        return Error(fact, place=node.place, layer=node.layer.title, fix=problem.fix)

    def copy_weights(self, weights: Weights) -> list[Parameter]:
        """Copy the blobs of equally named layers. Return the parameters that were set. Raises Error for other shapes, naming both."""
        copied = []
        for parameter, values in fitting(self.graph, weights):
            array = self.session.view(parameter.data)
            if array is None:
                self.session.write(parameter.data, np.asarray(values, np.float32).reshape(parameter.shape))
            else:
                source, target = values.reshape(-1), array.reshape(-1)
                for part in pieces(target):
                    target[part] = source[part]
                    drop_pages(source[part])
                self.session.note(parameter.data.root)
            copied.append(parameter)
        return_heaps()
        return copied

    def parameter_arrays(self) -> dict[str, list[np.ndarray]]:
        """Return copies of all parameter blobs by layer, as in a snapshot. Shared ones appear under every layer."""
        return {
            node.name: [self.session.read(parameter.data).reshape(node_shape(parameter, node.name)) for parameter in node.params]
            for node in self.graph.nodes
        }

    # -- passes ------------------------------------------------------------------------------------------------------

    def begin(self, compiled: CompiledNet, words: Mapping[str, float] | None = None) -> None:
        """Begin a pass that no solver counts. `words`: of the step buffer, where they are not those of the next pass without an update."""
        compiled.commands.set_step(**{"RATE": 0.0, "ITERATION": self.passes, "PASS": 0, "SAMPLE": 0, **(words or {})})
        self.passes += 1

    def follow_batch(self) -> bool:
        """Adapt to the shapes of the next batch, which a data layer may change. Return whether they have changed."""
        shapes = self.inputs.next_shapes()
        if shapes:
            self.shapes.reshape(shapes)
        return bool(shapes)

    def reads_late(self, compiled: CompiledNet) -> bool:
        """Return whether an output is in recycled memory and must therefore be read before the next run."""
        return not all(compiled.commands.outputs.holds(compiled.recording.data[blob.name]) for blob in self.graph.outputs)

    def loss(self, compiled: CompiledNet, fetched: Fetched) -> np.float32:
        """Return the sum over losses of weight times the sum of the top, as Net::Forward does."""
        total = np.float32(0)
        for ref, weight in compiled.recording.losses:
            total += np.float32(weight) * fetched.value(ref).sum(dtype=np.float32)
        return total

    def output_values(self, compiled: CompiledNet, fetched: Fetched) -> list[tuple[str, np.ndarray, float]]:
        """Return name, values and loss weight of every net output of a run."""
        return [(blob.name, fetched.value(compiled.recording.data[blob.name]).reshape(-1), blob.loss_weight) for blob in self.graph.outputs]

    def log_debug(self, compiled: CompiledNet, fetched: Fetched, backward: bool) -> None:
        """Log the lines of debug_info for a run, if debug_info is set. Waits for the run."""
        if compiled.recording.debug is not None:
            compiled.recording.debug.log_forward(fetched.value)
            if backward:
                compiled.recording.debug.log_backward(fetched.value)

    def move_to(self, session: Session) -> None:
        """Continue in another session, which has the persistent buffers of this one. All compiled nets are dropped."""
        self.nets.move_to(session)
        self.inputs.move_to(session)
        self.session = session

    def close(self) -> None:
        """Stop the prefetching threads."""
        self.inputs.close()


def shared_parameters(graph: Graph, owner: Graph) -> Iterator[tuple[Parameter, Parameter]]:
    """Yield each parameter of `graph` whose layer the TRAIN net `owner` has by name too, with that of `owner`. Raises Error for other shapes."""
    theirs = {node.name: node for node in owner.nodes}
    for node in graph.nodes:
        if node.name not in theirs or not node.params:
            continue
        for mine, other in zip(node.params, theirs[node.name].params):
            if mine.shape != other.shape:
                raise Error(
                    f"parameter {mine.index} is {shape_text(mine.shape)} here and {shape_text(other.shape)} in the TRAIN net",
                    place=node.place, layer=node.layer.title, fix="make the layers of both phases equal, or give them different names",
                )  # fmt: skip
            yield mine, other


def check_filler(parameter: Parameter) -> None:
    """Raise Error if the filler of a parameter cannot make its values, with the place of its layer."""
    with within(parameter.place, f"'{parameter.layer}'"):
        if not isinstance(parameter.filler, np.ndarray):
            draw_of(parameter.filler, parameter.shape)


def first_values(parameter: Parameter, seed: int, out: np.ndarray | None = None) -> np.ndarray:
    """Return the filler's values for a parameter, in `out` if it is given. The filler's errors get the layer's place."""
    if isinstance(parameter.filler, np.ndarray):
        if out is not None:
            out[...] = parameter.filler.reshape(out.shape)
        return parameter.filler
    check_filler(parameter)
    return fill(parameter.filler, parameter.shape, generator(seed, parameter.layer, parameter.index), out)


def node_shape(parameter: Parameter, layer: str) -> Shape:
    """Return the shape of a parameter as `layer` declared it; layers that share it can declare different shapes."""
    return next((shape for user, _, shape in parameter.users if user == layer), parameter.shape)


def fitting(graph: Graph, weights: Weights) -> Iterator[tuple[Parameter, np.ndarray]]:
    """Yield the parameters of equally named layers, each with its blob in a weights file. Raises Error for other shapes, naming both."""
    nodes = {node.name: node for node in graph.nodes}
    for layer in weights.layers:
        node = nodes.get(layer.name)
        if node is None:
            log.info("net.cpp:744", f"Ignoring source layer {layer.name}")
            continue
        where = {"place": weights.path, "layer": f"'{node.name}' ({node.type})"}
        blobs = node.layer.stored(layer.blobs)
        if len(blobs) != len(node.params):
            if not blobs:
                continue
            raise Error(
                f"the file has {len(blobs)} blobs for this layer, the net {len(node.params)}",
                fix=f"rename the layer (for example '{node.name}_new') to train it from its filler", **where,
            )  # fmt: skip
        for index, (parameter, blob) in enumerate(zip(node.params, blobs)):
            if blob is None:  # HDF5 stores a shared blob only under its owner
                continue
            values = fit(blob, node_shape(parameter, node.name))
            if values is None:
                shapes = shape_text(blob.shape), shape_text(node_shape(parameter, node.name))
                raise Error(
                    f"{'weight' if index == 0 else 'blob'} {index} is {shapes[0]} in the file, {shapes[1]} in the net",
                    fix=f"rename the layer (for example '{node.name}_new') to train it from its filler, or make the shapes equal", **where,
                )  # fmt: skip
            yield parameter, values
