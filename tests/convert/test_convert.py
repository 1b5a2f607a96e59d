"""`ocaffe convert` to ONNX: the options, verification, errors."""
from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from PIL import Image

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cli import main
from ocaffe.cli.convert import DRAWS
from ocaffe.compiler.network import phase_net
from ocaffe.convert.export import Exported, Options, export
from ocaffe.convert.verify import OnnxSession, Undecided, inputs_from, opened, random_inputs, run_net, verify
from ocaffe.errors import Error
from ocaffe.formats.text import read_net
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.formats.weights import LayerWeights, Weights, write_weights
from ocaffe.graph.build import build

pytestmark = pytest.mark.unoptimised

ROOT = pathlib.Path(__file__).resolve().parents[2]

HEAD = """
name: "small"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 9 dim: 9 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
        convolution_param { num_output: 4 kernel_size: 3 group: 1 weight_filler { type: "xavier" } bias_filler { type: "uniform" } } }
"""
BODY = """
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true filler { type: "uniform" min: 0.5 max: 2 } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 } }
layer { name: "up" type: "Deconvolution" bottom: "pool" top: "up"
        convolution_param { num_output: 4 kernel_size: 2 stride: 2 group: 2 weight_filler { type: "xavier" } } }
layer { name: "bn_up" type: "BatchNorm" bottom: "up" top: "bn_up" }
layer { name: "fc" type: "InnerProduct" bottom: "bn_up" top: "fc" inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "fc_scale" type: "Scale" bottom: "fc" top: "fc_scaled" scale_param { filler { type: "uniform" min: 0.5 max: 2 } } }
layer { name: "prob" type: "Softmax" bottom: "fc_scaled" top: "prob" }
"""


def random_weights(message: Any, phase: int = proto.TEST) -> Weights:
    """Return weights for every layer in the scale of the fillers, with statistics that a trained net could have."""
    graph = build(phase_net(message, phase), phase)
    rng = np.random.default_rng(0)
    layers = []
    for node in graph.nodes:
        blobs = []
        for i, parameter in enumerate(node.params):
            fan_in = max(1, int(np.prod(parameter.shape[1:])))
            blob = rng.standard_normal(parameter.shape, np.float32) * np.float32((2 / fan_in) ** 0.5)
            if node.type == "BN" and len(node.params) == 4 and i in (0, 3):  # scale and variance
                blob = rng.uniform(0.5, 2, parameter.shape)
            elif node.type == "BatchNorm" and i < 3:
                blob = (rng.normal(0, 0.1, parameter.shape), rng.uniform(0.5, 2, parameter.shape), np.ones(parameter.shape))[i]
            elif len(parameter.shape) < 2:
                blob = rng.uniform(0.5, 1.5, parameter.shape) if node.type == "Scale" and i == 0 else rng.normal(0, 0.1, parameter.shape)
            blobs.append(blob.astype(np.float32))
        if blobs:
            layers.append(LayerWeights(node.name, blobs=blobs))
    return Weights("", layers, "random.caffemodel")


@pytest.fixture
def small(tmp_path: pathlib.Path) -> Callable[..., tuple[str, str]]:
    """Return a function that writes a net and weights for it, and returns both files."""

    def write(text: str = HEAD + BODY, name: str = "net") -> tuple[str, str]:
        net, weights = tmp_path / f"{name}.prototxt", tmp_path / f"{name}.caffemodel"
        net.write_text(text)
        message = upgrade_net(read_net(str(net)))
        write_weights(weights, message, {layer.name: layer.blobs for layer in random_weights(message).layers} | dict.fromkeys(
            {layer.name for layer in message.layer} - {layer.name for layer in random_weights(message).layers}, ()))  # fmt: skip
        return str(net), str(weights)

    return write


def of(files: tuple[str, str], **options: Any) -> Exported:
    return export(*files, Options(**options))


def kinds(exported: Exported) -> list[str]:
    return [node.op_type for node in exported.model.graph.node]


# -- options ---------------------------------------------------------------------------------------------------------


