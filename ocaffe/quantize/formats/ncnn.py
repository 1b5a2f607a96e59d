"""ncnn's table, which ncnn2int8 reads: the factors that make integers of weights and inputs.

A line has a name and numbers. `LAYER_param_0` has a factor for each output of the weights, `LAYER` the factor of the input. A factor is 1 / scale. ncnn reads
the names with their spaces as ends, and takes `_param_` in a name for that of weights.
"""
from __future__ import annotations

import re
from typing import Any

from ocaffe.quantize.formats.values import grids, number, products, scales_of
from ocaffe.quantize.quantize import Quantized

LONGEST = 255 - len("_param_0")  # bytes of a name
UNREADABLE = re.compile(r"\s|_param_")


def ncnn(made: Quantized) -> bytes | None:
    """Return the table of the products that ncnn computes with integers. A convolution in groups has a factor for each group there: one output each."""
    if made.table.scheme.name != "ncnn":
        return None
    known = grids(made.net, made.table)
    weights, inputs = list[str](), list[str]()
    for layer in products(made):
        if not _readable(made, layer):
            continue
        weights.append(" ".join([f"{layer.name}_param_0", *(number(1 / scale) for scale in scales_of(made, layer))]))
        inputs.append(f"{layer.name} {number(1 / known[layer.bottom[0]].scale)}")
    return "".join(f"{line}\n" for line in (*weights, *inputs)).encode()


def _readable(made: Quantized, layer: Any) -> bool:
    if UNREADABLE.search(layer.name) or len(layer.name.encode()) > LONGEST:
        return False
    if layer.type == "InnerProduct":
        return not layer.inner_product_param.transpose
    geometry = made.net.computed(layer).geometry  # type: ignore[attr-defined]
    return geometry.group == 1 or geometry.group == geometry.num_output
