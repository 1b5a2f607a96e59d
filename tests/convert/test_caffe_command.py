"""`ocaffe convert NET WEIGHTS NET2 WEIGHTS2`: files, notes, preprocessing, refusals; and --fold from ONNX."""
from __future__ import annotations

import json
import pathlib
import re
import shlex
import textwrap
from typing import Any

import numpy as np
import onnx
import pytest

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cli import main
from ocaffe.compiler.network import phase_net
from ocaffe.convert.deploy import deploy
from ocaffe.formats.text import read_net
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.formats.weights import read_weights, write_weights
from tests.convert.test_convert import ROOT, random_weights

pytestmark = pytest.mark.unoptimised

SHAPE = "--shape=data:1x3x8x8"
OLD = """
name: "old"
layers { name: "data" type: DATA top: "data" top: "label" data_param { source: "no_database" batch_size: 8 }
         transform_param { mean_value: 104 mean_value: 117 mean_value: 123 scale: 0.017 } include { phase: TEST } }
layers { name: "conv" type: CONVOLUTION bottom: "data" top: "conv" blobs_lr: 1 blobs_lr: 2
         convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layers { name: "relu" type: RELU bottom: "conv" top: "conv" }
layers { name: "drop" type: DROPOUT bottom: "conv" top: "conv" }
layers { name: "ip" type: INNER_PRODUCT bottom: "conv" top: "ip" inner_product_param { num_output: 5 } }
layers { name: "loss" type: SOFTMAX_LOSS bottom: "ip" bottom: "label" top: "loss" }
layers { name: "accuracy" type: ACCURACY bottom: "ip" bottom: "label" top: "accuracy" include { phase: TEST } }
"""
NVIDIA = """
name: "nvidia"
layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "no_database" batch_size: 8 } transform_param { crop_size: 8 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4 kernel_size: 3 pad: 1 bias_term: false } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" batch_norm_param { scale_bias: true eps: 0.0001 } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip" inner_product_param { num_output: 5 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def made(text: str, weights: str = "net.caffemodel") -> None:
    """Write net.prototxt and random weights for it."""
    pathlib.Path("net.prototxt").write_text(text)
    message = deploy(phase_net(upgrade_net(read_net("net.prototxt")), proto.TEST), shapes={"data": (1, 3, 8, 8)}).message
    write_weights(weights, message, {layer.name: layer.blobs for layer in random_weights(message).layers})


def convert(*more: str, files: tuple[str, ...] = ("net.prototxt", "net.caffemodel", "out.prototxt", "out.caffemodel"), shape: str = SHAPE) -> int:
    return main(["convert", *files, *filter(None, [shape]), *more])


def run(net: str, weights: str, image: np.ndarray) -> np.ndarray:
    (found,) = Net(net, weights, proto.TEST).forward_all(data=image).values()
    return np.array(found)


def test_old_training_net_to_deploy(capsys: pytest.CaptureFixture[str]) -> None:
    made(OLD)
    assert convert("--activate-losses") == 0
    said = capsys.readouterr().out
    assert "out.prototxt, out.caffemodel: 5 layers (1 without effect removed) of net.prototxt, from data to prob; equal to the source in 4 values" in said
    assert "expects images as in the training: pixels from 0 to 255, BGR, minus 104, 117, 123, times 0.017. --bake-preprocessing makes" in said
    net = read_net("out.prototxt")
    assert [layer.type for layer in net.layer] == ["Input", "Convolution", "ReLU", "InnerProduct", "Softmax"] and not net.layers
    assert pathlib.Path("out.prototxt").read_text().startswith("# Converted from net.prototxt by ocaffe.\n")
    x = np.random.default_rng(0).uniform(0, 255, (1, 3, 8, 8)).astype(np.float32)
    assert convert("--activate-losses", "--bake-preprocessing", "--fold", "--force") == 0
    assert "expects images" not in capsys.readouterr().out
    assert [layer.type for layer in read_net("out.prototxt").layer] == ["Input", "Convolution", "ReLU", "InnerProduct", "Softmax"]
    baked = run("out.prototxt", "out.caffemodel", x)
    assert convert("--activate-losses", "--force") == 0
    mean = np.float32([104, 117, 123]).reshape(3, 1, 1)
    assert np.allclose(baked, run("out.prototxt", "out.caffemodel", (x - mean) * np.float32(0.017)), atol=1e-6)


def test_example_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    """docs/convert-caffe.md: V1 layers, a data layer, NVCaffe's BatchNorm, in one command."""
    blocks = re.findall(r"(?:^    .*\n)+", (ROOT / "docs/convert-caffe.md").read_text(), re.MULTILINE)
    net, command, said = (textwrap.dedent(next(block for block in blocks if word in block)) for word in ("BATCH_NORM", "--activate-losses", "equal to"))
    pathlib.Path("old.prototxt").write_text(net)
    message, rng = upgrade_net(read_net("old.prototxt")), np.random.default_rng(0)
    shapes = {"conv1": [(16, 3, 3, 3), (16,)], "bn1": [(16,), (16,), (1,), (16,), (16,)], "fc": [(10, 14400), (10,)]}
    write_weights("old.caffemodel", message, {name: [np.float32(rng.uniform(0.01, 0.1, each)) for each in found] for name, found in shapes.items()}
                  | {"bn1": [np.float32(rng.uniform(0.5, 2, each) if each != (1,) else np.ones(1)) for each in shapes["bn1"]]})  # fmt: skip
    assert main(shlex.split(command)[1:]) == 0
    found = capsys.readouterr().out.splitlines()
    assert all(wanted in line for wanted, line in zip(said.splitlines(), found, strict=True))
    assert [layer.type for layer in read_net("new.prototxt").layer] == ["Input", "Convolution", "ReLU", "InnerProduct", "Softmax"]


