"""ocaffe parse_log: write the numbers of a log as CSV files, as Caffe's tools/extra/parse_log.py."""
from __future__ import annotations

import os
from collections.abc import Sequence

from ocaffe.cli.flags import Parser
from ocaffe.errors import Error
from ocaffe.support.files import atomic_write
from ocaffe.tools.training_logs.logs import csv_text, read_log


def main(argv: Sequence[str]) -> int:
    parser = Parser("parse_log", "Parse a training log into two CSV files, LOG.train and LOG.test in a folder.")
    parser.add_argument("logfile_path", help="the log")
    parser.add_argument("output_dir", help="the folder of the CSV files")
    parser.flag("verbose", False, "print the names of the files written")
    parser.flag("delimiter", ",", "delimiter between columns")
    options = parser.parse(argv)
    if len(options.delimiter) != 1:
        raise Error(f"--delimiter is '{options.delimiter}'", place="ocaffe parse_log", fix="--delimiter=, or another single character")
    log = read_log(options.logfile_path)
    name = os.path.join(options.output_dir, os.path.basename(options.logfile_path))
    for path, rows in ((f"{name}.train", log.train), (f"{name}.test", log.test)):
        if not rows:
            if options.verbose:
                print(f"Not writing {path}; no lines to write")
            continue
        with atomic_write(path) as out:
            out.write(csv_text(rows, options.delimiter).encode())
        if options.verbose:
            print(f"Wrote {path}")
    return 0
