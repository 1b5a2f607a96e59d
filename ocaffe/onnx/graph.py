"""The ONNX graph that layers write their nodes into: values, constants, names. `ocaffe.convert.model` converts it to a ModelProto."""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ocaffe.errors import Error, shape_text
from ocaffe.ir.graph import Blob, Node, Parameter
from ocaffe.ir.layer import WeightOutputs
from ocaffe.ir.tensor import Shape
from ocaffe.ir.weight_grid import weight_integers
from ocaffe.shown import flag

Step = Callable[..., tuple[Sequence[str], str]]
Value = Blob | str | np.ndarray | float | Sequence[int] | None  # an input of a node; an array or number becomes a constant, None is an omitted input
SPLIT_COUNTS = 18  # since this opset Split requires num_outputs
REDUCE_TAKES_AXES = 18  # since this opset the axes of all reductions are an input
TYPES: dict[type[np.generic], int] = {np.float32: 1, np.int64: 7, np.bool_: 9, np.float64: 11}  # numbers of TensorProto.DataType
UNROLLED = 128  # the most steps of a loop that are written one by one
SHARED_BYTES = 64  # constants up to this size are stored once
Integers = type[np.int8] | type[np.uint8] | type[np.int16] | type[np.uint16]
INTEGERS: tuple[Integers, ...] = (np.int8, np.uint8, np.int16, np.uint16)  # those of QuantizeLinear
WIDE_INTEGERS = 21  # since this opset QuantizeLinear and DequantizeLinear have 16 bits


@dataclass(eq=False)
class OnnxNode:
    """One ONNX node. Names of values are provisional until `OnnxGraph.named`."""

    kind: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any] = field(default_factory=dict)
    layer: str = ""
    type: str = ""  # the layer's type
    origin: str = ""  # the layer's place in the prototxt
    name: str = ""  # of the node; by default that of the layer, with a number from the second on


@dataclass(eq=False)
class Body:
    """The body of a loop."""

    inputs: list[str]
    outputs: list[str]
    nodes: list[OnnxNode]


