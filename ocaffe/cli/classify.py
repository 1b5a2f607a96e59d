"""ocaffe classify: write class scores of images to a .npy file, as pycaffe's classify.py."""
from __future__ import annotations

import argparse
import glob
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from ocaffe.cl.device import Device, select_device
from ocaffe.classifier import Classifier
from ocaffe.cli.flags import Parser
from ocaffe.data.changes.resample import check_pixels
from ocaffe.data.stores.label_names import label_names
from ocaffe.data.stores.labels_txt import read_labels
from ocaffe.errors import Error, shape_text
from ocaffe.formats.numpy_file import read_npy
from ocaffe.io import load_image
from ocaffe.shown import say
from ocaffe.support import log
from ocaffe.support.files import atomic_write
from ocaffe.support.whole import whole
from ocaffe.tools.recognise import ImageNet, read_mean

MODEL = "models/bvlc_reference_caffenet/"
MEAN = "ilsvrc_2012_mean.npy"
BEST = 5  # classes that are printed


def main(argv: Sequence[str]) -> int:
    parser = Parser("classify", "Classify an image, a folder of images or a .npy of images (n x height x width x channels, 0 to 1).")
    net_flags(parser, "deploy.prototxt", "bvlc_reference_caffenet.caffemodel", MEAN)
    parser.flag("center_only", False, "classify the middle crop instead of ten crops")
    parser.flag("images_dim", "256,256", "height,width to resize images to before cropping")
    parser.flag("ext", "jpg", "for a folder: the extension of its images")
    parser.flag("labels", "", "print the best classes with the names in this labels.txt, or in that of this database or folder")
    options = parser.parse(argv)
    classes = read_classes(options.labels) if options.labels else []
    dims = size_of(options.images_dim, "images_dim", "classify")
    mean = mean_of(options)
    device = chosen_device(options)
    try:
        net = Classifier(options.model_def, options.pretrained_model, dims, keep=[], device=device, **preprocessing(options, mean))
        swap_channels(net, options)
        names, images = _images(options.input_file, options.ext, net.channels == 3)
        say(f"Classifying {len(names)} inputs.")
        start = time.monotonic()
        scores = net.predict(tqdm(images, total=len(names), unit="image", disable=None), not options.center_only)
        say(f"Done in {time.monotonic() - start:.2f} s.")
        net.close()
    finally:
        device.close()
    _print_best(names, scores, classes, options.labels)
    target = options.output_file if options.output_file.endswith(".npy") else f"{options.output_file}.npy"
    say(f"Saving results into {target}")
    with atomic_write(target) as out:
        np.save(out, scores)
    return 0


def net_flags(parser: Parser, model: str, weights: str, mean: str) -> None:
    """Add the flags that classify and detect share. The defaults are pycaffe's file names, relative to the current folder."""
    parser.add_argument("input_file", help="the input: images or windows")
    parser.add_argument("output_file", help="the file to write")
    parser.flag("model_def", MODEL + model, "the deploy prototxt")
    parser.flag("pretrained_model", MODEL + weights, "the weights")
    parser.flag("gpu", False, "run on a GPU; fail without one")
    parser.flag("device", "", "run on this OpenCL device: PLATFORM:INDEX or a part of its name; default: the best one")
    parser.flag("mean_file", mean, "mean image, .npy or .binaryproto; empty: none")
    parser.flag("input_scale", 1.0, "factor for the net's input, after the mean is subtracted")
    parser.flag("raw_scale", 255.0, "factor for images, which are 0 to 1, before the mean is subtracted")
    parser.flag("channel_swap", "2,1,0", "order of the channels; the default changes RGB to BGR; empty: RGB")


def mean_of(options: argparse.Namespace) -> np.ndarray | None:
    if options.mean_file and not os.path.exists(options.mean_file):
        raise Error(f"the mean image {options.mean_file} does not exist", place="--mean_file", fix="--mean_file FILE, or --mean_file= for none")
    return read_mean(options.mean_file) if options.mean_file else None


def chosen_device(options: argparse.Namespace) -> Device:
    device = select_device(options.device or None, "0" if options.gpu else None)
    log.info("caffe.cpp:218", f"Device {device.number}: {device.name} ({device.platform_name}, driver {device.driver_version})")
    return device


def preprocessing(options: argparse.Namespace, mean: np.ndarray | None) -> dict[str, Any]:
    """Return arguments of Classifier and Detector from the flags."""
    log.quiet()
    return {"mean": mean, "raw_scale": options.raw_scale, "input_scale": options.input_scale}


