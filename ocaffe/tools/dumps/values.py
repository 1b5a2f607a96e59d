"""Compares the values of a dump with ocaffe's for the same input, layer by layer in the order of the net."""
from __future__ import annotations

import collections
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cl.device import Device
from ocaffe.convert.deploy import DATA, likely_shape
from ocaffe.errors import Error, Place, shape_text
from ocaffe.formats.numpy_file import read_npy, read_npz
from ocaffe.formats.weights import read_weights
from ocaffe.ir.tensor import Shape
from ocaffe.shown import command, flag, path_word
from ocaffe.tools.dumps.read import Dump, Entry, listed, numbers_of

TEXT_BOUND, HALF_BOUND, INTEGER_BOUND = 1e-3, 1e-2, 0.1  # least tolerances: digits of a text, 11 bits of float16 in many layers, 8 bits
LEAST_COSINE = 0.98  # of integers without a scale
EXTREME = 0.01  # share of the integers at an end of their range, from which the note names it
MISSING, OVERWRITTEN = "not in the dump", "a later layer writes in place"
Names = Mapping[str, tuple[str, Place]]  # of `read_map`


class Value(NamedTuple):
    """A top. `key` is its blob in a net in which no layer writes in place; `blob` its name in the net of the user."""

    layer: str
    kind: str
    blob: str
    key: str
    line: Place | None


@dataclass(frozen=True)
class Row:
    """The comparison of one value. `error` is the largest difference as a share of its largest magnitude, None if only the cosine is compared.

    `name` is the value's name in the dump, '' if it is missing there. `wrong`: it differs by more than `bound`, or has another shape. `note` says more.
    """

    value: Value
    shape: Shape
    name: str = ""
    cosine: float | None = None
    error: float | None = None
    bound: float = 0.0
    wrong: bool = False
    note: str = ""

    @property
    def title(self) -> str:
        return f"'{self.value.layer}' ({self.value.kind})"


def compare(message: Any, weights: Sequence[str], dump: Dump, names: Names, given: str, tolerance: float, device: Device) -> tuple[list[Row], list[str]]:
    """Run the net of a phase. Return a row for each value, and the layers that have no weights in the files. Raises Error.

    `given` is the file of its inputs, or '': they are in the dump. `weights` are files. `tolerance` is a share of the largest magnitude of
    a value; that of texts, float16 and integers is at least their own.
    """
    net, values = separated(message)
    inputs = _inputs(net, weights[0])
    arrays = _given(given, list(inputs)) if given else {}
    found = matched(values, dump, names)
    feeds = {name: _fed(name, shape, arrays, dump, found.get(name, ""), given) for name, shape in inputs.items()}
    with Net(net, proto.TEST, device=device) as run:
        stored = set[str]()
        for file in weights:
            run.copy_from(file)
            stored |= {layer.name for layer in read_weights(file).layers if layer.blobs}
        lacking = [name for name in run.params if name not in stored]
        for name, array in feeds.items():
            if run.blobs[name].shape != array.shape:
                run.blobs[name].reshape(*array.shape)
            run.blobs[name].data[...] = array
        run.forward()
        last = {value.blob: value.key for value in values if value.key in found}
        rows = []
        for value in values:
            missing = OVERWRITTEN if last.get(value.blob, value.key) != value.key else MISSING
            rows.append(_row(value, run.blobs[value.key].data, dump, found.get(value.key, ""), tolerance, missing))
        return rows, lacking


def separated(message: Any) -> tuple[Any, list[Value]]:
    """Return the net with a blob of its own for each top that a layer writes in place, and its values in order. Such a blob has the name of its layer."""
    net = proto.NetParameter()
    net.CopyFrom(message)
    taken = {name for layer in net.layer for name in (*layer.top, *layer.bottom)} | {layer.name for layer in net.layer}
    current: dict[str, str] = {}
    values = []
    for layer in net.layer:
        layer.bottom[:] = [current.get(name, name) for name in layer.bottom]
        for index, top in enumerate(layer.top):
            key = top
            if top in current:
                key = f"{top}/{layer.name}"
                while key in taken:
                    key += "_"
            taken.add(key)
            current[top] = key
            layer.top[index] = key
            values.append(Value(layer.name, layer.type, top, key, Place.of(message.source_file, layer.source_line)))
    return net, values


