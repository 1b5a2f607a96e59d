"""Convert ONNX models to Caffe nets: `convert(model.onnx, net.prototxt, net.caffemodel)`.

    file ─read─▶ ModelProto ─graph_of─▶ Graph ─fold─▶ ─rewrite─▶ Graph ─rules─▶ NetParameter and weights
"""
from __future__ import annotations

import collections
import contextlib
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx import numpy_helper

from ocaffe.convert.importer.batch import batches, mark_repeated, merge
from ocaffe.convert.importer.builder import Builder
from ocaffe.convert.importer.constant import is_text
from ocaffe.convert.importer.fold import fold
from ocaffe.convert.importer.graph import Graph, at, graph_of
from ocaffe.convert.importer.patterns import rewrite
from ocaffe.convert.importer.read import opset_of, read_model
from ocaffe.convert.importer.rounding import leave_out
from ocaffe.convert.importer.rules import rules
from ocaffe.errors import Error, shape_text
from ocaffe.formats.text import write_text
from ocaffe.formats.transcode import is_hdf5_name, shared_blobs
from ocaffe.formats.weights import write_weights
from ocaffe.ir.tensor import Shape
from ocaffe.shown import flag, visible
from ocaffe.support import log
from ocaffe.support.files import atomic_write, refuse_other

QUANTIZED = re.compile(r"\w*Quantize\w+|Dequantize\w+|QLinear\w+|QGemm|QAttention|(Conv|MatMul)Integer\w*|MatMulNBits")  # with onnxruntime's own
RECURRENT = ("GRU", "LSTM")  # the batch of these is axis 1

GRIDS = ("QuantizeLinear", "DequantizeLinear")
ON_GRIDS = "export QuantizeLinear with a DequantizeLinear of the same constant scale and zero point behind it, for whole tensors; or "
UNQUANTIZED = (
    "convert the float model from which it was made, and let the chip's own tool quantize the Caffe files; a model of quantization-aware training: "
    "model.apply(torch.ao.quantization.disable_fake_quant) before the export"
)


def convert(
    source: str | Path,
    prototxt: str | Path,
    caffemodel: str | Path,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    outputs: Iterable[str] = (),
    force: bool = False,
) -> Any:
    """Write the Caffe net of the ONNX model `source` to `prototxt` and its weights to `caffemodel`; return the NetParameter.

    Weights are HDF5 if the name ends in .h5 or .hdf5. `shapes` replaces the model's shapes of inputs, by name. In the model only the batch may be
    unknown; it is then 1. `outputs` are tensors that replace the model's outputs; nodes that only other outputs need are dropped. Raises Error and
    writes nothing if the model is damaged or inconsistent, if it has operators that no Caffe layer computes, or, without `force`, if a file exists
    with other content.
    """
    net, blobs = load(source, shapes=shapes, outputs=outputs)
    if not force:
        refuse_changed(net, blobs, source, prototxt, caffemodel)
    write(net, blobs, source, prototxt, caffemodel)
    return net


def refuse_changed(
    net: Any, blobs: Mapping[str, Sequence[np.ndarray]], source: str | Path, prototxt: str | Path, caffemodel: str | Path,
    beside: Mapping[Path, bytes] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Raise Error if one of the files exists with other content than `write` gives it: a user may have changed it."""
    refuse_other(prototxt, lambda path: path.write_bytes(prototxt_of(net, source)))
    refuse_other(caffemodel, lambda path: write_blobs(path, net, blobs))
    for file, content in beside.items():
        refuse_other(file, functools.partial(Path.write_bytes, data=content))


def write(
    net: Any, blobs: Mapping[str, Sequence[np.ndarray]], source: str | Path, prototxt: str | Path, caffemodel: str | Path,
    beside: Mapping[Path, bytes] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Write the result of `load` or `to_caffe` for `source`, and the contents of files `beside` them: all files or none."""
    with contextlib.ExitStack() as files:  # if one file cannot be written, none is kept
        for path, content in {Path(prototxt): prototxt_of(net, source), **beside}.items():
            files.enter_context(atomic_write(path)).write(content)
        write_blobs(caffemodel, net, blobs)


def write_blobs(path: str | Path, net: Any, blobs: Mapping[str, Sequence[np.ndarray]]) -> None:
    """Write the weights of a net in the format that the name of the file tells."""
    if is_hdf5_name(path):
        from ocaffe.formats.hdf5 import write_weights_hdf5

        shared = shared_blobs(net)  # HDF5 has them once
        single = {name: [None if (name, index) in shared else blob for index, blob in enumerate(arrays)] for name, arrays in blobs.items()}
        write_weights_hdf5(path, net, single)
    else:
        write_weights(path, net, blobs)


def prototxt_of(net: Any, source: str | Path) -> bytes:
    """Return the content of the prototxt that `write` writes."""
    return f"# Converted from {visible(Path(source).name)} by ocaffe.\n{write_text(net)}".encode()


def load(
    source: str | Path, *, shapes: Mapping[str, Sequence[int]] | None = None, outputs: Iterable[str] = ()
) -> tuple[Any, dict[str, list[np.ndarray]]]:
    """Return the NetParameter and the weights by layer; see `convert`."""
    return to_caffe(read_model(source), str(source), shapes=shapes, outputs=outputs)


def to_caffe(
    model: Any, place: str, *, shapes: Mapping[str, Sequence[int]] | None = None, outputs: Iterable[str] = ()
) -> tuple[Any, dict[str, list[np.ndarray]]]:
    """Do the same as `load` for a ModelProto of `read_model`. Errors name the model by `place`."""
    converted = import_net(model, place, shapes=shapes, outputs=outputs)
    if converted.open and converted.fixed:
        log.warning("convert.py:1", f"{place}: the net takes only the batch of the prototxt: {converted.fixed}")
    return converted.net, converted.blobs


@dataclass
class Imported:
    """The net and its weights by layer.

    `batch` is the axis of the batch in each input that has one, `outputs` in each output. The net takes any size there, unless `fixed` says why it takes
    only that of the model, or 1 if the model leaves it open (`open`).
    """

    net: Any
    blobs: dict[str, list[np.ndarray]]
    open: bool
    batch: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, int | None] = field(default_factory=dict)
    fixed: str = ""


