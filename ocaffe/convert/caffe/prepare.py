"""Preprocessing of images, as layers behind the inputs."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ocaffe.convert.caffe.affine import scale_layer
from ocaffe.convert.caffe.net import Net
from ocaffe.convert.deploy import Preprocessing


def bake(net: Net, how: Mapping[str, Preprocessing]) -> dict[str, str]:
    """Insert layers that compute (x - mean) * scale behind inputs. Return the values that take pixels now, each with the value of the input before.

    `how`: by the name of the input's blob. That blob gets the pixels.
    """
    pixels = {}
    for layer in [each for each in net.layers if each.type == "Input"]:
        for index, value in enumerate(layer.top):
            settings = how.get(net.blobs[value])
            if settings is None:
                continue
            raw = net.fresh(f"{net.blobs[value]}.pixels")
            net.shapes[raw], net.blobs[raw] = net.shapes[value], net.blobs[value]
            layer.top[index] = raw
            del net.shapes[value]
            made, arrays = _layer(value, raw, settings, net.shapes[raw])
            net.insert(made, arrays, after=layer)
            pixels[raw] = value
    return pixels


def _layer(value: str, raw: str, how: Preprocessing, shape: tuple[int, ...]) -> tuple[Any, list[np.ndarray]]:
    rank = len(shape)
    mean = np.zeros(()) if how.mean is None else np.asarray(how.mean, np.float64)
    mean = np.broadcast_to(mean, np.broadcast_shapes(mean.shape, (1,) * (rank - 1)))[None] if rank else mean
    if (mean == mean.reshape(-1)[0]).all():
        mean = mean.reshape(-1)[:1].reshape((1,) * rank)
    scale = np.full((1,) * rank, how.scale)
    made = scale_layer("prepare", raw, value, (scale, -mean * how.scale))
    assert made is not None, "a mean has no axis of the batch"
    return made
