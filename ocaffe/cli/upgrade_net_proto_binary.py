"""ocaffe upgrade_net_proto_binary IN OUT: upgrade a caffemodel to the current format, as Caffe's tool."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.cli.upgrading import upgrade_file


def main(argv: Sequence[str]) -> int:
    return upgrade_file("upgrade_net_proto_binary", list(argv))
