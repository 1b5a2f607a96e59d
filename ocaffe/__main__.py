"""The program `ocaffe`, also as `python -m ocaffe`."""
from __future__ import annotations

import sys
import traceback

from ocaffe.shown import lines_of, write


def main() -> int:
    """Run the command line. Ctrl-C shows no traceback, also while Python still imports.

    The traceback of a bug is printed as all texts are, because its message can have names of files in it.
    """
    sys.excepthook = lambda kind, problem, trace: write(sys.stderr, lines_of("".join(traceback.format_exception(kind, problem, trace)).rstrip("\n")))
    try:
        from ocaffe.cli import main as run

        return run()
    except KeyboardInterrupt:
        write(sys.stderr, "interrupted")
        return 130


if __name__ == "__main__":
    sys.exit(main())
