"""ocaffe compute_image_mean: write the mean image of a database to a .binaryproto, as Caffe's tool."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ocaffe.cli.flags import Parser, refuse_overwriting
from ocaffe.data.databases.writer import WRITERS
from ocaffe.formats.blob import write_blobproto
from ocaffe.support import log
from ocaffe.support.log import number
from ocaffe.tools.datasets.mean import SOURCE, database_mean


def main(argv: Sequence[str]) -> int:
    parser = Parser("compute_image_mean", "Compute the mean image of a database, for mean_file. The log has the mean of each channel, for mean_value.")
    parser.add_argument("database", metavar="INPUT_DB", help="folder of the database")
    parser.add_argument("output", metavar="OUTPUT_FILE", nargs="?", default="", help="the .binaryproto to write; without it only the log is written")
    parser.flag("backend", "lmdb", "the kind of database", choices=sorted(WRITERS))
    options = parser.parse(argv)
    refuse_overwriting("compute_image_mean", [options.database, *map(str, Path(options.database).glob("*"))], filter(None, [options.output]))
    mean = database_mean(options.database, options.backend)
    if options.output:
        log.info(f"{SOURCE}:108", f"Write to {options.output}")
        write_blobproto(options.output, mean)
    log.info(f"{SOURCE}:114", f"Number of channels: {len(mean)}")
    for channel, plane in enumerate(mean):
        log.info(f"{SOURCE}:119", f"mean_value channel [{channel}]: {number(plane.mean(dtype='float64'))}")
    return 0
