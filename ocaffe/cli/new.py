"""ocaffe new NET --data DATA: write the files to train a net of the zoo, or of your own, on your images."""
from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from ocaffe.cl.device import choose, list_devices, no_opencl
from ocaffe.cli.flags import AUTO_BATCH, Parser, auto_batch_flag, max_slowdown, memory_limit, slowdown_flag
from ocaffe.cli.planning import plans_of_solver, sentence_about_less
from ocaffe.data.changes.resample import check_pixels
from ocaffe.errors import Error, shape_text
from ocaffe.ir.target import Target
from ocaffe.memory.curve import chosen_text, smallest_within
from ocaffe.memory.report import size_text
from ocaffe.shown import command, path_word, say
from ocaffe.solver.planning import Machine
from ocaffe.support import log
from ocaffe.tools.datasets.folder_set import SHARE
from ocaffe.zoo.detection_project import is_detector, write_detector
from ocaffe.zoo.figures import NO_DEVICE
from ocaffe.zoo.project import EPOCHS, FILES, TUNING_EPOCHS, Choices, Project, write_project, write_published
from ocaffe.zoo.segmentation_project import is_segmenter, write_segmenter
from ocaffe.zoo.text_project import is_reader, write_reader

NAME = "new"
OF_PIXELS = ("class_weights", "batch_norm")  # flags of nets that find the class of each pixel
OF_DATA = (
    "classes", "val", "size", "batch", "memory_limit", "weights", "iterations", "epochs", *OF_PIXELS, "max_slowdown", "gpu", "device",
)  # fmt: skip  # flags that need --data
WRITERS = ((is_detector, write_detector), (is_segmenter, write_segmenter), (is_reader, write_reader))  # of files for other data than images of one class


def main(argv: Sequence[str]) -> int:
    """Run the command. Raises Error."""
    options = _parser().parse(argv)
    out = options.out or options.net.rpartition("/")[2].removesuffix(".prototxt")
    log.quiet()
    if options.data:
        of_pixels = {name: getattr(options, name) for name in OF_PIXELS}
        given = next((name for name, value in of_pixels.items() if value), None)
        if given is not None and not is_segmenter(options.net):
            fact = f"--{given.replace('_', '-')} is given for {options.net}, which does not find the class of each pixel"
            raise Error(fact, place=f"ocaffe {NAME}", fix="leave it out")
        choices = choices_of(options, size=options.size, epochs=options.epochs, **of_pixels)
        write = next((write for fits, write in WRITERS if fits(options.net)), write_project)
        slowdown, target = max_slowdown(options), target_of(options)
        _report(write(options.net, options.data, out, choices, target), target or NO_DEVICE, slowdown, options.memory_limit)
        return 0
    given = next((name for name in OF_DATA if getattr(options, name)), None)
    if given is not None:
        fact = f"--{given.replace('_', '-')} is given without --data"
        raise Error(fact, place=f"ocaffe {NAME}", fix="--data FOLDER; without it the files are those as published")
    for path in write_published(options.net, out):
        say(str(path))
    return 0


def _parser() -> Parser:
    parser = Parser(NAME, "Write train_val.prototxt, solver.prototxt, deploy.prototxt and README.md to train NET on your images. "
                          "Without --data: as published, for the data set of the net.")  # fmt: skip
    parser.add_argument("net", metavar="NET", help="a net of `ocaffe zoo`, or a deploy.prototxt")
    parser.flag("data", "", "class folders, folders train and val of class folders, a table (.csv), a list (.txt), or a folder with two databases; "
                "for nets that find objects the folder of `ocaffe dataset voc`, for nets that find the class of each pixel that of `ocaffe dataset masks`, "
                "for nets that read text that of `ocaffe dataset text`")
    project_flags(parser, "as published", f"{EPOCHS}, with --weights {TUNING_EPOCHS}")
    parser.flag("class_weights", "", "weights of the classes of pixels in the loss: 'median' (by median frequency) or 'none'; default: those of the net",
                choices=("median", "none"))  # fmt: skip
    parser.flag("batch_norm", False, "add BatchNorm after the convolutions of unet and fcn8s, for faster training from fillers; replace SegNet's BN")
    parser.flag("out", "", "folder for the files; default: the name of the net")
    parser.flag("seed", 0, "seed of this division")
    slowdown_flag(parser)
    parser.flag("gpu", "", "the batch must fit the GPU with this id")
    parser.flag("device", "", "the batch must fit this OpenCL device: PLATFORM:INDEX or a part of its name; default: the best one")
    return parser


