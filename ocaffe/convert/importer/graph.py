"""The intermediate graph of an import: nodes in order, constants as arrays, the shape of every tensor."""
from __future__ import annotations

import collections
import contextlib
import difflib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, helper, numpy_helper

from ocaffe.convert.importer.budget import Budget
from ocaffe.errors import Error, shape_text, within
from ocaffe.ir.tensor import Shape
from ocaffe.shown import flag
from ocaffe.support.parsing import reason

FLOATS = (1, 10, 11, 16)  # FLOAT, FLOAT16, DOUBLE, BFLOAT16: a Caffe net computes them all as FLOAT
WHOLE = (5, 6, 7)  # INT16, INT32, INT64: casts to these drop the fraction. Smaller types drop high digits too
UNKNOWN = (None, 0, -1)  # a size that the file leaves open
MOST_AXES = 32  # kMaxBlobAxes in Caffe's include/caffe/blob.hpp


@dataclass(eq=False)
class Node:
    """One operator. An omitted optional input is ''. `message` is the NodeProto, or None for a node that a rewrite created."""

    op: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    message: Any = None

    @property
    def title(self) -> str:
        return f"'{self.name or self.outputs[0]}' ({self.op})"

    def get(self, attribute: str, default: Any = None) -> Any:
        return self.attributes.get(attribute, default)

    @property
    def implicit(self) -> set[str]:
        """The tensors that graphs inside the node (bodies of If and Loop) read."""
        graphs = [value for value in self.attributes.values() if isinstance(value, GraphProto)]
        return {name for graph in graphs for inner in graph.node for name in (*inner.input, *node_of(inner).implicit)}

    def input(self, index: int) -> str:
        """Return the tensor of an input, or '' if it is omitted."""
        return self.inputs[index] if index < len(self.inputs) else ""