@dataclass(eq=False)
class OnnxGraph:
    """The nodes that layers write. A rule (`Layer.onnx`) calls `op` for each node and passes the last one `to`, the top that it computes.

    `weights` are the parameters' arrays. `varying` holds the dynamic axes of a blob (the batch, the number of detections).
    """

    opset: int
    weights: Mapping[Parameter, np.ndarray]
    varying: Mapping[Blob, Mapping[int, str]] = field(default_factory=dict)
    nodes: list[OnnxNode] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    inputs: dict[Blob, str] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)  # set by `named`
    values: dict[Blob, str] = field(default_factory=dict)
    node: Node | None = None  # the node whose rule is running
    _known: dict[Any, str] = field(default_factory=dict)
    _count: int = 0

    # -- values ------------------------------------------------------------------------------------------------------

    def op(self, kind: str, *inputs: Value, to: Blob | None = None, **attributes: Any) -> str:
        """Add a node with one output and return its value. It becomes the value of the blob `to`, if given."""
        return self.ops(kind, *inputs, to=[to], **attributes)[0]

    def ops(self, kind: str, *inputs: Value, to: Sequence[Blob | None], **attributes: Any) -> list[str]:
        """Add a node with several outputs."""
        names = [self._value(given) for given in inputs]
        while names and not names[-1]:
            names.pop()
        outputs = [self._new(kind) for _ in to]
        owner = self.node
        assert owner is not None
        given = {key: value for key, value in attributes.items() if value is not None}
        self.nodes.append(OnnxNode(kind, names, outputs, given, owner.name, type_of(owner), str(owner.place or "")))
        self.values.update({blob: output for blob, output in zip(to, outputs) if blob is not None})
        return outputs

    def alias(self, top: Blob, value: Value) -> None:
        """Make `value` the value of `top`. A blob of another shape is reshaped."""
        if isinstance(value, Blob) and value.shape != top.shape:
            self.reshape(value, to=top)
        else:
            self.values[top] = self._value(value)

    def input(self, top: Blob) -> None:
        """Make `top` an input of the model."""
        self.inputs[top] = self.values[top] = self._new("input")

    def constant(self, array: np.ndarray, name: str = "") -> str:
        """Add a constant. Equal small constants, and constants with the same name and shape, are stored once."""
        array = np.asarray(array, order="C")
        key: Any = (array.dtype.str, array.shape, array.tobytes()) if array.nbytes <= SHARED_BYTES else None
        key = (name, array.shape) if name else key
        if key is not None and key in self._known:
            return self._known[key]
        value = self._free(name or f"{self.node.name if self.node else 'net'}/constant")
        self.constants[value] = array
        if key is not None:
            self._known[key] = value
        return value

    def parameter(self, parameter: Parameter, shape: Shape | None = None) -> str:
        """Return the value of a parameter, reshaped to `shape` if given. It is named layer/number after its owner.

        The weights of a product that rounds them are integers, and a DequantizeLinear makes their values.
        """
        owner = self.node
        if owner is not None and shape is None and owner.params[:1] == [parameter] and owner.layer.param.HasField("weight_quantization_param"):
            return self._of_integers(owner, parameter)
        return self.constant(self.array(parameter) if shape is None else self.array(parameter).reshape(shape), str(parameter))

    def array(self, parameter: Parameter) -> np.ndarray:
        """Return the array of a parameter, in the shape that it has in the layer whose rule is running."""
        return self.weights[parameter.source or parameter].reshape(parameter.shape)

    def _of_integers(self, owner: Node, parameter: Parameter) -> str:
        """Write the weights of a product as integers, and return their values.

        A DequantizeLinear has scales along one axis. Where the outputs are not one axis of the weights (a Deconvolution in groups), the integers are stored
        by output, and the values are put in order behind it.
        """
        (form, whole, scales), shape = self._integers_of(owner, parameter), parameter.shape
        axis = _axis_of(form.shape, form.kept, shape) if scales.size > 1 else 0
        if axis is not None:
            return self._dequantized(whole.reshape(shape), scales, axis)
        order = _by_output(form.kept, len(form.shape))
        rows = self.reshape(self.by_output(parameter), [form.shape[place] for place in order])
        return self.reshape(self.op("Transpose", rows, perm=[order.index(place) for place in range(len(order))]), shape)

    def by_output(self, parameter: Parameter) -> str:
        """Write the weights of a product as integers, and return their values with a row for each output."""
        owner = self.node
        assert owner is not None
        form, whole, scales = self._integers_of(owner, parameter)
        rows = np.transpose(whole, _by_output(form.kept, whole.ndim)).reshape(math.prod(form.shape[axis] for axis in form.kept), -1)
        return self._dequantized(rows, scales, 0)

    def _integers_of(self, owner: Node, parameter: Parameter) -> tuple[WeightOutputs, np.ndarray, np.ndarray]:
        """Return the form of a product's weights, their integers in this form, and their scales."""
        form = owner.layer.weight_outputs()
        assert form is not None, "build refuses other layers"
        array = self.array(parameter)
        if not np.isfinite(array).all():
            raise self.refused("its weights are not finite, and have no integers", "give the weights of a trained net")
        whole, scales = weight_integers(array, form, owner.layer.param.weight_quantization_param)
        largest = int(np.abs(whole).max(initial=0))
        return form, whole.astype(self.integers(-largest, largest)), np.where(scales > 0, scales, np.float32(1))  # the integers are 0 there

    def _dequantized(self, whole: np.ndarray, scales: np.ndarray, axis: int) -> str:
        assert self.node is not None
        scale = scales.reshape(-1 if scales.size > 1 else ())
        values = whole, scale, np.zeros(scale.shape, whole.dtype)
        names = (self.constant(value, name) for value, name in zip(values, (f"{self.node.name}/integers", "", "")))
        value = self.op("DequantizeLinear", *names, axis=axis if scale.ndim else None)
        self.nodes[-1].name = f"{self.node.name}/integers"
        return value

    def integers(self, least: int, most: int) -> Integers:
        """Return the smallest type of integers that holds least and most. Raises Error if QuantizeLinear has it not in the opset."""
        found = [each for each in INTEGERS if np.iinfo(each).min <= least and most <= np.iinfo(each).max]
        if not found:
            raise self.refused(f"its integers are from {least} to {most}, and QuantizeLinear has at most 16 bits")
        if np.iinfo(found[0]).bits > 8 and self.opset < WIDE_INTEGERS:
            fact = f"its integers are from {least} to {most}, and QuantizeLinear has 16 bits since opset {WIDE_INTEGERS}"
            raise self.refused(fact, flag("opset", WIDE_INTEGERS))
        return found[0]

    def _value(self, given: Value) -> str:
        if given is None or isinstance(given, str):
            return given or ""
        if isinstance(given, Blob):
            return self.values[given]
        if isinstance(given, np.ndarray):
            return self.constant(given)
        return self.constant(np.asarray(given, np.float32 if isinstance(given, (float, int)) else np.int64))

    def _new(self, kind: str) -> str:
        self._count += 1
        return f"%{self._count}.{kind}"

    def _free(self, name: str) -> str:
        if name not in self.constants:
            return name
        number = 1
        while f"{name}.{number}" in self.constants:
            number += 1
        return f"{name}.{number}"

    # -- helpers of rules --------------------------------------------------------------------------------------------

    def shape(self, blob: Blob) -> list[int]:
        """Return the blob's shape for a Reshape: -1 for the dynamic axis."""
        varying = self.varying.get(blob, {})
        if len(varying) > 1:
            raise self.refused(f"more than one axis of '{blob.name}' ({shape_text(blob.shape)}) depends on the batch", "export it without --dynamic-batch")
        return [-1 if axis in varying else size for axis, size in enumerate(blob.shape)]

    def reshape(self, x: Value, shape: Sequence[int] | None = None, to: Blob | None = None) -> str:
        """Reshape `x`, by default to the shape of `to`. -1 is inferred, 0 copies an axis."""
        if shape is None:
            assert to is not None
            shape = self.shape(to)
        return self.op("Reshape", x, list(shape), to=to)

    def fixed(self, blob: Blob, axis: int) -> int:
        """Return the size of an axis that the rule writes into the file. Raises Error if the axis is dynamic."""
        if axis in self.varying.get(blob, {}):
            raise self.refused(f"the size of axis {axis} of '{blob.name}' depends on the batch, but must be fixed here", "export it without --dynamic-batch")
        return blob.shape[axis]

    def reduce(self, kind: str, x: Value, axes: Sequence[int], keepdims: bool = True, to: Blob | None = None) -> str:
        """Add ReduceSum, ReduceMean, .. over `axes`."""
        if kind == "ReduceSum" or self.opset >= REDUCE_TAKES_AXES:
            return self.op(kind, x, list(axes), to=to, keepdims=int(keepdims))
        return self.op(kind, x, to=to, axes=list(axes), keepdims=int(keepdims))

    def cast(self, x: Value, dtype: type[np.generic], to: Blob | None = None) -> str:
        """Convert x to another element type."""
        value = self.op("Cast", x, to=to)
        self.nodes[-1].attributes["to"] = TYPES[dtype]
        return value

    def affine(self, x: Value, scale: float, shift: float, to: Blob | None = None) -> str:
        """Compute scale x + shift, without a factor of 1 or a shift of 0."""
        steps = [(kind, number) for kind, number, idle in (("Mul", scale, 1), ("Add", shift, 0)) if number != idle]
        for kind, number in steps:
            x = self.op(kind, x, float(number), to=to if kind == steps[-1][0] else None)
        value = self._value(x)
        if not steps and to is not None:
            self.alias(to, value)
        return value

    def sizes(self, x: Blob, lead: int, tail: Sequence[int]) -> str:
        """Return a shape as a value: the first `lead` axes of x, then `tail`."""
        if not any(axis in self.varying.get(x, {}) for axis in range(lead)):
            return self.constant(np.array([*x.shape[:lead], *tail], np.int64))
        head = self.op("Slice", self.op("Shape", x), [0], [lead])
        return self.op("Concat", head, list(tail), axis=0)

    def full_like(self, x: Value, value: float) -> str:
        """Return a tensor of x's shape filled with `value`."""
        return self.op("ConstantOfShape", self.op("Shape", x), value=np.array([value], np.float32))

    def part(self, x: Value, axis: int, start: int, end: int) -> str:
        """Return a slice along one axis."""
        return self.op("Slice", x, [start], [end], [axis])

    def split(self, x: Value, to: Sequence[Blob | None], axis: int, sizes: Sequence[int] | None) -> list[str]:
        """Split x along an axis into parts, one for each output. Without `sizes`, which depend on the batch then, they are equal; ncnn needs sizes."""
        if sizes is not None:
            return self.ops("Split", x, list(sizes), to=to, axis=axis)
        return self.ops("Split", x, to=to, axis=axis, num_outputs=len(to) if self.opset >= SPLIT_COUNTS else None)

    def loop(self, steps: int | None, rows: int | None, states: Sequence[str], sequences: Sequence[str], step: Step) -> list[str]:
        """Loop over the first axis of `sequences` (T x N x n), and return the final states and the collected values (T x N x n).

        `step` takes the states and one element (N x n) of each sequence; it returns the new states and the value to collect. `steps` is T and `rows` N,
        None if it depends on the batch. Up to UNROLLED steps have nodes of their own. Else they are the body of a Scan, which OpenCV 5.0 and ncnn lack.
        """
        if steps is None or not 0 < steps <= UNROLLED:
            return self._scan(states, sequences, step)
        sizes = None if rows is None else [rows] * steps
        parts = [self.split(self.op("Flatten", sequence, axis=2), [None] * steps, 0, sizes) for sequence in sequences]
        found = []
        for elements in zip(*parts):
            states, collected = step(*states, *elements)
            found.append(self.op("Unsqueeze", collected, [0]))
        return [*states, self.op("Concat", *found, axis=0)]

    def _scan(self, states: Sequence[str], sequences: Sequence[str], step: Step) -> list[str]:
        outside, self.nodes = self.nodes, []
        inputs = [self._new("step") for _ in (*states, *sequences)]
        after, collected = step(*inputs)
        outputs = [self.op("Identity", value) for value in (*after, collected)]
        body, self.nodes = Body(inputs, outputs, self.nodes), outside
        return self.ops("Scan", *states, *sequences, to=[None] * len(outputs), num_scan_inputs=len(sequences), body=body)

    def refused(self, fact: str, fix: str = "") -> Error:
        """Return the error of the layer whose rule is running. Its remedy suggests to cut the net before the layer."""
        node = self.node
        assert node is not None
        before = [origin(blob).name for blob in node.bottoms]
        cut = f"{flag('cut-at', ','.join(before))} exports the part before it" if before else ""
        return node.layer.error(fact, "; ".join(text for text in (fix, cut) if text))

    def prune(self, outputs: Sequence[str]) -> None:
        """Drop the nodes that no output needs, such as those that compute the sequence indicator of an LSTM operator."""
        needed, kept = set(outputs), []
        for node in reversed(self.nodes):
            if needed.intersection(node.outputs):
                needed.update(name for inner in all_nodes([node]) for name in inner.inputs)
                needed.update(name for inner in all_nodes([node]) if (body := body_of(inner)) for name in body.outputs)
                kept.append(node)
        self.nodes = kept[::-1]

    # -- names -------------------------------------------------------------------------------------------------------

    def named(self, outputs: Sequence[Blob], last: Mapping[str, Blob]) -> None:
        """Give all values their final names.

        The last value of a blob (`last`) gets the blob's name. A value that an in-place layer replaced is called blob.layer, all others layer/op.
        `outputs` are the model's outputs; one that is an input, a constant or another output gets a separate Identity node.
        """
        ends = {*self.inputs.values(), *self.constants}
        for blob in outputs:
            value = self.values[blob]
            if value in ends:
                self.node = blob.producer
                value = self.op("Identity", value)
            ends.add(value)
            self.outputs.append(value)
        wishes = [(value, blob.name) for blob, value in self.inputs.items()]
        wishes += [(value, blob.name) for value, blob in zip(self.outputs, outputs)]
        wishes += [(self.values[blob], name) for name, blob in last.items() if blob in self.values and not is_split(blob)]
        wishes += [(value, f"{blob.name}.{blob.producer.name}") for blob, value in self.values.items() if blob.producer is not None]
        nodes = list(all_nodes(self.nodes))
        wishes += [(output, f"{node.layer}/{node.kind}") for node in nodes for output in node.outputs]
        wishes += [(name, f"{node.layer}/step") for node in nodes if (body := body_of(node)) for name in body.inputs]
        final: dict[str, str] = {name: name for name in self.constants}
        used = set(final)
        for value, name in wishes:
            if value not in final and name not in used:
                final[value] = _unused(name, used)
        for value, name in wishes:
            if value not in final:
                final[value] = _unused(name, used)
        for node in nodes:
            for names in (node.inputs, node.outputs, *((body.inputs, body.outputs) if (body := body_of(node)) else ())):
                names[:] = [final.get(name, name) for name in names]
        self.values, self.inputs = ({blob: final[value] for blob, value in known.items()} for known in (self.values, self.inputs))
        self.outputs = [final[value] for value in self.outputs]


