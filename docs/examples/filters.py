"""What a net has learned: the filters of a convolution, and what they make of an image, as PNG files.

    python filters.py deploy.prototxt weights.caffemodel image.png filters.png features.png [layer]

The layer is the first convolution unless its name is given.
"""
from __future__ import annotations

import sys

import numpy as np
from PIL import Image

import ocaffe as caffe

ZOOM = 4  # screen pixels for a pixel of a filter


def tiles(images: np.ndarray) -> np.ndarray:
    """n x height x width values as one picture of bytes: each tile from black to white, in rows of about equal length, with a line between."""
    count, height, width = images.shape
    low, high = images.min((1, 2), keepdims=True), images.max((1, 2), keepdims=True)
    scaled = 255 * (images - low) / np.maximum(high - low, 1e-12)
    columns = int(np.ceil(np.sqrt(count)))
    rows = -(-count // columns)
    picture = np.full((rows * (height + 1) - 1, columns * (width + 1) - 1), 128, np.uint8)
    for index, tile in enumerate(scaled):
        y, x = (index // columns) * (height + 1), (index % columns) * (width + 1)
        picture[y : y + height, x : x + width] = tile
    return picture.repeat(ZOOM, 0).repeat(ZOOM, 1)


def main(deploy: str, weights: str, image: str, filters_png: str, features_png: str, layer: str | None = None) -> None:
    with caffe.Net(deploy, caffe.TEST, weights=weights) as net:
        layer = layer or next(each.name for each in net.layers if each.type == "Convolution")
        kernels = net.params[layer][0].data  # outputs x inputs x height x width
        Image.fromarray(tiles(kernels.mean(1))).save(filters_png)

        name = net.inputs[0]
        transformer = caffe.io.Transformer({name: net.blobs[name].shape})
        transformer.set_transpose(name, (2, 0, 1))
        transformer.set_raw_scale(name, 255)
        transformer.set_input_scale(name, 1 / 256)
        pixels = caffe.io.load_image(image, color=net.blobs[name].channels == 3)
        net.blobs[name].data[...] = transformer.preprocess(name, pixels)
        top = net.top_names[layer][0]
        net.forward(end=layer)  # no further than the layer
        Image.fromarray(tiles(net.blobs[top].data[0])).save(features_png)
        print(f"{layer}: {len(kernels)} filters of {kernels.shape[2]} x {kernels.shape[3]} in {filters_png}, what they see in {features_png}")


if __name__ == "__main__":
    main(*sys.argv[1:])
