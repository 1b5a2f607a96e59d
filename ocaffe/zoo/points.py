"""Detectors of the zoo without anchors: each cell of a map predicts one box, and true boxes train the cells that already predict them best.

`point_shapes` is a net of ocaffe for the scenes of `ocaffe dataset shapes`.
"""
from __future__ import annotations

from collections.abc import Mapping

from ocaffe.zoo.detectors import SHAPES, SHAPES_CLASSES, Data, annotated, by_cell, detect, join, stages, tested, unit
from ocaffe.zoo.net import Fields, Net, gaussian

UNIT = 2  # side of a cell's box, the unit of its prediction, in cells
VARIANCE = 0.5  # a prediction of 1 moves a box by one cell
RARE = -4.6  # bias of the scores: a score of 0.01 before the training
LOC_WEIGHT = 0.5  # boxes are learned sooner than classes
GAMMA = 1  # 2, as for COCO, trains the classes of few objects too little


def pyramid(net: Net, maps: Mapping[int, str], channels: Mapping[int, int]) -> dict[int, str]:
    """Add to each map the features of the next coarser one, which has half its side (Lin and others, Feature pyramid networks, 2017).

    The maps and their channels are given by the pixels of a cell.
    """
    made: dict[int, str] = {}
    for cell in sorted(maps, reverse=True):
        made[cell] = maps[cell]
        if 2 * cell in made:
            deep = unit(net, f"level{cell}/deep", made[2 * cell], channels[cell], kernel_size=1)
            up = net.layer("Upsample", f"level{cell}/up", deep, upsample_param={"scale": 2})
            made[cell] = net.layer("Eltwise", f"level{cell}", [maps[cell], up])
    return made


def predict(net: Net, levels: Mapping[int, str], classes: int) -> None:
    """Add the predictions of each level, the loss in TRAIN, and the detections in TEST. The levels are given by the pixels of a cell."""
    ends: dict[str, list[str]] = {"loc": [], "conf": [], "priorbox": []}
    for cell, source in sorted(levels.items()):
        name = f"level{cell}_mbox"
        for kind, outputs, bias in (("loc", 4, 0.0), ("conf", classes, RARE)):
            x = net.conv(f"{name}_{kind}", source, outputs, kernel_size=3, pad=1, stride=1, weight=gaussian(0.01), bias=bias)
            ends[kind].append(by_cell(net, f"{name}_{kind}", x))
        box: Fields = {"min_size": UNIT * cell, "clip": False, "variance": [VARIANCE] * 4, "step": cell, "offset": 0.5}
        ends["priorbox"].append(net.layer("PriorBox", f"{name}_priorbox", [source, "data"], prior_box_param=box))
    join(net, ends)
    if not net.deploy:
        loss: Fields = {"num_classes": classes, "code_type": "CENTER_SIZE", "gamma": GAMMA, "loc_weight": LOC_WEIGHT}
        net.layer("AlignedBoxLoss", "mbox_loss", ["mbox_loc", "mbox_conf", "mbox_priorbox", "label"], include={"phase": "TRAIN"},
                  propagate_down=[True, True, False, False], aligned_box_loss_param=loss)  # fmt: skip
    detect(net, net.layer("Sigmoid", "mbox_conf_sigmoid", "mbox_conf", **tested(net)), classes)


SIZES = ((16, 1), (32, 1), (64, 2), (96, 2), (128, 2), (128, 1))  # of the stages: channels and convolutions


def point_shapes(net: Net) -> None:
    """A small net for images of 128 pixels: maps of 32 x 32 to 4 x 4, for objects of 10 to 100 pixels. CPUs train it in minutes."""
    data = Data(128, SHAPES, "train", "val", "examples/shapes/labelmap_voc.prototxt", 32, 50, {"scale": 0.0078125, "mean_value": [128, 128, 128]})
    stages(net, annotated(net, data, mirror=False, expand=1.5), SIZES)
    ends = {2 ** (stage - 1): (f"conv{stage}_{depth}", channels) for stage, (channels, depth) in enumerate(SIZES, 1) if stage > 2}
    predict(net, pyramid(net, {cell: name for cell, (name, _) in ends.items()}, {cell: channels for cell, (_, channels) in ends.items()}), SHAPES_CLASSES)
