"""Faster R-CNN, Fast R-CNN and R-FCN with the layers of py-faster-rcnn's prototxts: training, snapshots, tests, proposals, predictions."""
from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cli import main
from ocaffe.cli.dataset import main as dataset
from ocaffe.data.databases.proposals import read_proposals
from ocaffe.errors import Error
from ocaffe.evaluation.region_images import with_detections
from ocaffe.formats.text import read_net
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.formats.weights import read_weights
from tests.data.scenes import database, record, scenes

CLASSES = 4
TRAINED, TESTED, STEPS = 60, 16, 250
FEATURES = "".join(
    f"""layer {{ name: "conv{i}" type: "Convolution" bottom: "{bottom}" top: "conv{i}" convolution_param {{ num_output: {channels} kernel_size: 3 pad: 1
        stride: 2 weight_filler {{ {filler} }} }} }}
    layer {{ name: "relu{i}" type: "ReLU" bottom: "conv{i}" top: "conv{i}" }}"""
    for i, bottom, channels, filler in ((1, "data", 16, "type: 'gaussian' std: 0.004"), (2, "conv1", 24, "type: 'msra'"), (3, "conv2", 32, "type: 'msra'"))
)
GAUSS = 'weight_filler { type: "gaussian" std: 0.01 }'
PYTHON = "type: 'Python' python_param {{ module: '{0}' layer: '{1}' param_str: \"{2}\" }}"
ANCHORS = "'feat_stride': 8, 'base_size': 8, 'scales': [1, 2, 4]"
SCORES = """layer { name: "rpn_cls_score_reshape" type: "Reshape" bottom: "rpn_cls_score" top: "rpn_cls_score_reshape"
    reshape_param { shape { dim: 0 dim: 2 dim: -1 dim: 0 } } }
    layer { name: "rpn_cls_prob" type: "Softmax" bottom: "rpn_cls_score_reshape" top: "rpn_cls_prob" }
    layer { name: "rpn_cls_prob_reshape" type: "Reshape" bottom: "rpn_cls_prob" top: "rpn_cls_prob_reshape"
    reshape_param { shape { dim: 0 dim: 18 dim: -1 dim: 0 } } }"""


def convolution(name: str, bottom: str, outputs: int, size: int) -> str:
    return f"""layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}"
        convolution_param {{ num_output: {outputs} kernel_size: {size} pad: {size // 2} {GAUSS} }} }}"""


def product(name: str, bottom: str, outputs: int, filler: str = GAUSS) -> str:
    return f'layer {{ name: "{name}" type: "InnerProduct" bottom: "{bottom}" top: "{name}" inner_product_param {{ num_output: {outputs} {filler} }} }}'


RPN = FEATURES + "".join(
    [convolution("rpn", "conv3", 32, 3), 'layer { name: "rpn_relu" type: "ReLU" bottom: "rpn" top: "rpn" }', convolution("rpn_cls_score", "rpn", 18, 1),
     convolution("rpn_bbox_pred", "rpn", 36, 1), SCORES]
)  # fmt: skip


def proposal(top: str, more: str = "") -> str:
    bottoms = 'bottom: "rpn_cls_prob_reshape" bottom: "rpn_bbox_pred" bottom: "im_info"'
    text = PYTHON.format("rpn.proposal_layer", "ProposalLayer", f"{ANCHORS}, 'min_size': 4")
    return f'layer {{ name: "proposal" {bottoms} top: "{top}" {more} {text} }}'