def project_flags(parser: Parser, size: str, epochs: str, weights: str = "") -> None:
    """Add the flags of `choices_of`. `size`, `epochs`: their defaults, for people. `weights`: more about --weights."""
    parser.flag("val", "", "the images for testing, if they are not in a part of the data")
    parser.flag("test", SHARE, "share of each class for testing, if the data have no part for it")
    parser.flag("classes", 0, "number of classes, if the data do not say it")
    parser.flag("size", 0, f"height and width of the net's images in pixels; default: {size}")
    auto_batch_flag(parser, "images of an iteration; default: 64, or as many as the device can hold")
    parser.flag("memory_limit", "", "memory limit of the training: bytes, a number with K, M or G; the batch fits it")
    parser.flag("weights", "", f"begin from these weights, with a lower rate{weights}")
    parser.flag("iterations", 0, "iterations of the training")
    parser.flag("epochs", 0, f"or passes over the images; default: {epochs}")
    parser.flag("augment", "net", "random changes of the images: 'none', or fields of transform_param such as 'mirror: true'; 'net': those of the net")
    parser.flag("transform", "", "mean and scale, as fields of transform_param; default: those of the net")


def choices_of(options: argparse.Namespace, **more: Any) -> Choices:
    """Return the choices of `project_flags` and --seed, without size and epochs, and `more` of them. Raise Error for a size of too many pixels."""
    check_pixels("images of --size", options.size, options.size, "--size 224, or another number of pixels that is about the side of the images", "--size")
    augment = None if options.augment == "net" else "" if options.augment == "none" else options.augment
    limit = memory_limit(options.memory_limit) if options.memory_limit != "auto" else None
    auto = options.batch == AUTO_BATCH
    return Choices(
        classes=options.classes, batch=0 if auto else options.batch, auto_batch=auto, memory_limit=limit or 0,
        weights=options.weights, iterations=options.iterations, augment=augment, transform=options.transform,
        val=options.val, share=options.test, seed=options.seed, **more,
    )  # fmt: skip


def target_of(options: argparse.Namespace) -> Target | None:
    """Return the target of the device for the training, None if this machine has none and none is named."""
    devices = list_devices()
    if not devices:
        if options.device or options.gpu:
            raise no_opencl()
        return None
    return choose(devices, options.device or None, options.gpu or None, default=os.environ.get("OCAFFE_DEVICE")).target


def _report(made: Project, target: Target, slowdown: float | None, limit: str) -> None:
    solver, flags = made.path("solver.prototxt"), ["--memory-limit", limit] if limit else list[str]()
    say(f"{', '.join(FILES)} in {made.folder}")
    say(f"images      {made.images.train.images} for training, {made.images.test.images} for testing; {made.classes} classes")
    say(f"net         {made.net}, input {shape_text(made.shape)}")
    say(f"training    {made.iterations} iterations of {made.batch} images; {size_text(made.bytes)} on the device")
    for note in made.notes:
        say(note)
    if slowdown is not None:
        machine = Machine.assumed(target)
        with plans_of_solver(solver, machine) as plans:
            chosen = smallest_within(plans, slowdown)
            say(f"{chosen_text(chosen, plans(None), slowdown)}, on {machine.name}")
        flags = ["--memory-limit", chosen.flag] if chosen.flag else []
    elif not limit and (less := sentence_about_less(solver, made.bytes, target)):
        say(f"memory      {less}")
    say(f"next: {command('ocaffe', 'train', '--solver', path_word(solver), *flags)}")
