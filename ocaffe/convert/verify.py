"""Run the net in ocaffe and the ONNX model on the same input, and report the first layer that differs."""
from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ocaffe.api.net import Net
from ocaffe.convert.export import Exported
from ocaffe.convert.model import detached, is_large
from ocaffe.convert.pieces import HALF, PREFIX, ROUNDINGS, SAMPLES, SINGLE, Piece, change, cut, perturbed, pieces, rounding, sample
from ocaffe.convert.reference import Tell, evaluator, unjudged
from ocaffe.data.changes.resample import resize
from ocaffe.data.decoding.decode import Color, open_image, planes
from ocaffe.errors import Error, axis_order, shape_text
from ocaffe.formats.numpy_file import read_npy, read_npz
from ocaffe.ir.graph import Blob, Graph, Node
from ocaffe.ir.tensor import Shape
from ocaffe.layers.fake_quantize import FakeQuantize
from ocaffe.onnx.graph import origin, type_of
from ocaffe.shown import flag
from ocaffe.support.files import read_plain, to_read
from ocaffe.support.process_memory import pieces as parts_of

TOLERANCE = 1e-4  # of layers that choose, relative to the largest magnitude in a blob
HALF_TOLERANCE = 2e-2  # the same for a model in 16 bits
INSTALL = "pip install onnxruntime"
TOO_NEW = ("opset", "Unsupported model IR version", "NOT_IMPLEMENTED")  # parts of onnxruntime's errors about a model that is newer than the runtime
OTHER_EXPORT = "add --opset=17 to the command, which is widely supported"
OTHER_MODEL = "correct the program that makes the model, until onnxruntime.InferenceSession loads it"
OTHER_RUN = "give other inputs (--verify=IMAGE or .npz)"
Feeds = dict[str, np.ndarray]


class Undecided(Error):
    """A layer that chooses cannot be compared: rounding errors of its inputs change the choice."""


@dataclass(frozen=True)
class Verified:
    """The runtime of the model, and for each output the difference relative to its largest magnitude. Layers may amplify rounding errors.

    `share` is the largest difference of a layer as a share of its bound. `what`: what was compared, the outputs only or every layer. `unjudged`: the layers
    that the runtime computes wrong or refuses. Outputs that depend on them have no difference.
    """

    runtime: str
    differences: dict[str, float]
    share: float = 0.0
    what: str = "layer by layer, "
    unjudged: tuple[str, ...] = ()

    @property
    def worst(self) -> float:
        return max(self.differences.values(), default=0.0)

    def __str__(self) -> str:
        if not self.unjudged:
            return f"equal to ocaffe's outputs in {self.runtime}, {self.what}largest difference of an output {self.worst:.2g} of its magnitude"
        text = f"all other layers are equal to ocaffe's; {INSTALL} compares these too"
        return f"NOT VERIFIED: {', '.join(self.unjudged)}, which {self.runtime} does not compute right; {text}"


def verify(
    exported: Exported, runs: Sequence[Feeds], device: Any = None, tolerance: float | None = None, net: Net | None = None, tell: Tell = lambda text: None
) -> Verified:
    """Compare every layer with its piece of the model, for every set of feeds. Return the differences of the outputs of the whole nets.

    Feeds are values of the net's inputs before baked-in preprocessing. `tolerance` (a share of a blob's largest magnitude) replaces the bound of the
    rounding errors. `net` is open (`opened`) with the message of `exported`, and gets its weights. `tell` is called with a text at each step. Raises Error
    that names the first differing blob in the order of the net, and Undecided if that layer's choice depends on rounding errors.
    """
    outputs, share = exported.deployed.outputs, 0.0
    integers = any(node.op_type == "DequantizeLinear" for node in exported.model.graph.node)
    opset = max((item.version for item in exported.model.opset_import if item.domain in ("", "ai.onnx")), default=0)
    ends = [info.name for info in exported.model.graph.output]
    whole = OnnxSession(exported.model, ends, exported.imported, tell, exact=integers and opset >= REFUSED_GRIDS)
    judged = {name: info.name for name, info in zip(outputs, exported.model.graph.output) if info.name in whole.names}
    worst = dict.fromkeys(judged, 0.0)
    cuts = {name: value for name, value in exported.values.items() if name not in runs[0]}
    found = pieces(exported.model, set(cuts.values()))
    cuts = {name: value for name, value in cuts.items() if value in found}
    with cut(exported.model, set(cuts.values())):
        names = [PREFIX + value for value in dict.fromkeys(cuts.values())]
        parts = OnnxSession(exported.model, names, exported.imported, tell, integers) if cuts else None
    missed = whole.unjudged | (parts.unjudged if parts else {})
    left = {name: value for name, value in cuts.items() if PREFIX + value in missed}
    cuts = {name: value for name, value in cuts.items() if name not in left}
    if net is not None:
        write_weights(net, exported)
    with opened(exported, device, None) if net is None else contextlib.nullcontext(net) as net:
        for feeds in runs:
            tell("the net in ocaffe")
            expected = run_net(net, exported, feeds, [*cuts, *left, *outputs])
            for name, actual in zip(judged, whole.run(feeds, "the model")):
                error = difference(actual, expected[name])
                worst[name] = max(worst[name], error)
                if name not in cuts and not error <= (tolerance or TOLERANCE):
                    raise Error(f"output '{name}' differs by {error:.3g} of its largest magnitude", fix=NOT_EQUAL)
            if parts is not None:
                given = feeds | {value: expected[name] for name, value in (cuts | left).items()}
                share = max(share, _check(exported, parts, found, cuts, given, expected, tolerance))
    return Verified(whole.runtime, worst, share, unjudged=tuple(_titles(exported, left)) or tuple(dict.fromkeys(missed.values())))


