"""`Net` with pycaffe's interface, on planned memory.

All blobs stay readable by default, which takes memory. `keep` restricts this to named blobs; `keep=[]` allows the
planner to reuse all memory.
"""
from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ocaffe import proto
from ocaffe.api import runtime
from ocaffe.api.batches import batches, collect
from ocaffe.api.blob import Blob
from ocaffe.api.engine import Engine, Hook, Lease
from ocaffe.api.inspection import plan_of, profile
from ocaffe.api.sharing import share
from ocaffe.cl.device import Device
from ocaffe.cl.failure import explained
from ocaffe.cl.pinned import pinned
from ocaffe.cl.session import Arena, Session
from ocaffe.compiler.network import Network, phase_net
from ocaffe.errors import OutOfRange, UnknownName, WrongType, WrongValue, axis_order, shape_text
from ocaffe.formats.text import read_net
from ocaffe.formats.weights import read_weights, write_weights
from ocaffe.graph.options import ALL, NetOptions
from ocaffe.ir.graph import Node
from ocaffe.layers.memory_data import MemoryData
from ocaffe.profiling.profile import NetPlan, NetProfile
from ocaffe.pylayer import Arrays as BlobVec
from ocaffe.solver.snapshot import DeviceBlobs
from ocaffe.support import log

Arrays: TypeAlias = "dict[str, np.ndarray]"


class NetLayer(NamedTuple):
    """A layer of a net: name, Caffe type and parameters."""

    name: str
    type: str
    blobs: BlobVec


def _layer_of(node: Node, blobs: BlobVec) -> Any:
    """Return the object of `net.layers`: that of the user's class for a Python layer, as in pycaffe."""
    made = node.layer.inner
    if made is None:
        return NetLayer(node.name, node.type, blobs)
    made._of_net = weakref.ref(blobs)  # weak: the graph holds the object, and a dropped net frees its buffers at once
    return made


