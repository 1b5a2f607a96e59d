"""A net's output for some images, and its boxes relative to the images themselves."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ocaffe.api.net import Net
from ocaffe.evaluation.answers import picture_of
from ocaffe.evaluation.objects import BOX, IMAGE
from ocaffe.evaluation.preprocessing import Preprocessing


def predicted(net: Net, inputs: Sequence[tuple[np.ndarray, ...]]) -> np.ndarray:
    """Return the net's output for some images. Each has an array for each input of the net."""
    if inputs:
        for name, arrays in zip(net.inputs, zip(*inputs)):
            net.blobs[name].reshape(len(arrays), *arrays[0].shape)
            net.blobs[name].data[...] = np.stack(arrays)
        net.forward()
    return net.blobs[net.outputs[0]].data


def without_padding(output: np.ndarray, image: int, content: bytes, settings: Preprocessing) -> np.ndarray:
    """Return the detections with the boxes of one image relative to the image in the file `content`, and not to the padded input of the net."""
    width, height = picture_of(content).size
    rows = output.reshape(-1, output.shape[-1]).copy()
    own = rows[:, IMAGE] == image
    rows[own, BOX] = settings.in_image(rows[own, BOX], (height, width))
    return rows
