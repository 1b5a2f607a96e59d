"""`ocaffe dataset anchors DATABASE`: find anchors for YOLO from the boxes of a database, and print them as fields of a prototxt."""
from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from google.protobuf.message import DecodeError
from tqdm import tqdm

from ocaffe import proto
from ocaffe.cli.flags import Parser
from ocaffe.data.boxes import Boxes
from ocaffe.data.database import Reader, open_database
from ocaffe.errors import Error
from ocaffe.tools.anchors import Anchors, find_anchors

NAME = "dataset anchors"


def main(argv: Sequence[str]) -> int:
    """Run the command. Raises Error."""
    parser = Parser(NAME, "Group the boxes of a database for AnnotatedData by size (k-means), and print an anchor for each group, for the layers of YOLO.")
    parser.add_argument("database", metavar="DATABASE", help="LMDB or LevelDB with boxes, as `ocaffe convert_annoset` makes them")
    parser.flag("count", 9, "number of anchors")
    parser.flag("width", 416, "width of the net's images in pixels")
    parser.flag("height", 416, "height of the net's images in pixels")
    parser.flag("cell", 32, "pixels of a cell, for the layers of YOLOv2")
    parser.flag("seed", 1, "seed of the first choices")
    options = parser.parse(argv)
    for flag in ("count", "width", "height", "cell"):
        if getattr(options, flag) < 1:
            raise Error(f"--{flag} is {getattr(options, flag)}", place=f"ocaffe {NAME}", fix="1 or more")
    boxes, images = sides_of(options.database)
    different = len(np.unique(boxes, axis=0))
    if different < options.count:
        fact = f"the {len(boxes)} boxes have {different} different sizes, --count is {options.count}"
        raise Error(fact, place=options.database, fix=f"--count {different} or less" if different else "a database with boxes")
    anchors = find_anchors(boxes * [options.width, options.height], options.count, options.seed)
    print(f"{len(boxes):,} boxes of {images:,} images, resized to {options.width} x {options.height} pixels")
    for line in report(anchors, options.cell):
        print(line)
    return 0


def sides_of(database: str) -> tuple[np.ndarray, int]:
    """Return width and height of all boxes with an area, as fractions of the image (n x 2), and the number of images."""
    backend = proto.DataParameter.LEVELDB if os.path.exists(os.path.join(database, "CURRENT")) else proto.DataParameter.LMDB
    opened = open_database(database, backend)
    reader, found = Reader(opened), [np.empty((0, 2))]
    for record in tqdm(range(opened.entries), desc="boxes", disable=None):
        ((key, value),) = reader.read(record)
        try:
            corners = Boxes.of(proto.AnnotatedDatum.FromString(bytes(value))).corners.astype(np.float64)
        except DecodeError:
            raise opened.fault("it is not an AnnotatedDatum", record, key) from None
        found.append(corners[:, 2:] - corners[:, :2])
    sides = np.concatenate(found)
    return sides[(sides > 0).all(1)], opened.entries


def report(anchors: Anchors, cell: int) -> list[str]:
    """Return lines with the anchors, and with the fields of the layers."""
    lines = [f"mean overlap of a box with its anchor: {anchors.overlap:.4f}", "", "  width  height    boxes"]
    lines += [f"{width:7.1f} {height:7.1f} {boxes:8,}" for (width, height), boxes in zip(anchors.sides, anchors.counts)]
    in_cells = f"RegionLoss, YoloDetectionOutput: cells of {cell} pixels"
    for title, sides, digits in (("Yolov3, Yolov3DetectionOutput", anchors.sides, 1), (in_cells, anchors.sides / cell, 3)):
        lines += ["", f"# {title}", *(f"biases: {width:.{digits}f} biases: {height:.{digits}f}" for width, height in sides)]
    return lines
