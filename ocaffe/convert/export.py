"""Export a net as an ONNX model: every layer writes its own nodes (`Layer.onnx`)."""
from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ocaffe.compiler.network import first_values, fitting, phase_net, recognise
from ocaffe.convert.deploy import ACTIVATIONS, DATA, Deployed, deploy, prepared_as
from ocaffe.convert.fold import fold
from ocaffe.convert.options import Options as Options
from ocaffe.errors import Error, Place, names_text
from ocaffe.formats.states import check_stages, named_stages
from ocaffe.formats.text import read_net
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.formats.weights import Weights, read_weights
from ocaffe.graph.build import build
from ocaffe.ir.graph import Blob, Graph, Parameter
from ocaffe.layers.base import registry
from ocaffe.onnx.graph import OnnxGraph
from ocaffe.shown import command, flag, path_word
from ocaffe.support import log

if TYPE_CHECKING:
    import onnx

RECURRENT = ("LSTM", "RNN", "GRU")
OLDEST_OPSET = 13  # older Softmax flattens its input to two axes, which is wrong for Caffe's Softmax
BATCH, STEPS = "batch", "steps"  # symbols of a dynamic first axis; in recurrent nets it counts time steps


@dataclass
class Exported:
    """An ONNX model, the net and weights it was made from, and the value that holds each blob. `imported`: the net was made from the model instead."""

    model: onnx.ModelProto
    deployed: Deployed
    graph: Graph
    values: dict[str, str]  # blob name -> name of its last value in the model, if the model has it
    of_blobs: dict[Blob, str]  # the same for all values, including those that in-place layers replaced
    weights: dict[Parameter, np.ndarray]
    options: Options
    imported: bool = False

    @property
    def layers(self) -> Iterable[Any]:
        """The layers of the net's message."""
        return self.deployed.message.layer  # type: ignore[no-any-return]

    @property
    def named(self) -> Container[str]:
        """The blobs that the model has too."""
        return self.values.keys() | set(self.deployed.outputs)


def export(net: str | Any, weights: str | Weights | None = None, options: Options | None = None) -> Exported:
    """Return the ONNX model of a net (a prototxt, or its message) with the weights of a file. Raises Error where a layer cannot be exported."""
    from ocaffe.convert.model import assemble

    log.as_library()
    options = options or Options()
    _check(options)
    named = read_weights(weights) if isinstance(weights, str) else weights
    deployed = for_inference(net, named, options)
    _refuse_python(deployed.message)
    if options.fp16:
        _refuse_integers(deployed.message)
    graph = built(deployed.message, options)
    arrays = parameter_values(graph, named, options)
    onnx_graph = OnnxGraph(options.opset, arrays, varying(graph, deployed.message, options))
    _walk(graph, onnx_graph, deployed)
    outputs = [graph.blobs[name] for name in deployed.outputs]
    onnx_graph.prune([onnx_graph.values[blob] for blob in outputs])
    onnx_graph.named(outputs, graph.blobs)
    if options.fold:
        fold(onnx_graph)
    model = assemble(onnx_graph, graph, outputs, options, named.path if named else "")
    return Exported(model, deployed, graph, _present(graph, onnx_graph), onnx_graph.values, arrays, options)


def for_inference(net: str | Any, weights: Weights | None, options: Options) -> Deployed:
    """Return the part of a net (a prototxt, or its message) that `options` describe. `weights` tell which fork's layer is meant where the net does not."""
    message = read_net(net, options.unknown_fields, lambda text: log.warning("upgrade_proto.cpp:1", text)) if isinstance(net, str) else net
    sources = [layer for layer in upgrade_net(message).layer if layer.type in DATA]
    whole = message
    check_stages(options.stages, whole)
    message = phase_net(message, options.phase, options.level, options.stages)
    if weights is not None:
        recognise(message, weights)
    cuts = [*options.cut_at, *(_detection_bottoms(message, options) if options.raw_detection else ())]
    try:
        deployed = deploy(
            message, shapes=options.shapes, activate=options.activate, cut_at=cuts, prepare=options.bake, beside=options.beside, sources=sources
        )
    except Error as problem:
        if not problem.fact.startswith("--"):  # no mistake in a flag
            problem.fix = "; ".join(filter(None, [problem.fix, _other_stages(whole, message, options)]))
        raise
    empty = all(layer.type == "Input" for layer in deployed.message.layer)
    if empty and cuts:
        fact = f"no layer but the input remains: --cut-at names {names_text(cuts)}"
        raise Error(fact, place=message.source_file or None, fix="--cut-at with tops of later layers")
    deployed.prepared = "" if options.bake else prepared_as(message, upgrade_net(whole))
    deployed.note = "" if cuts else _other_stages(whole, deployed.message, options)
    if empty or not deployed.outputs:
        raise Error("the net computes nothing but losses and measures", place=message.source_file or None, fix="--activate-losses, or --cut-at=BLOB")
    return deployed


