"""`ocaffe dataset NAME [--from FOLDER] DIR` makes the LMDBs of the examples. `ocaffe dataset folder` and others of COMMANDS have their own flags."""
from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Sequence

import numpy as np
from tqdm import tqdm

from ocaffe.cli.flags import Parser
from ocaffe.data.databases.datum import encode_datum
from ocaffe.data.databases.writer import LmdbWriter, Writer
from ocaffe.data.stores.labels_txt import LABELS, labels_bytes
from ocaffe.errors import Error
from ocaffe.formats.blob import write_blobproto
from ocaffe.shown import say
from ocaffe.support.files import check_folder, check_free, clear_killed, new_entries
from ocaffe.support.here import here
from ocaffe.tools.datasets.box_databases import FORMATS
from ocaffe.tools.datasets.sets import SETS, Part

MEAN = "mean.binaryproto"
COMMANDS = {  # by name: the module with its `main`, and a line for the help
    "anchors": ("ocaffe.cli.dataset_anchors", "find anchors for YOLO from the boxes of a database"),
    "folder": ("ocaffe.cli.dataset_folder", "make databases of your own images: FOLDER/cat/1.jpg, FOLDER/dog/1.jpg"),
    "proposals": ("ocaffe.cli.dataset_proposals", "write the regions that a region proposal network proposes for the images of a database"),
    "masks": ("ocaffe.cli.dataset_masks", "make lists and masks of images with masks, for segmentation"),
    "shapes": ("ocaffe.cli.dataset_shapes", "make synthetic scenes with boxes and masks, for detection and segmentation"),
    "show": ("ocaffe.cli.dataset_show", "write a contact sheet of the images, as stored or as a net sees them"),
    "text": ("ocaffe.cli.dataset_text", "make images of strings of digits, for a net that reads text"),
}


def main(argv: Sequence[str]) -> int:
    """Run the command. Raises Error."""
    if argv and argv[0] in FORMATS:
        return int(importlib.import_module("ocaffe.cli.dataset_boxes").main(argv[0], argv[1:]))
    if argv and argv[0] in COMMANDS:
        return int(importlib.import_module(COMMANDS[argv[0]][0]).main(argv[1:]))
    parser = Parser("dataset", "Make DIR/NAME_train_lmdb and DIR/NAME_test_lmdb of a public data set, as Caffe's own tools do.")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    others = {name: text for name, (_, text) in (*COMMANDS.items(), *FORMATS.items())}
    parser.epilog = "\n".join(["other data:", *(f"  ocaffe dataset {name:<10}{text} (--help lists its flags)" for name, text in others.items())])
    parser.add_argument("name", choices=sorted(SETS), help="mnist, cifar10 (with its mean image), or digits (small, needs no network)")
    parser.add_argument("folder", metavar="DIR", help="folder for the databases; created if it does not exist")
    parser.flag("from", help="folder with the original files, compressed or not; by default they are downloaded")
    args = parser.parse(argv)
    source = getattr(args, "from") or None
    if source is not None:
        try:
            check_folder(source)
        except Error as problem:
            problem.fix = f"--from with the folder of the original files (relative to {here()}), or leave it out to download them"
            raise
    for line in make(args.name, args.folder, source):
        say(line)
    return 0


def make(name: str, folder: str, source: str | None) -> list[str]:
    """Make the databases of `name` in `folder`. Return lines for the user.

    All get their names when all are complete.
    """
    databases = {part: f"{name}_{part}_lmdb" for part in ("train", "test")}
    clear_killed(folder)
    check_free(folder, databases.values())  # before the download
    data = SETS[name](source)
    lines = []
    with new_entries(folder, (*databases.values(), *([MEAN] if data.wants_mean else []))) as made:
        for part, database in databases.items():
            with LmdbWriter(str(made / database)) as writer:
                _write(writer, data.parts[part])
                if data.names:
                    writer.attach(LABELS, labels_bytes(data.names))
            images = data.parts[part].images
            lines.append(f"{os.path.join(folder, database)}: {len(images)} images of {'x'.join(map(str, images.shape[1:]))}")
        if data.wants_mean:
            images = data.parts["train"].images
            write_blobproto(str(made / MEAN), (images.sum(0, dtype=np.int64) / len(images)).astype(np.float32))
            lines.append(f"{os.path.join(folder, MEAN)}: the mean of the training images")
    return [*lines, *data.remarks]


def _write(writer: Writer, part: Part) -> None:
    pairs = zip(part.images, part.labels)
    for number, (image, label) in enumerate(tqdm(pairs, total=len(part.labels), desc=os.path.basename(writer.path), disable=None)):
        writer.put(b"%08d" % number, encode_datum(image, int(label)))
