"""`Network`: a net of one phase on a session, from the message to command lists. `Net` and `Solver` are built on it."""
from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ocaffe import log, proto
from ocaffe.cl.actions import Measured
from ocaffe.cl.command_list import CommandList
from ocaffe.cl.outputs import Fetched
from ocaffe.cl.session import Arena, Session
from ocaffe.compiler.carried import carried
from ocaffe.compiler.compile import Switches, compile_net
from ocaffe.compiler.inputs import Inputs
from ocaffe.errors import Error, shape_text
from ocaffe.graph.build import build, infer_shapes
from ocaffe.graph.labels import limit_labels
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.graph.record import Recording, Update
from ocaffe.ir.graph import Blob, Graph, Parameter
from ocaffe.ir.launch import Schedule
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role, Shape
from ocaffe.layers.base import registry
from ocaffe.memory.plan import MemoryPlan, plan
from ocaffe.model.fillers import fill, generator
from ocaffe.model.filter import filter_net
from ocaffe.model.upgrade import upgrade_net
from ocaffe.model.weights import Weights, fit, read_weights
from ocaffe.ops.labels import label_guard

SHAPES_KEPT = 32  # command lists for the last few input shapes stay bound


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


@dataclass(eq=False)
class CompiledNet:
    """A net compiled for one set of shapes and options."""

    recording: Recording
    plan: MemoryPlan
    commands: CommandList
    options: NetOptions | None = None
    update: Update | None = None

    @classmethod
    def of_launches(cls, session: Session, rec: Recorder) -> CompiledNet:
        """Compile launches that belong to no net, such as a solver's update."""
        placed = plan(rec.launches, alignment=session.device.target.alignment)
        return cls(Recording(rec.launches, 0, 0, [], {}, rec.step, {}, {}, {}, {}, []), placed, CommandList(session, rec.launches, placed, rec.step))


