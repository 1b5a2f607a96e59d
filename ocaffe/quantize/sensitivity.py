"""Which products suffer most from 8 bits: the error of the outputs if all products but one are in floats."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ocaffe.convert.caffe.net import Net
from ocaffe.quantize.grid import grid
from ocaffe.quantize.images import Images
from ocaffe.quantize.measure import measure, output_error
from ocaffe.quantize.pair import rounded_at
from ocaffe.quantize.scheme import Scheme
from ocaffe.quantize.table import Entry, Table

WIDE = 16  # bits of the layers that are left more exact


def sensitivities(net: Net, table: Table, images: Images, device: Any = None) -> Iterator[tuple[str, float]]:
    """Yield each product that rounds, with the error of the outputs, as a share of their mean square, if it alone rounds its input and weights."""
    for layer in net.layers:
        if layer.name in table.products:
            value = rounded_at(net, table, layer.bottom[0])
            alone = Table(table.scheme, {value: table.values[value]}, [layer.name], list(table.wide))
            yield layer.name, output_error(net, measure(net, alone, images, device))


def widen(net: Net, table: Table, layers: list[str]) -> None:
    """Give products 16 bits, in place: their weights, and their inputs over the whole range of the calibration."""
    table.wide[:] = layers
    for layer in net.layers:
        if layer.name in layers:
            value = rounded_at(net, table, layer.bottom[0])
            entry = table.values[value]
            table.values[value] = wide(entry, table.scheme)


def wide(entry: Entry, scheme: Scheme) -> Entry:
    """Return a value's entry with 16 bits, signed and symmetric, over its whole range."""
    made = replace(scheme, bits=WIDE, least=-(2 ** (WIDE - 1)), asymmetric=False, unsigned=False)
    return replace(entry, grid=grid(entry.low, entry.high, made), method="max")