def test_names_origin_and_shapes(small: Any) -> None:
    model = of(small()).model
    assert [info.name for info in model.graph.input] == ["data"] and [info.name for info in model.graph.output] == ["prob"]
    values = {info.name: [dim.dim_value for dim in info.type.tensor_type.shape.dim] for info in model.graph.value_info}
    assert values["pool"] == [2, 4, 4, 4] and values["conv"] == values["conv.bn"] == [2, 4, 7, 7]
    assert {tensor.name for tensor in model.graph.initializer} >= {"conv/0", "conv/1", "fc/0", "fc/1"}
    conv = next(node for node in model.graph.node if node.op_type == "Conv")
    assert conv.name == "conv" and "layer 'conv' (Convolution)" in conv.doc_string and "net.prototxt:4" in conv.doc_string
    assert "net.caffemodel" in model.doc_string and model.graph.name == "small"


@pytest.mark.parametrize("options", [{}, {"dynamic_batch": True}, {"fold": True}, {"fp16": True}, {"fold": True, "fp16": True, "opset": 13}], ids=str)
def test_options_leave_the_numbers_alone(small: Any, options: dict[str, Any], device: Any) -> None:
    exported = of(small(), **options)
    batches = (2, 3) if exported.options.dynamic_batch else (2,)
    verify(exported, [random_inputs(exported.graph, batch=batch) for batch in batches], device)


def test_fold_leaves_products_alone(small: Any) -> None:
    assert kinds(of(small(), fold=True)) == ["Conv", "Relu", "Pad", "AveragePool", "ConvTranspose", "Flatten", "Gemm", "Softmax"]


def test_fp16_stores_half_of_the_bytes(small: Any) -> None:
    whole, half = of(small()).model, of(small(), fp16=True).model
    weights = {tensor.name: tensor.data_type for tensor in half.graph.initializer}
    assert weights["fc/0/16"] == onnx.TensorProto.FLOAT16 and "fc/0" not in weights
    assert half.ByteSize() < whole.ByteSize()
    assert {info.type.tensor_type.elem_type for info in (*half.graph.input, *half.graph.output)} == {onnx.TensorProto.FLOAT}


def test_dynamic_batch_is_a_symbol(small: Any) -> None:
    model = of(small(), dynamic_batch=True).model
    assert [info.type.tensor_type.shape.dim[0].dim_param for info in (*model.graph.input, *model.graph.output)] == ["batch"] * 2


def test_dynamic_batch_that_the_net_forbids(small: Any) -> None:
    text = HEAD + 'layer { name: "flat" type: "Reshape" bottom: "conv" top: "flat" reshape_param { shape { dim: 2 dim: 196 } } }'
    of(small(text))
    with pytest.raises(Error, match="batch of 4 instead of 2"):
        of(small(text), dynamic_batch=True)


@pytest.mark.parametrize(("opset", "fact"), [(12, "--opset is 12"), (999, "--opset is 999")])
def test_opsets(small: Any, opset: int, fact: str) -> None:
    with pytest.raises(Error, match=fact):
        of(small(), opset=opset)


