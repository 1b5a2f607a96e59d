"""A scheme: what the integers of a chip are, and which layers compute with them. `schemes.json` has the facts with their sources."""
from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ocaffe.errors import Error, names_text

PRODUCTS = ("Convolution", "ConvolutionDepthwise", "Deconvolution", "DepthwiseConvolution", "InnerProduct")
# Layers whose values are those of a bottom, in another order or fewer of them: they keep its scale.
MOVING = frozenset({
    "BatchReindex", "Crop", "CropCenter", "Dropout", "Flatten", "Flip", "PassThrough", "Permute", "Reorg", "Reshape", "Reverse", "ShuffleChannel", "Slice",
    "Split", "StridedSlice", "Tile", "Transpose", "Upsample",
})  # fmt: skip
# Activations that chips compute with the product or sum before them.
FUSED = frozenset({"BReLU", "Clip", "PReLU", "ReLU", "ReLU6"})
COMPUTED = frozenset({"AbsVal", "Axpy", "Concat", "ELU", "Eltwise", "HardSigmoid", "Pooling", "Power", "Scale", "Sigmoid", "Swish", "TanH"})


@dataclass(frozen=True)
class Scheme:
    """The integers of a chip. `weight_bits`: those of weights, 0 for as many.

    Activations are symmetric, or `asymmetric`: with a zero point. `unsigned`: values that are never negative have integers from 0 on. `least`: the smallest
    signed integer. `power_of_two`: scales are powers of two. `per_channel`: weights have a scale for each output, else one for the layer; `per_layer`: the
    types that have one all the same. `inputs_only`: only the inputs of products are rounded, all else is computed in floats. `products`: the types that
    compute with integers.
    """

    name: str
    title: str
    source: str = ""
    date: str = ""
    bits: int = 8
    weight_bits: int = 0
    least: int = -128
    asymmetric: bool = False
    unsigned: bool = False
    power_of_two: bool = False
    per_channel: bool = True
    per_layer: tuple[str, ...] = ()
    inputs_only: bool = False
    products: tuple[str, ...] = PRODUCTS

    def by_output(self, kind: str) -> bool:
        """Whether the weights of a type have a scale for each output."""
        return self.per_channel and kind not in self.per_layer

    @property
    def most(self) -> int:
        """The largest signed integer."""
        return int(2 ** (self.bits - 1) - 1)


@functools.cache
def schemes() -> dict[str, Scheme]:
    """Return all schemes by name."""
    facts = json.loads(Path(__file__).with_name("schemes.json").read_text(encoding="utf-8"))
    return {name: Scheme(name, **_fields(each)) for name, each in facts.items()}


def _fields(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}


def read_scheme(name: str) -> Scheme:
    """Return the scheme of this name. Raise Error for another name."""
    if name not in schemes():
        near = difflib.get_close_matches(name.lower(), schemes(), 1, 0.5) or ["int8"]
        raise Error(f"no scheme is called '{name}'", place="--scheme", fix=f"--scheme {near[0]}; there are {names_text(list(schemes()))}")
    return schemes()[name]
