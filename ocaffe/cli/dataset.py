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
from ocaffe.data.databases.writer import LmdbWriter
from ocaffe.data.stores.labels_txt import LABELS, labels_bytes
from ocaffe.errors import Error
from ocaffe.formats.blob import write_blobproto
from ocaffe.shown import say
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
    if source is not None and not os.path.isdir(source):
        fix = f"--from with the folder of the original files (relative to {os.getcwd()}), or leave it out to download them"
        raise Error(f"the folder {source} does not exist", fix=fix)
    for line in make(args.name, args.folder, source):
        say(line)
    return 0


def make(name: str, folder: str, source: str | None) -> list[str]:
    """Make the databases of `name` in `folder`. Return lines for the user.

    A database gets its name only when it is complete.
    """
    paths = {part: os.path.join(folder, f"{name}_{part}_lmdb") for part in ("train", "test")}
    mean = os.path.join(folder, MEAN)
    for path in paths.values():
        LmdbWriter.check_absent(path)
    data = SETS[name](source)
    if data.wants_mean:
        LmdbWriter.check_absent(mean)
    writers: list[LmdbWriter] = []
    try:
        for part, path in paths.items():
            writers.append(LmdbWriter(path))
            _write(writers[-1], data.parts[part])
            if data.names:
                writers[-1].attach(LABELS, labels_bytes(data.names))
        for writer in writers:
            writer.finish()
    except BaseException:
        for writer in writers:
            writer.discard()
        raise
    lines = [f"{path}: {len(data.parts[part].labels)} images of {'x'.join(map(str, data.parts[part].images.shape[1:]))}" for part, path in paths.items()]
    if data.wants_mean:
        images = data.parts["train"].images
        write_blobproto(mean, (images.sum(0, dtype=np.int64) / len(images)).astype(np.float32))
        lines.append(f"{mean}: the mean of the training images")
    return [*lines, *data.remarks]


def _write(writer: LmdbWriter, part: Part) -> None:
    pairs = zip(part.images, part.labels)
    for number, (image, label) in enumerate(tqdm(pairs, total=len(part.labels), desc=os.path.basename(writer.path), disable=None)):
        writer.put(b"%08d" % number, encode_datum(image, int(label)))
