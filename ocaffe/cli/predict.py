"""ocaffe predict OUT IMAGE...: the classes, objects, regions or text of images, by the result of `ocaffe fit` or by any net and weights."""
from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cl.device import select_device
from ocaffe.cli.classify import read_classes
from ocaffe.cli.flags import Parser, device_flags
from ocaffe.cli.matching import check_match, match_flag
from ocaffe.cli.preparation import changed, preparation, preparation_flags
from ocaffe.data.decoding.decode import read_file
from ocaffe.data.stores.folder import is_image_name
from ocaffe.data.stores.labels_txt import given_labels
from ocaffe.errors import Error
from ocaffe.evaluation.answers import Objects, answers_of, picture_of
from ocaffe.evaluation.deploy import class_names, data_layer, deploy_net
from ocaffe.evaluation.objects import LEAST
from ocaffe.evaluation.prediction import predicted, without_padding
from ocaffe.evaluation.preprocessing import Preprocessing
from ocaffe.evaluation.sidecar import read_sidecar, sidecar_of
from ocaffe.fit.files import BEST
from ocaffe.formats.text import read_net
from ocaffe.quantize.graft import quantized_files, quantized_net
from ocaffe.shown import json_text, say
from ocaffe.support import log
from ocaffe.support.files import atomic_write
from ocaffe.zoo.weights import check_weights

NAME = "predict"
STDIN = "-"


def main(argv: Sequence[str]) -> int:
    """Run the command. Returns 1 if an image cannot be read; the others are predicted. Raises Error."""
    options = _parser().parse(argv)
    log.quiet()
    if options.top < 1:
        raise Error(f"--top is {options.top}", place=f"ocaffe {NAME}", fix="--top 5, or another number of 1 or more classes")
    folder, images = _split(options)
    if not images:
        raise Error("no image is given", place=f"ocaffe {NAME}", fix="name image files, folders of them, or - for a file on stdin")
    model, weights = options.model or os.path.join(folder, "deploy.prototxt"), options.weights or os.path.join(folder, BEST)
    check_weights(weights)
    described = os.path.join(folder, "train_val.prototxt") if folder else model
    ran, loaded = quantized_files(options.quantized) if options.quantized else (model, weights)
    net = quantized_net(read_net(model), options.quantized) if options.quantized else read_net(ran)  # with the loss, which says whether outputs are scores
    layer = data_layer(net if described == ran else read_net(described))
    beside = read_sidecar(weights)
    settings = changed(beside[0], options, sidecar_of(weights), NAME) if beside else preparation(net, layer, described, options, NAME)
    labels = _labels(options.labels, folder or os.path.dirname(model) or ".", layer) or (beside[1] if beside else [])
    files = list(_files(images))
    if options.annotate:
        os.makedirs(options.annotate, exist_ok=True)
    device = select_device(options.device or None, options.gpu or None, math=options.math or None)
    results, failed = [], False
    deployed = deploy_net(net, settings.shape if isinstance(settings, Preprocessing) else (3, settings.side, settings.longest), ran)
    with Net(deployed, phase=proto.TEST, weights=loaded, device=device) as made:
        check_match(made._network.graph, {loaded: made._copied}, options.allow_no_match)
        answers = answers_of(made, deployed, labels, options.top, options.threshold)
        if options.annotate and not answers.drawn:
            fact = "--annotate is given, and the net's answers belong to no place in the image"
            raise Error(fact, place=f"ocaffe {NAME}", fix="leave it out, or give a net that finds objects or regions")
        padded = settings if isinstance(settings, Preprocessing) and settings.padding and isinstance(answers, Objects) else None
        for begin in range(0, len(files), settings.batch):
            inputs = []
            for name in files[begin : begin + settings.batch]:
                try:
                    content = sys.stdin.buffer.read() if name == STDIN else read_file(name)
                    inputs.append((name, settings(content), content if options.annotate or padded else b""))
                except Error as problem:
                    failed = True
                    log.tell(f"{name}: {problem.fact}", mark="error:")
            output = predicted(made, [arrays for _, arrays, _ in inputs])
            for place, (name, _, content) in enumerate(inputs):
                if padded:
                    output = without_padding(output, place, content, padded)
                result = {"file": name, **answers.of(output, place)}
                if options.annotate:
                    result["annotated"] = os.path.join(options.annotate, f"{begin + place:05d}_{os.path.splitext(os.path.basename(name))[0]}.png")
                    with atomic_write(result["annotated"]) as out:
                        answers.draw(picture_of(content), output, place).save(out, "PNG")
                results.append(result)
                if not options.json:
                    say(name, *(f"  {line}" for line in answers.lines(result)))
    if options.json:
        say(json_text(results, indent=1))
    return int(failed)


