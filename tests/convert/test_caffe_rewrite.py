"""Caffe to Caffe for deployment: nets of the zoo, random nets with norms in all places, forks' forms of layers."""
from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.convert.caffe.affine import affine_of
from ocaffe.convert.caffe.net import Net
from ocaffe.convert.caffe.products import PRODUCTS, is_product
from ocaffe.convert.caffe.rewrite import Rewritten, rewrite
from ocaffe.convert.caffe.verify import verify
from ocaffe.convert.deploy import DATA, MEASURES
from ocaffe.convert.options import Options
from ocaffe.convert.verify import random_inputs
from ocaffe.errors import Error
from ocaffe.formats.text import parse, read_net, write_text
from ocaffe.formats.upgrade import upgrade_net
from tests.convert.test_caffe_net import HEAD, layer
from tests.convert.test_convert import ROOT, random_weights
from tests.tiers import rest_is_long

pytestmark = pytest.mark.unoptimised

ZOO = sorted(path.name for path in (ROOT / "zoo").iterdir() if path.is_dir())
NORMAL = ("crnn", "mobilenet_yolov3_lite", "mtcnn_pnet", "resnet20", "ssd_shapes")  # of a second or two each
# Norms that no product alone makes or reads: before the ReLU of a pre-activation, behind the statistics of a batch, or in a transformer.
LEFT = {"densenet121": {"Scale": 62}, "segnet": {"BatchNorm": 25, "Scale": 25}, "segnet_basic": {"BatchNorm": 8, "Scale": 7},
        "vit_digits": {"Bias": 1, "Power": 4, "Scale": 1}, "vit_tiny": {"Bias": 1, "Power": 12, "Scale": 1}}


def of(text: str, **options: Any) -> Rewritten:
    message = parse(text, proto.NetParameter)
    upgraded = upgrade_net(message)
    return rewrite(upgraded, random_weights(upgraded), Options(**options))


def check(made: Rewritten, device: Any) -> None:
    found = verify(made, [random_inputs(made.graph, pixels=dict.fromkeys(made.how, 256))], device)
    assert found.share <= 1 and found.worst <= 1e-4


def types(made: Rewritten) -> list[str]:
    return [each.type for each in made.net.layers[1:]]


def foldable(net: Net) -> list[str]:
    """Return the norms behind a product that nothing else reads, and those before products without padding, found in a simple way."""
    found = []
    for norm in net.layers:
        if affine_of(net, norm) is None or norm.scale_param.num_axes > 1:
            continue
        before, readers = net.producer(norm.bottom[0]), net.readers(norm.top[0])
        if is_product(net, before) and net.is_free(norm.bottom[0]) and not any(spec.name for spec in before.param) and len(before.top) == 1:
            found.append(f"{before.name} {norm.name}")
        simple = [is_product(net, each) and each.type != "Deconvolution" and not each.param and len(each.bottom) == 1 for each in readers]
        padded = [any((*each.convolution_param.pad, each.convolution_param.pad_h, each.convolution_param.pad_w)) for each in readers]
        if readers and all(simple) and not any(padded) and norm.top[0] not in net.outputs and len(net.shapes[norm.bottom[0]]) == 4:
            found.append(f"{norm.name} {readers[0].name}")
    return found


@functools.cache
def deploy_of(name: str) -> Rewritten:
    message = upgrade_net(read_net(str(ROOT / "zoo" / name / "deploy.prototxt")))
    return rewrite(message, random_weights(message), Options(fold=True))


def inputs_of(name: str) -> Iterator[tuple[str, Any]]:
    for each in deploy_of(name).net.layers:
        if each.type == "Input":
            yield from zip(each.top, each.input_param.shape)


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in NORMAL else pytest.mark.sweep) for name in ZOO])
def test_zoo(name: str, device: Any) -> None:
    made = deploy_of(name)
    norms = Counter(each.type for each in made.net.layers if each.type in ("BN", "BatchNorm", "Bias", "Power", "Scale"))
    assert norms == LEFT.get(name, {}) and not foldable(made.net) and "Dropout" not in types(made)
    assert verify(made, [random_inputs(made.graph)], device).share <= 1


