"""Nets for lint_targets.py: those of the zoo, small nets with unusual structures, and random edits of both."""
from __future__ import annotations

import dataclasses
import functools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ocaffe
from ocaffe import proto
from ocaffe.cl.device import Device, list_devices
from ocaffe.cl.quirks import Quirk
from ocaffe.convert.targets.table import read_table
from ocaffe.errors import Error
from ocaffe.formats.text import parse, read_net, write_text
from ocaffe.formats.weights import write_weights
from ocaffe.graph.build import build
from ocaffe.layers.base import param_field

ZOO = Path(__file__).parents[1] / "zoo"
LARGEST = 3e4  # of a value in a net, so that float16 has it
MOST_LAYERS = 40  # of a net that is edited
COMMON = set(read_table("tpu-mlir").kinds) & set(read_table("rknn").kinds)
Shape = tuple[int, ...]
Shapes = dict[str, Shape]

CONV = 'type: "Convolution" bottom: "{b}" top: "{t}" convolution_param {{ num_output: {n} kernel_size: {k} pad: {p} {more} }}'


def _conv(bottom: str, top: str, outputs: int, kernel: int = 3, more: str = "") -> str:
    return f'layer {{ name: "{top}" ' + CONV.format(b=bottom, t=top, n=outputs, k=kernel, p=kernel // 2, more=more) + " }\n"


def _layer(name: str, kind: str, bottoms: str, tops: str, more: str = "") -> str:
    wires = " ".join([*(f'bottom: "{each}"' for each in bottoms.split()), *(f'top: "{each}"' for each in tops.split())])
    return f'layer {{ name: "{name}" type: "{kind}" {wires} {more} }}\n'


def _input(name: str, *shape: int) -> str:
    return _layer(f"in_{name}", "Input", "", name, f"input_param {{ shape {{ dim: {list(shape)} }} }}")


SHARED = 'param { name: "w" } param { name: "c" }'
STRUCTURES = {
    "residual": _input("x", 1, 8, 12, 12) + _conv("x", "a", 8) + _layer("r", "ReLU", "a", "a") + _conv("a", "b", 8) + _layer("s", "Eltwise", "b x", "s")
    + _layer("r2", "ReLU", "s", "s") + _layer("g", "Pooling", "s", "g", "pooling_param { pool: AVE global_pooling: true }")
    + _layer("f", "InnerProduct", "g", "f", "inner_product_param { num_output: 5 }") + _layer("p", "Softmax", "f", "p"),
    "branches": _input("x", 1, 6, 14, 14) + _conv("x", "a", 4, 1) + _conv("x", "b", 6) + _conv("x", "c", 4, 5)
    + _layer("m", "Pooling", "x", "m", "pooling_param { kernel_size: 3 stride: 1 pad: 1 }") + _layer("j", "Concat", "a b c m", "j")
    + _layer("h", "Slice", "j", "h1 h2", "slice_param { slice_point: 8 }") + _conv("h1", "o", 5) + _layer("q", "TanH", "h2", "q"),
    "squeeze": _input("x", 1, 8, 10, 10) + _conv("x", "a", 8) + _layer("g", "Pooling", "a", "g", "pooling_param { pool: AVE global_pooling: true }")
    + _conv("g", "d", 4, 1) + _layer("dr", "ReLU", "d", "d") + _conv("d", "u", 8, 1) + _layer("e", "Sigmoid", "u", "e")
    + _layer("fl", "Flatten", "e", "fl") + _layer("sc", "Scale", "a fl", "sc", "scale_param { axis: 0 }") + _conv("sc", "o", 4),
    "siamese": _input("x", 1, 3, 12, 12) + _input("y", 1, 3, 12, 12) + _conv("x", "a", 6).replace(" }\n", f" {SHARED} }}\n")
    + _conv("y", "b", 6).replace(" }\n", f" {SHARED} }}\n") + _layer("d", "Eltwise", "a b", "d", "eltwise_param { operation: MAX }")
    + _layer("f", "InnerProduct", "d", "f", "inner_product_param { num_output: 7 }"),
    "upsampled": _input("x", 1, 4, 9, 9) + _conv("x", "a", 6, 3, "stride: 2") + _layer("r", "PReLU", "a", "r")
    + _layer("u", "Deconvolution", "r", "u", "convolution_param { num_output: 4 kernel_size: 4 stride: 2 pad: 1 }") + _conv("x", "l", 4, 1)
    + _layer("c", "Crop", "u l", "c", "crop_param { axis: 2 }") + _layer("s", "Sigmoid", "c", "s"),
    "unused": _input("x", 1, 8, 8, 8) + _conv("x", "a", 8) + _layer("h", "Slice", "a", "h1 h2 h3", "slice_param { axis: 1 slice_point: [2, 5] }")
    + _layer("q", "Silence", "h1", "") + _conv("h2", "o", 4) + _layer("n", "BatchNorm", "o", "o")
    + _layer("c", "Scale", "o", "o", "scale_param { bias_term: true }"),
    "sequence": _input("x", 6, 1, 5) + _input("cont", 6, 1) + _layer("l", "LSTM", "x cont", "l", "recurrent_param { num_output: 4 }")
    + _layer("f", "InnerProduct", "l", "f", "inner_product_param { num_output: 3 axis: 2 }"),
    "normed": _input("x", 1, 6, 10, 10) + _layer("l", "LRN", "x", "l", "lrn_param { local_size: 3 }") + _conv("l", "a", 6, 3, "group: 2")
    + _layer("n", "BatchNorm", "a", "n") + _layer("c", "Scale", "n", "c", "scale_param { bias_term: true }") + _layer("e", "ELU", "c", "e")
    + _conv("e", "d", 6, 3, "group: 6") + _layer("v", "MVN", "d", "v") + _layer("p", "Softmax", "v", "p"),
    "vectors": _input("x", 2, 12) + _layer("a", "InnerProduct", "x", "a", "inner_product_param { num_output: 10 }") + _layer("r", "ReLU", "a", "a")
    + _layer("b", "BatchNorm", "a", "b") + _layer("c", "Scale", "b", "c") + _layer("d", "Dropout", "c", "d")
    + _layer("e", "InnerProduct", "d", "e", "inner_product_param { num_output: 4 }") + _layer("p", "Softmax", "e", "p"),
}  # fmt: skip

# -- edits: fields ----------------------------------------------------------------------------------------------------

WINDOWS: dict[str, Sequence[Any]] = {"kernel_size": (1, 2, 3, 5), "stride": (1, 2, 3), "pad": (0, 1, 2)}
CONVOLUTION: dict[str, Sequence[Any]] = {**WINDOWS, "dilation": (1, 2), "group": (1, 2, 4, 8), "bias_term": (True, False), "num_output": (4, 8, 12, 16)}
AXES = (0, 1, 2, 3, -1, -2)
FIELDS: dict[str, dict[str, Sequence[Any]]] = {
    "Convolution": CONVOLUTION,
    "Deconvolution": CONVOLUTION,
    "ConvolutionDepthwise": CONVOLUTION,
    "Pooling": {
        **WINDOWS, "pool": ("MAX", "AVE"), "round_mode": ("CEIL", "FLOOR"), "global_pooling": (True,), "avg_include_pad": (True, False),
    },
    "InnerProduct": {"axis": AXES, "bias_term": (True, False), "transpose": (True, False), "num_output": (3, 8, 17)},
    "Eltwise": {"operation": ("PROD", "SUM", "MAX"), "coeff": ([1, -1], [0.5, 2], [1, 1]), "stable_prod_grad": (False,)},
    "Concat": {"axis": AXES, "concat_dim": (1, 2)},
    "Slice": {"axis": AXES, "slice_dim": (1, 2)},
    "Softmax": {"axis": AXES},
    "ReLU": {"negative_slope": (0.0, 0.1, 0.25)},
    "ELU": {"alpha": (0.5, 1.0)},
    "PReLU": {"channel_shared": (True, False)},
    "BatchNorm": {"eps": (1e-5, 1e-3, 0.1), "use_global_stats": (True,)},
    "Scale": {"axis": AXES, "num_axes": (-1, 0, 1, 2), "bias_term": (True, False)},
    "Bias": {"axis": AXES, "num_axes": (-1, 1, 2)},
    "LRN": {"local_size": (1, 3, 7), "norm_region": ("ACROSS_CHANNELS", "WITHIN_CHANNEL"), "alpha": (1e-4, 1.0), "beta": (0.5, 0.75), "k": (1.0, 2.0)},
    "MVN": {"normalize_variance": (True, False), "across_channels": (True, False), "eps": (1e-9, 0.1)},
    "Normalize": {"across_spatial": (True, False), "channel_shared": (True, False), "eps": (1e-10, 0.1)},
    "Flatten": {"axis": AXES, "end_axis": (1, 2, -1)},
    "Permute": {"order": ([0, 2, 3, 1], [0, 3, 1, 2], [0, 1, 3, 2], [1, 0, 2, 3], [0, 2, 1])},
    "Power": {"power": (1.0, 2.0, 0.5), "scale": (1.0, -0.5), "shift": (0.0, 3.0)},
    "Reduction": {"operation": ("SUM", "MEAN", "ASUM", "SUMSQ"), "axis": AXES, "coeff": (1.0, 0.5)},
    "ArgMax": {"axis": AXES, "top_k": (1, 2), "out_max_val": (True, False)},
    "Tile": {"axis": AXES, "tiles": (1, 2, 3)},
    "Crop": {"axis": AXES, "offset": ([0], [1], [0, 1])},
    "Dropout": {"dropout_ratio": (0.2, 0.7), "scale_train": (True, False)},
    "Exp": {"base": (-1.0, 2.0), "scale": (0.5,), "shift": (0.1,)},
    "Clip": {"min": (-1.0, 0.0), "max": (1.0, 6.0)},
    "Upsample": {"scale": (2, 3)},
    "Interp": {"zoom_factor": (1, 2), "shrink_factor": (1, 2), "height": (7,), "width": (9,)},
    "ReLU6": {"negative_slope": (0.0, 0.1)},
    "LSTM": {"num_output": (3, 6), "expose_hidden": (False,)},
    "DetectionOutput": {"confidence_threshold": (0.01, 0.3), "keep_top_k": (5, 20), "variance_encoded_in_target": (True, False)},
    "PriorBox": {"clip": (True, False), "flip": (True, False), "offset": (0.5, 0.0)},
    "ShuffleChannel": {"group": (2, 4)},
    "Reverse": {"axis": AXES},
}  # fmt: skip
PAIRS = {"kernel_size": "kernel", "stride": "stride", "pad": "pad"}


def edit_field(net: Any, shapes: Shapes, rng: random.Random) -> str:
    kind = rng.choice(sorted({each.type for each in net.layer} & set(FIELDS)))
    layer = rng.choice([each for each in net.layer if each.type == kind])
    own, names = getattr(layer, param_field(layer.type)), FIELDS[layer.type]
    name = rng.choice([each for each in names if each in own.DESCRIPTOR.fields_by_name])
    field, value = own.DESCRIPTOR.fields_by_name[name], rng.choice(names[name])
    form = rng.random()
    if name == "group" and rng.random() < 0.4:
        value = own.num_output
    if name in PAIRS and form < 0.3:
        own.ClearField(name)
        if not (field.is_repeated and form < 0.1):
            for end in "hw":
                value = rng.choice(names[name])
                setattr(own, f"{PAIRS[name]}_{end}", value)
            return f"{layer.name}: {PAIRS[name]}_h {getattr(own, PAIRS[name] + '_h')}, {PAIRS[name]}_w {value}"
        value = [value, rng.choice(names[name])]
    for end in "hw" if name in PAIRS else "":
        own.ClearField(f"{PAIRS[name]}_{end}")
    if field.is_repeated:
        own.ClearField(name)
        getattr(own, name).extend(value if isinstance(value, list) else [value])
    else:
        setattr(own, name, field.enum_type.values_by_name[value].number if field.enum_type else value)
    return f"{layer.name}: {name} {value}"


# -- edits: layers ----------------------------------------------------------------------------------------------------

ONE = [
    "ReLU", "ReLU; relu_param { negative_slope: 0.1 }", "PReLU", "ELU", "Sigmoid", "TanH", "Swish", "Mish", "HardSwish", "HardSigmoid",
    "ReLU6", "BNLL", "AbsVal",
    "Gelu", "Exp; exp_param { scale: 0.3 }", "Clip; clip_param { min: -2 max: 2 }", "Power; power_param { scale: 0.5 shift: 1 }", "Dropout", "Split",
    "Power; power_param { power: 2 }", "BatchNorm", "Scale; scale_param { bias_term: true }", "Scale; scale_param { axis: {axis} num_axes: 1 }",
    "Scale; scale_param { axis: {axis} num_axes: {count} bias_term: {flag} }", "Bias", "Bias; bias_param { axis: {axis} }", "LRN; lrn_param { local_size: 3 }",
    "Normalize; norm_param { across_spatial: {flag} channel_shared: {other} }", "MVN; mvn_param { across_channels: {flag} }", "LayerNorm", "GroupNorm",
    "Softmax; softmax_param { axis: {axis} }", "Permute; permute_param { order: {order} }", "Flatten; flatten_param { axis: {axis} }",
    "Flatten", "Reshape; reshape_param { shape { dim: [0, -1] } }", "Reshape; reshape_param { shape { dim: [0, 0, -1] } }",
    "Tile; tile_param { axis: {axis} tiles: 2 }",
    "Reshape; reshape_param { shape { dim: [0, 2, -1, {last}] } }", "Reduction; reduction_param { operation: MEAN axis: {axis} }", "Threshold",
    "Reduction; reduction_param { operation: SUM axis: 1 }", "ArgMax; argmax_param { axis: {axis} }", "Reverse; reverse_param { axis: {axis} }",
    "ShuffleChannel; shuffle_channel_param { group: 2 }", "Pooling; pooling_param { kernel_size: 2 stride: 2 }", "Log; log_param { shift: 60 scale: 0.1 }",
    "Pooling; pooling_param { pool: AVE kernel_size: 3 stride: 2 }", "Pooling; pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }",
    "Pooling; pooling_param { pool: AVE global_pooling: true }", "Upsample; upsample_param { scale: 2 }", "Interp; interp_param { zoom_factor: 2 }",
    "Deconvolution; convolution_param { num_output: 4 kernel_size: 2 stride: 2 }", "InnerProduct; inner_product_param { num_output: 6 axis: {axis} }",
    "Convolution; convolution_param { num_output: 8 kernel_size: 3 pad: 1 }",
    "Convolution; convolution_param { num_output: {c} kernel_size: 3 pad: 1 group: {c} }",
    "Deconvolution; convolution_param { num_output: {c} kernel_size: 4 stride: 2 pad: 1 group: {c} bias_term: false }", "SPP; spp_param { pyramid_height: 2 }",
    "ConvolutionDepthwise; convolution_param { num_output: {c} kernel_size: 3 pad: 1 }",
    "Pad; pad_param { pad: [0, 0, 0, 0, 1, 0, 1, 0] }", "Reorg; reorg_param { stride: 2 }",
    "Crop",
]  # fmt: skip
SEVERAL = [
    'Slice {b} {t}a {t}b; slice_param { axis: {axis} } | Concat {t}b {t}a > {t}; concat_param { axis: {axis} }',
    'Slice {b} {t}a {t}b; slice_param { axis: {axis} } | Eltwise {t}a {t}b > {t}; eltwise_param { operation: MAX }',
    'Sigmoid {b} {t}a | Eltwise {b} {t}a > {t}; eltwise_param { operation: PROD }',
    'TanH {b} {t}a | AbsVal {b} {t}b | Eltwise {t}a {t}b {b} > {t}; eltwise_param { operation: {operation} }',
    'ReLU {b} {t}a | Eltwise {b} {t}a > {t}; eltwise_param { coeff: [1, -0.5] }',
    'Pooling {b} {t}a; pooling_param { pool: AVE global_pooling: true } | Sigmoid {t}a {t}b | Scale {b} {t}b > {t}; scale_param { axis: 0 }',
    'Pooling {b} {t}a; pooling_param { pool: AVE global_pooling: true } | Flatten {t}a {t}b | Scale {b} {t}b > {t}; scale_param { axis: 0 }',
    'Pooling {b} {t}a; pooling_param { pool: AVE global_pooling: true } | '
    'Reshape {t}a {t}b; reshape_param { shape { dim: [0, 0] } } | Bias {b} {t}b > {t}; bias_param { axis: 0 }',
    'Flatten {b} {t}a | InnerProduct {t}a {t}; inner_product_param { num_output: 6 }',
    'InnerProduct {b} {t}a; inner_product_param { num_output: 5 } | InnerProduct {b} {t}b; inner_product_param { num_output: 5 } | Concat {t}a {t}b > {t}',
    'Permute {b} {t}a; permute_param { order: [0, 2, 3, 1] } | Flatten {t}a {t}',
    'Permute {b} {t}a; permute_param { order: [0, 2, 3, 1] } | '
    'Reshape {t}a {t}b; reshape_param { shape { dim: [0, -1, {c}] } } | Softmax {t}b {t}; softmax_param { axis: 2 }',
    'Convolution {b} {t}a; convolution_param { num_output: 4 kernel_size: 1 } | '
    'Convolution {b} {t}b; convolution_param { num_output: 4 kernel_size: 3 pad: 1 } | Concat {t}a {t}b > {t}',
    'Pooling {b} {t}a; pooling_param { kernel_size: 2 stride: 2 } | Upsample {t}a {t}; upsample_param { scale: 2 }',
    'Deconvolution {b} {t}a; convolution_param { num_output: 4 kernel_size: 3 } | Crop {t}a {b} > {t}; crop_param { axis: 2 offset: 1 }',
    'BatchNorm {b} {t}a | Scale {t}a {t}; scale_param { bias_term: true }',
    'Concat {b} > {t}', 'Eltwise {b} {b} > {t}', 'Slice {b} {t}a {t}; slice_param { axis: 1 slice_point: 1 } | Silence {t}a',
    'Parameter > {t}a; parameter_param { shape { dim: {shape} } } | Eltwise {b} {t}a > {t}', 'Exp {b} {t}a; exp_param { scale: 0.2 } | Concat {b} {t}a > {t}',
    'MatMul {b} {b} > {t}; matmul_param { transpose_b: true }',
]  # fmt: skip
ACTIVATIONS = ("ReLU", "PReLU", "ELU", "Sigmoid", "TanH", "Swish", "Mish", "HardSwish", "HardSigmoid", "ReLU6", "BNLL", "AbsVal", "Gelu")
SWAPS = [
    *([(one, two) for one in ACTIVATIONS for two in ACTIVATIONS if one != two]), ("Convolution", "Deconvolution"), ("Convolution", "ConvolutionDepthwise"),
    ("Eltwise", "Concat"), ("Concat", "Eltwise"), ("LRN", "Normalize"), ("LRN", "MVN"), ("BatchNorm", "MVN"), ("Scale", "Bias"),
    ("Dropout", "ReLU"), ("Softmax", "Sigmoid"),
    ("Flatten", "ReLU"), ("Pooling", "ReLU"), ("Softmax", "ArgMax"),
]  # fmt: skip


def _usual(options: Sequence[Any], rng: random.Random, kind_of: Callable[[Any], str]) -> Any:
    """Choose an option. Types that both compilers read are chosen more often."""
    chosen = rng.choice(options)
    return rng.choice(options) if kind_of(chosen) not in COMMON and rng.random() < 0.7 else chosen


def _filled(text: str, blob: str, top: str, shape: Shape, rng: random.Random) -> str:
    """Return a template with random values for its names in braces."""
    order = list(range(len(shape)))
    rng.shuffle(order)
    axis = rng.randrange(-1, len(shape)) if shape else 0
    given = {
        "b": blob, "t": top, "axis": axis, "count": rng.choice((1, 2, -1)), "flag": rng.choice(("true", "false")), "other": rng.choice(("true", "false")),
        "order": order, "last": shape[-1] if shape else 1, "c": shape[1] if len(shape) > 1 else 1, "shape": list(shape),
        "operation": rng.choice(("PROD", "SUM", "MAX")),
    }  # fmt: skip
    for name, value in given.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def insert_layers(net: Any, shapes: Shapes, rng: random.Random) -> str:
    """Add layers behind a layer. Later layers, or all of those behind it, read the new blob in its place."""
    place = rng.randrange(len(net.layer))
    while not net.layer[place].top:
        place = rng.randrange(len(net.layer))
    blob = rng.choice(list(net.layer[place].top))
    top = f"{blob}_e{len(net.layer)}"
    texts = []
    if rng.random() < 0.65:
        kind, _, more = _usual(ONE, rng, lambda text: text.partition(";")[0]).partition("; ")
        in_place = kind in (*ACTIVATIONS, "Dropout", "BatchNorm", "Scale") and rng.random() < 0.5
        top = blob if in_place else top
        wanted = [f"{kind} {blob} {top}; {more}"]
    else:
        wanted = rng.choice(SEVERAL).split(" | ")
    filled = []
    state = rng.getstate()
    for text in wanted:
        rng.setstate(state)  # the same random values in all of them
        filled.append(_filled(text, blob, top, shapes.get(blob, ()), rng))
    for number, text in enumerate(filled):
        head, _, more = text.partition("; ")
        kind, *names = head.split()
        several = ">" in names
        bottoms = names[: names.index(">")] if several else names[:1]
        tops = names[names.index(">") + 1 :] if several else names[1:]
        texts.append(_layer(f"{kind.lower()}_{len(net.layer)}_{number}", kind, " ".join(bottoms), " ".join(tops), more))
    new = list(parse("".join(texts), proto.NetParameter).layer)
    later = list(net.layer)[place + 1 :]
    if top != blob:
        for layer in later:
            layer.bottom[:] = [top if name == blob else name for name in layer.bottom]
            if any(layer.top[i : i + 1] == [blob] for i in range(len(layer.top))):  # in place: further readers see this layer's top
                layer.top[:] = [top if name == blob else name for name in layer.top]
    layers = [*list(net.layer)[: place + 1], *new, *later]
    copies = [type(layer).FromString(layer.SerializeToString()) for layer in layers]
    del net.layer[:]
    net.layer.extend(copies)
    return f"behind {blob}: " + ", ".join(text.split("bottom")[0].partition("type: ")[2].strip(' "') for text in texts) + (
        " " + " ".join(filled[0].partition("; ")[2].split()) if len(filled) == 1 else "")  # fmt: skip


def swap_type(net: Any, shapes: Shapes, rng: random.Random) -> str:
    old = {layer.type for layer in net.layer}
    before, after = _usual([pair for pair in SWAPS if pair[0] in old], rng, lambda pair: pair[1])
    layer = rng.choice([each for each in net.layer if each.type == before])
    if param_field(before) != param_field(after):
        layer.ClearField(param_field(before))
    del layer.param[:]
    layer.type = after
    return f"{layer.name}: {before} to {after}"


def change_input(net: Any, shapes: Shapes, rng: random.Random) -> str:
    layer = rng.choice([each for each in net.layer if each.type == "Input"])
    shape = rng.choice(layer.input_param.shape)
    dims, how = list(shape.dim), rng.randrange(4)
    if how == 0:
        dims[0] = rng.choice((2, 3))
    elif how == 1 and len(dims) > 2:
        dims[rng.randrange(2, len(dims))] += rng.choice((1, 2, 5))
    elif how == 2:
        dims = dims[:-1]
    else:
        dims.insert(2, rng.choice((1, 3)))
    shape.dim[:] = dims
    return f"{layer.name}: shape {' '.join(map(str, dims))}"


EDITS: list[tuple[float, Callable[[Any, Shapes, random.Random], str]]] = [(0.48, edit_field), (0.34, insert_layers), (0.12, swap_type), (0.06, change_input)]

# -- nets and their files ---------------------------------------------------------------------------------------------


def copied(net: Any) -> Any:
    return type(net).FromString(net.SerializeToString())


def shapes_of(net: Any) -> Shapes:
    """Return the shapes of the blobs. Raises Error if ocaffe does not take the net."""
    graph = build(parse(write_text(net), proto.NetParameter), proto.TEST)
    return {blob.name: tuple(blob.shape) for node in graph.nodes for blob in node.tops}


def smaller(net: Any) -> Any:
    """Return the net with a quarter of the channels and a small image, where that is a valid net."""
    weighted = ("Convolution", "InnerProduct", "Pooling", "Deconvolution", "ReLU", "BatchNorm")
    read = {name for layer in net.layer for name in layer.bottom if layer.type in weighted}
    narrow = copied(net)
    for layer in narrow.layer:
        own = getattr(layer, param_field(layer.type)) if param_field(layer.type) else None
        if layer.type in ("Convolution", "InnerProduct", "Deconvolution") and layer.top[0] in read and own.num_output >= 64 and own.num_output % 8 == 0:
            if layer.type != "InnerProduct" and own.group == own.num_output:
                own.group //= 4
            own.num_output //= 4
    best = next(each for each in (narrow, net) if _valid(each))
    for layer in best.layer:
        if layer.type == "LRN":
            layer.lrn_param.alpha = 1  # with the weights of a training it changes values as much as this
        for shape in layer.input_param.shape if layer.type == "Input" else ():
            shape.dim[0] = 1
    for side in (64, 96, 128, 160, 192, 224, 256, 300):
        small = copied(best)
        for layer in small.layer:
            for shape in layer.input_param.shape if layer.type == "Input" else ():
                if len(shape.dim) == 4 and min(shape.dim[2:]) > side:
                    shape.dim[2:] = [side, side]
        if _valid(small):
            return small
    return best


def _valid(net: Any) -> bool:
    try:
        shapes_of(net)
    except Error:
        return False
    return True


def zoo() -> dict[str, Any]:
    """Return the nets of the zoo, the large ones with fewer channels and smaller images."""
    return {path.parent.name: smaller(read_net(path)) for path in sorted(ZOO.glob("*/deploy.prototxt"))}


def edited(bases: dict[str, Any], seed: int) -> tuple[str, Any, list[str]]:
    """Return the name of a base, the net with one to four edits, and a text for each edit. Edits that ocaffe refuses are drawn again."""
    rng = random.Random(seed)
    name = rng.choice(sorted(bases))
    net = copied(bases[name])
    if len(net.layer) > MOST_LAYERS:
        del net.layer[rng.randrange(MOST_LAYERS // 2, MOST_LAYERS) :]
        last = net.layer[-1]
        if list(last.top) == list(last.bottom) and rng.random() < 0.8:
            last.top[0] += "_end"
    told: list[str] = []
    wanted = rng.randint(1, 4)
    for _ in range(200):
        if len(told) == wanted:
            break
        changed, shapes = copied(net), shapes_of(net)
        how = rng.choices([edit for _, edit in EDITS], [weight for weight, _ in EDITS])[0]
        try:
            what = how(changed, shapes, rng)
            shapes_of(changed)
        except (Error, IndexError, ValueError, TypeError, AttributeError):
            continue
        if changed != net:
            net = changed
            told.append(what)
    return name, net, told


@functools.cache
def device() -> Device:
    """Return a device whose compiler is quick."""
    info = list_devices()[0]
    quick = Quirk("each net is computed twice", options="-cl-opt-disable")
    return Device(dataclasses.replace(info, quirks=(*info.quirks, quick)))


def inputs_of(net: Any, shapes: Shapes, seed: int) -> dict[str, np.ndarray]:
    rng, result = np.random.default_rng(seed), {}
    for layer in net.layer:
        for name in layer.top if layer.type == "Input" else ():
            values = rng.standard_normal(shapes[name])
            if name == "im_info":
                values = np.array([[*shapes["data"][2:], 1.0]])
            elif name == "cont" or name.startswith("cont"):
                values = np.ones(shapes[name])
                values[0] = 0
            result[name] = values.astype(np.float32)
    return result


def _weights(net: ocaffe.Net, kinds: dict[str, str], seed: int) -> dict[str, list[np.ndarray]]:
    rng, result = np.random.default_rng(seed), {}
    for name, blobs in net.params.items():
        arrays = []
        for index, blob in enumerate(blobs):
            values = rng.standard_normal(blob.shape)
            if len(blob.shape) > 1 and min(blob.shape[1:]) >= 1 and kinds.get(name) not in ("Scale", "Bias", "BN"):
                values *= math.sqrt(2 / max(1, math.prod(blob.shape[1:])))
            elif kinds.get(name) == "BatchNorm":
                values = [values * 0.1, rng.uniform(0.5, 1.5, blob.shape), np.ones(blob.shape)][min(index, 2)]
            else:
                values = rng.uniform(0.5, 1.5, blob.shape) if index == 0 else values * 0.1
            arrays.append(np.asarray(values, np.float32))
        result[name] = arrays
    return result


def _even_out(net: ocaffe.Net, message: Any) -> None:
    """Divide the weights of products by what they amplify, so that values are neither large nor saturate a Softmax."""
    for layer in message.layer:
        if layer.type in ("Convolution", "Deconvolution", "ConvolutionDepthwise", "InnerProduct"):
            before, after = (float(np.array(net.blobs[name].data).std()) for name in (layer.bottom[0], layer.top[0]))
            if after > 2 * before > 0:
                net.params[layer.name][0].data[...] = np.array(net.params[layer.name][0].data) * (before / after)


def written(net: Any, base: Path, seed: int) -> bool:
    """Write the net, random weights, inputs and outputs beside `base`. Return whether all values are moderate numbers. BatchNorm has the input's statistics."""
    text = write_text(net)
    message = parse(text, proto.NetParameter)
    feeds = inputs_of(net, shapes_of(net), seed)
    kinds = {layer.name: layer.type for layer in net.layer}
    statistics = copied(message)
    for layer in statistics.layer:
        if layer.type == "BatchNorm":
            layer.batch_norm_param.use_global_stats = False
    with ocaffe.Net(statistics, ocaffe.TRAIN, device=device()) as first:
        arrays = _weights(first, kinds, seed)
        for name, values in arrays.items():
            for blob, array in zip(first.params[name], values):
                blob.data[...] = array
        first.forward(**feeds)
        _even_out(first, message)
        first.forward(**feeds)
        for name in arrays:
            arrays[name] = [np.array(blob.data) for blob in first.params[name]]  # layers that share a parameter have equal values
            if kinds.get(name) == "BatchNorm" and len(arrays[name]) == 3:
                factor = float(np.array(first.params[name][2].data).ravel()[0]) or 1.0
                mean, variance = (np.array(first.params[name][index].data) / factor for index in (0, 1))
                arrays[name][:2] = [mean, np.maximum(variance, 0.1)]
                arrays[name][2][...] = 1
    Path(f"{base}.prototxt").write_text(text)
    write_weights(f"{base}.caffemodel", message, arrays)
    with ocaffe.Net(f"{base}.prototxt", ocaffe.TEST, weights=f"{base}.caffemodel", device=device()) as made:
        outputs = {name: np.array(values) for name, values in made.forward(**feeds).items()}
        if not all(np.isfinite(blob.data).all() and np.abs(blob.data).max(initial=0) < LARGEST for blob in made.blobs.values()):
            return False
    np.savez(f"{base}.in.npz", **feeds)
    np.savez(f"{base}.exp.npz", **outputs)
    return bool(outputs)


def nets(seeds: range, plain: bool) -> Iterator[tuple[str, Any, list[str]]]:
    """Yield the name of each net, the net, and its edits. `plain`: whether those without edits are among them."""
    bases = zoo() | {name: parse(text, proto.NetParameter) for name, text in STRUCTURES.items()}
    for name, net in bases.items() if plain else ():
        yield name, net, []
    for seed in seeds:
        base, net, told = edited(bases, seed)
        yield f"{seed:05}_{base}", net, told
