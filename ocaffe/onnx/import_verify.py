"""Compare an imported net with its ONNX model, by the comparison of `ocaffe.onnx.verify`."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from ocaffe import proto
from ocaffe.graph.build import build
from ocaffe.ir.tensor import Shape
from ocaffe.model.weights import LayerWeights, Weights
from ocaffe.onnx.deploy import Deployed
from ocaffe.onnx.export import Exported, Options, parameter_values
from ocaffe.onnx.importer.graph import FLOATS
from ocaffe.onnx.pieces import kinds_of

HALVES = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}


def comparable(
    model: onnx.ModelProto, net: Any, blobs: Mapping[str, Sequence[np.ndarray]], *, shapes: Mapping[str, Shape], outputs: Sequence[str]
) -> Exported:
    """Return `model` and the imported net as if `model` had been exported from that net, for `ocaffe.onnx.verify.verify`.

    A blob has the name of the tensor that it holds. `shapes` of inputs and `outputs` (empty: the model's own) are written into `model`.
    """
    if shapes:
        _reshape(model, shapes)
    if outputs:
        known = {info.name: info for info in (*model.graph.output, *model.graph.value_info)}
        infos = [known.get(name, onnx.ValueInfoProto(name=name)) for name in outputs]
        del model.graph.output[:]
        model.graph.output.extend(infos)
    graph = build(net, proto.TEST)
    tensors = {name for node in model.graph.node for name in node.output} | {info.name for info in model.graph.input}
    values = {name: name for name in graph.blobs if name in tensors}
    of_blobs = {blob: blob.name for node in graph.nodes for blob in (*node.bottoms, *node.tops)}
    weights = parameter_values(graph, Weights("", [LayerWeights(name, blobs=list(arrays)) for name, arrays in blobs.items()], "the model"), Options())
    half = not HALVES.isdisjoint([*kinds_of(model).values(), *(tensor.data_type for tensor in model.graph.initializer)])
    return Exported(model, Deployed(net, [info.name for info in model.graph.output]), graph, values, of_blobs, weights, Options(fp16=half))


def pixels(model: onnx.ModelProto) -> dict[str, int]:
    """Return the inputs that are not floats, mostly images of bytes, and how many values they take."""
    kinds = {info.name: info.type.tensor_type.elem_type for info in model.graph.input}
    return {name: 2 if kind == onnx.TensorProto.BOOL else 256 for name, kind in kinds.items() if kind not in FLOATS}


def _reshape(model: onnx.ModelProto, shapes: Mapping[str, Shape]) -> None:
    """Change the shapes of inputs. Remove the shapes of all other tensors: they belong to the old input shapes."""
    del model.graph.value_info[:]
    for info in (*model.graph.input, *model.graph.output):
        for axis, size in enumerate(info.type.tensor_type.shape.dim):
            if info.name in shapes:
                size.dim_value = shapes[info.name][axis]
            elif info in model.graph.output:
                size.Clear()
