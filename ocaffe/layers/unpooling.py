"""UnPooling and Unpooling: larger images from pooled ones, by the mask of a MAX Pooling or by fixed windows."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ocaffe.errors import shape_text
from ocaffe.ir.tensor import Shape
from ocaffe.layers import upsample
from ocaffe.layers.base import Layer, LayerClass, register, stated
from ocaffe.layers.plane_map import MappedPlanes
from ocaffe.layers.window import pair_text

PARSENET = ("FIXED", "DIV", "REP")
PLACED = ("MAX", "FIXED")  # methods that write each value to one place; of several values at one place the last stays
SHARED = ("AVE", "DIV")  # methods that divide each value by the size of its window
COUNTED = ("DIV", "REP")  # methods that divide each sum by the number of its values


def matrix(method: str, inputs: int, outputs: int, kernel: int, stride: int, pad: int) -> np.ndarray:
    """Return the matrix (outputs x inputs) of a method along one axis. Value i belongs to the window that starts at i stride - pad."""
    result = np.zeros((outputs, inputs))
    for i in range(inputs):
        start = i * stride - pad
        if method in PLACED:
            place = start if method == "MAX" else int((2 * start + kernel - 1) / 2)
            result[min(max(place, 0), outputs - 1)] = np.eye(inputs)[i]
        else:
            size = min(start + kernel, outputs + pad) - start
            result[max(start, 0) : min(start + kernel, outputs), i] = 1 / size if method in SHARED else 1
    return result / np.maximum(np.count_nonzero(result, axis=1, keepdims=True), 1) if method in COUNTED else result


def setting(layer: Layer, name: str, prefix: str = "") -> tuple[int, int]:
    """Return a pair (rows, columns): `name` for both, or name_h and name_w. A kernel is kernel_size, kernel_h and kernel_w."""
    p = layer.own()
    stem = name.removesuffix("_size")
    both, single = (f"{prefix}{stem}_h", f"{prefix}{stem}_w"), f"{prefix}{name}"
    given = [field for field in both if p.HasField(field)]
    fix = f"remove {single}, or {' and '.join(given)}"
    if len(given) == 1:
        fix = f"remove {given[0]}, or write {both[0]} and {both[1]} in place of {single}"
    layer.check(not (given and p.HasField(single)), f"{', '.join([single, *given])} are given, two forms of one setting", fix)
    other = both[0] if given == [both[1]] else both[1]
    layer.check(len(given) != 1, f"{' '.join(given)} is given without {other}", f"add {other}, or replace {' '.join(given)} by {single}")
    return (getattr(p, both[0]), getattr(p, both[1])) if given else (getattr(p, single),) * 2


@register("UnPooling", "Unpooling")
class UnPooling(Layer):
    """Larger images from pooled ones: `unpool` MAX with the mask of a Pooling as bottom 1 (DeconvNet), or values spread over fixed windows.

    Without a mask, MAX writes each value to the first place of its window. AVE divides it by the size of the window and adds it to all places; TILE adds
    it undivided. The top has unpool_size, or unpool_h x unpool_w, or the size max((n - 1) stride + kernel, n stride + 1). ParseNet's methods have
    out_kernel_size, out_stride and out_pad: FIXED, its default, writes to the middle of the window; REP is TILE, and DIV is AVE, divided by the number of
    windows at a place. In DeconvNet's CPU code, AVE and TILE add to the values of the previous pass; that is mended here.
    """

    origin = "DeconvNet, ParseNet"
    message = "unpooling_param"
    bottoms = (1, 2)

    @classmethod
    def implementation(cls, param: Any) -> LayerClass:
        return MaskedUnpooling if len(param.bottom) == 2 else PlainUnpooling


class Windows(Layer):
    """The windows of both forms."""

    message = "unpooling_param"
    prefix = ""

    def method(self, masked: bool) -> str:
        """Return the method. It names the fork, and so do the fields."""
        p = self.own()
        ours = [field.name for field, _ in p.ListFields() if field.name != "unpool" and not field.name.startswith("out_")]
        name = str(p.UnPoolMethod.Name(p.unpool)) if p.HasField("unpool") else "MAX" if masked or ours else "FIXED"
        self.prefix = "out_" if name in PARSENET else ""
        wrong = [field.name for field, _ in p.ListFields() if field.name != "unpool" and field.name.startswith("out_") != bool(self.prefix)]
        names = "out_kernel_size, out_stride and out_pad" if self.prefix else "kernel_size, stride, pad and unpool_size"
        self.check(not wrong, f"{' and '.join(wrong)} is given, and {stated(p, 'unpool') if p.HasField('unpool') else f'unpool is {name}, the default here'}",
                   f"remove it; unpool: {name} takes {names}")  # fmt: skip
        self.check(not masked or name == "MAX", f"unpool is {name}, and bottom 1 is a mask", "write unpool: MAX, or remove bottom 1")
        return name

    def size(self, image: tuple[int, int]) -> tuple[int, int]:
        """Return the height and width of the top, and set kernel, stride and pad."""
        p = self.own()
        self.kernel, self.stride, self.pad = (setting(self, name, self.prefix) for name in ("kernel_size", "stride", "pad"))
        for name, pair in (("kernel_size", self.kernel), ("stride", self.stride)):
            self.check(min(pair) > 0, f"{self.prefix}{name} is {pair_text(pair)}", f"set {self.prefix}{name} to 1 or more")
        self.check(self.prefix or self.pad == (0, 0), f"pad is {pair_text(self.pad)}, which DeconvNet refuses too", "remove pad, pad_h and pad_w")
        if not self.prefix and any(p.HasField(name) for name in ("unpool_size", "unpool_h", "unpool_w")):
            return setting(self, "unpool_size")
        height, width = (max((n - 1) * s + k - 2 * b, n * s - b + 1) for n, k, s, b in zip(image, self.kernel, self.stride, self.pad))
        return height, width


class PlainUnpooling(Windows, MappedPlanes):
    """Values spread over fixed windows."""

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x, method = bottoms[0], self.method(False)
        image = self.image(x)
        size = self.size(image)
        starts = [(n - 1) * s - b for n, s, b in zip(image, self.stride, self.pad)]
        fits = method in PLACED or all(start < n for start, n in zip(starts, size))
        fact = f"the last window starts at {shape_text(starts)} of a top of {shape_text(size)}"
        self.check(
            fits and min(size) > 0,
            fact,
            "set out_pad to less" if self.prefix else f"set unpool_h above {starts[0]} and unpool_w above {starts[1]}, or stride to less",
        )
        return self.plan(x, *(matrix(method, n, m, k, s, b) for n, m, k, s, b in zip(image, size, self.kernel, self.stride, self.pad)))


class MaskedUnpooling(Windows, upsample.Unpooling):
    """MAX with the mask of a Pooling. Kernel and stride matter only for the size of the top."""

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        self.method(True)
        return super().infer(*bottoms)
