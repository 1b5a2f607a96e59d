"""SSD detectors of the zoo: a net that computes maps of features, and predictions on each map.

Layer names, sizes of boxes and settings are those of SSD's authors (models/VGGNet/VOC0712/SSD_300x300) and of chuanqi305's
MobileNet-SSD, so that their weights load by name. `ssd_shapes` is a small net of ocaffe for the scenes of `ocaffe dataset shapes`.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ocaffe.zoo.classifiers import MOBILENET_V1, VGG16, conv_norm
from ocaffe.zoo.net import MSRA, XAVIER, Fields, Net

VOC = "examples/VOC0712/VOC0712_"  # beginning of the databases' names
VOC_CLASSES = 21  # with the background, which is class 0
SHAPES = "examples/shapes/"
SHAPES_CLASSES = 11
NMS, LISTED, KEPT, LEAST_SCORE = 0.45, 400, 200, 0.01  # of DetectionOutput
OVERLAPS = (0.1, 0.3, 0.5, 0.7, 0.9)  # of the random crops with an object


class Map(NamedTuple):
    """Predictions on one blob: sides of the boxes in pixels (no `largest`: none of a second size), aspect ratios beside 1, distance of their centres."""

    source: str
    smallest: float
    largest: float | None
    ratios: Sequence[int]
    step: float | None = None


class Data(NamedTuple):
    """Sizes of the images, their databases, and how their values are transformed."""

    side: int
    source: str
    train: str
    test: str
    labels: str
    batch: int
    test_batch: int
    transform: Fields


def annotated(net: Net, data: Data, mirror: bool = True, expand: float = 4, **train: Any) -> str:
    """Add the data layers. TRAIN changes the images as SSD does: color, expansion, crops with objects, mirroring. `train`: its other settings of boxes."""
    if net.deploy:
        net.layers.append({"name": "data", "type": "Input", "top": "data", "input_param": {"shape": {"dim": [1, 3, data.side, data.side]}}})
        return "data"
    whole: Fields = {"prob": 1, "resize_mode": "WARP", "height": data.side, "width": data.side}
    crop: Fields = {"sampler": {"min_scale": 0.3, "max_scale": 1, "min_aspect_ratio": 0.5, "max_aspect_ratio": 2}, "max_sample": 1, "max_trials": 50}
    constraints = [*({"min_jaccard_overlap": overlap} for overlap in OVERLAPS), {"max_jaccard_overlap": 1}]
    samplers = [{"max_sample": 1, "max_trials": 1}, *({**crop, "sample_constraint": constraint} for constraint in constraints)]
    color: Fields = {
        "brightness_prob": 0.5, "brightness_delta": 32, "contrast_prob": 0.5, "contrast_lower": 0.5, "contrast_upper": 1.5, "hue_prob": 0.5, "hue_delta": 18,
        "saturation_prob": 0.5, "saturation_lower": 0.5, "saturation_upper": 1.5,
    }  # fmt: skip
    changes: Fields = {
        "resize_param": {**whole, "interp_mode": ["LINEAR", "AREA", "NEAREST", "CUBIC", "LANCZOS4"]}, "emit_constraint": {"emit_type": "CENTER"},
        "distort_param": color, "expand_param": {"prob": 0.5, "max_expand_ratio": expand},
    }  # fmt: skip
    for phase, part, batch in (("TRAIN", data.train, data.batch), ("TEST", data.test, data.test_batch)):
        training = phase == "TRAIN"
        transform = {**data.transform, **({"mirror": mirror, **changes} if training else {"resize_param": {**whole, "interp_mode": ["LINEAR"]}})}
        own: Fields = {"batch_sampler": samplers if training else [{}], **(train if training else {}), "label_map_file": data.labels}
        source = {"source": f"{data.source}{part}_lmdb", "batch_size": batch, "backend": "LMDB"}
        net.layers.append({
            "name": "data", "type": "AnnotatedData", "top": ["data", "label"], "include": {"phase": phase}, "transform_param": transform,
            "data_param": source, "annotated_data_param": own,
        })  # fmt: skip
    return "data"


def predict(net: Net, maps: Sequence[Map], classes: int, kernel: int, sizes: str = "") -> None:
    """Add locations, confidences and boxes of each map, the loss in TRAIN, and the detections in TEST."""
    ends: dict[str, list[str]] = {"loc": [], "conf": [], "priorbox": []}
    filler = XAVIER if kernel == 3 else MSRA
    for given in maps:
        boxes = 1 + (given.largest is not None) + 2 * len(given.ratios)
        name = f"{given.source}_mbox"
        for kind, outputs in (("loc", 4 * boxes), ("conf", classes * boxes)):
            x = net.conv(f"{name}_{kind}", given.source, outputs, pad=kernel // 2, kernel_size=kernel, stride=1, weight=filler, bias=0)
            ends[kind].append(by_cell(net, f"{name}_{kind}", x))
        sides = {"min_size": given.smallest} | ({} if given.largest is None else {"max_size": given.largest})
        box: Fields = {**sides, "aspect_ratio": list(given.ratios), "flip": True, "clip": False, "variance": [0.1, 0.1, 0.2, 0.2]}
        step = {} if given.step is None else {"step": given.step}
        ends["priorbox"].append(net.layer("PriorBox", f"{name}_priorbox", [given.source, "data"], prior_box_param={**box, **step, "offset": 0.5}))
    join(net, ends)
    if not net.deploy:
        loss: Fields = {
            "loc_loss_type": "SMOOTH_L1", "conf_loss_type": "SOFTMAX", "loc_weight": 1, "num_classes": classes, "share_location": True,
            "match_type": "PER_PREDICTION", "overlap_threshold": 0.5, "use_prior_for_matching": True, "background_label_id": 0, "use_difficult_gt": True,
            "neg_pos_ratio": 3, "neg_overlap": 0.5, "code_type": "CENTER_SIZE", "ignore_cross_boundary_bbox": False, "mining_type": "MAX_NEGATIVE",
        }  # fmt: skip
        net.layer("MultiBoxLoss", "mbox_loss", ["mbox_loc", "mbox_conf", "mbox_priorbox", "label"], include={"phase": "TRAIN"},
                  propagate_down=[True, True, False, False], loss_param={"normalization": "VALID"}, multibox_loss_param=loss)  # fmt: skip
    test = tested(net)
    x = net.layer("Reshape", "mbox_conf_reshape", "mbox_conf", reshape_param={"shape": {"dim": [0, -1, classes]}}, **test)
    x = net.layer("Softmax", "mbox_conf_softmax", x, softmax_param={"axis": 2}, **test)
    detect(net, net.layer("Flatten", "mbox_conf_flatten", x, flatten_param={"axis": 1}, **test), classes, sizes)


def by_cell(net: Net, name: str, x: str) -> str:
    """Add the layers that put the predictions of a cell side by side, one row for each image."""
    x = net.layer("Permute", f"{name}_perm", x, permute_param={"order": [0, 2, 3, 1]})
    return net.layer("Flatten", f"{name}_flat", x, flatten_param={"axis": 1})


def join(net: Net, ends: Mapping[str, list[str]]) -> None:
    """Add mbox_loc, mbox_conf and mbox_priorbox: the predictions and priors of all maps."""
    for kind, axis in (("loc", 1), ("conf", 1), ("priorbox", 2)):
        net.layer("Concat", f"mbox_{kind}", ends[kind], concat_param={"axis": axis})


def tested(net: Net) -> Fields:
    """Return the field of layers that belong to TEST and to deployment."""
    return {} if net.deploy else {"include": {"phase": "TEST"}}


def detect(net: Net, scores: str, classes: int, sizes: str = "") -> None:
    """Add the detections from mbox_loc, scores between 0 and 1, and mbox_priorbox, and their comparison with true boxes in TEST."""
    output: Fields = {
        "num_classes": classes, "share_location": True, "background_label_id": 0, "nms_param": {"nms_threshold": NMS, "top_k": LISTED},
        "code_type": "CENTER_SIZE", "keep_top_k": KEPT, "confidence_threshold": LEAST_SCORE,
    }  # fmt: skip
    x = net.layer("DetectionOutput", "detection_out", ["mbox_loc", scores, "mbox_priorbox"], detection_output_param=output, **tested(net))
    if not net.deploy:
        evaluate: Fields = {"num_classes": classes, "background_label_id": 0, "overlap_threshold": 0.5, "evaluate_difficult_gt": False}
        if sizes:
            evaluate["name_size_file"] = sizes
        net.layer("DetectionEvaluate", "detection_eval", [x, "label"], detection_evaluate_param=evaluate, **tested(net))


HALVED, SHRUNK = {"pad": 1, "stride": 2}, {"pad": 0, "stride": 1}  # half the map; 2 pixels less
VGG_EXTRA = ((256, 512, HALVED), (128, 256, HALVED), (128, 256, SHRUNK), (128, 256, SHRUNK))  # channels of the 1 x 1 and the 3 x 3 convolution


def ssd300_vgg16(net: Net) -> None:
    """SSD300 of Liu et al., 2016. VGG-16's fc6 and fc7 are convolutions, fc6 with every sixth pixel."""
    def conv(name: str, relu: str, x: str, channels: int, **window: int) -> str:
        return net.relu(relu, net.conv(name, x, channels, **window, weight=XAVIER, bias=0))

    data = Data(300, VOC, "trainval", "test", "data/VOC0712/labelmap_voc.prototxt", 32, 8, {"mean_value": [104, 117, 123]})
    x = annotated(net, data)
    for stage, (channels, depth) in enumerate(VGG16, 1):
        for i in range(1, depth + 1):
            x = conv(f"conv{stage}_{i}", f"relu{stage}_{i}", x, channels, pad=1, kernel_size=3)
        window = {"kernel_size": 3, "stride": 1, "pad": 1} if stage == len(VGG16) else {"kernel_size": 2, "stride": 2}
        x = net.pool(f"pool{stage}", x, "MAX", **window)
    x = conv("fc6", "relu6", x, 1024, pad=6, kernel_size=3, dilation=6)
    x = conv("fc7", "relu7", x, 1024, kernel_size=1)
    for stage, (reduced, channels, window) in enumerate(VGG_EXTRA, 6):
        name = f"conv{stage}"
        x = conv(f"{name}_1", f"{name}_1_relu", x, reduced, pad=0, kernel_size=1, stride=1)
        x = conv(f"{name}_2", f"{name}_2_relu", x, channels, kernel_size=3, **window)
    scale: Fields = {} if net.deploy else {"scale_filler": {"type": "constant", "value": 20}}
    net.layer("Normalize", "conv4_3_norm", "conv4_3", norm_param={"across_spatial": False, **scale, "channel_shared": False})
    predict(net, (
        Map("conv4_3_norm", 30, 60, (2,), 8), Map("fc7", 60, 111, (2, 3), 16), Map("conv6_2", 111, 162, (2, 3), 32), Map("conv7_2", 162, 213, (2, 3), 64),
        Map("conv8_2", 213, 264, (2,), 100), Map("conv9_2", 264, 315, (2,), 300),
    ), VOC_CLASSES, kernel=3, sizes="data/VOC0712/test_name_size.txt")  # fmt: skip


