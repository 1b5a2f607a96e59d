"""PriorBox: cases beyond Caffe's."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.errors import Error
from tests.layers.single import layer_of

NET = """layer { name: "map" type: "Input" top: "map" input_param { shape { dim: 1 dim: 2 dim: 2 dim: 3 } } }
    layer { name: "image" type: "Input" top: "image" input_param { shape { dim: 1 dim: 3 dim: 40 dim: 60 } } }
    layer { name: "prior" type: "PriorBox" bottom: "map" bottom: "image" top: "prior"
            prior_box_param { min_size: 10 max_size: 22.5 aspect_ratio: 2 variance: 0.1 variance: 0.1 variance: 0.2 variance: 0.2 } }"""


def expected(cells: tuple[int, int], image: tuple[int, int]) -> np.ndarray:
    boxes = []
    for row, column in np.ndindex(*cells):
        y, x = (row + 0.5) * image[0] / cells[0], (column + 0.5) * image[1] / cells[1]
        root = np.sqrt(2)
        for width, height in ((10, 10), (np.sqrt(220), np.sqrt(220)), (10 * root, 10 / root), (10 / root, 10 * root)):
            boxes += [(x - width / 2) / image[1], (y - height / 2) / image[0], (x + width / 2) / image[1], (y + height / 2) / image[0]]
    return np.array([boxes, [0.1, 0.1, 0.2, 0.2] * (len(boxes) // 4)])[None]


def test_sizes_change(device: Any) -> None:
    net = Net(text_format.Parse(NET, proto.NetParameter()), proto.TEST, device=device)
    try:
        for cells, image in (((2, 3), (40, 60)), ((5, 2), (60, 60)), ((2, 3), (40, 60))):
            net.blobs["map"].reshape(1, 2, *cells)
            net.blobs["image"].reshape(1, 3, *image)
            out = net.forward()["prior"]
            assert out.shape == expected(cells, image).shape and np.abs(out - expected(cells, image)).max() < 1e-6
    finally:
        net.close()


@pytest.mark.parametrize(
    "param, fact",
    [
        ("", "min_size is"),
        ("min_size: 10 min_size: -1", "min_size is .*-1"),
        ("min_size: 10 min_size: 20 max_size: 30", "1 max_size given for 2 min_size"),
        ("min_size: 10 min_size: 20 max_size: 30 max_size: 20", "max_size 20 is not above min_size 20"),
        ("min_size: 10 aspect_ratio: 0", "aspect_ratio is 0"),
        ("min_size: 10 max_size: inf", "max_size is inf"),
        ("min_size: 10 variance: nan", "variance is nan"),
        ("fixed_size: 10 density: nan", "density is nan"),
        ("fixed_size: 10 density: 1e9", "density 1,000,000,000 makes 1,000,000,000,000,000,000 boxes in a cell"),
        ("min_size: 10 variance: 1 variance: 2", "variance is"),
        ("min_size: 10 variance: -1", "variance is .*-1"),
        ("min_size: 10 img_size: 30 img_h: 30", "img_size and img_h are both given"),
        ("min_size: 10 img_h: 30", "img_w is missing"),
        ("min_size: 10 step: 0", "step is 0"),
        ("min_size: 10 step: 8 step_w: 9", "step and step_w are both given"),
    ],
)
def test_mistakes(param: str, fact: str) -> None:
    with pytest.raises(Error, match=fact):
        layer_of(f"name: 'l' type: 'PriorBox' prior_box_param {{ {param} }}").infer((1, 2, 3, 4), (1, 3, 30, 40))


def test_axes() -> None:
    with pytest.raises(Error, match="bottom 0 is 2 x 3, it must be N x C x H x W"):
        layer_of("name: 'l' type: 'PriorBox' prior_box_param { min_size: 3 }").infer((2, 3), (1, 3, 30, 40))