def matched(values: Sequence[Value], dump: Dump, names: Names) -> dict[str, str]:
    """Return the name in the dump by the key of each value that it has. Raises Error for a line of --map that names nothing, and if nothing is found.

    The name of a blob comes before that of a layer. It means what its last layer writes, as in pycaffe. If the dump has a layer that writes in place too,
    by its name, the name of the blob means what the first layer writes. The name of an input always does. If a layer has the name of a blob that another
    layer writes, the name means that layer only where the dump has no other name for it, and has the other one by the name of its layer.
    """
    tops = collections.Counter(value.layer for value in values)
    writers: dict[str, list[Value]] = {}
    for value in values:
        writers.setdefault(value.blob, []).append(value)
    for given, (name, place) in names.items():
        if given not in writers and tops[given] != 1:
            raise Error(f"the net has no blob and no layer '{given}'", place=place, fix=f"blobs are {listed(list(writers))}")
        if name not in dump:
            raise Error(f"the dump {dump.path} has no '{name}'", place=place, fix=f"names in the dump are {listed(dump.names)}")

    def find(name: str) -> str:
        return names[name][0] if name in names else dump.find(name)

    def own(value: Value) -> str:
        return find(value.layer) if tops[value.layer] == 1 and (value.layer not in writers or value.layer in layers) else ""

    layers = set[str]()  # names of blobs that mean layers, which write other blobs
    layers |= {
        value.layer for value in values
        if tops[value.layer] == 1 and value.blob != value.layer in writers and not find(value.blob) and own(writers[value.layer][-1])
    }  # fmt: skip
    found: dict[str, str] = {}
    for blob, several in writers.items():
        by_layer = list(map(own, several))
        first = any(by_layer[1:]) or several[0].kind == "Input"
        for number, (value, mine) in enumerate(zip(several, by_layer)):
            by_blob = "" if blob in layers or number != (0 if first else len(several) - 1) else find(blob)
            name = mine or by_blob if several[1:] or value.layer in names else by_blob or mine
            if name:
                found[value.key] = name
    if not found:
        fact = f"no name in the dump is a blob or a layer of the net; the dump has {listed(dump.names)}"
        raise Error(fact, place=dump.path, fix=f"--map FILE with lines 'BLOB NAME-IN-DUMP'; blobs are {listed(list(writers))}")
    return found


def _inputs(net: Any, weights: str) -> dict[str, Shape]:
    """Return the inputs with their shapes. Raises Error if there is none."""
    inputs = {top: tuple(shape.dim) for layer in net.layer if layer.type == "Input" for top, shape in _shapes(layer)}
    if not inputs:
        fact = "the net has no Input layer, so it cannot get the input of the dump"
        shapes = ",".join(likely_shape(layer.top[0], [layer])[0] for layer in net.layer if layer.type in DATA and layer.top)
        words = path_word(net.source_file or "NET.prototxt"), path_word(weights), "deploy.prototxt", "deploy.caffemodel"
        line = " ".join([command("ocaffe", "convert", *words), *([flag("shape", shapes)] if shapes else [])])
        fix = f"`{line}` writes the prototxt for deployment, which has Input layers in place of data layers: give that one"
        raise Error(fact, place=net.source_file or None, fix=fix)
    return inputs


def _shapes(layer: Any) -> Iterator[tuple[str, Any]]:
    """Yield each top of an Input layer with its shape. One shape may be for all tops."""
    shapes = layer.input_param.shape
    for index, top in enumerate(layer.top):
        if shapes:
            yield top, shapes[index if len(shapes) > 1 else 0]


def _given(path: str, inputs: Sequence[str]) -> dict[str, Entry]:
    """Return the inputs of --input."""
    fix = "give an .npy file, or an .npz file with an array for each input"
    if not path.endswith(".npz"):
        if len(inputs) > 1:
            raise Error(f"the net has {len(inputs)} inputs, and an .npy file has one array", place=path, fix=f"an .npz file with {' and '.join(inputs)}")
        return {inputs[0]: Entry(read_npy(path, fix), path)}
    return {name: Entry(array, f"{path}: '{name}'") for name, array in read_npz(path, fix).items()}


def _fed(name: str, shape: Shape, arrays: Mapping[str, Entry], dump: Dump, found: str, given: str) -> np.ndarray:
    """Return the values of an input, from --input or as `found` in the dump. The net gets their batch. Raises Error."""
    entry, scale = arrays.get(name), None
    if entry is None:
        if not found:
            several = "; for several inputs an .npz file" if given else ""
            raise Error(f"{given or dump.path} has no values of the input '{name}'", fix=f"--input FILE.npy with the values of the input{several}")
        entry, scale = dump.read(found, math.prod(shape)), dump.scale(found)
    array = entry.values
    fact = f"the input '{name}' is {shape_text(shape)} in the net, and the array is {shape_text(array.shape)}"
    if name not in arrays and array.dtype.kind in "iu" and scale is None:
        fix = f"--input FILE.npy, or --scales FILE with the line '{found} SCALE'"
        raise Error(f"the input '{name}' is {array.dtype} without a scale", place=entry.place, fix=fix)
    batch = array.shape[0] if array.ndim == len(shape) else shape[0] if shape else 1
    shape = (batch, *shape[1:])
    values, _ = numbers_of(entry, scale, shape)
    if values is None:
        raise Error(fact, place=entry.place, fix="--input FILE.npy with an array of the net's shape, or correct the shape in the prototxt")
    if not np.isfinite(values).all():
        raise Error(f"the input '{name}' has values that are not finite", place=entry.place, fix="--input FILE.npy with finite values")
    return np.ascontiguousarray(values, np.float32)


