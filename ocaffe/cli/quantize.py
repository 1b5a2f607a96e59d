"""ocaffe quantize NET WEIGHTS --out DIR: from a net in floats to one with integers of 8 bits, by some images and without labels."""
from __future__ import annotations

import argparse
import contextlib
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.cl.device import select_device
from ocaffe.cli import train
from ocaffe.cli.flags import Parser, device_flags, refuse_overwriting, shapes_of, stages, state_flags
from ocaffe.cli.preparation import changed, preparation, preparation_flags
from ocaffe.cli.ranks import listed
from ocaffe.compiler.network import phase_net
from ocaffe.convert.caffe.rewrite import rewrite
from ocaffe.convert.deploy import DATA
from ocaffe.convert.options import Options
from ocaffe.data.decoding.decode import read_file
from ocaffe.data.stores.folder import is_image_name
from ocaffe.data.stores.label_names import is_database
from ocaffe.errors import Error, within
from ocaffe.evaluation.deploy import data_layer
from ocaffe.evaluation.preprocessing import Preprocessing
from ocaffe.evaluation.sidecar import read_sidecar, sidecar_of
from ocaffe.formats.batch import batched
from ocaffe.formats.text import read_net
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.quantize import page
from ocaffe.quantize.choose import AUTO
from ocaffe.quantize.formats import FORMATS
from ocaffe.quantize.graft import QUANTIZED_NET, QUANTIZED_WEIGHTS
from ocaffe.quantize.images import Images
from ocaffe.quantize.observe import Tell
from ocaffe.quantize.output import write_all
from ocaffe.quantize.quantize import JUDGES, Quantized, Settings, quantize
from ocaffe.quantize.reconstruct import STEPS
from ocaffe.quantize.scheme import read_scheme, schemes
from ocaffe.quantize.thresholds import METHODS
from ocaffe.quantize.training import DONE, SOLVER, finished, nets_of, snapshots, unfinished, write_training
from ocaffe.quantize.worst import worst
from ocaffe.shown import command, path_word, say
from ocaffe.support import log
from ocaffe.support.files import atomic_write, new_folder, read_plain, text_lines
from ocaffe.support.kinds import WrongKind
from ocaffe.support.progress import progress

NAME = "quantize"
PLACE = f"ocaffe {NAME}"
LOG = "train.log"
STOPPED, EARLY = b"] Optimization stopped early.", b"] Early stopping: "  # in the log: by a signal, or because tests became no better
IMAGES, BATCH = 512, 32
PICTURES = 12  # of the images whose outputs change most


def main(argv: Sequence[str]) -> int:
    """Run the command. Raises Error."""
    options = _parser().parse(argv, intermixed=True)
    settings = _settings(options)
    log.quiet()
    if options.train and unfinished(options.out):
        return _train(options)
    if os.path.lexists(options.out):
        raise Error(f"{options.out} exists", place=PLACE, fix="--out with a new folder, or remove this one")
    refuse_overwriting(NAME, [options.net, options.weights, options.data], [options.out])
    started = time.monotonic()
    if options.train:
        nets_of(options.train)  # its errors come before the calibration
    message = read_net(options.net, options.allow_unknown_fields, lambda text: log.warning("upgrade_proto.cpp:1", text))
    chosen = stages(options.stage, message) or ("",)
    own_batch = _own_batch(phase_net(message, proto.TEST, options.level, chosen))  # before that of the calibration takes its place
    several = listed(options) if options.train else []  # the calibration runs on the first one
    name, gpu = (several[0].number, None) if several else (options.device or None, options.gpu or None)
    with contextlib.closing(select_device(name, gpu, math=options.math or None)) as device:
        images, sized = _images(options, message, chosen)
        folding = Options(fold=True, shapes=shapes_of(options.shape, NAME), level=options.level, stages=chosen, unknown_fields=options.allow_unknown_fields)
        made = quantize(rewrite(sized, options.weights, folding).net, settings, images, device, _told)
        judges = images.first(JUDGES)
        with _told("worst images", judges.count) as tell:
            shown = worst(made.net, made.table, judges, PICTURES, device, tell, original=made.source)
        with new_folder(options.out) as folder:
            pages = {page.FILE: lambda made: page.page(f"{options.net} in integers", made, shown).encode()}
            names = [*write_all(folder, made, {**FORMATS, **pages}, own_batch), *_copy_sidecar(options.weights, folder)]
            if options.train:
                write_training(folder, options.out, made, options.train, folding)
    _report(options, made, names, images.count, time.monotonic() - started)
    return _train(options) if options.train else 0