REGIONS = """layer { name: "roi_pool" type: "ROIPooling" bottom: "conv3" bottom: "rois" top: "roi_pool"
    roi_pooling_param { pooled_w: 3 pooled_h: 3 spatial_scale: 0.125 } }""" + "".join(
    [product("fc6", "roi_pool", 64, 'weight_filler { type: "msra" }'), 'layer { name: "relu6" type: "ReLU" bottom: "fc6" top: "fc6" }',
     product("cls_score", "fc6", CLASSES), product("bbox_pred", "fc6", 4 * CLASSES)]
)  # fmt: skip
IMAGES = PYTHON.format("roi_data_layer.layer", "RoIDataLayer", "'num_classes': 4")
DATA = f'layer {{ name: "input-data" top: "data" top: "im_info" top: "gt_boxes" {IMAGES} }}'
RPN_LOSS = f"""layer {{ name: "rpn-data" bottom: "rpn_cls_score" bottom: "gt_boxes" bottom: "im_info" bottom: "data" top: "rpn_labels"
    top: "rpn_bbox_targets" top: "rpn_bbox_inside_weights" top: "rpn_bbox_outside_weights"
    {PYTHON.format("rpn.anchor_target_layer", "AnchorTargetLayer", ANCHORS)} }}
    layer {{ name: "rpn_loss_cls" type: "SoftmaxWithLoss" bottom: "rpn_cls_score_reshape" bottom: "rpn_labels" top: "rpn_cls_loss"
    propagate_down: 1 propagate_down: 0 loss_weight: 1 loss_param {{ ignore_label: -1 normalize: true }} }}
    layer {{ name: "rpn_loss_bbox" type: "SmoothL1Loss" bottom: "rpn_bbox_pred" bottom: "rpn_bbox_targets" bottom: "rpn_bbox_inside_weights"
    bottom: "rpn_bbox_outside_weights" top: "rpn_loss_bbox" loss_weight: 1 smooth_l1_loss_param {{ sigma: 3.0 }} }}"""


def sample(settings: str) -> str:
    return f"""layer {{ name: "roi-data" bottom: "rpn_rois" bottom: "gt_boxes" top: "rois" top: "labels" top: "bbox_targets" top: "bbox_inside_weights"
        top: "bbox_outside_weights" {PYTHON.format("rpn.proposal_target_layer", "ProposalTargetLayer", settings)} }}"""


LOSS = """layer { name: "loss_cls" type: "SoftmaxWithLoss" bottom: "cls_score" bottom: "labels" top: "loss_cls" propagate_down: 1 propagate_down: 0 }
    layer { name: "loss_bbox" type: "SmoothL1Loss" bottom: "bbox_pred" bottom: "bbox_targets" bottom: "bbox_inside_weights"
    bottom: "bbox_outside_weights" top: "loss_bbox" loss_weight: 1 }"""
END_TO_END = DATA + RPN + RPN_LOSS + proposal("rpn_rois") + sample("'num_classes': 4") + REGIONS + LOSS
INPUT = """layer { name: "data" type: "Input" top: "data" top: "im_info"
    input_param { shape { dim: 1 dim: 3 dim: 48 dim: 48 } shape { dim: 1 dim: 3 } } }"""
DEPLOY = INPUT + RPN + proposal("rois") + REGIONS + 'layer { name: "cls_prob" type: "Softmax" bottom: "cls_score" top: "cls_prob" }'
CONFIGURATION = """EXP_DIR: small
TRAIN:
  HAS_RPN: True
  IMS_PER_BATCH: 1
  SCALES: [48]  # of small images
  MAX_SIZE: 96
  BATCH_SIZE: 32
  BG_THRESH_LO: 0.0
  BBOX_NORMALIZE_TARGETS_PRECOMPUTED: True
TEST:
  HAS_RPN: True
  SCALES: (48,)
  MAX_SIZE: 96
PIXEL_MEANS: [[[60, 60, 60]]]
"""


