"""Compare an imported net with its ONNX model, by the comparison of `ocaffe.convert.verify`."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.convert.deploy import Deployed
from ocaffe.convert.export import Exported, Options, parameter_values
from ocaffe.convert.importer.graph import FLOATS, UNKNOWN
from ocaffe.convert.model import detached
from ocaffe.convert.pieces import kinds_of, prune
from ocaffe.convert.verify import Feeds, difference, random_inputs, run_net
from ocaffe.errors import Error
from ocaffe.formats.weights import LayerWeights, Weights
from ocaffe.graph.build import build
from ocaffe.ir.tensor import Shape

HALVES = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
SAME = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")  # operators that keep whole numbers
OTHER_BATCH = 1e-2  # of the largest magnitude: more than rounding, which layers may amplify


def comparable(
    model: onnx.ModelProto, net: Any, blobs: Mapping[str, Sequence[np.ndarray]], *, shapes: Mapping[str, Shape], outputs: Sequence[str],
    batch: Mapping[str, int] = MappingProxyType({}),
) -> Exported:  # fmt: skip
    """Return `model` and the imported net as if `model` had been exported from that net, for `ocaffe.convert.verify.verify`.

    A blob has the name of the tensor that it holds. `shapes` of inputs and `outputs` (empty: the model's own) are written into `model`, except for the
    open axes `batch` of the inputs. Nodes that no output needs are removed: the import has not judged them, so no runtime gets them.
    """
    _check_types(model)
    if shapes:
        _reshape(model, shapes, batch)
    for info in model.graph.input:
        for size in info.type.tensor_type.shape.dim:
            if size.dim_value in UNKNOWN:  # the import takes 0 and -1 for open axes, and a runtime does not
                size.Clear()
    if outputs:
        known = {info.name: info for info in (*model.graph.output, *model.graph.value_info)}
        infos = [known.get(name, onnx.ValueInfoProto(name=name)) for name in outputs]
        del model.graph.output[:]
        model.graph.output.extend(infos)
    prune(model.graph)
    graph = build(net, proto.TEST)
    tensors = {name for node in model.graph.node for name in node.output} | {info.name for info in model.graph.input}
    values = {name: name for name in graph.blobs if name in tensors}
    of_blobs = {blob: blob.name for node in graph.nodes for blob in (*node.bottoms, *node.tops)}
    weights = parameter_values(graph, Weights("", [LayerWeights(name, blobs=list(arrays)) for name, arrays in blobs.items()], "the model"), Options())
    half = not HALVES.isdisjoint([*kinds_of(model).values(), *(tensor.data_type for tensor in model.graph.initializer)])
    return Exported(model, Deployed(net, [info.name for info in model.graph.output]), graph, values, of_blobs, weights, Options(fp16=half), True)


def pixels(model: onnx.ModelProto) -> dict[str, int]:
    """Return the inputs that are not floats, mostly images of bytes or rows of a table, and how many values they take."""
    kinds = {info.name: info.type.tensor_type.elem_type for info in model.graph.input}
    counts = {name: 2 if kind == onnx.TensorProto.BOOL else 256 for name, kind in kinds.items() if kind not in FLOATS}
    tables = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    same = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type in SAME}
    for node in model.graph.node:
        if node.op_type == "Gather" and node.input[0] in tables:
            name = node.input[1]
            while name in same:
                name = same[name]
            if name in counts:
                axis = next((each.i for each in node.attribute if each.name == "axis"), 0)
                counts[name] = min(counts[name], tables[node.input[0]][axis])
    return counts


def batch_sizes(exported: Exported, batch: Mapping[str, int]) -> tuple[int, int]:
    """Return the batch of the net, and the one of `other_batch`."""
    own = {blob.name: blob.shape for blob in exported.graph.inputs}
    size = next(own[name][axis] for name, axis in batch.items())
    return size, 3 if size < 3 else 2


def other_batch(exported: Exported, batch: Mapping[str, int], seed: int = 0) -> tuple[list[Feeds], Feeds]:
    """Draw inputs of 3 samples, or 2 if the net has 3 or more. Return batches of the net's own size, and the batch of their first samples."""
    own = {blob.name: blob.shape for blob in exported.graph.inputs}
    size, count = batch_sizes(exported, batch)
    first = 1 + 10 * seed
    parts = [random_inputs(exported.graph, number, pixels=pixels(exported.model)) for number in range(first, first + -(-count // size))]
    parts = [{name: (part if name in batch else parts[0])[name] for name in own} for part in parts]
    joined = {name: np.concatenate([part[name] for part in parts], axis) for name, axis in batch.items()}
    return parts, parts[0] | {name: values.take(range(count), batch[name]) for name, values in joined.items()}


def by_sample(exported: Exported, batch: Mapping[str, int], outputs: Mapping[str, int | None], net: Net) -> str:
    """Say which output is not the same for a sample in a batch of another size, or return an empty text. `net` is open (`opened`).

    The model fixes its batch, so it cannot run with another one.
    """
    names = exported.deployed.outputs
    parts, whole = other_batch(exported, batch)
    single = [run_net(net, exported, part, names) for part in parts]
    try:
        together = run_net(net, exported, whole, names)
    except Error as problem:
        return ", ".join(filter(None, (problem.layer, problem.fact)))
    for name in names:
        axis, expected = outputs.get(name), single[0][name]
        if axis is not None:
            expected = np.concatenate([values[name] for values in single], axis).take(range(together[name].shape[axis]), axis, mode="clip")
        if not difference(together[name], expected) <= OTHER_BATCH:
            return f"output '{name}' of a sample depends on the rest of the batch"
    return ""


def _check_types(model: onnx.ModelProto) -> None:
    """Raise Error if the file declares another type of a tensor's elements than the operators make. Runtimes refuse such a model."""
    own = detached(model, "")[0]
    infos = [*own.graph.value_info, *own.graph.output]
    declared = {info.name: info.type.tensor_type.elem_type for info in infos if info.type.tensor_type.elem_type}
    del own.graph.value_info[:]
    for info in own.graph.output:
        info.ClearField("type")
    for name, kind in kinds_of(own).items():
        if declared.get(name, kind) != kind:
            said, made = (onnx.TensorProto.DataType.Name(each).lower() for each in (declared[name], kind))
            fix = f"correct the type of '{name}' in the model's graph.output or graph.value_info; --noverify writes the net without comparing"
            raise Error(f"the file says that '{name}' holds {said}, but the operators make {made}", fix=fix)


def _reshape(model: onnx.ModelProto, shapes: Mapping[str, Shape], batch: Mapping[str, int]) -> None:
    """Change the shapes of inputs. Remove the shapes of all other tensors: they belong to the old input shapes."""
    del model.graph.value_info[:]
    for infos, made in ((model.graph.input, False), (model.graph.output, True)):
        for info in infos:
            for axis, size in enumerate(info.type.tensor_type.shape.dim):
                if info.name in shapes and batch.get(info.name) != axis:
                    size.dim_value = shapes[info.name][axis]
                elif made:
                    size.Clear()
