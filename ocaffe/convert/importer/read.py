"""Read an ONNX file as a checked model. Errors name the damaged or unsupported part before any conversion starts."""
from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from onnx import TensorProto, checker, defs, helper, inliner

from ocaffe.convert.importer.external import load_external
from ocaffe.errors import Error
from ocaffe.formats.sniff import is_hdf5, is_text, open_head, wrong_kind
from ocaffe.shown import command, path_word
from ocaffe.support.kinds import foreign, kind_of

OLDEST = 7  # broadcasting as in numpy exists since opset 7
_KINDS = {"sequence_type": "a sequence", "map_type": "a map", "optional_type": "optional", "sparse_tensor_type": "a sparse tensor"}
_LIMIT = 2**31 - 2**24  # bytes of a protobuf message; a larger model is checked by its file, because the checker serializes a message
DOMAINS = ("", "ai.onnx")
_NO_FUNCTIONS = "export it without functions of its own; torch.onnx.export(..., dynamo=False) writes none"
MOST_NODES, DEEPEST = 100_000, 100  # nodes of a model whose functions are inlined, functions and subgraphs inside each other


def read_model(path: str | Path) -> Any:
    """Return the ModelProto in `path` with external data loaded and local functions inlined.

    Raises Error if the file is missing, damaged or inconsistent, or if its opset or an operator is unknown.
    """
    place = str(path)
    head = open_head(path, "an ONNX model")
    if is_hdf5(head):
        keras = command("python", "-m", "tf2onnx.convert", "--keras", path_word(place), "--output", path_word(Path(place).with_suffix(".onnx")))
        fix = f"if it is of Keras: pip install tf2onnx; {keras}; if it has weights of Caffe, they need no conversion"
        raise Error("is an HDF5 file, not an ONNX model", place=place, fix=fix)
    if is_text(head):
        raise Error("is a text file, not an ONNX model", place=place, fix="give the .onnx file itself")
    kind = kind_of(head, place) or foreign(place)
    if kind is not None:
        raise wrong_kind(kind, "an ONNX model", place, "give the .onnx file")
    try:
        model = onnx.load(place, format="protobuf", load_external_data=False)
    except Exception as problem:  # of onnx and protobuf
        fix = "check that this is the .onnx file; if it is, copy or download it again"
        raise Error(f"is damaged or truncated, or is not an ONNX model: {_line(problem)}", place=place, fix=fix) from None
    if not model.graph.node:
        fix = "export the model again from its program, and copy the whole file"
        raise Error("has no operators: it is not an ONNX model, or is truncated", place=place, fix=fix)
    if any(isinstance(text, bytes) for text in _texts(model)):  # protobuf returns invalid text as bytes
        raise Error("is damaged: a name in it is not valid text", place=place, fix="copy or download it again")
    if not all(node.output for node in model.graph.node):
        node = next(node for node in model.graph.node if not node.output)
        fix = "copy or download it again, or correct the program that makes it"
        raise Error(f"is damaged: the node '{node.name}' ({node.op_type}) has no output", place=place, fix=fix)
    if not model.graph.output:
        fix = "copy or download it again, or name the outputs in the program that makes it"
        raise Error("names no outputs: it is damaged or incomplete", place=place, fix=fix)
    opset = opset_of(model, place)
    if model.functions:
        model = _inlined(model, place)
    _refuse_unknown(model, opset, place)
    size = Path(path).stat().st_size + load_external(model, Path(path).parent, place)
    try:
        checker.check_model(model if size < _LIMIT else place)
    except Exception as problem:  # of the checker, and of its own copy of protobuf
        fix = f"correct the program that makes it, until onnx.checker.check_model('{place}') has no complaint"
        raise Error(f"is not a valid ONNX model: {_line(problem)}", place=place, fix=fix) from None
    for info in model.graph.input:
        check_type(info, place)
    return model


def check_type(info: Any, place: str) -> None:
    """Refuse an input that is not a tensor, or whose elements are of a type that the installed onnx does not know."""
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        fact = f"input '{info.name}' {f'is {_KINDS.get(kind, kind)}' if kind else 'has no type'}, and a Caffe net takes tensors"
        joined = ", for example torch.stack of the sequence" if kind == "sequence_type" else ""
        raise Error(fact, place=place, fix=f"make '{info.name}' a tensor in the program that exports the model{joined}")
    number = info.type.tensor_type.elem_type
    if number == TensorProto.UNDEFINED:
        raise Error(f"input '{info.name}' has no type of elements", place=place, fix="set its elem_type, such as onnx.TensorProto.FLOAT")
    if number not in helper.get_all_tensor_dtypes():
        fact = f"the elements of input '{info.name}' are of type {number}, which onnx {onnx.__version__} does not know"
        raise Error(fact, place=place, fix="pip install -U onnx; or export the model with an input of float")


