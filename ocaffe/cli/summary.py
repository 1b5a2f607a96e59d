"""ocaffe summary NET: show layers, shapes, parameters, multiply-accumulates and memory, without a device."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe import proto
from ocaffe.cli.flags import Parser, shape_flag, stages, state_flags
from ocaffe.compiler.compile import compile_net
from ocaffe.compiler.network import phase_net
from ocaffe.data.databases.assumed import assumed_data, parse_shape
from ocaffe.errors import Error
from ocaffe.formats.batch import batched
from ocaffe.formats.text import read_net
from ocaffe.graph.build import build
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.ir.target import Target
from ocaffe.shown import command, path_word, say
from ocaffe.support import log
from ocaffe.support.switches import Switches
from ocaffe.tools.summary import text


def main(argv: Sequence[str]) -> int:
    parser = Parser("summary", "Show the layers of a net with shapes, parameters, multiply-accumulates and memory.")
    parser.add_argument("net", metavar="NET", nargs="?", default="", help="the net prototxt; a data layer gets its shapes from its data, or from --shape")
    parser.flag("model", "", "the same, as in plan, test and time")
    parser.flag("phase", "TEST", "TRAIN or TEST; the memory of TRAIN excludes the solver's history", choices=("TRAIN", "TEST"))
    parser.flag("batch", 0, "batch size in place of the file's")
    shape_flag(parser)
    state_flags(parser)
    options = parser.parse(argv)
    if bool(options.net) == bool(options.model):
        fact = f"two nets are given: {options.net} and --model {options.model}" if options.net else "no net is given"
        raise Error(fact, place="ocaffe summary", fix=command("ocaffe", "summary", path_word(options.net or "NET.prototxt")))
    options.net = options.net or options.model
    log.quiet()
    phase = proto.TRAIN if options.phase == "TRAIN" else proto.TEST
    net = batched(read_net(options.net, options.allow_unknown_fields), options.batch)
    with assumed_data() as data:
        net = phase_net(data.complete(net, parse_shape(options.shape)), phase, options.level, stages(options.stage, net))
        graph = build(net, phase)
        made = compile_net(
            graph, ParameterGroup(graph.params), Target(max_allocation=1 << 40), NetOptions(backward=phase == proto.TRAIN), Switches.read()
        )
    for note in data.notes:
        log.tell(f"note: {note}")
    say(f"phase {options.phase}; --phase {'TEST' if phase == proto.TRAIN else 'TRAIN'} shows the other one")
    for line in text(net, graph, made.recording.schedule, made.plan):
        say(line)
    return 0
