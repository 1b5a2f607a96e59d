"""How far the values of a rounded net are from those in floats."""
from __future__ import annotations

from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.convert.caffe.net import Net
from ocaffe.convert.caffe.products import is_product
from ocaffe.ir.layer import AbstractLayer
from ocaffe.ir.tensor import Shape
from ocaffe.quantize.images import Images
from ocaffe.quantize.observe import Tell, running
from ocaffe.quantize.pair import beside, own_name
from ocaffe.quantize.table import Table

PROBABILITIES = ("Sigmoid", "Softmax")  # layers whose outputs hide the errors of large inputs


def measure(net: Net, table: Table, images: Images, device: Any = None, tell: Tell = lambda done: None, original: Net | None = None) -> dict[str, float]:
    """Return the mean squared error of each rounded value and each output, as a share of its mean square. The rounded net is whole.

    `original`: the net with which to compare, if `net` has other weights.
    """
    pair = beside(net, table, chained=True, floats=original)
    inputs = {top for layer in net.layers if layer.type == "Input" for top in layer.top}
    values = [value for value in dict.fromkeys([*table.values, *judged(net)]) if value not in inputs]
    probes, tops = list[Any](), dict[str, tuple[str, str]]()
    for value in values:
        error = difference(own_name(value), value, f"{value}/difference")
        tops[value] = f"{value}/error", f"{value}/power"
        probes += [error, sum_of_squares(f"{value}/difference", tops[value][0]), sum_of_squares(value, tops[value][1])]
    sums = {value: np.zeros(2) for value in values}
    with running(images.message(pair, probes), pair.weights(), [top for both in tops.values() for top in both], device) as run:
        for done in images.run(run):
            for value, both in tops.items():
                sums[value] += [float(np.asarray(run.blobs[top].data, np.float64).sum()) for top in both]
            tell(done)
    return {value: float(error / power) if power else float(error > 0) for value, (error, power) in sums.items()}


def output_error(net: Net, errors: dict[str, float]) -> float:
    """Return the mean error of the net's outputs, as a share of their mean square."""
    return float(np.mean([errors[name] for name in judged(net)]))


def judged(net: Net) -> list[str]:
    """Return the values by which a net is judged: its outputs. Some are replaced by the values that they are made of.

    Softmax and Sigmoid hide the errors of large inputs. Rows of DetectionOutput and others depend on values: two nets may find other rows.
    """
    found, left = list[str](), list(net.outputs)
    while left:
        name = left.pop(0)
        layer = net.producer(name)
        if type(net.computed(layer)).measures is not AbstractLayer.measures and (computed := [value for value in layer.bottom if _is_computed(net, value)]):
            left += computed
        else:
            found.append(layer.bottom[0] if layer.type in PROBABILITIES and layer.bottom and net.producer(layer.bottom[0]).bottom else name)
    return list(dict.fromkeys(found))


def _is_computed(net: Net, value: str) -> bool:
    """Whether a product is among the layers that make a value: priors depend on sizes alone."""
    layer = net.producer(value)
    return is_product(net, layer) or any(_is_computed(net, bottom) for bottom in layer.bottom if layer.type != "PriorBox")


def difference(one: str, other: str, top: str) -> Any:
    """Return a layer that subtracts the other value from one."""
    layer = proto.LayerParameter(name=top, type="Eltwise", bottom=[one, other], top=[top])
    layer.eltwise_param.coeff[:] = [1, -1]
    return layer


def sum_of_squares(bottom: str, top: str, shape: Shape = ()) -> Any:
    """Return a layer that adds up the squares of all values; with the `shape` of a batch, those of each image."""
    layer = proto.LayerParameter(name=top, type="Reduction", bottom=[bottom], top=[top])
    layer.reduction_param.operation = proto.ReductionParameter.SUMSQ
    layer.reduction_param.axis = 1 if len(shape) > 1 else 0
    return layer