DIGITS = """
name: "digits"
layer { name: "train-data" type: "Data" top: "data" top: "label" include { stage: "train" } data_param { source: "no_train_db" batch_size: 8 }
  transform_param { crop_size: 8 mean_value: 104 mean_value: 117 mean_value: 123 } }
layer { name: "val-data" type: "Data" top: "data" top: "label" include { stage: "val" } data_param { source: "no_val_db" batch_size: 8 }
  transform_param { crop_size: 8 mean_value: 104 mean_value: 117 mean_value: 123 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4 kernel_size: 3 } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip" inner_product_param { num_output: 5 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" exclude { stage: "deploy" } }
layer { name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy" include { stage: "val" } }
layer { name: "softmax" type: "Softmax" bottom: "ip" top: "softmax" include { stage: "deploy" } }
"""
VALUES = "mean_value: 104 mean_value: 117 mean_value: 123"


def test_the_mean_of_data_layers_is_told_with_a_model_too(capsys: pytest.CaptureFixture[str]) -> None:
    made(DIGITS)
    files = ("net.prototxt", "net.caffemodel", "net.onnx")
    assert convert("--stage=deploy", files=files) == 0
    assert "the model expects images as in the training: pixels from 0 to 255, BGR, minus 104, 117, 123. --bake-pre" in capsys.readouterr().out
    assert convert("--stage=deploy", "--bake-preprocessing", "--force", files=files) == 0
    assert "expects images" not in capsys.readouterr().out


def test_lint_of_the_net_for_deployment_of_a_training_file(capsys: pytest.CaptureFixture[str]) -> None:
    """The data layers of other stages tell the size of the input, and lint says the command that needs it."""
    made(DIGITS.replace('type: "ReLU"', 'type: "Swish"'))
    assert main(["lint", "net.prototxt", "--stage=deploy"]) == 0
    assert main(["lint", "net.prototxt", "--stage=deploy", "--target=rknn"]) == 1
    said = capsys.readouterr().out
    assert "1 finding in" in said and "no layer type Swish" in said
    command = "ocaffe convert net.prototxt net.caffemodel net_rknn.prototxt net_rknn.caffemodel --target=rknn --stage=deploy --shape=data:1x3x8x8"
    assert f"`{command}`" in said and main(shlex.split(command)[1:]) == 0
    made(DIGITS.replace("crop_size: 8 ", ""))
    assert main(["lint", "net.prototxt", "--stage=deploy"]) == 1
    assert "unknown bottom blob 'data'" in capsys.readouterr().out


