"""`ocaffe dataset anchors DATABASE`: find anchors for YOLO from the boxes of a database, and print them as fields of a prototxt."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.cli.flags import Parser
from ocaffe.errors import Error
from ocaffe.shown import say
from ocaffe.tools.datasets.anchors import Anchors, anchors_of

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
            raise Error(f"--{flag} is {getattr(options, flag)}", place=f"ocaffe {NAME}", fix=f"--{flag} 1, or a larger number")
    anchors, images = anchors_of(options.database, options.count, options.width, options.height, options.seed)
    say(f"{anchors.counts.sum():,} boxes of {images:,} images, resized to {options.width} x {options.height} pixels")
    for line in report(anchors, options.cell):
        say(line)
    return 0


def report(anchors: Anchors, cell: int) -> list[str]:
    """Return lines with the anchors, and with the fields of the layers."""
    lines = [f"mean overlap of a box with its anchor: {anchors.overlap:.4f}", "", "  width  height    boxes"]
    lines += [f"{width:7.1f} {height:7.1f} {boxes:8,}" for (width, height), boxes in zip(anchors.sides, anchors.counts)]
    in_cells = f"RegionLoss, YoloDetectionOutput: cells of {cell} pixels"
    for title, sides, digits in (("Yolov3, Yolov3DetectionOutput", anchors.sides, 1), (in_cells, anchors.sides / cell, 3)):
        lines += ["", f"# {title}", *(f"biases: {width:.{digits}f} biases: {height:.{digits}f}" for width, height in sides)]
    return lines
