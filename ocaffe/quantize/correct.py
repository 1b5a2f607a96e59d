"""Bias correction: the mean error that rounding gives each output of a product, taken from its bias (Nagel et al., 2019, arXiv 1906.04721)."""
from __future__ import annotations

from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.convert.caffe.net import Net
from ocaffe.convert.caffe.products import give
from ocaffe.layers.base import layer_type
from ocaffe.quantize.images import Images
from ocaffe.quantize.measure import difference
from ocaffe.quantize.observe import Tell, running
from ocaffe.quantize.pair import alone, beside, own_name
from ocaffe.quantize.table import Table


def correct(net: Net, table: Table, images: Images, device: Any = None, tell: Tell = lambda done: None) -> None:
    """Change the biases of the products that round, in place. Each is measured on the inputs that the net has in floats."""
    layers = alone(net, table)
    pair = beside(net, table, chained=False)
    probes, tops = list[Any](), dict[str, str]()
    for layer in layers:
        value, stem = layer.top[0], f"{layer.name}/shift"
        probes.append(difference(own_name(value), value, stem))
        tops[layer.name] = stem
        if not _outputs_last(layer):
            mean = proto.LayerParameter(name=f"{stem}/mean", type="Reduction", bottom=[stem], top=[f"{stem}/mean"])
            mean.reduction_param.operation = proto.ReductionParameter.MEAN
            mean.reduction_param.axis = 2
            probes.append(mean)
            tops[layer.name] = f"{stem}/mean"
    sums = {name: np.zeros(net.shapes[layer.top[0]][-1 if _outputs_last(layer) else 1]) for name, layer in zip(tops, layers)}
    rows = dict.fromkeys(tops, 0)  # an image may have several: those of regions, or of an axis before the outputs
    with running(images.message(pair, probes), pair.weights(), list(tops.values()), device) as run:
        for done in images.run(run):
            for name, top in tops.items():
                found = np.asarray(run.blobs[top].data, np.float64).reshape(-1, len(sums[name]))
                sums[name] += found.sum(axis=0)
                rows[name] += len(found)
            tell(done)
    for layer in layers:
        weight, *bias = net.arrays[layer.name]
        old = np.asarray(bias[0], np.float64) if bias else np.zeros(len(sums[layer.name]))
        give(net, layer, [weight, (old - sums[layer.name] / rows[layer.name]).astype(np.float32)])


def _outputs_last(layer: Any) -> bool:
    """Whether the last axis of a product's result is that of its outputs. Else it is axis 1, and pixels follow."""
    return layer_type(layer) == "InnerProduct"