def _own_batch(net: Any) -> int:
    """Return the batch size of the nets that are written: that of a net for deployment, else one image."""
    return next((int(shape.dim[0]) for layer in net.layer if layer.type == "Input" for shape in layer.input_param.shape if shape.dim), 1)


def _copy_sidecar(weights: str, folder: Path) -> list[str]:
    """Put the preprocessing beside the weights, if a training wrote it, beside the new weights: `ocaffe predict` reads it. Return the file's name."""
    source, target = sidecar_of(weights), sidecar_of(str(folder / QUANTIZED_WEIGHTS))
    if not os.path.isfile(source):
        return []
    with atomic_write(target) as stream:
        stream.write(read_plain(source))
    return [os.path.basename(target)]


def _train(options: argparse.Namespace) -> int:
    """Train the rounded net, or go on with its training, and write the integers that it ends with. Return the status of the training."""
    argv = ["--solver", os.path.join(options.out, SOLVER), "--snapshot", "auto"]
    argv += [text for name in ("device", "gpu", "math") if getattr(options, name) for text in (f"--{name}", getattr(options, name))]
    file = os.path.join(options.out, LOG)
    before = os.path.getsize(file) if os.path.exists(file) else 0
    with log.into(file, "a", links=False):
        status = train.main(argv)
    if status:
        return status
    text = read_plain(file)[before:]
    if STOPPED in text and EARLY not in text:
        say(f"{options.out}: the training is stopped; the same command goes on with it")
        return 0
    made = finished(options.out)
    write_all(Path(options.out), made, {**FORMATS, page.FILE: lambda made: page.page(f"{options.net} in integers, trained", made, ()).encode()})
    with atomic_write(os.path.join(options.out, DONE)) as stream:
        stream.write(f"{max(snapshots(options.out))} iterations\n".encode())
    say(f"{options.out}: trained, {len(made.table.products)} products with integers")
    return 0


def _parser() -> Parser:
    parser = Parser(NAME, "Give a trained net integers of 8 bits, as chips have them. Some images give the range of each blob, and the weights change "
                          "so that rounding costs less. The files are the net, its table, and a net that rounds as the chip does.")  # fmt: skip
    parser.add_argument("net", metavar="NET", help="the net prototxt, of a training or for deployment")
    parser.add_argument("weights", metavar="WEIGHTS", help="the trained weights")
    parser.flag("out", "", "the new folder for the files")
    parser.flag("data", "", "calibration images: a database, a folder of images, or a list of image files; default: the data layer of NET")
    parser.flag("images", IMAGES, "number of calibration images", least=1)
    parser.flag("batch", BATCH, "images of a run", least=1)
    parser.flag("scheme", "int8", f"the integers of a chip: {', '.join(schemes())}")
    parser.flag("method", AUTO, f"how ranges are chosen: {', '.join(METHODS)}, or {AUTO}: the best of them for the whole net")
    parser.flag("steps", STEPS, "steps of the reconstruction, which trains weights and scales on the images; 0: none", least=0)
    parser.flag("ranges_only", False, "choose the ranges and change no weights: without equalisation, bias correction and reconstruction")
    parser.flag("train", "", "a solver: then train the net that rounds, by its data, losses and rates, and with learned scales; the same command goes on "
                "with a training that was stopped")  # fmt: skip
    parser.flag("mixed", 0, "number of products that get 16 bits: those whose rounding changes the outputs most", least=0)
    preparation_flags(parser)
    parser.flag("shape", "", "shapes of inputs, such as data:1x3x224x224")
    device_flags(parser)
    state_flags(parser)
    return parser