def _texts(message: Any) -> Iterator[Any]:
    """Iterate over the texts in a message: names of nodes, tensors, attributes, domains and files."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if field.is_repeated else (value,):
                yield from _texts(part)
        elif field.type == FieldDescriptor.TYPE_STRING:
            yield from value if field.is_repeated else (value,)


def opset_of(model: Any, place: str) -> int:
    """Return the opset of ONNX's standard operators."""
    newest = defs.onnx_opset_version()
    versions = [item.version for item in model.opset_import if item.domain in DOMAINS]
    if not versions:
        fix = "name the opset that it is written for: model.opset_import.append(onnx.helper.make_opsetid('', VERSION))"
        raise Error("does not say which opset its operators are of", place=place, fix=fix)
    if len(set(versions)) > 1:
        fact = f"says that its operators are of opsets {' and '.join(map(str, versions))}"
        raise Error(fact, place=place, fix="keep one entry of model.opset_import for the domain '': the opset that it is written for")
    if not OLDEST <= versions[0] <= newest:
        newer = f"onnx.version_converter.convert_version(onnx.load('{place}'), 17)"
        fix = f"{newer if versions[0] < OLDEST else 'pip install -U onnx'}, or export it with opset 17"
        raise Error(f"is of opset {versions[0]}, opsets {OLDEST} to {newest} are supported", place=place, fix=fix)
    return int(versions[0])


def _inlined(model: Any, place: str) -> Any:
    """Return the model without functions. Functions that call others twice each could make any number of nodes."""
    bodies = {_called(function.domain, function.name, function): function.node for function in model.functions}
    sizes: dict[tuple[str, ...], float] = {}
    made = _expanded(model.graph.node, bodies, sizes)
    if made > MOST_NODES:
        what = f"make {made:,.0f} nodes, and at most {MOST_NODES:,} are accepted" if made < math.inf else f"call themselves, or are nested over {DEEPEST} deep"
        raise Error(f"its functions {what}", place=place, fix=_NO_FUNCTIONS)
    try:
        return inliner.inline_local_functions(model)
    except Exception as problem:  # of the library
        raise Error(f"its functions cannot be inlined: {_line(problem)}", place=place, fix=_NO_FUNCTIONS) from None


def _expanded(nodes: Any, bodies: dict[tuple[str, ...], Any], sizes: dict[tuple[str, ...], float], depth: int = 0) -> float:
    """Return the number of nodes without functions. `sizes` are those of the functions that are known."""
    if depth > DEEPEST:
        return math.inf
    total = 0.0
    for node in nodes:
        name = _called(node.domain, node.op_type, node)
        if name in bodies and name not in sizes:
            sizes[name] = math.inf  # for a function that calls itself
            sizes[name] = _expanded(bodies[name], bodies, sizes, depth + 1)
        inner = (graph for attribute in node.attribute for graph in (attribute.g, *attribute.graphs))
        total += sizes.get(name, 1) + sum(_expanded(graph.node, bodies, sizes, depth + 1) for graph in inner if graph.node)
    return total


def _called(domain: str, name: str, message: Any) -> tuple[str, ...]:
    """Return what a node has in common with the function that it calls. Old versions of onnx have no overloads."""
    return domain, name, getattr(message, "overload", "")


def _refuse_unknown(model: Any, opset: int, place: str) -> None:
    """Refuse standard operators that the opset lacks. Operators of other domains are reported later, because they have no rule."""
    for node in model.graph.node:
        if node.domain in DOMAINS and not defs.has(node.op_type, opset, ""):
            later = [number for number in range(opset + 1, defs.onnx_opset_version() + 1) if defs.has(node.op_type, number, "")]
            fix = f"export it with opset {later[0]}" if later else "correct the operator's name, or name its domain, in the program that makes the model"
            raise Error(f"opset {opset} has no operator '{node.op_type}' (node '{node.name or next(iter(node.output), '')}')", place=place, fix=fix)


def _line(problem: Exception) -> str:
    return str(problem).strip().splitlines()[0].rstrip(".:") if str(problem).strip() else type(problem).__name__