def _titles(exported: Exported, blobs: Iterable[str]) -> Iterator[str]:
    """Yield the layers that make the blobs."""
    for name in blobs:
        producer = exported.graph.blobs[name].producer
        assert producer is not None
        yield f"layer {producer.layer.title}"


def _check(
    exported: Exported, parts: OnnxSession, found: Mapping[str, Piece], cuts: Mapping[str, str], feeds: Feeds, expected: Feeds, tolerance: float | None
) -> float:
    """Return the largest difference as a share of its bound. Raise Error with the first blob whose piece computes something else from the same inputs."""
    unit, share = HALF if exported.options.fp16 else SINGLE, 0.0
    values = dict(zip(parts.names, parts.run(feeds, "each layer by itself")))
    moved = [] if tolerance else [_changes(parts, found, values, feeds, unit, seed) for seed in range(len(SAMPLES))]
    for name, value in cuts.items():
        actual, blob = values[PREFIX + value].astype(np.float64), exported.graph.blobs[name]
        assert blob.producer is not None
        magnitude = max(float(np.abs(expected[name][np.isfinite(expected[name])]).max(initial=0)), 1e-30)
        if isinstance(blob.producer.layer, FakeQuantize):
            actual = _settled(actual, expected[name], blob.producer, exported, feeds, unit)
        if tolerance or _chooses(blob.producer):
            bound = tolerance or (HALF_TOLERANCE if exported.options.fp16 else TOLERANCE)
        elif isinstance(blob.producer.layer, FakeQuantize):
            bound = ROUNDINGS * unit  # a change by perturbed inputs says nothing: it is a whole step
        else:
            bound = rounding(found[value], actual, max(changes[value] for changes in moved), feeds, unit) / magnitude
        error = difference(actual, expected[name])
        if not error <= bound and not np.isfinite(expected[name]).all() and (magnitude > OVERFLOWS or not np.isfinite(actual).all()):
            fact = f"blob '{name}' has values in ocaffe that are not finite, for which runtimes give different results"
            raise Error(fact, place=_place(exported, blob.producer), layer=blob.producer.layer.title, fix=FINITE)
        if not error <= bound and _chooses(blob.producer) and _undecided(parts, value, actual, feeds, unit, bound):
            fact = f"blob '{name}' differs from the model's, but rounding errors of its inputs change it as much: it cannot be compared with these inputs"
            raise Undecided(fact, place=_place(exported, blob.producer), layer=blob.producer.layer.title, fix=OTHER_INPUTS)
        if not error <= bound:
            limit = f"the tolerance is {tolerance:g}" if tolerance else f"rounding explains at most {bound:.2g}"
            fact = f"the first blob that differs is '{name}', by {error:.3g} of its largest magnitude; {limit}"
            raise Error(fact, place=_place(exported, blob.producer), layer=blob.producer.layer.title, fix=NOT_EQUAL)
        share = max(share, error / bound if error else 0.0)
    return share