class Place:
    """A folder with databases, and a solver for each training in it."""

    def __init__(self, folder: pathlib.Path, device: Any) -> None:
        self.folder, self.device = folder, device.number
        rng = np.random.default_rng(2)
        self.trained = database(folder / "train", scenes(rng, TRAINED, CLASSES - 1, (40, 71)))
        self.tested = database(folder / "test", scenes(rng, TESTED, CLASSES - 1, (40, 71)))
        self.configuration = self.write("small.yml", CONFIGURATION)

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return str(self.folder / name)

    def train(self, name: str, net: str, steps: int, *more: str, prefix: str = "") -> tuple[str, list[dict[str, Any]]]:
        """Train a net. Return the path of the last snapshot without its ending, and the records of the log."""
        solver = f"""train_net: "{self.write(f"{name}.prototxt", net)}" type: "Adam" base_lr: 0.001 momentum: 0.9 momentum2: 0.999 lr_policy: "fixed"
            display: 10 average_loss: 10 random_seed: 3 snapshot_prefix: "{self.folder}/{prefix or name}" """
        log = self.folder / f"{prefix or name}.log"
        log.unlink(missing_ok=True)
        words = ["train", "--solver", self.write(f"{name}.solver", solver), "--set", f"max_iter={steps}", "--log_json", str(log), "--device", self.device,
                 "--cfg", self.configuration, "--imdb", self.trained, *more]  # fmt: skip
        assert main(words) == 0
        return f"{self.folder}/{prefix or name}_iter_{steps}", [json.loads(line) for line in log.read_text().splitlines()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, device: Any) -> Place:
    return Place(tmp_path_factory.mktemp("rcnn"), device)


@pytest.fixture(scope="module")
def end_to_end(place: Place) -> tuple[str, list[dict[str, Any]]]:
    return place.train("end2end", END_TO_END, STEPS)


def test_end_to_end_training_learns(place: Place, end_to_end: Any, capsys: pytest.CaptureFixture[str]) -> None:
    snapshot, records = end_to_end
    losses = [record["loss"] for record in records]
    assert np.mean(losses[-5:]) < 0.6 * np.mean(losses[1:4])
    capsys.readouterr()
    words = ["test", "--model", place.write("deploy.prototxt", DEPLOY), "--weights", f"{snapshot}.caffemodel", "--imdb", place.tested, "--device", place.device]
    assert main([*words, "--cfg", place.configuration]) == 0
    found = capsys.readouterr().out
    assert f"({TESTED} batches)" in found
    assert float(found.split("detection_eval")[1].split()[0]) > 0.3, found
    assert main(words) == 0
    assert capsys.readouterr().out == found, "the scales and means are those of the file beside the weights"