def import_net(model: Any, place: str, *, shapes: Mapping[str, Sequence[int]] | None = None, outputs: Iterable[str] = ()) -> Imported:
    """Do the same as `to_caffe`, and say more about the result."""
    graph = graph_of(model, opset_of(model, place), place, shapes=shapes or {}, outputs=outputs)
    recurrent = any(node.op in RECURRENT for node in graph.nodes)
    candidates = [axes for axes in (_axes(graph, 0, graph.open or graph.inputs), _axes(graph, 1, graph.inputs) if recurrent else {}) if axes]
    found, fixed = None, ""
    for axes in candidates:
        try:
            found = found or _of_any_batch(graph, axes)
        except Error as problem:
            fixed = fixed or ", ".join(filter(None, (problem.layer, problem.fact)))
    if found is None:
        fold(graph)
        net = _build(graph)
        leave_out(net)
        found = Imported(net.message, net.blobs, bool(graph.open), fixed=fixed)
    if fixed and (graph.open or found.fixed):  # another axis than the one that the model leaves open does not help
        found.batch, found.fixed = candidates[0], fixed
    _warn_of_training(graph)
    return found


def _axes(graph: Graph, axis: int, inputs: Sequence[str]) -> dict[str, int]:
    """Return `axis` for each of the inputs that has as many values there as the first one."""
    sizes = {name: graph.shape(name)[axis : axis + 1] for name in inputs}
    return {name: axis for name, size in sizes.items() if size == sizes[inputs[0]] != ()}


def _of_any_batch(graph: Graph, axes: Mapping[str, int]) -> Imported:
    """Return a net that takes any batch along the axes of the inputs. Raises Error if there is none."""
    one, two = (graph.of_batch(axes, size) for size in batches(graph))
    for each in (one, two):
        fold(each)
    mark_repeated(one, two)
    nets = _build(one), _build(two)
    outputs = {name: _differing(one.shape(name), two.shape(name)) for name in dict.fromkeys(graph.outputs)}
    message = merge(*nets)
    leave_out(*nets)
    return Imported(message, nets[0].blobs, bool(graph.open), dict(axes), outputs)


def _differing(one: Shape, two: Shape) -> int | None:
    """Return the axis in which two shapes differ, or None if there is none or several."""
    axes = [axis for axis, sizes in enumerate(zip(one, two)) if sizes[0] != sizes[1]]
    return axes[0] if len(axes) == 1 else None


def _build(graph: Graph) -> Builder:
    """Return the net of a folded graph."""
    _refuse_text(graph)
    rewrite(graph)
    _refuse(graph)
    net = Builder(graph)
    for node in graph.nodes:
        _check_axis(net, node)
        with at(graph, node):
            rules()[node.op](net, node)
        for output in filter(None, node.outputs):
            _compare(net, node, output)
    net.finish()
    return net


def _refuse_text(graph: Graph) -> None:
    for node in graph.nodes:
        for name in node.inputs:
            if name in graph.constants and is_text(graph.constants[name]):
                fact = f"its input '{name}' is text; a Caffe layer computes numbers"
                raise Error(fact, place=graph.place, layer=node.title, fix=graph.remedy(node))


