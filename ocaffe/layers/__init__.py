"""The layers, one file each or one family of pointwise layers together (see docs/layers.md).

For scripts it is pycaffe's `layers` too: `from caffe import layers as L`, then `L.Convolution(...)` names a layer of a NetSpec.
"""
from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """What makes a layer of the type `name`, which begins with a capital letter; any type, as other Caffes may have more."""
    if not name[:1].isupper():
        raise AttributeError(f"module 'ocaffe.layers' has no attribute {name!r}")
    from ocaffe.layers.spec import layer_maker

    return layer_maker(name)
