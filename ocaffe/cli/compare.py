"""ocaffe compare: compare a net on two devices, or an optimised run with a plain run, value by value."""
from __future__ import annotations

import contextlib
from collections.abc import Sequence

from ocaffe import proto
from ocaffe.cl.device import Device, select_device
from ocaffe.cli.flags import Parser, device_flags, required, stages, state_flags
from ocaffe.compiler.network import phase_net
from ocaffe.errors import Error
from ocaffe.formats.text import read_net
from ocaffe.formats.weights import read_weights, weight_files
from ocaffe.selftest.compare import Side, compare
from ocaffe.shown import say
from ocaffe.support import log

PLAIN = "plain"


def main(argv: Sequence[str]) -> int:
    parser = Parser("compare", "Run a net twice and compare every value, forward and backward, in the order of computation.")
    parser.flag("model", "", "the net prototxt")
    parser.flag("weights", "", "weights, separated by ','; without them both runs start from the fillers")
    parser.flag("phase", "TRAIN", "TRAIN or TEST", choices=("TRAIN", "TEST"))
    device_flags(parser)
    parser.flag("with", PLAIN, f"the second run: another device, or '{PLAIN}': the same device without fusion, recomputation and memory sharing")
    parser.flag("tolerance", 1e-4, "largest accepted difference, as a share of a value's largest magnitude")
    state_flags(parser)
    options = parser.parse(argv)
    path, other = required(options, "model", "the model", "compare"), getattr(options, "with")
    if not options.tolerance > 0:
        raise Error(f"--tolerance is {options.tolerance:g}", place="ocaffe compare", fix="--tolerance 1e-4, or another share above 0")
    message = read_net(path, options.allow_unknown_fields, lambda text: log.warning("upgrade_proto.cpp:1", text))
    phase = proto.TRAIN if options.phase == "TRAIN" else proto.TEST
    log.quiet()
    with contextlib.ExitStack() as stack:
        first = select_device(options.device or None, options.gpu or None, math=options.math)
        stack.callback(first.close)
        second = first
        if other != PLAIN:
            second = select_device(other)
            stack.callback(second.close)
        weights = [read_weights(file) for file in weight_files([options.weights])]
        sides = []
        for device, plain in ((first, False), (second, other == PLAIN)):
            net = phase_net(message, phase, options.level, stages(options.stage) or ("",))
            sides.append(Side(net, phase, device, plain, weights))
            stack.callback(sides[-1].network.close)
        say(f"first:  {_title(first)}", f"second: {_title(second)}{', ' + PLAIN if other == PLAIN else ''}", "")
        rows = compare(*sides)
    width = max((len(row.layer) for row in rows), default=5)
    for row in rows:
        error = "merged" if row.error is None else f"{row.error:.1e}"
        say(f"{row.phase:<8}  {row.layer:<{width}}  {error:>8}{'  <--' if row.error is not None and not row.error <= options.tolerance else ''}  {row.blob}")
    wrong = [row for row in rows if row.error is not None and not row.error <= options.tolerance]
    compared = sum(row.error is not None for row in rows)
    if not wrong:
        say("", f"no difference above {options.tolerance:g} in {compared} values")
        return 0
    row = wrong[0]
    say("", f"{len(wrong)} of {compared} values differ; the first: layer {row.layer}, {row.phase}, '{row.blob}', off by {row.error:.2g}")
    say(f"  of its largest magnitude, {row.place}")
    return 1


def _title(device: Device) -> str:
    return f"{device.number}: {device.name} ({device.platform_name}, driver {device.driver_version})"
