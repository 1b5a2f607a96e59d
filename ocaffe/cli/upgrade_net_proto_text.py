"""ocaffe upgrade_net_proto_text IN OUT: upgrade a net to the current format, as Caffe's tool."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.cli.upgrading import upgrade_file


def main(argv: Sequence[str]) -> int:
    return upgrade_file("upgrade_net_proto_text", list(argv))