def _parser() -> Parser:
    parser = Parser(NAME, "Print the best classes of images, or the objects, regions and text that a net finds. "
                          "OUT is the folder of `ocaffe fit`; or give --model and --weights.")  # fmt: skip
    parser.add_argument("inputs", metavar="OUT|IMAGE", nargs="*", help="OUT, then image files, folders of images, or - for a file on stdin")
    parser.flag("model", "", "a deploy.prototxt, or the net of a training")
    parser.flag("weights", "", "the trained weights; default: the best ones in OUT")
    match_flag(parser)
    parser.flag("labels", "", "the names of the classes: a labels.txt, or the database of the training; default: those beside the data")
    parser.flag("top", 5, "number of classes to print")
    parser.flag("threshold", LEAST, "least score of an object or tag to print")
    parser.flag("annotate", "", "folder for the images with boxes, or with the colors of regions")
    parser.flag("json", False, "print a list of {file, top: [{label, index, score}]}; of {file, objects: [{label, index, score, box}]}; of "
                               "{file, regions: [{label, index, share}]}; of {file, tags: [{label, index, score}]}; or of {file, text}")  # fmt: skip
    parser.flag("quantized", "", "the folder of `ocaffe quantize`: run its net, which rounds as a chip does")
    preparation_flags(parser)
    device_flags(parser)
    return parser


def _split(options: Any) -> tuple[str, list[str]]:
    """Return OUT ('' with --model) and the names of images. Raise Error."""
    if options.model:
        if not options.weights and options.quantized:
            options.weights = quantized_files(options.quantized)[1]
        if not options.weights:
            raise Error("--model is given without --weights", place=f"ocaffe {NAME}", fix="--weights FILE.caffemodel")
        return "", options.inputs
    if not options.inputs:
        raise Error("no net is given", place=f"ocaffe {NAME}", fix="OUT of `ocaffe fit`, or --model NET --weights W")
    folder = options.inputs[0]
    if not os.path.isfile(os.path.join(folder, "deploy.prototxt")):
        folders = {True: "has no deploy.prototxt", False: "is no folder" if os.path.exists(folder) else "does not exist"}
        fact = "is an image" if os.path.isfile(folder) else folders[os.path.isdir(folder)]
        raise Error(f"{folder} {fact}", place=f"ocaffe {NAME}", fix="begin with the folder OUT of `ocaffe fit`, or give --model NET --weights W")
    return folder, options.inputs[1:]


def _labels(given: str, beside: str, layer: Any | None) -> list[str]:
    """Return the names of the classes: of --labels, of the labels.txt in the folder `beside`, or of the data layer; [] if they are not known."""
    return read_classes(given) if given else given_labels(beside) or class_names(layer)


def _files(inputs: Sequence[str]) -> Iterator[str]:
    for name in inputs:
        if not os.path.isdir(name):
            yield name
            continue
        found = sorted(os.path.join(folder, file) for folder, _, files in os.walk(name) for file in files if is_image_name(file, photos=True))
        if not found:
            raise Error(f"{name} has no image", place=f"ocaffe {NAME}", fix="give a folder with image files")
        yield from found
