"""From an OnnxGraph to a checked ModelProto, and from that to a file."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ocaffe import __version__
from ocaffe.errors import Error
from ocaffe.files import atomic_write
from ocaffe.graph.ir import Blob, Graph
from ocaffe.onnx.graph import Body, OnnxGraph, OnnxNode, all_nodes

if TYPE_CHECKING:
    from ocaffe.onnx.export import Options

SMALL = 1 << 10  # bytes of a constant that may decide shapes
LARGEST = (1 << 31) - 1  # bytes: a protocol buffer cannot be larger


def assemble(graph: OnnxGraph, net: Graph, outputs: Sequence[Blob], options: Options, file: str) -> onnx.ModelProto:
    """The model of a graph whose values have their final names, with the weights of `file`: shapes inferred, checked.

    Raises Error where it would be larger than a file can be.
    """
    size = sum(array.nbytes for array in graph.constants.values()) // (2 if options.fp16 else 1)
    if size > LARGEST:
        raise Error(f"the model would have {size:,} bytes, an ONNX file {LARGEST:,} at the most", fix="--fp16 halves it; --cut-at leaves layers out")
    used = {name for node in all_nodes(graph.nodes) for name in node.inputs}
    nodes = _nodes(graph.nodes, {})
    source = net.message.source_file
    constants = {name: array for name, array in graph.constants.items() if name in used}
    # Shapes depend on small constants alone: without the weights, inference and checks are quick.
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
    del model.graph.input[len(inputs) :]
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    if options.fp16:
        from ocaffe.onnx.half import PRECISE, to_half

        model = to_half(model, {made.name for made, node in zip(nodes, graph.nodes) if node.type in PRECISE})
        onnx.checker.check_model(model, full_check=True)
    return model


def _nodes(nodes: Sequence[OnnxNode], count: dict[str, int]) -> list[onnx.NodeProto]:
    """The nodes, named after their layer; `count` says how many it has already."""
    made = []
    for node in nodes:
        number = count[node.layer] = count.get(node.layer, 0) + 1
        name = node.layer if number == 1 else f"{node.layer}/{number}"
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


def save(model: onnx.ModelProto, path: str | Path) -> None:
    """Write the file; whatever happens, the one of before or the new one is there."""
    data = model.SerializeToString()
    with atomic_write(path) as out:
        out.write(data)


