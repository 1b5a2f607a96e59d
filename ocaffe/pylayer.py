"""Python layers: the base class, and the arrays that represent blobs, with pycaffe's names."""
from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.errors import WrongValue, shape_text


class Phase(int):
    """TRAIN or TEST as a number. Its text is the name: detectors look up `cfg[str(self.phase)]`, and py-faster-rcnn's Caffe has an enum here."""

    def __str__(self) -> str:
        return str(proto.Phase.Name(self))


class Layer:
    """Base class of Python layers.

    `setup` is called once, `reshape` before every forward pass, then `forward`, which may reshape tops too, and `backward`. All get lists of `Array`.
    As in Caffe, an array keeps its values from one call to the next: `backward` finds the diffs of the bottoms as `forward` left them.

    Attributes: `param_str` of the prototxt, `phase`, and `blobs`. `setup` adds learned parameters by `blobs.add_blob`.
    """

    type = "Python"
    param_str: str = ""
    phase: int = Phase(0)
    _arrays: Arrays
    _of_net: Callable[[], Any] | None = None

    def __init__(self, param: Any = None) -> None:
        """`param` is the LayerParameter."""

    @property
    def blobs(self) -> Any:
        """The learned parameters: `Arrays` while a method runs. Otherwise the net's `Blob`s, which scripts read and write."""
        of_net = self._of_net() if self._of_net is not None else None
        return self._arrays if of_net is None else of_net

    @blobs.setter
    def blobs(self, arrays: Arrays) -> None:
        self._arrays = arrays

    def setup(self, bottom: list[Array], top: list[Array]) -> None:
        """Parse `param_str`, check the bottoms, add parameters."""

    def reshape(self, bottom: list[Array], top: list[Array]) -> None:
        """Set the shapes of the tops."""

    def forward(self, bottom: list[Array], top: list[Array]) -> None:
        """Set the data of the tops."""

    def backward(self, top: list[Array], propagate_down: list[bool], bottom: list[Array]) -> None:
        """Set the diffs of the bottoms with `propagate_down`. Add to the diffs of the parameters."""


class Array:
    """A blob for a Python layer: writable float32 arrays `data` and `diff` of its shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = tuple(shape)
        self._data: np.ndarray | None = None
        self._diff: np.ndarray | None = None

    def reshape(self, *shape: int) -> None:
        """Change the shape. If it differs from the old one, the values are lost."""
        if any(int(n) < 0 for n in shape):
            raise WrongValue(f"a blob cannot have the shape {shape_text(shape)}: a size is negative", fix="give reshape sizes of 0 or more")
        new = tuple(int(n) for n in shape)
        if new != self.shape:
            self.shape, self._data, self._diff = new, None, None

    @property
    def data(self) -> np.ndarray:
        """The values."""
        if self._data is None:
            self._data = np.zeros(self.shape, np.float32)
        return self._data

    @data.setter
    def data(self, values: np.ndarray) -> None:
        self._data = np.array(values, np.float32).reshape(self.shape)

    @property
    def diff(self) -> np.ndarray:
        """The gradient."""
        if self._diff is None:
            self._diff = np.zeros(self.shape, np.float32)
        return self._diff

    @diff.setter
    def diff(self, values: np.ndarray) -> None:
        self._diff = np.array(values, np.float32).reshape(self.shape)

    @property
    def count(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def _legacy(self, axis: int) -> int:
        return self.shape[axis] if axis < len(self.shape) else 1

    num = property(lambda self: self._legacy(0))
    channels = property(lambda self: self._legacy(1))
    height = property(lambda self: self._legacy(2))
    width = property(lambda self: self._legacy(3))


class Arrays(list[Any]):
    """The parameters of a layer: `Array`s for a Python layer, `Blob`s in a net. Scripts compare the type with caffe._caffe.BlobVec."""

    def add_blob(self, *shape: int) -> Array:
        """Add a parameter of this shape with zeros and return it. Set its `data` in `setup`."""
        made = Array(tuple(int(n) for n in shape))
        self.append(made)
        return made


def place_of(reason: BaseException) -> str:
    """Return the file and line that raised an exception."""
    frame = traceback.extract_tb(reason.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}"