@pytest.mark.parametrize("stage", ["deploy", "", "val"])
def test_preprocessing_of_data_layers_in_other_stages(stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    made(DIGITS)
    flags = [f"--stage={stage}"] if stage else []
    assert convert(*flags, "--target=bvlc") == 0
    said = capsys.readouterr().out
    assert "expects images as in the training: pixels from 0 to 255, BGR, minus 104, 117, 123. --bake-preprocessing" in said
    offer = "note: rules of layers name the stages 'train', 'val', 'deploy', and without --stage the layers that need one are left out: " \
            "--stage=deploy has layer 'softmax' (Softmax) as its end"
    assert (offer in said) == (not stage)
    plain = run("out.prototxt", "out.caffemodel", image := np.random.default_rng(0).uniform(0, 255, (1, 3, 8, 8)).astype(np.float32))
    assert convert(*flags, "--bake-preprocessing", "--force") == 0
    assert "expects images" not in capsys.readouterr().out
    baked = run("out.prototxt", "out.caffemodel", image + np.float32([104, 117, 123]).reshape(3, 1, 1))
    assert np.allclose(plain, baked, atol=1e-3)


def test_data_layers_that_differ(capsys: pytest.CaptureFixture[str]) -> None:
    made(DIGITS.replace(VALUES, "", 1))
    assert convert("--stage=deploy") == 0
    assert "BGR, minus 104, 117, 123; but the data layer 'train-data' has no mean and no scale." in capsys.readouterr().out
    made(DIGITS.replace("123", "120", 1))
    assert convert("--stage=deploy", "--force") == 0
    told = capsys.readouterr().out
    assert "BGR, minus 104, 117, 120; but the data layer 'val-data' has pixels from 0 to 255, BGR, minus 104, 117, 123." in told
    assert convert("--stage=deploy", "--force", "--bake-preprocessing") == 1
    assert "the data layers 'train-data' and 'val-data' have different means or scales" in capsys.readouterr().err
    made(DIGITS.replace(VALUES, ""))
    assert convert("--stage=deploy", "--force", "--bake-preprocessing") == 1
    said = capsys.readouterr().err
    assert "no data layer of the net has a mean" in said and "write a transform_param with mean_value" in said and "train_val" not in said


def test_stages_that_no_layer_names(capsys: pytest.CaptureFixture[str]) -> None:
    made(DIGITS)
    others = ([*each, "net.prototxt"] for each in (["lint"], ["summary", "--shape=data:1x3x8x8,label:1"]))
    for command in (["convert", "net.prototxt", "net.caffemodel", "out.prototxt", "out.caffemodel", SHAPE], *others, ["compare", "net.prototxt"],
                    ["convert", "net.prototxt", "net.caffemodel", "out.onnx", SHAPE], ["time", "-model", "net.prototxt"],
                    ["draw_net", "net.prototxt", "net.svg", "--phase=TEST"],
                    ["test", "-model", "net.prototxt", "-weights", "net.caffemodel"], ["plan", "--model", "net.prototxt"]):  # fmt: skip
        assert main([*command, "--stage=deplyo"]) == 1, command
        said = capsys.readouterr().err
        assert "--stage names 'deplyo', and no rule of a layer does" in said
        assert "did you mean --stage=deploy? the rules of layers name 'train', 'val', 'deploy'" in said
    made(NVIDIA)
    pathlib.Path("net.prototxt").write_text(DIGITS)
    pathlib.Path("solver.prototxt").write_text('net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1 snapshot: 0')
    assert main(["plan", "--solver", "solver.prototxt", "--stage=trian"]) == 1  # its net has no data
    assert "no rule of a layer names the stage 'trian'; did you mean 'train'? (the rules of layers name 'train', 'val', 'deploy')" in capsys.readouterr().err
    made(NVIDIA)
    assert convert("--stage=deploy") == 1 and "leave it out, or name another: no layer has a rule with a stage" in capsys.readouterr().err


def test_shapes_that_are_offered(capsys: pytest.CaptureFixture[str]) -> None:
    """They have the size that a data layer says, of whatever stage, and the command runs with them."""
    made(DIGITS)
    assert convert(shape="") == 1
    said = capsys.readouterr().err
    assert "--shape=data:1x3x8x8 (the size that the data layer says)" in said and "--stage=deploy has layer 'softmax'" in said
    assert convert("--stage=val", shape="") == 1
    said = capsys.readouterr().err
    assert "the database no_val_db does not exist" in said and "--shape=data:1x3x8x8 (the size that the data layer says) makes the data unnecessary" in said
    assert convert(shape="--shape=data:3x8x8") == 1
    said = capsys.readouterr().err
    assert "--shape gives 'data' 3 axes, and images have 4" in said and "fix: --shape=data:1x3x8x8\n" in said
    for more in ("", 'layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param { kernel_size: 2 } }'):
        pathlib.Path("net.prototxt").write_text(re.sub('"Data" top: "data" top: "label".*', '"Input" top: "data" }', NVIDIA) + more)
        assert convert(shape="--shape=data:3x8x8") == 1
        assert "fix: --shape=data:1x3x8x8, if the batch is missing" in capsys.readouterr().err
    made(DIGITS)
    for stage in ("deploy", "val"):
        assert convert(f"--stage={stage}", shape="--shape=image:1x3x8x8") == 1
        said = capsys.readouterr().err
        assert "--shape names 'image', which is not an input" in said and "fix: --shape=data:1x3x8x8; the inputs are 'data'" in said


def test_example_of_digits_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"(?:^    .*\n)+", (ROOT / "docs/convert-caffe.md").read_text(), re.MULTILINE)
    command = textwrap.dedent(next(block for block in blocks if "--stage deploy" in block))
    made(DIGITS)
    files = {"train_val.prototxt": "net.prototxt", "snapshot.caffemodel": "net.caffemodel"}
    assert main([files.get(word, word.replace("224x224", "8x8")) for word in shlex.split(command)[1:]]) == 0
    assert read_net("deploy.prototxt").layer[-1].type == "Softmax" and "minus 104" in capsys.readouterr().out


