"""`Net` and `Blob` as pycaffe users know them (CAFFE.md §4), on planned memory.

Arrays are numpy copies with write-through: what a script writes into `net.blobs['data'].data` is on the device before the next run, and an array that
is still held after a run shows the new values. All blobs are kept readable unless `keep` names fewer; that costs memory (`keep=[]` plans all of it).
"""
from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.cl.device import Device, select_device
from ocaffe.cl.session import Session
from ocaffe.errors import Error, shape_text
from ocaffe.graph.ir import Ref, Role, Shape
from ocaffe.graph.record import ALL, Choices
from ocaffe.layers.memory_data import MemoryData
from ocaffe.model.text import read_net
from ocaffe.model.weights import read_weights, write_weights
from ocaffe.network import Network, Variant, node_shape, phase_net
from ocaffe.solver.snapshot import DeviceBlobs

PARAMETERS = (Role.PARAMETER, Role.GRADIENT)  # roles of what keeps its shape when the net gets another


class Mirror:
    """A numpy copy of one blob that is written through before a run and refreshed after it while somebody holds it.

    `source` is where values are read, `target` where they are written: for a blob that a layer works on in place these are its last and first
    value (data), or the other way round (diff).
    """

    def __init__(self, net: Net, shape: Shape, source: Ref, target: Ref) -> None:
        self.net, self.shape, self.source, self.target = net, shape, source, target
        self._strong: np.ndarray | None = None  # from access to the next run: a script may have dropped its own reference
        self._weak: weakref.ref[np.ndarray] | None = None
        self._seen: np.ndarray | None = None  # the values at access, to tell whether the script changed them

    def array(self) -> np.ndarray:
        held = self._strong if self._strong is not None else self._weak() if self._weak is not None else None
        if held is None:
            held = self.net._read(self.source).reshape(self.shape)
            self._weak = weakref.ref(held)
        if self._strong is None:
            self._strong, self._seen = held, held.copy()
            self.net._network.session.touched.append(self)
        return held

    def flush(self) -> None:
        """Before a run: send what the script wrote."""
        if self._strong is not None and self._seen is not None and not np.array_equal(self._strong, self._seen, equal_nan=True):
            self.net._write(self.target, self._strong)
        self._strong = self._seen = None
        self._watch()

    def refresh(self) -> None:
        """After a run: an array that is still held shows the new values."""
        held = self._weak() if self._weak is not None else None
        if held is not None:
            held[...] = self.net._read(self.source).reshape(self.shape)
            self._watch()

    def _watch(self) -> None:
        if self._weak is not None and self._weak() is not None:
            self.net._network.session.watched.append(self)


