"""Faster R-CNN with the net ZF: proposals of regions, then a class and a box for each.

Layer names and settings are those of py-faster-rcnn (models/pascal_voc/ZF/faster_rcnn_end2end), so that its weights load by name. Layers that it reads from
published weights have fillers here.
"""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.formats.param_str import settings_text
from ocaffe.zoo.detectors import VOC, VOC_CLASSES
from ocaffe.zoo.net import Fields, Net, gaussian

SIDE, LONGEST = 600, 1000  # pixels of the shorter side, and of the longer one at most
SCALES = (8, 16, 32)  # of the anchors, in 16 pixels
RATIOS = 3  # their number
STRIDE = 16  # pixels of the image for a cell of the map
CELLS = 6  # of a pooled region, in each direction
NMS, KEPT, LEAST_SCORE = 0.3, 100, 0.05  # of the detections (TEST.NMS, and tools/test_net.py)


def settings(**values: object) -> Fields:
    """Return python_param with these settings."""
    return {"python_param": {"param_str": settings_text(values)}}


def data(net: Net) -> None:
    """Add the data layers: images of VOC with boxes."""
    if net.deploy:
        shapes = [{"dim": [1, 3, SIDE, LONGEST]}, {"dim": [1, 3]}]
        net.layers.append({"name": "data", "type": "Input", "top": ["data", "im_info"], "input_param": {"shape": shapes}})
        return
    for phase, part, more in (("TRAIN", "trainval", []), ("TEST", "test", ["label"])):
        fields = settings(num_classes=VOC_CLASSES, source=f"{VOC}{part}_lmdb", scales=[SIDE], max_size=LONGEST)
        net.layers.append({"name": "input-data", "type": "RoIData", "top": ["data", "im_info", "gt_boxes", *more], "include": {"phase": phase}, **fields})
    net.layers.append({"name": "no-boxes", "type": "Silence", "bottom": "gt_boxes", "include": {"phase": "TEST"}})


def proposals(net: Net, features: str, channels: int, scales: Sequence[int] = SCALES) -> None:
    """Add a region proposal network on the map `features`: its losses and a sample of its proposals in TRAIN, else all its proposals."""
    anchors = RATIOS * len(scales)
    own = settings(feat_stride=STRIDE, scales=list(scales))
    x = net.relu("rpn_relu/3x3", net.conv("rpn_conv/3x3", features, channels, kernel_size=3, pad=1, weight=gaussian(0.01), bias=0))
    for name, values in (("cls_score", 2), ("bbox_pred", 4)):
        net.conv(f"rpn_{name}", x, values * anchors, kernel_size=1, weight=gaussian(0.01), bias=0)
    net.layer("Reshape", "rpn_cls_score_reshape", "rpn_cls_score", reshape_param={"shape": {"dim": [0, 2, -1, 0]}})
    if not net.deploy:
        train: Fields = {"include": {"phase": "TRAIN"}}
        targets = ["rpn_labels", "rpn_bbox_targets", "rpn_bbox_inside_weights", "rpn_bbox_outside_weights"]
        bottoms = ["rpn_cls_score", "gt_boxes", "im_info", "data"]
        net.layers.append({"name": "rpn-data", "type": "AnchorTarget", "bottom": bottoms, "top": targets, **train, **own})
        net.layer("SoftmaxWithLoss", "rpn_loss_cls", ["rpn_cls_score_reshape", "rpn_labels"], "rpn_cls_loss", **train, propagate_down=[True, False],
                  loss_weight=1, loss_param={"ignore_label": -1, "normalize": True})  # fmt: skip
        net.layer("SmoothL1Loss", "rpn_loss_bbox", ["rpn_bbox_pred", *targets[1:]], **train, loss_weight=1, smooth_l1_loss_param={"sigma": 3})
    net.layer("Softmax", "rpn_cls_prob", "rpn_cls_score_reshape")
    net.layer("Reshape", "rpn_cls_prob_reshape", "rpn_cls_prob", reshape_param={"shape": {"dim": [0, 2 * anchors, -1, 0]}})
    bottoms = ["rpn_cls_prob_reshape", "rpn_bbox_pred", "im_info"]
    if net.deploy:
        net.layer("Proposal", "proposal", bottoms, "rois", **own)
        return
    net.layer("Proposal", "proposal", bottoms, "rpn_rois", **train, **own)
    tops = ["rois", "labels", "bbox_targets", "bbox_inside_weights", "bbox_outside_weights"]
    sample = settings(num_classes=VOC_CLASSES, bg_thresh_lo=0.0)
    net.layers.append({"name": "roi-data", "type": "ProposalTarget", "bottom": ["rpn_rois", "gt_boxes"], "top": tops, **train, **sample})
    net.layer("Proposal", "proposal", bottoms, "rois", include={"phase": "TEST"}, **own)