def swap_channels(net: ImageNet, options: argparse.Namespace) -> None:
    """Set the channel order of --channel_swap. A gray net has no channels to swap, so it ignores the flag."""
    swap = numbers(options.channel_swap, "channel_swap", 3)
    if swap and net.channels == 3:
        net.transformer.set_channel_swap(net.input, swap)


def size_of(text: str, flag: str, command: str) -> tuple[int, int]:
    """Parse a size such as `256,256`: height and width. Raises Error, also for too many pixels."""
    values = [whole(part.strip()) for part in text.split(",")]
    if len(values) != 2 or min(values) < 1:
        raise Error(f"--{flag} is '{text}'", place=f"ocaffe {command}", fix=f"--{flag}=HEIGHT,WIDTH: 2 whole numbers of 1 or more, such as --{flag}=256,256")
    height, width = values
    check_pixels(f"images of --{flag}", height, width, f"--{flag}=HEIGHT,WIDTH: about the size of the net's input, such as 256,256", f"ocaffe {command}")
    return height, width


def numbers(text: str, flag: str, count: int) -> tuple[int, ...]:
    """Parse integers such as `2,1,0`; () for an empty text. Raises Error."""
    try:
        values = tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        values = ()
    if text and (len(values) != count or min(values) < 0):
        raise Error(f"--{flag} is '{text}'", fix=f"--{flag}={','.join(['NUMBER'] * count)}: {count} whole numbers of 0 or more")
    return values


def read_classes(path: str) -> list[str]:
    """Return the names of classes in a labels.txt, or those of a database or folder. Raise Error if there are none."""
    classes = read_labels(path) if os.path.exists(path) and not os.path.isdir(path) else label_names(path)
    if not classes:
        raise Error(f"{path} has no names of classes", place="--labels", fix="give a labels.txt: a name in each line, in the order of the scores")
    return classes


def _print_best(names: Sequence[str], scores: np.ndarray, classes: Sequence[str], path: str) -> None:
    """Print the best classes of each image, as Caffe's example cpp_classification. Without names their numbers are printed."""
    if not classes:
        if scores.ndim != 2:  # they are not scores of classes
            return
        classes = [str(number) for number in range(scores.shape[1])]
    elif scores.ndim != 2 or scores.shape[1] != len(classes):
        fact = f"{path} has {len(classes)} names of classes, and the net gives {shape_text(scores.shape[1:])} scores"
        fix = f"give the names of the {scores.shape[1]} classes of the training" if scores.ndim == 2 else "leave out --labels: these are no scores of classes"
        raise Error(fact, place="--labels", fix=fix)
    for name, row in zip(names, scores):
        say(f"---------- Prediction for {name} ----------")
        for best in np.argsort(-row, kind="stable")[:BEST]:
            say(f'{row[best]:.4f} - "{classes[best]}"')


def _extensions(folder: str) -> str:
    """Return the remedy if no file of `folder` has the extension of --ext: those that its files have."""
    found = sorted({os.path.splitext(name)[1][1:] for name in os.listdir(folder)} - {""}) if os.path.isdir(folder) else []
    return f"--ext {found[0]}" + "".join(f", or --ext {each}" for each in found[1:4]) if found else "give a folder with images"


def _images(path: str, extension: str, color: bool) -> tuple[list[str], Iterator[np.ndarray]]:
    """Return the names of the images and an iterator that loads them one by one."""
    path = os.path.expanduser(path)
    if path.endswith("npy"):
        say(f"Loading file: {path}")
        array = read_npy(path, "write the images by np.save(file, array), as an array of numbers")
        array = array[None] if array.ndim == 3 else array
        if array.ndim != 4 or not array.size:
            fix = "write n x height x width x channels values by np.save, or height x width x channels"
            raise Error(f"the array is {shape_text(array.shape)}", place=path, fix=fix)
        return [f"{path}[{number}]" for number in range(len(array))], iter(array)
    if os.path.isdir(path):
        say(f"Loading folder: {path}")
        files = sorted(glob.glob(os.path.join(glob.escape(path), f"*.{extension}")))
        if not files:
            raise Error(f"no file in it ends in .{extension}", place=path, fix=_extensions(path))
    else:
        say(f"Loading file: {path}")
        files = [path]
    return files, (load_image(file, color) for file in files)
