"""A net that rounds as the chip does: FakeQuantize layers behind values, and products that round their weights."""
from __future__ import annotations

from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.convert.caffe.net import Net
from ocaffe.errors import Error, names_text
from ocaffe.ir.layer import WeightOutputs
from ocaffe.ir.weight_grid import weight_integers
from ocaffe.ir.weight_grid import weight_scales as grid_of_weights
from ocaffe.quantize.grid import Grid
from ocaffe.quantize.images import RAW
from ocaffe.quantize.scheme import Scheme
from ocaffe.quantize.table import Table

SUFFIX = "/grid"  # of the name of a FakeQuantize layer, behind the name of its value


def copied(net: Net) -> Net:
    """Return a net that passes may change. The arrays are shared: no pass changes one, all put others in their place."""
    layers = []
    for layer in net.layers:
        own = proto.LayerParameter()
        own.CopyFrom(layer)
        layers.append(own)
    made = Net(layers, {name: list(arrays) for name, arrays in net.arrays.items()}, list(net.outputs), dict(net.shapes), dict(net.blobs), set(net.in_place),
               net.name, net.source_file)  # fmt: skip
    made.source = net.source
    return made


def fake_quantize(name: str, bottom: str, top: str, grid: Grid, power_of_two: bool = False) -> tuple[Any, list[np.ndarray]]:
    """Return a FakeQuantize layer and its blobs."""
    layer = proto.LayerParameter(name=name, type="FakeQuantize", bottom=[bottom], top=[top])
    param = layer.fake_quantize_param
    param.least, param.most, param.scale = grid.least, grid.most, grid.scale
    if grid.zero_point:
        param.zero_point = grid.zero_point
    if power_of_two:
        param.power_of_two = True
    return layer, [np.array([grid.scale], np.float32)]


def simulated(net: Net, table: Table) -> Net:
    """Return the net with the rounding of a table. Values keep their names: that of a rounded value is the rounded one. Raise Error for unknown values."""
    made = copied(net)
    unknown = [name for name in table.values if name not in made.shapes]
    if unknown:
        fact = f"the table has {names_text(unknown)}, and the folded net has no such values"
        raise Error(fact, place=net.source_file or None, fix="give the table of this net, or quantize the net again")
    for value, entry in table.values.items():
        round_value(made, value, entry.grid, table.scheme)
    for layer in made.layers:
        if layer.name in table.products:
            set_rounding(layer, table.scheme, table.bits(layer.name))
    return made


def round_value(net: Net, value: str, grid: Grid, scheme: Scheme) -> None:
    """Insert the rounding of a value where it is made."""
    producer = net.producer(value)
    raw = net.fresh(value + RAW)
    producer.top[:] = [raw if top == value else top for top in producer.top]
    net.shapes[raw] = net.shapes.pop(value)
    net.blobs[raw] = net.blobs.get(value, value)
    layer, arrays = fake_quantize(f"{value}{SUFFIX}", raw, value, grid, scheme.power_of_two)
    net.insert(layer, arrays, after=producer)
    net.in_place.add(layer.name)


def set_rounding(layer: Any, scheme: Scheme, bits: int) -> None:
    """Make a product round its weights."""
    param = layer.weight_quantization_param
    param.bits = bits
    if not scheme.by_output(layer.type):
        param.per_channel = False
    if scheme.power_of_two:
        param.power_of_two = True


def weight_scales(net: Net, layer: Any, array: np.ndarray, scheme: Scheme, bits: int = 8) -> np.ndarray:
    """Return the scales of a product's weights: one for each output, or one."""
    return grid_of_weights(array, _form(net, layer), _rounding(layer, scheme, bits)).reshape(-1)


def rounded_weights(net: Net, layer: Any, array: np.ndarray, scheme: Scheme, bits: int = 8) -> np.ndarray:
    """Return the weights on the grid, as the simulation computes them."""
    whole, scales = weight_integers(array, _form(net, layer), _rounding(layer, scheme, bits))
    return (whole * scales).reshape(np.shape(array)).astype(np.float32)


def _form(net: Net, layer: Any) -> WeightOutputs:
    form = net.computed(layer).weight_outputs()
    assert form is not None, f"{layer.type} is no product"
    return form


def _rounding(layer: Any, scheme: Scheme, bits: int) -> Any:
    return proto.WeightQuantizationParameter(bits=bits, per_channel=scheme.by_output(layer.type), power_of_two=scheme.power_of_two)
