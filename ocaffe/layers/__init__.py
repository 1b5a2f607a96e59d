"""The layers, one file for each layer or family of pointwise layers (docs/layers.md).

The package is also pycaffe's `layers`: after `from caffe import layers as L`, `L.Convolution(...)` makes a layer of a NetSpec.
"""
from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Return the function that makes layers of type `name`. Any capitalized name works, because other Caffes may define more types."""
    if not name[:1].isupper():
        raise AttributeError(f"module 'ocaffe.layers' has no attribute {name!r}")
    from ocaffe.layers.spec import layer_maker

    return layer_maker(name)
