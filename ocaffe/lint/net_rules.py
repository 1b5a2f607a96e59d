"""Rules over the net of one phase."""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from ocaffe.layers.base import Layer, param_field, registry
from ocaffe.lint.rules import FED, Finding, View, net_rule, own_param

_AFFINE_FIELDS = ("scale_bias", "scale_filler", "bias_filler", "filler", "use_weight_bias")  # of NVCaffe's and Intel's BatchNorm, which includes the scale
_INCLUDED = {"SoftmaxWithLoss": "Softmax", "InfogainLoss": "Softmax", "SigmoidCrossEntropyLoss": "Sigmoid"}  # loss: the layer that it contains


@net_rule
def batch_norm_without_scale(view: View) -> Iterator[Finding]:
    """A BatchNorm without a following Scale with bias. The paper's gamma and beta are missing, so the output always has mean 0 and variance 1."""
    for index, layer in enumerate(view.layers):
        if layer.type != "BatchNorm" or any(layer.batch_norm_param.HasField(name) for name in _AFFINE_FIELDS):
            continue
        followers = view.followers(index)
        scales = [number for number in view.readers.get((index, 0), ()) if view.layers[number].type == "Scale" and len(view.layers[number].bottom) == 1]
        if not followers:
            continue
        if not scales:
            fact = f"no Scale layer follows, but '{followers[0].name}' ({followers[0].type})"
            fix = f'layer {{ name: "{layer.name}_scale" type: "Scale" bottom: "{layer.top[0]}" top: "{layer.top[0]}" scale_param {{ bias_term: true }} }}'
            yield view.finding("batch-norm-without-scale", layer, fact, fix)
        for number in scales:
            scale = view.layers[number]
            if not scale.scale_param.bias_term and not any(each.type == "Bias" for each in view.followers(number)):
                fact = f"it scales the output of '{layer.name}' (BatchNorm), but adds no bias (beta)"
                yield view.finding("batch-norm-without-scale", scale, fact, "scale_param { bias_term: true }")


@net_rule
def statistics_not_learned(view: View) -> Iterator[Finding]:
    """use_global_stats: true in the TRAIN phase. The running statistics never change. This is right only for fine-tuning a trained net.

    A BatchNorm whose Scale layer does not learn either is fixed on purpose.
    """
    for number, layer in enumerate(view.layers):
        scales = [each for each in view.followers(number) if each.type == "Scale"]
        fixed = any(len(scale.param) > scale.scale_param.bias_term and not any(spec.lr_mult for spec in scale.param) for scale in scales)
        if view.train and layer.type == "BatchNorm" and layer.batch_norm_param.use_global_stats and not fixed:
            fact = "use_global_stats: true applies in the TRAIN phase: the running mean and variance are never learned"
            fix = "remove it: the default is false in TRAIN and true in TEST"
            yield view.finding("statistics-not-learned", layer, fact, fix, "batch_norm_param.use_global_stats")


@net_rule
def batch_statistics_in_test(view: View) -> Iterator[Finding]:
    """use_global_stats: false in the TEST phase. The result of an image depends on the other images in its batch."""
    for layer in view.layers:
        param = layer.batch_norm_param
        if not view.train and layer.type == "BatchNorm" and param.HasField("use_global_stats") and not param.use_global_stats:
            fact = "use_global_stats: false applies in the TEST phase: an image's result depends on the others of its batch"
            fix = "remove it: the default is false in TRAIN and true in TEST"
            yield view.finding("batch-statistics-in-test", layer, fact, fix, "batch_norm_param.use_global_stats")