def test_coco_of_regions(place: Place, end_to_end: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """--coco scores the net with the images of --imdb."""
    pytest.importorskip("pycocotools")
    snapshot, _ = end_to_end
    capsys.readouterr()
    words = ["test", "--model", place.write("deploy.prototxt", DEPLOY), "--weights", f"{snapshot}.caffemodel", "--imdb", place.tested, "--device", place.device]
    assert main([*words, "--coco"]) == 0
    assert float(capsys.readouterr().out.split("AP, overlap 0.50 ")[1].split()[0]) > 0.3


def test_predictions(place: Place, end_to_end: Any, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    """The settings come from the file beside the weights. A shown box is on an object of its class."""
    snapshot, _ = end_to_end
    beside = json.loads(pathlib.Path(f"{place.folder}/end2end.json").read_text())
    assert (beside["shorter_side"], beside["longest"], beside["mean"]) == (48, 96, [60, 60, 60])
    files, rng = [], np.random.default_rng(9)
    made = scenes(rng, 6, CLASSES - 1, (40, 71))
    for number, scene in enumerate(made):
        (tmp_path / f"{number}.png").write_bytes(proto.AnnotatedDatum.FromString(record(scene, True)).datum.data)
        files.append(str(tmp_path / f"{number}.png"))
    deploy = place.write("deploy.prototxt", DEPLOY)
    capsys.readouterr()
    words = ["predict", "--model", deploy, "--weights", f"{snapshot}.caffemodel", "--device", place.device, "--annotate", str(tmp_path / "drawn"), *files]
    assert main([*words, "--json", "--threshold", "0.4"]) == 0
    results = json.loads(capsys.readouterr().out)
    shown = right = 0
    for scene, result in zip(made, results):
        assert pathlib.Path(result["annotated"]).exists()
        height, width, _ = scene.pixels.shape
        for each in result["objects"]:
            x1, y1, x2, y2 = each["box"]
            shown += 1
            centre = scene.pixels[int((y1 + y2) / 2 * (height - 1)), int((x1 + x2) / 2 * (width - 1))]
            right += (centre == np.roll([255, 20, 120], each["index"])).all()
    assert shown >= 5 and right >= 0.7 * shown


def test_an_image_without_a_region(place: Place, end_to_end: Any, device: Any) -> None:
    """Proposal finds none if all boxes are below min_size. There is no detection then, and the next image has its own."""
    snapshot, _ = end_to_end
    net = with_detections(upgrade_net(read_net(place.write("deploy.prototxt", DEPLOY))))
    rng, found = np.random.default_rng(5), []
    with Net(net, phase=proto.TEST, weights=f"{snapshot}.caffemodel", device=device) as made:
        image = rng.normal(0, 60, (1, 3, 48, 48)).astype(np.float32)
        for scale in (1000, 1, 1000, 1):
            rows = made.forward(data=image, im_info=np.float32([[48, 48, scale]]))["detection_out"].copy()
            found.append(rows)
    for empty in (0, 2):
        assert found[empty].tolist() == [[[[0, -1, -1, -1, -1, -1, -1]]]]
    assert len(found[1][0, 0]) > 1
    np.testing.assert_array_equal(found[1], found[3])


def test_a_snapshot_predicts_targets_and_resumes_exactly(place: Place) -> None:
    """The weights of bbox_pred are those for targets that are not normalised, as py-faster-rcnn writes them."""
    first, _ = place.train("end2end", END_TO_END, 8, prefix="halves")
    weights = {layer.name: layer.blobs for layer in read_weights(f"{first}.caffemodel").layers}
    deviations = np.tile(np.float32([0.1, 0.1, 0.2, 0.2]), CLASSES)
    (kernel, bias), (stored, stored_bias) = weights["bbox_pred_normalized"], weights["bbox_pred"]
    assert np.abs(kernel).max() > 0 and np.abs(bias).max() > 0
    np.testing.assert_array_equal(np.asarray(stored), np.asarray(kernel) * deviations[:, None])
    np.testing.assert_array_equal(np.asarray(stored_bias), np.asarray(bias) * deviations)
    resumed, _ = place.train("end2end", END_TO_END, 16, "--snapshot", f"{first}.solverstate", prefix="halves")
    whole, _ = place.train("end2end", END_TO_END, 16, prefix="whole")
    assert pathlib.Path(f"{resumed}.caffemodel").read_bytes() == pathlib.Path(f"{whole}.caffemodel").read_bytes()


def test_proposals_train_fast_rcnn(place: Place, end_to_end: Any) -> None:
    snapshot, _ = end_to_end
    out = f"{place.folder}/proposals.npz"
    deploy = place.write("rpn.prototxt", INPUT + RPN + proposal("rois", 'top: "scores"'))
    words = ["dataset", "proposals", place.trained, out, "--model", deploy, "--weights", f"{snapshot}.caffemodel", "--device", place.device]
    assert main([*words, "--cfg", place.configuration, "--most", "100"]) == 0
    found = read_proposals(out)
    assert len(found) == TRAINED and all(0 < len(boxes) <= 100 for boxes in found)
    large = place.write("large.yml", "TEST:\n  SCALES: [1200]\n  MAX_SIZE: 1200\n")
    with pytest.raises(Error, match="proposes no region in any of 60 images"):
        dataset(["proposals", *words[2:], "--cfg", large, "--most", "100"])
    tops = "".join(f' top: "{name}"' for name in ("data", "rois", "labels", "bbox_targets", "bbox_inside_weights", "bbox_outside_weights"))
    data = f'layer {{ name: "data" {tops} {IMAGES} }}'
    made, records = place.train("fast", data + FEATURES + REGIONS + LOSS, 30, "--proposals", out)
    assert records[-1]["loss"] < records[0]["loss"]
    names = [layer.name for layer in read_weights(f"{made}.caffemodel").layers]
    assert "bbox_pred_normalized" in names


FROZEN = "param { lr_mult: 0 decay_mult: 0 } param { lr_mult: 0 decay_mult: 0 }"
NO_REGIONS = f"""layer {{ name: "dummy" type: "DummyData" top: "dummy"
    dummy_data_param {{ shape {{ dim: 1 dim: 288 }} data_filler {{ type: "gaussian" std: 0.01 }} }} }}
    layer {{ name: "fc6" type: "InnerProduct" bottom: "dummy" top: "fc6" {FROZEN} inner_product_param {{ num_output: 64 }} }}
    layer {{ name: "silence_fc6" type: "Silence" bottom: "fc6" }}"""
NO_RPN = "".join(
    f"""layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}" {FROZEN} convolution_param {{ num_output: {outputs} kernel_size: {size}
        pad: {size // 2} {GAUSS} }} }}"""
    for name, bottom, outputs, size in (("rpn", "conv3", 32, 3), ("rpn_cls_score", "rpn", 18, 1), ("rpn_bbox_pred", "rpn", 36, 1))
) + "".join(f'layer {{ name: "silence_{name}" type: "Silence" bottom: "{name}" }}' for name in ("rpn_cls_score", "rpn_bbox_pred"))  # fmt: skip
SAMPLED = f"""layer {{ name: "data" {"".join(f'top: "{name}" ' for name in ("data", "rois", "labels", "bbox_targets", "bbox_inside_weights",
    "bbox_outside_weights"))} {IMAGES} }}"""
STEP = 40  # iterations of a step of the alternating training


def frozen(net: str) -> str:
    """Return the net with features that do not learn, as in stage 2."""
    for name in ("conv1", "conv2", "conv3"):
        net = net.replace(f'top: "{name}" convolution_param', f'top: "{name}" {FROZEN} convolution_param')
    return net


@pytest.mark.long
def test_alternating_training(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """The four steps of py-faster-rcnn's alternating training: RPN alone, Fast R-CNN on its proposals, and both again on features that do not learn.

    As in its prototxts, each net has the other one's layers without learning, so that the last weights have both.
    """
    rpn, fast = DATA + RPN + RPN_LOSS + NO_REGIONS, SAMPLED + FEATURES + NO_RPN + REGIONS + LOSS
    settings = CONFIGURATION.replace("IMS_PER_BATCH: 1", "IMS_PER_BATCH: 2").replace("  BBOX_NORMALIZE_TARGETS_PRECOMPUTED: True\n", "")
    configuration = place.write("alternating.yml", settings)
    deploy = place.write("rpn.prototxt", INPUT + RPN + proposal("rois", 'top: "scores"'))

    def values(snapshot: str) -> dict[str, Any]:
        return {layer.name: np.asarray(layer.blobs[0]) for layer in read_weights(f"{snapshot}.caffemodel").layers if layer.blobs}

    def step(name: str, net: str, *more: str) -> str:
        snapshot, records = place.train(name, net, STEP, "--cfg", configuration, *more)
        losses = [record["loss"] for record in records]
        assert 0 < np.mean(losses[-2:]) < max(losses[:2]), losses
        return snapshot

    def proposed(snapshot: str) -> str:
        out = f"{snapshot}.npz"
        words = ["dataset", "proposals", place.trained, out, "--model", deploy, "--weights", f"{snapshot}.caffemodel", "--device", place.device]
        assert main([*words, "--cfg", configuration, "--most", "100"]) == 0
        return out

    first = step("stage1_rpn", rpn)
    second = step("stage1_fast", fast, "--proposals", proposed(first))
    third = step("stage2_rpn", frozen(rpn), "--weights", f"{second}.caffemodel")
    fourth = step("stage2_fast", frozen(fast), "--weights", f"{third}.caffemodel", "--proposals", proposed(third))
    features, regions, last = values(second), values(third), values(fourth)
    for name in ("conv1", "conv2", "conv3"):
        assert (features[name] == regions[name]).all() and (regions[name] == last[name]).all() and (values(first)[name] != features[name]).any()
    for name in ("rpn", "rpn_cls_score", "rpn_bbox_pred"):
        assert (regions[name] == last[name]).all() and np.ptp(last[name]) > 0
    assert (features["fc6"] == regions["fc6"]).all() and (last["fc6"] != features["fc6"]).any()
    capsys.readouterr()
    words = ["test", "--model", place.write("deploy.prototxt", DEPLOY), "--weights", f"{fourth}.caffemodel", "--imdb", place.tested, "--device", place.device]
    assert main([*words, "--cfg", configuration]) == 0
    assert f"({TESTED} batches)" in capsys.readouterr().out


def test_r_fcn_with_online_hard_examples(place: Place) -> None:
    heads = "".join(
        f"""{convolution(f"rfcn_{kind}", "conv3", 9 * outputs, 1)}
        layer {{ name: "ps_{kind}" type: "PSROIPooling" bottom: "rfcn_{kind}" bottom: "rois" top: "ps_{kind}"
        psroi_pooling_param {{ spatial_scale: 0.125 output_dim: {outputs} group_size: 3 }} }}
        layer {{ name: "ave_{kind}" type: "Pooling" bottom: "ps_{kind}" top: "{top}" pooling_param {{ pool: AVE global_pooling: true }} }}"""
        for kind, top, outputs in (("cls", "cls_score", CLASSES), ("bbox", "bbox_pred", 8))
    )
    losses = """layer { name: "per_roi_loss_cls" type: "SoftmaxWithLossOHEM" bottom: "cls_score" bottom: "labels" top: "temp_loss_cls" top: "temp_prob_cls"
        top: "per_roi_loss_cls" loss_weight: 0 loss_weight: 0 loss_weight: 0 propagate_down: false propagate_down: false }
    layer { name: "per_roi_loss_bbox" type: "SmoothL1LossOHEM" bottom: "bbox_pred" bottom: "bbox_targets" bottom: "bbox_inside_weights" top: "temp_loss_bbox"
        top: "per_roi_loss_bbox" loss_weight: 0 loss_weight: 0 propagate_down: false propagate_down: false propagate_down: false }
    layer { name: "per_roi_loss" type: "Eltwise" bottom: "per_roi_loss_cls" bottom: "per_roi_loss_bbox" top: "per_roi_loss" propagate_down: false
        propagate_down: false }
    layer { name: "annotator" type: "BoxAnnotatorOHEM" bottom: "rois" bottom: "per_roi_loss" bottom: "labels" bottom: "bbox_inside_weights"
        top: "labels_ohem" top: "bbox_loss_weights_ohem" propagate_down: false propagate_down: false propagate_down: false propagate_down: false
        box_annotator_ohem_param { roi_per_img: 16 ignore_label: -1 } }
    layer { name: "silence" type: "Silence" bottom: "bbox_outside_weights" bottom: "temp_loss_cls" bottom: "temp_prob_cls" bottom: "temp_loss_bbox" }
    layer { name: "loss" type: "SoftmaxWithLoss" bottom: "cls_score" bottom: "labels_ohem" top: "loss_cls" loss_weight: 1 propagate_down: true
        propagate_down: false loss_param { ignore_label: -1 } }
    layer { name: "accuracy" type: "Accuracy" bottom: "cls_score" bottom: "labels_ohem" top: "accuracy" propagate_down: false propagate_down: false
        accuracy_param { ignore_label: -1 } }
    layer { name: "loss_bbox" type: "SmoothL1LossOHEM" bottom: "bbox_pred" bottom: "bbox_targets" bottom: "bbox_loss_weights_ohem" top: "loss_bbox"
        loss_weight: 1 propagate_down: true propagate_down: false propagate_down: false loss_param { normalization: PRE_FIXED pre_fixed_normalizer: 16 } }"""
    configuration = place.write("rfcn.yml", CONFIGURATION.replace("BATCH_SIZE: 32", "BATCH_SIZE: -1\n  AGNOSTIC: True"))
    net = DATA + RPN + RPN_LOSS + proposal("rpn_rois") + sample("'num_classes': 2") + heads + losses
    snapshot, records = place.train("rfcn", net, 21, "--cfg", configuration)
    assert records[-1]["loss"] < records[0]["loss"]
    weights = {layer.name: layer.blobs for layer in read_weights(f"{snapshot}.caffemodel").layers}
    deviations = np.repeat(np.tile(np.float32([0.1, 0.1, 0.2, 0.2]), 2), 9)
    np.testing.assert_array_equal(np.asarray(weights["rfcn_bbox"][1]), np.asarray(weights["rfcn_bbox_normalized"][1]) * deviations)
