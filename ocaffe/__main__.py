"""The program `ocaffe`, also as `python -m ocaffe`."""
from __future__ import annotations

import sys


def main() -> int:
    """Run the command line. Ctrl-C shows no traceback, also while Python still imports."""
    try:
        from ocaffe.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