@net_rule
def bias_before_batch_norm(view: View) -> Iterator[Finding]:
    """A bias that the following BatchNorm removes. It uses memory and learns nothing."""
    for index, layer in enumerate(view.layers):
        followers = view.followers(index)
        param = own_param(layer) if layer.type in ("Convolution", "Deconvolution", "InnerProduct") else None
        if view.train and param is not None and param.bias_term and followers and all(each.type == "BatchNorm" for each in followers):
            fact = f"its bias has no effect: '{followers[0].name}' (BatchNorm) subtracts the mean"
            yield view.finding("bias-before-batch-norm", layer, fact, "set bias_term: false in this layer", param_field(layer.type))


@net_rule
def no_loss(view: View) -> Iterator[Finding]:
    """A TRAIN net without a loss. Nothing is learned."""
    if view.train and not view.losses and view.layers:
        fact = "no layer of the TRAIN net has a loss: nothing is learned"
        yield view.finding("no-loss", view.layers[-1], fact, 'add a loss layer, for example type: "SoftmaxWithLoss", or a loss_weight')


@net_rule
def unused_top(view: View) -> Iterator[Finding]:
    """A blob that no layer reads, often due to a wrong bottom name. In TEST only data layers are checked, because unread outputs are often intended."""
    for (index, top), readers in view.readers.items():
        layer = view.layers[index]
        kind = registry().get(layer.type)
        wanted = kind is None or kind.is_loss or not kind.has_backward or layer.type == "Silence" or any(layer.loss_weight[top : top + 1])
        feeds = not layer.bottom and layer.type not in FED
        if readers or not view.losses or (wanted and not feeds) or not (view.train or feeds):
            continue
        fact = f"no layer reads its top '{layer.top[top]}': it is computed, and logged as an output of the net"
        fix = f'correct the bottom that should read it, or layer {{ name: "silence" type: "Silence" bottom: "{layer.top[top]}" }}'
        yield view.finding("unused-top", layer, fact, fix, f"top[{top}]")


@net_rule
def softmax_twice(view: View) -> Iterator[Finding]:
    """A Softmax (Sigmoid) before a loss that already contains it. The gradients become tiny."""
    for index, layer in enumerate(view.layers):
        source = view.source(index)
        if layer.type in _INCLUDED and source is not None and source.type == _INCLUDED[layer.type]:
            fact = f"its input comes from '{source.name}' ({source.type}), which this loss contains already"
            yield view.finding("softmax-twice", layer, fact, f'bottom: "{source.bottom[0]}", the bottom of {source.name!r}', "bottom[0]")
        if layer.type == "MultinomialLogisticLoss" and source is not None and source.type != "Softmax":
            fact = f"its input must be probabilities, and comes from '{source.name}' ({source.type})"
            yield view.finding("softmax-twice", layer, fact, 'set type: "SoftmaxWithLoss", which contains the softmax', "type")


@net_rule
def scores_cut(view: View) -> Iterator[Finding]:
    """A ReLU between the last layer and the softmax. Negative scores and their gradients are lost."""
    for index, layer in enumerate(view.layers):
        source = view.source(index)
        if layer.type in _INCLUDED and source is not None and source.type in ("ReLU", "ReLU6") and not source.relu_param.negative_slope:
            fact = f"its scores come from '{source.name}' ({source.type}), which cuts off negative ones"
            yield view.finding("scores-cut", layer, fact, f"remove layer '{source.name}'", "bottom[0]")


@net_rule
def weights_start_at_zero(view: View) -> Iterator[Finding]:
    """No weight_filler, or constant 0. All outputs of the layer are equal, and earlier layers get no gradient. Not reported if the solver names weights."""
    if not view.train or not view.losses:
        return
    seen: set[str] = set()
    for layer in view.layers:
        names = {spec.name for spec in layer.param[:1] if spec.name}
        shared, seen = bool(names & seen), seen | names
        param = own_param(layer) if layer.type in ("Convolution", "Deconvolution", "InnerProduct", "Embed", "ConvolutionDepthwise") else None
        frozen = bool(layer.param) and layer.param[0].lr_mult == 0
        if param is None or shared or frozen:
            continue
        filler = param.weight_filler
        if filler.type == "constant" and not filler.value:
            fact = "weight_filler is constant 0" if param.HasField("weight_filler") else "it has no weight_filler, and the default is constant 0"
            fix = 'weight_filler { type: "msra" } (before a ReLU) or "xavier"; or start from weights: `ocaffe train --weights FILE`'
            yield view.finding("weights-start-at-zero", layer, fact, fix, param_field(layer.type))


