"""Small nets for the tests of this folder."""
from __future__ import annotations

from typing import Any

import numpy as np

import ocaffe as caffe
from ocaffe import proto
from ocaffe.formats.text import parse

SMALL = """
name: "small"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param { pool: AVE kernel_size: 2 stride: 2 } }
layer { name: "score" type: "Convolution" bottom: "pool" top: "score" convolution_param { num_output: 5 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "score" top: "prob" }
"""
LEARNING = """
name: "learning"
layer { name: "data" type: "Input" top: "data" top: "label" input_param { shape { dim: 4 dim: 3 } shape { dim: 4 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 2 weight_filler { type: "gaussian" std: 1 } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


def message(text: str = SMALL) -> Any:
    return parse(text, proto.NetParameter, "net.prototxt")


def net(device: Any, text: str = SMALL, phase: int = proto.TEST, **options: Any) -> caffe.Net:
    return caffe.Net(message(text), phase, device=device, **options)


def numbers(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
