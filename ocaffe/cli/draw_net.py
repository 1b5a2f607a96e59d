"""ocaffe draw_net: a picture of a net, pycaffe's draw_net.py; needs no graphviz."""
from __future__ import annotations

import os
from collections.abc import Sequence

from ocaffe import log, proto
from ocaffe.cli.flags import Parser, state_flags
from ocaffe.errors import Error
from ocaffe.files import atomic_write
from ocaffe.model.filter import filter_net
from ocaffe.model.text import read_net
from ocaffe.model.upgrade import upgrade_net
from ocaffe.tools.diagram import picture, pixels, svg
from ocaffe.tools.encode import file_format

PHASES = {"TRAIN": proto.TRAIN, "TEST": proto.TEST}
_MOST_PIXELS = 1 << 28


def main(argv: Sequence[str]) -> int:
    parser = Parser("draw_net", "Draw a net; the extension of the file says how: svg, png, pdf, jpg and others.")
    parser.add_argument("net", metavar="NET", help="the net prototxt")
    parser.add_argument("image", metavar="IMAGE", help="the file to write")
    parser.flag("rankdir", "LR", "direction of the flow: left to right, top to bottom, and back", choices=("LR", "TB", "RL", "BT"))
    parser.flag("phase", "ALL", "the layers of which phase", choices=(*PHASES, "ALL"))
    parser.flag("display_lrm", False, "show lr_mult and decay_mult")
    state_flags(parser)
    options = parser.parse(argv)
    extension = os.path.splitext(options.image)[1].lower()
    kind = "" if extension == ".svg" else file_format(extension)
    log.quiet()
    net = upgrade_net(read_net(options.net, options.allow_unknown_fields))
    if options.phase != "ALL":
        state = proto.NetState(phase=PHASES[options.phase], level=options.level, stage=options.stage.split(",") if options.stage else [])
        net = filter_net(net, state)
    if not net.layer:
        raise Error("has no layers to draw", place=options.net, fix="another file, or another --phase")
    print(f"Drawing net to {options.image}")
    drawn = picture(net, options.rankdir, options.display_lrm)
    if kind and 4 * drawn.size[0] * drawn.size[1] > _MOST_PIXELS:
        raise Error(f"a picture of {drawn.size[0]:.0f} x {drawn.size[1]:.0f} is too large for pixels", place=options.image, fix="write an .svg")
    with atomic_write(options.image) as out:
        out.write(pixels(drawn, kind) if kind else svg(drawn, net.name or options.net).encode())
    return 0
