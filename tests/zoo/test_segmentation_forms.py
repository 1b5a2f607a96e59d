"""Small nets in the forms of DeepLab and PSPNet train on images and masks: dilated convolutions, shrunk labels, pyramid pooling, frozen and running BN."""
from __future__ import annotations

import contextlib
import io
import pathlib
import re
from typing import Any

import numpy as np
import pytest

from ocaffe.cli import main
from ocaffe.formats.text import read_net
from ocaffe.zoo.templates import graph_of, without_data
from tests.zoo.test_segmentation_project import LABELS, write_masks

SIDE = 41  # 8 k + 1, so that Interp finds every eighth label
CLASSES = len(LABELS)
DATA = """
layer {{ name: "data" type: "DenseImageData" top: "data" top: "label" include {{ phase: {phase} }}
  transform_param {{ mean_value: 104.008 mean_value: 116.669 mean_value: 122.675 crop_size: {side} mirror: {mirror} }}
  dense_image_data_param {{ source: "made/{part}.txt" root_folder: "made/" batch_size: {batch} shuffle: {mirror} }} }}"""


def conv(name: str, bottom: str, outputs: int, kernel: int, more: str = "", bias: bool = True) -> str:
    """A Convolution layer with xavier weights."""
    biased = 'bias_filler { type: "constant" }' if bias else "bias_term: false"
    shape = f'num_output: {outputs} kernel_size: {kernel} weight_filler {{ type: "xavier" }} {biased} {more}'
    return f'layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}" convolution_param {{ {shape} }} }}'


def inplace(name: str, kind: str, blob: str, more: str = "") -> str:
    return f'layer {{ name: "{name}" type: "{kind}" bottom: "{blob}" top: "{blob}" {more} }}'


def deeplab() -> str:
    """DeepLab v2 with ASPP: pool4 and pool5 of stride 1, branches of several dilations whose scores are summed, and labels at an eighth of the size."""
    parts, x = [], "data"
    for stage, (channels, dilation, stride) in enumerate(((8, 1, 2), (8, 1, 2), (16, 1, 2), (16, 1, 1), (16, 2, 1)), 1):
        name = f"conv{stage}_1"
        parts += [conv(name, x, channels, 3, f"pad: {dilation} dilation: {dilation}"), inplace(f"relu{stage}_1", "ReLU", name)]
        pooling = f"pool: MAX kernel_size: 3 stride: {stride} pad: 1"
        x = f"pool{stage}"
        parts.append(f'layer {{ name: "{x}" type: "Pooling" bottom: "{name}" top: "{x}" pooling_param {{ {pooling} }} }}')
    branches = []
    for number, dilation in enumerate((1, 2), 1):
        fc6, fc8 = f"fc6_{number}", f"fc8_shapes_{number}"
        parts += [conv(fc6, x, 16, 3, f"pad: {dilation} dilation: {dilation}"), inplace(f"relu6_{number}", "ReLU", fc6),
                  inplace(f"drop6_{number}", "Dropout", fc6, "dropout_param { dropout_ratio: 0.5 }"), conv(fc8, fc6, CLASSES, 1)]  # fmt: skip
        branches.append(f'bottom: "{fc8}"')
    ignored = "loss_param { ignore_label: 255 } include { phase: TRAIN } softmax_param { engine: CAFFE }"
    return "\n".join(parts) + f"""
layer {{ name: "fc8_shapes" type: "Eltwise" {' '.join(branches)} top: "fc8_shapes" eltwise_param {{ operation: SUM }} }}
layer {{ name: "label_shrink" type: "Interp" bottom: "label" top: "label_shrink" interp_param {{ shrink_factor: 8 pad_beg: 0 pad_end: 0 }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "fc8_shapes" bottom: "label_shrink" top: "loss" {ignored} }}
layer {{ name: "accuracy" type: "SegAccuracy" bottom: "fc8_shapes" bottom: "label_shrink" top: "accuracy" seg_accuracy_param {{ ignore_label: 255 }} }}
layer {{ name: "fc8_interp" type: "Interp" bottom: "fc8_shapes" top: "fc8_interp" interp_param {{ zoom_factor: 8 }} include {{ phase: TEST }} }}
layer {{ name: "seg" type: "SegAccuracy" bottom: "fc8_interp" bottom: "label" top: "seg" seg_accuracy_param {{ ignore_label: 255 }} include {{ phase: TEST }} }}
"""


