"""Leaves out `round_mode: FLOOR` where Caffe's own rounding up gives the same windows: Caffe 1.0 and most forks do not know the field.

The rule of a pooling writes the rounding of the model, which is right for every size. The windows of two roundings differ in number only, because their
places follow from kernel, stride and pad. So where the numbers are equal, so are the values, and the divisors of AVE.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ocaffe import proto
from ocaffe.convert.importer.builder import Builder
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import registry
from ocaffe.layers.window import Window


def leave_out(*nets: Builder) -> None:
    """Remove round_mode from the poolings of the first net that have as many windows without it. `nets`: the same net for one or several batches."""
    for layer in nets[0].message.layer:
        floor = layer.type == "Pooling" and layer.pooling_param.round_mode == proto.PoolingParameter.FLOOR
        if floor and _same_without(layer, [net.shapes[layer.bottom[0]][2:] for net in nets]):
            layer.pooling_param.ClearField("round_mode")


def _same_without(param: Any, images: Sequence[Shape]) -> bool:
    """Whether the number of windows is the same rounded up and down. In an axis that follows the batch, that holds for every batch with stride 1 alone."""
    layer = registry()["Pooling"].implementation(param)(param, proto.TEST)
    window = Window.read(layer, layer.own(), images[0])
    fixed = all(stride == 1 or len(set(sizes)) == 1 for stride, sizes in zip(window.stride, zip(*images)))
    return fixed and window.outputs(images[0], ceil=True) == window.outputs(images[0], ceil=False)
