"""tpu-mlir's calibration table, which model_deploy reads: threshold, least and largest value of each operator of the converted net.

A scale is threshold / 127, or threshold / 255 for values whose least is 0 (on chips with unsigned integers). An operator has the name of the blob that it
writes. Where k more layers write the same blob behind it, model_transform calls it blob/k. An InnerProduct reads blob_reshape if its bottom has more axes
than two.
"""
from __future__ import annotations

import collections
from typing import Any

import numpy as np

from ocaffe.convert.caffe.net import Net
from ocaffe.layers.base import layer_type
from ocaffe.quantize.formats.values import fused_reader, grids
from ocaffe.quantize.grid import Grid
from ocaffe.quantize.quantize import Quantized

STEEP = 0.01  # a slope: for a smaller one, the bottom would have nearly no integers for values above 0
HEAD = "# written by ocaffe quantize\n# op_name    threshold    min    max\n"
BOUNDED = {"Sigmoid": Grid(1 / 255, 0, 0, 255), "Softmax": Grid(1 / 255, 0, 0, 255)}  # the values of layers that compute in floats are known


def tpu_mlir(made: Quantized) -> bytes | None:
    """Return the table of all operators whose values have a grid."""
    if made.table.scheme.name != "tpu-mlir":
        return None
    net, lines = made.net, list[str]()
    known, names, blobs = grids(net, made.table), operators(net), net.names()
    for layer in reversed(net.layers):
        for value in layer.top:
            activation = fused_reader(net, made.table.scheme, value)
            grid = BOUNDED.get(layer_type(layer)) if activation is None else _before(made, activation)
            if grid is not None:
                known.setdefault(value, grid)
    for layer in net.layers:
        if layer.type == "InnerProduct" and layer.bottom[0] in known and len(net.shapes[layer.bottom[0]]) > 2:
            lines.append(_line(f"{blobs[layer.bottom[0]]}_reshape", known[layer.bottom[0]]))
        lines += [_line(names[value], known[value]) for value in layer.top if value in known and value in names]
    return (HEAD + "".join(f"{line}\n" for line in dict.fromkeys(lines))).encode()


def operators(net: Net) -> dict[str, str]:
    """Return the name of the operator that model_transform makes of each value. It leaves out Dropout."""
    blobs, written = net.names(), collections.defaultdict[str, list[str]](list)
    for layer in net.layers:
        if layer.type != "Dropout":
            for value in layer.top:
                written[blobs[value]].append(value)
    return {value: f"{blob}/{behind}" if behind else blob for blob, values in written.items() for behind, value in enumerate(reversed(values))}


def _before(made: Quantized, activation: Any) -> Grid | None:
    """Return a grid for the bottom of an activation, of which no counts are there: the range from which its top has the values of the calibration."""
    entry = made.table.values.get(activation.top[0])
    if entry is None:
        return None
    low = max(entry.low, entry.grid.low)
    if layer_type(activation) in ("ReLU", "PReLU") and low < 0:
        arrays = made.net.arrays.get(activation.name)
        slope = float(np.min(np.abs(arrays[0]))) if arrays else activation.relu_param.negative_slope
        low = low / slope if slope > STEEP else low
    return Grid(max(entry.grid.high, -low) / 127, 0, -128, 127)


def _line(name: str, grid: Grid) -> str:
    threshold = grid.scale * grid.most
    return f"{name} {threshold:.9g} {grid.low:.9g} {grid.high:.9g}"
