"""Builds the Caffe net. When a layer is added, ocaffe's implementation of the layer checks it and infers its top shapes."""
from __future__ import annotations

import collections
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import helper

from ocaffe import proto
from ocaffe.convert.importer.graph import FLOATS, Graph, Node, check_axes
from ocaffe.convert.importer.grids import rounding
from ocaffe.errors import Error, shape_text
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import param_field, registry

FROZEN = {"lr_mult": 0, "decay_mult": 0}


class Builder:
    """A Caffe net under construction: `message` is the NetParameter, `blobs` the weights by layer. A blob is named after the ONNX tensor that it holds."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.message = proto.NetParameter(name=graph.name)
        self.blobs: dict[str, list[np.ndarray]] = {}
        self.shapes: dict[str, Shape] = {}  # of blobs
        self.same: dict[str, str] = {}  # tensor -> the blob that holds it, if the names differ
        self._names: set[str] = set()
        self._counts: dict[str, int] = {}  # name -> the last number that was added to it
        self._batch = ""  # the blob of `_counted`
        for name in graph.inputs:
            layer = proto.LayerParameter(name=self._unique(name), type="Input", top=[name])
            layer.input_param.shape.add().dim.extend(graph.shape(name))
            self.message.layer.append(layer)
            self.shapes[name] = graph.shape(name)

    # -- reading -----------------------------------------------------------------------------------------------------

    def bottom(self, node: Node, index: int = 0) -> str:
        """Return the blob of an input. A constant becomes the top of a Parameter layer."""
        tensor = node.input(index)
        if tensor in self.graph.constants and tensor not in self.same:
            axis = self.graph.repeated.get(tensor)
            blob = self._parameter(node, tensor, tensor if axis is None else f"{tensor}_one")
            self.same[tensor] = blob if axis is None else self.repeated(Node("Where", [], [self.free(tensor)], name=tensor), blob, axis)
        blob = self.same.get(tensor, tensor)
        if blob not in self.shapes:
            if not tensor:
                raise self.error(node, f"its input {index} is left out, and the operator needs it", "give the input in the model")
            raise self.error(node, f"no layer computes the tensor '{tensor}', its input {index}")
        return blob

    def given(self, node: Node, values: np.ndarray, part: str) -> str:
        """Return the blob of a Parameter layer with these values, which do not learn. It is named after the node's output and `part`."""
        tensor = self.free(f"{node.outputs[0]}_{part}")
        self.graph.constants[tensor] = values
        return self.bottom(Node(node.op, [tensor], node.outputs, name=node.name))

    def is_constant(self, node: Node, index: int) -> bool:
        return node.input(index) in self.graph.constants

    def constant(self, node: Node, index: int, default: Any = None) -> Any:
        """Return the values of an input that must be constant, or `default` if it is omitted."""
        tensor = node.input(index)
        if not tensor:
            return default
        if tensor not in self.graph.constants:
            raise self.error(node, f"its input {index} ('{tensor}') is computed by the net, and a Caffe layer needs a constant there")
        return self.graph.constants[tensor]

    def setting(self, node: Node, attribute: str, index: int, default: Any = None) -> Any:
        """Return a number or list that is an attribute in some opsets and an input in others."""
        if attribute in node.attributes:
            return node.attributes[attribute]
        values = self.constant(node, index)
        return default if values is None else values.tolist()

    def number(self, node: Node, attribute: str, index: int, default: Any = None) -> Any:
        """Return a setting that is one number. Some exporters write it as a list of one."""
        value = self.setting(node, attribute, index, default)
        if not isinstance(value, list):
            return value
        self.check(node, len(value) == 1, f"{attribute} has {len(value)} values, one is expected", f"export with one value of {attribute}")
        return value[0]

    def shape(self, blob: str) -> Shape:
        return self.shapes[blob]

    def is_float(self, node: Node, index: int = 0) -> bool:
        """Whether an input has floats in the ONNX graph."""
        return self.kind(node.input(index)) in FLOATS

    def kind(self, tensor: str) -> int:
        """Return the type of the elements of a tensor in the ONNX graph. Raises Error if the shape depends on values."""
        if tensor in self.graph.constants:
            return int(helper.np_dtype_to_tensor_dtype(self.graph.constants[tensor].dtype))
        self.graph.shape(tensor)
        return int(self.graph.types[tensor].tensor_type.elem_type)

    @functools.cached_property
    def wanted(self) -> frozenset[str]:
        """The tensors that a node reads, and the outputs of the graph."""
        return frozenset({name for node in self.graph.nodes for name in (*node.inputs, *node.implicit)} | set(self.graph.outputs))

    def output_shape(self, node: Node, index: int = 0) -> Shape:
        """Return the shape of an output in the ONNX graph."""
        return self.graph.shape(node.outputs[index])

    # -- writing -----------------------------------------------------------------------------------------------------

    def layer(
        self,
        node: Node,
        kind: str,
        bottoms: Sequence[str],
        fields: Mapping[str, Any] | None = None,
        *,
        part: str = "",
        suffix: str | None = None,
        tops: Sequence[str] | None = None,
        blobs: Sequence[np.ndarray] = (),
        learn: bool = True,
        propagate: Sequence[bool] = (),
    ) -> str:
        """Add a layer and return its first top, if it has one.

        `fields` are those of the layer's parameter message, such as pooling_param for Pooling. `part` names an intermediate layer; its top is `tops` or
        is named after the part. Without `part` the tops are the node's outputs. The layer's name is the node's name plus `suffix` (default: the part).
        Blobs are frozen unless `learn`. `propagate` is propagate_down, one for each bottom.
        """
        suffix = part if suffix is None else suffix
        name = self._unique(self._title(node) + (f"_{suffix}" if suffix else ""))
        if tops is None:
            tops = [self.free(f"{node.outputs[0]}_{part}")] if part else node.outputs[:1]
        own = {param_field(kind): fields} if fields else {}
        try:
            param = proto.LayerParameter(name=name, type=kind, bottom=list(bottoms), top=list(tops), propagate_down=list(propagate), **own)
        except ValueError as problem:  # the field is unsigned, or has fewer bits
            fact = f"its attributes are outside the range of Caffe's {kind}: {problem} in {fields}"
            raise self.error(node, fact, "export with values in its range") from None
        for _ in blobs if not learn else ():
            param.param.add(**FROZEN)
        layer = registry()[kind].implementation(param)(param, proto.TEST)
        try:
            shapes = layer.infer(*(self.shapes[blob] for blob in bottoms))
            wanted = [tuple(blob.shape) for blob in layer.parameters()]
        except Error as problem:
            raise self.error(node, f"as a Caffe layer of type {kind}: {problem.fact}", problem.fix or "") from None
        for top, shape in zip(tops, shapes):
            check_axes(f"'{top}', which a {kind} layer makes,", len(shape), self.graph.place)
        given = [tuple(blob.shape) for blob in blobs]
        self.graph.budget.spend(sum(4 * blob.size for blob in blobs))  # one value may be repeated for the whole blob
        if wanted != given:
            texts = [", ".join(map(shape_text, shapes)) or "none" for shapes in (given, wanted)]
            fact = f"its weights are {texts[0]}; its input of {shape_text(self.shapes[bottoms[0]])} needs {texts[1]}"
            raise self.error(node, fact, "give the net's input the size that the weights are for: --shape")
        form = layer.weight_outputs()
        if form is not None and blobs and node.input(1) in self.graph.integers:
            rounds = rounding(np.asarray(blobs[0], np.float32), form, *self.graph.integers[node.input(1)])
            if rounds is not None:
                param.weight_quantization_param.CopyFrom(rounds)
        self.message.layer.append(param)
        self.shapes.update(zip(tops, map(tuple, shapes)))
        if blobs:
            self.blobs[name] = [np.asarray(blob, np.float32, order="C") for blob in blobs]
        return tops[0] if tops else ""

    def _parameter(self, node: Node, tensor: str, top: str) -> str:
        given = self.graph.constants[tensor]
        array = np.asarray(given, np.float32)
        self.check(node, array.size, f"'{tensor}' is {shape_text(array.shape)}: it has no values")
        held = Node("Parameter", [], [self.free(top)], name=top)
        return self.layer(held, "Parameter", [], {"shape": {"dim": array.shape}}, blobs=[array], learn=tensor in self.graph.trained and given.dtype.kind == "f")

    def repeated(self, node: Node, x: str, axis: int, part: str = "") -> str:
        """Repeat the one value of x along `axis` as often as the batch of the net. A Where layer broadcasts both its choices to its condition."""
        if not self._batch:
            self._batch = self._counted()
        dims = [-1 if other == axis else 1 for other in range(len(self.shapes[x]))]
        counted = self.layer(node, "Reshape", [self._batch], {"shape": {"dim": dims}}, part=f"{part}batch")
        return self.layer(node, "Where", [counted, x, x], part=part, propagate=[False, True, True])

    def _counted(self) -> str:
        """Return a blob with one value for each sample of the batch."""
        x, axis = next(iter(self.graph.batch.items()))
        node, axes = Node("Reduction", [], [self.free("batch")], name="batch"), len(self.shapes[x])
        if axis:
            x = self.layer(node, "Permute", [x], {"order": [axis, *(other for other in range(axes) if other != axis)]}, part="first")
        return self.layer(node, "Reduction", [x], {"axis": 1}) if axes > 1 else x

    def alias(self, node: Node, blob: str, output: int = 0) -> None:
        """Make an existing blob the value of an output of the node."""
        self.same[node.outputs[output]] = blob

    def error(self, node: Node, fact: str, fix: str | None = None) -> Error:
        """Return the error for a node. The remedy is `fix`, and an end of the net before the node."""
        return Error(fact, place=self.graph.place, layer=node.title, fix=self.graph.remedy(node, fix or ""))

    def check(self, node: Node, condition: object, fact: str, fix: str = "") -> None:
        if not condition:
            raise self.error(node, fact, fix)

    def finish(self) -> None:
        """Make every output of the model an output of the Caffe net, under its name.

        Caffe's outputs are the blobs that no layer reads. So an output that a layer also reads is copied by a Split. So is an output that shares another
        tensor's blob because nodes that change nothing were removed.
        """
        outputs = list(dict.fromkeys(self.graph.outputs))
        held = collections.Counter(self.same.get(output, output) for output in outputs)
        read = {blob for layer in self.message.layer for blob in layer.bottom} | {blob for blob, count in held.items() if count > 1}
        copied = [output for output in outputs if self.same.get(output, output) == output and output in read and output not in self.graph.inputs]
        inner = {output: self.free(f"{output}_inner") for output in copied}
        self.shapes |= {blob: self.shapes[output] for output, blob in inner.items()}
        for layer in self.message.layer if inner else ():
            layer.top[:] = [inner.get(top, top) for top in layer.top]
            layer.bottom[:] = [inner.get(bottom, bottom) for bottom in layer.bottom]
        for output in outputs:
            blob = self.same.get(output, output)
            blob = inner.get(blob, blob)
            if blob != output:
                self.message.layer.add(name=self._unique(output), type="Split", bottom=[blob], top=[output])

    def _title(self, node: Node) -> str:
        """Return the layer name: the framework's module name if a weight's name has it, else the name of the node or of its output.

        It is a path that HDF5 can hold.
        """
        for tensor in node.inputs[1:]:
            if tensor in self.graph.trained and tensor.endswith(".weight"):
                return tensor.removesuffix(".weight")
        return "/".join(part for part in (node.name or node.outputs[0]).split("/") if part not in ("", ".")) or node.op

    def _unique(self, name: str) -> str:
        unique, count = name, self._counts.get(name, 1)
        while unique in self._names:
            count += 1
            unique = f"{name}_{count}"
        self._counts[name] = count
        self._names.add(unique)
        return unique

    def free(self, name: str) -> str:
        """Return an unused name for an intermediate blob."""
        unique, count = name, 1
        while unique in self.shapes or unique in self.graph.types:
            count += 1
            unique = f"{name}_{count}"
        return unique