def _axis_of(form: Shape, kept: Sequence[int], shape: Shape) -> int | None:
    """Return the axis of an array of this shape along which alone the scales of its `form` differ, None if there is none."""
    outputs = [axis for axis in kept if form[axis] > 1]
    if len(outputs) == 1:
        before = math.prod(form[: outputs[0]])
        return next((axis for axis, size in enumerate(shape) if math.prod(shape[:axis]) == before and size == form[outputs[0]]), None)
    return None


def _by_output(kept: Sequence[int], axes: int) -> list[int]:
    """Return the axes with those of the outputs first."""
    return [*kept, *(axis for axis in range(axes) if axis not in kept)]


def body_of(node: OnnxNode) -> Body | None:
    """Return the body of a loop node, or None."""
    return node.attributes.get("body")


def all_nodes(nodes: Sequence[OnnxNode]) -> Iterator[OnnxNode]:
    """Iterate over the nodes and the nodes of their bodies."""
    for node in nodes:
        yield node
        body = body_of(node)
        if body is not None:
            yield from all_nodes(body.nodes)


def _unused(name: str, used: set[str]) -> str:
    unique, number = name, 0
    while unique in used:
        number += 1
        unique = f"{name}.{number}"
    used.add(unique)
    return unique


def type_of(node: Node) -> str:
    """Return the type of a node's layer. A Python layer that ocaffe implements, such as the one of Proposal, has the type of ocaffe's layer."""
    return node.layer.type if node.type == "Python" else node.type


def is_split(blob: Blob) -> bool:
    """Whether the blob is a copy that a Split makes because several layers read the original."""
    return blob.producer is not None and blob.producer.type == "Split" and blob is not blob.producer.bottoms[0]


def origin(blob: Blob) -> Blob:
    """Return the blob that the prototxt names."""
    while is_split(blob):
        assert blob.producer is not None
        blob = blob.producer.bottoms[0]
    return blob

