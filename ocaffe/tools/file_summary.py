"""Summaries of files as lines of text: net, solver, weights, solver state, mean, database, ONNX model."""
from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.errors import Error, shape_text
from ocaffe.formats import wire
from ocaffe.formats.blob import read_blobproto
from ocaffe.formats.sniff import is_hdf5, is_text, open_head
from ocaffe.formats.state import read_state
from ocaffe.formats.text import read_net, read_solver, write_text
from ocaffe.formats.weights import read_weights


def summarize(path: str | Path) -> list[str]:
    """Return a summary of the file or database `path`. Raise Error if the kind of file is unknown, or if the file is damaged."""
    if Path(path).is_dir():
        return _database(path)
    head = open_head(path, "a file of Caffe or ONNX")
    if is_hdf5(head):
        return _hdf5(path)
    return _TEXTS[_text_kind(path)](path) if is_text(head) else _BINARIES[_binary_kind(path)](path)


def table(rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """Return the rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows)] if rows else []
    return [indent + "  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in rows]


def _values(count: int) -> str:
    return f"{count:,} value{'s' * (count != 1)} ({count * 4 / 2**20:,.1f} MiB)"


# -- the kind of a file ------------------------------------------------------------------------------------------------


def _text_kind(path: str | Path) -> str:
    """Return 'net' unless the file can only be parsed as a solver."""
    try:
        read_net(path)
        return "net"
    except Error as problem:
        try:
            read_solver(path)
            return "solver"
        except Error:
            raise problem from None


def _binary_kind(path: str | Path) -> str:
    """Return the kind of a binary file. The numbers and wire types of its fields identify it."""
    span = wire.map_file(path)
    try:
        fields = {(field.number, field.kind) for field in span.fields()}
    except wire.Malformed:
        return "onnx" if str(path).endswith(".onnx") else "weights"  # the reader of that kind reports the error
    number = (1, wire.VARINT) in fields
    if (100, wire.BYTES) in fields or (not number and (2, wire.BYTES) in fields):  # layers
        return "weights"
    if number and {(7, wire.BYTES), (8, wire.BYTES)} <= fields:  # IR version, graph, opsets
        return "onnx"
    if number and (2, wire.VARINT) not in fields:  # an iteration; (2, VARINT) would be a blob's channels
        return "state"
    return "blob" if fields & {(5, wire.BYTES), (5, wire.FIXED32), (8, wire.BYTES)} else "weights"


# -- text --------------------------------------------------------------------------------------------------------------


def _net(path: str | Path) -> list[str]:
    from ocaffe.formats.upgrade import upgrade_net

    net = upgrade_net(read_net(path))
    lines = [f"net '{net.name}'" if net.name else "net without a name", f"  layers: {len(net.layer)} ({_counts(layer.type for layer in net.layer)})"]
    phases = {proto.Phase.Name(phase): _phase(net, phase) for phase in (proto.TRAIN, proto.TEST)}
    for name, (title, *rest) in ({"TRAIN and TEST": phases["TRAIN"]} if phases["TRAIN"] == phases["TEST"] else phases).items():
        lines += [f"  {name}: {title}", *rest]
    return lines


def _phase(net: Any, phase: int) -> list[str]:
    """Return the layers, shapes and parameters of one phase. Shapes are left out if the net cannot be built."""
    from ocaffe.compiler.network import phase_net
    from ocaffe.graph.build import build

    filtered = phase_net(net, phase)
    try:
        graph = build(filtered, phase)
    except Error as problem:
        rows = [[layer.name, layer.type, ", ".join(layer.top)] for layer in filtered.layer]
        return [f"shapes are unknown, for it cannot be built here: {problem.fact}", *table([["layer", "type", "tops"], *rows], "    ")]
    own = {layer.name for layer in filtered.layer}  # without inserted Splits
    rows = [[node.name, node.type, ", ".join(shape_text(top.shape) for top in node.tops), ", ".join(shape_text(p.shape) for p in node.params)]
            for node in graph.nodes if node.name in own]  # fmt: skip
    count, flops = sum(parameter.count for parameter in graph.params), sum(node.layer.flops() for node in graph.nodes)
    title = f"{len(rows)} layers, {_values(count)} of parameters, {flops / 1e9:,.2f} Gflop forward"
    return [title, *table([["layer", "type", "tops", "parameters"], *rows], "    ")]


def _counts(names: Iterable[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(collections.Counter(names).items(), key=lambda item: (-item[1], item[0])))


def _solver(path: str | Path) -> list[str]:
    solver = read_solver(path)
    return [f"solver of type {solver.type or 'SGD'}", *(f"  {line}" for line in write_text(solver).splitlines())]


# -- weights and states ------------------------------------------------------------------------------------------------


def _weights(path: str | Path) -> list[str]:
    weights = read_weights(path)
    blobs = [blob for layer in weights.layers for blob in layer.blobs if blob is not None]
    kinds = ", ".join(sorted({blob.dtype.name for blob in blobs})) or "none"
    of = f" of net '{weights.name}'" if weights.name else ""
    lines = [f"weights{of}: {len(weights.layers)} layers, {_values(sum(blob.size for blob in blobs))}, {kinds}"]
    rows = [[layer.name, layer.type, ", ".join("shared" if blob is None else shape_text(blob.shape) for blob in layer.blobs)]
            for layer in weights.layers if layer.blobs]  # fmt: skip
    bad = sum(int(not np.isfinite(blob).all()) for blob in blobs)
    return [*lines, *table(rows), *([f"  {bad} blobs have values that are not finite"] if bad else [])]


def _state(path: str | Path) -> list[str]:
    state = read_state(path)
    rows = [["iteration", str(state.iter)], ["weights", state.learned_net or "not named"], ["current_step", str(state.current_step)],
            ["history", f"{len(state.history)} blobs, {_values(sum(blob.size for blob in state.history))}"]]  # fmt: skip
    rows += [["random seed", str(state.random_seed)]] if state.random_seed is not None else []
    rows += [[f"data layer {cursor.layer}", f"batch {cursor.batch} of the {cursor.net} net"] for cursor in state.cursors]
    return ["solver state", *table(rows)]


def _hdf5(path: str | Path) -> list[str]:
    from ocaffe.formats.hdf5_files import Hdf5Files

    with Hdf5Files() as files:
        root = files.members(path)
    if "iter" in root and "history" in root:
        return _state(path)
    if "data" in root and root["data"].kind == "group":
        return _weights(path)
    rows = [[name, item.problem or shape_text(item.shape), str(item.dtype)] for name, item in root.items() if item.kind == "dataset" or item.problem]
    return [f"HDF5 file with {len(rows)} datasets", *table(rows)]


# -- data --------------------------------------------------------------------------------------------------------------


def _blob(path: str | Path) -> list[str]:
    array = read_blobproto(path)
    lines = [f"blob (a mean image?) of {shape_text(array.shape)}, {_values(array.size)}"]
    if array.size:
        lines.append(f"  from {array.min():g} to {array.max():g}, mean {array.mean():g}")
    if array.ndim > 2 and array.shape[-3] <= 4:
        means = array.reshape(-1, array.shape[-3], array.shape[-2] * array.shape[-1]).mean((0, 2))
        lines.append(f"  mean of each channel: {', '.join(f'{value:g}' for value in means)}")
    return lines


def _database(path: str | Path) -> list[str]:
    from ocaffe.data.databases.database import Reader, key_text, open_database
    from ocaffe.data.databases.datum import DatumReader

    backend = proto.DataParameter.LEVELDB if (Path(path) / "CURRENT").exists() else proto.DataParameter.LMDB
    database = open_database(str(path), backend)
    ((key, value),) = Reader(database).read(0)
    try:
        datum = DatumReader()(value)
    except (Error, wire.Malformed) as problem:
        raise database.fault(problem, 0, key) from None
    kind = "an encoded image" if datum.encoded else f"{shape_text(datum.shape)} of {'bytes' if datum.pixels is not None else 'floats'}"
    label = "no label" if datum.label is None else f"label {datum.label}"
    return [f"{proto.DataParameter.DB.Name(backend)} database of {database.entries:,} records", f"  the first, '{key_text(key)}': {kind}, {label}"]


# -- ONNX --------------------------------------------------------------------------------------------------------------


def _onnx(path: str | Path) -> list[str]:
    from ocaffe.convert.import_summary import summarize_onnx

    return summarize_onnx(path)


Summary = Callable[["str | Path"], "list[str]"]
_TEXTS: dict[str, Summary] = {"net": _net, "solver": _solver}
_BINARIES: dict[str, Summary] = {"weights": _weights, "state": _state, "blob": _blob, "onnx": _onnx}