@pytest.mark.parametrize("fp16", [False, True], ids=["single", "half"])
def test_weights_of_more_than_one_file_go_into_a_second(small: Any, device: Any, fp16: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch,
                                                        capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.setattr("ocaffe.convert.model.LARGEST", 1000)  # bytes instead of 2 GiB
    target, beside = tmp_path / "m.onnx", tmp_path / "m.onnx.data"
    target.write_text("what was there")
    beside.mkdir()  # a folder, so that the file cannot be written
    command = ["convert", *small(), str(target), "--device", str(device.number), *["--fp16"] * fp16, "--force"]
    assert main(command) == 1 and "m.onnx.data" in capsys.readouterr().err and target.read_text() == "what was there"
    beside.rmdir()
    assert main(command) == 0 and f"{target}, {beside}: " in capsys.readouterr().out
    assert target.stat().st_size < 8000 and beside.stat().st_size % 4096 == 0
    onnx.checker.check_model(str(target), full_check=True)
    x = np.random.default_rng(0).standard_normal((2, 3, 9, 9)).astype(np.float32)
    whole = of(small(), fp16=fp16).model.SerializeToString()
    files = [onnxruntime.InferenceSession(model).run(["prob"], {"data": x})[0] for model in (whole, str(target))]
    assert np.array_equal(*files)
    assert main(["convert", str(target), str(tmp_path / "back.prototxt"), str(tmp_path / "back.caffemodel")]) == 0


def test_other_weights_beside_a_model_stay(small: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("ocaffe.convert.model.LARGEST", 1000)
    target, beside = tmp_path / "m.onnx", tmp_path / "m.onnx.data"
    command = ["convert", *small(), str(target), "--noverify"]
    assert main(command) == main(command) == 0
    whole = beside.read_bytes()
    for gone in (False, True):
        beside.write_bytes(b"mine" + whole[4:])
        target.unlink() if gone else None
        assert main(command) == 1 and "m.onnx.data" in capsys.readouterr().err and beside.read_bytes()[:4] == b"mine"
    assert main([*command, "--force"]) == 0 and beside.read_bytes() == whole


def test_large_models_in_the_reference(small: Any, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocaffe.convert.model.LARGEST", 1000)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # importing it fails
    exported = of(small(), cut_at=["pool"])
    assert verify(exported, [random_inputs(exported.graph)], device).runtime.startswith("onnx.reference")

    def fail(*args: Any) -> None:
        raise RuntimeError("too hard")

    monkeypatch.setattr("onnx.reference.ReferenceEvaluator.run", fail)
    with pytest.raises(Error, match="does not run it: too hard") as problem:
        verify(exported, [random_inputs(exported.graph)], device)
    assert "pip install onnxruntime" in str(problem.value.fix)


# -- training nets ---------------------------------------------------------------------------------------------------

TRAINING = """
layer { name: "fc" type: "InnerProduct" bottom: "conv" top: "fc" inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 2 } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "fc" bottom: "label" top: "accuracy" }
"""


@pytest.mark.parametrize(("activate", "output", "last"), [(False, "fc", "Gemm"), (True, "prob", "Softmax")])
def test_losses_go_or_leave_their_activation(small: Any, activate: bool, output: str, last: str) -> None:
    exported = of(small(HEAD + TRAINING), activate=activate)
    assert exported.deployed.outputs == [output] and kinds(exported)[-1] == last
    assert [info.name for info in exported.model.graph.input] == ["data"]


def test_what_comes_from_labels_alone_goes_too(small: Any) -> None:
    text = HEAD + TRAINING + 'layer { name: "twice" type: "Power" bottom: "label" top: "twice" power_param { scale: 2 } }'
    assert of(small(text.replace('type: "Input" top: "label" input_param { shape { dim: 2 } }', DATA_LABEL))).deployed.outputs == ["fc"]


DATA_LABEL = 'type: "MemoryData" top: "unused" top: "label" memory_data_param { batch_size: 2 channels: 1 height: 1 width: 1 }'
PICTURES = """
layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "absent" batch_size: 2 }
        transform_param { crop_size: 9 mean_value: 10 mean_value: 20 mean_value: 30 scale: 0.5 mirror: true } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
        convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "conv" bottom: "label" top: "loss" }
"""


def data_net(tmp_path: pathlib.Path) -> str:
    net = tmp_path / "data.prototxt"
    net.write_text(PICTURES)
    return str(net)


def test_preprocessing_is_baked_in(tmp_path: pathlib.Path, device: Any) -> None:
    shapes = {"data": (2, 3, 9, 9)}
    plain, baked = (export(data_net(tmp_path), None, Options(shapes=shapes, fillers=True, bake=bake)) for bake in (False, True))
    pixels = np.random.default_rng(0).integers(0, 256, shapes["data"]).astype(np.float32)
    prepared = (pixels - np.array([10, 20, 30], np.float32).reshape(3, 1, 1)) * np.float32(0.5)
    (expected,), (actual,) = OnnxSession(plain.model, ["conv"]).run({"data": prepared}), OnnxSession(baked.model, ["conv"]).run({"data": pixels})
    assert kinds(baked)[:2] == ["Sub", "Mul"] and np.allclose(actual, expected, atol=1e-4)
    verify(baked, [{"data": pixels}], device)


def test_a_mean_file_is_baked_in_as_the_data_layer_applies_it(tmp_path: pathlib.Path, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "tests" / "golden")
    text = PICTURES[: PICTURES.index('layer { name: "loss"')].replace('"absent"', '"files/lmdb_raw" backend: LMDB').replace(" mirror: true", "")
    text = text.replace(" mean_value: 10 mean_value: 20 mean_value: 30", "")
    files = [tmp_path / "plain.prototxt", tmp_path / "with_mean.prototxt"]
    files[0].write_text(text.replace("scale: 0.5", ""))
    files[1].write_text(text.replace("scale", 'mean_file: "files/mean.binaryproto" scale'))
    baked = export(str(files[1]), None, Options(fillers=True, bake=True))
    nets = [Net(str(file), phase=proto.TEST, device=device) for file in files]
    try:
        for net in nets:
            net.forward()
        (actual,) = OnnxSession(baked.model, ["conv"]).run({"data": nets[0].blobs["data"].data})
        expected = nets[1].blobs["conv"].data
        assert np.abs(actual - expected).max() <= 1e-4 * np.abs(expected).max()
    finally:
        for net in nets:
            net.close()


@pytest.mark.parametrize("kind", ["values", "image"])
def test_preprocessing_of_the_file_beside_the_weights(small: Any, kind: str, device: Any, tmp_path: pathlib.Path) -> None:
    files = small()
    rng = np.random.default_rng(0)
    image = rng.uniform(0, 255, (3, 11, 13)).astype(np.float32)
    np.save(tmp_path / "net.mean.npy", image)
    mean: Any = "net.mean.npy" if kind == "image" else [1, 2, 3]
    record = {"size": [3, 9, 9], "resize": [11, 13], "mean": mean, "scale": 0.5, "channel_order": "BGR", "labels": []}
    (tmp_path / "net.json").write_text(json.dumps(record))
    assert main(["convert", *files, str(tmp_path / "m.onnx"), "--bake-preprocessing", "--device", str(device.number)]) == 0
    plain, baked = of(files).model, onnx.load(tmp_path / "m.onnx")
    pixels = rng.integers(0, 256, (2, 3, 9, 9)).astype(np.float32)
    mean = image[:, 1:10, 2:11] if kind == "image" else np.array([1, 2, 3], np.float32).reshape(3, 1, 1)
    (expected,), (actual,) = OnnxSession(plain, ["prob"]).run({"data": (pixels - mean) / 2}), OnnxSession(baked, ["prob"]).run({"data": pixels})
    assert np.allclose(actual, expected, atol=1e-5)


def test_data_that_is_not_there_can_be_done_without(tmp_path: pathlib.Path) -> None:
    with pytest.raises(Error) as problem:
        export(data_net(tmp_path), None, Options(fillers=True))
    assert "--shape=data:" in str(problem.value.fix)


def test_a_bottom_whose_data_layer_is_for_another_phase(tmp_path: pathlib.Path) -> None:
    net = tmp_path / "net.prototxt"
    net.write_text(PICTURES.replace('top: "label" data', 'top: "label" include { phase: TRAIN } data'))
    assert export(str(net), None, Options(shapes={"data": (1, 3, 9, 9)}, fillers=True)).deployed.outputs == ["conv"]
    with pytest.raises(Error, match="unknown bottom"):
        export(str(net), None, Options(fillers=True))


def test_a_python_layer_that_makes_data_can_be_done_without(tmp_path: pathlib.Path) -> None:
    net = tmp_path / "net.prototxt"
    net.write_text(PICTURES.replace('type: "Data"', 'type: "Python" python_param { module: "absent" layer: "Own" }'))
    assert export(str(net), None, Options(shapes={"data": (1, 3, 9, 9)}, fillers=True)).deployed.outputs == ["conv"]
    with pytest.raises(Error, match="module 'absent'") as problem:
        export(str(net), None, Options(fillers=True))
    assert "--shape=data:" in str(problem.value.fix)


# -- cutting ---------------------------------------------------------------------------------------------------------

CROWD = 'layer { name: "own" type: "Python" bottom: "conv" top: "own" python_param { module: "absent" layer: "Own" } }'


@pytest.mark.parametrize("kind, fact", [("Python", "cannot be exported to ONNX"), ("Unheard", "unknown layer type 'Unheard'")])
def test_a_layer_without_meaning_can_be_cut_off(small: Any, kind: str, fact: str) -> None:
    files = small(HEAD)
    pathlib.Path(files[0]).write_text(HEAD + CROWD.replace('type: "Python"', f'type: "{kind}"'))
    with pytest.raises(Error, match=fact) as problem:
        of(files)
    assert "layer 'own'" in str(problem.value) and "--cut-at=conv" in str(problem.value.fix)
    assert of(files, cut_at=["conv"]).deployed.outputs == ["conv"]


def test_a_blob_in_the_middle_is_an_output(small: Any) -> None:
    exported = of(small(), cut_at=["pool", "conv"])
    assert [info.name for info in exported.model.graph.output] == ["pool", "conv"] and "Gemm" not in kinds(exported)


def test_cutting_at_nothing(small: Any) -> None:
    with pytest.raises(Error, match="--cut-at names 'poole'") as problem:
        of(small(), cut_at=["poole"])
    assert "pool" in str(problem.value.fix)
    with pytest.raises(Error, match="no DetectionOutput"):
        of(small(), raw_detection=True)


def test_raw_detection_ends_with_what_detection_reads() -> None:
    net = ROOT / "tests" / "golden" / "forks" / "Net-SSD-TEST-share.prototxt"
    exported = export(str(net), None, Options(raw_detection=True, fillers=True))
    assert len(exported.deployed.outputs) == 3 and "NonMaxSuppression" not in kinds(exported)


# -- verification ----------------------------------------------------------------------------------------------------


def test_the_first_blob_that_differs_is_named(small: Any, device: Any) -> None:
    exported = of(small())
    tensor = next(tensor for tensor in exported.model.graph.initializer if tensor.name == "fc/0")
    tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * 1.01, "fc/0"))
    with pytest.raises(Error, match="the first blob that differs is 'fc'") as problem:
        verify(exported, [random_inputs(exported.graph)], device)
    assert problem.value.layer == "'fc' (InnerProduct)" and problem.value.place is not None


TIES = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 16 dim: 500 } } }
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc" inner_product_param { num_output: 64 } }
layer { name: "best" type: "ArgMax" bottom: "fc" top: "best" argmax_param { axis: 1 } }
layer { name: "shifted" type: "Power" bottom: "best" top: "shifted" power_param { shift: 1 } }
"""


def test_choices_among_equals_are_compared_for_the_same_inputs(small: Any, device: Any) -> None:
    net, _ = small(TIES)
    rng = np.random.default_rng(0)
    row = rng.standard_normal(500).astype(np.float32)
    rows = np.stack([rng.permutation(row) for _ in range(64)])  # all sums are equal up to rounding
    exported = export(net, Weights("", [LayerWeights("fc", blobs=[rows, np.zeros(64, np.float32)])]), Options())
    tensor = next(tensor for tensor in exported.model.graph.initializer if tensor.name == "fc/0")
    tensor.CopyFrom(onnx.numpy_helper.from_array(rows * (1 + 1e-6 * rng.standard_normal(rows.shape)).astype(np.float32), "fc/0"))  # rounds differently
    feeds = {"data": np.ones((16, 500), np.float32)}
    with opened(exported, device, ["best"]) as own:
        ours = run_net(own, exported, feeds, ["best"])["best"]
    assert not np.array_equal(ours, OnnxSession(exported.model, ["best"]).run(feeds)[0])
    assert verify(exported, [feeds], device).differences["shifted"] > 1e-4  # another choice, which is right for the input of the layer
    tampered = next(node for node in exported.model.graph.node if node.name == "shifted")
    tampered.op_type = "Sub"
    with pytest.raises(Error, match="the first blob that differs is 'shifted'"):
        verify(exported, [feeds], device)


def test_a_model_that_differs_is_not_written(small: Any, device: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path,
                                             capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    from ocaffe.layers.relu import ReLU

    monkeypatch.setattr(ReLU, "onnx", lambda self, graph, bottoms, tops: graph.op("Abs", bottoms[0], to=tops[0]))
    target = tmp_path / "model.onnx"
    target.write_text("what was there")
    assert main(["convert", *small(), str(target), "--force", "--device", str(device.number)]) == 1
    assert "the first blob that differs is 'conv'" in capsys.readouterr().err and target.read_text() == "what was there"
    assert main(["convert", *small(), str(target), "--noverify", "--force"]) == 0
    assert "not verified" in capsys.readouterr().out
    onnx.load(target)


@pytest.mark.parametrize("kind", ["image", "npz"])
def test_inputs_of_the_users_own(small: Any, device: Any, kind: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / ("cat.png" if kind == "image" else "arrays.npz")
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(file) if kind == "image" else np.savez(file, data=np.ones((2, 3, 9, 9), np.float32))
    assert main(["convert", *small(), str(tmp_path / "m.onnx"), "--verify", str(file), "--device", str(device.number)]) == 0
    assert "equal to ocaffe's outputs in onnxruntime" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("shape", "fix"),
    [
        ((8, 32, 30, 3), "put the axes in the net's order, which a reshape would not: np.savez('{}', data=data.transpose(0, 3, 1, 2))"),
        ((3, 32, 30), "add the axis of the batch: np.savez('{}', data=data[None])"),
        ((2, 3, 16, 16), "make 'data' N x 3 x 32 x 30, or export the net for this size: --shape=data:2x3x16x16"),
        ((2, 4, 16, 16), "make 'data' N x 3 x 32 x 30"),
    ],
)
def test_arrays_of_another_shape(shape: tuple[int, ...], fix: str, tmp_path: pathlib.Path) -> None:
    """Images with the channels last are to be transposed: neither a reshape nor another size of the net gives the right values."""
    file = str(tmp_path / "arrays.npz")
    np.savez(file, data=np.zeros(shape, np.float32))
    graph: Any = SimpleNamespace(inputs=[SimpleNamespace(name="data", shape=(1, 3, 32, 30))])
    with pytest.raises(Error, match=r"in the file, but 1 x 3 x 32 x 30 in the net") as caught:
        inputs_from(file, graph)
    assert caught.value.fix == fix.format(file)


@pytest.mark.parametrize(
    "name, fact", [("empty.npz", "cannot be read as an .npz"), ("cut.npz", "cannot be read as an .npz"), ("texts.npz", "it holds <U1, not numbers")]
)
def test_inputs_that_are_no_numbers(small: Any, device: Any, name: str, fact: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / name
    if name != "empty.npz":
        np.savez(file, data=np.full((1, 3, 9, 9), "a" if name == "texts.npz" else 1))
    file.write_bytes(file.read_bytes()[: 500 if name == "cut.npz" else None] if file.exists() else b"")
    assert main(["convert", *small(), str(tmp_path / "m.onnx"), "--verify", str(file), "--device", str(device.number)]) == 1
    assert fact in capsys.readouterr().err


def test_the_reference_serves_where_onnxruntime_is_too_old(small: Any, device: Any) -> None:
    exported = of(small(), opset=onnx.defs.onnx_opset_version(), cut_at=["conv"])
    verify(exported, [random_inputs(exported.graph)], device)


# -- the command -----------------------------------------------------------------------------------------------------


def test_flags_that_choose_the_outputs(small: Any, tmp_path: pathlib.Path) -> None:
    ssd, target = str(ROOT / "tests" / "golden" / "forks" / "Net-SSD-TEST-share.prototxt"), str(tmp_path / "m.onnx")
    for arguments, outputs in (([*small(HEAD + TRAINING), "--activate_losses"], ["prob"]), ([ssd, "--raw-detection", "--fillers"], 3), ([ssd, "--fillers"], 1)):
        files, flags = [arg for arg in arguments if arg[0] != "-"], [arg for arg in arguments if arg[0] == "-"]
        assert main(["convert", *files, target, "--noverify", "--force", *flags]) == 0
        names = [info.name for info in onnx.load(target).graph.output]
        assert names == outputs or len(names) == outputs


def test_flags_may_stand_anywhere(small: Any, device: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    net, weights = small()
    target = tmp_path / "m.onnx"
    assert main(["convert", "--fold", net, "--dynamic-batch", "--verify", weights, "-opset=15", str(target), "--device", str(device.number)]) == 0
    model = onnx.load(target)
    assert model.opset_import[0].version == 15 and "opset 15" in capsys.readouterr().out
    onnx.checker.check_model(model, full_check=True)


WRONG = {  # wrong argument -> text in the error
    "no weights": (["{net}", "{out}"], "there are no weights for it"),
    "other weights": (["{net}", "{other}", "{out}"], "has no blob 0 for it"),
    "wrong kinds": (["{out}", "{out}"], "no conversion takes the kinds onnx onnx"),
    "unknown kind": (["{net}", "model.pt"], "the name 'model.pt' ends with none of .prototxt"),
    "truncated weights": (["{net}", "{cut}", "{out}"], "cut.caffemodel"),
    "no such net": (["absent.prototxt", "{weights}", "{out}"], "absent.prototxt"),
    "shape": (["{net}", "{weights}", "{out}", "--shape=data:1x?x9"], "--shape has 'data:1x?x9'"),
    "shape of a digit that is no number": (["{net}", "{weights}", "{out}", "--shape=data:1x\u00b2"], "--shape has 'data:1x\u00b2'"),
    "tolerance": (["{net}", "{weights}", "{out}", "--tolerance=nan"], "--tolerance is 'nan'"),
    "tolerance that is too small": (["{net}", "{weights}", "{out}", "--tolerance=1e-12"], "the tolerance is 1e-12"),
    "shape of nothing": (["{net}", "{weights}", "{out}", "--shape=label:1"], "--shape names 'label'"),
    "shape that does not fit": (["{net}", "{weights}", "{out}", "--shape=data:1x5x9x9"], "in the file"),
    "no such folder": (["{net}", "{weights}", "{tmp}/absent/m.onnx", "--noverify"], "make the folder"),
    "nothing to bake": (["{net}", "{weights}", "{out}", "--bake-preprocessing"], "no data layer of the net has a mean or a scale"),
    "verify with nothing": (["{net}", "{weights}", "{out}", "--verify=absent.png"], "absent.png"),
}


@pytest.mark.parametrize("what", WRONG)
def test_errors_leave_no_file(what: str, small: Any, device: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    net, weights = small()
    _, other = small(HEAD, "other")
    (tmp_path / "cut.caffemodel").write_bytes(pathlib.Path(weights).read_bytes()[:-100])
    before = set(tmp_path.rglob("*"))
    words = {"net": net, "weights": weights, "other": other, "cut": tmp_path / "cut.caffemodel", "out": tmp_path / "m.onnx", "tmp": tmp_path}
    args, fact = WRONG[what]
    assert main(["convert", *(arg.format(**words) for arg in args), "--device", str(device.number)]) == 1
    assert fact in capsys.readouterr().err and set(tmp_path.rglob("*")) == before


TRAINED = """
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN } data_param { source: "absent" batch_size: 2 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "fc" type: "InnerProduct" bottom: "conv" top: "fc" inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }
"""


def trained(tmp_path: pathlib.Path, data: str = TRAINED) -> tuple[str, str]:
    """Write a training net and the caffemodel that a training writes: the net of its phase with the weights."""
    net, weights = tmp_path / "train.prototxt", tmp_path / "train.caffemodel"
    net.write_text(data)
    message = upgrade_net(read_net(str(net)))
    rng = np.random.default_rng(0)
    blobs = {"conv": [(4, 3, 3, 3), (4,)], "fc": [(5, 196), (5,)]}
    drawn = {layer.name: [rng.standard_normal(shape).astype(np.float32) for shape in blobs.get(layer.name, ())] for layer in message.layer}
    write_weights(weights, message, drawn)
    return str(net), str(weights)


@pytest.mark.parametrize("both", [True, False], ids=["training prototxt", "caffemodel"])
def test_a_training_net(tmp_path: pathlib.Path, device: Any, both: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """A .caffemodel has the net in it. The data layer and the loss are dropped from both."""
    files, target = trained(tmp_path)[not both :], str(tmp_path / "m.onnx")
    assert main(["convert", *files, target, "--device", str(device.number)]) == 1
    assert "--shape=data:1x3x224x224" in capsys.readouterr().err
    assert main(["convert", *files, target, "--shape=data:2x3x9x9", "--device", str(device.number)]) == 0
    assert "equal to ocaffe's outputs" in capsys.readouterr().out
    model = onnx.load(target)
    assert [info.name for info in model.graph.input] == ["data"] and [node.op_type for node in model.graph.node] == ["Conv", "Flatten", "Gemm"]


def test_all_missing_inputs_are_named(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A caffemodel has the net of one phase, and its data layer may be of the other."""
    text = TRAINED.replace('type: "InnerProduct" bottom: "conv"', 'type: "InnerProduct" bottom: "sum"') + (
        'layer { name: "sum" type: "Eltwise" bottom: "conv" bottom: "other" top: "sum" }')  # fmt: skip
    lines = text.strip().splitlines()
    net = tmp_path / "train.prototxt"
    net.write_text("\n".join([lines[1], lines[4], *lines[2:4]]))
    assert main(["convert", str(net), str(tmp_path / "m.onnx"), "--fillers"]) == 1
    error = capsys.readouterr().err
    assert "unknown bottom blob 'data', and 1 more: other" in error and "--shape=data:1x3x224x224,other:1x3x224x224" in error
    assert "give the deploy.prototxt" in error