def _changes(parts: OnnxSession, found: Mapping[str, Piece], values: Feeds, feeds: Feeds, unit: float, seed: int) -> dict[str, float]:
    """Return the largest change of each value by a sample of rounding errors of the inputs."""
    whole = SAMPLES[seed]
    step = f"each layer with rounding errors, sample {seed + 1} of {len(SAMPLES)}"
    others = dict(zip(parts.names, parts.run(sample(feeds, unit, seed, whole, parts.whole), step)))
    names = (name.removeprefix(PREFIX) for name in parts.names)
    return {value: change(found[value], values[PREFIX + value], others[PREFIX + value], whole) for value in names}


def _settled(actual: np.ndarray, expected: np.ndarray, node: Node, exported: Exported, feeds: Feeds, unit: float) -> np.ndarray:
    """Return the values of a FakeQuantize layer in the model, with ocaffe's where both are right.

    A value half a step from two numbers of the grid may be rounded to either, because the quotient has a rounding error. The two differ by one step. For a
    bottom that is no value of the model, because the layer is in-place, all values may.
    """
    if actual.shape != expected.shape:
        return actual
    assert isinstance(node.layer, FakeQuantize)
    step = float(node.layer.scale_of(exported.weights[node.params[0]]))
    x = feeds.get(exported.of_blobs.get(origin(node.bottoms[0]), ""))
    near = np.ones(expected.shape, bool)
    if x is not None and x.shape == expected.shape:
        with np.errstate(all="ignore"):
            ratio = x.astype(np.float64) / step
            near = np.abs(ratio - np.floor(ratio) - 0.5) <= ROUNDINGS * unit * np.maximum(np.abs(ratio), 1)
    with np.errstate(all="ignore"):
        return np.where(near & (np.abs(actual - expected) <= step * (1 + ROUNDINGS * unit) + ROUNDINGS * unit * np.abs(expected)), expected, actual)


def _undecided(parts: OnnxSession, value: str, actual: np.ndarray, feeds: Feeds, unit: float, bound: float) -> bool:
    """Whether rounding errors of the inputs change a choice of the model too: scores are nearly equal, or near a threshold."""
    moved = (dict(zip(parts.names, parts.run(sample)))[PREFIX + value] for sample in perturbed(feeds, unit, CHOICES, parts.whole))
    return any(not difference(other, actual) <= bound for other in moved)


def _place(exported: Exported, node: Node) -> Any:
    return node.place if exported.deployed.message.source_file else None  # an imported net is not in a file yet


