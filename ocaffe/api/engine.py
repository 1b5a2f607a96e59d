"""Run a network for scripts: send the arrays that they changed before a run, and refresh the arrays that they hold after it.

A `Net`, its blobs and its layers hold references to the engine, which holds none to them. So dropping a net frees its
buffers at once.
"""
from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from ocaffe.api.names import Names, What
from ocaffe.cl.command_list import CommandList
from ocaffe.cl.device import check_process, forked
from ocaffe.cl.failure import explained
from ocaffe.cl.session import Session
from ocaffe.compiler.compile import CompiledNet
from ocaffe.compiler.network import Network
from ocaffe.errors import Error
from ocaffe.graph.options import NetOptions
from ocaffe.ir.graph import Blob, Parameter
from ocaffe.ir.tensor import Ref, Role, Shape

Hook = Callable[[int], object]  # called with the index of a layer


class Mirror(Protocol):
    """The interface of a blob's array that an engine uses (ocaffe/api/blob.py)."""

    shape: Shape

    def flush(self) -> None:
        """Send the values that the script wrote to the device."""

    def refresh(self) -> None:
        """Read the values on the device into the script's array."""


class Lease:
    """Owner of the buffers of a session. All nets and solvers on the session hold it; the buffers are freed with the last."""

    def __init__(self, session: Session, owns_device: bool = False) -> None:
        self.session, self.owns_device = session, owns_device
        self.engines: weakref.WeakSet[Engine] = weakref.WeakSet()

    def close(self) -> None:
        """Free all buffers. The nets of the session cannot be used afterwards."""
        for engine in self.engines:
            engine.closed = True
            engine.network.close()
        self.session.dispose()
        if self.owns_device and self.session.device.context is not None:
            self.session.device.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be exiting
            if not forked():
                self.close()