def test_the_flags_of_an_import_are_refused(small: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", *small(), str(tmp_path / "m.onnx"), "--for-training"]) == 1
    assert "--for-training means nothing for prototxt weights onnx" in capsys.readouterr().err


def test_overflow_is_told_apart_from_a_wrong_conversion(small: Any, device: Any) -> None:
    """Runtimes give different results after an overflow, so the conversion is not to blame."""
    net, weights = small(HEAD + """
layer { name: "large" type: "Power" bottom: "conv" top: "large" power_param { scale: 1e38 } }
layer { name: "larger" type: "Power" bottom: "large" top: "larger" power_param { scale: 1e38 } }
layer { name: "none" type: "Eltwise" bottom: "larger" bottom: "larger" top: "none" eltwise_param { coeff: 1 coeff: -1 } }""")
    exported = of((net, weights))
    (last,) = (node for node in exported.model.graph.node if node.op_type == "Add")
    last.op_type = "Sub"  # a runtime that computes infinity where ocaffe computes NaN
    with pytest.raises(Error, match="values in ocaffe that are not finite") as problem:
        verify(exported, [random_inputs(exported.graph)], device)
    assert "weights of a trained net" in str(problem.value)


@pytest.mark.parametrize(("failures", "inputs", "status"), [(2, "", 0), (99, "", 1), (1, "=in.npz", 1)])
def test_other_random_inputs_if_a_choice_is_undecided(
    failures: int, inputs: str, status: int, small: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[np.ndarray] = []

    def first_undecided(exported: Any, runs: Any, *rest: Any) -> Any:
        seen.append(runs[0]["data"])
        if len(seen) <= failures:
            raise Undecided("a choice depends on rounding errors")
        return verify(exported, runs, *rest)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ocaffe.convert.verify.verify", first_undecided)
    files = small()
    np.savez("in.npz", data=np.zeros(of(files).graph.inputs[0].shape, np.float32))
    assert main(["convert", *files, "m.onnx", f"--verify{inputs}"]) == status
    assert len(seen) == (1 if inputs else min(failures + 1, DRAWS)) and all(np.any(seen[0] != other) for other in seen[1:])
    assert ("depends on rounding" in capsys.readouterr().err) == bool(status)


@pytest.mark.parametrize("ending", ["caffemodel", "caffemodel.h5"])
def test_weights_without_a_net(tmp_path: pathlib.Path, ending: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, weights = trained(tmp_path, TRAINED.replace("bottom: \"data\"", "").replace('bottom: "conv"', "").replace('bottom: "fc" bottom: "label"', ""))
    file = str(tmp_path / f"bare.{ending}")
    assert main(["convert", weights, file]) == 0
    assert main(["convert", file, str(tmp_path / "m.onnx")]) == 1
    assert "the file has weights, but no net" in capsys.readouterr().err


def test_changed_weights_stay(small: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, weights = small()
    target = tmp_path / "other.caffemodel.h5"
    assert main(["convert", weights, str(target)]) == 0 and main(["convert", weights, str(target)]) == 0
    target.write_bytes(b"mine")
    assert main(["convert", weights, str(target)]) == 1 and "--force" in capsys.readouterr().err and target.read_bytes() == b"mine"
    assert main(["convert", weights, str(target), "--force"]) == 0 and target.read_bytes() != b"mine"


def test_fillers_are_exported_when_asked_for(small: Any, tmp_path: pathlib.Path) -> None:
    assert main(["convert", small()[0], str(tmp_path / "m.onnx"), "--fillers", "--noverify"]) == 0


def test_a_model_with_other_content_is_not_overwritten(small: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    files, target = small(), tmp_path / "m.onnx"
    command = ["convert", *files, str(target), "--noverify"]
    assert main(command) == 0 and main(command) == 0  # the same model again
    first = target.read_bytes()
    assert main([*command, "--fold"]) == 1 and target.read_bytes() == first
    error = capsys.readouterr().err
    assert str(target) in error and "the file exists and differs from the one to write" in error and "--force" in error
    assert main([*command, "--fold", "--force"]) == 0 and target.read_bytes() != first


def test_a_constant_output_has_the_name_of_its_blob(small: Any) -> None:
    prior = 'layer { name: "boxes" type: "PriorBox" bottom: "conv" bottom: "data" top: "boxes" prior_box_param { min_size: 4 } }'
    net, weights = small(HEAD + prior)
    assert [info.name for info in of((net, weights), cut_at=["conv", "boxes"]).model.graph.output] == ["conv", "boxes"]