def unit(net: Net, name: str, x: str, channels: int, **window: int) -> str:
    """Add a convolution with batch normalization and ReLU."""
    return net.relu(f"{name}/relu", conv_norm(net, name, x, channels, **window))


def separable(net: Net, name: str, x: str, channels: int, wider: int, stride: int = 1) -> str:
    """Add a convolution of 3 x 3 for each channel, then one of 1 x 1 from `channels` to `wider` channels."""
    x = unit(net, f"{name}/dw", x, channels, pad=1, kernel_size=3, stride=stride, group=channels)
    return unit(net, name, x, wider, kernel_size=1)


def mobilenet(net: Net, x: str) -> str:
    """Add the layers of MobileNet-v1 by the names of chuanqi305: conv11 has 512 channels and a sixteenth of the side, conv13 1024 and half of that."""
    x = unit(net, "conv0", x, 32, pad=1, kernel_size=3, stride=2)
    channels = 32
    for i, (_, wider, stride) in enumerate(MOBILENET_V1, 1):
        x = separable(net, f"conv{i}", x, channels, wider, stride)
        channels = wider
    return x


MOBILENET_EXTRA = ((256, 512), (128, 256), (128, 256), (64, 128))  # channels of the 1 x 1 and of the 3 x 3 convolution


def mobilenet_ssd(net: Net) -> None:
    """MobileNet-SSD of chuanqi305, for images of 300 pixels."""
    data = Data(300, VOC, "trainval", "test", "data/VOC0712/labelmap_voc.prototxt", 24, 8, {"scale": 0.007843, "mean_value": [127.5, 127.5, 127.5]})
    x = mobilenet(net, annotated(net, data))
    for i, (reduced, channels) in enumerate(MOBILENET_EXTRA, 14):
        x = unit(net, f"conv{i}_2", unit(net, f"conv{i}_1", x, reduced, kernel_size=1), channels, pad=1, kernel_size=3, stride=2)
    maps = (Map("conv11", 60, None, (2,)), Map("conv13", 105, 150, (2, 3)), Map("conv14_2", 150, 195, (2, 3)), Map("conv15_2", 195, 240, (2, 3)),
            Map("conv16_2", 240, 285, (2, 3)), Map("conv17_2", 285, 300, (2, 3)))  # fmt: skip
    predict(net, maps, VOC_CLASSES, kernel=1)