class Network:
    """Graph, parameters and compiled nets of one phase.

    `owner`: a net of the same session whose parameters are shared by layer name (Caffe's ShareTrainedLayersWith).
    `weights`: the files that will be copied. They determine which fork's layer is meant where the prototxt does not.
    `arena`: the arena for recycled memory; None: the session's.
    """

    def __init__(
        self,
        message: Any,
        phase: int,
        session: Session,
        options: NetOptions,
        *,
        owner: Network | None = None,
        quiet: bool = False,
        weights: Sequence[str] = (),
        arena: Arena | None = None,
    ) -> None:
        for file in weights:
            recognise(message, read_weights(file))
        self.message, self.phase, self.session, self.owner, self.arena = message, phase, session, owner, arena
        self.options = replace(options, debug=options.debug or message.debug_info)
        session.limited |= options.limit is not None
        session.expect(len(message.layer))
        self.switches = Switches.read()
        self.graph = build(message, phase, (lambda source, text: None) if quiet else log.info, seed=options.seed)
        shared = self._share(owner) if owner is not None else set()
        self.group = ParameterGroup(parameter for parameter in self.graph.params if id(parameter) not in shared)
        self.inputs = Inputs(self.graph.nodes, session)
        self.inferences = 0  # how often shapes were inferred since the net was built
        self.passes = 0  # those that `begin` has begun
        self._fitting: dict[Blob, Shape] | None = None  # the last shapes of all blobs without an unfit layer, if there is one now
        self._compiled: OrderedDict[Any, CompiledNet] = OrderedDict()
        self._shape_key: tuple[int, tuple[Shape, ...]] | None = None  # (inferences at that time, key)

    # -- parameters --------------------------------------------------------------------------------------------------

    def _share(self, owner: Network) -> set[int]:
        shared = set()
        theirs = {node.name: node for node in owner.graph.nodes}
        for node in self.graph.nodes:
            if node.name not in theirs or not node.params:
                continue
            for mine, other in zip(node.params, theirs[node.name].params):
                if mine.shape != other.shape:
                    raise Error(
                        f"parameter {mine.index} is {shape_text(mine.shape)} here and {shape_text(other.shape)} in the TRAIN net",
                        place=node.place, layer=node.layer.title, fix="make the layers of both phases equal, or give them different names",
                    )  # fmt: skip
                mine.data = other.data
                shared.add(id(mine))
        return shared

    def fill_parameters(self) -> None:
        """Set first values from the fillers. The net's seed, the layer's name and the blob's index seed the random numbers."""
        def fill(parameter: Parameter) -> None:
            self.session.write(parameter.data, first_values(parameter, self.options.seed))

        for parameter in self.group.params:
            self.session.buffers(parameter.data.root)  # allocate here, because the order of the threads varies
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # each parameter has its own generator, so order does not matter
            deque(pool.map(fill, self.group.params), maxlen=0)

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

    def copy_weights(self, weights: Weights, file: str) -> list[Parameter]:
        """Copy the blobs of equally named layers. Return the parameters that were set. Raises Error for other shapes, naming both."""
        copied = []
        for parameter, values in fitting(self.graph, weights, file):
            self.session.write(parameter.data, np.asarray(values, np.float32).reshape(parameter.shape))
            copied.append(parameter)
        return copied

    def parameter_arrays(self) -> dict[str, list[np.ndarray]]:
        """Return copies of all parameter blobs by layer, as in a snapshot. Shared ones appear under every layer."""
        return {
            node.name: [self.session.read(parameter.data).reshape(node_shape(parameter, node.name)) for parameter in node.params]
            for node in self.graph.nodes
        }

    # -- compiled nets -----------------------------------------------------------------------------------------------

    def compiled(self, options: NetOptions | None = None, update: Update | None = None) -> CompiledNet:
        """Return the compiled net for these options and the present shapes, with `update` at its end.

        The first call compiles it; `bound` binds it to the device.
        """
        options = options or self.options
        kind = (options, update is not None)
        key = (kind, self.shape_key())
        if key not in self._compiled:
            made = compile_net(self.graph, self.group, self.session.device.target, options, self.switches, update)
            recording, placed = made.recording, made.plan
            joined = self.session.device.target.is_cpu and not options.backward and options.fuse and self.switches.joined
            commands = CommandList(self.session, recording.schedule, placed, recording.step, self.switches.poison, self.arena, options.apart, joined)
            commands.prefetchers = self.inputs.prefetchers
            self._compiled[key] = CompiledNet(recording, placed, commands, options, update)
            self._forget_old(kind)
        self._compiled.move_to_end(key)
        return self._compiled[key]

    def unlimited(self, options: NetOptions, update: Update | None = None) -> Schedule:
        """Return the schedule without a memory limit. Nothing is allocated on the device."""
        options = replace(options, limit=None)
        return compile_net(self.graph, self.group, self.session.device.target, options, self.switches, update).recording.schedule

    def bound(self, options: NetOptions | None = None, update: Update | None = None) -> CompiledNet:
        """Return the compiled net, bound to the device."""
        compiled = self.compiled(options, update)
        if compiled.commands not in self.session.command_lists:
            self.session.bind([compiled.commands], poison=self.switches.poison)
        return compiled

    def begin(self, compiled: CompiledNet, words: Mapping[str, float] | None = None) -> None:
        """Begin a pass that no solver counts. `words`: of the step buffer, where they are not those of the next pass without an update."""
        compiled.commands.set_step(**{"RATE": 0.0, "ITERATION": self.passes, "PASS": 0, "SAMPLE": 0, **(words or {})})
        self.passes += 1

    def run(self, compiled: CompiledNet, start: int = 0, stop: Callable[[Recording], int] | None = None) -> CompiledNet:
        """Enqueue the launches from `start` up to `stop(recording)` (default: all). Return the compiled net that holds the results.

        If a layer's measured extent gives its tops other shapes, the rest of the net runs in the compiled net for those
        shapes. All values that later launches need are copied to it.
        """
        while True:
            try:
                compiled.commands.run(start, None if stop is None else stop(compiled.recording))
                return compiled
            except Measured as measured:
                compiled = self._resized(compiled, measured)
                start = measured.step + 1

    def _resized(self, old: CompiledNet, measured: Measured) -> CompiledNet:
        measured.layer.extent = measured.extent
        self.inferences += 1
        infer_shapes(self.graph, {blob: blob.shape for node in self.graph.nodes if not node.bottoms for blob in node.tops})
        new = self.compiled(old.options, old.update)
        if new is old:
            return old
        # The values are read before binding, because binding may move the arena.
        values = {new.recording.step: old.commands.read(old.recording.step)}
        for source, target in self._carried(old, new, measured):
            if target.root.role is not Role.CONSTANT and (source.root is not target.root or new.commands.is_output(target)):
                values[target] = old.commands.read(source)
        self.bound(old.options, old.update)
        new.commands.go_on(old.commands.runs)
        for ref, array in values.items():
            new.commands.write(ref, array)
        return new

    def _carried(self, old: CompiledNet, new: CompiledNet, measured: Measured) -> Iterator[tuple[Ref, Ref]]:
        """Yield the values to carry over. Raises Error if the two plans keep other values, which happens only under a memory limit."""
        found = carried(old.commands.schedule, new.commands.schedule, measured.step)
        lost = [target for source, target in found or () if source is None]
        if found is None or lost:
            fact = f"needs '{lost[0].name}', which the plan for the old shape has dropped" if lost else "has other launches before this layer"
            assert old.options is not None and old.options.limit is not None, f"layer '{measured.layer.param.name}': the plan for its new shape {fact}"
            raise measured.layer.error(f"with its new shape, the plan {fact} to keep the memory limit", "a larger --memory-limit")
        for source, target in found:
            if source is not None:
                yield source, target

    def move_to(self, session: Session) -> None:
        """Continue in another session, which has the persistent buffers of this one. All compiled nets are dropped."""
        for compiled in self._compiled.values():
            if compiled.commands in self.session.command_lists:
                self.session.release(compiled.commands)
        self._compiled.clear()
        self.inputs.move_to(session)
        self.session = session

    def forget(self, options: NetOptions) -> None:
        """Free the device resources of the compiled nets for these options."""
        self._drop([key for key, compiled in self._compiled.items() if compiled.options == options])

    def _forget_old(self, kind: Any) -> None:
        self._drop([other for other in self._compiled if other[0] == kind][:-SHAPES_KEPT])

    def _drop(self, keys: Sequence[Any]) -> None:
        for key in keys:
            commands = self._compiled.pop(key).commands
            if commands in self.session.command_lists:
                self.session.release(commands)

    def shape_key(self) -> tuple[Shape, ...]:
        """Return the shapes that determine all others: of inputs, of data tops and of tops with a measured extent."""
        if self._shape_key is None or self._shape_key[0] != self.inferences:
            shapes = tuple(blob.shape for node in self.graph.nodes if not node.bottoms or node.layer.extent is not None for blob in node.tops)
            self._shape_key = self.inferences, shapes
        return self._shape_key[1]

    def reshape(self, shapes: dict[str, Shape], strict: bool = True) -> None:
        """Infer all shapes again from new shapes of Input tops. Parameters must keep their shapes.

        After an Error the net is as before. If not `strict`, layers that cannot have their new shapes become unfit: as in Caffe, a run of a part that
        ends before them is possible.
        """
        old = {blob: blob.shape for node in self.graph.nodes for blob in node.tops}
        extents = [node.layer.extent for node in self.graph.nodes]
        for node in self.graph.nodes:
            node.layer.extent = None  # was measured for the old shapes
        self.inferences += 1
        try:
            given = {blob: shapes.get(blob.name, shape) for blob, shape in old.items() if not (blob.producer and blob.producer.bottoms)}
            infer_shapes(self.graph, given, strict)
        except Error:
            for node, extent in zip(self.graph.nodes, extents):
                node.layer.extent = extent
            infer_shapes(self.graph, self._fitting or old)  # restores the state that layers set in infer
            self._fitting = None
            raise
        if not any(node.unfit for node in self.graph.nodes):
            self._fitting = None
        elif self._fitting is None:
            self._fitting = old

    def check_fit(self, first: int, last: int) -> None:
        """Raise the Error of the first unfit layer from index `first` to `last`. The net then has its last shapes without an unfit layer."""
        if self._fitting is None:
            return
        problem = next((node.unfit for node in self.graph.nodes[first : last + 1] if node.unfit), None)
        if problem is not None:
            fitting, self._fitting = self._fitting, None
            self.inferences += 1
            infer_shapes(self.graph, fitting)
            raise problem

    def follow_batch(self) -> bool:
        """Adapt to the shapes of the next batch, which a data layer may change. Return whether they have changed."""
        shapes = self.inputs.next_shapes()
        if shapes:
            self.reshape(shapes)
        return bool(shapes)

    def reads_late(self, compiled: CompiledNet) -> bool:
        """Return whether an output is in recycled memory and must therefore be read before the next run."""
        return not all(compiled.commands.is_output(compiled.recording.data[blob.name]) for blob in self.graph.outputs)

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

    def close(self) -> None:
        """Stop the prefetching threads."""
        self.inputs.close()


