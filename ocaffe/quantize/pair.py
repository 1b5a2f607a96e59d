"""A net beside its rounded self: both in one message, so that their values can be compared while they are computed."""
from __future__ import annotations

from typing import Any

from ocaffe import proto
from ocaffe.convert.caffe.net import Net
from ocaffe.convert.caffe.products import is_product
from ocaffe.quantize.images import RAW
from ocaffe.quantize.simulate import SUFFIX, copied, fake_quantize, set_rounding, simulated
from ocaffe.quantize.table import Table

OWN = "rounded/"  # begins the names of the layers and values of the rounded net


def alone(net: Net, table: Table) -> list[Any]:
    """Return the products that round and share their weights with no other layer: those that recovery may change."""
    return [layer for layer in net.layers if layer.name in table.products and is_product(net, layer) and len(net.sharers(layer)) == 1]


def own_name(name: str) -> str:
    """Return the name that a layer or value has in the rounded net."""
    return f"{OWN}{name}"


def beside(net: Net, table: Table, chained: bool, floats: Net | None = None) -> Net:
    """Return a net with the layers of `net`, which compute in floats, and its rounded layers behind them.

    `chained`: the rounded net is whole, and has only the inputs in common. Else each rounded product reads the float net's values, rounded, so that its
    error is its own. `floats`: the net that computes in floats, if it has other weights than the rounded one.
    """
    made = copied(floats or net)
    if chained:
        rounded = simulated(net, table)
        inputs = {top for layer in rounded.layers if layer.type == "Input" for top in layer.top}
        names = {top: made_input(net, top) if top in inputs else own_name(top) for layer in rounded.layers for top in layer.top}
        for layer in rounded.layers:
            if layer.type != "Input":
                _add(made, layer, rounded.arrays.get(layer.name, []), names)
        return made
    grids = dict[str, str]()
    for layer in list(net.layers):
        if layer.name not in table.products:
            continue
        bottom = layer.bottom[0]
        if bottom not in grids:
            grids[bottom] = own_name(f"{bottom}{SUFFIX}")  # a product may make `bottom`, so that own_name(bottom) is its output
            entry = table.values[rounded_at(net, table, bottom)]
            made.insert(*fake_quantize(grids[bottom], bottom, grids[bottom], entry.grid, table.scheme.power_of_two))
        product = proto.LayerParameter()
        product.CopyFrom(layer)
        set_rounding(product, table.scheme, table.bits(layer.name))
        _add(made, product, net.arrays.get(layer.name, []), {bottom: grids[bottom], **{top: own_name(top) for top in layer.top}})
    return made


def made_input(net: Net, top: str) -> str:
    """Return the name that a float input of the rounded net has in `net`, where it is not rounded."""
    return top if top in net.shapes else top.removesuffix(RAW)


def _add(made: Net, layer: Any, arrays: Any, names: dict[str, str]) -> None:
    own = proto.LayerParameter()
    own.CopyFrom(layer)
    own.name = own_name(layer.name)
    own.bottom[:] = [names.get(name, name) for name in layer.bottom]
    own.top[:] = [names.get(name, name) for name in layer.top]
    for spec in own.param:
        if spec.name:
            spec.name = own_name(spec.name)
    made.insert(own, arrays)


def rounded_at(net: Net, table: Table, value: str) -> str:
    """Return the value of the table from which layers that only move values make `value`."""
    while value not in table.values:
        value = net.producer(value).bottom[0]
    return value