class Engine:
    """A network with its present shapes and options, and the arrays that scripts hold of its blobs.

    `fixed`: a solver owns the network, and `options` are those of its passes. Memory then stays in place.
    """

    def __init__(self, network: Network, lease: Lease, options: NetOptions, fixed: bool = False) -> None:
        self.network, self.lease, self.fixed = network, lease, fixed
        lease.engines.add(self)
        self.closed = False
        self.shapes: dict[str, Shape] = {}  # requested, other shapes not yet inferred from them
        self.options = options.holding_gradients() if options.backward else options
        self.compiled: CompiledNet | None = None
        self._state: tuple[NetOptions, int] | None = None  # key of `compiled`: a lookup in the network takes as long as a small launch
        self.shown: CompiledNet | None = None  # the compiled net that a solver ran last, whose outputs scripts see
        self.ran = False  # whether the engine has begun a forward pass
        self.mirrors: dict[tuple[str, str], Mirror] = {}  # of blobs, by "data" or "diff" and name; the session has those of parameters
        self.hooks: dict[str, list[Hook]] = {"before_forward": [], "after_forward": [], "before_backward": [], "after_backward": []}
        self.reach = len(network.graph.nodes)  # the last layer that the present compiled net has run
        self._gradients: dict[Parameter, Ref | None] = {}
        self.names = Names(network.graph)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            if not self.fixed and not forked():
                self.close()

    @property
    def session(self) -> Session:
        return self.network.session

    def check_open(self) -> None:
        check_process()
        if self.closed:
            raise Error("the net is closed", fix="make a new Net, or close it later")

    # -- Refs --------------------------------------------------------------------------------------------------------

    def current(self) -> CompiledNet:
        """Return the bound compiled net for the present shapes and options. Raises Error on a closed net."""
        self.check_open()
        compiled, network = self.compiled, self.network
        # A pass of a small net calls this seven times, so the usual case needs no further call.
        state = self.options, network.shapes.inferences
        if compiled is None or self.shapes or self._state != state or compiled.commands not in network.session.command_lists:
            return self._compiled_again()
        return compiled

    @explained
    def _compiled_again(self) -> CompiledNet:
        if self.shapes:
            self.reshape()
        state = self.options, self.network.shapes.inferences
        self.compiled = self.network.nets.bound(self.options)
        self._state = state
        return self.compiled

    def refs(self, name: str, what: What) -> tuple[Ref | None, Ref | None]:
        """Return the Refs to read and to write a blob's data or diff; None: the net has no such diff.

        If in-place layers work on a blob, several Refs have its name. A recording for whole passes reads the last one
        and writes the first one; for a diff, the reverse. A recording that runs layer by layer (`apart`) reads and
        writes the value of the layer that ran last. In Caffe all these values share one buffer.
        Raises Error if the blob has no memory of its own.
        """
        if what == "data" and self.shown is not None and self.shown.commands.outputs.holds(output := self.shown.recording.data[name]):
            return output, output
        if what == "diff" and not self.options.backward:
            self.switch(backward=True)
        recording = self.current().recording
        first, last = (recording.first_data[name], recording.data[name]) if what == "data" else (recording.diff[name], recording.first_diff[name])
        if self.options.apart:
            first = last = self._present(name, what)
        source, target = last if last is not None else first, first if first is not None else last
        if source is not None and not source.persistent and what == "diff" and target is not None and target.persistent:
            source = target  # an output that is not kept: the diff that the user sets
        if what == "data" and (source is None or not source.persistent) and target is not None and target.persistent:
            source = target  # an input that a layer replaces, and that is not kept: the value that the user sets
        if what == "data" and source is None:
            raise Error(f"blob '{name}' has no memory, because its layer is fused with the next one", fix=f"Net(..., keep=['{name}'])")
        if source is not None and not source.persistent:
            raise Error(f"the memory of blob '{name}' is reused by other blobs", fix=f"Net(..., keep=['{name}'])")
        if what == "data" and target is not None and not target.persistent:
            target = source  # an output that is computed in place: its first value has no memory of its own, and the next pass overwrites it
        return source, target

    def readable(self, name: str) -> bool:
        """Return whether the diff of a blob has memory that no other blob uses, or does not exist (then it is zero)."""
        assert self.compiled is not None
        ref = self.compiled.recording.first_diff[name]
        return ref is None or ref.persistent

    def gradient(self, parameter: Parameter) -> Ref | None:
        """Return the Ref of the gradient of a parameter; None: the net computes no gradient."""
        if parameter not in self._gradients:
            self._gradients[parameter] = self.network.group.held_gradient(parameter)
        return self._gradients[parameter]

    @explained
    def read(self, ref: Ref) -> np.ndarray:
        return self._commands_of(ref).read(ref)

    @explained
    def write(self, ref: Ref, array: np.ndarray) -> None:
        self._commands_of(ref).write(ref, array)

    def given(self, name: str, values: np.ndarray) -> None:
        """Tell the layer whose top is the blob `name` that a script wrote `values` into it."""
        producer = self.network.graph.first[name].producer
        if producer is not None:
            producer.layer.given(name, values)

    def _commands_of(self, ref: Ref) -> CommandList:
        if self.shown is not None and self.shown.commands.outputs.holds(ref):
            return self.shown.commands
        return (self.compiled or self.current()).commands

    def is_fed(self, name: str) -> bool:
        """Return whether a blob is the top of an Input or data layer, so that its shape comes from outside the net."""
        blob = self.network.graph.first[name]
        return blob.producer is None or not blob.producer.bottoms

    # -- arrays of scripts -------------------------------------------------------------------------------------------

    def before(self) -> CompiledNet:
        """Send the values that scripts wrote to the device. A call of `after` must follow."""
        compiled = self.current()
        session = self.session
        touched, session.touched = session.touched, []
        for mirror in touched:
            mirror.flush()
        return compiled

    def after(self) -> None:
        """Refresh the arrays that scripts still hold."""
        session = self.session
        watched, session.watched = session.watched, []
        for mirror in watched:
            mirror.refresh()

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Context of code that changes values outside a run. Scripts' arrays are sent before it and refreshed after it."""
        with explained:
            self.before()
            yield
            self.after()

    def forget_arrays(self) -> None:
        """Drop the mirrors of blobs whose shape has changed."""
        shapes = {name: blob.shape for name, blob in self.network.graph.blobs.items()}
        gone = {mirror for (_, name), mirror in self.mirrors.items() if mirror.shape != shapes[name]}
        if gone:
            self.mirrors = {key: mirror for key, mirror in self.mirrors.items() if mirror not in gone}
            self.session.touched = [mirror for mirror in self.session.touched if mirror not in gone]
            self.session.watched = [mirror for mirror in self.session.watched if mirror not in gone]

    def reshape(self, strict: bool = False) -> None:
        """Infer all shapes from the requested ones. Raises Error for a layer that cannot have such a shape, if not `strict` only where it runs."""
        shapes, self.shapes = self.shapes, {}
        try:
            self.network.shapes.reshape(shapes, strict)
        finally:
            self.forget_arrays()
            self.compiled = None

    def check_fit(self, first: int, last: int) -> None:
        """Raise Error if a layer from index `first` to `last` cannot run with the requested shapes. The net then has its earlier shapes."""
        self.check_open()
        if self.shapes:
            self.reshape()
        try:
            self.network.shapes.check_fit(first, last)
        except Error:
            self.forget_arrays()
            self.compiled = None
            raise

    def move(self, lease: Lease) -> None:
        """Continue in another session, which has adopted the buffers of this one. Command lists are built again."""
        self.network.move_to(lease.session)
        self.compiled = None
        self.lease.engines.discard(self)
        lease.engines.add(self)
        self.lease = lease

    # -- running -----------------------------------------------------------------------------------------------------

    def _stops(self, first: int, last: int, *kinds: str) -> list[tuple[int, int]]:
        """Return the layer ranges of a run: one range, or one per layer if a hook is called for each."""
        if not self._layerwise(*kinds):
            return [(first, last)]
        step = 1 if first <= last else -1
        return [(index, index) for index in range(first, last + step, step)]

    def _call(self, kind: str, index: int) -> None:
        for hook in tuple(self.hooks[kind]):
            hook(index)

    @explained
    def forward(self, first: int, last: int, words: Mapping[str, float] | None = None) -> None:
        """Run the layers from index `first` to `last`. `words`: of the step buffer. Raises Error if an input of the first layers is not kept."""
        network, nodes = self.network, self.network.graph.nodes
        self.check_fit(first, last)
        if first or last < len(nodes) - 1 or self._layerwise("before_forward", "after_forward"):
            self._check_start(first, last)
            self.switch(apart=True, anew=first == 0)
        if first <= self.reach + 1:
            self.reach = max(self.reach, last)
        if network.inputs.sources:
            network.inputs.start()
            if network.follow_batch():
                self.forget_arrays()
        compiled, self.shown = self.current(), None
        if first == 0:
            network.begin(compiled, words)
            self.ran = True
        for begin, end in self._stops(first, last, "before_forward", "after_forward"):
            self._enter("data", begin, begin > 0)
            self._call("before_forward", begin)
            self.before()
            self._run_forward(begin, end)
            self.after()
            self._call("after_forward", end)

    def _run_forward(self, begin: int, end: int) -> None:
        compiled = self.current()
        if compiled.recording.forward_ranges:
            compiled = self.network.nets.run(compiled, compiled.recording.forward_ranges[begin][0], lambda recording: recording.forward_ranges[end][1])
        if compiled is not self.compiled:  # a measured extent changed the shapes
            self.forget_arrays()
            self.compiled, self._state = compiled, (self.options, self.network.shapes.inferences)
        if self.options.apart:
            self.names.ran("data", begin, end)

    @explained
    def backward(self, first: int, last: int) -> None:
        """Run backward from layer index `first` down to `last`, on the values of the last forward pass.

        Raises Error if these values are no longer in memory.
        """
        nodes = self.network.graph.nodes
        self.check_fit(last, first)
        if not self.options.backward:
            self.switch(backward=True)
        compiled = self.current()
        arena = compiled.commands.arena
        if not self.network.passes and not self.ran and self.shown is None:  # forward never ran: all values are zeros, as in Caffe
            self.session.clear_arena(arena)
            arena.commands, arena.reached, self.ran = compiled.commands, compiled.recording.forward_end, True
        if compiled.plan.slabs and (arena.commands is not compiled.commands or self.reach < first):
            fact = "the values that backward needs of forward are not in memory: forward has not run, or another pass reused the memory"
            raise Error(fact, fix="run forward directly before backward")
        # A first backward pass may have overwritten values that backward reads.
        again = bool(compiled.plan.slabs) and arena.reached != compiled.recording.forward_end
        if first < len(nodes) - 1 or last > 0 or again or self._layerwise("before_backward", "after_backward"):
            self._check_diffs(first, last)
            self.switch(apart=True)
        for begin, end in self._stops(first, last, "before_backward", "after_backward"):
            self._enter("diff", begin, begin < len(nodes) - 1)
            self._call("before_backward", begin)
            compiled = self.before()
            found = compiled.recording.backward_ranges
            ranges = [found[index] for index in range(begin, end - 1, -1) if index in found]
            if ranges:
                compiled.commands.run(ranges[0][0], ranges[-1][1])
            if self.options.apart:
                self.names.ran("diff", begin, end)
            self.after()
            self._call("after_backward", end)

    def loss(self, first: int, last: int) -> float:
        """Return the part of the last run's loss that comes from the layers with index `first` to `last`."""
        assert self.compiled is not None
        layers = [index for index, node in enumerate(self.network.graph.nodes) for top in node.tops if top.loss_weight]
        losses = zip(layers, self.compiled.recording.losses)
        return float(sum(np.float32(weight) * self.read(ref).sum(dtype=np.float32) for index, (ref, weight) in losses if first <= index <= last))

    # -- parts of a net ----------------------------------------------------------------------------------------------

    @property
    def hooked(self) -> bool:
        """Whether any hook is called between the layers."""
        return self._layerwise(*self.hooks)

    def _layerwise(self, *kinds: str) -> bool:
        """Return whether a hook is called between the layers."""
        hooks = self.hooks
        for kind in kinds:  # noqa: SIM110  any() of a generator would take a microsecond of a small net's pass
            if hooks[kind]:
                return True
        return False

    def _enter(self, what: What, index: int, carry: bool) -> None:
        """Before layer `index` runs, make the names of in-place blobs refer to the values that this layer reads.

        With `carry`, copy the values that the names referred to before.
        """
        if not self.options.apart:
            return
        blobs = self.current().recording.blobs
        for old, new in self.names.enter(what, index):
            source, target = (blobs[blob][what == "diff"] for blob in (old, new))
            if carry and source is not None and target is not None:
                self.write(target, self.read(source))

    def _check_start(self, first: int, last: int) -> None:
        """Raise Error if a run that starts inside the net needs a blob of an earlier layer that is not kept."""
        nodes = self.network.graph.nodes
        inside = {top for node in nodes[first : last + 1] for top in node.tops}
        for node in nodes[first : last + 1] if first else ():
            for blob in node.bottoms:
                if blob not in inside and not self._keeps(blob) and blob not in self.network.graph.inputs:
                    raise Error(f"layer '{node.name}' needs blob '{blob.name}', whose memory other blobs reuse", fix=f"Net(..., keep=['{blob.name}'])")

    def _check_diffs(self, first: int, last: int) -> None:
        """Raise Error if a backward run that starts inside the net needs a diff of a later layer that is not kept."""
        outputs = self.network.graph.outputs
        for index, node in reversed(list(enumerate(self.network.graph.nodes[last : first + 1], last))):
            for blob in node.tops if node.backward else ():
                reader = blob.consumer
                later = reader is not None and reader.backward and reader not in self.network.graph.nodes[index + 1 : first + 1]
                if later and not self._keeps(blob) and blob not in outputs:
                    fact = f"backward of layer '{node.name}' needs the diff of blob '{blob.name}', whose memory other blobs reuse"
                    raise Error(fact, fix=f"Net(..., keep=['{blob.name}'])")

    def _keeps(self, blob: Blob) -> bool:
        while not self.options.keeps(blob.name) and blob.producer is not None and blob.producer.type == "Split":
            blob = blob.producer.bottoms[0]
        return self.options.keeps(blob.name)

    def switch(self, backward: bool = False, apart: bool = False, anew: bool = False) -> None:
        """Switch to another recording of the net; data and diffs keep their values.

        The method repeats the last forward pass in the new recording, because its memory is laid out differently.
        If the pass cannot be repeated, the method raises Error. With `anew` it does not repeat such a pass, because the
        caller runs forward from the first layer.
        """
        options = replace(self.options, backward=self.options.backward or backward, apart=self.options.apart or apart)
        if options == self.options:
            return
        graph, old = self.network.graph, self.current()
        arena, was = old.commands.arena, old.recording
        ran = arena.commands is old.commands if old.plan.slabs else self.ran
        back = arena.reached > was.forward_end
        if not self.options.apart:
            self.names.restart(ran, back)
        names_now = {what: dict(now) for what, now in self.names.now.items()}
        there: dict[What, bool] = {"data": ran or self.network.passes > 0 or self.shown is not None, "diff": self.options.backward}
        kept = [(name, what, self._present(name, what)) for name in graph.blobs if self.options.keeps(name) for what in there if there[what]]
        values = [(name, what, self.read(ref)) for name, what, ref in kept if ref is not None and ref.persistent]
        step, before = old.commands.read(was.step), self.options
        self.options = options
        try:
            new = self.current()
        except Error as error:
            self.options = before
            if apart:
                raise Error(f"to run a part of the net, every blob needs its own memory: {error.fact}", place=error.place, fix=error.fix) from error
            raise
        self.reach = len(graph.nodes)
        if ran and not (anew and self._once()):
            new.commands.write(new.recording.step, step)
            self._repeat()
        elif ran:
            self.reach = -1
        if not self.fixed:
            self.network.nets.forget(before)
        self.names.now = names_now
        for name, what, value in values:
            ref = self._present(name, what)
            if ref is not None:
                self.write(ref, value)

    def _present(self, name: str, what: What) -> Ref | None:
        """Return the Ref that a name refers to at present."""
        blob = self.names.now[what].get(name) or self.network.graph.blobs[name]
        return self.current().recording.blobs[blob][what == "diff"]

    def together(self, shown: CompiledNet | None = None) -> None:
        """Return to the recording for whole passes. `shown` is the compiled net that a solver ran; scripts see its outputs."""
        self.shown = shown
        if self.options.apart:
            self.options, self.compiled = replace(self.options, apart=False), None

    def _repeat(self) -> None:
        """Repeat the last forward pass with the same batch and random numbers. Running statistics do not advance again."""
        network = self.network
        once = self._once()
        if once:
            self.reach = -1
            raise Error(f"layer '{once}' gives different values each time, so forward cannot be repeated with other options", fix="run forward again")
        network.inputs.start()
        network.inputs.seek({name: max(batch - 1, 0) for name, batch in network.inputs.cursor.items()})
        recording = self.current().recording
        running = {ref for launch in recording.schedule[: recording.forward_end] for ref in launch.writes if ref.root.role is Role.PARAMETER}
        statistics = [(ref, self.read(ref)) for ref in running]
        self.ran = True
        layers = [node.layer for node in network.graph.nodes]
        for layer in layers:
            layer.repeats = True
        try:
            self._run_forward(0, len(layers) - 1)
        finally:
            for layer in layers:
                layer.repeats = False
        for ref, value in statistics:
            self.write(ref, value)

    def _once(self) -> str:
        """Return the name of a layer that gives other values when it runs again (a Python source, or a layer with state), or ''."""
        schedule = self.current().recording.schedule
        states = (launch.layer for launch in schedule for ref in launch.writes if ref.root.role is Role.STATE)
        return next(states, "") or next((node.name for node in self.network.graph.nodes if node.type == "Python" and not node.bottoms), "")

    def close(self) -> None:
        """Stop reading data and free the net's memory on the device. The last net of a session frees all its buffers."""
        self.closed = True
        self.network.close()
        session, mine = self.session, set(self.mirrors.values())
        session.touched = [mirror for mirror in session.touched if mirror not in mine]
        session.watched = [mirror for mirror in session.watched if mirror not in mine]
        self.lease.engines.discard(self)
        if self.lease.engines:
            self.network.move_to(self.session)
        else:
            self.lease.close()
