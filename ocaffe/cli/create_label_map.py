"""ocaffe create_label_map: make a label map from a list of class names, as SSD's tool."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.cli.flags import Parser, refuse_escape
from ocaffe.errors import Error
from ocaffe.formats.text import write_text
from ocaffe.support.files import atomic_write
from ocaffe.tools.datasets.annotations import make_label_map


def main(argv: Sequence[str]) -> int:
    parser = Parser("create_label_map", "Make a label map from a text file with lines `NAME [LABEL [DISPLAY NAME]]`.")
    parser.add_argument("map_file", metavar="MAP_FILE", help="the text file")
    parser.add_argument("label_map_file", metavar="LABEL_MAP_FILE", help="the prototxt to write")
    parser.flag("delimiter", " ", "delimiter between the fields of a line")
    parser.flag("include_background", False, "start with the class none_of_the_above, label 0")
    options = parser.parse(argv)
    refuse_escape(options.delimiter, "create_label_map")
    if not options.delimiter:
        raise Error("--delimiter is empty", place="ocaffe create_label_map", fix="--delimiter ' ', the default")
    made = make_label_map(options.map_file, options.delimiter, options.include_background)
    if not made.item:
        raise Error("names no class", place=options.map_file, fix="write a class in each line")
    with atomic_write(options.label_map_file) as out:
        out.write(write_text(made).encode())
    return 0