def _settings(options: argparse.Namespace) -> Settings:
    if not options.out:
        raise Error("no folder is given for the files", place=PLACE, fix="--out FOLDER")
    if options.method not in (*METHODS, AUTO):
        raise Error(f"--method is '{options.method}'", place=PLACE, fix=f"--method {AUTO}, or one of {', '.join(METHODS)}")
    changes = not options.ranges_only
    return Settings(read_scheme(options.scheme), options.method, changes, changes, options.steps if changes else 0, options.mixed)


@contextlib.contextmanager
def _told(what: str, count: int) -> Iterator[Tell]:
    with progress(count, " images", what) as bar:
        yield lambda done: bar.update(done - bar.n)


# -- images ----------------------------------------------------------------------------------------------------------


def _images(options: argparse.Namespace, message: Any, chosen: tuple[str, ...]) -> tuple[Images, Any]:
    """Return the calibration images, and the message of the net with their batch."""
    net = phase_net(message, proto.TEST, options.level, chosen)
    feeding = [layer for layer in net.layer if layer.type in DATA and not layer.bottom]
    if options.data and not is_database(options.data):
        return _of_files(options, net), batched(message, options.batch)
    if not feeding:
        if not options.data:
            fix = "--data FOLDER of images, or the train_val prototxt, whose data layer says where they are"
            raise Error("the net has no data layer, and no images are given", place=options.net, fix=fix)
        feeding = [_database_layer(options, net)]
    sized = batched(net, options.batch)
    layers = [layer for layer in sized.layer if layer.type in DATA and not layer.bottom] or feeding
    if options.data:
        layers[0].data_param.source = options.data
    else:
        _from_training(options, message, chosen, layers)
    return Images(options.images, options.batch, layers), sized


def _from_training(options: argparse.Namespace, message: Any, chosen: tuple[str, ...], layers: Sequence[Any]) -> None:
    """Make the data layers of TEST read the images of TRAIN, if they differ in the source alone: the test images then stay unseen."""
    train = {layer.top[0]: layer for layer in phase_net(message, proto.TRAIN, options.level, chosen).layer if layer.type in DATA and layer.top}
    for layer in layers:
        other = train.get(layer.top[0])
        if other is not None and other.type == layer.type == "Data" and os.path.exists(other.data_param.source):
            layer.data_param.source, layer.data_param.backend = other.data_param.source, other.data_param.backend


def _prepared(options: argparse.Namespace, net: Any) -> Preprocessing:
    beside = read_sidecar(options.weights)
    found = changed(beside[0], options, sidecar_of(options.weights), NAME) if beside else preparation(net, data_layer(net), options.net, options, NAME)
    if not isinstance(found, Preprocessing):
        raise Error("a detector of regions has no fixed size of images", place=options.net, fix="give the net with a data layer, without --data")
    return found


def _database_layer(options: argparse.Namespace, net: Any) -> Any:
    """Return the data layer of a net for deployment that reads a database."""
    how = _prepared(options, net)
    if how.mean.ndim == 3:
        raise Error("the mean is an image, and the net has no data layer", place=options.net, fix="--mean BLUE,GREEN,RED, or give the train_val prototxt")
    inputs = [top for layer in net.layer if layer.type == "Input" for top in layer.top]
    layer = proto.LayerParameter(name="calibration", type="Data", top=[inputs[0], "calibration_label"])
    layer.data_param.source, layer.data_param.backend, layer.data_param.batch_size = options.data, proto.DataParameter.LMDB, options.batch
    layer.transform_param.scale = how.scale
    layer.transform_param.mean_value[:] = [float(value) for value in how.mean if how.mean.any()]
    if how.shape[1] == how.shape[2]:
        layer.transform_param.crop_size = how.shape[1]
    return layer


