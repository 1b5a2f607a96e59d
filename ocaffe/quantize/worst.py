"""The calibration images whose outputs change most when a net rounds."""
from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.convert.caffe.net import Net
from ocaffe.quantize.images import Images
from ocaffe.quantize.measure import judged
from ocaffe.quantize.observe import Tell, running
from ocaffe.quantize.pair import beside, own_name
from ocaffe.quantize.table import Table


@dataclass(frozen=True)
class Worst:
    """`number`: of the image, from 0 on. `error`: of its outputs, as a share of their mean square over all images. `image`: C x H x W, as the net reads it.

    `floats`, `rounded`: the first output in floats, and of the net that rounds; empty if the errors are those of a value before it, as in a detector.
    """

    number: int
    error: float
    image: np.ndarray
    floats: np.ndarray
    rounded: np.ndarray


def worst(net: Net, table: Table, images: Images, count: int, device: Any = None, tell: Tell = lambda done: None, original: Net | None = None) -> list[Worst]:
    """Return the images with the largest errors, largest first. There are none for a net that is judged by no value with one row for each image."""
    inputs = [top for layer in net.layers if layer.type == "Input" for top in layer.top]
    shown = inputs[0]
    output = net.outputs[0] if net.shapes[net.outputs[0]][:1] == net.shapes[shown][:1] else judged(net)[0]
    if len(net.shapes[shown]) != 4 or net.shapes[output][:1] != net.shapes[shown][:1]:
        return []
    pair = beside(net, table, chained=True, floats=original)
    seen = proto.LayerParameter(name=f"{shown}/seen", type="Power", bottom=[shown], top=[f"{shown}/seen"])  # a blob that no layer overwrites
    size = None if output in net.outputs else 0  # of the values that are kept
    found, powers, number = list[tuple[float, int, Worst]](), list[float](), 0
    with running(images.message(pair, [seen]), pair.weights(), [output, own_name(output), f"{shown}/seen"], device) as run:
        for done in images.run(run):
            floats, rounded, pixels = (np.array(run.blobs[name].data) for name in (output, own_name(output), f"{shown}/seen"))
            rows = len(pixels)
            powers += list((floats.reshape(rows, -1).astype(np.float64) ** 2).sum(axis=1))
            errors = ((floats - rounded).reshape(rows, -1).astype(np.float64) ** 2).sum(axis=1)
            for row in range(rows):
                item = Worst(number + row, float(errors[row]), pixels[row], *(values[row].reshape(-1)[:size] for values in (floats, rounded)))
                heapq.heappush(found, (item.error, item.number, item))
                if len(found) > count:
                    heapq.heappop(found)
            number += rows
            tell(done)
    power = float(np.mean(powers)) or 1.0
    return [Worst(item.number, error / power, item.image, item.floats, item.rounded) for error, _, item in sorted(found, key=lambda each: -each[0])]