@pytest.mark.parametrize("name", rest_is_long(ZOO, 6))
def test_training_nets_become_deploy(name: str) -> None:
    """A train_val has the layers of the deploy.prototxt, and a Softmax or Sigmoid from its loss."""
    message = upgrade_net(read_net(str(ROOT / "zoo" / name / "train_val.prototxt")))
    tops = {top for each in message.layer for top in each.top}
    shapes = {top: tuple(shape.dim) for top, shape in inputs_of(name) if top in tops}
    made = rewrite(message, None, Options(fold=True, shapes=shapes, fillers=True, cut_at=["loss3/classifier"] if name == "googlenet" else ()))
    assert not set(types(made)) & {*DATA, *MEASURES, "SoftmaxWithLoss", "MultiBoxLoss", "Dropout", "Silence"}
    products = [Counter(each.type for each in layers if each.type in PRODUCTS) for layers in (made.net.layers, deploy_of(name).net.layers)]
    assert products[0] == products[1]


# -- forms of forks --------------------------------------------------------------------------------------------------

POINT = "num_output: 4 kernel_size: 1"


FORKS = {  # a layer over `data`, and the layers that it becomes
    "NVCaffe": (layer("bn", "BatchNorm", "data", "y", "batch_norm_param { scale_bias: true eps: 0.000001 }"), ["BatchNorm", "Scale"]),
    "NVCaffe in place": (layer("bn", "BatchNorm", "x", "x", "batch_norm_param { scale_bias: true }"), ["BatchNorm", "Scale"]),
    "Intel": (layer("bn", "BatchNorm", "data", "y", "batch_norm_param { use_weight_bias: true relu: true }"), ["BatchNorm", "Scale", "ReLU"]),
    "Intel without bias": (layer("bn", "BatchNorm", "data", "y", "batch_norm_param { use_weight_bias: true bias_term: false }"), ["BatchNorm", "Scale"]),
    "OpenCL": (layer("bn", "BatchNorm", "data", "y", "batch_norm_param { fused_relu: true }"), ["BatchNorm", "ReLU"]),
    "groups of samples": (
        layer("bn", "BatchNorm", "data", "y", "batch_norm_param { stats_batch_size: 1 use_global_stats: false }"), ["BatchNorm"]
    ),
    "PSPNet": (layer("bn", "BN", "data", "y", "bn_param { momentum: 0.9 eps: 0.001 }"), ["BatchNorm", "Scale"]),
    "SegNet": (layer("bn", "BN", "data", "y", "bn_param { bn_mode: INFERENCE }"), ["Scale"]),
    "SegNet's statistics": (layer("bn", "BN", "data", "y mean variance", "bn_param { bn_mode: LEARN }"), ["BN"]),
    "SegNet's batch": (layer("bn", "BN", "data", "y", "bn_param { bn_mode: LEARN }"), ["BatchNorm", "Scale"]),
    "depthwise": (layer("conv", "DepthwiseConvolution", "data", "y", "convolution_param { num_output: 3 group: 3 kernel_size: 3 }"), ["Convolution"]),
    "depthwise 2": (layer("conv", "ConvolutionDepthwise", "data", "y", "convolution_param { num_output: 1 kernel_size: 3 pad: 1 }"), ["Convolution"]),
    "Intel's ReLU": (
        layer("conv", "Convolution", "data x", "y z", f"convolution_param {{ {POINT} relu: true negative_slope: 0.1 }}"),
        ["Convolution", "ReLU", "ReLU"]
    ),
    "OpenCL's ReLU": (layer("conv", "Deconvolution", "data", "y", f"convolution_param {{ {POINT} fuse_type: FUSED_CONV_RELU }}"), ["Deconvolution", "ReLU"]),
    "ParseNet": (layer("conv", "Convolution", "data", "y", "convolution_param { num_output: 4 kernel_size: 2 filter_stride: 2 }"), ["Convolution"]),
    "TSN": (layer("conv", "Convolution", "data", "y", "convolution_param { num_output: 4 kernel_size: 2 dilation_h: 1 dilation_w: 2 }"), ["Convolution"]),
    "video-caffe": (
        layer("conv", "NdConvolution", "data", "y", "convolution_param { num_output: 4 kernel_shape { dim: 3 dim: 1 } pad_shape { dim: 1 dim: 0 } }"),
        ["Convolution"]
    ),
    "ceil_mode": (layer("pool", "Pooling", "data", "y", "pooling_param { kernel_size: 3 stride: 2 ceil_mode: false }"), ["Pooling"]),
    "pooling of volumes": (layer("pool", "PoolingND", "data", "y", "pooling_nd_param { kernel_size: 2 kernel_size: 1 pool: AVE }"), ["Pooling"]),
    "limits": (layer("scale", "Scale", "data", "y", "scale_param { min_value: 0.8 max_value: 1.2 }"), ["Scale"]),
    "Fast R-CNN": (layer("drop", "Dropout", "data", "y", "dropout_param { scale_train: false }"), ["Power"]),
    "Concat": (layer("join", "Concat", "data x", "y", "concat_param { concat_dim: 1 }"), ["Concat"]),
}  # fmt: skip


