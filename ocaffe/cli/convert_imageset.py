"""ocaffe convert_imageset: write image files and their labels to a database, as Caffe's tool."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ocaffe.cli.flags import Parser
from ocaffe.data.changes.resample import check_pixels
from ocaffe.data.databases.writer import WRITERS
from ocaffe.errors import Error
from ocaffe.support import log
from ocaffe.tools.datasets.encode import Recipe, datum_of, file_format
from ocaffe.tools.datasets.imageset import Entry, Made, label_of, read_list, shuffled, write_set

NAME = "convert_imageset"


def main(argv: Sequence[str]) -> int:
    parser = Parser(NAME, "Convert a set of images to the database of a Data layer.")
    image_flags(parser)
    options = parser.parse(argv)
    recipe = image_recipe(options, NAME)
    entries = read_list(options.list)
    labels = {entry: label_of(entry, options.list) for entry in entries}
    if options.shuffle:
        entries = shuffled(entries, options.seed)

    def make(entry: Entry) -> Made:
        made = datum_of(options.root + entry.name, labels[entry], recipe)
        return made.datum, made.shape

    write_set(entries, options.list, options.database, options.backend, make, options.check_size, f"{NAME}.cpp", options.root)
    return 0


def image_flags(parser: Parser) -> None:
    """Add the flags that convert_imageset and convert_annoset share."""
    parser.add_argument("root", metavar="ROOTFOLDER/", help="prefix of every name in the list")
    parser.add_argument("list", metavar="LISTFILE", help="text file with a line `FILE LABEL` for each image")
    parser.add_argument("database", metavar="DB_NAME", help="folder of the database, which must not exist yet")
    parser.flag("shuffle", False, "write the images in random order")
    parser.flag("seed", 0, "seed of --shuffle; 0: another order each time")
    parser.flag("backend", "lmdb", "the kind of database", choices=sorted(WRITERS))
    recipe_flags(parser)


def recipe_flags(parser: Parser) -> None:
    """Add the flags of `image_recipe`, and --check_size."""
    parser.flag("gray", False, "make images of one channel")
    parser.flag("resize_width", 0, "width to resize all images to; needs --resize-height")
    parser.flag("resize_height", 0, "height to resize all images to; needs --resize-width")
    parser.flag("check_size", False, "reject images of different sizes")
    parser.flag("encoded", False, "store image files instead of raw pixels")
    parser.flag("encode_type", "", "store all images in this format ('png', 'jpg', ...); implies --encoded")


def image_recipe(options: Any, command: str, **more: Any) -> Recipe:
    """Return the conversion that the flags select. Raises Error."""
    width, height = options.resize_width, options.resize_height
    for flag, side in (("resize_width", width), ("resize_height", height)):
        if side < 0:
            raise Error(f"--{flag} is {side}", place=f"ocaffe {command}", fix=f"--{flag} with pixels, or 0 for the image's own size")
    if bool(width) != bool(height):
        given, other = ("width", "height") if width else ("height", "width")
        fix = f"give --resize_{other} too, or leave out --resize_{given}"
        raise Error(f"--resize_{given} is {width or height}, and --resize_{other} is 0, the default", place=f"ocaffe {command}", fix=fix)
    fix = "--resize_height 256 --resize_width 256, or about the size of the images"
    check_pixels("images of --resize_height and --resize_width", height, width, fix, f"ocaffe {command}")
    encode: str | None = options.encode_type
    if encode:
        file_format(encode)
        if not options.encoded:
            log.info(f"{command}.cpp:92", "encode_type specified, assuming encoded=true.")
    elif options.encoded:
        encode = None
    return Recipe(gray=options.gray, size=(height, width) if width else None, encode=encode, **more)
