"""Make a checked ModelProto from an OnnxGraph, and write it to a file."""
from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ocaffe import __version__
from ocaffe.ir.graph import Blob, Graph
from ocaffe.onnx.graph import Body, OnnxGraph, OnnxNode, all_nodes
from ocaffe.support.files import atomic_write

if TYPE_CHECKING:
    from ocaffe.convert.options import Options

SMALL = 1 << 10  # bytes; only constants up to this size may determine shapes
LARGEST = (1 << 31) - (1 << 24)  # bytes of weights; a protocol buffer with the whole model has at most 2 GiB
PAGE = 1 << 12  # bytes; external weights are aligned to pages, so that runtimes can map them


def assemble(graph: OnnxGraph, net: Graph, outputs: Sequence[Blob], options: Options, file: str) -> onnx.ModelProto:
    """Return the checked model of a graph whose values have their final names, with inferred shapes. `file` names the source of the weights."""
    used = {name for node in all_nodes(graph.nodes) for name in node.inputs}
    nodes = _nodes(graph.nodes, {})
    source = net.message.source_file
    constants = {name: array for name, array in graph.constants.items() if name in used}
    # Shapes depend only on small constants. Without the weights, inference and checks are fast.
    weights = {name: array for name, array in constants.items() if array.nbytes > SMALL}
    inputs = [_info(graph, blob, name) for blob, name in graph.inputs.items()]
    made = helper.make_graph(
        nodes,
        net.message.name or Path(source or "net").stem,
        [*inputs, *(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape) for name, array in weights.items())],
        [_info(graph, blob, name) for blob, name in zip(outputs, graph.outputs)],
        [numpy_helper.from_array(array, name) for name, array in constants.items() if name not in weights],
        doc_string=f"from {source or 'a net'}{f' and {file}' if file else ''}",
    )
    inside = {name for node in graph.nodes for name in node.outputs} - set(graph.outputs)
    made.value_info.extend(_info(graph, blob, name) for name, blob in {name: blob for blob, name in graph.values.items()}.items() if name in inside)
    opsets = [helper.make_opsetid("", options.opset)]
    model = helper.make_model(made, opset_imports=opsets, ir_version=helper.find_min_ir_version_for(opsets), producer_name="ocaffe",
                              producer_version=__version__, doc_string=made.doc_string)  # fmt: skip
    model = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    onnx.checker.check_model(model, full_check=True)
    if options.fp16:
        from ocaffe.convert.half import PRECISE, to_half

        model = to_half(model, weights, {made.name for made, node in zip(nodes, graph.nodes) if node.type in PRECISE})
        onnx.checker.check_model(model, full_check=True)
    del model.graph.input[len(inputs) :]
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def _nodes(nodes: Sequence[OnnxNode], count: dict[str, int]) -> list[onnx.NodeProto]:
    """Return the NodeProtos, named after their layer. `count` is the number of nodes so far by layer."""
    made = []
    for node in nodes:
        number = count[node.layer] = count.get(node.layer, 0) + (not node.name)
        name = node.name or (node.layer if number == 1 else f"{node.layer}/{number}")
        attributes = {key: _attribute(value, name, count) for key, value in node.attributes.items()}
        origin = f"layer '{node.layer}' ({node.type}) {node.origin}".rstrip()
        made.append(helper.make_node(node.kind, node.inputs, node.outputs, name, doc_string=origin, **attributes))
    return made


def _attribute(value: Any, name: str, count: dict[str, int]) -> Any:
    if isinstance(value, np.ndarray):
        return numpy_helper.from_array(value)
    if isinstance(value, Body):
        inputs, outputs = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names] for names in (value.inputs, value.outputs))
        return helper.make_graph(_nodes(value.nodes, count), name, inputs, outputs)
    return value


def _info(graph: OnnxGraph, blob: Blob, name: str) -> onnx.ValueInfoProto:
    varying = graph.varying.get(blob, {})
    dims = [(varying[axis] or None) if axis in varying else size for axis, size in enumerate(blob.shape)]
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)


# -- files -----------------------------------------------------------------------------------------------------------


def save(model: onnx.ModelProto, path: str | Path) -> list[Path]:
    """Write the file and return the paths written. Weights of more than 2 GiB go to a second file `path.data`, the name that PyTorch uses.

    If writing fails, the previous files stay.
    """
    target = Path(path)
    if not is_large(model):
        with atomic_write(target) as out:
            out.write(model.SerializeToString())
        return [target]
    beside = data_of(target)
    slim, weights = detached(model, beside.name)
    with atomic_write(beside) as data, atomic_write(target) as out:
        for tensor in weights:
            data.write(tensor.raw_data)
            data.write(bytes(-data.tell() % PAGE))
        data.flush()
        os.fsync(data.fileno())  # neither file is renamed before both are complete
        out.write(slim.SerializeToString())
    return [target, beside]


def data_of(model: Path) -> Path:
    """Return the file of the weights that are too large for a model's own file."""
    return model.with_name(f"{model.name}.data")


def is_large(model: onnx.ModelProto) -> bool:
    """Whether the weights are too large for one file."""
    return sum(_bytes(tensor) for tensor in model.graph.initializer) > LARGEST


def detached(model: onnx.ModelProto, location: str) -> tuple[onnx.ModelProto, list[onnx.TensorProto]]:
    """Return the model without its weights, and the weights. The model refers to them in the file `location`, in order, each at the start of a page."""
    weights, initializers, offset = [], [], 0
    for tensor in model.graph.initializer:
        if _bytes(tensor) > SMALL:
            weights.append(tensor)
            where = {"location": location, "offset": offset, "length": _bytes(tensor)}
            offset += _bytes(tensor) + -_bytes(tensor) % PAGE
            tensor = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, data_location=TensorProto.EXTERNAL,
                                 external_data=[onnx.StringStringEntryProto(key=key, value=str(value)) for key, value in where.items()])  # fmt: skip
        initializers.append(tensor)
    graph, own = model.graph, ("ir_version", "producer_name", "producer_version", "doc_string")
    made = helper.make_graph(graph.node, graph.name, graph.input, graph.output, initializers, doc_string=graph.doc_string, value_info=graph.value_info)
    slim = helper.make_model(made, opset_imports=model.opset_import, **{name: getattr(model, name) for name in own})
    slim.metadata_props.extend(model.metadata_props)
    return slim, weights


def _bytes(tensor: onnx.TensorProto) -> int:
    return math.prod(tensor.dims) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
