"""ocaffe plot LOG... -o FILE: plot loss, accuracy and learning rate of one or several runs."""
from __future__ import annotations

import os
from collections.abc import Sequence

from ocaffe.cli.flags import Parser
from ocaffe.errors import Error
from ocaffe.files import atomic_write
from ocaffe.tools.figure import FORMATS
from ocaffe.tools.logs import read_log
from ocaffe.tools.plots import panels, render


def main(argv: Sequence[str]) -> int:
    parser = Parser("plot", "Plot loss, accuracy, scores and learning rate of training logs of ocaffe or Caffe.")
    parser.add_argument("logs", metavar="LOG", nargs="+", help="logs (the stderr of `train`), one for each run")
    parser.add_argument("-o", "--output", "-output", default="plot.png", help=f"the file to write; its extension selects the format: {', '.join(FORMATS)}")
    parser.flag("seconds", False, "plot over seconds instead of iterations")
    options = parser.parse(argv)
    kind = os.path.splitext(options.output)[1][1:].lower()
    if kind not in FORMATS:
        raise Error(f"the output is {options.output}", place="ocaffe plot", fix=f"a name that ends in .{', .'.join(FORMATS)}")
    drawn = panels(list(zip(_names(options.logs), map(read_log, options.logs))), options.seconds)
    content = render(drawn, kind, options.seconds)
    with atomic_write(options.output) as out:
        out.write(content)
    print(f"wrote {options.output}")
    return 0


def _names(paths: list[str]) -> list[str]:
    """Return file names without extension, or whole paths if two of these names are equal."""
    short = [os.path.splitext(os.path.basename(path))[0] for path in paths]
    return short if len(set(short)) == len(short) else paths
