"""`ocaffe convert --target` and `ocaffe lint --target`: files, messages and exit status."""
from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ocaffe import proto
from ocaffe.cli import main
from ocaffe.convert.targets.table import USUAL, names
from ocaffe.formats.text import parse
from ocaffe.formats.weights import write_weights
from ocaffe.graph.build import build

pytestmark = [pytest.mark.quick, pytest.mark.unoptimised]


def save(folder: Path, nodes: list[Any], outputs: dict[str, list[Any]], x: list[Any], constants: dict[str, np.ndarray] | None = None) -> str:
    held = [numpy_helper.from_array(np.asarray(values, np.float32), name) for name, values in (constants or {}).items()]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)], infos, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(folder / "m.onnx"))
    return str(folder / "m.onnx")


def convert(folder: Path, source: str, *more: str) -> str:
    assert main(["convert", source, str(folder / "n.prototxt"), str(folder / "n.caffemodel"), *more]) == 0
    return (folder / "n.prototxt").read_text()


def types(text: str) -> set[str]:
    return set(re.findall(r'^  type: "(\w+)"$', text, re.MULTILINE))


ONE = np.random.default_rng(0).standard_normal((4, 3, 1, 1))


def test_activations_become_those_of_the_target(tmp_path: Path, capsys: Any) -> None:
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["c"]), node("HardSwish", ["c"], ["hard"]), node("Sigmoid", ["c"], ["s"]), node("Mul", ["c", "s"], ["silu"]),
        node("Softplus", ["c"], ["sp"]), node("Tanh", ["sp"], ["t"]), node("Mul", ["c", "t"], ["mish"]),
    ]  # fmt: skip
    source = save(tmp_path, nodes, {name: [None, 4, 5, 5] for name in ("hard", "silu", "mish")}, [None, 3, 5, 5], {"w": ONE})
    text = convert(tmp_path, source, "--target", "caffe1")
    assert types(text) == {"Input", "Convolution", "Power", "ReLU", "Eltwise", "Sigmoid", "BNLL", "TanH"}
    said = capsys.readouterr().out
    assert "layer by layer" in said and "1 HardSwish, 1 Mish, 1 Swish" in said


def test_all_layers_may_be_of_the_target(tmp_path: Path, capsys: Any) -> None:
    source = save(tmp_path, [helper.make_node("Conv", ["x", "w"], ["y"])], {"y": [1, 4, 5, 5]}, [1, 3, 5, 5], {"w": ONE})
    assert types(convert(tmp_path, source, "--target=bvlc")) == {"Input", "Convolution"}
    assert "all layers are of bvlc's types" in capsys.readouterr().out


def test_resizing_becomes_layers_of_the_target(tmp_path: Path) -> None:
    half = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    nodes = [
        helper.make_node("Resize", ["x", "", "two"], ["near"], mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        helper.make_node("Resize", ["x", "", "two"], ["half"], **half),
        helper.make_node("Resize", ["x", "", "two"], ["corners"], mode="linear", coordinate_transformation_mode="align_corners"),
    ]  # fmt: skip
    outputs = {name: [None, 3, 8, 10] for name in ("near", "half", "corners")}
    text = convert(tmp_path, save(tmp_path, nodes, outputs, [None, 3, 4, 5], {"two": np.array([1, 1, 2, 2])}), "--target", "bvlc")
    assert types(text) == {"Input", "Deconvolution", "InnerProduct", "Convolution", "Reshape"}


def test_a_large_product_is_refused_with_its_place(tmp_path: Path, capsys: Any) -> None:
    nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]), helper.make_node("MatMul", ["x", "t"], ["y"], name="scores")]
    source = save(tmp_path, nodes, {"y": [1, 1500, 1500]}, [1, 1500, 32])
    assert main(["convert", source, str(tmp_path / "n.prototxt"), str(tmp_path / "n.caffemodel"), "--target", "bvlc"]) == 1
    said = capsys.readouterr().err
    assert "layer 'scores' (MatMul)" in said and "no layer type MatMul; without it: it is the sum of 1 x 1500 x 32 x 1500 = 72000000 products" in said
    assert "fix: --cut-at=t " in said
    assert not (tmp_path / "n.prototxt").exists()
    assert types(convert(tmp_path, source, "--target", "bvlc", "--cut-at=t")) <= {"Input", "Convolution", "Deconvolution", "Reshape"}
    assert "MatMul" in types(convert(tmp_path, source, "--force"))


def test_words_of_a_table(tmp_path: Path) -> None:
    """The comparison draws numbers that name rows, also where no Embed layer is left."""
    nodes = [helper.make_node("Identity", ["x"], ["i"]), helper.make_node("Gather", ["table", "i"], ["y"])]
    x, y = helper.make_tensor_value_info("x", TensorProto.INT64, [2, 5]), helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 5, 3])
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(np.arange(21, dtype=np.float32).reshape(7, 3), "table")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    text = convert(tmp_path, str(tmp_path / "m.onnx"), "--target", "rknn")
    assert "Embed" not in types(text) and "InnerProduct" in types(text)


