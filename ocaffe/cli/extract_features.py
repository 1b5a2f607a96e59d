"""ocaffe extract_features: write blobs of a net to databases of floats, batch by batch, as Caffe's tool."""
from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cl.device import Device, select_device
from ocaffe.cli.flags import Parser, device_flags, refuse_overwriting, whole_number
from ocaffe.data.databases.writer import OPENED, WRITERS, Writer
from ocaffe.errors import Error, shape_text
from ocaffe.formats.blob import array_to_datum
from ocaffe.formats.text import read_net
from ocaffe.support import log
from ocaffe.support.progress import progress

COMMAND = "ocaffe extract_features"
SOURCE = "extract_features.cpp"
_REPORT_EVERY = 1000  # records


def main(argv: Sequence[str]) -> int:
    parser = Parser("extract_features", "Run a net in the TEST phase and write blobs to databases, one record per image.")
    parser.add_argument("weights", metavar="WEIGHTS", help="the trained weights")
    parser.add_argument("model", metavar="MODEL", help="the net prototxt, with a data layer")
    parser.add_argument("blobs", metavar="BLOB[,BLOB]", help="names of the blobs, separated by ','")
    parser.add_argument("databases", metavar="DB[,DB]", help="databases to write, one per blob, separated by ','")
    parser.add_argument("batches", metavar="NUM_BATCHES", type=whole_number, help="number of batches to run")
    parser.add_argument("backend", metavar="DB_TYPE", choices=sorted(WRITERS), help="lmdb or leveldb")
    parser.add_argument("mode", metavar="CPU|GPU", nargs="?", default="", choices=("CPU", "GPU", ""), help="default: --device or the best device")
    parser.add_argument("number", metavar="DEVICE_ID", nargs="?", type=whole_number, default=0, help="number of the GPU")
    device_flags(parser)
    options = parser.parse(argv)
    blobs, databases = options.blobs.split(","), options.databases.split(",")
    if len(blobs) != len(databases):
        fact = f"{len(blobs)} blobs ({options.blobs}), {len(databases)} databases ({options.databases})"
        raise Error(fact, place=COMMAND, fix="give a database for each blob")
    names = [os.path.realpath(path) for path in databases]
    if again := next((path for number, path in enumerate(databases) if names[number] in names[:number]), None):
        raise Error(f"the database {again} is named twice", place=COMMAND, fix="give each blob a database of its own")
    refuse_overwriting("extract_features", [options.weights, options.model], databases)
    if options.batches < 1:
        raise Error(f"the number of batches is {options.batches}", place=COMMAND, fix="10, or another number of 1 or more batches")
    net_message = read_net(options.model)
    with contextlib.ExitStack() as stack:
        device = _device(options)
        stack.callback(device.close)
        net = Net(net_message, phase=proto.TEST, weights=options.weights, keep=blobs, device=device)
        stack.callback(net.close)
        writers: list[Writer] = []
        for path in databases:
            log.info(f"{SOURCE}:125", f"Opening dataset {path}")
            writers.append(stack.enter_context(WRITERS[options.backend](path)))
            log.info(OPENED[options.backend], f"Opened {options.backend} {path}")
        log.error(f"{SOURCE}:133", "Extracting Features")
        extract(net, list(zip(blobs, writers)), options.batches)
        for name, writer in zip(blobs, writers):
            log.error(f"{SOURCE}:176", f"Extracted features of {writer.count} query images for feature blob {name}")
    log.error(f"{SOURCE}:181", "Successfully extracted the features!")
    return 0


def extract(net: Net, writers: Sequence[tuple[str, Writer]], batches: int) -> None:
    """Run `batches` batches and append every row of the named blobs to their databases. Raises Error."""
    with progress(batches, "batch") as bar:
        for _ in range(batches):
            net.forward()
            for name, writer in writers:
                _append(name, net.blobs[name].data, writer)
            bar.update()


def _append(name: str, values: np.ndarray, writer: Writer) -> None:
    if not values.ndim:
        fact = f"blob '{name}' is one number for the whole batch, and a feature is one row for each image"
        raise Error(fact, place=COMMAND, fix="name a blob whose first axis is the batch")
    if values.ndim > 4:
        fact = f"blob '{name}' is {shape_text(values.shape)}, and a Datum has up to three axes behind the batch"
        joined = f"shape {{ {' '.join(['dim: 0'] * 3)} dim: -1 }}"
        raise Error(fact, place=COMMAND, fix=f"name the top of a Reshape layer that joins the last axes: reshape_param {{ {joined} }}")
    for row in values.reshape(values.shape + (1,) * (4 - values.ndim)):
        writer.put(b"%010d" % writer.count, array_to_datum(np.asarray(row, np.float32)).SerializeToString())
        if writer.count % _REPORT_EVERY == 0:
            log.error(f"{SOURCE}:164", f"Extracted features of {writer.count} query images for feature blob {name}")


def _device(options: Any) -> Device:
    """Open the device of Caffe's two arguments, or of --device and --gpu."""
    gpu = options.gpu or (str(options.number) if options.mode == "GPU" else "")
    device = select_device(options.device or None, gpu or None, solver_mode_cpu=options.mode == "CPU", math=options.math)
    log.error(f"{SOURCE}:{62 if device.target.is_cpu else 54}", "Using CPU" if device.target.is_cpu else f"Using GPU {device.number}")
    log.info("caffe.cpp:218", f"Device {device.number}: {device.name} ({device.platform_name}, driver {device.driver_version})")
    return device
