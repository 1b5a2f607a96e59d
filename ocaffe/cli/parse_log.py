"""ocaffe parse_log: write the numbers of a log as CSV files, as Caffe's tools/extra/parse_log.py, or as the tables of parse_log.sh."""
from __future__ import annotations

import os
from collections.abc import Sequence

from ocaffe.cli.flags import Parser, refuse_escape, refuse_overwriting
from ocaffe.errors import Error
from ocaffe.shown import command, path_word, say
from ocaffe.support.files import atomic_write
from ocaffe.tools.training_logs.logs import csv_text, read_log
from ocaffe.tools.training_logs.tables import test_table, train_table


def main(argv: Sequence[str]) -> int:
    parser = Parser("parse_log", "Parse a training log into two CSV files, LOG.train and LOG.test in a folder.")
    parser.add_argument("logfile_path", help="the log")
    parser.add_argument("output_dir", nargs="?", default="", help="the folder of the files; with --tables the default is the present one")
    parser.flag("tables", False, "write the tables of Caffe's parse_log.sh instead of CSV: iterations, seconds, loss and rate; or two outputs of the test")
    parser.flag("verbose", False, "print the names of the files written")
    parser.flag("delimiter", ",", "delimiter between columns")
    options = parser.parse(argv)
    refuse_escape(options.delimiter, "parse_log")
    if len(options.delimiter) != 1:
        fact = f"--delimiter is '{options.delimiter}', {len(options.delimiter)} characters" if options.delimiter else "--delimiter is empty"
        raise Error(fact, place="ocaffe parse_log", fix=f"--delimiter '{(options.delimiter or ',')[0]}'")
    if not (options.output_dir or options.tables):
        raise Error("the folder of the CSV files is not given", place="ocaffe parse_log",
                    fix=command("ocaffe", "parse_log", path_word(options.logfile_path), "."))
    name = os.path.join(options.output_dir, os.path.basename(options.logfile_path))
    refuse_overwriting("parse_log", [options.logfile_path], [f"{name}.{kind}" for kind in ("train", "test")])
    log = read_log(options.logfile_path)
    tables = train_table(log), test_table(log)
    for kind, rows, table in (("train", log.train, tables[0]), ("test", log.test, tables[1])):
        path = f"{name}.{kind}"
        if not (rows or options.tables):
            if options.verbose:
                say(f"Not writing {path}; no lines to write")
            continue
        with atomic_write(path) as out:
            out.write((table if options.tables else csv_text(rows, options.delimiter)).encode())
        if options.verbose:
            say(f"Wrote {path}")
    return 0