def difference(actual: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference relative to the largest magnitude. It is infinite if shapes, NaNs or infinities differ."""
    if actual.shape != expected.shape:
        return float("inf")
    largest, scale = 0.0, 1e-30
    for part in parts_of(expected):  # a few at a time, for copies of all take more memory than the arrays
        one, other = actual.reshape(-1)[part], expected.reshape(-1)[part]
        finite = np.isfinite(other)
        if not np.array_equal(one[~finite], other[~finite], equal_nan=True) or not np.isfinite(one[finite]).all():
            return float("inf")
        scale = max(scale, float(np.abs(other[finite]).max(initial=0)))
        largest = max(largest, float(np.abs(one[finite].astype(np.float64) - other[finite]).max(initial=0)))
    return largest / scale


def _chooses(node: Node) -> bool:
    """Whether rounding a layer's input may change its output discontinuously. Pooling does so if it has a mask top."""
    return type_of(node) in CHOOSING or (node.type == "Pooling" and len(node.tops) > 1)


CHOOSING = {
    "ArgMax", "CTCGreedyDecoder", "Ceil", "Compare", "DetectionOutput", "Floor", "Mod", "Proposal", "PSROIPooling", "ROIPooling", "Round", "Threshold",
    "YoloDetectionOutput", "Yolov3DetectionOutput",
}  # fmt: skip
REFUSED_GRIDS = 21  # since this opset onnxruntime 1.32 makes a model that it refuses itself, of DequantizeLinear before MaxPool (its issue 25526)
OVERFLOWS = 1e30  # magnitude of a blob beside values that are not finite
CHOICES = (False,) * 10  # samples of rounding errors; in each a choice between two equal scores changes with a probability of 1/2
OTHER_INPUTS = "give other inputs (--verify=image or .npz); --noverify writes the file without comparing"
FINITE = "give weights of a trained net (fillers of BatchNorm set the variance to 0, so large nets overflow), or other inputs (--verify=image or .npz)"
NOT_EQUAL = "the file was not written; --noverify writes it anyway; with other inputs (--verify=image or .npz) the nets may agree"


# -- the two nets ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def opened(exported: Exported, device: Any, keep: Sequence[str] | None) -> Iterator[Net]:
    """Open the net in ocaffe with the exported weights. `keep` are the blobs that can be read; None means all."""
    net = Net(exported.deployed.message, exported.options.phase, keep=keep, device=device, seed=exported.options.seed)
    try:
        write_weights(net, exported)
        yield net
    finally:
        net.close()


def write_weights(net: Net, exported: Exported) -> None:
    """Write the exported weights into a net of the same message."""
    for mine, parameter in zip(net._network.graph.params, exported.graph.params):
        net._network.session.write(mine.data, exported.weights[parameter])


def run_net(net: Net, exported: Exported, feeds: Feeds, names: Sequence[str]) -> Feeds:
    """Run the net in ocaffe and return the values of the blobs `names`."""
    for name, value in feeds.items():
        if net.blobs[name].shape != value.shape:
            net.blobs[name].reshape(*value.shape)
    for name, value in feeds.items():
        how = exported.deployed.preprocessing.get(name)
        net.blobs[name].data[...] = value if how is None else how(value)
    net.forward()
    return {name: np.array(net.blobs[name].data) for name in names}


class OnnxSession:
    """A model in onnxruntime, or in onnx's reference evaluator if onnxruntime is missing or too old. `run` returns the values `names`.

    The reference evaluator cannot judge all values. `unjudged` are the others, with the operator that it computes wrong, and `names` lacks them.
    `imported`: the model is a file of others, which no option of an export changes. `tell` is called with a text about the present step.
    `exact`: each operator computes what ONNX says. onnxruntime's optimiser rounds inputs of products whose weights are integers.
    """

    def __init__(self, model: onnx.ModelProto, names: Sequence[str], imported: bool = False, tell: Tell = lambda text: None, exact: bool = False) -> None:
        constants = {tensor.name for tensor in model.graph.initializer}  # up to IR version 3 they are inputs too
        kinds = {info.name: info.type.tensor_type.elem_type for info in model.graph.input if info.name not in constants}
        self.hint, self.imported, self.tell, self.step, self.exact = "", imported, tell, "", exact
        self.unjudged: dict[str, str] = {}
        self.inputs, self.names = {name: onnx.helper.tensor_dtype_to_np_dtype(kind) for name, kind in kinds.items()}, list(names)
        self.whole = {name for name, kind in self.inputs.items() if kind.kind in "iub"}  # inputs that are whole numbers or truth values
        own = list(model.graph.output)
        known = {info.name: info for info in (*model.graph.input, *model.graph.value_info, *own)}
        # The model is changed in place and restored: a copy would double the weights' memory.
        del model.graph.output[:]
        model.graph.output.extend(known.get(name, onnx.ValueInfoProto(name=name)) for name in dict.fromkeys(names))
        try:
            self._open(model)
        finally:
            del model.graph.output[:]
            model.graph.output.extend(own)

    def _open(self, model: onnx.ModelProto) -> None:
        try:
            import onnxruntime
        except ImportError:
            self.hint = f"{INSTALL}, which runs more models; "
            self._open_reference(model)
            return
        settings = onnxruntime.SessionOptions()
        if self.exact:
            settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        settings.log_severity_level = 4  # fatal ones alone: its texts have names of the file as they are, with control characters
        try:
            if is_large(model):  # larger than a protocol buffer can be
                model, weights = detached(model, "")
                values = [onnxruntime.OrtValue.ortvalue_from_numpy(onnx.numpy_helper.to_array(tensor)) for tensor in weights]
                settings.add_external_initializers([tensor.name for tensor in weights], values)
            session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
        except Exception as problem:
            if not any(words in str(problem) for words in TOO_NEW):
                raise self._cannot(f"onnxruntime {onnxruntime.__version__}", problem) from problem
            self._open_reference(model)
            return
        self.runtime, self._run = f"onnxruntime {onnxruntime.__version__}", session.run

    def _open_reference(self, model: onnx.ModelProto) -> None:
        self.runtime = f"onnx.reference {onnx.__version__}"
        found = unjudged(model)
        self.unjudged = {name: found[name] for name in self.names if name in found}
        self.names = [name for name in self.names if name not in found]
        try:
            self._run = evaluator(model, self.names, lambda text: self.tell(f"{self.step}, {text}, in {self.runtime}"))
        except Exception as problem:
            raise self._cannot(self.runtime, problem) from problem

    def run(self, feeds: Feeds, step: str = "the model") -> list[np.ndarray]:
        """Return the values for these inputs. Inputs that the model lacks are ignored. `step` says for `tell` what is computed."""
        self.step = step
        self.tell(f"{step}, in {self.runtime}")
        given = {name: np.require(feeds[name], kind, "C") for name, kind in self.inputs.items()}
        try:
            return list(self._run(self.names, given))
        except Exception as problem:
            raise self._cannot(self.runtime, problem, OTHER_RUN) from problem

    def _cannot(self, runtime: str, problem: Exception, fix: str = "") -> Error:
        if isinstance(problem, MemoryError):
            raise problem
        reason = str(problem).strip().split("\n")[0][:300]
        fix = fix or (OTHER_MODEL if self.imported else OTHER_EXPORT)
        return Error(f"the model cannot be verified, {runtime} does not run it: {reason}", fix=f"{self.hint}{fix}; --noverify writes without comparing")


# -- inputs ----------------------------------------------------------------------------------------------------------

Draw = Callable[[np.random.Generator, Shape, Any], np.ndarray]


def _whole(rng: np.random.Generator, shape: Shape, layer: Any) -> np.ndarray:
    return rng.integers(0, layer.own().input_dim, shape)


def _chosen(rng: np.random.Generator, shape: Shape, layer: Any) -> np.ndarray:
    return rng.integers(0, min(layer.sizes), shape)


def _flags(rng: np.random.Generator, shape: Shape, layer: Any) -> np.ndarray:
    return rng.random(shape) < 0.7


def _continued(rng: np.random.Generator, shape: Shape, layer: Any) -> np.ndarray:
    return np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1)) % 3 > 0 & np.ones(shape, bool)


