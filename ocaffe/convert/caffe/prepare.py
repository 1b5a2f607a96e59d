"""Preprocessing of images: as layers behind the inputs, or as a sentence for the user."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ocaffe.convert.caffe.affine import scale_layer
from ocaffe.convert.caffe.net import Net
from ocaffe.convert.deploy import PICTURES, Preprocessing


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


def prepared_as(net: Any, whole: Any) -> str:
    """Return how data layers prepare images, an empty text if none does. For people who feed the net elsewhere.

    The data layers of the file `whole` in other states tell it too: its net for deployment has none. Differences between them are told.
    """
    found = dict[str, str]()  # by sentence: the layer
    for layer in (*net.layer, *whole.layer):
        if layer.type in PICTURES:
            found.setdefault(_sentence(layer.transform_param), layer.name)
    told = list(filter(None, found))
    others = [f"'{name}' has {sentence or 'no mean and no scale'}" for sentence, name in found.items() if sentence != told[0]] if told else []
    return told[0] + "".join(f"; but the data layer {each}" for each in others) if told else ""


def _sentence(param: Any) -> str:
    mean = f"the mean image {param.mean_file}" if param.mean_file else ", ".join(f"{value:g}" for value in param.mean_value)
    steps = [f"minus {mean}" if mean else "", f"times {param.scale:g}" if param.scale != 1 else ""]
    return ", ".join(["pixels from 0 to 255", "gray" if param.force_gray else "BGR", *filter(None, steps)]) if any(steps) else ""
