"""Classify images: the class scores of a deploy net, the mean over ten crops or over the whole image.

    python classify.py deploy.prototxt weights.caffemodel image.png [image.png ...]

For a net of ImageNet say image_dims=(256, 256), mean=np.array([104, 117, 123]), raw_scale=255, channel_swap=(2, 1, 0). LeNet takes gray images whose
pixels, 0 to 255, are divided by 256.
"""
from __future__ import annotations

import sys

import numpy as np

import ocaffe as caffe


def main(deploy: str, weights: str, files: list[str]) -> None:
    with caffe.Classifier(deploy, weights, raw_scale=255, input_scale=1 / 256) as net:
        gray = net.blobs[net.inputs[0]].channels == 1
        images = [caffe.io.load_image(file, color=not gray) for file in files]
        for file, scores in zip(files, net.predict(images, oversample=False)):
            best = np.argsort(-scores)[:3]
            print(f"{file}: " + ", ".join(f"class {index} {scores[index]:.3f}" for index in best))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