@net_rule
def same_name(view: View) -> Iterator[Finding]:
    """Two layers of one phase with the same name. Weights are matched by the layer's name, so two layers of one name get the same weights."""
    first: dict[str, Any] = {}
    for layer in view.layers:
        other = first.setdefault(layer.name, layer)
        if other is not layer:
            what = "weights files name layers, so that both take the same weights" if _has_parameters(layer) else "logs and scripts cannot tell them apart"
            fact = f"the name is also that of the layer in line {other.source_line}: {what}"
            yield view.finding("same-name", layer, fact, "give each layer its own name", "name")


@net_rule
def shared_by_accident(view: View) -> Iterator[Finding]:
    """Layers that share parameters in an unusual way: only some parameters, a weight with a bias, or layers of different types or sizes."""
    uses: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for index, layer in enumerate(view.layers):
        for number, spec in enumerate(layer.param):
            if spec.name:
                uses[spec.name].append((index, number))
    told: set[tuple[int, int]] = set()
    for name, places in uses.items():
        (owner, number), *others = places
        for index, other in others:
            problem = _misfit(view, owner, number, index, other, name) if (owner, index) not in told else None
            if problem is not None:
                told.add((owner, index))
                yield view.finding("shared-by-accident", view.layers[index], *problem, f"param[{other}].name")


def _misfit(view: View, owner: int, number: int, index: int, other: int, name: str) -> tuple[str, str] | None:
    """Return the problem and the remedy if layer `index` should not use parameter `number` of layer `owner` as its parameter `other`, else None."""
    first, layer = view.layers[owner], view.layers[index]
    shares = f"it shares parameter '{name}' with '{first.name}' ({first.type}, line {first.source_line})"
    if index == owner or other != number:
        return f"'{name}' names parameter {number} and parameter {other}", f"give one of the two param another name than '{name}'"
    if layer.type != first.type or _size(layer) != _size(first):
        return f"{shares}, but is another kind of layer: {_about(layer)} and {_about(first)}", "give param another name here, or both layers the same settings"
    if view.reads[index] and view.reads[index] == view.reads[owner]:
        return f"{shares} and reads the same bottom '{layer.bottom[0]}': it computes the same again", "give param another name, or use one top for both"
    if [spec.name for spec in layer.param] != [spec.name for spec in first.param] or len(layer.param) < _count(layer):
        return f"{shares}, but not its other parameters", "name all parameters alike in both layers, or none"
    return None


def _has_parameters(layer: Any) -> bool:
    kind = registry().get(layer.type)
    return kind is not None and kind.parameters is not Layer.parameters and layer.type != "BatchNorm"


def _count(layer: Any) -> int:
    """Return the number of parameters of a convolution or product layer; 0 for other types."""
    return 1 + own_param(layer).bias_term if layer.type in ("Convolution", "Deconvolution", "InnerProduct") else 0


def _size(layer: Any) -> tuple[Any, ...]:
    """Return the settings that determine the shape of the weights, apart from the bottom's shape."""
    param = own_param(layer)
    if param is None:
        return ()
    names = ("num_output", "kernel_size", "kernel_h", "kernel_w", "group", "bias_term", "input_dim")
    return tuple(str(getattr(param, name)) for name in names if name in param.DESCRIPTOR.fields_by_name)


def _about(layer: Any) -> str:
    param = own_param(layer)
    outputs = getattr(param, "num_output", 0)
    return f"{layer.type}" + (f" with num_output {outputs}" if outputs else "")
