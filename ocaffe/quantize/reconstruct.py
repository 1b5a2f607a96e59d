"""Reconstruction: train the weights, biases and scales of products on the calibration images, so that the rounded outputs are those in floats.

A few hundred steps with the straight-through gradient. Each product has a loss (AdaQuant: Hubara et al., 2021, arXiv 2006.10518). Its gradient passes to the
products before it, as in the blocks of BRECQ (Li et al., 2021, arXiv 2102.05426), but as far as the inputs. Rates are small: a weight moves by about one
step of its grid, so that the training decides which weights are rounded up, as AdaRound does (Nagel et al., 2020, arXiv 2004.10568).
"""
from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.api.pysolver import Solver
from ocaffe.convert.caffe.net import Net
from ocaffe.convert.caffe.products import give
from ocaffe.quantize.images import Images
from ocaffe.quantize.observe import Tell, inputs_of, load
from ocaffe.quantize.pair import OWN, alone, beside, own_name
from ocaffe.quantize.simulate import SUFFIX, weight_scales
from ocaffe.quantize.table import Table

STEPS = 300
WEIGHT_RATE, BIAS_RATE, SCALE_RATE = 0.01, 0.01, 0.003  # of Adam, as shares of a weight's grid, of the grid of an output, of a scale
SMALL = 0.1  # share of the outputs for which a rate may be too large
LOSS = "EuclideanLoss"


def reconstruct(
    net: Net, table: Table, images: Images, steps: int = STEPS, device: Any = None, tell: Tell = lambda done: None, original: Net | None = None,
) -> None:  # fmt: skip
    """Change the weights of the products that round, and the scales of the table, in place. `tell` gets the number of steps done.

    `original`: the net that computes the values in floats, if `net` has other biases.
    """
    pair = beside(net, table, chained=True, floats=original)
    trained = alone(net, table)
    _learn(net, pair, table, [layer.name for layer in trained])
    message = images.message(pair, [_loss(pair, layer) for layer in trained])
    for layer in message.layer:
        if layer.type != LOSS:
            layer.phase = proto.TEST  # no random crops, no statistics of the batch
    param = proto.SolverParameter(type="Adam", base_lr=1.0, momentum=0.9, momentum2=0.999, delta=1e-8, lr_policy="poly", power=1.0, max_iter=steps)
    param.net_param.CopyFrom(message)
    param.snapshot_after_train, param.random_seed = False, 1
    with tempfile.TemporaryDirectory() as folder:
        param.snapshot_prefix = str(Path(folder) / "reconstruct")
        solver = Solver(param, keep=inputs_of(message), device=device)
        try:
            load(solver.net, pair.weights())
            _train(solver, images, steps, tell)
            arrays = solver.net._network.parameter_arrays()
        finally:
            solver.close()
    for layer in trained:
        give(net, layer, [np.array(array) for array in arrays[own_name(layer.name)]])
    for value, entry in list(table.values.items()):
        scale = float(arrays[own_name(f"{value}{SUFFIX}")][0].reshape(-1)[0])
        if scale > 0 and np.isfinite(scale):
            table.values[value] = replace(entry, grid=replace(entry.grid, scale=scale))


def _train(solver: Solver, images: Images, steps: int, tell: Tell) -> None:
    if images.arrays is None:
        for _ in range(images.skipped):
            solver.net.forward()
        for done in range(steps):
            solver.step(1)
            tell(done + 1)
        return
    done, before = 0, -1
    while before < done < steps:  # no batch would be no step
        before = done
        for given in images.batches_of_arrays():
            if len(next(iter(given.values()))) != images.batch and done:
                continue  # a last batch of another size would be another net
            for name, array in given.items():
                solver.net.blobs[name].data[...] = array
            solver.step(1)
            done += 1
            tell(done)
            if done == steps:
                break


def _learn(net: Net, pair: Net, table: Table, trained: list[str]) -> None:
    """Set the rates of all parameters. The layers in floats learn nothing."""
    own = {own_name(name): name for name in trained}
    sources = {layer.name: layer for layer in net.layers}
    for layer in pair.layers:
        count = len(pair.arrays.get(layer.name, ()))
        rates = [0.0] * count
        if layer.name in own:
            source = sources[own[layer.name]]
            scales = weight_scales(net, source, np.asarray(net.arrays[source.name][0]), table.scheme, table.bits(source.name))
            rates = [WEIGHT_RATE * _small(scales), BIAS_RATE * 0.1 * max(_small(net.arrays[source.name][-1]), _small(scales))][:count]
        elif layer.type == "FakeQuantize":
            rates = [SCALE_RATE * float(pair.arrays[layer.name][0][0])]
        names = [spec.name for spec in layer.param]
        del layer.param[:]
        for index, rate in enumerate(rates):
            layer.param.add(lr_mult=rate, decay_mult=0, **({"name": names[index]} if index < len(names) and names[index] else {}))


def _small(array: np.ndarray) -> float:
    """Return a magnitude that most elements have: all of a blob have one rate, and outputs may be of very different size."""
    sizes = np.abs(np.asarray(array, np.float64))
    return float(np.quantile(sizes[sizes > 0], SMALL)) if sizes.any() else 0.0


def _loss(pair: Net, layer: Any) -> Any:
    """Return the loss of a product: half the sum of its squared errors in a sample. Its weight is any, because Adam divides by the size of a gradient."""
    rounded = next(each for each in pair.layers if each.name == own_name(layer.name))
    loss = proto.LayerParameter(name=f"{OWN}loss/{layer.name}", type=LOSS, bottom=[rounded.top[0], layer.top[0]], top=[f"{OWN}loss/{layer.name}"])
    loss.loss_weight[:] = [1.0]
    return loss
