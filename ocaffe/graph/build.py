"""From a filtered NetParameter to a Graph with shapes and backward marks, in the order and with the rules of Caffe's Net::Init."""
from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from ocaffe import proto
from ocaffe.errors import Error, Place, names_text, shape_text
from ocaffe.formats.foreign import TOPS, forks_of, use_instead
from ocaffe.formats.fork_fields import refused_in, told
from ocaffe.formats.text import write_text
from ocaffe.graph.bottoms import repeated_top
from ocaffe.graph.splits import insert_splits
from ocaffe.ir.graph import Blob, Graph, Node, Parameter
from ocaffe.ir.layer import MOST_ELEMENTS, AbstractLayer
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import Layer, registry
from ocaffe.proto import is_repeated
from ocaffe.shown import Lines

Log = Callable[[str, str], None]
AUTOMATIC = "(automatic)"
UNSIGNED = (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64)


def build(net: Any, phase: int, log: Log = lambda source, text: None, shapes: dict[str, Shape] | None = None, seed: int = 0) -> Graph:
    """The graph of `net` (upgraded, filtered). `shapes` overrides the shapes of Input tops and of data tops. Raises Error with file and line."""
    log("net.cpp:53", Lines("Initializing net from parameters: ", *write_text(net).split("\n")))
    found = refused_in(net.state)
    if found is not None:
        raise Error(told(*found), place=net.source_file or None, fix=found[1].without)
    builder = _Builder(insert_splits(_with_stats_batch_size(net)), phase, log, shapes or {}, seed)
    graph = builder.run()
    mark_backward(graph, bool(net.force_backward), log)
    for blob in graph.outputs:
        log("net.cpp:244", f"This network produces output {blob.name}")
    log("net.cpp:257", "Network initialization done.")
    return graph


def _with_stats_batch_size(net: Any) -> Any:
    """Return the net with Intel's bn_stats_batch_size in each BatchNorm layer, as Intel's fork sets it."""
    if not net.bn_stats_batch_size:
        return net
    changed = type(net)()
    changed.CopyFrom(net)
    for layer in changed.layer:
        if layer.type == "BatchNorm":
            layer.batch_norm_param.stats_batch_size = net.bn_stats_batch_size
    return changed


def infer_shapes(graph: Graph, given: dict[Blob, Shape], strict: bool = True) -> None:
    """Infer all shapes again from the tops of Input and data layers. Parameters must keep their shapes.

    Raises Error; the graph is then half changed. If not `strict`, a layer with bottoms that cannot have its shapes is marked as unfit instead.
    """
    for node in graph.nodes:
        node.unfit = None
        try:
            _infer(node, given)
        except Error as problem:
            if strict or not node.bottoms:
                raise
            node.unfit = problem


def _infer(node: Node, given: dict[Blob, Shape]) -> None:
    inferred = [tuple(shape) for shape in node.layer.infer(*(blob.shape for blob in node.bottoms))]
    node.layer.check_sizes(inferred, "a top")
    for parameter, wanted in zip(node.params, node.layer.parameters()):
        if parameter.count != math.prod(wanted.shape):
            raise node.layer.error(
                f"the new input shape would need a parameter of {shape_text(wanted.shape)}, it is {shape_text(parameter.shape)}",
                "make the InnerProduct a Convolution, which takes any image size; or keep the old size",
            )
    for top, shape in zip(node.tops, inferred):
        top.shape = shape if node.bottoms or node.layer.extent is not None else given[top]


