"""Where a classifier looks: Grad-CAM, the gradient of a class score at the last map of features, times that map."""
from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cl.device import Device
from ocaffe.convert.deploy import ACTIVATIONS

HOT = (255, 60, 0)  # the color of the places that count most
STRONGEST = 0.65  # of the color there


class GradCam:
    """Computes the maps of a deploy net with one image as input. `known`: the net has a map of features before its scores."""

    def __init__(self, message: Any, weights: str, device: Device) -> None:
        message = type(message).FromString(message.SerializeToString())
        message.force_backward = True  # through layers that the training kept as they were
        self._net = Net(message, phase=proto.TEST, weights=weights, device=device)
        scored = [layer for layer in message.layer if layer.type not in ACTIVATIONS]
        self._scores, self._start = scored[-1].top[0], scored[-1].name
        maps = [top for layer in scored for top in layer.top if len(shape := self._net.blobs[top].shape) == 4 and shape[2] * shape[3] > 1]
        self._map = maps[-1] if maps else ""
        readers = [layer.name for layer in scored if self._map in layer.bottom and self._map not in layer.top]
        self.known = bool(maps) and len(readers) == 1 and self._map not in self._net.inputs and self._map != self._scores
        self._end = readers[0] if self.known else ""

    def __enter__(self) -> GradCam:
        return self

    def __exit__(self, *_: object) -> None:
        self._net.close()

    def __call__(self, image: np.ndarray, label: int) -> np.ndarray:
        """Return what counts for the class `label`, rows x columns of the map, 0 to 1. `image`: the net's input, channels x height x width."""
        net = self._net
        net.blobs[net.inputs[0]].data[...] = image[None]
        net.forward()
        scores = net.blobs[self._scores]
        scores.diff[...] = (np.arange(scores.count) == label).reshape(scores.shape)
        found = net.backward(start=self._start, end=self._end)[self._map]
        counts = np.maximum((found.mean((2, 3), keepdims=True) * net.blobs[self._map].data).sum(1)[0], 0)
        return np.asarray(counts / max(float(counts.max()), 1e-12), np.float32)


def overlay(picture: Image.Image, counts: np.ndarray) -> Image.Image:
    """Return an RGB picture with the places that count in color."""
    mask = Image.fromarray((np.clip(counts, 0, 1) * 255 * STRONGEST).astype(np.uint8)).resize(picture.size, Image.Resampling.BICUBIC)
    return Image.composite(Image.new("RGB", picture.size, HOT), picture, mask)
