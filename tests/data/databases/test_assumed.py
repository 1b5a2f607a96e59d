"""Nets whose data is missing: planned, summarised and timed with one random image of the size that their layers say."""
from __future__ import annotations

import os
import pathlib
import re
from typing import Any

import pytest

from ocaffe.cli import main
from ocaffe.data.databases.assumed import assumed_data, parse_shape
from ocaffe.errors import Error
from ocaffe.formats.text import read_net

pytestmark = pytest.mark.quick

LAYER = """layer { name: "d" type: "%s" top: "data" top: "label" %s }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 4 } }
"""
LOSS = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }'
CASES = {
    "crop": ("Data", 'data_param { source: "none" batch_size: 2 } transform_param { crop_size: 9 mean_file: "none.binaryproto" }', "3 9 9"),
    "gray": ("ImageData", 'image_data_param { source: "none" batch_size: 2 new_height: 8 new_width: 6 is_color: false }', "1 8 6"),
    "list": ("ImageData", 'image_data_param { source: "none" batch_size: 2 new_height: 8 new_width: 6 } transform_param { crop_size: 5 }', "3 5 5"),
    "leveldb": ("Data", 'data_param { source: "none" batch_size: 2 backend: LEVELDB } transform_param { crop_h: 4 crop_w: 7 }', "3 4 7"),
    "windows": ("WindowData", 'window_data_param { source: "none" batch_size: 2 crop_size: 6 }', "3 6 6"),
    "windows cropped": ("WindowData", 'window_data_param { source: "none" batch_size: 2 } transform_param { crop_size: 6 mirror: true }', "3 6 6"),
    "boxes": ("AnnotatedData", 'data_param { source: "none" batch_size: 2 } transform_param { resize_param { height: 8 width: 7 } }', "3 8 7"),
}


@pytest.fixture
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("case", CASES)
def test_sizes(here: pathlib.Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    kind, fields, shape = CASES[case]
    pathlib.Path("net.prototxt").write_text(LAYER % (kind, fields))
    assert main(["plan", "--model", "net.prototxt", "--phase", "TRAIN", "--dump", "graph"]) == 0
    said = capsys.readouterr()
    channels, height, width = shape.split()
    assert re.search(rf"data \(2 x {channels} x {height} x {width}\)", said.out), said.out
    assert said.err.startswith("note: none does not exist: images of ") and said.err.count("note") == 1


def test_sizes_of_images(here: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """DetectionEvaluate needs no file of sizes, because plans do not depend on it."""
    rows = "".join(f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ dim: 1 dim: 1 dim: 5 dim: {columns} }} }} }}\n'
                   for name, columns in (("det", 7), ("gt", 8)))  # fmt: skip
    param = 'detection_evaluate_param { num_classes: 3 name_size_file: "none.txt" }'
    pathlib.Path("net.prototxt").write_text(f'{rows} layer {{ name: "eval" type: "DetectionEvaluate" bottom: "det" bottom: "gt" top: "eval" {param} }}')
    assert main(["plan", "--model", "net.prototxt", "--phase", "TEST", "--dump", "graph"]) == 0
    said = capsys.readouterr()
    assert "eval (1 x 1 x 7 x 5)" in said.out and said.err == "note: none.txt does not exist: sizes of images are not used\n"


def test_shape(here: pathlib.Path, capsys: pytest.CaptureFixture[str], device: Any) -> None:
    pathlib.Path("net.prototxt").write_text("\n" + LAYER % ("Data", 'data_param { source: "none" batch_size: 2 }') + LOSS)
    for command in (["plan", "--model", "net.prototxt"], ["summary", "net.prototxt"], ["time", "--model", "net.prototxt", "--device", device.number]):
        assert main(command) == 1
        error = capsys.readouterr().err
        assert "net.prototxt:2: layer 'd' (Data)" in error and "--shape 3x224x224" in error
        assert "none does not exist, and the layer does not say the size" in error
        assert main([*command, "--shape", "1x5x4", *(["--iterations", "2"] if command[0] == "time" else [])]) == 0
        said = capsys.readouterr()
        assert "none does not exist: images of 1 x 5 x 4 are assumed" in said.err
        assert command[0] != "summary" or said.out.startswith("phase TEST")
    assert main(["train", "--solver", "none.prototxt"]) == 1  # a training never assumes data


