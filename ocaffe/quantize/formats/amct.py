"""AMCT's record file: the factors of each product, as protocol buffer text.

Huawei's documentation of AMCT for Caffe has the message. A record has the name of a layer, scale_d and offset_d of its input, scale_w and offset_w of its
weights: an integer is round(x / scale) + offset. offset_w is 0.
"""
from __future__ import annotations

from ocaffe import proto
from ocaffe.formats.text import write_text
from ocaffe.quantize.formats.values import grids, number, products, scales_of
from ocaffe.quantize.quantize import Quantized


def amct(made: Quantized) -> bytes | None:
    """Return the record file."""
    if made.table.scheme.name != "ascend":
        return None
    known = grids(made.net, made.table)
    records = []
    for layer in products(made):
        grid, scales = known[layer.bottom[0]], scales_of(made, layer)
        fields = [f"scale_d: {number(grid.scale)}", f"offset_d: {grid.zero_point}"]
        fields += [f"scale_w: {number(scale)}" for scale in scales] + ["offset_w: 0"] * len(scales)
        lines = "\n".join(f"    {field}" for field in fields)
        key = write_text(proto.LayerParameter(name=layer.name)).strip().replace("name:", "key:", 1)  # escapes as in any text of protobuf
        records.append(f"record {{\n  {key}\n  value {{\n{lines}\n  }}\n}}\n")
    return "".join(records).encode()