def _other_stages(whole: Any, taken: Any, options: Options) -> str:
    """Say which stages the rules of a net name, if no stage is chosen, and which one ends with probabilities where the net that is taken does not."""
    named = named_stages(whole)
    if not named or any(options.stages):
        return ""
    ends = {stage: _probabilities(phase_net(whole, options.phase, options.level, (stage,))) for stage in named}
    better = next((stage for stage in named if ends[stage]), "") if not _probabilities(taken) else ""
    offer = f"{flag('stage', better)} has layer '{ends[better].name}' ({ends[better].type}) as its end" if better else f"{flag('stage', named[0])} takes one"
    return f"rules of layers name the stages {names_text(named)}, and without --stage the layers that need one are left out: {offer}"


def _probabilities(net: Any) -> Any:
    """Return a layer that gives probabilities to no other layer, None if there is none."""
    read = {name for layer in net.layer for name in layer.bottom}
    return next((layer for layer in net.layer if layer.type in ACTIVATIONS.values() and not read.intersection(layer.top)), None)


def _check(options: Options) -> None:
    import onnx

    newest = onnx.defs.onnx_opset_version()
    if not OLDEST_OPSET <= options.opset <= newest:
        fact = f"--opset is {options.opset}, the installed onnx package supports up to {newest}"
        raise Error(fact, fix=f"--opset {min(17, newest)}, or another number from {OLDEST_OPSET} to {newest}")


def _refuse_python(message: Any) -> None:
    """Refuse Python layers before their modules are imported: the modules may be missing on this machine."""
    for layer in message.layer:
        if layer.type == "Python" and registry()["Python"].implementation(layer).type == "Python":
            own = layer.python_param
            raise Error(
                f"{own.module}.{own.layer} cannot be exported to ONNX: it is a Python class of the user",
                place=Place.of(message.source_file, layer.source_line),
                layer=f"'{layer.name}' (Python)", fix=_cut_before(layer),
            )  # fmt: skip


def _refuse_integers(message: Any) -> None:
    """Refuse --fp16 for a net with integers: its values between them are those of the grids, which 16 bits may not hold."""
    for layer in message.layer:
        if layer.type == "FakeQuantize" or layer.HasField("weight_quantization_param"):
            place, title = Place.of(message.source_file, layer.source_line), f"'{layer.name}' ({layer.type})"
            raise Error("--fp16 is given for a net that is quantized already", place=place, layer=title, fix="leave out --fp16")


def built(message: Any, options: Options) -> Graph:
    """Return the graph of the message of a `Deployed`. Errors about types that ocaffe has not say how to cut the net before them."""
    try:
        return build(message, options.phase, seed=options.seed)
    except Error as problem:
        problem.fix = "; ".join(filter(None, [_with_batch(options), problem.fix]))
        others = (layer for layer in message.layer if layer.type not in registry() or layer.type == "Python")
        unknown = [layer for layer in others if layer.bottom and problem.place == Place.of(message.source_file, layer.source_line)]
        problem.fix = "; ".join([*map(_cut_before, unknown), *filter(None, [problem.fix])])
        raise


def _with_batch(options: Options) -> str:
    """Return --shape with a batch before shapes of three axes, '' if none has three: they may be those of an image."""
    shapes = ((name, (1, *shape) if len(shape) == 3 else shape) for name, shape in options.shapes.items())
    text = flag("shape", ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes))
    return f"{text}, if the batch is missing" if any(len(shape) == 3 for shape in options.shapes.values()) else ""


def _cut_before(layer: Any) -> str:
    return f"{flag('cut-at', ','.join(layer.bottom))} converts the part before it"


def _walk(graph: Graph, onnx_graph: OnnxGraph, deployed: Deployed) -> None:
    for node in graph.nodes:
        onnx_graph.node = node
        node.layer.onnx(onnx_graph, node.bottoms, node.tops)
        for top in node.tops:
            if top.name in deployed.preprocessing and node.type == "Input":
                how = deployed.preprocessing[top.name]
                x = onnx_graph.op("Sub", top, how.mean.astype(np.float32)) if how.mean is not None else onnx_graph.values[top]
                onnx_graph.alias(top, onnx_graph.op("Mul", x, how.scale) if how.scale != 1 else x)


