"""ocaffe convert_annoset: write image files with boxes or labels to a database for AnnotatedData, as SSD's tool."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe import proto
from ocaffe.cli.convert_imageset import image_flags, image_recipe
from ocaffe.cli.flags import Parser
from ocaffe.errors import Error
from ocaffe.tools.datasets.annotations import READERS, annotate, read_boxes, read_label_map
from ocaffe.tools.datasets.encode import datum_of
from ocaffe.tools.datasets.imageset import Entry, Made, label_of, read_list, shuffled, write_set

NAME = "convert_annoset"
NO_LABEL = -1  # label of an image with boxes


def main(argv: Sequence[str]) -> int:
    parser = Parser(NAME, "Convert images and their boxes to the database of an AnnotatedData layer. Each line of the list has an image and its annotations.")
    image_flags(parser)
    parser.flag("anno_type", "classification", "detection: boxes; classification: labels, as in convert_imageset", choices=("classification", "detection"))
    parser.flag("label_type", "xml", "format of the files of boxes: PASCAL VOC's xml, MS COCO's json, or txt", choices=tuple(READERS))
    parser.flag("label_map_file", "", "the label map, for xml and json")
    parser.flag("check_label", False, "reject a label map in which a name or a label occurs twice")
    parser.flag("min_dim", 0, "enlarge images whose shorter side is smaller")
    parser.flag("max_dim", 0, "shrink images whose longer side is larger")
    options = parser.parse(argv)
    for flag in ("min_dim", "max_dim"):
        if getattr(options, flag) < 0:
            raise Error(f"--{flag} is {getattr(options, flag)}", place=f"ocaffe {NAME}", fix=f"--{flag} with pixels, or 0 for no limit")
    recipe = image_recipe(options, NAME, shortest=options.min_dim, longest=options.max_dim, dimensions=True)
    entries = read_list(options.list)
    boxed = options.anno_type == "detection"
    classes: dict[str, int] = {}
    if boxed and (options.label_map_file or options.label_type != "txt"):
        if not options.label_map_file:
            raise Error(f"--label_type={options.label_type} needs a label map", place=f"ocaffe {NAME}", fix="--label_map_file FILE")
        classes = read_label_map(options.label_map_file, options.check_label)
    labels = {} if boxed else {entry: label_of(entry, options.list) for entry in entries}
    if options.shuffle:
        entries = shuffled(entries, options.seed)

    def make(entry: Entry) -> Made:
        made = datum_of(options.root + entry.name, NO_LABEL if boxed else labels[entry], recipe)
        if not boxed:
            return proto.AnnotatedDatum(datum=made.datum), made.shape
        path = options.root + entry.last
        return annotate(made.datum, read_boxes(path, options.label_type), made.original, classes, path), made.shape

    write_set(entries, options.list, options.database, options.backend, make, options.check_size, f"{NAME}.cpp", options.root)
    return 0