def test_the_same_plan_as_with_data(here: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    pathlib.Path("net.prototxt").write_text(LAYER % ("Data", 'data_param { source: "none" batch_size: 2 backend: LMDB } transform_param { crop_size: 9 }'))
    pathlib.Path("solver.prototxt").write_text('net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1')
    with assumed_data() as data:
        source = data.complete(read_net("net.prototxt")).layer[0].data_param.source
        os.rename(source, "made")
    plans = []
    for _ in range(2):
        assert main(["plan", "--solver", "solver.prototxt"]) == 0
        plans.append(capsys.readouterr())
        pathlib.Path("net.prototxt").write_text(pathlib.Path("net.prototxt").read_text().replace('"none"', '"made"'))
    assert plans[0].out == plans[1].out and plans[0].err and not plans[1].err


HDF5 = """layer { name: "d" type: "HDF5Data" top: "data" top: "label" hdf5_data_param { source: "none.txt" batch_size: 2 } }
layer { name: "c" type: "Convolution" bottom: "data" top: "c" convolution_param { num_output: 3 kernel_size: 3 } }
layer { name: "l" type: "Silence" bottom: "c" bottom: "label" }"""


@pytest.mark.parametrize("shape", ["data:2x3x8x9,label:2x5", "data:3x8x9,label:5"])
def test_shapes_of_rows(here: pathlib.Path, capsys: pytest.CaptureFixture[str], device: Any, shape: str) -> None:
    """Shapes of tops begin with the batch size, or they are shapes of rows."""
    pathlib.Path("net.prototxt").write_text(HDF5)
    for command in (["plan", "--model", "net.prototxt", "--dump", "graph"], ["time", "--model", "net.prototxt", "--device", device.number]):
        assert main([*command, "--shape", shape]) == 0
        said = capsys.readouterr()
        assert "none.txt does not exist: data of 2 x 3 x 8 x 9, label of 2 x 5 is assumed" in said.err
        assert command[0] != "plan" or ("data (2 x 3 x 8 x 9)" in said.out and "label (2 x 5)" in said.out)


def test_shapes_that_are_missing(here: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    pathlib.Path("net.prototxt").write_text(HDF5)
    for words, fact in (([], "--shape data:"), (["--shape", "data:3x8x8"], "--shape does not say the shape of 'label'"),
                        (["--shape", "dat:3x8x8"], "--shape names 'dat', which is not a top of a data layer")):  # fmt: skip
        assert main(["summary", "net.prototxt", *words]) == 1
        assert fact in capsys.readouterr().err


def test_the_batch_of_another_phase(here: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Shapes with the batch size of TRAIN are no shapes of rows in TEST."""
    data = HDF5.splitlines()[0]
    sizes = {"TRAIN": 2, "TEST": 5}
    both = [data.replace("batch_size: 2", f"batch_size: {size}").replace("type:", f"include {{ phase: {phase} }} type:") for phase, size in sizes.items()]
    pathlib.Path("net.prototxt").write_text("\n".join([*both, *HDF5.splitlines()[1:]]))
    for phase, size in sizes.items():
        assert main(["plan", "--model", "net.prototxt", "--phase", phase, "--dump", "graph", "--shape", "data:2x3x8x9,label:2x5"]) == 0
        assert f"data ({size} x 3 x 8 x 9)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "fields", "data", "label"),
    [
        ("DenseImageData", "dense_image_data_param { source: 'none' batch_size: 2 new_height: 6 new_width: 8 }", "2 x 3 x 6 x 8", "2 x 1 x 6 x 8"),
        ("ImageLabelmapData", "image_data_param { source: 'none' is_color: false } transform_param { crop_size: 5 }", "1 x 1 x 5 x 5", "1 x 1 x 5 x 5"),
        ("ImageSegData", "image_data_param { source: 'none' label_type: PIXEL }", "1 x 3 x 4 x 6", "1 x 1 x 4 x 6"),
    ],
)
def test_lists_of_label_images(here: pathlib.Path, capsys: pytest.CaptureFixture[str], kind: str, fields: str, data: str, label: str) -> None:
    """A layer whose list is missing becomes an Input layer, with the size that it says or with that of --shape."""
    pathlib.Path("net.prototxt").write_text(LAYER % (kind, fields))
    if kind == "ImageSegData":
        assert main(["plan", "--model", "net.prototxt"]) == 1
        told = "none does not exist, and the layer does not say the size of its images\n  fix: give channels, height and width of its images: --shape 3x224x224"
        assert told in capsys.readouterr().err
    assert main(["plan", "--model", "net.prototxt", "--dump", "graph", *(["--shape", "3x4x6"] if kind == "ImageSegData" else [])]) == 0
    said = capsys.readouterr()
    assert f"data ({data})" in said.out and f"label ({label})" in said.out
    assert said.err == f"note: 'd' ({kind}) is an Input layer here: {data}, {label}\n"


def test_videos_and_python_need_shapes(here: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The flag that the error names can be typed as it stands."""
    videos = LAYER % ("VideoData", "video_data_param { source: 'none' batch_size: 2 }")
    python = LAYER % ("Python", "python_param { module: 'no_such_module' layer: 'X' }")
    for text, flag in ((videos, "--shape data:2x3x16x112x112,label:2,"), (python, "--shape data:1x3x224x224,label:1 ")):
        pathlib.Path("net.prototxt").write_text(text)
        assert main(["summary", "net.prototxt"]) == 1
        error = capsys.readouterr().err
        assert flag in error and "layer 'd'" in error
        assert main(["summary", "net.prototxt", *flag.strip(" ,").split()]) == 0
        assert "is an Input layer here" in capsys.readouterr().err


@pytest.mark.parametrize("tops", ["data im_info gt_boxes", "data rois labels targets weights", "data rois labels targets inside outside"])
@pytest.mark.parametrize("shape", ["3x96x160", "data:1x3x96x160"])
def test_regions(here: pathlib.Path, capsys: pytest.CaptureFixture[str], tops: str, shape: str) -> None:
    """A Python layer of py-faster-rcnn whose settings come from a script."""
    layer = "".join(f'top: "{name}" ' for name in tops.split())
    param = "module: 'roi_data_layer.layer' layer: 'RoIDataLayer' param_str: \"'num_classes': 4\""
    silence = "".join(f'bottom: "{name}" ' for name in tops.split())
    text = f'layer {{ name: "d" type: "Python" {layer} python_param {{ {param} }} }} layer {{ name: "s" type: "Silence" {silence} }}'
    pathlib.Path("net.prototxt").write_text(text)
    assert main(["plan", "--model", "net.prototxt", "--phase", "TRAIN", "--dump", "graph", "--shape", shape]) == 0
    said = capsys.readouterr()
    assert "the database does not exist: images of 3 x 96 x 160 are assumed" in said.err
    assert f"data ({2 if 'rois' in tops else 1} x 3 x 96 x 160)" in said.out


@pytest.mark.parametrize("text", ["3x224", "3x0x4", "axbxc", "1x2x3x4x5", "data:", "data:2x", ":3x4", "data:0x4"])
def test_wrong_shapes(text: str) -> None:
    with pytest.raises(Error, match="--shape"):
        parse_shape(text)
    assert parse_shape("8x3x5x6") == parse_shape("3,5,6") == (3, 5, 6) and parse_shape("") is None


ARRAYS = """layer { name: "d" type: "HDF5Data" top: "data" top: "label" hdf5_data_param { source: "missing/train.txt" batch_size: 2 } }
layer { name: "c" type: "Convolution" bottom: "data" top: "c" convolution_param { num_output: 3 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "l" type: "EuclideanLoss" bottom: "c" bottom: "label" top: "l" }
"""
OTHERS = [
    ARRAYS,
    ARRAYS.replace("HDF5Data", "Python").replace("}", '} python_param { module: "m" layer: "L" }', 1),
    ARRAYS.replace("HDF5Data", "DenseImageData").replace("hdf5_data_param", "dense_image_data_param"),
]


@pytest.mark.parametrize("net", OTHERS, ids=["hdf5", "python", "dense"])
def test_shapes_of_tops(net: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Data layers whose sizes only their files say take whole shapes by the names of their tops."""
    monkeypatch.chdir(tmp_path)
    pathlib.Path("net.prototxt").write_text(net)
    shape = "--shape=data:2x3x8x9,label:2x3x8x9"
    assert main(["summary", "--phase=TRAIN", shape, "net.prototxt"]) == 0
    assert "2 x 3 x 8 x 9" in capfd.readouterr().out
    assert main(["plan", "--phase=TRAIN", "--model=net.prototxt", shape]) == 0
    assert main(["summary", "--phase=TRAIN", shape.replace("label", "labels"), "net.prototxt"]) == 1
    assert "--shape names 'labels', which is not a top of a data layer" in capfd.readouterr().err
    for word in ("data:2x3x8x9", "data:2x0,label:2"):
        assert main(["summary", "--phase=TRAIN", f"--shape={word}", "net.prototxt"]) == 1


def test_the_remedy_for_arrays(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("net.prototxt").write_text(ARRAYS.replace("EuclideanLoss", "Silence").replace(' top: "l"', ""))
    assert main(["summary", "net.prototxt"]) == 1
    remedy = capfd.readouterr().err.rpartition("fix: ")[2].partition(", with the right sizes")[0]
    assert remedy == "--shape data:2x3x32x32,label:2x1"
    assert main(["summary", *remedy.split(), "net.prototxt"]) == 0 and "2 x 3 x 32 x 32" in capfd.readouterr().out


def test_the_shape_of_an_image_by_its_top(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    text = 'layer { name: "d" type: "ImageData" top: "data" top: "label" image_data_param { source: "none" batch_size: 4 } }\n'
    pathlib.Path("net.prototxt").write_text(text + 'layer { name: "s" type: "Silence" bottom: "data" bottom: "label" }\n')
    assert main(["summary", "net.prototxt", "--shape=data:4x3x10x11"]) == 0
    assert "4 x 3 x 10 x 11" in capfd.readouterr().out
