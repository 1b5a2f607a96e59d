"""Runs a network for scripts: what they wrote is on the device before a run, and what they hold is fresh after it.

A `Net`, its blobs and its layers hold the engine; nothing holds them. So a net that a script drops gives its buffers back at once.
"""
from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ocaffe.blob import Mirror
from ocaffe.cl.session import Session
from ocaffe.cl.tape import Tape
from ocaffe.errors import Error
from ocaffe.graph.ir import Parameter, Ref, Role, Shape
from ocaffe.graph.record import Choices
from ocaffe.network import Network, Variant

PARAMETERS = (Role.PARAMETER, Role.GRADIENT)  # roles of what keeps its shape when the net gets another
Hook = Callable[[int], object]  # gets the index of a layer


class Lease:
    """Keeps the buffers of a session; all nets and solvers that share it hold one. With the last of them the buffers go."""

    def __init__(self, session: Session, owns_device: bool = False) -> None:
        self.session, self.owns_device = session, owns_device
        self.engines: weakref.WeakSet[Engine] = weakref.WeakSet()

    def close(self) -> None:
        """Free all buffers; the nets of the session are of no use from here on."""
        for engine in self.engines:
            engine.closed = True
            engine.network.close()
        self.session.dispose()
        if self.owns_device and self.session.device.context is not None:
            self.session.device.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be going down
            self.close()