def test_fused_normalization_of_nvcaffe(capsys: pytest.CaptureFixture[str]) -> None:
    made(NVIDIA)
    assert convert("--fold") == 0
    assert "4 layers (1 of forks rewritten, 2 folded) of net.prototxt, from data to ip; equal" in capsys.readouterr().out
    assert {layer.name: len(layer.blobs) for layer in read_weights("out.caffemodel").layers if layer.blobs} == {"conv": 2, "ip": 2}


@pytest.mark.parametrize(("source", "target"), [("net.caffemodel", "out.caffemodel.h5"), ("net.caffemodel.h5", "out.caffemodel"), ("net.h5", "out.h5")])
def test_hdf5(source: str, target: str) -> None:
    made(NVIDIA)
    if source != "net.caffemodel":
        assert main(["convert", "net.prototxt", "net.caffemodel", source]) == 0
    assert convert("--fold", files=("net.prototxt", source, "out.prototxt", target)) == 0
    assert convert("--fold", files=("net.prototxt", "net.caffemodel", "again.prototxt", "again.caffemodel")) == 0
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8), np.float32)
    assert np.array_equal(run("out.prototxt", target, x), run("again.prototxt", "again.caffemodel", x))


def test_weights_with_the_net_need_no_prototxt() -> None:
    made(NVIDIA)
    assert convert("--fold") == 0
    assert convert(files=("out.caffemodel", "next.prototxt", "next.caffemodel"), shape="") == 0
    assert read_net("next.prototxt").layer == read_net("out.prototxt").layer


def test_cut_and_batch() -> None:
    made(NVIDIA)
    assert convert("--cut-at=conv", shape="--shape=data:3x3x9x9") == 0
    net = read_net("out.prototxt")
    assert [layer.name for layer in net.layer] == ["data", "conv", "bn", "bn_scale", "relu"] and net.layer[0].input_param.shape[0].dim == [3, 3, 9, 9]


def test_raw_detection(capsys: pytest.CaptureFixture[str]) -> None:
    """SSD without its DetectionOutput, which few chips have."""
    net = str(ROOT / "zoo/ssd_shapes/deploy.prototxt")
    message = upgrade_net(read_net(net))
    write_weights("net.caffemodel", message, {layer.name: layer.blobs for layer in random_weights(message).layers})
    assert convert("--fold", "--raw-detection", files=(net, "net.caffemodel", "out.prototxt", "out.caffemodel"), shape="") == 0
    layers = read_net("out.prototxt").layer
    ends = [top for layer in layers for top in layer.top if not any(top in other.bottom for other in layers)]
    assert sorted(ends) == sorted(next(layer for layer in message.layer if layer.type == "DetectionOutput").bottom) and "folded" in capsys.readouterr().out
    for given in ("--raw-detection", ""):  # rknn has no PriorBox, and takes the heads beside it
        files = (net, "net.caffemodel", "heads.prototxt", "heads.caffemodel")
        assert convert("--target=rknn", "--force", *filter(None, [given]), files=files, shape="") == 1
        said = capsys.readouterr().err
        assert "has no layer type PriorBox" in said and ("in place of --raw-detection converts" in said) == bool(given)
        cut = re.findall("fix: (--cut-at=[^ ]*)", said)
        assert cut == ["--cut-at=mbox_loc,mbox_conf_flatten"] and convert("--target=rknn", "--noverify", "--force", *cut, files=files, shape="") == 0
    assert not {"DetectionOutput", "BatchNorm", "Scale"}.intersection(layer.type for layer in layers)