@pytest.mark.parametrize("name", FORKS)
def test_forms_of_forks(name: str, device: Any) -> None:
    text, wanted = FORKS[name]
    made = of(HEAD + layer("x", "TanH", "data", "x") + text)
    assert [kind for kind in types(made) if kind != "TanH"] == wanted
    check(made, device)
    if wanted != ["BN"] and "groups" not in name:
        assert not OF_FORKS.findall(write_text(made.net.message()))


OF_FORKS = re.compile(r"scale_bias|fused_relu|use_weight_bias|filter_stride|dilation_[hw]|_shape|ceil_mode|_3d|min_value|scale_train|fuse_type|relu:|bn_param")


def test_version_0() -> None:
    text = """
    name: "old" input: "data" input_dim: 1 input_dim: 3 input_dim: 8 input_dim: 8
    layers { layer { name: "pad" type: "padding" pad: 1 } bottom: "data" top: "padded" }
    layers { layer { name: "conv" type: "conv" num_output: 4 kernelsize: 3 stride: 1 } bottom: "padded" top: "conv" }
    layers { layer { name: "relu" type: "relu" } bottom: "conv" top: "conv" }
    layers { layer { name: "drop" type: "dropout" dropout_ratio: 0.5 } bottom: "conv" top: "conv" }
    layers { layer { name: "loss" type: "softmax_loss" } bottom: "conv" bottom: "label" top: "loss" }
    """
    made = rewrite(upgrade_net(parse(text, proto.NetParameter)), None, Options(fillers=True))
    assert types(made) == ["Convolution", "ReLU"] and made.net.layers[1].convolution_param.pad == [1]
    assert [list(each.top) for each in made.net.message().layer] == [["data"], ["conv"], ["conv"]]


def test_what_only_a_training_reads_is_left_out() -> None:
    fields = 'weight_filler { type: "xavier" } bias_filler { value: 1 } engine: CUDNN'
    params = 'param { lr_mult: 1 } param { name: "b" lr_mult: 2 decay_mult: 0 } propagate_down: false'
    text = HEAD + layer("conv", "Convolution", "data", "y", f"convolution_param {{ {POINT} {fields} }} {params} include {{ phase: TEST }}")
    (conv,) = of(text).net.message().layer[1:]
    kept = layer("conv", "Convolution", "data", "y", 'param {} param { name: "b" } convolution_param { num_output: 4 kernel_size: 1 }')
    assert write_text(conv) == write_text(parse(kept, proto.NetParameter).layer[0])


# -- layers that change nothing --------------------------------------------------------------------------------------