class _Builder:
    def __init__(self, net: Any, phase: int, log: Log, shapes: dict[str, Shape], seed: int) -> None:
        self.net, self.phase, self.log, self.shapes, self.seed = net, phase, log, shapes, seed
        self.blobs: dict[str, Blob] = {}
        self.first: dict[str, Blob] = {}
        self.available: set[str] = set()
        self.params: list[Parameter] = []
        self.reshaped: list[Parameter] = []
        self.by_name: dict[str, Parameter] = {}
        self.memory = 0
        self.settings_file = next((param.window_data_param.config for param in net.layer if param.type == "FrcnnRoiData"), "")

    def run(self) -> Graph:
        nodes = [self.node(param) for param in self.net.layer]
        inputs = [node.tops[i] for node in nodes if node.type == "Input" for i in range(len(node.tops))]
        outputs = [self.blobs[name] for name in sorted(self.available)]
        return Graph(self.net, self.phase, nodes, self.blobs, self.first, inputs, outputs, self.seed, self.params, self.reshaped)

    def node(self, param: Any) -> Node:
        place = Place.of(self.net.source_file, param.source_line)
        layer = self.create(param, place)
        self.log("net.cpp:86", f"Creating Layer {param.name}")
        bottoms = [self.bottom(layer, name) for name in param.bottom]
        tops = [self.top(layer, param, index, name) for index, name in enumerate(param.top)]
        if layer.is_loss:
            tops += [Blob(AUTOMATIC, ()) for _ in range(len(tops), _least(layer.tops))]
        self.check_arity(layer, "bottom", [_written(blob) for blob in bottoms], layer.bottoms)
        self.check_arity(layer, "top", [blob.name for blob in tops], layer.tops)
        node = Node(param.name, param.type, layer, bottoms, tops, place=place)
        layer.connect(bottoms)
        inferred = [self.shapes.get(top.name, tuple(shape)) if not bottoms else tuple(shape)
                    for top, shape in zip(tops, layer.infer(*(blob.shape for blob in bottoms)))]  # fmt: skip
        assert len(inferred) == len(tops), f"{layer.title} inferred {len(inferred)} shapes for {len(tops)} tops"
        layer.check_sizes(inferred, "a top")
        for note in layer.notes:
            self.log(*note)
        self.loss_weights(layer, tops)
        for blob in bottoms:
            blob.consumer = node
        self.log("net.cpp:124", f"Setting up {param.name}")
        for top, shape in zip(tops, inferred):
            top.shape, top.producer = shape, node
            self.memory += top.count * 4
            self.log("net.cpp:131", f"Top shape: {''.join(f'{n} ' for n in shape)}({top.count})")
            if top.loss_weight:
                self.log("net.cpp:134", f"    with loss weight {top.loss_weight:g}")
            if top.name != AUTOMATIC:
                self.blobs[top.name] = top
                self.first.setdefault(top.name, top)
        self.log("net.cpp:139", f"Memory required for data: {self.memory}")
        self.parameters(node)
        return node

    def create(self, param: Any, place: Place | None) -> Layer:
        types = registry()
        if param.type not in types:
            raise self.unknown(param, place)
        self.log("layer_factory.hpp:77", f"Creating layer {param.name}")
        own = param
        if not param.HasField("phase"):
            own = type(param)()
            own.CopyFrom(param)
            own.phase = self.phase
        layer = types[param.type].implementation(own)(own, own.phase, place)
        layer.seed = self.seed
        layer.settings_file = self.settings_file
        _check_numbers(layer)
        found = refused_in(own, layer.own_fields, "_param")
        if found is not None:
            raise layer.error(told(*found), found[1].without)
        return layer

    def unknown(self, param: Any, place: Place | None) -> Error:
        """The error for a layer type that does not exist."""
        by_case = {name.lower(): name for name in registry()}
        forks = forks_of(param.type)
        near = [] if forks else difflib.get_close_matches(param.type.lower(), by_case, 3, 0.6)
        fact = f"unknown layer type '{param.type}'" + (f", a type of {forks}" if forks else "")
        meant = f"did you mean {' or '.join(repr(by_case[name]) for name in near)}? " if near else ""
        instead = use_instead(param.type)
        fix = instead or f"{meant}`ocaffe layers` lists all types; a type of your own can be a Python layer"
        return Error(fact, place=place, layer=f"'{param.name}'", fix=fix)

    def bottom(self, layer: Layer, name: str) -> Blob:
        if name not in self.available:
            raise layer.error(f"unknown bottom blob '{name}'", self._instead(name, layer))
        self.available.discard(name)
        self.log("net.cpp:408", f"{layer.param.name} <- {name}")
        return self.blobs[name]

    def _instead(self, name: str, layer: Layer) -> str:
        """Return the remedy for a bottom that no earlier layer of this phase makes."""
        later = next((each.name for each in self.net.layer if name in each.top), "")
        if later:
            return f"write layer '{later}', which makes it, before this one"
        near = difflib.get_close_matches(name, self.available, 1)
        if near:
            return f'bottom: "{near[0]}"'
        return f"name a top of an earlier layer: {names_text(sorted(self.available)) or 'there is none'}"

    def top(self, layer: Layer, param: Any, index: int, name: str) -> Blob:
        bottoms = param.bottom
        in_place = index < len(bottoms) and bottoms[index] == name
        if in_place:
            layer.check(layer.inplace_top, f"top '{name}' is also the bottom, which {layer.param.type} cannot do", "give the top another name")
            self.log("net.cpp:369", f"{layer.param.name} -> {name} (in-place)")
        else:
            if name in self.blobs:
                raise repeated_top(self.net, param, next(each for each in self.net.layer if name in each.top), name)
            self.log("net.cpp:382", f"{layer.param.name} -> {name}")
        self.available.add(name)
        blob = Blob(name, ())
        self.blobs.setdefault(name, blob)
        return blob

    def check_arity(self, layer: Layer, what: str, names: list[str], arity: Any) -> None:
        count = len(names)
        least, most = (arity, arity) if isinstance(arity, int) else arity
        if count < least or (most is not None and count > most):
            wanted = f"{least}" if least == most else f"at least {least}" if most is None else f"{least} to {most}"
            fact = f"{layer.param.type} takes {wanted} {what} blob{'s' if wanted != '1' else ''}, {count} given" + (f": {names_text(names)}" if names else "")
            extra = names[most:] if most is not None else []
            if extra and what == "top" and layer.param.type in TOPS:
                fork, instead = TOPS[layer.param.type]
                raise layer.error(f"{fact}. {fork}", instead)
            fix = f"remove {names_text(extra)}" if extra else f"add {least - count} {what}; `ocaffe layers {layer.param.type}` describes them"
            raise layer.error(fact, fix)

    def loss_weights(self, layer: Layer, tops: list[Blob]) -> None:
        weights = list(layer.param.loss_weight)
        layer.check(
            not weights or len(weights) == len(layer.param.top) or len(weights) == len(tops),
            f"{len(weights)} loss_weight given for {len(tops)} tops",
            f"give {len(tops)} loss_weight, one for each top, or none",
        )
        if not weights and layer.is_loss:
            weights = [1.0]
        for blob, weight in zip(tops, weights):
            blob.loss_weight = weight

    def parameters(self, node: Node) -> None:
        """Caffe's AppendParam: layers share a parameter by ParamSpec name, and the first of them owns it."""
        layer, specs = node.layer, node.layer.specs()
        blobs = layer.parameters()
        layer.check_sizes([wanted.shape for wanted in blobs], "a parameter")
        fact = f"{len(specs)} param given, but {layer.param.type} has {len(blobs)} parameter blobs here"
        layer.check(len(specs) <= len(blobs), fact, f"remove the last {len(specs) - len(blobs)} param" + ("; bias_term is false" if len(blobs) == 1 else ""))
        _check_rounding(layer)
        for index, wanted in enumerate(blobs):
            spec = proto.ParamSpec()
            if index < len(specs):
                spec.CopyFrom(specs[index])
            if not wanted.learned:  # the prototxt cannot change it (docs/quirks.md, quirk 13)
                spec.lr_mult = spec.decay_mult = 0
            shape = tuple(wanted.shape)
            parameter = self.by_name.get(spec.name) if spec.name else None
            if parameter is None:
                parameter = Parameter(node.name, index, shape, wanted.filler, spec.name, spec.lr_mult, spec.decay_mult)
                parameter.place, parameter.explicit = node.place, {name for name in ("lr_mult", "decay_mult") if spec.HasField(name)}
                self.params.append(parameter)
                if spec.name:
                    self.by_name[spec.name] = parameter
            else:
                self.share(layer, parameter, spec, shape)
            parameter.users.append((node.name, index, shape))
            node.params.append(parameter)
            if parameter.shape != shape:
                parameter = parameter.in_shape(shape)
                self.reshaped.append(parameter)
            layer.params.append(parameter)

    def share(self, layer: AbstractLayer, parameter: Parameter, spec: Any, shape: Shape) -> None:
        permissive = spec.share_mode == proto.ParamSpec.PERMISSIVE
        same = math.prod(shape) == parameter.count if permissive else shape == parameter.shape
        layer.check(
            same,
            f"cannot share param '{spec.name}' owned by layer '{parameter.layer}': it is {shape_text(parameter.shape)} there, {shape_text(shape)} here",
            _sharing(spec.name, parameter, shape, permissive),
        )
        for name in ("lr_mult", "decay_mult"):
            if not spec.HasField(name):
                continue
            value = getattr(spec, name)
            layer.check(
                name not in parameter.explicit or getattr(parameter, name) == value,
                f"shared param '{spec.name}' has {name} {getattr(parameter, name):g} in layer '{parameter.layer}' and {value:g} here",
                f"give {name} once, or the same value twice",
            )
            parameter.explicit.add(name)
            setattr(parameter, name, value)