def first_values(parameter: Parameter, seed: int) -> np.ndarray:
    """Return the filler's values for a parameter. The filler's errors get the layer's place."""
    if isinstance(parameter.filler, np.ndarray):
        return parameter.filler
    try:
        return fill(parameter.filler, parameter.shape, generator(seed, parameter.layer, parameter.index))
    except Error as error:
        raise Error(error.fact, place=error.place or parameter.place, layer=f"'{parameter.layer}'", fix=error.fix) from error


def node_shape(parameter: Parameter, layer: str) -> Shape:
    """Return the shape of a parameter as `layer` declared it; layers that share it can declare different shapes."""
    return next((shape for user, _, shape in parameter.users if user == layer), parameter.shape)


def fitting(graph: Graph, weights: Weights, file: str) -> Iterator[tuple[Parameter, np.ndarray]]:
    """Yield the parameters of equally named layers, each with its blob in a weights file. Raises Error for other shapes, naming both."""
    nodes = {node.name: node for node in graph.nodes}
    for layer in weights.layers:
        node = nodes.get(layer.name)
        if node is None:
            log.info("net.cpp:744", f"Ignoring source layer {layer.name}")
            continue
        where = {"place": file, "layer": f"'{node.name}' ({node.type})"}
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
                raise Error(
                    f"{'weight' if index == 0 else 'blob'} {index} is {shape_text(blob.shape)} in the file, {shape_text(parameter.shape)} in the net",
                    fix=f"rename the layer (for example '{node.name}_new') to train it from its filler, or make the shapes equal", **where,
                )  # fmt: skip
            yield parameter, values