class Blob:
    """A blob or parameter of a net: shape, writable `data` and `diff`."""

    def __init__(self, net: Net, name: str, parameter: Any = None, layer: str = "") -> None:
        self._net, self._name, self._parameter, self._layer = net, name, parameter, layer
        self._mirrors: dict[Any, Mirror] = {}

    @property
    def shape(self) -> Shape:
        if self._parameter is not None:
            return node_shape(self._parameter, self._layer)
        return self._net._shapes.get(self._name) or self._net._network.graph.blobs[self._name].shape

    @property
    def count(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def _legacy(self, axis: int) -> int:
        if len(self.shape) > 4:
            raise Error(f"blob '{self._name}' has {len(self.shape)} axes; num, channels, height and width exist for up to 4", fix="use shape")
        return self.shape[axis] if axis < len(self.shape) else 1

    num = property(lambda self: self._legacy(0))
    channels = property(lambda self: self._legacy(1))
    height = property(lambda self: self._legacy(2))
    width = property(lambda self: self._legacy(3))

    @property
    def data(self) -> np.ndarray:
        """Writable values, in the blob's shape; raises Error if the planner recycled the blob (name it in keep)."""
        return self._mirror("data")

    @data.setter
    def data(self, value: Any) -> None:
        self.data[...] = value

    @property
    def diff(self) -> np.ndarray:
        """Writable gradient; zeros where the net computes none."""
        return self._mirror("diff")

    @diff.setter
    def diff(self, value: Any) -> None:
        self.diff[...] = value

    def _mirror(self, what: str) -> np.ndarray:
        source, target = self._net._refs(self._name, self._parameter, what)
        if source is None or target is None:
            return np.zeros(self.shape, np.float32)
        mirrors = self._mirrors if self._parameter is None else self._net._network.session.mirrors
        key = (what, source, target, self.shape)
        if key not in mirrors:
            mirrors[key] = Mirror(self._net, self.shape, source, target)
        return mirrors[key].array()

    def reshape(self, *shape: int) -> None:
        """Give an input blob a new shape; `net.reshape()` or the next forward carries it through the net."""
        if any(int(n) < 1 for n in shape):
            raise Error(f"blob '{self._name}' cannot have the shape {shape_text(shape)}", fix="every axis needs at least one element")
        self._net._shapes[self._name] = tuple(int(n) for n in shape)


def _readable(ref: Ref) -> bool:
    """Whether a Ref has memory that no other blob uses."""
    return ref.persistent


class Net:
    """A network of one phase: `Net(file, phase)`, or the older `Net(file, weights, phase)`.

    `keep` names the blobs that stay readable (default: all); `device` is a Device or a device spec such as '0:0'. `memory_limit`: bytes on the device that
    the net must do with; what is kept counts, so name in `keep` what you read. Raises Error where it cannot be kept.
    """

    def __init__(
        self,
        network_file: str | Any,
        *args: Any,
        phase: int | None = None,
        level: int = 0,
        stages: Sequence[str] | None = None,
        weights: str | None = None,
        keep: Iterable[str] | None = None,
        device: Device | str | None = None,
        seed: int = 0,
        memory_limit: int | None = None,
    ) -> None:
        for arg in args:
            if isinstance(arg, str):
                weights = arg
            else:
                phase = int(arg)
        message = read_net(network_file) if isinstance(network_file, str) else network_file
        if phase is None:
            phase = message.state.phase if message.HasField("state") else proto.TEST
        session = Session(device if isinstance(device, Device) else select_device(device))
        kept = ALL if keep is None else frozenset(keep)
        choices = Choices(backward=phase == proto.TRAIN, keep=kept, observed_diffs=True, hold_gradients=True, accumulate=True,
                          limit=memory_limit, seed=seed)  # fmt: skip
        net = phase_net(message, phase, level, tuple(stages or ()))
        self._attach(Network(net, phase, session, choices, quiet=True, weights=[] if weights is None else [weights]))
        self._network.fill_parameters()
        if weights is not None:
            self._network.copy_weights(read_weights(weights), weights)

    @classmethod
    def _of(cls, network: Network) -> Net:
        """The API of a net that a solver runs."""
        self = cls.__new__(cls)
        self._attach(network)
        if self._choices.backward:  # what the solver's own passes run when somebody looks (Solver._pass_variant)
            self._choices = replace(self._choices, hold_gradients=True, accumulate=True)
        return self

    def _attach(self, network: Network) -> None:
        self._network = network
        self._shapes: dict[str, Shape] = {}
        self._choices = network.choices
        self._variant: Variant | None = None
        self._slot: int | None = None  # the number of the last run in the variant's tape, which backward goes on with
        self._gradients: dict[Any, Ref] = {}
        graph = network.graph
        self.blobs = OrderedDict((name, Blob(self, name)) for name in graph.blobs)
        self.params = OrderedDict(
            (node.name, [Blob(self, str(parameter), parameter, node.name) for parameter in node.params]) for node in graph.nodes if node.params
        )
        self.inputs = [blob.name for blob in graph.inputs]
        self.outputs = [blob.name for blob in graph.outputs]
        self._layer_names = [node.name for node in graph.nodes]
        self._blob_names = list(graph.blobs)

    # -- Refs --------------------------------------------------------------------------------------------------------

    def _current(self) -> Variant:
        """The bound variant for the present shapes and choices."""
        if self._shapes:
            self.reshape()
        self._variant = self._network.bound(self._choices)
        return self._variant

    def _refs(self, name: str, parameter: Any, what: str) -> tuple[Ref | None, Ref | None]:
        """Where to read and where to write a blob's data or diff; None: the net has no such diff."""
        if parameter is not None:
            ref = parameter.data if what == "data" else self._gradient(parameter)
            return ref, ref
        if what == "diff" and not self._choices.backward:
            self._with_backward()
        recording = self._current().recording
        if what == "data":
            source, target = recording.data[name], recording.first_data[name]
        else:
            first, last = recording.first_diff[name], recording.diff[name]
            source, target = first if first is not None else last, last if last is not None else first  # type: ignore[assignment]
        if source is not None and not _readable(source) and what == "diff" and target is not None and _readable(target):
            source = target  # of an output that is not kept: what the user sets
        if source is not None and not _readable(source):
            raise Error(f"the memory of blob '{name}' is used again by other blobs", fix=f"Net(..., keep=['{name}'])")
        return source, target

    def _gradient(self, parameter: Any) -> Ref | None:
        if not parameter.propagate:
            return None
        if parameter not in self._gradients:
            group = self._network.group
            self._gradients[parameter] = group.held.view(parameter.shape, group.offsets[group.params.index(parameter)])
        return self._gradients[parameter]

    def _read(self, ref: Ref) -> np.ndarray:
        return self._tape().read(ref)

    def _write(self, ref: Ref, array: np.ndarray) -> None:
        self._tape().write(ref, array)

    def _tape(self) -> Any:
        return (self._variant or self._current()).tape

    def _before(self) -> Variant:
        """Bring what scripts wrote to the device; `_after` must follow."""
        variant = self._current()
        session = self._network.session
        touched, session.touched = session.touched, []
        for mirror in touched:
            mirror.flush()
        return variant

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Something outside a run changes values: arrays that scripts hold are written before and refreshed after."""
        self._before()
        yield
        self._after()

    def _after(self) -> None:
        session = self._network.session
        watched, session.watched = session.watched, []
        for mirror in watched:
            mirror.refresh()

    # -- running -----------------------------------------------------------------------------------------------------

    def forward(self, blobs: Sequence[str] | None = None, start: str | None = None, end: str | None = None, **inputs: Any) -> dict[str, np.ndarray]:
        """Run from layer `start` to layer `end` (names, inclusive); returns {name: array} of the outputs (of `end`'s tops) and of `blobs`."""
        for name, value in inputs.items():
            if name not in self.inputs:
                raise Error(f"'{name}' is no input of the net", fix=f"inputs are {', '.join(self.inputs) or 'none'}")
            self.blobs[name].data[...] = value
        self._network.start_prefetch()
        shapes = self._network.next_shapes()
        if shapes:
            self._network.reshape(shapes)
        variant = self._before()
        graph = self._network.graph
        first = self._index(start) if start else 0
        last = self._index(end) if end else len(graph.nodes) - 1
        ranges = variant.recording.forward_ranges
        self._check_start(first, last)
        if ranges:
            if first == 0:
                variant.tape.set_step(RATE=0.0, ITERATION=self._network.runs, PASS=0, SAMPLE=0)
                self._network.runs += 1
                self._slot = variant.tape.runs
            variant = self._network.run(variant, ranges[first][0], lambda recording: recording.forward_ranges[last][1])
            if variant is not self._variant:
                self._drop_arrays()
                self._variant = variant
            if self._network.sources and first == 0:
                variant.tape.runs += 1
                self._network.advance()
        self._after()
        names = [top.name for top in graph.nodes[last].tops] if end else self.outputs
        return {name: self.blobs[name].data for name in [*names, *(blobs or ())]}

    def backward(self, diffs: Sequence[str] | None = None, start: str | None = None, end: str | None = None, **top_diffs: Any) -> dict[str, np.ndarray]:
        """Run backward from layer `start` to layer `end`; keyword arrays are diffs of output blobs; returns diffs of the inputs and of `diffs`."""
        if not self._choices.backward:
            self._with_backward()
        for name, value in top_diffs.items():
            self.blobs[name].diff[...] = value
        variant = self._before()
        nodes = self._network.graph.nodes
        first = self._index(start) if start else len(nodes) - 1
        last = self._index(end) if end else 0
        ranges = [variant.recording.backward_ranges[i] for i in range(first, last - 1, -1) if i in variant.recording.backward_ranges]
        if ranges:
            variant.tape.run(ranges[0][0], ranges[-1][1], self._slot)  # the batch of the last forward
        self._after()
        names = [blob.name for blob in nodes[last].bottoms] if end else self.inputs
        recorded = variant.recording.first_diff
        readable = [name for name in names if (ref := recorded[name]) is None or _readable(ref)]
        return {name: self.blobs[name].diff for name in [*readable, *(diffs or ())]}

    def _check_start(self, first: int, last: int) -> None:
        """A run that begins inside the net needs the values that earlier layers left."""
        nodes = self._network.graph.nodes
        inside = {id(top) for node in nodes[first : last + 1] for top in node.tops}
        for node in nodes[first : last + 1] if first else ():
            for blob in node.bottoms:
                if id(blob) not in inside and not _readable(blob.data):
                    raise Error(f"layer '{node.name}' needs blob '{blob.name}', whose memory is used again", fix=f"Net(..., keep=['{blob.name}'])")

    def _with_backward(self) -> None:
        """A TEST net is recorded without backward; the first backward records it anew and repeats the forward pass."""
        self._before()
        self._choices = replace(self._choices, backward=True)
        if self._network.runs and self._network.sources:  # the same batch once more
            self._network.start_prefetch()
            self._network.seek({name: max(batch - 1, 0) for name, batch in self._network.cursor.items()})
        self.forward()

    def _index(self, name: str) -> int:
        if name not in self._layer_names:
            raise Error(f"the net has no layer '{name}'", fix=f"layers are {', '.join(self._layer_names)}")
        return self._layer_names.index(name)

    def reshape(self) -> None:
        """Carry new input shapes (`net.blobs['data'].reshape(...)`) through the net."""
        shapes, self._shapes = self._shapes, {}
        self._drop_arrays()
        self._network.reshape(shapes)
        self._variant = None

    def _drop_arrays(self) -> None:
        """Forget the arrays of blobs: their shapes change."""
        session = self._network.session
        for mirror in session.touched:
            if mirror.net is self and mirror.target.role is Role.INPUT:  # what was written into another input stays, if that keeps its shape
                mirror.flush()
        session.touched = [mirror for mirror in session.touched if mirror.net is not self or mirror.target.role in PARAMETERS]
        session.watched = [mirror for mirror in session.watched if mirror.net is not self or mirror.target.role in PARAMETERS]
        for blob in self.blobs.values():
            blob._mirrors.clear()

    def set_input_arrays(self, data: Any, labels: Any = None, layer: str | None = None) -> None:
        """Feed a MemoryData layer (the first one, or `layer`): `data` is n x channels x height x width, `labels` n values (None: zeros).

        The next forward pass begins with the first rows. The arrays are copied: after a change call this again.
        """
        nodes = [node for node in self._network.graph.nodes if isinstance(node.layer, MemoryData) and layer in (None, node.name)]
        if not nodes:
            wanted = f"MemoryData layer '{layer}'" if layer else "MemoryData layer"
            raise Error(f"the net has no {wanted}", fix="arrays go into Input layers by net.blobs[...].data")
        source = nodes[0].layer.source
        prefetcher = self._network.prefetchers.pop(source, None)
        if prefetcher is not None:
            prefetcher.close()
        source.hand_over(data, labels, self._network.cursor[nodes[0].name])

    def clear_param_diffs(self) -> None:
        """Zero the gradients; backward adds to them."""
        with self._changing():
            self._network.session.clear(self._network.group.held)

    # -- weights -----------------------------------------------------------------------------------------------------

    def copy_from(self, file: str) -> None:
        """Take the weights of equally named layers from a .caffemodel or .caffemodel.h5."""
        with self._changing():
            self._network.copy_weights(read_weights(file), file)

    def save(self, file: str) -> None:
        """Write a .caffemodel that Caffe reads."""
        with self._changing():
            write_weights(file, self._network.graph.message, DeviceBlobs(self._network))

    def close(self) -> None:
        """Stop the threads that read data."""
        self._network.close()