def _sharing(name: str, parameter: Parameter, shape: Shape, permissive: bool) -> str:
    """Return the remedy for a shared parameter that has `shape` in another layer."""
    apart = f"give param another name than '{name}' in one of the two layers"
    if not permissive and math.prod(shape) == parameter.count:
        return f"set share_mode: PERMISSIVE in this param, because the counts agree; or {apart}"
    return f"give both layers the settings that make the shapes equal, or {apart}"


def _check_numbers(layer: Layer) -> None:
    """Refuse unsigned numbers of the layer's parameters that Caffe's ints and the kernels' ints cannot hold."""
    for message, value in layer.param.ListFields():
        if not message.name.endswith("_param") or is_repeated(message):
            continue
        for field, given in value.ListFields():
            if field.type in UNSIGNED and not field.name.startswith("rand"):  # rand_skip is not a size
                largest = max(given) if is_repeated(field) else given
                fix = f"set {field.name} to at most {MOST_ELEMENTS}"
                layer.check(largest <= MOST_ELEMENTS, f"{field.name} is {largest}, at most {MOST_ELEMENTS} is possible", fix)


def _written(blob: Blob) -> str:
    """Return the name that the prototxt has for a bottom: of a top of a Split, that of its bottom."""
    return blob.producer.bottoms[0].name if blob.producer is not None and blob.producer.type == "Split" else blob.name


