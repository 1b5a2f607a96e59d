"""ocaffe compare: compare a net on two devices, an optimised run with a plain run, or a run with another tool's dump, value by value."""
from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from typing import Any

from ocaffe import proto
from ocaffe.cl.device import Device, select_device
from ocaffe.cli.flags import Parser, check_outputs, device_flags, required, stages, state_flags
from ocaffe.compiler.network import phase_net
from ocaffe.errors import Error, names_text
from ocaffe.formats.text import read_net
from ocaffe.formats.weights import read_weights, weight_files
from ocaffe.quantize.graft import quantized_files, quantized_net
from ocaffe.selftest.compare import Side, compare
from ocaffe.shown import say
from ocaffe.support import log
from ocaffe.support.files import atomic_write
from ocaffe.tools.dumps.page import page, text
from ocaffe.tools.dumps.read import Dump, read_map, read_scales
from ocaffe.tools.dumps.values import compare as compare_dump

PLAIN = "plain"


def main(argv: Sequence[str]) -> int:
    parser = Parser("compare", "Run a net twice and compare every value, forward and backward, in the order of computation. With --dump: run it once in TEST, "
                    "and compare every value with the file of another tool.")  # fmt: skip
    parser.add_argument("net", metavar="NET", nargs="?", default="", help="the net prototxt")
    parser.add_argument("caffemodel", metavar="WEIGHTS", nargs="?", default="", help="weights, separated by ','")
    parser.flag("model", "", "the same as NET, as in test and time")
    parser.flag("weights", "", "the same as WEIGHTS; without them both runs start from the fillers")
    parser.flag("quantized", "", "the folder of `ocaffe quantize`: compare its net, which rounds as a chip does, in place of that of NET")
    parser.flag("phase", "TRAIN", "TRAIN or TEST, without --dump", choices=("TRAIN", "TEST"))
    device_flags(parser)
    parser.flag("with", PLAIN, f"the second run: another device, or '{PLAIN}': the same device without fusion, recomputation and memory sharing")
    parser.flag("tolerance", 1e-4, "largest accepted difference, as a share of a value's largest magnitude; of texts, float16 and integers in a dump at least "
                "0.001, 0.01 and 0.1")  # fmt: skip
    parser.flag("dump", "", "values of the same net from another tool: an .npz file, or a folder with a file for each value")
    parser.flag("map", "", "a file of lines 'BLOB NAME', where NAME is the name in the dump; default: names of blobs and layers")
    parser.flag("scales", "", "a file of lines 'NAME SCALE' or 'NAME SCALE ZERO_POINT' for integers; an .npz may have NAME_scale and NAME_zero_point instead")
    parser.flag("input", "", "the input for --dump: an .npy file, or an .npz with an array for each input; default: the input in the dump")
    parser.flag("html", "", "with --dump, write the table to this page too")
    state_flags(parser)
    options = parser.parse(argv, intermixed=True)
    for flag, word in (("model", options.net), ("weights", options.caffemodel)):
        if word and getattr(options, flag):
            raise Error(f"two values are given: {word} and --{flag} {getattr(options, flag)}", place="ocaffe compare", fix=f"leave --{flag} out")
        setattr(options, flag, word or getattr(options, flag))
    if options.quantized:
        files = quantized_files(options.quantized)
        options.model, options.weights = options.model or files[0], options.weights or files[1]
    path, other = required(options, "model", "the model", "compare"), getattr(options, "with")
    if not options.tolerance > 0:
        raise Error(f"--tolerance is {options.tolerance:g}", place="ocaffe compare", fix="--tolerance 1e-4, or another share above 0")
    message = read_net(path, options.allow_unknown_fields, lambda text: log.warning("upgrade_proto.cpp:1", text))
    if options.quantized and options.model != quantized_files(options.quantized)[0]:
        message = quantized_net(message, options.quantized, options.level, stages(options.stage, message) or ("",))
    if options.dump:
        return _with_dump(options, message)
    alone = next((name for name in ("map", "scales", "input", "html") if getattr(options, name)), "")
    if alone:
        raise Error(f"--{alone} is given without --dump", place="ocaffe compare", fix=f"add --dump FOLDER_OR_NPZ, or leave --{alone} out")
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
            net = phase_net(message, phase, options.level, stages(options.stage, message) or ("",))
            sides.append(Side(net, phase, device, plain, weights))
            stack.callback(sides[-1].network.close)
        stored = {layer.name for each in weights for layer in each.layers if layer.blobs}
        lacking = [node.name for node in sides[0].network.graph.nodes if node.params and node.name not in stored] if weights else []
        if lacking:
            say(*_without_weights(lacking, weight_files([options.weights])), "")
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


def _with_dump(options: argparse.Namespace, message: Any) -> int:
    """Compare the net with a dump. Return 1 if a value differs."""
    if getattr(options, "with") != PLAIN:
        raise Error("--with and --dump are given, two things to compare with", place="ocaffe compare", fix="leave one of them out")
    check_outputs("compare", (options.model, *weight_files([options.weights]), options.dump, options.map, options.scales, options.input), html=options.html)
    log.quiet()
    names = read_map(options.map) if options.map else {}
    dump = Dump(options.dump, read_scales(options.scales) if options.scales else None)
    net = phase_net(message, proto.TEST, options.level, stages(options.stage, message) or ("",))
    weights = weight_files([required(options, "weights", "the weights", "compare")])
    with contextlib.closing(select_device(options.device or None, options.gpu or None, math=options.math)) as device:
        rows, lacking = compare_dump(net, weights, dump, names, options.input, options.tolerance, device)
        say(f"ocaffe: {_title(device)}", f"dump: {options.dump}", "")
    if lacking:
        say(*_without_weights(lacking, weights), "")
    say(*text(rows))
    if options.html:
        with atomic_write(options.html) as stream:
            stream.write(page(f"{options.model} and {options.dump}", rows).encode())
    return int(any(row.wrong for row in rows))


def _without_weights(layers: Sequence[str], files: Sequence[str]) -> tuple[str]:
    return (f"note: {', '.join(files)} {'has' if len(files) == 1 else 'have'} no weights for {names_text(layers)}: these keep the values of their fillers",)


def _title(device: Device) -> str:
    return f"{device.number}: {device.name} ({device.platform_name}, driver {device.driver_version})"
