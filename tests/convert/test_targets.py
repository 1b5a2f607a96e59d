"""Nets of targets: the rules give the same numbers with the target's layers alone. A layer that cannot be expressed is refused with its place."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocaffe
from ocaffe import proto
from ocaffe.convert.caffe.net import net_of
from ocaffe.convert.targets import rules  # noqa: F401 (they register themselves)
from ocaffe.convert.targets.rewriter import Refused
from ocaffe.convert.targets.rules.retarget import Retargeted, retarget
from ocaffe.convert.targets.table import names, read_table
from ocaffe.convert.targets.view import View
from ocaffe.errors import Error
from ocaffe.formats.text import parse, write_text
from ocaffe.formats.weights import write_weights
from ocaffe.graph.build import build

pytestmark = pytest.mark.unoptimised

IMAGE = (2, 6, 7, 8)
Shapes = tuple[tuple[int, ...], ...]
BVLC = read_table("bvlc")


def layer(kind: str, more: str = "", bottoms: str = "x0", tops: str = "y", name: str = "l") -> str:
    ends = " ".join([*(f'bottom: "{each}"' for each in bottoms.split()), *(f'top: "{each}"' for each in tops.split())])
    return f'layer {{ name: "{name}" type: "{kind}" {ends} {more} }}\n'


def source(text: str, *shapes: tuple[int, ...]) -> Any:
    head = ""
    for number, shape in enumerate(shapes or (IMAGE,)):
        dims = " ".join(f"dim: {size}" for size in shape)
        head += f'layer {{ name: "x{number}" type: "Input" top: "x{number}" input_param {{ shape {{ {dims} }} }} }}\n'
    return parse(head + text, proto.NetParameter)


def weights_of(message: Any) -> dict[str, list[np.ndarray]]:
    rng = np.random.default_rng(0)
    graph = build(message, proto.TEST)
    return {node.name: [rng.uniform(0.2, 1, each.shape).astype(np.float32) for each in node.params] for node in graph.nodes if node.params}


def outputs_of(message: Any) -> list[str]:
    ends = dict[str, None]()
    for each in message.layer:
        ends = {name: None for name in ends if name not in each.bottom} | dict.fromkeys(each.top)
    return list(ends)


def run(folder: Path, name: str, message: Any, arrays: dict[str, list[np.ndarray]], feeds: dict[str, np.ndarray], device: Any) -> dict[str, np.ndarray]:
    (folder / f"{name}.prototxt").write_text(write_text(message))
    write_weights(folder / f"{name}.caffemodel", message, arrays)
    net = ocaffe.Net(str(folder / f"{name}.prototxt"), ocaffe.TEST, weights=str(folder / f"{name}.caffemodel"), device=device)
    for key, values in feeds.items():
        net.blobs[key].reshape(*values.shape)
    result = {key: np.array(values) for key, values in net.forward(**feeds).items()}
    net.close()
    return result


def foreign(made: Retargeted, target: str) -> list[str]:
    graph = build(made.net.message(), proto.TEST)
    own = {each.name: each for each in made.net.layers}
    return [
        f"{node.name}: {fault.fact}" for node in graph.nodes if node.name in own
        for fault in read_table(target).faults(own[node.name], [blob.shape for blob in node.bottoms], [blob.shape for blob in node.tops])
    ]  # fmt: skip


def check(folder: Path, message: Any, target: str, device: Any, tolerance: float = 2e-6, batch: int = 3) -> Retargeted:
    """Rewrite a net and compare it with the source, at its batch and at another one."""
    arrays, ends = weights_of(message), outputs_of(message)
    inputs = [each for each in message.layer if each.type == "Input"]
    axes = [each.top[0] for each in inputs]
    made = retarget(net_of(message, arrays, ends), read_table(target), "net.prototxt", axes)
    assert foreign(made, target) == []
    for size in {message.layer[0].input_param.shape[0].dim[0], batch if not made.fixed else message.layer[0].input_param.shape[0].dim[0]}:
        rng = np.random.default_rng(1)
        feeds = {each.top[0]: rng.uniform(-4, 4, (size, *each.input_param.shape[0].dim[1:])).astype(np.float32) for each in inputs}
        expected = run(folder, "source", message, arrays, feeds, device)
        actual = run(folder, "made", made.net.message(), made.net.weights(), feeds, device)
        assert set(actual) == set(ends)
        for name in ends:
            assert actual[name].shape == expected[name].shape
            assert np.abs(actual[name] - expected[name]).max() <= tolerance * max(1e-3, np.abs(expected[name]).max()), name
    return made


CONV = "convolution_param { num_output: 4 kernel_size: 3 }"
IP = "inner_product_param { num_output: 5 }"
NETS: dict[str, tuple[str, Shapes]] = {
    "swish": (layer("Swish", "swish_param { beta: 1.5 }"), (IMAGE,)),
    "hard swish": (layer("HardSwish"), (IMAGE,)),
    "hard sigmoid": (layer("HardSigmoid", "hard_sigmoid_param { alpha: 0.3 beta: 0.4 }"), (IMAGE,)),
    "relu6": (layer("ReLU6"), (IMAGE,)),
    "leaky relu6": (layer("ReLU6", "relu_param { negative_slope: 0.1 }"), (IMAGE,)),
    "clip": (layer("Clip", "clip_param { min: -1 max: 2.5 }"), (IMAGE,)),
    "clip above": (layer("Clip", "clip_param { min: -3.4028235e38 max: 2.5 }"), (IMAGE,)),
    "clip below": (layer("Clip", "clip_param { min: -1 max: 3.4028235e38 }"), (IMAGE,)),
    "brelu": (layer("BReLU", "brelu_param { minval: -1 maxval: 1 }"), (IMAGE,)),
    "mish": (layer("Mish"), (IMAGE,)),
    "gelu": (layer("Gelu"), (IMAGE,)),
    "tanh gelu": (layer("Gelu", "gelu_param { approximate: true }"), (IMAGE,)),
    "elu": (layer("ELU", "elu_param { alpha: 0.7 }"), (IMAGE,)),
    "prelu": (layer("PReLU"), (IMAGE,)),
    "shared prelu": (layer("PReLU", "prelu_param { channel_shared: true }"), (IMAGE,)),
    "power": (layer("Power", "power_param { scale: 2 shift: 1 power: 2 }"), (IMAGE,)),
    "affine of three axes": (layer("Power", "power_param { scale: 2 shift: 1 }"), ((2, 3, 4),)),
    "bias": (layer("Bias"), (IMAGE,)),
    "upsample": (layer("Upsample", "upsample_param { scale: 3 }"), (IMAGE,)),
    "interp": (layer("Interp", "interp_param { height: 13 width: 5 }"), (IMAGE,)),
    "shuffle": (layer("ShuffleChannel", "shuffle_channel_param { group: 3 }"), (IMAGE,)),
    "shuffle of many": (layer("ShuffleChannel", "shuffle_channel_param { group: 2 }"), ((1, 1100, 2, 2),)),
    "reorg": (layer("Reorg", "reorg_param { stride: 2 }"), ((2, 4, 6, 8),)),
    "reorg back": (layer("Reorg", "reorg_param { stride: 2 reverse: true }"), ((2, 8, 3, 4),)),
    "pass through": (layer("PassThrough", "pass_through_param { block_height: 2 block_width: 4 }"), ((2, 3, 6, 8),)),
    "depth to space": (
        layer("Reshape", "reshape_param { shape { dim: 0 dim: 2 dim: 2 dim: 3 dim: 4 dim: 5 } }", tops="a", name="a")
        + layer("Permute", "permute_param { order: 0 order: 1 order: 4 order: 2 order: 5 order: 3 }", "a", "b", "b")
        + layer("Reshape", "reshape_param { shape { dim: 0 dim: 2 dim: 8 dim: 15 } }", "b"),
        ((2, 12, 4, 5),),
    ),
    "permute": (layer("Permute", "permute_param { order: 0 order: 2 order: 3 order: 1 }"), (IMAGE,)),
    "permute of five": (layer("Permute", "permute_param { order: 0 order: 3 order: 1 order: 4 order: 2 }"), ((2, 3, 4, 5, 6),)),
    "channels last": (
        layer("Permute", "permute_param { order: 0 order: 2 order: 3 order: 1 }", tops="a", name="a")
        + layer("LayerNorm", "layer_norm_param { axis: 3 }", "a", "b", "b") + layer("Scale", "scale_param { axis: 3 bias_term: true }", "b", "c", "c")
        + layer("InnerProduct", "inner_product_param { num_output: 9 axis: 3 }", "c", "d", "d") + layer("Gelu", "", "d", "e", "e")
        + layer("InnerProduct", "inner_product_param { num_output: 6 axis: 3 }", "e", "f", "f")
        + layer("Permute", "permute_param { order: 0 order: 3 order: 1 order: 2 }", "f", "g", "g") + layer("Eltwise", "", "x0 g", "y", "h"),
        (IMAGE,),
    ),
    "tokens": (
        layer("Flatten", "flatten_param { axis: 2 }", tops="a", name="a") + layer("Permute", "permute_param { order: 0 order: 2 order: 1 }", "a", "b", "b")
        + layer("Softmax", "softmax_param { axis: 2 }", "b", "c", "c") + layer("Slice", "slice_param { axis: 2 slice_point: 2 }", "c", "d e", "d")
        + layer("Concat", "concat_param { axis: 2 }", "e d", "f", "f") + layer("Reduction", "reduction_param { operation: MEAN axis: 2 }", "f", "y", "g"),
        (IMAGE,),
    ),
    "shuffled channels": (
        layer("ShuffleChannel", "shuffle_channel_param { group: 2 }", tops="a", name="a") + layer("Convolution", CONV, "a", "b", "b")
        + layer("PReLU", "", "a", "c", "c") + layer("BatchNorm", "", "c", "d", "d"),
        (IMAGE,),
    ),
    "layer norm": (layer("LayerNorm", "layer_norm_param { axis: 1 }"), (IMAGE,)),
    "layer norm of rows": (layer("LayerNorm", "layer_norm_param { axis: -1 }"), ((3, 5, 40),)),
    "group norm": (layer("GroupNorm", "group_norm_param { group_num: 3 }"), (IMAGE,)),
    "rms norm": (layer("RMSNorm"), ((2, 5, 12),)),
    "pad": (layer("Pad", "pad_param { begin: 1 begin: 0 end: 2 end: 3 }"), (IMAGE,)),
    "pad of channels": (layer("Pad", "pad_param { axis: 1 begin: 1 begin: 0 begin: 0 end: 2 end: 0 end: 1 }"), (IMAGE,)),
    "reflecting pad": (layer("Pad", "pad_param { begin: 1 begin: 2 end: 2 end: 1 mode: REFLECT }"), (IMAGE,)),
    "pad of ones": (layer("Pad", "pad_param { begin: 0 begin: 1 end: 2 end: 1 value: 1 }"), (IMAGE,)),
    "no pads in means": (layer("Pooling", "pooling_param { pool: AVE kernel_size: 3 pad: 1 avg_include_pad: false }"), (IMAGE,)),
    "means beyond the image": (layer("Pooling", "pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }"), (IMAGE,)),
    "rounded down": (layer("Pooling", "pooling_param { kernel_size: 2 stride: 2 round_mode: FLOOR }"), ((2, 3, 7, 9),)),
    "rounded down, 1 axis": (layer("Pooling", "pooling_param { pool: AVE kernel_size: 2 stride: 2 round_mode: FLOOR }"), ((2, 3, 6, 9),)),
    "global pooling of a volume": (layer("Pooling", "pooling_param { pool: AVE global_pooling: true }"), ((2, 3, 4, 5, 6),)),
    "tile": (layer("Tile", "tile_param { axis: 2 tiles: 3 }"), (IMAGE,)),
    "reverse": (layer("Reverse", "reverse_param { axis: 3 }"), (IMAGE,)),
    "strided slice": (layer("StridedSlice", "strided_slice_param { axis: 3 start: 1 step: 3 }"), (IMAGE,)),
    "sum of squares": (layer("Reduction", "reduction_param { operation: SUMSQ axis: 2 }"), (IMAGE,)),
    "factors": (layer("Eltwise", "eltwise_param { coeff: 1 coeff: -2 coeff: 0.5 }", "x0 x1 x2"), (IMAGE,) * 3),
    "scale of pixels": (layer("Scale", "scale_param { axis: 2 num_axes: 2 bias_term: true }"), (IMAGE,)),
    "scale by a value": (layer("Scale", "scale_param { axis: 0 }", "x0 x1"), (IMAGE, IMAGE[:2])),
    "large windows": (layer("Convolution", "convolution_param { num_output: 3 kernel_size: 11 stride: 4 pad: 2 group: 3 }"), ((2, 6, 24, 25),)),
    "patches": (layer("Convolution", "convolution_param { num_output: 5 kernel_size: 16 stride: 16 }"), ((2, 3, 32, 48),)),
    "product of matrices": (layer("MatMul", "", "x0 x1"), ((2, 5, 4), (2, 4, 3))),
    "products by heads": (layer("MatMul", "", "x0 x1"), ((2, 3, 5, 4), (2, 3, 4, 6))),
    "transposed first": (layer("MatMul", "matmul_param { transpose_a: true }", "x0 x1"), ((2, 3, 4, 5), (2, 3, 4, 6))),
    "transposed second": (layer("MatMul", "matmul_param { transpose_b: true }", "x0 x1"), ((2, 3, 5, 4), (2, 3, 6, 4))),
    "both transposed": (layer("MatMul", "matmul_param { transpose_a: true transpose_b: true }", "x0 x1"), ((2, 4, 5), (2, 6, 4))),
    "one row": (layer("MatMul", "", "x0 x1"), ((2, 1, 4), (2, 4, 3))),
    "one column": (layer("MatMul", "", "x0 x1"), ((2, 5, 4), (2, 4, 1))),
    "one term": (layer("MatMul", "", "x0 x1"), ((2, 5, 1), (2, 1, 3))),
    "one value": (layer("MatMul", "", "x0 x1"), ((2, 1, 1), (2, 1, 1))),
    "one matrix for all heads": (layer("MatMul", "", "x0 x1"), ((2, 3, 5, 4), (2, 1, 4, 6))),
    "given sizes": (layer("MatMul", "matmul_param { dim_1: 6 dim_2: 4 dim_3: 10 }", "x0 x1"), ((2, 3, 4), (2, 5, 4))),
    "attention": (
        layer("InnerProduct", "inner_product_param { num_output: 24 axis: 2 }", tops="a", name="a")
        + layer("Reshape", "reshape_param { shape { dim: 0 dim: 5 dim: 3 dim: 2 dim: 4 } }", "a", "b", "b")
        + layer("Permute", "permute_param { order: 2 order: 0 order: 3 order: 1 order: 4 }", "b", "c", "c")
        + layer("Slice", "slice_param { axis: 0 slice_point: 1 slice_point: 2 }", "c", "q k v", "d")
        + "".join(layer("Reshape", "reshape_param { shape { dim: -1 dim: 2 dim: 5 dim: 4 } }", name, f"{name}1", name) for name in "qkv")
        + layer("MatMul", "matmul_param { transpose_b: true }", "q1 k1", "e", "e") + layer("Power", "power_param { scale: 0.5 }", "e", "f", "f")
        + layer("Bias", "bias_param { axis: 1 num_axes: 3 }", "f", "g", "g") + layer("Softmax", "softmax_param { axis: -1 }", "g", "h", "h")
        + layer("MatMul", "", "h v1", "i", "i") + layer("Permute", "permute_param { order: 0 order: 2 order: 1 order: 3 }", "i", "j", "j")
        + layer("Reshape", "reshape_param { shape { dim: 0 dim: 5 dim: 8 } }", "j", "l", "l")
        + layer("InnerProduct", "inner_product_param { num_output: 7 axis: 2 }", "l", "y", "m"),
        ((2, 5, 6),),
    ),
    "attention of channels": (
        layer("Convolution", "convolution_param { num_output: 24 kernel_size: 1 }", tops="a", name="a")
        + layer("Reshape", "reshape_param { shape { dim: 0 dim: 2 dim: 12 dim: 56 } }", "a", "b", "b")
        + layer("Slice", "slice_param { axis: 2 slice_point: 3 slice_point: 6 }", "b", "q k v", "c")
        + layer("MatMul", "matmul_param { transpose_a: true }", "q k", "d", "d") + layer("Softmax", "softmax_param { axis: 3 }", "d", "e", "e")
        + layer("MatMul", "matmul_param { transpose_b: true }", "v e", "f", "f")
        + layer("Reshape", "reshape_param { shape { dim: 0 dim: 12 dim: 7 dim: 8 } }", "f", "g", "g") + layer("Convolution", CONV, "g", "y", "h"),
        (IMAGE,),
    ),
    "token of a class": (
        layer("Parameter", "parameter_param { shape { dim: 1 dim: 1 dim: 6 } }", "", "a", "a")
        + layer("Reduction", "reduction_param { axis: 1 }", tops="b", name="b")
        + layer("Reshape", "reshape_param { shape { dim: -1 dim: 1 dim: 1 } }", "b", "c", "c") + layer("Where", "", "c a a", "d", "d")
        + layer("Concat", "", "d x0", "y", "e"),
        ((2, 5, 6),),
    ),
    "constant image": (
        layer("Parameter", "parameter_param { shape { dim: 1 dim: 6 dim: 7 dim: 8 } }", "", "a", "a") + layer("Convolution", CONV, "a", "b", "b")
        + layer("Convolution", CONV, "x0", "c", "c") + layer("Eltwise", "", "b c"),
        ((1, *IMAGE[1:]),),
    ),
    "sum of products": (layer("InnerProduct", IP, tops="a", name="a") + layer("InnerProduct", IP, "x0", "b", "b") + layer("Eltwise", "", "a b"), ((2, 6),)),
    "square root": (layer("Sigmoid", tops="a", name="a") + layer("Power", "power_param { power: 0.5 scale: 2 shift: 0.5 }", "a"), (IMAGE,)),
    "reciprocal": (layer("Sigmoid", tops="a", name="a") + layer("Power", "power_param { power: -1 shift: 0.5 }", "a"), ((2, 7, 3),)),
    "exponential": (layer("Exp"), (IMAGE,)),
    "scale of five axes": (layer("Scale", "scale_param { axis: 0 }", "x0 x1"), ((2, 3, 4, 5, 6), (2, 3, 4))),
    "scale by samples": (layer("Scale", "scale_param { axis: 0 }", "x0 x1"), (IMAGE, IMAGE[:1])),
    "softmax of channels": (layer("Softmax", "softmax_param { axis: 1 }"), (IMAGE,)),
    "windows of two sizes": (layer("Convolution", "convolution_param { num_output: 3 kernel_size: 1 kernel_size: 5 pad: 0 pad: 2 }"), (IMAGE,)),
    "output that is read": (layer("HardSwish", tops="y") + layer("Split", "", "y", "z w", "split") + layer("ReLU6", "", "w", "v", "v"), (IMAGE,)),
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("target", ["bvlc", "caffe1"])
def test_rules_give_the_same_numbers(tmp_path: Path, device: Any, target: str, name: str) -> None:
    text, shapes = NETS[name]
    check(tmp_path, source(text, *shapes), target, device)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("target", sorted(set(names()) - {"bvlc", "caffe1"}))
def test_other_targets_give_the_same_numbers_or_refuse(tmp_path: Path, device: Any, target: str, name: str) -> None:
    text, shapes = NETS[name]
    try:
        check(tmp_path, source(text, *shapes), target, device, 4e-6)
    except Refused as problem:
        assert problem.layer and read_table(target).title in problem.fact and problem.fix


@pytest.mark.quick
def test_permutes_that_cancel_leave_nothing() -> None:
    text, shapes = NETS["channels last"]
    message = source(text, *shapes)
    made = retarget(net_of(message, weights_of(message), ["y"]), BVLC, "net")
    kinds = [each.type for each in made.net.layers]
    assert "Permute" not in kinds and "Deconvolution" not in kinds and "Reshape" not in kinds and "InnerProduct" not in kinds


@pytest.mark.parametrize(("begin", "end", "stride"), [((0, 0), (1, 1), 2), ((1, 2), (0, 0), 1), ((0, 3), (2, 1), 2), ((1, 0), (1, 2), 3)])
def test_pads_become_part_of_convolutions(tmp_path: Path, device: Any, begin: tuple[int, int], end: tuple[int, int], stride: int) -> None:
    pads = f"pad_param {{ begin: {begin[0]} begin: {begin[1]} end: {end[0]} end: {end[1]} }}"
    text = layer("Pad", pads, tops="a", name="a") + layer("Convolution", f"convolution_param {{ num_output: 4 kernel_size: 3 stride: {stride} }}", "a", "y")
    made = check(tmp_path, source(text), "bvlc", device)
    assert [each.type for each in made.net.layers] == ["Input", "Convolution"]
    text += layer("DepthwiseConvolution", f"convolution_param {{ num_output: 6 group: 6 kernel_size: 2 stride: {stride} }}", "a", "z", "m")
    made = check(tmp_path, source(text), "bvlc", device)
    assert [each.type for each in made.net.layers] == ["Input", "Convolution", "Convolution"]


@pytest.mark.quick
def test_round_mode_goes_where_it_changes_nothing() -> None:
    message = source(layer("Pooling", "pooling_param { kernel_size: 2 stride: 2 round_mode: FLOOR }"), (1, 3, 8, 8))
    made = retarget(net_of(message, {}, ["y"]), read_table("caffe1"), "net")
    assert [each.type for each in made.net.layers] == ["Input", "Pooling"] and not made.net.layers[1].pooling_param.HasField("round_mode")


@pytest.mark.parametrize("target", names())
def test_products_of_two_values_that_are_too_large_are_refused(target: str) -> None:
    text = layer("ReLU", tops="a", name="a") + layer("MatMul", "matmul_param { transpose_b: true }", "a a", "y", "attention")
    with pytest.raises(Refused) as caught:
        retarget(net_of(source(text, (1, 2, 1024, 64)), {}, ["y"]), read_table(target), "net.onnx")
    assert "2 x 1024 x 64 x 1024 = 134217728 products" in caught.value.fact and "at most 67108864" in caught.value.fact
    assert "'attention'" in (caught.value.layer or "") and "--cut-at=a" in (caught.value.fix or "")


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("target", ["bvlc", "rknn", "tpu-mlir"])
def test_products_of_random_shapes(tmp_path: Path, device: Any, target: str, seed: int) -> None:
    """Of bottoms whose axes lie in any order."""
    rng = np.random.default_rng(seed)
    batch, (m, k, n) = [int(rng.integers(1, 4)), *map(int, rng.integers(1, 4, rng.integers(0, 3)))], map(int, rng.integers(1, 7, 3))
    turned, text, shapes = rng.integers(0, 2, 2), "", list[tuple[int, ...]]()
    for number, shape in enumerate(((k, m) if turned[0] else (m, k), (n, k) if turned[1] else (k, n))):
        whole = (*batch, *shape)
        order = [0, *map(int, 1 + rng.permutation(len(whole) - 1))]
        text += layer("Permute", f"permute_param {{ {' '.join(f'order: {each}' for each in order)} }}", f"x{number}", f"a{number}", f"a{number}")
        shapes.append(tuple(whole[order.index(axis)] for axis in range(len(whole))))
    own = f"matmul_param {{ transpose_a: {str(bool(turned[0])).lower()} transpose_b: {str(bool(turned[1])).lower()} }}"
    check(tmp_path, source(text + layer("MatMul", own, "a0 a1"), *shapes), target, device, 4e-6)


@pytest.mark.parametrize("target", sorted(set(names()) - {"bvlc", "caffe1"}))
def test_rows_of_a_table(tmp_path: Path, device: Any, target: str) -> None:
    """Of the numbers that name rows."""
    message = source(layer("Embed", "embed_param { input_dim: 9 num_output: 4 }"), (2, 5))
    arrays = weights_of(message)
    made = retarget(net_of(message, arrays, ["y"]), read_table(target), "net.prototxt", ["x0"])
    assert foreign(made, target) == []
    feeds = {"x0": np.random.default_rng(0).integers(0, 9, (2, 5)).astype(np.float32)}
    y = run(tmp_path, "made", made.net.message(), made.net.weights(), feeds, device)["y"]
    np.testing.assert_allclose(y, arrays["l"][0][feeds["x0"].astype(int)] + arrays["l"][1], rtol=1e-6)


@pytest.mark.quick
def test_large_tables_are_refused() -> None:
    message = source(layer("Embed", "embed_param { input_dim: 2000 num_output: 4 }"), (2, 5))
    with pytest.raises(Refused, match="chooses from 2000 rows, and a product with ones takes up to 1024"):
        retarget(net_of(message, weights_of(message), ["y"]), read_table("rknn"), "net")


@pytest.mark.quick
def test_a_sum_of_products_of_one_value_becomes_a_difference() -> None:
    def kinds(text: str) -> list[str]:
        message = source(text, (2, 6))
        return [each.type for each in retarget(net_of(message, weights_of(message), ["y"]), read_table("rknn"), "net").net.layers]

    one, two = layer("InnerProduct", IP, tops="a", name="a"), layer("InnerProduct", IP, "x0", "b", "b")
    assert kinds(one + two + layer("Eltwise", "", "a b")) == ["Input", "InnerProduct", "InnerProduct", "Power", "Eltwise"]
    scaled = layer("Power", "power_param { scale: 2 }", "a", "c", "c")
    assert kinds(one + two + scaled + layer("Eltwise", "", "c b")).count("Power") == 2
    other = layer("ReLU", "", "x0", "d", "d") + two.replace('"x0"', '"d"')
    assert "Power" not in kinds(one + other + layer("Eltwise", "", "a b"))
    assert "Power" not in kinds(one + two + layer("Eltwise", "eltwise_param { operation: MAX }", "a b"))


@pytest.mark.parametrize("target", ["bvlc", "tpu-mlir"])
def test_constants_where_an_input_is_infinite(tmp_path: Path, device: Any, target: str) -> None:
    message = source(*NETS["token of a class"][:1], (2, 5, 6))
    arrays = weights_of(message)
    made = retarget(net_of(message, arrays, ["y"]), read_table(target), "net.prototxt", ["x0"])
    feeds = {"x0": np.full((2, 5, 6), np.inf, np.float32)}
    y = run(tmp_path, "made", made.net.message(), made.net.weights(), feeds, device)["y"]
    np.testing.assert_array_equal(y[:, 0], np.repeat(arrays["a"][0].reshape(1, 6), 2, 0))


@pytest.mark.quick
def test_tables_have_sources_and_known_types() -> None:
    for name in names():
        table = read_table(name)
        assert table.sources and all(each["what"] and each["date"] for each in table.sources) and "Input" in table.kinds
        for kind, facts in table.kinds.items():
            for limit in facts.limits:
                assert {"of"} < set(limit), (name, kind)
    with pytest.raises(Error, match=r"--target with one of .*bvlc"):
        read_table("mine")


@pytest.mark.quick
def test_view_regroups_and_permutes() -> None:
    view = View.of("x", (2, 6, 4))
    turned = view.permuted([0, 2, 1])
    assert turned.shape == (2, 4, 6) and not turned.in_order and turned.permuted([0, 2, 1]).in_order
    divided = turned.reshaped((2, 4, 2, 3))
    assert divided is not None and divided.shape == (2, 4, 2, 3) and divided.runs() == ([2, 6, 4], [0, 2, 1])
    assert turned.reshaped((2, 3, 8)) is None
    whole = turned.reshaped((2, 24))
    assert whole is not None and whole.permuted([1, 0]).shape == (24, 2)


@pytest.mark.quick
def test_values_keep_their_names() -> None:
    text = layer("HardSwish", tops="a", name="a") + layer("ReLU6", "", "a", "b", "b") + layer("Permute", "permute_param { order: 0 order: 2 order: 1 }", "b")
    message = source(text, (2, 3, 4))
    made = retarget(net_of(message, {}, ["y"]), BVLC, "net")
    assert {"x0", "a", "b", "y"} <= set(made.net.shapes) and made.net.shapes["y"] == (2, 4, 3)


@pytest.mark.quick
def test_eps_that_normalize_would_lose() -> None:
    """tpu-mlir ignores eps of Normalize, so a large one is added before LRN takes the root."""
    for eps, kind in ((1e-8, "Normalize"), (1e-2, "LRN")):
        message = source(layer("LayerNorm", f"layer_norm_param {{ axis: 1 eps: {eps} }}"))
        made = retarget(net_of(message, {}, ["y"]), read_table("tpu-mlir"), "net")
        assert kind in [each.type for each in made.net.layers]