def _regions(rng: np.random.Generator, shape: Shape, layer: Any) -> np.ndarray:
    corners = np.sort(rng.uniform(0, 200, (shape[0], 2, 2)), 1).reshape(shape[0], 4)
    return np.concatenate([np.zeros((shape[0], 1)), corners], 1).reshape(shape)


def _mask(rng: np.random.Generator, shape: Shape, layer: Any) -> np.ndarray:
    """Return positions in the planes of the top, each at most once in a plane."""
    planes, pixels, places = math.prod(shape[:2]), math.prod(shape[2:]), math.prod(layer.size(shape[2:]))
    return np.stack([rng.choice(places, pixels, replace=False) for _ in range(planes)]).reshape(shape)


DRAWS: dict[tuple[str, int], Draw] = {  # (type, bottom index) of the layer that reads an input which is not an image
    ("Embed", 0): _whole,
    ("Gather", 1): _chosen,
    ("GatherElements", 1): _chosen,
    ("GatherND", 1): _chosen,
    ("Filter", -1): _flags,
    ("LSTM", 1): _continued,
    ("GRU", 1): _continued,
    ("RNN", 1): _continued,
    ("ROIPooling", 1): _regions,
    ("PSROIPooling", 1): _regions,
    ("ROIAlign", 1): _regions,
    ("Upsample", 1): _mask,
    ("BatchReindex", 1): lambda rng, shape, layer: np.zeros(shape),
    ("Proposal", 2): lambda rng, shape, layer: np.array([200, 300, 1.0] + [1.0] * (int(np.prod(shape)) - 3)).reshape(shape),
}


def random_inputs(graph: Graph, seed: int = 0, batch: int | None = None, pixels: Mapping[str, int] | None = None) -> Feeds:
    """Draw values for all inputs: from a normal distribution, or as DRAWS says for the layer that reads the input.

    `batch` replaces the batch of the first input. `pixels` are inputs that take integers from 0 to below a number, unless DRAWS says more.
    """
    feeds, readers = {}, _readers(graph)
    for blob in graph.inputs:
        rng = np.random.default_rng([seed, zlib.crc32(blob.name.encode())])
        shape = (batch, *blob.shape[1:]) if batch and blob.shape[:1] == graph.inputs[0].shape[:1] else blob.shape
        draw, layer = readers.get(blob, (None, None))
        bound = (pixels or {}).get(blob.name)
        values = draw(rng, shape, layer) if draw else rng.integers(0, bound, shape) if bound else rng.standard_normal(shape)
        feeds[blob.name] = np.asarray(values, np.float32)
    return feeds