def _row(value: Value, mine: np.ndarray, dump: Dump, name: str, tolerance: float, missing: str) -> Row:
    """Compare one value. `missing` is the note if the dump has no `name` for it."""
    shape = tuple(mine.shape)
    if not name:
        return Row(value, shape, note=missing)
    entry, scale = dump.read(name, mine.size), dump.scale(name)
    other, note = numbers_of(entry, scale, shape)
    if other is None:
        return Row(value, shape, name, wrong=True, note=f"{shape_text(entry.values.shape)} in the dump, {shape_text(shape)} in the net")
    integer = entry.values.dtype.kind in "iub"
    a, b = mine.astype(np.float64), other.astype(np.float64)
    likeness = cosine(a, b)
    if integer and scale is None:
        wrong = not likeness >= LEAST_COSINE
        return Row(value, shape, name, likeness, None, LEAST_COSINE, wrong, _joined(note, "no scale", *([_extreme(entry)] if wrong else [])))
    least = INTEGER_BOUND if integer else HALF_BOUND if entry.values.dtype == np.float16 else TEXT_BOUND if entry.text else 0.0
    bound = max(tolerance, least)
    error, place = difference(a, b)
    wrong = not error <= bound
    note = _joined(note, "" if a.any() or b.any() else "both are zero")
    return Row(value, shape, name, likeness, error, bound, wrong, _joined(note, *([place, _cause(a, b, bound), _extreme(entry)] if wrong else [])))


def _joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Return the cosine of the angle between two arrays as vectors: 1 for two of zeros, NaN for values that are not finite."""
    a, b = a.reshape(-1), b.reshape(-1)
    scale = np.abs(a).max(initial=0), np.abs(b).max(initial=0)
    if not all(map(math.isfinite, scale)):
        return math.nan
    if not all(scale):
        return float(scale[0] == scale[1])
    a, b = a / scale[0], b / scale[1]
    return min(1.0, max(-1.0, float(a @ b / math.sqrt(float(a @ a) * float(b @ b)))))


def difference(a: np.ndarray, b: np.ndarray) -> tuple[float, str]:
    """Return the largest difference as a share of the largest magnitude of `a`, and its place. Infinity: values are finite in one alone, or differ in sign."""
    if not a.size:
        return 0.0, ""
    finite = np.isfinite(a) & np.isfinite(b)
    same = finite | (np.isnan(a) & np.isnan(b)) | (a == b)
    apart = np.where(finite, np.abs(np.where(finite, a, 0) - np.where(finite, b, 0)), np.where(same, 0.0, np.inf))
    at = np.unravel_index(int(apart.argmax()), a.shape)
    largest = np.abs(a[np.isfinite(a)]).max(initial=0.0) or np.abs(b[np.isfinite(b)]).max(initial=0.0) or 1.0
    return float(apart[at] / largest), f"at [{', '.join(map(str, at))}]: {a[at] + 0:.4g} in ocaffe, {b[at] + 0:.4g} in the dump"


def _cause(a: np.ndarray, b: np.ndarray, bound: float) -> str:
    """Return what would make both arrays equal, if it is one of the usual mistakes, else ''."""
    if not (np.isfinite(a).all() and np.isfinite(b).all()) or a.size < 2:
        return ""
    factor = float((a * b).sum() / max(float((a * a).sum()), 1e-300))
    if factor and _equal(a * factor, b, bound):
        return f"it is {factor:.4g} times ocaffe's"
    if _equal(a + (b - a).mean(), b, bound):
        return f"it is ocaffe's plus {(b - a).mean():.4g}"
    if a.ndim > 2 and _equal(a + (b - a).mean(axis=(0, *range(2, a.ndim)), keepdims=True), b, bound):
        return "each channel is ocaffe's plus a number: another bias"
    if a.ndim == 4:
        last = b.reshape(a.shape[0], a.shape[2], a.shape[3], a.shape[1]).transpose(0, 3, 1, 2)
        for other, text in ((last, "its channels are last"), (b[:, ::-1], "its channels are in the opposite order")):
            if _equal(a, other, bound):
                return f"equal if {text}"
        if a.shape[2] == a.shape[3] and _equal(a, b.swapaxes(2, 3), bound):
            return "equal if its rows are columns"
    for axis in range(2, a.ndim):
        for step in (1, -1):
            inner = range(max(0, step), a.shape[axis] + min(0, step))
            if len(inner) > 1 and _equal(np.roll(a, step, axis).take(inner, axis), b.take(inner, axis), bound):
                return f"it is ocaffe's moved by {step:+d} along axis {axis}"
    return ""


def _equal(a: np.ndarray, b: np.ndarray, bound: float) -> bool:
    return bool(np.ptp(a) and difference(a, b)[0] <= bound)


def _extreme(entry: Entry) -> str:
    """Return the share of integers at an end of their range, if it is large."""
    if entry.values.dtype.kind not in "iu" or not entry.values.size:
        return ""
    limits = np.iinfo(entry.values.dtype)
    share = float(np.isin(entry.values, [limits.max] + [limits.min] * (limits.min < 0)).mean())
    return f"{share:.0%} of its integers are at an end of {entry.values.dtype}: the scale may be too small" if share >= EXTREME else ""