def test_unknown_target(tmp_path: Path, capsys: Any) -> None:
    source = save(tmp_path, [helper.make_node("Relu", ["x"], ["y"])], {"y": [1, 3]}, [1, 3])
    for command in (["convert", source, "n.prototxt", "n.caffemodel"], ["lint", source]):
        assert main([*command, "--target", "mychip"]) == 1
        assert f"--target is 'mychip'\n  fix: --target with one of {', '.join(names())}" in capsys.readouterr().err


@pytest.mark.parametrize(("word", "meant"), [("rk3588", "rknn"), ("RKNN", "rknn"), ("tpu_mlir", "tpu-mlir"), ("sophgo", "tpu-mlir"), ("BM1684X", "tpu-mlir"),
                                             ("ascned", "ascend"), ("caffe", "bvlc"), ("Hi3519", "nnie")])  # fmt: skip
def test_usual_names_of_targets(word: str, meant: str, capsys: Any) -> None:
    assert main(["lint", "no.prototxt", "--target", word]) == 1
    assert f"fix: did you mean --target={meant}? --target with one of" in capsys.readouterr().err
    assert set(USUAL.values()) <= set(names())


TRAINING = """layer { name: "data" type: "Data" top: "data" top: "label" include { stage: "val" } data_param { source: "no_db" batch_size: 4 }
  transform_param { crop_size: 8 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 3 kernel_size: 3 bias_term: false } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv"
  batch_norm_param { scale_filler { value: 1 } bias_filler { value: 0 } } }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip" inner_product_param { num_output: 5 bias_term: false } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


@pytest.mark.parametrize("given", [False, True])
def test_lint_of_a_training_net_names_a_command_that_works(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, given: bool) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(TRAINING)
    norm = [np.ones(3, np.float32), np.ones(3, np.float32), np.ones(1, np.float32), np.ones(3, np.float32), np.ones(3, np.float32)]
    weights = {"conv": [np.ones((3, 3, 3, 3), np.float32)], "bn": norm, "ip": [np.ones((5, 108), np.float32)]}
    write_weights("snapshot.caffemodel", parse(TRAINING, proto.NetParameter), weights)
    assert main(["lint", "net.prototxt", "--target=rknn", "--stage=val", *(["--weights=snapshot.caffemodel"] if given else [])]) == 1
    said = capsys.readouterr().out
    line = f"ocaffe convert net.prototxt {'snapshot' if given else 'WEIGHTS'}.caffemodel net_rknn.prototxt net_rknn.caffemodel " \
           "--target=rknn --stage=val --shape=data:1x3x8x8"
    assert f"`{line}` writes layers" in said and "knows no field scale_filler" in said and "--cut-at" not in said
    assert main(line.replace("WEIGHTS", "snapshot").split()[1:]) == 0


NET = """layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 8 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 3
    kernel_size: 1 kernel_size: 3 } }
layer { name: "act" type: "HardSwish" bottom: "conv" top: "act" }
layer { name: "pool" type: "Pooling" bottom: "act" top: "pool"
  pooling_param { kernel_size: 2 stride: 2
    round_mode: FLOOR } }