def test_files_of_others_stay(capsys: pytest.CaptureFixture[str]) -> None:
    made(NVIDIA)
    assert convert() == 0 and convert() == 0
    before = pathlib.Path("out.prototxt").read_bytes()
    assert convert("--fold") == 1
    assert "the file exists and differs from the one to write" in capsys.readouterr().err and pathlib.Path("out.prototxt").read_bytes() == before
    assert convert("--fold", "--force") == 0 and pathlib.Path("out.prototxt").read_bytes() != before


@pytest.mark.parametrize("output", ["net", "./net", "linked", "hard"])
def test_inputs_are_no_outputs(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Under no name, and not with --force."""
    made(NVIDIA)
    net, weights = pathlib.Path("net.prototxt"), pathlib.Path("net.caffemodel")
    for path in (net, weights):
        pathlib.Path(f"linked{path.suffix}").symlink_to(path)
        pathlib.Path(f"hard{path.suffix}").hardlink_to(path)
    before = net.read_bytes(), weights.read_bytes()
    for files in ((f"{output}.prototxt", "out.caffemodel"), ("out.prototxt", f"{output}.caffemodel")):
        assert convert("--force", files=("net.prototxt", "net.caffemodel", *files)) == 1
        assert "--force does not write over an input" in capsys.readouterr().err
    assert main(["convert", "net.caffemodel", f"{output}.caffemodel", "--force"]) == 1
    assert (net.read_bytes(), weights.read_bytes()) == before and not list(pathlib.Path().glob("out*"))


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--fp16", "--fp16 means nothing for prototxt weights prototxt weights: Caffe files hold numbers of 32 bits. The chip's own tool makes 16 or 8"),
        ("--opset=13", "--opset means nothing for prototxt weights prototxt weights"),
        ("--dynamic-batch", "--dynamic-batch means nothing"),
        ("--raw-detection", "--raw-detection is given, but the net has no DetectionOutput layer"),
        ("--cut-at=con", "--cut-at names 'con', which is not a blob of the net"),
        ("--cut-at=data", "no layer but the input remains: --cut-at names 'data'"),
        ("--target=rknn --target tpu-mlir", "--target is given 2 times: rknn, tpu-mlir"),
        ("--tolerance=-1", "--tolerance is -1"),
    ],
)
def test_refusals(flag: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    made(NVIDIA)
    assert convert(*flag.split()) == 1
    assert said in capsys.readouterr().err and not list(pathlib.Path().glob("out*"))


def test_weights_of_another_net(capsys: pytest.CaptureFixture[str]) -> None:
    made(NVIDIA.replace("num_output: 4", "num_output: 6"))
    pathlib.Path("net.prototxt").write_text(NVIDIA)
    assert convert() == 1
    said = capsys.readouterr().err
    assert "weight 0 is 6 x 3 x 3 x 3 in the file, 4 x 3 x 3 x 3 in the net" in said and "rename" not in said
    assert "are these the weights of this net?" in said and "`ocaffe lint net.prototxt --weights=net.caffemodel` lists what differs" in said
    assert not list(pathlib.Path().glob("out*"))


@pytest.mark.parametrize(("kind", "fact"), [("Python", "the module 'absent' cannot be imported"), ("Unheard", "unknown layer type 'Unheard'")])
def test_layer_without_meaning_can_be_cut_off(kind: str, fact: str, capsys: pytest.CaptureFixture[str]) -> None:
    made(NVIDIA)
    own = f'layer {{ name: "own" type: "{kind}" bottom: "ip" top: "own" python_param {{ module: "absent" layer: "Own" }} }}'
    pathlib.Path("net.prototxt").write_text(NVIDIA + own)
    assert convert() == 1
    said = capsys.readouterr().err
    assert fact in said and "--cut-at=ip converts the part before it" in said
    assert convert("--cut-at=ip") == 0


def test_norms_that_stay_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    made(NVIDIA.replace('type: "ReLU" bottom: "conv" top: "conv"', 'type: "ReLU" bottom: "conv" top: "r"') + """
layer { name: "late" type: "Scale" bottom: "r" top: "late" }
layer { name: "sum" type: "Eltwise" bottom: "late" bottom: "conv" top: "sum" }
""")
    assert convert("--fold", "--cut-at=sum") == 0
    assert "note: 1 could not be folded, because no product alone makes or reads their values: 'late'" in capsys.readouterr().out


# -- what the training wrote beside the weights ----------------------------------------------------------------------


def described(**more: Any) -> None:
    record = {"size": [3, 8, 8], "resize": [8, 8], "mean": [104.0, 117.0, 123.0], "scale": 0.5, "channel_order": "BGR", "labels": ["cat", "dog"]}
    pathlib.Path("net.json").write_text(json.dumps(record | more))


def test_labels_and_preprocessing_come_along(capsys: pytest.CaptureFixture[str]) -> None:
    made(NVIDIA)
    described()
    assert convert() == 0
    said = capsys.readouterr().out
    assert "expects images as in the training: 3 x 8 x 8 values from 0 to 255, BGR, minus 104, 117, 123, times 0.5." in said and "out.json says so too" in said
    assert json.loads(pathlib.Path("out.json").read_text()) == json.loads(pathlib.Path("net.json").read_text())
    assert convert("--bake-preprocessing", "--force") == 0
    found = json.loads(pathlib.Path("out.json").read_text())
    assert (found["mean"], found["scale"], found["labels"]) == ([0, 0, 0], 1, ["cat", "dog"])
    pathlib.Path("out.json").write_text("{}")
    assert convert("--bake-preprocessing") == 1 and pathlib.Path("out.json").read_text() == "{}"


def test_mean_image_comes_along() -> None:
    made(NVIDIA)
    np.save("net.mean.npy", np.random.default_rng(0).uniform(100, 120, (3, 8, 8)).astype(np.float32))
    described(mean="net.mean.npy")
    assert convert() == 0
    assert json.loads(pathlib.Path("out.json").read_text())["mean"] == "out.mean.npy"
    assert pathlib.Path("out.mean.npy").read_bytes() == pathlib.Path("net.mean.npy").read_bytes()
    assert convert("--bake-preprocessing", "--force") == 0
    assert [layer.type for layer in read_net("out.prototxt").layer[:2]] == ["Input", "Scale"]
    x = np.random.default_rng(1).uniform(0, 255, (1, 3, 8, 8)).astype(np.float32)
    baked = run("out.prototxt", "out.caffemodel", x)
    assert convert("--force") == 0
    assert np.allclose(baked, run("out.prototxt", "out.caffemodel", (x - np.load("net.mean.npy")) * np.float32(0.5)), atol=1e-3)


def test_weights_of_one_training_keep_their_file() -> None:
    """Snapshots of a training share one file of preprocessing."""
    made(NVIDIA, "net_iter_5.caffemodel")
    described()
    before = pathlib.Path("net.json").read_bytes()
    assert convert("--bake-preprocessing", files=("net.prototxt", "net_iter_5.caffemodel", "out.prototxt", "net.caffemodel")) == 1
    assert convert(files=("net.prototxt", "net_iter_5.caffemodel", "out.prototxt", "net.caffemodel")) == 0
    assert pathlib.Path("net.json").read_bytes() == before


# -- from ONNX -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("branch", [False, True])
def test_fold_on_import(branch: bool, capsys: pytest.CaptureFixture[str]) -> None:
    helper, rng = onnx.helper, np.random.default_rng(0)
    arrays = {"w": rng.standard_normal((4, 3, 3, 3)), **{name: rng.uniform(0.5, 1.5, 4) for name in "sbmv"}}
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("BatchNormalization", ["c", *"sbmv"], ["n"]), helper.make_node("Relu", ["n"], ["y"])]
    nodes += [helper.make_node("Tanh", ["c"], ["z"])] if branch else []
    ends = [helper.make_tensor_value_info(name, 1, [1, 4, 4, 4]) for name in ("y", "z")[: 1 + branch]]
    inputs = [helper.make_tensor_value_info("x", 1, [1, 3, 6, 6])]
    graph = helper.make_graph(nodes, "g", inputs, ends, [onnx.numpy_helper.from_array(value.astype(np.float32), name) for name, value in arrays.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), "m.onnx")
    assert main(["convert", "m.onnx", "m.prototxt", "m.caffemodel", "--fold"]) == 0
    assert "equal" in capsys.readouterr().out
    types = [layer.type for layer in read_net("m.prototxt").layer]
    assert types == (["Input", "Convolution", "Scale", "ReLU", "TanH"] if branch else ["Input", "Convolution", "ReLU"])