IDLE = {
    "Dropout": layer("idle", "Dropout", "x", "y"),
    "in place": layer("idle", "Dropout", "x", "x"),
    "Split": layer("idle", "Split", "x", "y z") + layer("other", "TanH", "z", "other"),
    "Power": layer("idle", "Power", "x", "y", "power_param { power: 1 scale: 1 shift: 0 }"),
    "Reshape": layer("idle", "Reshape", "x", "y", "reshape_param { shape { dim: 0 dim: -1 dim: 4 dim: 4 } }"),
    "Flatten": layer("idle", "Flatten", "x", "y", "flatten_param { axis: 1 end_axis: 1 }"),
    "Concat": layer("idle", "Concat", "x", "y"),
    "Slice": layer("idle", "Slice", "x", "y"),
    "Eltwise": layer("idle", "Eltwise", "x", "y", "eltwise_param { coeff: 1 }"),
    "Crop": layer("idle", "Crop", "x data", "y"),
    "Permute": layer("idle", "Permute", "x", "y", "permute_param { order: 0 order: 1 order: 2 order: 3 }"),
    "Tile": layer("idle", "Tile", "x", "y", "tile_param { tiles: 1 }"),
    "Pooling": layer("idle", "Pooling", "x", "y", "pooling_param { kernel_size: 1 }"),
    "Interp": layer("idle", "Interp", "x", "y", "interp_param { zoom_factor: 1 }"),
    "Upsample": layer("idle", "Upsample", "x", "y", "upsample_param { scale: 1 }"),
}


@pytest.mark.parametrize("name", IDLE)
def test_idle_layers_are_removed(name: str, device: Any) -> None:
    end = "x" if name == "in place" else "y"
    made = of(HEAD + layer("x", "TanH", "data", "x") + IDLE[name] + layer("end", "ReLU", end, "end"))
    assert "idle" not in [each.name for each in made.net.layers] and "end" in made.net.outputs
    check(made, device)


def test_layers_that_do_something_stay(device: Any) -> None:
    text = HEAD + layer("x", "Eltwise", "data", "x", "eltwise_param { coeff: 2 }")
    text += layer("y", "Reshape", "x", "y", "reshape_param { shape { dim: 0 dim: -1 } }")
    made = of(text + layer("z", "Pooling", "x", "z", "pooling_param { kernel_size: 1 stride: 2 }") + layer("w", "Dropout", "data", "w"))
    assert [each.name for each in made.net.layers] == ["data", "x", "y", "z", "w"]
    check(made, device)


# -- sharing, outputs, verification ----------------------------------------------------------------------------------

SHARED = 'param { name: "w" } param { name: "b" }'
TWO = HEAD + layer("y", "TanH", "data", "y") + layer("a", "Convolution", "data", "a", f"convolution_param {{ {POINT} }} {SHARED}")
TWO += layer("b", "Convolution", "y", "b", f"convolution_param {{ {POINT} }} {SHARED}")
NORM = 'param { name: "m" } param { name: "v" } param { name: "c" }'


@pytest.mark.parametrize(
    ("text", "norms"),
    [
        (layer("na", "BatchNorm", "a", "na", NORM) + layer("nb", "BatchNorm", "b", "b", NORM), 0),
        (layer("na", "BatchNorm", "a", "na") + layer("nb", "BatchNorm", "b", "nb"), 2),
        (layer("na", "BatchNorm", "a", "na", NORM), 1),
        (layer("na", "Power", "a", "na", "power_param { scale: 2 }") + layer("nb", "Power", "b", "nb", "power_param { scale: 2 shift: 1 }"), 2),
        (layer("na", "Power", "a", "na", "power_param { scale: 2 }") + layer("nb", "Power", "b", "nb", "power_param { scale: 2 }"), 0),
    ],
    ids=["alike", "different", "one", "other bias", "powers"],
)
def test_shared_weights_are_folded_alike_or_not(text: str, norms: int, device: Any) -> None:
    made = of(TWO + text, fold=True)
    assert len([kind for kind in types(made) if kind in ("BatchNorm", "Power")]) == norms
    check(made, device)
    found = made.net.weights()
    assert all(np.array_equal(one, two) for one, two in zip(found["a"], found["b"]))