def _readers(graph: Graph) -> dict[Blob, tuple[Draw, Any]]:
    """Return how to draw each blob that is not an image, and the first layer that reads it."""
    found: dict[Blob, tuple[Draw, Any]] = {}
    for node in graph.nodes:
        for index, bottom in enumerate(node.bottoms):
            for place in (index, index - len(node.bottoms)):
                if (type_of(node), place) in DRAWS:
                    found.setdefault(_source(bottom), (DRAWS[type_of(node), place], node.layer))
    return found


def _source(blob: Any) -> Any:
    """Return the blob whose values another one holds in another shape."""
    blob = origin(blob)
    while blob.producer is not None and blob.producer.type in ("Reshape", "Flatten"):
        blob = origin(blob.producer.bottoms[0])
    return blob


def inputs_from(path: str, graph: Graph) -> Feeds:
    """Read inputs from a file: an .npz with an array for each input, an .npy for a single input, or an image for a net with one input.

    An image is resized to the input's size; its pixels are from 0 to 255, in BGR order. Raises Error if the arrays do not fit.
    """
    if Path(path).suffix not in (".npz", ".npy"):
        return _image(path, graph)
    fix = f"give an .npz with an array for every input: np.savez(file, {', '.join(f'{blob.name}=...' for blob in graph.inputs)})"
    arrays = {graph.inputs[0].name: read_npy(path, fix)} if Path(path).suffix == ".npy" else read_npz(path, fix)
    feeds = {}
    for blob in graph.inputs:
        if blob.name not in arrays:
            raise Error(f"it has no '{blob.name}', only {', '.join(arrays) or 'nothing'}", place=path, fix=f"add the array to the file as '{blob.name}'")
        array = arrays[blob.name]
        if array.shape[1:] != blob.shape[1:]:
            fact = f"'{blob.name}' is {shape_text(array.shape)} in the file, but {shape_text(blob.shape)} in the net"
            raise Error(fact, place=path, fix=_stored(path, blob, array))
        feeds[blob.name] = np.asarray(array, np.float32)
    return feeds


def _stored(path: str, blob: Blob, array: np.ndarray) -> str:
    """Return the remedy for an array of another shape than the input: the order of its axes, a batch axis, or the size of the net."""
    call = f"np.savez('{path}', {blob.name}={blob.name}" if path.endswith(".npz") else f"np.save('{path}', {blob.name}"
    order = axis_order(array.shape[1:], blob.shape[1:])
    if order is not None:
        axes = ", ".join(map(str, (0, *(axis + 1 for axis in order))))
        return f"put the axes in the net's order, which a reshape would not: {call}.transpose({axes}))"
    if array.shape == blob.shape[1:]:
        return f"add the axis of the batch: {call}[None])"
    if len(array.shape) == len(blob.shape) and array.shape[1] == blob.shape[1]:
        size = flag("shape", f"{blob.name}:{'x'.join(map(str, array.shape))}")
        return f"make '{blob.name}' N x {shape_text(blob.shape[1:])}, or export the net for this size: {size}"
    return f"make '{blob.name}' N x {shape_text(blob.shape[1:])}"


def _image(path: str, graph: Graph) -> Feeds:
    blob = graph.inputs[0]
    if len(graph.inputs) != 1 or len(blob.shape) != 4 or blob.shape[1] not in (1, 3):
        inputs = ", ".join(f"{blob.name} ({shape_text(blob.shape)})" for blob in graph.inputs)
        raise Error(f"an image is given, but the net's inputs are {inputs}", place=path, fix="give an .npz with an array for every input")
    batch, channels, height, width = blob.shape
    try:
        pixels = planes(open_image(read_plain(path)), Color.COLOR if channels == 3 else Color.GRAY)
    except OSError as problem:
        raise Error(f"it cannot be read: {problem.strerror}", place=path, fix=to_read(path, problem, "give the path of an image or an .npz")) from problem
    except Error as problem:
        problem.place = path
        raise
    return {blob.name: np.repeat(resize(pixels, height, width)[None].astype(np.float32), batch, 0)}
