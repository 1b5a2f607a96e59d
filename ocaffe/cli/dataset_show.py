"""`ocaffe dataset show SOURCE`: write a contact sheet of images with their labels, as stored, or as a net sees them."""
from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cl.device import select_device
from ocaffe.cli.flags import Parser, bad_records_flag, device_flags, naming_bad_records
from ocaffe.compiler.network import phase_net
from ocaffe.data.bad_records import BadRecords
from ocaffe.data.changes.boxes import Boxes, read_annotated
from ocaffe.data.changes.transform import Transform
from ocaffe.data.databases.database import Reader, open_database
from ocaffe.data.databases.datum import refuse_unmarked
from ocaffe.data.decoding.decode import Color, open_image, planes
from ocaffe.data.sources.database_images import ImageSource
from ocaffe.data.sources.file_images import ListSource
from ocaffe.data.stores.label_names import is_database, label_names
from ocaffe.errors import Error, shape_text
from ocaffe.formats.text import read_net, read_solver
from ocaffe.shown import command, path_word, say
from ocaffe.solver.nets import net_messages
from ocaffe.support import log
from ocaffe.support.files import atomic_write
from ocaffe.tools.drawing.box_drawing import with_boxes
from ocaffe.tools.drawing.contact_sheet import contact_sheet

NAME = "dataset show"
_LEAST = 0.005  # a smaller probability of a class is not shown
_BOXES, _IMAGES = ("AnnotatedData",), ("Data", "ImageData")  # types of layers
Sample = tuple[np.ndarray, np.ndarray]  # an image, channels x height x width, and its labels (none if the source has none), or rows of boxes


@naming_bad_records()
def main(argv: Sequence[str]) -> int:
    """Run the command. Raises Error."""
    parser = Parser(NAME, "Write a contact sheet of a database, class folders, a list, a table or tar shards, with the label below each image, or with boxes.")
    parser.add_argument("source", metavar="SOURCE", help="the LMDB or LevelDB, or the source of an ImageData layer")
    parser.flag("augment", "", "a solver or net: show the input of its net, after resizing, crop, mirror and augmentation")
    parser.flag("out", "sheet.png", "the PNG to write")
    parser.flag("count", 32, "number of images")
    parser.flag("phase", "TRAIN", "of the net of --augment", choices=("TRAIN", "TEST"))
    parser.flag("seed", 1, "seed of the augmentation")
    parser.flag("root_folder", "", "put before each name of a list or table")
    parser.flag("label_count", 0, "labels of each image of a list, a table or tar shards; 0: one whole number, or that of the layer of --augment")
    bad_records_flag(parser)
    device_flags(parser)
    options = parser.parse(argv)
    if options.count < 1:
        raise Error(f"--count is {options.count}", place=f"ocaffe {NAME}", fix="--count 32, or another number of 1 or more images")
    if options.label_count < 0:
        raise Error(f"--label-count is {options.label_count}", place=f"ocaffe {NAME}", fix="--label-count 1, or another number of 0 or more labels")
    if not options.out.lower().endswith(".png"):
        raise Error(f"--out is {options.out}", place=f"ocaffe {NAME}", fix=command("--out", path_word(f"{os.path.splitext(options.out)[0] or 'shown'}.png")))
    log.quiet()
    boxed = is_annotated(options.source)
    found = augmented(options, _BOXES if boxed else _IMAGES) if options.augment else stored_boxes(options) if boxed else stored(options)
    samples = [sample for sample, _ in zip(found, range(options.count))]
    names = label_names(options.source)
    if boxed:
        samples = [(with_boxes(image, rows, names), np.empty(0)) for image, rows in samples]
    with atomic_write(options.out) as out:
        out.write(contact_sheet([image for image, _ in samples], [caption(label, names) for _, label in samples]))
    say(f"{options.out}: {len(samples)} images")
    return 0


