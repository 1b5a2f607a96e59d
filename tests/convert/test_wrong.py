"""Wrong conversions, planted in right ones, are refused, and right ones are not. A mistake is one change of the imported net or of the exported model."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest

from ocaffe import log, proto
from ocaffe.convert.export import Options, export
from ocaffe.convert.import_model import to_caffe
from ocaffe.convert.import_verify import comparable
from ocaffe.convert.verify import Undecided, opened, random_inputs, verify
from ocaffe.errors import Error
from ocaffe.formats.text import parse
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.formats.weights import LayerWeights, Weights
from ocaffe.graph.build import build

pytestmark = pytest.mark.unoptimised

Blobs = dict[str, list[np.ndarray]]
Change = Callable[[Any, Blobs], None]  # of the layer named, or of the node and the initializers


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


WEIGHTS: dict[str, np.ndarray] = {
    "w": draw(4, 4, 3, 3), "g": draw(4, 2, 3, 3), "k": draw(4), "s": 1 + np.abs(draw(4)), "m": draw(4) / 2, "v": 0.5 + draw(4) ** 2, "t": draw(4, 4, 2, 2),
    "q": draw(6, 6), "e": 1 + draw(6) ** 2, "f": draw(6), "p": np.abs(draw(4, 1, 1)), "c": np.float32(2.5), "lo": np.float32(-0.5), "hi": np.float32(0.5),
    "one": np.array([1], np.int64), "three": np.array([3], np.int64), "last": np.array([3], np.int64), "up": np.array([1, 1, 2, 2], np.float32),
    "rows": np.array([2, 24, 6], np.int64), "same": np.array([2, 4, 6, 6], np.int64), "halves": np.array([2, 2, 2, 6, 6], np.int64),
}  # fmt: skip
TEXTS = {
    "conv": "y = Conv<strides=[2, 2], pads=[1, 1, 1, 1]>(x, w, k)", "groups": "y = Conv<group=2>(x, g, k)", "norm": "y = BatchNormalization(x, s, k, m, v)",
    "square": "y = MatMul(x, q)", "line": "a = Reshape(x, rows) b = MatMul(a, q) y = Add(b, f)", "layer": "y = LayerNormalization<axis=-1>(x, e, f)",
    "concat": "a = Relu(x) b = Neg(x) y = Concat<axis=1>(a, b)", "slice": "y = Slice(x, one, three, last)", "leaky": "y = LeakyRelu<alpha=0.1>(x)",
    "elu": "y = Elu<alpha=0.7>(x)", "prelu": "y = PRelu(x, p)", "softmax": "y = Softmax<axis=1>(x)", "mean": "y = ReduceMean<axes=[1]>(x)",
    "average": "y = AveragePool<kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1>(x)", "max": "y = MaxPool<kernel_shape=[3, 3], strides=[2, 2]>(x)",
    "deconv": "y = ConvTranspose<strides=[2, 2], kernel_shape=[2, 2]>(x, t, k)", "permute": "y = Transpose<perm=[0, 1, 3, 2]>(x)",
    "clip": "y = Clip(x, lo, hi)", "scaled": "y = Mul(x, c)", "sub": "a = Mul(x, c) y = Sub(a, x)", "lrn": "y = LRN<size=3, alpha=0.3, beta=0.75, bias=1.0>(x)",
    "shuffle": "a = Reshape(x, halves) b = Transpose<perm=[0, 2, 1, 3, 4]>(a) y = Reshape(b, same)", "swish": "a = Sigmoid(x) y = Mul(x, a)",
    "resize": "y = Resize<mode=\"nearest\", coordinate_transformation_mode=\"asymmetric\", nearest_mode=\"floor\">(x, , up)",
    "saturated": "a = Mul(x, c) b = Mul(a, c) d = Mul(b, c) z = Mul(d, c) y = Sigmoid(z)", "dilated": "y = Conv<dilations=[2, 2]>(x, w)",
    "instance": "y = InstanceNormalization(x, s, k)", "power": "a = Abs(x) y = Pow(a, c)", "hard": "y = HardSigmoid<alpha=0.2, beta=0.5>(x)",
}  # fmt: skip


class Plant(NamedTuple):
    """`text` names the model. The change gets the first layer of type `layer` and its blobs. `first` is the blob that differs."""

    text: str
    layer: str
    change: Change
    first: str = "y"


def blob(index: int, how: Callable[[np.ndarray], np.ndarray]) -> Change:
    def change(layer: Any, blobs: Blobs) -> None:
        blobs[layer.name][index] = np.ascontiguousarray(how(blobs[layer.name][index]))

    return change


def field(path: str, value: Any) -> Change:
    """Set a field of the layer's parameter message: a number, or a list for a repeated field."""

    def change(layer: Any, blobs: Blobs) -> None:
        *outer, name = path.split(".")
        message = layer
        for part in outer:
            message = getattr(message, part)
        if isinstance(value, list):
            getattr(message, name)[:] = value
        else:
            setattr(message, name, value)

    return change