def _least(arity: Any) -> int:
    return arity if isinstance(arity, int) else arity[0]


def mark_backward(graph: Graph, force: bool, log: Log) -> None:
    """Mark the layers that run backward and the bottoms that get a diff (docs/quirks.md, quirk 25).

    It walks forward from the parameters, then back from the losses.
    """
    wants: dict[Blob, bool] = {}
    for node in graph.nodes:
        param = node.layer.param
        count = len(param.propagate_down)
        node.layer.check(
            count in (0, len(node.bottoms)), f"{count} propagate_down given for {len(node.bottoms)} bottoms",
            f"give {len(node.bottoms)} propagate_down, one for each bottom, or none",
        )  # fmt: skip
        node.propagate = [param.propagate_down[i] if count else wants[blob] for i, blob in enumerate(node.bottoms)]
        learns = any(parameter.learned for parameter in node.params)
        if node.layer.reads_shapes:
            node.propagate = [False] * len(node.bottoms)
        node.backward = learns or (not node.layer.reads_shapes and any(wants[blob] for blob in node.bottoms))
        wants.update(dict.fromkeys(node.tops, node.backward))
    under_loss: set[str] = set()
    skipped: set[str] = set()
    for node in reversed(graph.nodes):
        contributes = any(top.loss_weight or top.name in under_loss for top in node.tops)
        if node.backward and all(top.name in skipped for top in node.tops):
            node.backward = False
            node.propagate = [False] * len(node.bottoms)
        node.backward = node.backward and contributes
        log("net.cpp:200" if node.backward else "net.cpp:202",
            f"{node.name} {'needs' if node.backward else 'does not need'} backward computation.")  # fmt: skip
        for i, blob in enumerate(node.bottoms):
            if contributes:
                under_loss.add(blob.name)
            else:
                node.propagate[i] = False
            if not node.propagate[i]:
                skipped.add(blob.name)
    if force:
        for node in graph.nodes:
            node.backward = bool(node.bottoms or node.params)
            node.propagate = [old or node.layer.force_backward(i) for i, old in enumerate(node.propagate)]
    for parameter in graph.params:
        parameter.propagate = force or parameter.learned


def _check_rounding(layer: AbstractLayer) -> None:
    """Raise the layer's error if it is to round its weights, and cannot."""
    if layer.param.HasField("weight_quantization_param"):
        bits = layer.param.weight_quantization_param.bits
        layer.check(layer.weight_outputs() is not None, "weight_quantization_param is given, but the layer is no product of weights", "remove it")
        layer.check(2 <= bits <= 16, f"weight_quantization_param has bits: {bits}", "set bits from 2 to 16; chips have 8 or 16")