def _present(graph: Graph, onnx_graph: OnnxGraph) -> dict[str, str]:
    made = {name for node in onnx_graph.nodes for name in node.outputs} | set(onnx_graph.inputs.values())
    return {name: onnx_graph.values[blob] for name, blob in graph.blobs.items() if onnx_graph.values.get(blob) in made}


# -- weights ---------------------------------------------------------------------------------------------------------


def parameter_values(graph: Graph, weights: Weights | None, options: Options) -> dict[Parameter, np.ndarray]:
    """Return the array of every parameter. Raises Error where the weights lack one, unless `options.fillers` is set."""
    values = {}
    if weights is not None:
        try:
            for parameter, array in fitting(graph, weights):
                values[parameter] = np.asarray(array, np.float32).reshape(parameter.shape)
        except Error as problem:
            net = path_word(graph.message.source_file or "NET.prototxt")
            differences = f"{command('ocaffe', 'lint', net)} {flag('weights', weights.path)}"
            own = f"are these the weights of this net? Give its own; `{differences}` lists what differs"
            problem.fix = "; ".join(filter(None, [_with_batch(options), own]))
            raise
    for parameter in graph.params:
        if parameter in values:
            continue
        if not options.fillers:
            node = next(node for node in graph.nodes if node.name == parameter.layer)
            raise Error(
                f"{weights.path} has no blob {parameter.index} for it" if weights else "there are no weights for it",
                place=node.place, layer=node.layer.title,
                fix="give the .caffemodel of this net; `ocaffe convert --fillers` exports the values of fillers in their place",
            )  # fmt: skip
        values[parameter] = np.asarray(first_values(parameter, options.seed), np.float32).reshape(parameter.shape)
    return values


# -- dynamic sizes ---------------------------------------------------------------------------------------------------


def varying(graph: Graph, message: Any, options: Options) -> dict[Blob, dict[int, str]]:
    """Return the dynamic axes of each blob, with their symbol, or "" if the size is not the batch itself.

    They are the axes whose size changes when shapes are inferred again for twice the batch and for other extents.
    """
    measuring = [node for node in graph.nodes if node.layer.extent_axis is not None]
    if not (options.dynamic_batch or measuring):
        return {}
    batch = graph.inputs[0].shape[0] if graph.inputs and graph.inputs[0].shape else 0
    larger = {blob.name: (2 * batch, *blob.shape[1:]) for blob in graph.inputs if options.dynamic_batch and blob.shape[:1] == (batch,)}
    symbol = STEPS if any(node.type in RECURRENT for node in graph.nodes) else BATCH
    symbols: dict[tuple[int, int], str] = {(batch, 2 * batch): symbol} if larger else {}
    try:
        other = build(message, options.phase, shapes=larger, seed=options.seed)
        for node in other.nodes:
            shapes = node.layer.infer(*(blob.shape for blob in node.bottoms)) if node.bottoms else [top.shape for top in node.tops]
            axis = node.layer.extent_axis
            if axis is not None:
                node.layer.extent = (shapes[0][axis] + 1,)
                shapes = node.layer.infer(*(blob.shape for blob in node.bottoms))
            for top, shape in zip(node.tops, shapes):
                top.shape = tuple(shape)
    except Error as problem:
        if not larger:
            raise
        raise Error(f"with a batch of {2 * batch} instead of {batch}: {problem.fact}", place=problem.place, layer=problem.layer,
                    fix="export it without --dynamic-batch, or write the prototxt so that it takes any batch (Reshape: dim 0 or -1)") from problem  # fmt: skip
    result: dict[Blob, dict[int, str]] = {}
    for node, twin in zip(graph.nodes, other.nodes):
        for top, same in zip(node.tops, twin.tops):
            if len(top.shape) != len(same.shape):
                fact = f"its top has {len(top.shape)} axes for a batch of {batch}, {len(same.shape)} for {2 * batch}"
                raise node.layer.error(fact, "export it without --dynamic-batch")
            axes = {i: symbols.get((a, b), "") for i, (a, b) in enumerate(zip(top.shape, same.shape)) if a != b}
            if axes:
                result[top] = axes
    return result


def _detection_bottoms(message: Any, options: Options) -> list[str]:
    """Return the bottoms of the DetectionOutput layers: locations, confidences, priors."""
    bottoms = [name for layer in message.layer if layer.type == "DetectionOutput" for name in layer.bottom]
    if not bottoms:
        raise Error("--raw-detection is given, but the net has no DetectionOutput layer", place=message.source_file or None, fix="leave it out")
    return list(dict.fromkeys(bottoms))