def ends(net: Net, x: str) -> None:
    """Add scores and boxes of the regions with the features `x`: their losses in TRAIN, and the detections and their average precision in TEST."""
    net.fc("cls_score", x, VOC_CLASSES, weight=gaussian(0.01), bias=0)
    net.fc("bbox_pred", x, 4 * VOC_CLASSES, weight=gaussian(0.001), bias=0)
    if net.deploy:
        net.layer("Softmax", "cls_prob", "cls_score")
        return
    train: Fields = {"include": {"phase": "TRAIN"}}
    test: Fields = {"include": {"phase": "TEST"}}
    net.layer("SoftmaxWithLoss", "loss_cls", ["cls_score", "labels"], "cls_loss", **train, propagate_down=[True, False], loss_weight=1)
    net.layer("SmoothL1Loss", "loss_bbox", ["bbox_pred", "bbox_targets", "bbox_inside_weights", "bbox_outside_weights"], "bbox_loss", **train, loss_weight=1)
    net.layer("Softmax", "cls_prob", "cls_score", **test)
    output: Fields = {
        "num_classes": VOC_CLASSES, "share_location": False, "background_label_id": 0, "nms_param": {"nms_threshold": NMS}, "keep_top_k": KEPT,
        "confidence_threshold": LEAST_SCORE,
    }  # fmt: skip
    net.layer("DetectionOutput", "detection_out", ["bbox_pred", "cls_prob", "rois", "im_info"], **test, detection_output_param=output)
    evaluate: Fields = {"num_classes": VOC_CLASSES, "background_label_id": 0, "overlap_threshold": 0.5, "evaluate_difficult_gt": False}
    net.layer("DetectionEvaluate", "detection_eval", ["detection_out", "label"], **test, detection_evaluate_param=evaluate)


def zf(net: Net, x: str) -> str:
    """Add the convolutions of ZF: 256 channels, 16 pixels of the image for a cell."""
    for i, (channels, window) in enumerate(((96, 7), (256, 5)), 1):
        x = net.relu(f"relu{i}", net.conv(f"conv{i}", x, channels, kernel_size=window, pad=window // 2, stride=2, weight=gaussian(0.01), bias=0))
        norm: Fields = {"local_size": 3, "alpha": 0.00005, "beta": 0.75, "norm_region": "WITHIN_CHANNEL"}
        x = net.pool(f"pool{i}", net.layer("LRN", f"norm{i}", x, lrn_param=norm), "MAX", kernel_size=3, stride=2, pad=1)
    for i, channels in ((3, 384), (4, 384), (5, 256)):
        x = net.relu(f"relu{i}", net.conv(f"conv{i}", x, channels, kernel_size=3, pad=1, weight=gaussian(0.01), bias=0))
    return x


def fc6_and_fc7(net: Net, x: str) -> str:
    """Add the two layers before the scores."""
    for i in (6, 7):
        x = net.relu(f"relu{i}", net.fc(f"fc{i}", x, 4096, weight=gaussian(0.005), bias=0))
        x = net.layer("Dropout", f"drop{i}", x, x, dropout_param={"dropout_ratio": 0.5, "scale_train": False})
    return x


def faster_rcnn_zf(net: Net) -> None:
    """Faster R-CNN of ZF, trained end to end."""
    data(net)
    x = zf(net, "data")
    proposals(net, x, 256)
    pool: Fields = {"pooled_w": CELLS, "pooled_h": CELLS, "spatial_scale": 1 / STRIDE}
    ends(net, fc6_and_fc7(net, net.layer("ROIPooling", "roi_pool_conv5", [x, "rois"], roi_pooling_param=pool)))
