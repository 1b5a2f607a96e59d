"""The grids of values and products, as the formats need them."""
from __future__ import annotations

from typing import Any

import numpy as np

from ocaffe.convert.caffe.net import Net
from ocaffe.layers.base import layer_type
from ocaffe.quantize.grid import Grid
from ocaffe.quantize.places import moves
from ocaffe.quantize.quantize import Quantized
from ocaffe.quantize.scheme import FUSED, Scheme
from ocaffe.quantize.simulate import weight_scales
from ocaffe.quantize.table import Table


def grids(net: Net, table: Table) -> dict[str, Grid]:
    """Return the grid of each value that has one: of the table, or that of the bottom of a layer which only moves values."""
    found = dict[str, Grid]()
    for layer in net.layers:
        for value in layer.top:
            if value in table.values:
                found[value] = table.values[value].grid
            elif layer.bottom and moves(layer) and layer.bottom[0] in found:
                found[value] = found[layer.bottom[0]]
    return found


def fused_reader(net: Net, scheme: Scheme, value: str) -> Any:
    """Return the activation that a chip computes with the layer that makes a value, None if there is none."""
    readers = net.readers(value)
    return readers[0] if len(readers) == 1 and value not in net.outputs and layer_type(readers[0]) in FUSED else None


def scales_of(made: Quantized, layer: Any) -> np.ndarray:
    """Return the scales of a product's weights, one for each output or one. Weights that are all 0 have the scale 1."""
    table = made.table
    scales = weight_scales(made.net, layer, np.asarray(made.net.arrays[layer.name][0]), table.scheme, table.bits(layer.name))
    return np.where(scales > 0, scales, np.float32(1))


def products(made: Quantized) -> list[Any]:
    """Return the layers with integers of 8 bits, in the order of the net. The formats have no other ones."""
    return [layer for layer in made.net.layers if layer.name in made.table.products and layer.name not in made.table.wide]


def number(value: float) -> str:
    """Return a number of 32 bits as text, with all its digits."""
    return f"{np.float32(value):.9g}"