def swapped(one: int, two: int) -> Change:
    def change(layer: Any, blobs: Blobs) -> None:
        own = blobs[layer.name]
        own[one], own[two] = own[two], own[one]

    return change


def reversed_bottoms(layer: Any, blobs: Blobs) -> None:
    layer.bottom[:] = list(layer.bottom)[::-1]


def kind(name: str) -> Change:
    return lambda layer, blobs: setattr(layer, "type", name)


def exchanged(x: np.ndarray) -> np.ndarray:
    """Exchange the first two output channels."""
    return x[[1, 0, *range(2, len(x))]]


PLANTS: dict[str, Plant] = {
    "pad": Plant("conv", "Convolution", field("convolution_param.pad", [0, 1])),
    "stride of one axis": Plant("conv", "Convolution", field("convolution_param.stride", [1, 2])),
    "phase of the stride": Plant("conv", "Convolution", blob(0, lambda w: np.roll(w, 1, 3))),
    "output channels swapped": Plant("conv", "Convolution", blob(0, exchanged)),
    "input channels swapped": Plant("conv", "Convolution", blob(0, lambda w: w[:, [1, 0, 2, 3]])),
    "weights transposed": Plant("conv", "Convolution", blob(0, lambda w: w.transpose(1, 0, 2, 3))),
    "kernel flipped": Plant("conv", "Convolution", blob(0, lambda w: w[..., ::-1, ::-1])),
    "kernel transposed": Plant("conv", "Convolution", blob(0, lambda w: w.swapaxes(2, 3))),
    "bias dropped": Plant("conv", "Convolution", blob(1, np.zeros_like)),
    "one bias wrong by 1e-3": Plant("conv", "Convolution", blob(1, lambda k: k + np.float32([0, 0, 1e-3, 0]))),
    "weights in half precision": Plant("conv", "Convolution", blob(0, lambda w: w.astype(np.float16).astype(np.float32))),
    "order of groups": Plant("groups", "Convolution", blob(0, lambda w: w[[2, 3, 0, 1]])),
    "order within groups": Plant("groups", "Convolution", blob(0, lambda w: w[:, ::-1])),
    "dilation": Plant("dilated", "Convolution", blob(0, lambda w: w * np.float32([[1, 1, 0]]))),
    "deconvolution transposed": Plant("deconv", "Deconvolution", blob(0, lambda w: w.transpose(1, 0, 2, 3))),
    "deconvolution flipped": Plant("deconv", "Deconvolution", blob(0, lambda w: w[..., ::-1, ::-1])),
    "epsilon by 100": Plant("norm", "BatchNorm", field("batch_norm_param.eps", 1e-3)),
    "epsilon by a half": Plant("norm", "BatchNorm", field("batch_norm_param.eps", 1.5e-5)),
    "mean and variance swapped": Plant("norm", "BatchNorm", swapped(0, 1)),
    "gamma and beta swapped": Plant("norm", "Scale", swapped(0, 1)),
    "gamma of another channel": Plant("norm", "Scale", blob(0, exchanged)),
    "beta dropped": Plant("norm", "Scale", blob(1, np.zeros_like)),
    "factor of the statistics": Plant("norm", "BatchNorm", blob(2, lambda s: s * np.float32(0.999))),
    "epsilon of a layer norm": Plant("layer", "LayerNorm", field("layer_norm_param.eps", 1e-3)),
    "gamma of a layer norm reversed": Plant("layer", "Scale", blob(0, lambda s: s[::-1])),
    "square matrix transposed": Plant("square", "InnerProduct", blob(0, np.transpose)),
    "row of bias reversed": Plant("line", "InnerProduct", blob(1, lambda k: k[::-1])),
    "order of the concatenation": Plant("concat", "Concat", reversed_bottoms),
    "axis of the concatenation": Plant("concat", "Concat", field("concat_param.axis", 2)),
    "slice off by one": Plant("slice", "Slice", field("slice_param.slice_point", [2, 4])),
    "slope": Plant("leaky", "ReLU", field("relu_param.negative_slope", 0.01)),
    "alpha of ELU": Plant("elu", "ELU", field("elu_param.alpha", 1.0)),
    "slopes reversed": Plant("prelu", "PReLU", blob(0, lambda s: s[::-1])),
    "axis of softmax": Plant("softmax", "Softmax", field("softmax_param.axis", 2)),
    "mean instead of sum": Plant("mean", "Reduction", field("reduction_param.operation", 1)),
    "mean over pads": Plant("average", "Pooling", field("pooling_param.pool", 0)),
    "window of the maximum": Plant("max", "Pooling", field("pooling_param.kernel_size", 2)),
    "no permutation": Plant("permute", "Permute", field("permute_param.order", [0, 1, 2, 3])),
    "bound": Plant("clip", "Clip", field("clip_param.max", 0.6)),
    "missing scale": Plant("scaled", "Power", field("power_param.scale", 1.0)),
    "scale by 1e-5": Plant("scaled", "Power", field("power_param.scale", 2.5 * (1 + 1e-5))),
    "sum instead of difference": Plant("sub", "Eltwise", field("eltwise_param.coeff", [1.0, 1.0])),
    "alpha of LRN": Plant("lrn", "LRN", field("lrn_param.alpha", 0.1)),
    "order of the shuffle": Plant("shuffle", "ShuffleChannel", field("shuffle_channel_param.group", 1)),
    "beta of Swish": Plant("swish", "Swish", field("swish_param.beta", 1.01)),
    "before saturation": Plant("saturated", "Power", field("power_param.scale", 2.51), "a"),
    "exponent": Plant("power", "Power", field("power_param.power", 2.49)),
}


