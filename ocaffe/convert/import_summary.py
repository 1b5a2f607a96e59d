"""Summarize an ONNX model and whether it can be converted to a Caffe net."""
from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

from ocaffe.convert.import_model import load
from ocaffe.convert.importer.read import read_model
from ocaffe.convert.tensorrt import VERSION, dynamic, unlisted
from ocaffe.errors import Error, shape_text
from ocaffe.shown import visible

TOLD = ("labels", "preprocessing")  # metadata of ocaffe's models


def summarize_onnx(path: str | Path) -> list[str]:
    """Return lines of text. Raises Error like `load` if the file is damaged."""
    model = read_model(path)
    graph = model.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    count = sum(_size(tensor.dims) for tensor in weights.values())
    opsets = ", ".join(f"{item.domain or 'ONNX'} {item.version}" for item in model.opset_import)
    made = f", made by {model.producer_name} {model.producer_version}".rstrip() if model.producer_name else ""
    lines = [f"ONNX model '{graph.name}': opset {opsets}, {len(graph.node)} nodes, {count:,} values in {len(weights)} initializers{made}"]
    lines += [f"  input {item.name}: {_shape(item)}" for item in graph.input if item.name not in weights]
    lines += [f"  output {item.name}: {_shape(item)}" for item in graph.output]
    operators = collections.Counter(node.op_type for node in graph.node)
    lines.append("  operators: " + ", ".join(f"{number} {name}" for name, number in sorted(operators.items(), key=lambda item: (-item[1], item[0]))))
    lines += [f"  {entry.key}: {', '.join(visible(line) for line in entry.value.splitlines())}" for entry in model.metadata_props if entry.key in TOLD]
    try:
        net, _ = load(path)
        lines.append(f"  can be converted to a Caffe net of {len(net.layer)} layers")
    except Error as problem:
        lines.append(f"  cannot be converted as it is: {problem.fact}")
    missing = unlisted(model)
    lines.append(f"  {VERSION} lists all of its operators" if not missing else f"  {VERSION} does not list: {'; '.join(map(visible, missing))}")
    if dynamic(model):
        lines.append(f"  {VERSION} needs an IOutputAllocator for outputs whose sizes depend on values, as those of detections do")
    return lines


def _shape(item: Any) -> str:
    return shape_text([dim.dim_param or dim.dim_value for dim in item.type.tensor_type.shape.dim])


def _size(dims: Any) -> int:
    size = 1
    for dim in dims:
        size *= dim
    return size