def test_weights_of_other_shapes_stay_shared(device: Any) -> None:
    """share_mode: PERMISSIVE gives layers one blob in two shapes."""
    text = HEAD + layer("a", "InnerProduct", "data", "a", 'inner_product_param { num_output: 4 bias_term: false } param { name: "w" lr_mult: 2 }')
    text += layer("b", "Convolution", "data", "b", '''convolution_param { num_output: 4 kernel_size: 4 bias_term: false }
                  param { name: "w" share_mode: PERMISSIVE lr_mult: 2 }''')
    message = parse(text, proto.NetParameter)
    made = rewrite(message, None, Options(fold=True, fillers=True))
    check(made, device)
    assert [[str(spec).split() for spec in each.param] for each in made.net.layers[1:]] == [[["name:", '"w"']], [["name:", '"w"', "share_mode:", "PERMISSIVE"]]]


def test_value_with_another_reader_keeps_its_numbers(device: Any) -> None:
    conv = layer("conv", "Convolution", "data", "conv", f"convolution_param {{ {POINT} }}") + layer("bn", "BatchNorm", "conv", "bn")
    made = of(HEAD + conv + layer("sum", "Eltwise", "conv bn", "sum"), fold=True)
    assert types(made) == ["Convolution", "BatchNorm", "Eltwise"]
    made = of(HEAD + conv + layer("tanh", "TanH", "bn", "end"), fold=True, cut_at=["conv", "end"])
    assert types(made) == ["Convolution", "BatchNorm", "TanH", "Split"] and made.net.outputs == ["conv", "end"]
    check(made, device)


def test_outputs_are_what_no_layer_reads() -> None:
    """In Caffe these blobs are the outputs. A layer that changes nothing may be what makes one."""
    text = HEAD + layer("x", "TanH", "data", "x") + layer("y", "ReLU", "x", "y")
    for more, options, wanted in (("", {"cut_at": ["x", "y"]}, ["y", "x"]), (layer("drop", "Dropout", "x", "z"), {}, ["y", "z"])):
        made = of(text + more, **options)
        layers = made.net.message().layer
        assert [top for each in layers for top in each.top if not any(top in other.bottom for other in layers)] == wanted


@pytest.mark.parametrize(("field", "kinds"), [("", ["Convolution"]), ("pad: 1", ["Bias", "Convolution"]), ("pad: 1 ", ["Scale", "Convolution"])])
def test_shift_before_padding_stays(field: str, kinds: list[str], device: Any) -> None:
    norm = layer("norm", "Bias" if kinds[0] == "Bias" else "Scale", "data", "norm", "scale_param { bias_term: true }" if field == "pad: 1 " else "")
    made = of(HEAD + norm + layer("conv", "Convolution", "norm", "conv", f"convolution_param {{ num_output: 4 kernel_size: 3 {field} }}"), fold=True)
    assert types(made) == kinds
    check(made, device)


def test_scale_without_shift_folds_before_padding(device: Any) -> None:
    conv = layer("conv", "Convolution", "s", "y", "convolution_param { num_output: 4 kernel_size: 3 pad: 1 }")
    made = of(HEAD + layer("s", "Scale", "data", "s") + conv, fold=True)
    assert types(made) == ["Convolution"]
    check(made, device)


@pytest.mark.parametrize("part", [0, 1])
def test_wrong_weights_are_found(part: int, device: Any) -> None:
    conv = layer("conv", "Convolution", "data", "conv", f"convolution_param {{ {POINT} }}") + layer("bn", "BatchNorm", "conv", "conv")
    made = of(HEAD + conv + layer("relu", "ReLU", "conv", "conv"), fold=True)
    made.net.arrays["conv"][part] = made.net.arrays["conv"][part] * np.float32((1 + 1e-4, 1.01)[part])
    with pytest.raises(Error, match=r"the first value that differs is 'conv.bn', by .* of its largest magnitude; rounding explains at most") as caught:
        verify(made, [random_inputs(made.graph)], device)
    assert caught.value.layer == "'bn' (BatchNorm)"


def test_wrong_folding_is_found(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocaffe.convert.caffe.products._is_even", lambda layer, made: True)
    text = HEAD + layer("s", "Bias", "data", "s") + layer("conv", "Convolution", "s", "y", "convolution_param { num_output: 4 kernel_size: 3 pad: 1 }")
    with pytest.raises(Error, match="the first value that differs is 'y'"):
        check(of(text, fold=True), device)