def _refuse(graph: Graph) -> None:
    """Report all operators without a rule in one error, so that the user sees everything that prevents the conversion."""
    missing = collections.defaultdict(list)
    for node in graph.nodes:
        if node.op not in rules():
            missing[node.op].append(node.name or node.outputs[0])
    if missing:
        first = next(node for node in graph.nodes if node.op in missing)
        quantized = [op for op in sorted(missing) if QUANTIZED.fullmatch(op.rpartition(".")[2])]
        if quantized:
            fact = f"the model is quantized: it has {', '.join(f'{len(missing[op])} {op}' for op in quantized)}. A Caffe net computes with floats"
            fix = (ON_GRIDS if set(quantized) <= set(GRIDS) else "") + UNQUANTIZED
            raise Error(fact, place=graph.place, fix=graph.remedy(next(node for node in graph.nodes if node.op in quantized), fix))
        texts = [f"{op} ({len(names)}: '{names[0]}'{', ..' * (len(names) > 1)})" for op, names in sorted(missing.items())]
        raise Error(f"no Caffe layer computes these operators: {', '.join(texts)}", place=graph.place, fix=graph.remedy(first))
    for output in graph.outputs:
        if output in graph.constants:
            others = [name for name in graph.outputs if name not in graph.constants]
            fix = f"{flag('cut-at', ','.join(others))} leaves it out" if others else "--cut-at with the name of a tensor that depends on an input"
            raise Error(f"output '{output}' does not depend on the inputs", place=graph.place, fix=fix)


def is_training(message: Any) -> bool:
    """Whether a NodeProto normalizes by the statistics of the current batch."""
    if message is None or message.op_type != "BatchNormalization":
        return False
    return any(message.output[1:]) or any(attribute.name == "training_mode" and attribute.i for attribute in message.attribute)


def draws(model: Any) -> bool:
    """Whether a Dropout of a ModelProto drops values at random, as in training: its third input is a true constant."""
    flags = {tensor.name: tensor for tensor in model.graph.initializer}
    flags |= {node.output[0]: item.t for node in model.graph.node if node.op_type == "Constant" for item in node.attribute if item.name == "value"}
    given = [node.input[2] for node in model.graph.node if node.op_type == "Dropout" and len(node.input) > 2]
    return any(numpy_helper.to_array(flags[name]).any() for name in given if name in flags)


def _warn_of_training(graph: Graph) -> None:
    """Warn of BatchNormalization in training form (before opset 14: with several outputs): Caffe computes it only in TRAIN."""
    norms = [node for node in graph.nodes if is_training(node.message)]
    if norms:
        text = f"{len(norms)} BatchNormalization nodes (the first is {norms[0].title}) take the statistics of the batch, as in training"
        log.warning("convert.py:1", f"{graph.place}: {text}; the Caffe net does so in TRAIN, and in TEST takes the running statistics of the file")


def merged_norms(model: Any) -> str:
    """Return the exporter that has merged batch normalization into convolutions, or an empty text.

    PyTorch's exporter for TorchScript numbers such weights and names others after their module. That of dynamo names the rule in the metadata of the node.
    tf2onnx (tf2onnx/optimizer/back_to_back_optimizer.py) adds an ending to the name.
    """
    names = [tensor.name for tensor in model.graph.initializer]
    if any(name.endswith("_weights_fused_bn") for name in names):
        return "tf2onnx"
    if model.producer_name != "pytorch":
        return ""
    if any(re.fullmatch(r"onnx::Conv(Transpose)?_\d+", name) for name in names):
        return "TorchScript"
    rules = (entry.value for node in model.graph.node for entry in node.metadata_props if entry.key == "pkg.onnxscript.rewriter.rule_name")
    return "dynamo" if any("FuseBatchNorm" in rule for rule in rules) else ""


def _check_axis(net: Builder, node: Any) -> None:
    """Refuse an axis that the first input does not have. Some operators add an axis."""
    axis, tensor = node.attributes.get("axis", 0), node.input(0)
    if tensor in net.graph.types:
        shape = net.graph.shape(tensor)
        fact = f"axis is {axis}, and '{tensor}' is {shape_text(shape)}"
        net.check(node, -len(shape) - 1 <= axis <= len(shape), fact, f"export with an axis from {-len(shape)} to {len(shape) - 1}")


def _compare(net: Builder, node: Any, output: str) -> None:
    blob = net.same.get(output, output)
    if blob in net.shapes and output in net.graph.types and net.shapes[blob] != net.graph.shape(output):
        raise net.error(node, f"'{output}' is {shape_text(net.graph.shape(output))} in ONNX, but as Caffe layers it is {shape_text(net.shapes[blob])}")
