"""The programs of docs/after-opencv-5.md: they run in OpenCV 5, and their net computes what ocaffe computes.

The nets have the inputs and outputs of the published ones, few channels and random weights. OpenCV 5 is that of the Python named by
OCAFFE_OPENCV5_PYTHON, or that of this Python.
"""
from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ocaffe
from ocaffe import proto
from ocaffe.cli import main
from ocaffe.convert.verify import difference
from ocaffe.formats.text import read_net
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.formats.weights import write_weights
from tests.convert.test_convert import random_weights
from tests.docs.commands import ROOT

PAGE = ROOT / "docs" / "after-opencv-5.md"
BLOCK = re.compile(r"^## (.+?)$|^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SAVED = "\nimport numpy\nnumpy.savez('values.npz', blob=blob, out=out)\n"


def net(channels: int, height: int, width: int, *layers: str) -> str:
    image = f"input_param {{ shape {{ dim: 1 dim: {channels} dim: {height} dim: {width} }} }}"
    return "\n".join([f'layer {{ name: "data" type: "Input" top: "data" {image} }}', *layers])


def layer(name: str, kind: str, bottom: str, param: str = "") -> str:
    bottoms = " ".join(f'bottom: "{part}"' for part in bottom.split())
    return f'layer {{ name: "{name}" type: "{kind}" {bottoms} top: "{name}" {param} }}'


def convolution(name: str, bottom: str, outputs: int, kernel: int = 3, stride: int = 1, kind: str = "Convolution") -> str:
    pad = kernel // 2 if kind == "Convolution" else (kernel - stride) // 2
    return layer(name, kind, bottom, f"convolution_param {{ num_output: {outputs} kernel_size: {kernel} stride: {stride} pad: {pad} }}")


def detector(classes: int) -> str:
    """Return an SSD with one map of predictions."""
    boxes = "min_size: 60 max_size: 120 aspect_ratio: 2 flip: true variance: 0.1 variance: 0.1 variance: 0.2 variance: 0.2"
    own = f"num_classes: {classes} background_label_id: 0 nms_param {{ nms_threshold: 0.45 top_k: 100 }} code_type: CENTER_SIZE keep_top_k: 50"
    ends = [text for kind, outputs in (("loc", 16), ("conf", 4 * classes)) for text in (
        convolution(kind, "normal", outputs), layer(f"{kind}_perm", "Permute", kind, "permute_param { order: 0 order: 2 order: 3 order: 1 }"),
        layer("mbox_loc" if kind == "loc" else "conf_flat", "Flatten", f"{kind}_perm"))]  # fmt: skip
    return net(
        3, 300, 300, convolution("conv1", "data", 8, 7, 8), layer("relu1", "ReLU", "conv1"), convolution("conv2", "relu1", 8, 3, 4),
        layer("normal", "Normalize", "conv2", "norm_param { across_spatial: false }"), *ends,
        layer("mbox_priorbox", "PriorBox", "normal data", f"prior_box_param {{ {boxes} }}"),
        layer("rows", "Reshape", "conf_flat", f"reshape_param {{ shape {{ dim: 0 dim: -1 dim: {classes} }} }}"),
        layer("softmax", "Softmax", "rows", "softmax_param { axis: 2 }"), layer("mbox_conf_flatten", "Flatten", "softmax"),
        layer("detection_out", "DetectionOutput", "mbox_loc mbox_conf_flatten mbox_priorbox", f"detection_output_param {{ {own} confidence_threshold: 0.01 }}"),
    )  # fmt: skip


def classifier(classes: int) -> str:
    return net(
        3, 227, 227, convolution("conv1", "data", 8, 7, 4), layer("relu1", "ReLU", "conv1"),
        layer("pool1", "Pooling", "relu1", "pooling_param { pool: MAX kernel_size: 3 stride: 2 }"),
        layer("norm1", "LRN", "pool1", "lrn_param { local_size: 5 alpha: 0.0001 beta: 0.75 }"),
        convolution("conv2", "norm1", 8, 3, 4), layer("drop", "Dropout", "conv2"),
        layer("fc", "InnerProduct", "drop", f"inner_product_param {{ num_output: {classes} }}"), layer("prob", "Softmax", "fc"),
    )  # fmt: skip


NETS = {
    "Classification": classifier(1000),
    "Detection (SSD)": detector(21),
    "Faces (res10 SSD)": detector(2),
    "Segmentation": net(3, 500, 500, convolution("conv1", "data", 8, 7, 8), convolution("score", "conv1", 21, 1),
                        convolution("up", "score", 21, 16, 8, "Deconvolution"), layer("crop", "Crop", "up data", "crop_param { axis: 2 offset: 1 }")),
    "Poses (OpenPose)": net(3, 368, 368, convolution("conv1", "data", 8, 7, 8), layer("relu1", "ReLU", "conv1"), convolution("paf", "relu1", 38),
                            convolution("heat", "relu1", 19), layer("net_output", "Concat", "heat paf")),
    "Age and gender": classifier(8),
    "Super-resolution": net(1, 48, 64, convolution("conv1", "data", 8), layer("relu1", "PReLU", "conv1"),
                            convolution("large", "relu1", 1, 4, 2, "Deconvolution")),
}  # fmt: skip


RAW = "Boxes that you decode yourself"
REGIONS = "Regions (Faster R-CNN)"
REGION_NET = net(
    3, 200, 300, layer("im_info", "Input", "", "input_param { shape { dim: 1 dim: 3 } }"),
    layer("small", "Power", "data", "power_param { scale: 0.002 }"), convolution("conv1", "small", 8, 7, 4), layer("relu1", "ReLU", "conv1"),
    convolution("conv5", "relu1", 8, 3, 4), convolution("rpn_score", "conv5", 18, 1),
    convolution("rpn_bbox_pred", "conv5", 36, 1), layer("rpn_rows", "Reshape", "rpn_score", "reshape_param { shape { dim: 0 dim: 2 dim: -1 dim: 0 } }"),
    layer("rpn_prob", "Softmax", "rpn_rows"), layer("rpn_maps", "Reshape", "rpn_prob", "reshape_param { shape { dim: 0 dim: 18 dim: -1 dim: 0 } }"),
    layer("rois", "Python", "rpn_maps rpn_bbox_pred im_info", "python_param { module: 'rpn.proposal_layer' layer: 'ProposalLayer' }"),
    layer("pool5", "ROIPooling", "conv5 rois", "roi_pooling_param { pooled_w: 7 pooled_h: 7 spatial_scale: 0.0625 }"),
    layer("fc7", "InnerProduct", "pool5", "inner_product_param { num_output: 16 }"),
    layer("bbox_pred", "InnerProduct", "fc7", "inner_product_param { num_output: 12 }"),
    layer("cls_score", "InnerProduct", "fc7", "inner_product_param { num_output: 3 }"), layer("cls_prob", "Softmax", "cls_score"),
)  # fmt: skip


def sections() -> dict[str, list[str]]:
    """Return title -> the programs before and after."""
    found: dict[str, list[str]] = {}
    for title, code in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if title:
            blocks = found[title] = []
        else:
            blocks.append(code)
    return found


@pytest.fixture(scope="session")
def opencv5() -> str:
    """Return a Python that has OpenCV 5."""
    python = os.environ.get("OCAFFE_OPENCV5_PYTHON", sys.executable)
    done = subprocess.run([python, "-c", "import cv2; print(cv2.__version__)"], capture_output=True, text=True)
    if done.stdout.strip()[:2] != "5.":
        assert "OCAFFE_OPENCV5_PYTHON" not in os.environ, f"{python} has no OpenCV 5: {done.stdout}{done.stderr}"
        pytest.skip("OpenCV 5 is not here: pip install '.[test-opencv5]' in an environment of its own, and name its Python in OCAFFE_OPENCV5_PYTHON")
    return python


def test_every_section_has_a_net() -> None:
    assert set(sections()) == {*NETS, RAW, REGIONS}


@pytest.mark.parametrize("title", NETS)
def test_one_line_changes(title: str) -> None:
    before, after = (code.splitlines() for code in sections()[title])
    assert len(before) == len(after)
    [(old, new)] = [pair for pair in zip(before, after) if pair[0] != pair[1]]
    assert "readNetFromCaffe(" in old and "readNetFromONNX(" in new


@pytest.mark.parametrize("title", NETS)
def test_the_program_after(title: str, opencv5: str, device: Any, tmp_path: pathlib.Path) -> None:
    values, expected, _ = both(sections()[title][1] + SAVED, NETS[title], "model.onnx", opencv5, device, tmp_path)
    assert difference(values["out"], expected) <= 1e-4


def test_decoded_boxes(opencv5: str, device: Any, tmp_path: pathlib.Path) -> None:
    [program] = sections()[RAW]
    assert "0.5, 0.45" in program  # random weights have low scores
    program = program.replace("0.5, 0.45", "0.01, 0.45") + "\nout = loc" + SAVED
    _, expected, text = both(program, NETS["Detection (SSD)"], "raw.onnx", opencv5, device, tmp_path, "--raw-detection")
    rows = np.array([line.split() for line in text.splitlines()], np.float32)
    rows[:, 4:] += rows[:, 2:4]
    best = rows[np.argsort(-rows[:, 1], kind="stable")][: expected.shape[2]]
    ours = expected[0, 0, :, 1:]
    ours = ours[np.argsort(-ours[:, 1], kind="stable")]
    assert len(ours) == 50 and np.abs(best - ours).max() <= 1e-4


def test_regions(opencv5: str, device: Any, tmp_path: pathlib.Path) -> None:
    [program] = sections()[REGIONS]
    assert "(1000, 600)" in program and "0.8, 0.3" in program
    program = program.replace("(1000, 600)", "(300, 200)").replace("0.8, 0.3", "0.01, 0.3")
    program += "\nnp.savez('values.npz', data=blob, im_info=info, rois=rois, cls_prob=scores, bbox_pred=moves)"
    files, text = converted(program, REGION_NET, "regions.onnx", opencv5, device, tmp_path, "--cut-at=rois,cls_prob,bbox_pred")
    values = np.load(tmp_path / "values.npz")
    own = ocaffe.Net(files[0], proto.TEST, weights=files[1], keep=["rois", "cls_prob", "bbox_pred"], device=device)
    try:
        own.forward(data=values["data"], im_info=values["im_info"])
        for name in ("rois", "cls_prob", "bbox_pred"):
            assert difference(values[name], np.array(own.blobs[name].data)) <= 1e-4
    finally:
        own.close()
    assert len(values["rois"]) > 10 and {line.split()[0] for line in text.splitlines()} == {"1", "2"}


def test_a_blob_inside_the_net_is_an_output(opencv5: str, device: Any, tmp_path: pathlib.Path) -> None:
    """The page says to end with `--cut-at conv2,prob` where a program reads both."""
    program = """
import cv2
net = cv2.dnn.readNetFromONNX("model.onnx")
blob = cv2.dnn.blobFromImage(cv2.imread("image.jpg"), 1.0, (227, 227), (104, 117, 123))
net.setInput(blob)
out = net.forward(["conv2", "prob"])[0]
"""
    text = NETS["Classification"]
    values, _, _ = both(program + SAVED, text, "model.onnx", opencv5, device, tmp_path, "--cut-at=conv2,prob")
    own = ocaffe.Net(str(tmp_path / "deploy.prototxt"), proto.TEST, weights=str(tmp_path / "weights.caffemodel"), keep=["conv2"], device=device)
    try:
        own.forward(data=values["blob"])
        assert difference(values["out"], np.array(own.blobs["conv2"].data)) <= 1e-4
    finally:
        own.close()


def both(program: str, net: str, target: str, python: str, device: Any, folder: pathlib.Path, *flags: str) -> tuple[Any, np.ndarray, str]:
    """Convert the net and run the program. Return the arrays that it saved, ocaffe's output for the same input, and the printed text."""
    files, text = converted(program, net, target, python, device, folder, *flags)
    values = np.load(folder / "values.npz")
    own = ocaffe.Net(files[0], proto.TEST, weights=files[1], device=device)
    try:
        (expected,) = own.forward(data=values["blob"]).values()
        return values, np.array(expected), text
    finally:
        own.close()


def converted(program: str, net: str, target: str, python: str, device: Any, folder: pathlib.Path, *flags: str) -> tuple[list[str], str]:
    """Convert the net and run the program. Return the files and the printed text."""
    files = [str(folder / name) for name in ("deploy.prototxt", "weights.caffemodel", target)]
    pathlib.Path(files[0]).write_text(net)
    message = upgrade_net(read_net(files[0]))
    weights = {layer.name: layer.blobs for layer in random_weights(message).layers}
    write_weights(files[1], message, dict.fromkeys((layer.name for layer in message.layer), ()) | weights)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (48, 64, 3)).astype(np.uint8)).save(folder / "image.jpg")
    assert main(["convert", *files, "--device", str(device.number), *flags]) == 0
    done = subprocess.run([python, "-c", program], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return files, done.stdout