@dataclass(eq=False)
class Graph:
    """An ONNX graph.

    `trained` names the constants that were initializers, because exporters write parameters as initializers. `types` holds the TypeProtos of tensors that
    are not constants. `open` names the inputs whose first axis has an unknown size.

    `of_batch` makes a graph for another batch: `batch` maps the inputs to their axis of the batch, `sizes` are the batch of the original graph and the
    new one. `repeated` maps constants that are equal along an axis of the batch to this axis; the constants have one value there.

    `made` names the tensors that --cut-at can name: the outputs of the nodes in the file. `integers` has the constants that are integers times a scale,
    with the largest integer, and whether they have several scales.
    """

    place: str
    name: str
    opset: int
    nodes: list[Node]
    inputs: list[str]
    outputs: list[str]
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    trained: set[str] = field(default_factory=set)
    types: dict[str, Any] = field(default_factory=dict)
    declared: dict[str, tuple[int | None, ...]] = field(default_factory=dict)  # shapes in the file, to be compared with the inferred shapes
    opset_import: Any = None
    open: list[str] = field(default_factory=list)
    batch: dict[str, int] = field(default_factory=dict)
    sizes: tuple[int, int] = (1, 1)
    repeated: dict[str, int] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    made: frozenset[str] = frozenset()
    integers: dict[str, tuple[int, bool]] = field(default_factory=dict)

    def add(self, graph: Any) -> None:
        """Add the initializers of a GraphProto to the constants."""
        self.constants |= {tensor.name: array_of(tensor, self.place) for tensor in graph.initializer}
        for tensor in graph.initializer:
            self.budget.earn(self.constants[tensor.name])
        self.constants |= {tensor.values.name: dense_of(tensor, self.place, self.budget) for tensor in graph.sparse_initializer}

    def of_batch(self, axes: Mapping[str, int], size: int) -> Graph:
        """Return the graph for a batch of `size` along the axes of the inputs. Constants are shared. Call it before nodes are changed."""
        types, own = dict(self.types), 1
        for name, axis in axes.items():
            shape = list(self.shape(name))
            own, shape[axis] = shape[axis], size
            types[name] = helper.make_tensor_type_proto(types[name].tensor_type.elem_type, shape)
        return replace(self, nodes=[node_of(node.message) for node in self.nodes], constants=dict(self.constants), trained=set(self.trained), types=types,
                       batch=dict(axes), sizes=(own, size), repeated={}, budget=replace(self.budget))  # fmt: skip

    def shape(self, tensor: str) -> Shape:
        """Return the shape of a tensor. Raises Error if it depends on values, if it is impossible, or if it has more axes than a blob."""
        if tensor in self.constants:
            check_axes(f"'{tensor}'", self.constants[tensor].ndim, self.place)
            return self.constants[tensor].shape
        if tensor not in self.types:
            fact = f"the shape of '{tensor}' depends on values, so it is not known before the net runs"
            raise Error(fact, place=self.place, fix=self._before_unknown(tensor))
        shape = tuple(dim.dim_value for dim in self.types[tensor].tensor_type.shape.dim)
        check_axes(f"'{tensor}'", len(shape), self.place)
        if min(shape, default=0) < 0:  # the result of scales such as -1, NaN or 1e30
            fact = f"the sizes of '{tensor}' are {', '.join(map(str, shape))}, and no tensor has a negative size"
            raise Error(fact, place=self.place, fix="export the model with sizes, scales and pads that give sizes of 1 or more")
        return shape

    def remedy(self, node: Node, fix: str = "") -> str:
        """Return `fix`, and the flag that converts the net up to a node that no layer can compute."""
        names = self._before(node)
        cut = f"{flag('cut-at', ','.join(names))} converts the part before it" if names else ""
        return "; or ".join(filter(None, (fix, cut))) or "export the model without this operator, or compute it outside of the net"

    def _before(self, node: Node) -> list[str]:
        """Return the nearest tensors before a node that --cut-at can name. They hold floats, as Caffe's blobs do."""
        producers, seen, found = self.producers(), set[str](), list[str]()
        pending = collections.deque(node.inputs)
        while pending:
            tensor = pending.popleft()
            if tensor in seen or tensor in self.constants:
                continue
            seen.add(tensor)
            if tensor in self.made and (tensor not in self.types or self.types[tensor].tensor_type.elem_type in FLOATS):
                found.append(tensor)
            elif tensor in producers:
                pending.extend(producers[tensor].inputs)
        return found

    def _before_unknown(self, tensor: str) -> str:
        """Return the remedy for a tensor of unknown shape: an end before the first node whose outputs have none."""
        producers = self.producers()
        node = producers.get(tensor)
        while node is not None:
            unknown = [name for name in node.inputs if name and name not in self.types and name not in self.constants and name in producers]
            if not unknown:
                return self.remedy(node, "export with constant sizes there")
            node = producers[unknown[0]]
        return "export with constant sizes there"

    def producers(self) -> dict[str, Node]:
        return {output: node for node in self.nodes for output in node.outputs if output}

    def consumers(self) -> dict[str, list[Node]]:
        """Return the nodes that read each tensor. A graph output may be absent."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for tensor in dict.fromkeys(node.inputs):
                found.setdefault(tensor, []).append(node)
        return found

    def prune(self) -> None:
        """Drop nodes that no output needs."""
        wanted, kept = set(self.outputs), []
        for node in reversed(self.nodes):
            if wanted.intersection(node.outputs):
                wanted.update(node.inputs, node.implicit)
                kept.append(node)
        self.nodes = kept[::-1]


def graph_of(model: Any, opset: int, place: str, *, shapes: Mapping[str, Sequence[int]], outputs: Iterable[str]) -> Graph:
    """Return the graph of a model. `shapes` replaces the shapes of inputs; `outputs` (empty: the model's own) are the tensors to compute.

    If the batch, the first axis, has an unknown size, it is 1. Any other unknown size raises Error, and so does a name that the model lacks.
    """
    main = model.graph
    nodes = [node_of(message) for message in main.node]
    graph = Graph(place, main.name or "net", opset, nodes, [], list(outputs) or [item.name for item in main.output])
    graph.add(main)
    inputs = [item for item in main.input if item.name not in graph.constants]  # up to IR version 3 initializers are inputs too
    graph.inputs, graph.trained, graph.opset_import = [item.name for item in inputs], set(graph.constants), model.opset_import
    for name in shapes:
        if name not in graph.inputs:
            fact = f"--shape names '{name}', and the model has no such input"
            raise Error(fact, place=place, fix=f"name one of its inputs: {', '.join(graph.inputs) or 'none'}")
    graph.made = frozenset(name for node in nodes for name in node.outputs if name)
    known = graph.made | set(graph.inputs)
    for name in graph.outputs:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            fix = f"did you mean {near[0]}?" if near else f"name the output of a node; the model ends with {', '.join(item.name for item in main.output)}"
            raise Error(f"has no tensor '{name}'", place=place, fix=fix)
    for item in (*main.input, *main.value_info, *main.output):
        check_axes(f"'{item.name}'", len(item.type.tensor_type.shape.dim), place)
    for name, sizes in shapes.items():
        check_axes(f"'{name}' of --shape", len(sizes), place)
    for item in inputs:
        axes, given = len(item.type.tensor_type.shape.dim), shapes.get(item.name)
        if given is not None and item.type.tensor_type.HasField("shape") and len(given) != axes:
            raise Error(f"input '{item.name}' has {axes} axes, --shape gives it {len(given)}", place=place, fix=_shape_flag(item))
        shape = tuple(shapes.get(item.name, ())) or _input_shape(item, place)
        if axes and _dims(item)[0] in UNKNOWN:
            graph.open.append(item.name)
        kind = item.type.tensor_type.elem_type
        graph.types[item.name] = helper.make_tensor_type_proto(FLOATS[0] if kind in FLOATS else kind, shape)
    if not shapes:
        graph.declared = {item.name: _dims(item) for item in (*main.value_info, *main.output) if item.type.tensor_type.HasField("shape")}
    graph.prune()
    return graph


def node_of(message: Any) -> Node:
    """Return the node of a NodeProto. Operators of other domains are called domain.operator."""
    op = message.op_type if message.domain in ("", "ai.onnx") else f"{message.domain}.{message.op_type}"
    own = NodeProto()
    own.CopyFrom(message)  # rewrites of the graph change its inputs
    return Node(op, list(own.input), list(own.output), {item.name: _value(item) for item in own.attribute}, own.name, own)


def check_axes(what: str, axes: int, place: str) -> None:
    """Raise Error if a tensor has more axes than a blob of Caffe can have. numpy has a limit too, which is higher."""
    if axes > MOST_AXES:
        raise Error(f"{what} has {axes} axes, and a blob of Caffe has at most {MOST_AXES}", place=place, fix="export the model with fewer axes there")


def array_of(tensor: Any, place: str) -> np.ndarray:
    check_axes(f"'{tensor.name}'", len(tensor.dims), place)
    try:
        return numpy_helper.to_array(tensor)
    except Exception as problem:  # of onnx and numpy
        fact = f"is damaged: the data of tensor '{tensor.name}' ({shape_text(tensor.dims)}) do not fit its shape and type: {reason(problem)}"
        raise Error(fact, place=place, fix="copy or download it again") from None


def dense_of(tensor: Any, place: str, budget: Budget) -> np.ndarray:
    """Return the array of a SparseTensorProto. Its indices are places in the flat array, or one row of indices for each value."""
    check_axes(f"'{tensor.values.name}' (sparse tensor)", len(tensor.dims), place)
    values, indices = array_of(tensor.values, place), array_of(tensor.indices, place)
    budget.earn(values)
    with within(place, f"'{tensor.values.name}' (sparse tensor)"):
        budget.spend(math.prod(max(0, size) for size in tensor.dims) * values.itemsize)
    try:
        result = np.zeros(tuple(tensor.dims), values.dtype)
        result[tuple(indices.T) if indices.ndim == 2 else np.unravel_index(indices, result.shape)] = values
    except Exception as problem:  # of numpy
        fact = f"is damaged: the indices of the sparse tensor '{tensor.values.name}' do not fit its shape ({shape_text(tensor.dims)}): {reason(problem)}"
        raise Error(fact, place=place, fix="copy or download it again") from None
    return result


@contextlib.contextmanager
def at(graph: Graph, node: Node) -> Iterator[None]:
    """Add the place and a remedy to an Error about a node that has none."""
    try:
        with within(graph.place, node.title):
            yield
    except Error as problem:
        problem.fix = problem.fix or graph.remedy(node)
        raise


def _value(attribute: Any) -> Any:
    """Return an attribute as a Python value, with text as str."""
    if attribute.ref_attr_name:
        fact = f"attribute '{attribute.name}' refers to attribute '{attribute.ref_attr_name}' of a function, but is not in a function"
        raise Error(fact, fix=f"write the value of '{attribute.name}' into the node")
    value = helper.get_attribute_value(attribute)
    return value.decode(errors="replace") if isinstance(value, bytes) else value  # rules report invalid text as an unknown value


def _dims(item: Any) -> tuple[int | None, ...]:
    return tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in item.type.tensor_type.shape.dim)


def _shape_flag(item: Any) -> str:
    """Return --shape with the sizes that the file knows."""
    sizes = [1 if dim in UNKNOWN and axis == 0 else dim for axis, dim in enumerate(_dims(item))]
    known = "x".join("SIZE" if dim is None or dim < 1 else str(dim) for dim in sizes)
    return flag("shape", f"{item.name}:{known}") + (", with numbers in place of SIZE" if "SIZE" in known else "")


def _input_shape(item: Any, place: str) -> Shape:
    if not item.type.tensor_type.HasField("shape"):
        fix = f"{flag('shape', f'{item.name}:1xSIZExSIZE..')}, with a number for each axis, the batch first"
        raise Error(f"input '{item.name}' has no shape", place=place, fix=fix)
    dims = _dims(item)
    shape = [1 if dim in UNKNOWN and axis == 0 else dim for axis, dim in enumerate(dims)]
    if any(dim is None or dim < 1 for dim in shape):
        text = shape_text(["?" if dim is None else dim for dim in dims])  # type: ignore[misc]
        raise Error(f"input '{item.name}' is {text}: only the first axis, the batch, may be unknown", place=place, fix=_shape_flag(item))
    return tuple(dim for dim in shape if dim is not None)
