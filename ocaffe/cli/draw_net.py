"""ocaffe draw_net: draw a net, as pycaffe's draw_net.py, but without graphviz."""
from __future__ import annotations

import os
from collections.abc import Sequence

from ocaffe import proto
from ocaffe.cli.flags import Parser, refuse_overwriting, stages, state_flags
from ocaffe.draw import DIRECTIONS, draw
from ocaffe.formats.filter import filter_net
from ocaffe.formats.text import read_net
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.shown import say
from ocaffe.support import log
from ocaffe.support.files import atomic_write

PHASES = {"TRAIN": proto.TRAIN, "TEST": proto.TEST}


def main(argv: Sequence[str]) -> int:
    parser = Parser("draw_net", "Draw a net. The extension of the file selects the format: svg, png, pdf, jpg and others.")
    parser.add_argument("net", metavar="NET", help="the net prototxt")
    parser.add_argument("image", metavar="IMAGE", help="the file to write")
    parser.flag("rankdir", "LR", "direction of the flow: left to right, top to bottom, or the reverse", choices=DIRECTIONS)
    parser.flag("phase", "ALL", "draw the layers of this phase", choices=(*PHASES, "ALL"))
    parser.flag("display_lrm", False, "show lr_mult and decay_mult")
    state_flags(parser)
    options = parser.parse(argv)
    refuse_overwriting("draw_net", [options.net], [options.image])
    log.quiet()
    net = upgrade_net(read_net(options.net, options.allow_unknown_fields))
    if options.phase != "ALL":
        state = proto.NetState(phase=PHASES[options.phase], level=options.level, stage=stages(options.stage, net))
        net = filter_net(net, state)
    made = draw(net, options.rankdir, os.path.splitext(options.image)[1], options.display_lrm, options.net)
    say(f"Drawing net to {options.image}")
    with atomic_write(options.image) as out:
        out.write(made)
    return 0
