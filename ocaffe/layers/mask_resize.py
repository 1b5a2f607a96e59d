"""MaskResize: other sizes of masks, as in MNC."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import register
from ocaffe.layers.plane_map import MappedPlanes


@register("MaskResize")
class MaskResize(MappedPlanes):
    """Resizes N x C x H x W to output_height x output_width, interpolated between four pixels.

    Output i of n lies at i H / n of the H inputs. Beyond the last input the value is that of the last one, and more than half a pixel beyond it is 0. MNC's
    gradient leaves values out where the top is larger; here it is complete. Source: daijifeng001/caffe-mnc, src/caffe/layers/mask_resize_layer.cu.
    """

    origin = "MNC"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, image = self.own(), self.image(bottoms[0])
        size = p.output_height, p.output_width
        self.positive(p, {"output_height": "the rows of the top: 1 or more (21 in MNC)", "output_width": "the columns of the top: 1 or more (21 in MNC)"})
        return self.plan(bottoms[0], *(matrix(n, m) for n, m in zip(image, size)))


def matrix(inputs: int, outputs: int) -> np.ndarray:
    """Return the weights of the inputs in each output: outputs x inputs."""
    result, step = np.zeros((outputs, inputs)), float(np.float32(inputs) / np.float32(outputs))
    for i, row in enumerate(result):
        if i * step <= inputs - 0.5:
            place = min(i * step, inputs - 1)
            low = int(place)
            row[low] = 1 - (place - low)
            row[min(low + 1, inputs - 1)] += place - low
    return result