def pspnet() -> str:
    """PSPNet: BN with running averages, a bottleneck with dilation, pyramid pooling, an auxiliary loss, scores enlarged to the size of the image."""
    def unit(name: str, bottom: str, channels: int, kernel: int, more: str = "", frozen: bool = False) -> list[str]:
        fillers = 'slope_filler { type: "constant" value: 1 } bias_filler { type: "constant" value: 0 }'
        bn = f'bn_param {{ {fillers} momentum: 0.95 {"frozen: true" if frozen else ""} }}'
        top = f"{name}/bn"
        return [conv(name, bottom, channels, kernel, more, bias=False),
                f'layer {{ name: "{top}" type: "BN" bottom: "{name}" top: "{top}" {bn} }}', inplace(f"{name}/relu", "ReLU", top)]  # fmt: skip

    parts = [*unit("conv1_1_3x3_s2", "data", 8, 3, "pad: 1 stride: 2", frozen=True), *unit("conv2_3x3", "conv1_1_3x3_s2/bn", 16, 3, "pad: 1 stride: 2"),
             'layer { name: "pool2" type: "Pooling" bottom: "conv2_3x3/bn" top: "pool2" pooling_param { pool: MAX kernel_size: 3 stride: 2 pad: 1 } }',
             *unit("conv3_1x1_reduce", "pool2", 8, 1), *unit("conv3_3x3", "conv3_1x1_reduce/bn", 16, 3, "pad: 2 dilation: 2"),
             'layer { name: "conv3" type: "Eltwise" bottom: "pool2" bottom: "conv3_3x3/bn" top: "conv3" }', inplace("conv3/relu", "ReLU", "conv3")]  # fmt: skip
    side, levels = (SIDE + 7) // 8, ['bottom: "conv3"']
    for window in (side, side // 2):
        pool = f"conv3_pool{window}"
        pooling = f"pooling_param {{ pool: AVE kernel_size: {window} stride: {window} }}"
        parts.append(f'layer {{ name: "{pool}" type: "Pooling" bottom: "conv3" top: "{pool}" {pooling} }}')
        parts += unit(f"{pool}_conv", pool, 8, 1)
        interp = f"interp_param {{ height: {side} width: {side} }}"
        parts.append(f'layer {{ name: "{pool}_interp" type: "Interp" bottom: "{pool}_conv/bn" top: "{pool}_interp" {interp} }}')
        levels.append(f'bottom: "{pool}_interp"')
    parts.append(f'layer {{ name: "concat" type: "Concat" {" ".join(levels)} top: "concat" }}')
    parts += [*unit("conv4", "concat", 16, 3, "pad: 1"), inplace("drop4", "Dropout", "conv4/bn", "dropout_param { dropout_ratio: 0.1 }")]
    for scores, bottom, loss, weight in (("conv6", "conv4/bn", "loss", 1), ("conv_aux", "pool2", "loss_aux", 0.4)):
        interp, end = f"interp_param {{ height: {SIDE} width: {SIDE} }}", f"loss_weight: {weight} loss_param {{ ignore_label: 255 }}"
        parts += [conv(scores, bottom, CLASSES, 1), f'layer {{ name: "{scores}_interp" type: "Interp" bottom: "{scores}" top: "{scores}_interp" {interp} }}',
                  f'layer {{ name: "{loss}" type: "SoftmaxWithLoss" bottom: "{scores}_interp" bottom: "label" top: "{loss}" {end} }}']  # fmt: skip
    score = "seg_accuracy_param { ignore_label: 255 } include { phase: TEST }"
    return "\n".join(parts) + f'\nlayer {{ name: "seg" type: "SegAccuracy" bottom: "conv6_interp" bottom: "label" top: "seg" {score} }}\n'


@pytest.mark.parametrize(("form", "rate", "tested"), [(deeplab, 0.001, "accuracy"), (pspnet, 0.05, "loss")])
def test_ten_iterations(form: Any, rate: float, tested: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, device: Any) -> None:
    monkeypatch.chdir(tmp_path)
    write_masks(tmp_path / "made", [(48, 52)] * 8, tested=4)
    data = "".join(DATA.format(phase=phase, part=part, batch=4, side=SIDE, mirror=mirror)
                   for phase, part, mirror in (("TRAIN", "train", "true"), ("TEST", "test", "false")))  # fmt: skip
    pathlib.Path("net.prototxt").write_text(data + form())
    pathlib.Path("solver.prototxt").write_text(
        f'net: "net.prototxt" test_iter: 1 test_interval: 10 base_lr: {rate} lr_policy: "poly" power: 0.9 momentum: 0.9 weight_decay: 0.0005 max_iter: 10\n'
        'iter_size: 2 display: 1 random_seed: 3 snapshot_prefix: "net" best_output: "seg/mean_iou"\n'
    )
    log = io.StringIO()
    with contextlib.redirect_stderr(log):
        assert main(["train", "--solver", "solver.prototxt", "--device", device.number]) == 0, log.getvalue()
    losses = [float(found) for found in re.findall(r"Iteration \d+ \(.*loss = (\S+)", log.getvalue())]
    assert len(losses) == 10 and np.isfinite(losses).all() and np.mean(losses[-3:]) < losses[0]
    assert re.search(rf"Test net output #\d+: {tested}\b.* = ", log.getvalue())
    scores = [float(found) for found in re.findall(r"Test net output #\d+: seg/mean_iou = (\S+)", log.getvalue())]
    assert len(scores) == 2 and min(scores) >= 0 and max(scores) <= 1 and list(tmp_path.glob("net_best_iter_*.caffemodel"))


def test_shrunk_labels_are_labels(tmp_path: pathlib.Path) -> None:
    """Labels and scores of DeepLab have one size for sides 8 k + 1, and each enlarged score has the size of the image."""
    net = tmp_path / "net.prototxt"
    net.write_text(DATA.format(phase="TEST", part="test", batch=1, side=SIDE, mirror="false") + deeplab())
    blobs = graph_of(without_data(read_net(net), (3, SIDE, SIDE))).blobs
    assert blobs["label_shrink"].shape[2:] == blobs["fc8_shapes"].shape[2:] == ((SIDE - 1) // 8 + 1,) * 2
    assert blobs["fc8_interp"].shape[2:] == (SIDE, SIDE)
