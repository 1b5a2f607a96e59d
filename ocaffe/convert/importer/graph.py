"""The intermediate graph of an import: nodes in order, constants as arrays, the shape of every tensor."""
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, helper, numpy_helper

from ocaffe.convert.importer.budget import Budget
from ocaffe.errors import Error, shape_text, within
from ocaffe.ir.tensor import Shape

FLOATS = (1, 10, 11, 16)  # FLOAT, FLOAT16, DOUBLE, BFLOAT16: a Caffe net computes them all as FLOAT
UNKNOWN = (None, 0, -1)  # a size that the file leaves open


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
                       batch=dict(axes), sizes=(own, size), budget=replace(self.budget))  # fmt: skip

    def shape(self, tensor: str) -> Shape:
        """Return the shape of a tensor. Raises Error if it depends on values."""
        if tensor in self.constants:
            return self.constants[tensor].shape
        if tensor not in self.types:
            raise Error(f"the shape of '{tensor}' is not known before the net runs", place=self.place, fix="--cut-at with a tensor before it")
        return tuple(dim.dim_value for dim in self.types[tensor].tensor_type.shape.dim)

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
            raise Error(f"has no input '{name}'", place=place, fix=f"its inputs are {', '.join(graph.inputs) or 'none'}")
    known = {name for node in nodes for name in node.outputs} | set(graph.inputs)
    for name in graph.outputs:
        if name not in known:
            raise Error(f"has no tensor '{name}'", place=place, fix=f"its outputs are {', '.join(item.name for item in main.output)}")
    for item in inputs:
        axes, given = len(item.type.tensor_type.shape.dim), shapes.get(item.name)
        if given is not None and item.type.tensor_type.HasField("shape") and len(given) != axes:
            raise Error(f"input '{item.name}' has {axes} axes, --shape gives it {len(given)}", place=place, fix="give a size for each axis")
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


def array_of(tensor: Any, place: str) -> np.ndarray:
    try:
        return numpy_helper.to_array(tensor)
    except (KeyError, TypeError, ValueError) as problem:
        raise Error(f"tensor '{tensor.name}' has no values of its shape and type: {problem}", place=place, fix="copy or download it again") from None


def dense_of(tensor: Any, place: str, budget: Budget) -> np.ndarray:
    """Return the array of a SparseTensorProto. Its indices are places in the flat array, or one row of indices for each value."""
    values, indices = array_of(tensor.values, place), array_of(tensor.indices, place)
    budget.earn(values)
    with within(place, f"'{tensor.values.name}' (sparse tensor)"):
        budget.spend(math.prod(max(0, size) for size in tensor.dims) * values.itemsize)
    try:
        result = np.zeros(tuple(tensor.dims), values.dtype)
        result[tuple(indices.T) if indices.ndim == 2 else np.unravel_index(indices, result.shape)] = values
    except (IndexError, TypeError, ValueError, MemoryError) as problem:
        fact = f"sparse tensor '{tensor.values.name}' has no values of its shape: {problem}"
        raise Error(fact, place=place, fix="copy or download it again") from None
    return result


def _value(attribute: Any) -> Any:
    """Return an attribute as a Python value, with text as str."""
    if attribute.ref_attr_name:
        fact = f"attribute '{attribute.name}' refers to attribute '{attribute.ref_attr_name}' of a function, but is not in a function"
        raise Error(fact, fix="export the model again")
    value = helper.get_attribute_value(attribute)
    return value.decode(errors="replace") if isinstance(value, bytes) else value  # rules report invalid text as an unknown value


def _dims(item: Any) -> tuple[int | None, ...]:
    return tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in item.type.tensor_type.shape.dim)


def _input_shape(item: Any, place: str) -> Shape:
    if not item.type.tensor_type.HasField("shape"):
        raise Error(f"input '{item.name}' has no shape", place=place, fix=f"--shape {item.name}:1x3x224x224, for example")
    dims = _dims(item)
    shape = [1 if dim in UNKNOWN and axis == 0 else dim for axis, dim in enumerate(dims)]
    if any(dim is None or dim < 1 for dim in shape):
        text = shape_text(["?" if dim is None else dim for dim in dims])  # type: ignore[misc]
        raise Error(f"input '{item.name}' is {text}: only the batch may be unknown", place=place, fix=f"--shape {item.name}:1x3x224x224, for example")
    return tuple(dim for dim in shape if dim is not None)