def _of_files(options: argparse.Namespace, net: Any) -> Images:
    files = _files(options.data)
    how = _prepared(options, net)
    inputs = [top for layer in net.layer if layer.type == "Input" or layer.type in DATA for top in layer.top[:1]]
    if len(files) > options.images:
        files = [files[index * len(files) // options.images] for index in range(options.images)]  # spread, because folders are sorted by class
    batch = len(files) // math.ceil(len(files) / options.batch)  # batches of one size, so that few images are left over

    def arrays() -> Iterator[Mapping[str, np.ndarray]]:
        for begin in range(0, len(files) - batch + 1, batch):
            yield {inputs[0]: np.stack([_pixels(how, name) for name in files[begin : begin + batch]])}

    options.batch = batch
    return Images(len(files) // batch * batch, batch, arrays=arrays)


def _pixels(how: Preprocessing, name: str) -> np.ndarray:
    with within(name):
        return how(read_file(name))[0]


def _files(data: str) -> list[str]:
    """Return the image files of a folder, or of a list, in which a line may have a label behind the name."""
    if os.path.isdir(data):
        found = sorted(os.path.join(folder, file) for folder, _, names in os.walk(data) for file in names if is_image_name(file, photos=True))
    elif os.path.exists(data):
        found = [_listed(data, number, line.strip()) for number, line in enumerate(_lines(data), 1) if line.strip()]
    else:
        raise Error(f"{data} does not exist", place=PLACE, fix="--data with a database, a folder of images, or a list of image files")
    if not found:
        raise Error(f"{data} has no image", place=PLACE, fix="--data with a database, a folder of images, or a list of image files")
    return found


def _lines(data: str) -> Iterator[str]:
    """Yield the lines of a list. Raise Error for a file that is no text."""
    fix = "--data with a database, a folder of images, or a list of image files"
    try:
        for number, line in enumerate(text_lines(data), 1):
            if any(ord(letter) < 32 and letter not in "\t\r\n" for letter in line):
                raise Error(f"line {number} is no text", place=data, fix=fix)
            yield line
    except WrongKind as problem:
        raise Error(str(problem.strerror), place=data, fix=fix) from None


def _listed(data: str, number: int, line: str) -> str:
    """Return the image file that a line of a list names: from the folder of the list or from here, with or without a label behind it."""
    names = [line, line.rsplit(None, 1)[0]]
    for name in (os.path.join(folder, name) for name in names for folder in (os.path.dirname(data), "")):
        if os.path.isfile(name):
            return name
    raise Error(f"'{names[-1]}' is no file, from {os.path.dirname(data) or '.'} or from here", place=f"{data}:{number}", fix="correct the list")


# -- result ----------------------------------------------------------------------------------------------------------


def _report(options: argparse.Namespace, made: Quantized, names: Sequence[str], images: int, seconds: float) -> None:
    products, blobs = len(made.table.products), len(made.table.values)
    say(f"{options.out}: {products} products with integers, {blobs} blobs; {images} images, {seconds:.0f} s", "")
    width = max(len(name) for name, _ in made.stages)
    say("error of the outputs, as a share of their mean square:")
    for name, error in made.stages:
        say(f"  {name:<{width}}  {error:.2e}")
    worst = sorted(made.errors.items(), key=lambda item: -item[1])[:5]
    say("", "blobs with the largest errors:")
    width = max(len(name) for name, _ in worst)
    for name, error in worst:
        entry = made.table.values.get(name)
        say(f"  {name:<{width}}  {error:.2e}  {f'{entry.low:.4g} to {entry.high:.4g}, by {entry.method}' if entry else ''}")
    say("", f"files: {', '.join(names)}", "")
    test = command("ocaffe", "test", "--model", path_word(options.net), "--quantized", path_word(options.out))
    nets = (path_word(os.path.join(options.out, name)) for name in (QUANTIZED_NET, QUANTIZED_WEIGHTS))
    export = command("ocaffe", "convert", *nets, path_word(os.path.join(options.out, "model.onnx")))
    say(f"test it: `{test}`" if _has_data(options) else f"export it: `{export}`")


def _has_data(options: argparse.Namespace) -> bool:
    return any(layer.type in DATA for layer in upgrade_net(read_net(options.net, True)).layer)