def is_annotated(path: str) -> bool:
    """Return whether `path` is a database of images with boxes. A Datum has no field of a message, so it is an AnnotatedDatum without `datum`."""
    if not is_database(path):
        return False
    ((_, value),) = Reader(open_database(path, _backend(path))).read(0, 1)
    try:
        return bool(proto.AnnotatedDatum.FromString(bytes(value)).HasField("datum"))
    except DecodeError:
        return False


def stored_boxes(options: Any) -> Iterator[Sample]:
    """Yield the images and boxes of a database as they are stored."""
    database = open_database(options.source, _backend(options.source))
    reader, bad = Reader(database), BadRecords(options.skip_bad_records, database.entries)
    for record in range(database.entries):
        ((key, value),) = reader.read(record, 1)
        try:
            yield _boxed(bytes(value))
        except Error as problem:
            bad.add(record, database.fault(problem, record, key))


def _boxed(record: bytes) -> Sample:
    """Return the image and the boxes of an AnnotatedDatum. Raise Error without a place."""
    annotated = read_annotated(record)
    datum, rows = annotated.datum, Boxes.of(annotated).rows(0)
    if datum.encoded:
        return planes(open_image(datum.data), Color.COLOR), rows
    shape = datum.channels, datum.height, datum.width
    if not datum.data or len(datum.data) != shape[0] * shape[1] * shape[2]:
        if datum.float_data:
            raise Error("its image has float_data", fix="write the pixels as bytes in data, where the database is written")
        refuse_unmarked(datum.data[:64])
        fix = "set channels, height and width of the datum to the shape of its data, where the database is written"
        raise Error(f"it has {len(datum.data)} bytes for an image of {shape_text(shape)}", fix=fix)
    return np.frombuffer(datum.data, np.uint8).reshape(shape), rows


def data_layer(options: Any, batch: int, boxed: bool = False) -> Any:
    """Return the LayerParameter of a layer that reads the source. `boxed`: it is a database of images with boxes."""
    layer = proto.LayerParameter(name="data", top=["data", "label"])
    if is_database(options.source):
        layer.type, param = "AnnotatedData" if boxed else "Data", layer.data_param
        param.backend = _backend(options.source)
    else:
        layer.type, param = "ImageData", layer.image_data_param
        param.root_folder = options.root_folder
        if options.label_count:
            param.label_count = options.label_count
    param.source, param.batch_size = options.source, batch
    return layer


def opened(layer: Any, options: Any) -> ImageSource | ListSource:
    """Return the source of a layer. Its images need no label, and are not changed."""
    transform = Transform(proto.TransformationParameter(skip_bad_records=options.skip_bad_records), False)
    if layer.type == "Data":
        return ImageSource(layer.data_param, transform, False, place=options.source)
    return ListSource(layer.image_data_param, transform, False, place=options.source)


def stored(options: Any) -> Iterator[Sample]:
    """Yield the images as they are stored."""
    with closing(opened(data_layer(options, 1), options)) as made:
        for index in range(min(options.count, made.order.entries)):
            buffer = np.empty(made.nbytes, np.uint8)
            info = made.fill(index, buffer)
            if info.nbytes > buffer.nbytes:
                buffer = np.empty(info.nbytes, np.uint8)
                made.fill(index, buffer)
            layout = made.layout(info.shapes[0])
            flat, (_, channels, height, width) = layout.pixels(buffer)[0], info.shapes[0]
            image = flat.reshape(height, width, channels).transpose(2, 0, 1) if layout.interleaved else flat.reshape(channels, height, width)
            yield np.clip(image, 0, 255).astype(np.uint8), layout.labels(buffer)[: int(made.labelled)].reshape(-1).copy()


