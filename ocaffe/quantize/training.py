"""Quantization-aware training: the files of a training whose net rounds, and the integers that it ends with.

The training is an ordinary one. FakeQuantize layers learn their scales, and products round their weights in each pass (ocaffe/graph/rounded_weights.py).
"""
from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.convert.caffe.net import net_of
from ocaffe.convert.options import Options
from ocaffe.errors import Error
from ocaffe.formats.text import read_net, read_solver, write_text
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.formats.weights import read_weights, write_weights
from ocaffe.quantize.graft import graft, replaced
from ocaffe.quantize.output import NET
from ocaffe.quantize.quantize import Quantized
from ocaffe.quantize.simulate import SUFFIX, simulated
from ocaffe.quantize.table import FILE, read_table
from ocaffe.support.files import atomic_write

SOLVER, START, PREFIX = "solver.prototxt", "start.caffemodel", "train"
DONE = "trained.txt"  # says which snapshot the integers are of
NETS = {"net": "train_val", "train_net": "train", "test_net": "test"}  # fields of a solver that name a net, and the names of their files here


def write_training(folder: Path, final: str, made: Quantized, solver: str, options: Options) -> None:
    """Write the solver, the nets and the first weights of a training into `folder`, whose name will be `final`. Raise Error.

    `solver`: a user's solver. Its nets get the rounded net in place of their layers for inference, their data layers and losses stay.
    """
    body = simulated(made.net, made.table)
    for layer in body.layers:
        if layer.type == "FakeQuantize":
            layer.param.add(lr_mult=1, decay_mult=0)  # a scale is no weight that should be small
    message = body.message()
    write_weights(folder / START, message, body.weights())
    param = read_solver(solver)
    for name, nets in nets_of(solver).items():
        written = [
            _write_net(folder, final, f"{NETS[name]}{index or ''}.prototxt", file, net, message, options) for index, (file, net) in enumerate(nets)
        ]
        if name == "test_net":
            param.test_net[:] = written
        else:
            setattr(param, name, written[0])
    param.snapshot_prefix = os.path.join(final, PREFIX)
    param.weights[:] = [os.path.join(final, START)]
    param.ClearField("snapshot_after_train")
    with atomic_write(folder / SOLVER) as stream:
        stream.write(f"# Written by `ocaffe quantize` for {os.path.basename(solver)}.\n{write_text(param)}".encode())


def nets_of(solver: str) -> dict[str, list[tuple[str, Any]]]:
    """Return the files and the upgraded messages of the nets that a solver names, by its field. Raise Error if it names none."""
    param = read_solver(solver)
    given = {name: list(param.test_net) if name == "test_net" else [getattr(param, name)] for name in NETS if getattr(param, name)}
    if not given:
        raise Error("has no net: FILE", place=solver, fix="write net: with the file of the net, for --train")
    return {name: [(file, upgrade_net(read_net(file))) for file in files] for name, files in given.items()}


def _write_net(folder: Path, final: str, name: str, file: str, net: Any, body: Any, options: Options) -> str:
    made = graft(net, body, replaced(net, replace(options, fold=False, shapes={})))
    known = {layer.name for layer in made.layer}
    if not any(layer.type == "FakeQuantize" for layer in made.layer) or len(known) < 2:
        raise Error("none of its layers is in the quantized net", place=file, fix="--train with the solver of this net")
    with atomic_write(folder / name) as stream:
        stream.write(f"# Written by `ocaffe quantize` for {os.path.basename(file)}.\n{write_text(made)}".encode())
    return os.path.join(final, name)


def unfinished(folder: str) -> bool:
    """Whether a folder has a training that has not ended with its integers."""
    return os.path.isfile(os.path.join(folder, SOLVER)) and os.path.isfile(os.path.join(folder, FILE)) and not os.path.isfile(os.path.join(folder, DONE))


def snapshots(folder: str) -> dict[int, str]:
    """Return the weights of a training by iteration."""
    return {int(match[1]): name for name in os.listdir(folder) if (match := re.fullmatch(rf"{PREFIX}_iter_(\d+)\.caffemodel", name))}


def finished(folder: str) -> Quantized:
    """Return the net with the integers of the newest snapshot of a training. Raise Error if there is none."""
    found = snapshots(folder)
    if not found:
        raise Error("has no snapshot of the training", place=folder, fix="run the same command again, which goes on with the training")
    weights = read_weights(os.path.join(folder, found[max(found)]))
    arrays = {layer.name: [np.array(blob) for blob in layer.blobs] for layer in weights.layers if layer.blobs}
    message = read_net(os.path.join(folder, NET))
    read = {name for layer in message.layer for name in layer.bottom}
    outputs = list(dict.fromkeys(top for layer in message.layer for top in layer.top if top not in read))
    own = {layer.name for layer in message.layer}
    message.state.phase = proto.TEST
    net = net_of(message, {name: blobs for name, blobs in arrays.items() if name in own}, outputs)
    table = read_table(os.path.join(folder, FILE))
    for value, entry in list(table.values.items()):
        scale = float(arrays[f"{value}{SUFFIX}"][0].reshape(-1)[0])
        if not 0 < scale < np.inf:
            fact = f"the training gave '{value}' the scale {scale:g}"
            raise Error(fact, place=folder, fix="train with a smaller base_lr, from the start: remove the folder")
        table.values[value] = replace(entry, grid=replace(entry.grid, scale=scale), method="trained")
    return Quantized(net, net, table, {})