def model_of(text: str) -> Any:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> net (float[2, 4, 6, 6] x) => (float[n, c, h, w] y) {{ {TEXTS[text]} }}')
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in WEIGHTS.items() if name in used)
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def check(model: Any, net: Any, blobs: Blobs, device: Any) -> None:
    both = comparable(model, net, blobs, shapes={}, outputs=[])
    verify(both, [random_inputs(both.graph)], device)


@pytest.mark.parametrize("name", TEXTS)
def test_right_imports_are_accepted(name: str, device: Any) -> None:
    log.quiet()
    model = model_of(name)
    check(model, *to_caffe(model, name), device)


@pytest.mark.parametrize("name", PLANTS)
def test_wrong_imports_are_refused(name: str, device: Any) -> None:
    log.quiet()
    plant = PLANTS[name]
    model = model_of(plant.text)
    net, blobs = to_caffe(model, name)
    plant.change(next(layer for layer in net.layer if layer.type == plant.layer), blobs)
    with pytest.raises(Error, match=f"the first blob that differs is '{plant.first}'"):
        check(model, net, blobs, device)


# -- exports ---------------------------------------------------------------------------------------------------------

LAYERS = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 4 dim: 9 dim: 9 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4 kernel_size: 3 pad: 1 stride: 2 group: 2 } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "bn" }
layer { name: "scale" type: "Scale" bottom: "bn" top: "scale" scale_param { bias_term: true } }
layer { name: "leaky" type: "ReLU" bottom: "scale" top: "leaky" relu_param { negative_slope: 0.1 } }
layer { name: "average" type: "Pooling" bottom: "leaky" top: "average" pooling_param { pool: AVE kernel_size: 3 stride: 1 pad: 1 } }
layer { name: "up" type: "Deconvolution" bottom: "leaky" top: "up" convolution_param { num_output: 4 kernel_size: 2 stride: 2 } }
layer { name: "both" type: "Concat" bottom: "average" bottom: "leaky" top: "both" }
layer { name: "lrn" type: "LRN" bottom: "both" top: "lrn" lrn_param { local_size: 3 alpha: 0.3 } }
layer { name: "fc" type: "InnerProduct" bottom: "lrn" top: "fc" inner_product_param { num_output: 8 } }
layer { name: "square" type: "InnerProduct" bottom: "fc" top: "square" inner_product_param { num_output: 8 } }
layer { name: "prob" type: "Softmax" bottom: "square" top: "prob" }
"""

Mutation = Callable[[onnx.NodeProto, dict[str, onnx.TensorProto]], None]


def attribute(name: str, value: Any) -> Mutation:
    def change(node: onnx.NodeProto, weights: dict[str, onnx.TensorProto]) -> None:
        kept = [own for own in node.attribute if own.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])

    return change


def tensor(index: int, how: Callable[[np.ndarray], np.ndarray]) -> Mutation:
    """Change the weights that the node reads as input `index`."""

    def change(node: onnx.NodeProto, weights: dict[str, onnx.TensorProto]) -> None:
        own = weights[node.input[index]]
        own.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(how(onnx.numpy_helper.to_array(own))), own.name))

    return change


def inputs_exchanged(one: int, two: int) -> Mutation:
    def change(node: onnx.NodeProto, weights: dict[str, onnx.TensorProto]) -> None:
        node.input[one], node.input[two] = node.input[two], node.input[one]

    return change


def kind_of(name: str) -> Mutation:
    return lambda node, weights: setattr(node, "op_type", name)


# Name of the mistake: the layer, the operator of its node, the mistake, and the first blob that differs.
MUTATIONS: dict[str, tuple[str, str, Mutation, str]] = {
    "pads shifted": ("conv", "Conv", attribute("pads", [0, 0, 2, 2]), "conv"),
    "order of groups": ("conv", "Conv", tensor(1, lambda w: w[[2, 3, 0, 1]]), "conv"),
    "kernel flipped": ("conv", "Conv", tensor(1, lambda w: w[..., ::-1]), "conv"),
    "bias dropped": ("conv", "Conv", lambda node, weights: node.input.pop() and None, "conv"),
    "slope": ("leaky", "LeakyRelu", attribute("alpha", 0.11), "leaky"),
    "rectifier": ("leaky", "LeakyRelu", kind_of("Elu"), "leaky"),
    "deconvolution transposed": ("up", "ConvTranspose", tensor(1, lambda w: w.transpose(1, 0, 2, 3)), "up"),
    "order of the concatenation": ("both", "Concat", inputs_exchanged(0, 1), "both"),
    "alpha of LRN": ("lrn", "LRN", attribute("alpha", 0.1), "lrn"),
    "beta of LRN": ("lrn", "LRN", attribute("beta", 0.74), "lrn"),
    "no transposition": ("square", "Gemm", attribute("transB", 0), "square"),
    "rows swapped": ("fc", "Gemm", tensor(1, exchanged), "fc"),
    "axis of softmax": ("prob", "Softmax", attribute("axis", 0), "prob"),
}


def exported() -> Any:
    """Return an exported model with drawn weights."""
    net = upgrade_net(parse(LAYERS, proto.NetParameter))
    weights = [LayerWeights(node.name, blobs=[0.5 + np.abs(draw(*blob.shape)) if node.type == "BatchNorm" else draw(*blob.shape) for blob in node.params])
               for node in build(net, proto.TEST).nodes if node.params]  # fmt: skip
    return export(net, Weights("", weights, "drawn"), Options())


def test_a_right_export_is_accepted(device: Any) -> None:
    made = exported()
    assert 0 < verify(made, [random_inputs(made.graph)], device).share <= 1


def test_an_open_net_gets_the_weights(device: Any) -> None:
    made = exported()
    zeros = {parameter: np.zeros_like(array) for parameter, array in made.weights.items()}
    with opened(replace(made, weights=zeros), device, None) as net:
        net.forward()
        verify(made, [random_inputs(made.graph)], device, net=net)


@pytest.mark.parametrize("name", MUTATIONS)
def test_wrong_exports_are_refused(name: str, device: Any) -> None:
    layer, operator, change, first = MUTATIONS[name]
    made = exported()
    node = next(node for node in made.model.graph.node if f"layer '{layer}'" in node.doc_string and node.op_type == operator)
    change(node, {tensor.name: tensor for tensor in made.model.graph.initializer})
    with pytest.raises(Error, match=f"the first blob that differs is '{first}'"):
        verify(made, [random_inputs(made.graph)], device)


NEAR = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 100 } } }
layer { name: "half" type: "Threshold" bottom: "data" top: "half" threshold_param { threshold: 0.5 } }
"""


@pytest.mark.parametrize(("threshold", "kind", "words"), [(0.50000012, Undecided, "cannot be compared"), (0.51, Error, "first blob that differs is 'half'")])
def test_a_choice_that_depends_on_rounding(threshold: float, kind: type[Error], words: str, device: Any) -> None:
    """Another result is a mistake of the model, unless rounding errors change it too: runtimes round differently before they compare with a threshold."""
    made = export(upgrade_net(parse(NEAR, proto.NetParameter)), None, Options())
    (constant,) = (tensor for tensor in made.model.graph.initializer if onnx.numpy_helper.to_array(tensor).size == 1)
    constant.CopyFrom(onnx.numpy_helper.from_array(np.full(constant.dims, threshold, np.float32), constant.name))
    value = np.float32(0.5 + min(threshold - 0.5, 0.005) / 2 + 2e-8)
    assert 0.5 < value <= np.float32(threshold)
    with pytest.raises(Error, match=words) as problem:
        verify(made, [{"data": np.full((1, 100), value)}], device)
    assert type(problem.value) is kind