def augmented(options: Any, types: Sequence[str]) -> Iterator[Sample]:
    """Yield the input of the net of --augment: its data layer, of one of `types`, reads the source on the device."""
    given, file = net_layer(options, types)
    param = getattr(given, "image_data_param" if given.type == "ImageData" else "data_param")
    layer = data_layer(options, max(int(param.batch_size), 1), types is _BOXES)
    layer.name, layer.source_line = given.name, given.source_line
    layer.transform_param.CopyFrom(given.transform_param)
    if options.skip_bad_records:
        layer.transform_param.skip_bad_records = options.skip_bad_records
    if layer.type == given.type == "ImageData":
        for field in ("new_height", "new_width", "is_color", "label_count", "shuffle"):
            if param.HasField(field) and not layer.image_data_param.HasField(field):
                setattr(layer.image_data_param, field, getattr(param, field))
    elif layer.type == given.type:
        layer.annotated_data_param.CopyFrom(given.annotated_data_param)
        layer.data_param.force_encoded_color = param.force_encoded_color
    if layer.type == "Data":
        with closing(opened(layer, options)) as source:
            if not source.labelled:
                del layer.top[1]
    phase = proto.TRAIN if options.phase == "TRAIN" else proto.TEST
    message = proto.NetParameter(name="show", layer=[layer], source_file=file)
    with (
        closing(select_device(options.device or None, options.gpu or None, math=options.math)) as device,
        Net(message, phase=phase, device=device, seed=options.seed) as net,
    ):
        while True:
            net.forward()
            data, *labels = (np.array(net.blobs[name].data) for name in layer.top)
            label = labels[0] if labels else np.empty((len(data), 0))
            if types is _BOXES:
                rows = label.reshape(-1, label.shape[-1])
                yield from ((image, rows[rows[:, 0] == number]) for number, image in enumerate(pictures(data, layer.transform_param)))
                continue
            yield from zip(pictures(data, layer.transform_param), label.reshape(len(data), -1))


def net_layer(options: Any, types: Sequence[str]) -> tuple[Any, str]:
    """Return the layer of the net of --augment whose input is shown, its first one of `types`, and the file of the net."""
    try:
        net = read_net(options.augment)
    except Error as problem:
        try:
            solver = read_solver(options.augment)
        except Error:
            raise problem from None
        train, tests = net_messages(solver, read_net, options.augment)
        if options.phase == "TEST" and not tests:
            raise Error("the solver has no TEST net", place=options.augment, fix="--phase TRAIN") from None
        net = train() if options.phase == "TRAIN" else tests[0]()
    else:
        net = phase_net(net, proto.TRAIN if options.phase == "TRAIN" else proto.TEST)
    for layer in net.layer:
        if layer.type in types:
            return layer, net.source_file
    fact = f"the {options.phase} net has no {' or '.join(types)} layer"
    fix = f"--phase {'TEST' if options.phase == 'TRAIN' else 'TRAIN'}, or give a net that reads images"
    raise Error(fact, place=options.augment, fix=fix)


def pictures(data: np.ndarray, transform: Any) -> np.ndarray:
    """Return a batch of the net's input as bytes: without scale and mean. Of a mean image, the mean of its values is added."""
    mean = Transform(proto.TransformationParameter(mean_file=transform.mean_file, mean_value=transform.mean_value), False).mean
    if mean is not None:
        data = data / (transform.scale or 1) + (mean if mean.ndim == 1 else mean.mean((1, 2))).reshape(-1, 1, 1)
    else:
        data = data / (transform.scale or 1)
    return np.clip(np.rint(data), 0, 255).astype(np.uint8)


def caption(labels: np.ndarray, names: Sequence[str]) -> str:
    """Return the text for one label, several, or probabilities of classes."""
    if len(labels) > 1 and abs(float(labels.sum()) - 1) < 1e-3 and labels.min() >= 0:
        shares = [(float(labels[label]), label) for label in np.flatnonzero(labels >= _LEAST).tolist()]
        return " + ".join(_name(label, names) if share > 1 - _LEAST else f"{share:.2f} {_name(label, names)}" for share, label in sorted(shares, reverse=True))
    return " ".join(_name(label, names) for label in labels)


def _name(label: float, names: Sequence[str]) -> str:
    if not float(label).is_integer():
        return f"{label:g}"
    return names[int(label)] if 0 <= label < len(names) else str(int(label))


def _backend(path: str) -> int:
    return proto.DataParameter.LMDB if os.path.exists(os.path.join(path, "data.mdb")) else proto.DataParameter.LEVELDB
