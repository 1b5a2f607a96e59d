"""From an OnnxGraph to a checked ModelProto, and from that to a file."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from onnx import TensorProto, helper, numpy_helper

from ocaffe import __version__
from ocaffe.errors import Error
from ocaffe.files import atomic_write
from ocaffe.graph.ir import Blob, Graph
from ocaffe.onnx.graph import OnnxGraph

if TYPE_CHECKING:
    from ocaffe.onnx.export import Options

LARGEST = (1 << 31) - 1  # bytes: a protocol buffer cannot be larger


def assemble(graph: OnnxGraph, net: Graph, outputs: Sequence[Blob], options: Options, weights: str) -> onnx.ModelProto:
    """The model of a graph whose values have their final names: shapes inferred, checked. Raises Error where it would be larger than a file can be."""
    size = sum(array.nbytes for array in graph.constants.values()) // (2 if options.fp16 else 1)
    if size > LARGEST:
        raise Error(f"the model would have {size:,} bytes, an ONNX file {LARGEST:,} at the most", fix="--fp16 halves it; --cut_at leaves layers out")
    nodes, used, count = [], {name for node in graph.nodes for name in node.inputs}, dict[str, int]()
    for node in graph.nodes:
        number = count[node.layer] = count.get(node.layer, 0) + 1
        name = node.layer if number == 1 else f"{node.layer}/{number}"
        nodes.append(helper.make_node(node.kind, node.inputs, node.outputs, name, doc_string=f"{node.layer}: {node.origin}", **node.attributes))
    source = net.message.source_file
    made = helper.make_graph(
        nodes,
        net.message.name or Path(source or "net").stem,
        [_info(graph, blob) for blob in graph.inputs],
        [_info(graph, blob) for blob in outputs],
        [numpy_helper.from_array(array, name) for name, array in graph.constants.items() if name in used],
        doc_string=f"from {source or 'a net'}{f' and {weights}' if weights else ''}",
    )
    ends = {graph.values[blob] for blob in (*graph.inputs, *outputs)}
    values = {name for node in graph.nodes for name in node.outputs} - ends
    known = dict.fromkeys(graph.values[blob] for blob in graph.values)
    made.value_info.extend(_info(graph, blob) for blob in graph.values if graph.values[blob] in values and known.pop(graph.values[blob], 0) is None)
    opsets = [helper.make_opsetid("", options.opset)]
    model = helper.make_model(made, opset_imports=opsets, ir_version=helper.find_min_ir_version_for(opsets), producer_name="ocaffe",
                              producer_version=__version__, doc_string=made.doc_string)  # fmt: skip
    model = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    if options.fp16:
        from ocaffe.onnx.half import to_half

        model = to_half(model)
    onnx.checker.check_model(model, full_check=True)
    return model


def _info(graph: OnnxGraph, blob: Blob) -> onnx.ValueInfoProto:
    varying = graph.varying.get(blob, {})
    dims = [(varying[axis] or None) if axis in varying else size for axis, size in enumerate(blob.shape)]
    return helper.make_tensor_value_info(graph.values[blob], TensorProto.FLOAT, dims)


def save(model: onnx.ModelProto, path: str | Path) -> None:
    """Write the file; whatever happens, the one of before or the new one is there."""
    data = model.SerializeToString()
    with atomic_write(path) as out:
        out.write(data)