class Engine:
    """A network with its present shapes and choices, and the arrays of it that scripts have.

    `fixed`: a solver owns the network, so its memory stays where it is.
    """

    def __init__(self, network: Network, lease: Lease, fixed: bool = False) -> None:
        self.network, self.lease, self.fixed = network, lease, fixed
        lease.engines.add(self)
        self.closed = False
        self.shapes: dict[str, Shape] = {}  # asked for, not yet carried through the net
        self.choices = network.choices
        if fixed and self.choices.backward:  # what the solver's own passes run when somebody looks (Solver._pass_variant)
            self.choices = replace(self.choices, hold_gradients=True, accumulate=True)
        self.variant: Variant | None = None
        self._state: tuple[Choices, int] | None = None  # that the variant is of: looking it up takes as long as a small launch
        self.slot: int | None = None  # the number of the last run in the variant's tape, which backward goes on with
        self.mirrors: dict[Any, Mirror] = {}  # of blobs; those of parameters belong to the session
        self.hooks: dict[str, list[Hook]] = {"before_forward": [], "after_forward": [], "before_backward": [], "after_backward": []}
        self._gradients: dict[Parameter, Ref] = {}

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            if not self.fixed:
                self.close()

    @property
    def session(self) -> Session:
        return self.network.session

    # -- Refs --------------------------------------------------------------------------------------------------------

    def current(self) -> Variant:
        """The bound variant for the present shapes and choices. Raises Error on a closed net."""
        if self.closed:
            raise Error("the net is closed", fix="make a new one")
        if self.shapes:
            self.reshape()
        state = self.choices, self.network.inferences
        if self.variant is None or state != self._state or self.variant.tape not in self.session.tapes:
            self.variant = self.network.bound(self.choices)
            self._state = state
        return self.variant

    def refs(self, name: str, parameter: Parameter | None, what: str) -> tuple[Ref | None, Ref | None]:
        """Where to read and where to write a blob's data or diff; None: the net has no such diff. Raises Error for recycled memory."""
        if parameter is not None:
            if self.closed:
                self.current()
            ref = parameter.data if what == "data" else self._gradient(parameter)
            return ref, ref
        if what == "diff" and not self.choices.backward:
            self.with_backward()
        recording = self.current().recording
        if what == "data":
            source, target = recording.data[name], recording.first_data[name]
        else:
            first, last = recording.first_diff[name], recording.diff[name]
            source, target = first if first is not None else last, last if last is not None else first  # type: ignore[assignment]
        if source is not None and not source.persistent and what == "diff" and target is not None and target.persistent:
            source = target  # of an output that is not kept: what the user sets
        if source is not None and not source.persistent:
            raise Error(f"the memory of blob '{name}' is used again by other blobs", fix=f"Net(..., keep=['{name}'])")
        return source, target

    def readable(self, name: str) -> bool:
        """Whether the diff of a blob has memory that no other blob uses, or does not exist (then it is zero)."""
        assert self.variant is not None
        ref = self.variant.recording.first_diff[name]
        return ref is None or ref.persistent

    def _gradient(self, parameter: Parameter) -> Ref | None:
        group = self.network.group
        if not parameter.propagate or parameter not in group.params:  # a TEST net of a solver computes none for what it shares
            return None
        if parameter not in self._gradients:
            self._gradients[parameter] = group.held.view(parameter.shape, group.offsets[group.params.index(parameter)])
        return self._gradients[parameter]

    def read(self, ref: Ref) -> np.ndarray:
        return self._tape().read(ref)

    def write(self, ref: Ref, array: np.ndarray) -> None:
        self._tape().write(ref, array)

    def _tape(self) -> Tape:
        return (self.variant or self.current()).tape

    def is_fed(self, name: str) -> bool:
        """Whether a blob gets its shape from outside: the top of an Input or data layer."""
        blob = self.network.graph.first[name]
        return blob.producer is None or not blob.producer.bottoms

    # -- arrays of scripts -------------------------------------------------------------------------------------------

    def before(self) -> Variant:
        """Bring what scripts wrote to the device; `after` must follow."""
        variant = self.current()
        session = self.session
        touched, session.touched = session.touched, []
        for mirror in touched:
            mirror.flush()
        return variant

    def after(self) -> None:
        """Refresh the arrays that scripts still hold."""
        session = self.session
        watched, session.watched = session.watched, []
        for mirror in watched:
            mirror.refresh()

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Something outside a run changes values: arrays that scripts hold are written before and refreshed after."""
        self.before()
        yield
        self.after()

    def drop_arrays(self) -> None:
        """Forget the arrays of blobs: their shapes change."""
        session = self.session
        for mirror in session.touched:
            if mirror.engine() is self and mirror.target.role is Role.INPUT:  # what was written into another input stays, if that keeps its shape
                mirror.flush()
        session.touched = [mirror for mirror in session.touched if mirror.engine() is not self or mirror.target.role in PARAMETERS]
        session.watched = [mirror for mirror in session.watched if mirror.engine() is not self or mirror.target.role in PARAMETERS]
        self.mirrors.clear()

    def reshape(self) -> None:
        """Carry the shapes that were asked for through the net."""
        shapes, self.shapes = self.shapes, {}
        self.drop_arrays()
        self.network.reshape(shapes)
        self.variant = None

    def move(self, lease: Lease) -> None:
        """Go on in another session, which has adopted the buffers of this one; tapes are made anew."""
        self.drop_arrays()
        self.network.move_to(lease.session)
        self.variant = None
        self.lease.engines.discard(self)
        lease.engines.add(self)
        self.lease = lease

    # -- running -----------------------------------------------------------------------------------------------------

    def _stops(self, first: int, last: int, *kinds: str) -> list[tuple[int, int]]:
        """The parts of a run: all at once, or layer by layer where somebody waits for each."""
        if not any(self.hooks[kind] for kind in kinds):
            return [(first, last)]
        step = 1 if first <= last else -1
        return [(index, index) for index in range(first, last + step, step)]

    def _call(self, kind: str, index: int) -> None:
        for hook in tuple(self.hooks[kind]):
            hook(index)

    def forward(self, first: int, last: int) -> None:
        """Run the layers from index `first` to `last`."""
        network = self.network
        if network.sources:
            network.start_prefetch()
            shapes = network.next_shapes()
            if shapes:
                network.reshape(shapes)
        variant = self.current()
        self._check_start(first, last)
        if first == 0:
            variant.tape.set_step(RATE=0.0, ITERATION=network.runs, PASS=0, SAMPLE=0)
            network.runs += 1
            self.slot = variant.tape.runs
        for begin, end in self._stops(first, last, "before_forward", "after_forward"):
            self._call("before_forward", begin)
            variant = self.before()
            if variant.recording.forward_ranges:
                variant = network.run(variant, variant.recording.forward_ranges[begin][0], lambda recording: recording.forward_ranges[end][1])  # noqa: B023
            if variant is not self.variant:
                self.drop_arrays()
                self.variant, self._state = variant, (self.choices, network.inferences)
            self.after()
            self._call("after_forward", end)
        if network.sources and first == 0:
            variant.tape.runs += 1
            network.advance()

    def backward(self, first: int, last: int) -> None:
        """Run backward from layer index `first` down to `last`, with the batch of the last forward."""
        if not self.choices.backward:
            self.with_backward()
        for begin, end in self._stops(first, last, "before_backward", "after_backward"):
            self._call("before_backward", begin)
            variant = self.before()
            found = variant.recording.backward_ranges
            ranges = [found[index] for index in range(begin, end - 1, -1) if index in found]
            if ranges:
                variant.tape.run(ranges[0][0], ranges[-1][1], self.slot)
            self.after()
            self._call("after_backward", end)

    def loss(self, first: int, last: int) -> float:
        """Sum of what the layers from index `first` to `last` add to the loss, as of the last run."""
        assert self.variant is not None
        layers = [index for index, node in enumerate(self.network.graph.nodes) for top in node.tops if top.loss_weight]
        losses = zip(layers, self.variant.recording.losses)
        return float(sum(np.float32(weight) * self.read(ref).sum(dtype=np.float32) for index, (ref, weight) in losses if first <= index <= last))

    def _check_start(self, first: int, last: int) -> None:
        """A run that begins inside the net needs the values that earlier layers left."""
        nodes = self.network.graph.nodes
        inside = {id(top) for node in nodes[first : last + 1] for top in node.tops}
        for node in nodes[first : last + 1] if first else ():
            for blob in node.bottoms:
                if id(blob) not in inside and not blob.data.persistent:
                    raise Error(f"layer '{node.name}' needs blob '{blob.name}', whose memory is used again", fix=f"Net(..., keep=['{blob.name}'])")

    def with_backward(self) -> None:
        """A TEST net is recorded without backward; the first backward records it anew and repeats the forward pass."""
        self.before()
        self.choices = replace(self.choices, backward=True)
        if self.network.runs and self.network.sources:  # the same batch once more
            self.network.start_prefetch()
            self.network.seek({name: max(batch - 1, 0) for name, batch in self.network.cursor.items()})
        hooks, self.hooks = self.hooks, {kind: [] for kind in self.hooks}
        try:
            self.forward(0, len(self.network.graph.nodes) - 1)
        finally:
            self.hooks = hooks

    def close(self) -> None:
        """Stop reading data and free what the net has on the device; with the last net of a session all of it."""
        self.closed = True
        self.network.close()
        self.lease.engines.discard(self)
        if self.lease.engines:
            self.network.move_to(self.session)
        else:
            self.lease.close()
