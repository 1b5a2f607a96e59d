"""Detectors of the zoo without anchors: each cell of a map predicts one box, and true boxes train the cells that already predict them best.

`point_shapes` is a net of ocaffe for the scenes of `ocaffe dataset shapes`.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ocaffe.zoo.detectors import SHAPES, SHAPES_CLASSES, Data, annotated, by_cell, detect, join, tested, unit
from ocaffe.zoo.net import Fields, Net, gaussian

UNIT = 2  # side of a cell's box, the unit of its prediction, in cells
VARIANCE = 0.5  # a prediction of 1 moves a box by one cell
RARE = -4.6  # bias of the scores: a score of 0.01 before the training


class Level(NamedTuple):
    """Predictions on one blob, and the pixels of a cell."""

    source: str
    cell: int


def csp(net: Net, name: str, x: str, channels: int, depth: int) -> str:
    """Add a cross-stage partial block (Wang and others, CSPNet, 2019): one half of the channels passes `depth` residual blocks, the other half none."""
    half = channels // 2
    other, y = unit(net, f"{name}/other", x, half, kernel_size=1), unit(net, f"{name}/own", x, half, kernel_size=1)
    for i in range(1, depth + 1):
        inner = unit(net, f"{name}/{i}b", unit(net, f"{name}/{i}a", y, half, pad=1, kernel_size=3), half, pad=1, kernel_size=3)
        y = net.layer("Eltwise", f"{name}/{i}", [y, inner])
    return unit(net, name, net.layer("Concat", f"{name}/both", [other, y]), channels, kernel_size=1)


def predict(net: Net, levels: Sequence[Level], width: int, classes: int) -> None:
    """Add a head for each level, the loss in TRAIN, and the detections in TEST. `width`: channels of a head."""
    ends: dict[str, list[str]] = {"loc": [], "conf": [], "priorbox": []}
    for source, cell in levels:
        name = f"{source}_mbox"
        for kind, outputs, bias in (("loc", 4, 0.0), ("conf", classes, RARE)):
            x = unit(net, f"{source}_{kind}", source, width, pad=1, kernel_size=3)
            x = net.conv(f"{name}_{kind}", x, outputs, kernel_size=1, pad=0, stride=1, weight=gaussian(0.01), bias=bias)
            ends[kind].append(by_cell(net, f"{name}_{kind}", x))
        box: Fields = {"min_size": UNIT * cell, "clip": False, "variance": [VARIANCE] * 4, "step": cell, "offset": 0.5}
        ends["priorbox"].append(net.layer("PriorBox", f"{name}_priorbox", [source, "data"], prior_box_param=box))
    join(net, ends)
    if not net.deploy:
        net.layer("AlignedBoxLoss", "mbox_loss", ["mbox_loc", "mbox_conf", "mbox_priorbox", "label"], include={"phase": "TRAIN"},
                  propagate_down=[True, True, False, False], aligned_box_loss_param={"num_classes": classes, "code_type": "CENTER_SIZE"})  # fmt: skip
    detect(net, net.layer("Sigmoid", "mbox_conf_sigmoid", "mbox_conf", **tested(net)), classes)


def joined(net: Net, name: str, deep: str, shallow: str, width: int) -> str:
    """Add a level of the pyramid: a map of twice the side, beside the map of that side from the backbone."""
    x = net.layer("Upsample", f"{name}/up", unit(net, f"{name}/deep", deep, width, kernel_size=1), upsample_param={"scale": 2})
    return csp(net, name, net.layer("Concat", f"{name}/joined", [x, shallow]), width, 1)


def point_shapes(net: Net) -> None:
    """A small net for images of 128 pixels: maps of 16 x 16, 8 x 8 and 4 x 4, for objects of 10 to 100 pixels. CPUs train it in minutes."""
    data = Data(128, SHAPES, "train", "val", "examples/shapes/labelmap_voc.prototxt", 32, 50, {"scale": 0.0078125, "mean_value": [128, 128, 128]})
    x = unit(net, "conv1", annotated(net, data, mirror=False, expand=1.5), 24, pad=1, kernel_size=3, stride=2)
    maps = []
    for stage, (channels, depth) in enumerate(((48, 1), (96, 2), (160, 2), (192, 1)), 2):
        x = csp(net, f"csp{stage}", unit(net, f"conv{stage}", x, channels, pad=1, kernel_size=3, stride=2), channels, depth)
        maps.append(x)
    middle = joined(net, "level16", maps[3], maps[2], 96)
    fine = joined(net, "level8", middle, maps[1], 64)
    coarse = unit(net, "level32", maps[3], 96, kernel_size=1)
    predict(net, (Level(fine, 8), Level(middle, 16), Level(coarse, 32)), 64, SHAPES_CLASSES)