layer { name: "flat" type: "Reshape" bottom: "pool" top: "flat" reshape_param { shape { dim: 0 dim: 3 dim: 12 } } }
layer { name: "scores" type: "MatMul" bottom: "flat" bottom: "flat" top: "scores" matmul_param { transpose_b: true } }
layer { name: "choice" type: "Where" bottom: "act" bottom: "act" bottom: "conv" top: "choice" }
"""


def test_lint_says_what_a_target_refuses(tmp_path: Path, capsys: Any) -> None:
    net = tmp_path / "net.prototxt"
    net.write_text(NET)
    assert main(["lint", str(net)]) == 0
    assert main(["lint", str(net), "--target", "caffe1"]) == 1
    said = capsys.readouterr().out
    assert f"{net}:5: layer 'act' (HardSwish)" in said and "has no layer type HardSwish [target]" in said
    assert f"{net}:8: layer 'pool' (Pooling)" in said and "knows no field round_mode" in said
    assert f"{net}:10: layer 'scores' (MatMul)" in said and f"{net}:11: layer 'choice' (Where)" in said
    assert said.count("--cut-at") == 1 and said.index("--cut-at") > said.index("'choice'")
    assert f"`ocaffe convert {net} WEIGHTS.caffemodel net_caffe1.prototxt net_caffe1.caffemodel --target=caffe1`" in said
    assert main(["lint", str(net), "--target", "tpu-mlir"]) == 1
    assert f"{net}:3: layer 'conv' (Convolution)" in capsys.readouterr().out
    assert main(["lint", str(net), "--target", "caffe1", "--ignore", "target"]) == 0


def test_lint_finds_nothing_in_what_convert_writes(tmp_path: Path) -> None:
    node = helper.make_node
    nodes = [node("Conv", ["x", "w"], ["c"]), node("HardSwish", ["c"], ["h"]), node("MaxPool", ["h"], ["y"], kernel_shape=[2, 2])]
    source = save(tmp_path, nodes, {"y": [1, 4, 4, 4]}, [1, 3, 5, 5], {"w": ONE})
    for target in ("bvlc", "caffe1", "tpu-mlir", "rknn"):
        convert(tmp_path, source, "--target", target, "--force")
        assert main(["lint", str(tmp_path / "n.prototxt"), "--target", target]) == 0


TOKEN = """layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 5 dim: 6 } } }
layer { name: "token" type: "Parameter" top: "token" parameter_param { shape { dim: 1 dim: 1 dim: 6 } } }
layer { name: "batch" type: "Reduction" bottom: "data" top: "batch" reduction_param { axis: 1 } }
layer { name: "counted" type: "Reshape" bottom: "batch" top: "counted" reshape_param { shape { dim: -1 dim: 1 dim: 1 } } }
layer { name: "tokens" type: "Where" bottom: "counted" bottom: "token" bottom: "token" top: "tokens" }
layer { name: "all" type: "Concat" bottom: "tokens" bottom: "data" top: "all" }
"""


@pytest.mark.parametrize("target", ["bvlc", "tpu-mlir"])
def test_lint_names_the_remedy_of_repeated_constants(tmp_path: Path, capsys: Any, target: str) -> None:
    net, weights = tmp_path / "net.prototxt", tmp_path / "net.caffemodel"
    net.write_text(TOKEN)
    write_weights(weights, parse(TOKEN, proto.NetParameter), {"token": [np.arange(6, dtype=np.float32).reshape(1, 1, 6)]})
    assert main(["lint", str(net), "--target", target]) == 1
    said = capsys.readouterr().out
    assert "layer 'tokens' (Where)" in said and "--cut-at" not in said
    files = [str(tmp_path / "n.prototxt"), str(tmp_path / "n.caffemodel")]
    assert main(["convert", str(net), str(weights), *files, "--target", target]) == 0
    assert main(["lint", files[0], "--target", target]) == 0


def test_lint_finds_sums_of_products(tmp_path: Path, capsys: Any) -> None:
    net, product = tmp_path / "net.prototxt", "inner_product_param { num_output: 5 }"
    net.write_text(
        'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 6 } } }\n'
        f'layer {{ name: "a" type: "InnerProduct" bottom: "data" top: "a" {product} }}\n'
        f'layer {{ name: "b" type: "InnerProduct" bottom: "data" top: "b" {product} }}\n'
        'layer { name: "y" type: "Eltwise" bottom: "a" bottom: "b" top: "y" }\n'
    )  # fmt: skip
    assert main(["lint", str(net), "--target", "rknn"]) == 1 and main(["lint", str(net), "--target", "bvlc"]) == 0
    assert f"{net}:4: layer 'y' (Eltwise)" in capsys.readouterr().out


DEPLOY = """name: "small"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 9 dim: 9 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4 kernel_size: 3 } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "act" type: "ReLU6" bottom: "conv" top: "conv" }
layer { name: "shuffle" type: "ShuffleChannel" bottom: "conv" top: "shuffle" shuffle_channel_param { group: 2 } }
layer { name: "up" type: "Upsample" bottom: "shuffle" top: "up" upsample_param { scale: 2 } }
layer { name: "pool" type: "Pooling" bottom: "up" top: "pool" pooling_param { kernel_size: 3 stride: 2 round_mode: FLOOR } }
layer { name: "fc" type: "InnerProduct" bottom: "pool" top: "fc" inner_product_param { num_output: 5 } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""


@pytest.mark.parametrize("target", ["caffe1", "tpu-mlir", "rknn"])
def test_caffe_becomes_caffe_of_the_target(tmp_path: Path, capsys: Any, target: str) -> None:
    net, weights = tmp_path / "net.prototxt", tmp_path / "net.caffemodel"
    net.write_text(DEPLOY)
    message = parse(DEPLOY, proto.NetParameter)
    rng = np.random.default_rng(0)
    arrays = {node.name: [rng.uniform(0.2, 1, each.shape).astype(np.float32) for each in node.params] for node in build(message, proto.TEST).nodes}
    write_weights(weights, message, {name: held for name, held in arrays.items() if held})
    files = [str(tmp_path / "n.prototxt"), str(tmp_path / "n.caffemodel")]
    assert main(["convert", str(net), str(weights), *files, "--target", target, "--fold"]) == 0
    said = capsys.readouterr().out
    assert "equal to the source" in said and ("all layers are of tpu-mlir's types" if target == "tpu-mlir" else f"for {target}, these were") in said
    text = Path(files[0]).read_text()
    assert types(text).isdisjoint({"BatchNorm", "Upsample"} if target == "caffe1" else {"BatchNorm"}) and 'top: "prob"' in text
    assert main(["lint", files[0], "--target", target]) == 0