class Net:
    """A network of one phase: `Net(file, phase, level=0, stages=None, weights=None)`, or the older `Net(file, weights, phase)`.

    `network_file` is a prototxt or a NetParameter message. `weights` is a .caffemodel or .caffemodel.h5 file. `keep` names
    the blobs that stay readable (default: all). `device` is a device spec such as '0:0' or 'cpu'; the default is the device
    of set_mode_cpu, set_mode_gpu and set_device. `memory_limit` is the number of bytes that the net may use on the device.
    Kept blobs count towards it, so name only the blobs that you read.

    Raises Error if a file is wrong. If the net does not fit in the limit, the first run or `plan()` raises Error, because
    shapes can change before.

    Attributes: `name`, from the prototxt; `blobs`, {name: Blob}; `params`, {layer: its Blobs}, weights first; `layers`, a
    list of (name, type, blobs), but for a Python layer the object of its class; `layer_dict`, {name: layer}; `inputs` and
    `outputs`, names of blobs; `top_names` and `bottom_names`, {layer: names of blobs}.

    The net's memory is freed when its `with` statement ends, or when the last reference to it goes away. Only one thread at a time may use a net, but
    each thread can have its own.
    """

    @explained
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
        seed: int | None = None,
        memory_limit: int | None = None,
    ) -> None:
        log.as_library()
        given = _arguments(args, phase, level, stages, weights)
        message: Any = read_net(network_file) if is_path(network_file) else network_file
        if not hasattr(message, "DESCRIPTOR"):
            raise WrongType(f"{network_file!r} is given as the file of a Net", fix="give the path of a prototxt, or a NetParameter message")
        phase, weights = given.phase, given.weights
        if phase is None:
            phase = message.state.phase if message.HasField("state") else proto.TEST
        if seed is None:
            seed = runtime.random_seed() or 0
        own = not isinstance(device, Device)
        kept, memory_limit = kept_names(keep), whole_bytes(memory_limit)
        session = Session(runtime.open_device(device) if not isinstance(device, Device) else device, memory_limit)
        test = phase == proto.TEST
        options = NetOptions(backward=not test, keep=kept, observed_diffs=True, limit=memory_limit, prepack_weights=test).holding_gradients()
        net = phase_net(message, phase, given.level, given.stages)
        known = [] if weights is None else [read_weights(weights)]
        network = Network(net, phase, session, seed, quiet=True, weights=known, arena=Arena())
        unknown = sorted(kept - ALL - set(network.graph.blobs))
        if unknown:
            place = network.graph.message.source_file or None
            raise UnknownName(f"the net has no blob '{unknown[0]}' to keep", place=place, fix=f"blobs are {', '.join(network.graph.blobs)}")
        self._attach(Engine(network, Lease(session, own), options))
        network.fill_parameters()
        self._copied = [parameter for each in known for parameter in network.copy_weights(each)]  # parameters that the weights have set

    @classmethod
    def _of(cls, network: Network, lease: Lease, options: NetOptions) -> Net:
        """Return the Net of a network that a solver runs with these options."""
        self = cls.__new__(cls)
        self._attach(Engine(network, lease, options, fixed=True))
        return self

    def _attach(self, engine: Engine) -> None:
        self._engine = engine
        graph = engine.network.graph
        self.name = str(graph.message.name)
        self.blobs: OrderedDict[str, Blob] = OrderedDict((name, Blob(engine, name)) for name in graph.blobs)
        self._layer_blobs = [BlobVec(Blob(engine, str(p), p, node.name) for p in node.params) for node in graph.nodes]  # Python layers refer to them weakly
        self.layers = [_layer_of(node, blobs) for node, blobs in zip(graph.nodes, self._layer_blobs)]
        self.layer_dict: OrderedDict[str, Any] = OrderedDict((node.name, layer) for node, layer in zip(graph.nodes, self.layers))
        self.params: OrderedDict[str, BlobVec] = OrderedDict((node.name, blobs) for node, blobs in zip(graph.nodes, self._layer_blobs) if blobs)
        self.inputs = [blob.name for blob in graph.inputs]
        self.outputs = [blob.name for blob in graph.outputs]
        self.bottom_names: OrderedDict[str, list[str]] = OrderedDict((node.name, [blob.name for blob in node.bottoms]) for node in graph.nodes)
        self.top_names: OrderedDict[str, list[str]] = OrderedDict((node.name, [blob.name for blob in node.tops]) for node in graph.nodes)
        self._layer_names = [node.name for node in graph.nodes]
        self._blob_names = list(graph.blobs)

    # -- structure ---------------------------------------------------------------------------------------------------

    @property
    def _network(self) -> Network:
        return self._engine.network

    @property
    def phase(self) -> int:
        """TRAIN or TEST."""
        return self._network.phase

    @property
    def blob_loss_weights(self) -> OrderedDict[str, float]:
        """Loss weight of each blob; 0 for most."""
        return OrderedDict((name, blob.loss_weight) for name, blob in self._network.graph.blobs.items())

    @property
    def _blob_loss_weights(self) -> list[float]:
        return list(self.blob_loss_weights.values())

    @property
    def _blobs(self) -> list[Blob]:
        return list(self.blobs.values())

    @property
    def _inputs(self) -> list[int]:
        return [self._blob_names.index(name) for name in self.inputs]

    @property
    def _outputs(self) -> list[int]:
        return [self._blob_names.index(name) for name in self.outputs]

    def _bottom_ids(self, layer: int) -> list[int]:
        return [self._blob_names.index(blob.name) for blob in self._network.graph.nodes[layer].bottoms]

    def _top_ids(self, layer: int) -> list[int]:
        return [self._blob_names.index(blob.name) for blob in self._network.graph.nodes[layer].tops if blob.name in self.blobs]

    def _index(self, name: str) -> int:
        if name not in self._layer_names:
            raise UnknownName(f"the net has no layer '{name}'", fix=f"layers are {', '.join(self._layer_names)}")
        return self._layer_names.index(name)

    def _check_range(self, low: int, high: int) -> None:
        if not 0 <= low <= high < len(self.layers):
            raise OutOfRange(f"the net has no layers {low} to {high}", fix=f"numbers are 0 to {len(self.layers) - 1}")

    def _check_blobs(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.blobs:
                raise UnknownName(f"the net has no blob '{name}'", fix=f"blobs are {', '.join(self.blobs)}")

    # -- running -----------------------------------------------------------------------------------------------------

    def forward(self, blobs: Sequence[str] | None = None, start: str | None = None, end: str | None = None, **inputs: Any) -> Arrays:
        """Set the inputs given by keyword, then run from layer `start` to layer `end` (names, inclusive; default: all).

        After a call with `start` or `end`, the net always runs layer by layer. This is slower, and every blob has its own memory.
        Returns {name: array} of the outputs and of `blobs`; with `end`, of the tops of that layer in place of the outputs.
        Raises Error for unknown names and for inputs of another shape.
        """
        for name, value in inputs.items():
            if name not in self.inputs:
                raise UnknownName(f"'{name}' is no input of the net", fix=f"inputs are {', '.join(self.inputs) or 'none'}")
            self._assign("data", name, value)
        more = list(blobs or ())  # scripts of Python 2 pass the result of map, which can be read once
        self._check_blobs(more)
        first = self._index(start) if start else 0
        last = self._index(end) if end else len(self.layers) - 1
        self._engine.forward(first, last)
        names = [name for name in self.top_names[end] if name in self.blobs] if end else self.outputs
        return {name: self.blobs[name].data for name in [*names, *more]}

    def backward(self, diffs: Sequence[str] | None = None, start: str | None = None, end: str | None = None, **top_diffs: Any) -> Arrays:
        """Set the diffs of outputs given by keyword, then run backward from layer `start` to layer `end` (names, inclusive; default: all).

        Backward adds to the diffs of parameters; `clear_param_diffs` zeroes them. Returns {name: array} of the diffs of the
        inputs and of `diffs`; with `end`, of the bottoms of that layer in place of the inputs.
        Raises Error if a blob that the run reads or returns is not kept, or if another net of the solver ran since forward.
        """
        more = list(diffs or ())
        self._check_blobs([*top_diffs, *more])
        requested = [*(self.bottom_names[self._layer_names[self._index(end)]] if end else ()), *more]
        for name in requested:
            self._engine.refs(name, "diff")
        for name, value in top_diffs.items():
            self._assign("diff", name, value)
        first = self._index(start) if start else len(self.layers) - 1
        last = self._index(end) if end else 0
        self._engine.backward(first, last)
        names = [] if end else filter(self._engine.readable, self.inputs)
        return {name: self.blobs[name].diff for name in [*names, *requested]}

    def _assign(self, what: str, name: str, value: Any) -> None:
        """Set a whole blob. Raises Error for one row in place of a batch, which numpy would repeat over the batch."""
        value = np.asarray(value, np.float32)
        shape = self.blobs[name].shape
        if value.shape[:1] != shape[:1] and value.size != 1:
            fact = f"{what} for '{name}' is {shape_text(value.shape)}, the blob {shape_text(shape)}"
            raise WrongValue(fact, fix=f"first net.blobs['{name}'].reshape({', '.join(map(str, value.shape))})")
        try:
            setattr(self.blobs[name], what, value)
        except ValueError:
            fact = f"{what} for '{name}' is {shape_text(value.shape)}, the blob {shape_text(shape)}"
            order = axis_order(value.shape, shape)
            fix = f"give an array of {shape_text(shape)}" if order is None else f"put its axes in the blob's order: array.transpose{order}"
            raise WrongValue(fact, fix=fix) from None

    def _forward(self, start: int, end: int) -> float:
        """Run layers by index, inclusive, and return their loss."""
        self._check_range(start, end)
        self._engine.forward(start, end)
        return self._engine.loss(start, end)

    def _backward(self, start: int, end: int) -> None:
        self._check_range(end, start)
        self._engine.backward(start, end)

    def _batch(self, blobs: dict[str, Any]) -> Iterator[Arrays]:
        """Yield arrays of any number of rows in batches of the net. Zeros pad the last batch."""
        return (chunk for chunk, _ in batches(blobs, self._batch_size(blobs)))

    def _batch_size(self, blobs: dict[str, Any]) -> int:
        return min((self.blobs[name].shape[0] for name in blobs), default=1)

    def forward_all(self, blobs: Sequence[str] | None = None, **inputs: Any) -> Arrays:
        """Run `forward` on inputs of any number of rows, in batches of the net. Return {name: array with as many rows}.

        Raises Error if the inputs differ in their number of rows.
        """
        return self._all(blobs, None, inputs)[0]

    def forward_backward_all(self, blobs: Sequence[str] | None = None, diffs: Sequence[str] | None = None, **arrays: Any) -> tuple[Arrays, Arrays]:
        """Run `forward` and `backward` on inputs and diffs of outputs of any number of rows. Return the arrays of both."""
        return self._all(blobs, diffs or (), arrays)

    def _all(self, blobs: Sequence[str] | None, diffs: Sequence[str] | None, arrays: dict[str, Any]) -> tuple[Arrays, Arrays]:
        blobs, diffs = list(blobs or ()), diffs if diffs is None else list(diffs)
        known = {*self.inputs, *(() if diffs is None else self.outputs)}
        missing = [name for name in self.inputs if name not in arrays]
        unknown = [name for name in arrays if name not in known]
        if unknown or missing or not arrays:
            raise WrongValue(f"arrays are given for {', '.join(arrays) or 'nothing'}", fix=f"give one for each of {', '.join(sorted(known)) or 'the inputs'}")
        found: tuple[dict[str, list[np.ndarray]], dict[str, list[np.ndarray]]] = {}, {}
        for chunk, rows in batches(arrays, self._batch_size(arrays)):
            collect(found[0], self.forward(blobs, None, None, **{name: value for name, value in chunk.items() if name in self.inputs}), rows)
            if diffs is not None:
                collect(found[1], self.backward(diffs, None, None, **{name: value for name, value in chunk.items() if name not in self.inputs}), rows)
        out, back = ({name: np.concatenate(parts) for name, parts in part.items()} for part in found)
        return out, back

    def before_forward(self, hook: Hook) -> None:
        """Call `hook(layer index)` before each layer runs forward. The net then runs layer by layer, as with `forward(start=...)`."""
        self._engine.hooks["before_forward"].append(hook)

    def after_forward(self, hook: Hook) -> None:
        """Call `hook(layer index)` after each layer ran forward. The hook can read and change the layer's blobs."""
        self._engine.hooks["after_forward"].append(hook)

    def before_backward(self, hook: Hook) -> None:
        """Call `hook(layer index)` before each layer runs backward."""
        self._engine.hooks["before_backward"].append(hook)

    def after_backward(self, hook: Hook) -> None:
        """Call `hook(layer index)` after each layer ran backward."""
        self._engine.hooks["after_backward"].append(hook)

    def reshape(self) -> None:
        """Infer all shapes from new input shapes (`net.blobs['data'].reshape(...)`).

        Raises Error if a layer cannot have such a shape; the net then stays as it was.
        """
        self._engine.reshape(strict=True)

    def clear_param_diffs(self) -> None:
        """Zero the gradients; backward adds to them."""
        with self._engine.changing():
            self._engine.session.clear(self._network.group.held)

    def set_input_arrays(self, data: Any, labels: Any = None, layer: str | None = None) -> None:
        """Feed a MemoryData layer (the first one, or `layer`): `data` is n x channels x height x width, `labels` n values (None: zeros).

        The next forward pass starts with the first rows. The arrays are copied, so call this again after changing them.
        Raises Error for other shapes.
        """
        nodes = [node for node in self._network.graph.nodes if isinstance(node.layer, MemoryData) and layer in (None, node.name)]
        if not nodes:
            wanted = f"MemoryData layer '{layer}'" if layer else "MemoryData layer"
            raise WrongValue(f"the net has no {wanted}", fix="arrays go into Input layers by net.blobs[...].data")
        inner: Any = nodes[0].layer
        self._network.inputs.stop(nodes[0].name)
        inner.source.hand_over(data, labels, self._network.inputs.cursor[nodes[0].name])

    _set_input_arrays = set_input_arrays  # pycaffe's extension module has this name

    # -- weights -----------------------------------------------------------------------------------------------------

    def copy_from(self, file: str) -> None:
        """Take the weights of equally named layers from a .caffemodel or .caffemodel.h5. Raises Error for other shapes, naming both."""
        with self._engine.changing():
            self._network.copy_weights(read_weights(file))

    def share_with(self, other: Net) -> None:
        """Share the parameters of `other`'s layers of the same names, in the same memory. Diffs stay separate.

        Raises Error for other shapes.
        """
        if not isinstance(other, Net):
            raise WrongType(f"share_with is given {other!r}", fix="give a Net")
        share(self._engine, other._engine)

    def save(self, file: str) -> None:
        """Write a .caffemodel that Caffe reads."""
        with self._engine.changing():
            write_weights(file, self._network.graph.message, DeviceBlobs(self._network))

    def save_hdf5(self, file: str, write_diff: bool = False) -> None:
        """Write a .caffemodel.h5 that Caffe reads, including the gradients if `write_diff`."""
        from ocaffe.formats.hdf5 import write_weights_hdf5  # h5py takes 0.1 s to import

        with self._engine.changing():
            diffs = {name: [blob.diff for blob in blobs] for name, blobs in self.params.items()} if write_diff else None
            write_weights_hdf5(file, self._network.graph.message, DeviceBlobs(self._network, owners_only=True), diffs)

    def load_hdf5(self, file: str) -> None:
        """Same as copy_from, which detects the format."""
        self.copy_from(file)

    # -- beyond pycaffe ----------------------------------------------------------------------------------------------

    def pinned(self, name: str) -> np.ndarray:
        """Return an array of zeros with the shape of blob `name`, in memory that the device copies fastest.

        Fill it and call `forward(data=array)`, as often as needed. If the device uses the host's memory, it is an ordinary
        array. It stays valid while you hold it, even after close(). Raises Error for unknown names.
        """
        self._check_blobs([name])
        self._engine.check_open()
        return pinned(self._engine.session.device, self.blobs[name].shape, np.float32)

    def plan(self) -> NetPlan:
        """Return the memory that the net takes on its device, in bytes; `print(net.plan())` shows it."""
        return plan_of(self._engine)

    def profile(self, iterations: int = 10, backward: bool | None = None) -> NetProfile:
        """Measure each layer and each launch on the device: milliseconds, as medians of `iterations` passes.

        `backward` includes the backward pass (default: if the phase is TRAIN). `print` shows the times by layer. `launches`
        has GFLOP/s, GB/s and the share of the device's measured `peaks` of each launch. Raises Error if `iterations` is below 1.
        """
        return profile(self._engine, iterations, self.phase == proto.TRAIN if backward is None else backward)

    def close(self) -> None:
        """Stop the threads that read data and free the memory on the device. The net cannot be used afterwards.

        Arrays that scripts hold keep their values.
        """
        if self._engine.fixed:
            self._network.close()
        else:
            self._engine.close()

    def __enter__(self) -> Net:
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class _Arguments(NamedTuple):
    phase: int | None
    level: int
    stages: tuple[str, ...]
    weights: str | None


def _arguments(args: Sequence[Any], phase: int | None, level: int, stages: Sequence[str] | None, weights: str | None) -> _Arguments:
    """Parse the positional arguments of both constructors: (phase, level, stages, weights), or (weights, phase).

    Raises Error for other arguments.
    """
    rest = list(args)
    fits: dict[str, Callable[[Any], bool]] = {
        "phase": lambda value: isinstance(value, (int, np.integer)), "level": lambda value: isinstance(value, (int, np.integer)),
        "stages": lambda value: isinstance(value, Iterable) and not isinstance(value, str), "weights": is_path,
    }  # fmt: skip
    names = ["weights", "phase"] if rest and is_path(rest[0]) else list(fits)
    if len(rest) > len(names):
        raise WrongType(f"Net takes a file and at most {len(names)} arguments without a name here, {len(rest)} given", fix="Net(file, phase, weights=...)")
    found: dict[str, Any] = {"phase": phase, "level": level, "stages": stages, "weights": weights, **dict(zip(names, rest))}
    for name, value in found.items():
        if not (fits[name](value) or (value is None and name != "level")):
            raise WrongType(f"{value!r} is given as {name} of a Net", fix=_ARGUMENTS[name])
    if found["phase"] not in (None, proto.TRAIN, proto.TEST):
        raise WrongType(f"{found['phase']!r} is given as phase of a Net", fix="caffe.TRAIN (0) or caffe.TEST (1)")
    path = found["weights"]
    return _Arguments(None if found["phase"] is None else int(found["phase"]), int(found["level"]), tuple(found["stages"] or ()), path and str(path))


_ARGUMENTS = {  # of a Net: what to write
    "phase": "Net(file, caffe.TEST) or Net(file, caffe.TRAIN)",
    "level": "give a whole number: level=0",
    "stages": "give a list of names: stages=['deploy']",
    "weights": "give the path of the weights: weights='net.caffemodel'",
}


def kept_names(keep: Iterable[str] | None) -> frozenset[str]:
    """Return the set of blob names for an argument `keep`. Raises Error for a single string: its letters would become names."""
    if isinstance(keep, str):
        raise WrongType(f"keep is the text '{keep}'", fix=f"give a list of names: keep=['{keep}']")
    return ALL if keep is None else frozenset(keep)


def whole_bytes(limit: Any) -> int | None:
    """Return an argument `memory_limit` as int. Raises Error for anything but a positive integer."""
    if limit is not None and not (isinstance(limit, (int, np.integer)) and limit > 0):
        raise WrongType(f"memory_limit is {limit!r}", fix="give a number of bytes, such as memory_limit=512 * 2**20")
    return None if limit is None else int(limit)


def is_path(value: Any) -> bool:
    """Return whether an argument is a file's path, not a message."""
    return isinstance(value, str) or hasattr(value, "__fspath__")
