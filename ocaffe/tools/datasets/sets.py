"""The data sets of `ocaffe dataset`: MNIST, CIFAR-10, and scikit-learn's digits, which need no download."""
from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image

from ocaffe.errors import Error
from ocaffe.tools.datasets.originals import Original, download, from_folder, members, obtain, path_in, read_idx

_MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
)
_MNIST = {  # sha256 of the unpacked files
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_CIFAR10 = Original(
    "cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    (
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/cifar-10-binary.tar.gz",
    ),
)
_CIFAR10_FILES = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
_CIFAR10_SHAPE = (3, 32, 32)
_CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_DIGITS = tuple("0123456789")
DIGITS_SIDE = 28  # pixels, as in MNIST
DIGITS_FOLDS = 5  # one of them is the test set


@dataclass(frozen=True)
class Part:
    """The training or the test images: N x C x H x W, uint8, and their N labels."""

    images: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class DataSet:
    """The parts `train` and `test`, remarks for the user, whether the nets for this set need its mean image, and the names of the classes if known."""

    parts: dict[str, Part]
    remarks: tuple[str, ...] = ()
    wants_mean: bool = False
    names: tuple[str, ...] = ()


def mnist(folder: str | None) -> DataSet:
    """Return MNIST, 1 x 28 x 28, or another data set in files of the same names and format in `folder`."""
    files = {name: Original(name, digest, tuple(f"{mirror}{name}.gz" for mirror in _MNIST_MIRRORS)) for name, digest in _MNIST.items()}
    contents = {name: obtain(original, folder) for name, original in files.items()}
    parts = {}
    for part, prefix in (("train", "train"), ("test", "t10k")):
        image_name, label_name = f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"
        paths = [path_in(files[name], folder) for name in (image_name, label_name)]
        images, labels = read_idx(contents[image_name], paths[0], 3), read_idx(contents[label_name], paths[1], 1)
        if len(images) != len(labels):
            fact = f"{image_name} has {len(images)} images, {label_name} {len(labels)} labels"
            raise Error(fact, fix="take the file of the images and that of the labels from the same set")
        parts[part] = Part(images[:, None], labels)
    remarks = [f"{name} is not MNIST's (sha256 differs)" for name, content in contents.items() if hashlib.sha256(content).hexdigest() != _MNIST[name]]
    return DataSet(parts, tuple(remarks), names=() if remarks else _DIGITS)  # other sets in MNIST's format have other classes


def cifar10(folder: str | None) -> DataSet:
    """Return CIFAR-10, 3 x 32 x 32, red green blue, from its binary version."""
    names = [name for part in _CIFAR10_FILES.values() for name in part]
    files = _cifar10_unpacked(folder, names) if folder is not None else members(download(_CIFAR10), names, _CIFAR10.name)
    record = 1 + int(np.prod(_CIFAR10_SHAPE))
    parts = {}
    for part, sources in _CIFAR10_FILES.items():
        for name in sources:
            if not files[name] or len(files[name]) % record:
                fact = f"{name} has {len(files[name]):,} bytes, not a multiple of {record:,}"
                raise Error(fact, fix=f"take the files of the binary version: {_CIFAR10.name}")
        rows = np.frombuffer(b"".join(files[name] for name in sources), np.uint8).reshape(-1, record)
        parts[part] = Part(rows[:, 1:].reshape(-1, *_CIFAR10_SHAPE), rows[:, 0])
    return DataSet(parts, wants_mean=True, names=_CIFAR10_CLASSES)


def _cifar10_unpacked(folder: str, names: list[str]) -> dict[str, bytes]:
    """Return the files from `folder`, from its subfolder `cifar-10-batches-bin`, or from the archive in it."""
    for place in (folder, os.path.join(folder, "cifar-10-batches-bin")):
        if any(os.path.isfile(os.path.join(place, name)) for name in names):
            return {name: from_folder(Original(name, "", ()), place) for name in names}
    archive = Original(_CIFAR10.name.removesuffix(".gz"), "", ())
    return members(from_folder(archive, folder), names, os.path.join(folder, archive.name))


def digits(folder: str | None) -> DataSet:
    """Return the 1,797 digits that come with scikit-learn, 8 x 8 with 17 levels, enlarged to 1 x 28 x 28 by bicubic interpolation.

    Their order is shuffled with a fixed seed. Then every fifth digit is for testing, 360 in all. In scikit-learn's own order the digits are grouped
    by writer, and no digit of the last fifth's writers would be in the training set.
    """
    if folder is not None:
        raise Error("digits has no original files: it comes with scikit-learn", fix="leave out --from")
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise Error("digits comes with scikit-learn, which is not installed", fix="pip install scikit-learn") from None
    data = load_digits()
    small = (data.images * (255 / 16) + 0.5).astype(np.uint8)
    side = (DIGITS_SIDE, DIGITS_SIDE)
    images = np.stack([np.asarray(Image.fromarray(image).resize(side, Image.Resampling.BICUBIC)) for image in small])[:, None]
    labels = data.target.astype(np.uint8)
    order = np.argsort(np.random.Philox(key=np.zeros(2, np.uint64)).random_raw(len(labels)), kind="stable")
    rows = {"train": order[np.arange(len(order)) % DIGITS_FOLDS != 0], "test": order[::DIGITS_FOLDS]}
    return DataSet({part: Part(images[chosen], labels[chosen]) for part, chosen in rows.items()}, names=_DIGITS)


SETS: dict[str, Callable[[str | None], DataSet]] = {"mnist": mnist, "cifar10": cifar10, "digits": digits}