def stages(net: Net, x: str, sizes: Sequence[tuple[int, int]]) -> str:
    """Add convolutions of 3 x 3 by the names conv1_1, conv1_2, conv2_1: channels and number of each stage. A stage halves the side, the first one not."""
    for stage, (channels, depth) in enumerate(sizes, 1):
        for i in range(1, depth + 1):
            x = unit(net, f"conv{stage}_{i}", x, channels, pad=1, kernel_size=3, stride=2 if i == 1 and stage > 1 else 1)
    return x


def ssd_shapes(net: Net) -> None:
    """A small SSD for images of 128 pixels: four maps of 32 x 32 to 4 x 4, for objects of 10 to 100 pixels. CPUs train it in minutes."""
    data = Data(128, SHAPES, "train", "val", "examples/shapes/labelmap_voc.prototxt", 32, 50, {"scale": 0.0078125, "mean_value": [128, 128, 128]})
    stages(net, annotated(net, data, mirror=False, expand=1.5), ((16, 1), (32, 1), (64, 2), (96, 2), (128, 2), (128, 1)))
    maps = (Map("conv3_2", 12, 18, (2,)), Map("conv4_2", 22, 30, (2, 3)), Map("conv5_2", 40, 54, (2, 3)), Map("conv6_1", 70, 90, (2, 3)))
    predict(net, maps, SHAPES_CLASSES, kernel=3)
