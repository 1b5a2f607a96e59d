"""Which values of a net a chip rounds to integers: the places."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ocaffe import proto
from ocaffe.convert.caffe.net import Net
from ocaffe.layers.base import layer_type
from ocaffe.quantize.scheme import COMPUTED, FUSED, MOVING, Scheme


@dataclass(frozen=True)
class Place:
    """A value that is rounded. `product`: the product that makes it, '' for another layer. `readers`: the products that read it, also through layers that
    move values alone."""

    value: str
    layer: str
    product: str
    readers: tuple[str, ...]


def places(net: Net, scheme: Scheme) -> list[Place]:
    """Return the values that the scheme rounds, in the order of the net.

    A value is rounded where it is made, behind the activation that the chip computes with it. Layers that only move values keep the grid of their bottom.
    Values of layers without integers (Softmax, boxes, recurrent layers) stay floats; a product rounds them where it reads them.
    """
    found, on_grid = list[Place](), set[str]()
    for layer in net.layers:
        if moves(layer) and layer.bottom and layer.bottom[0] in on_grid:
            on_grid.update(layer.top)
            continue
        for value in layer.top:
            if _read_fused(net, scheme, layer, value):
                continue
            readers = _products_behind(net, scheme, value)
            made = _in_integers(scheme, layer) and not scheme.inputs_only
            if made or readers or (not scheme.inputs_only and any(_in_integers(scheme, reader) for reader in net.readers(value))):
                found.append(Place(value, layer.name, _product_before(net, scheme, layer), readers))
                on_grid.add(value)
    return found


def moves(layer: Any) -> bool:
    """Whether the tops of a layer have values of its bottom alone, so that they are on its grid."""
    kind = layer_type(layer)
    return kind in MOVING or (kind == "Pooling" and layer.pooling_param.pool == proto.PoolingParameter.MAX)


def _in_integers(scheme: Scheme, layer: Any) -> bool:
    """Whether the chip computes the layer with integers."""
    kind = layer_type(layer)
    return kind in scheme.products or kind in COMPUTED or kind in FUSED


def _read_fused(net: Net, scheme: Scheme, layer: Any, value: str) -> bool:
    """Whether the activation that alone reads a value is computed with the layer that makes it."""
    kind = layer_type(layer)
    if value in net.outputs or not (kind in scheme.products or kind in ("Eltwise", "Scale", "Axpy")):
        return False
    readers = net.readers(value)
    return len(readers) == 1 and layer_type(readers[0]) in FUSED


def _product_before(net: Net, scheme: Scheme, layer: Any) -> str:
    """Return the product whose value, perhaps behind an activation, the layer makes."""
    if layer_type(layer) in scheme.products:
        return str(layer.name)
    if layer_type(layer) in FUSED and layer.bottom:
        before = net.producer(layer.bottom[0])
        if layer_type(before) in scheme.products and _read_fused(net, scheme, before, layer.bottom[0]):
            return str(before.name)
    return ""


def _products_behind(net: Net, scheme: Scheme, value: str) -> tuple[str, ...]:
    found = list[str]()
    for reader in net.readers(value):
        if layer_type(reader) in scheme.products and reader.bottom[0] == value:
            found.append(reader.name)
        elif moves(reader) and reader.bottom[0] == value:
            found += [name for top in reader.top for name in _products_behind(net, scheme, top)]
    return tuple(dict.fromkeys(found))


def rounded_products(net: Net, scheme: Scheme, at: Sequence[Place]) -> list[Any]:
    """Return the products that read a rounded value, and so compute with integers."""
    names = {name for place in at for name in place.readers}
    return [layer for layer in net.layers if layer.name in names]
