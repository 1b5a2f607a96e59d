"""Cases with a numpy reference for the layer types that public prototxts of forks use, beside those of fork_cases.py."""
from __future__ import annotations

import numpy as np

from ocaffe.selftest.case import Arrays, Case, layer, normal
from ocaffe.selftest.layers import convolve


def volume_pooled(x: np.ndarray, kernel: tuple[int, ...], stride: tuple[int, ...], pad: tuple[int, ...]) -> np.ndarray:
    """The maxima of windows over the axes from 2 on. Counts are rounded up, and windows end at the border."""
    for axis, (k, s, p) in enumerate(zip(kernel, stride, pad), 2):
        size = x.shape[axis]
        count = -(-(size + 2 * p - k) // s) + 1
        starts = [i * s - p for i in range(count) if not any(pad) or i * s < size + p]
        x = np.stack([np.take(x, range(max(a, 0), min(a + k, size)), axis).max(axis) for a in starts], axis)
    return x


def pooling_case(kind: str, fields: str, kernel: tuple[int, ...], stride: tuple[int, ...], pad: tuple[int, ...] = (0, 0, 0)) -> Case:
    return Case(f"{kind} {fields}", layer(kind, "x0", "y", fields), normal(x0=(2, 2, 5, 6, 7)[: 2 + len(kernel)]),
                lambda x, got: {"y": volume_pooled(x["x0"], kernel, stride, pad)}, ("x0",))  # fmt: skip


def convolution_case(kind: str, fields: str, stride: tuple[int, ...], pad: tuple[int, ...]) -> Case:
    """num_output 3 and windows of 2 x 3 x 3 over 2 channels."""

    def values(x: Arrays, got: Arrays) -> Arrays:
        image, w, b = x["x0"], x["y/0"], x["y/1"]
        image = np.pad(image, [(0, 0), (0, 0), *((p, p) for p in pad)])
        return {"y": convolve(image, w, b)[(..., *(slice(None, None, s) for s in stride))]}

    return Case(f"{kind} {fields}", layer(kind, "x0", "y", fields), normal(x0=(2, 2, 5, 6, 7), y_0=(3, 2, 2, 3, 3), y_1=(3,)), values, ("x0", "y/0", "y/1"))


def deconvolved(x: Arrays, got: Arrays) -> Arrays:
    """Windows of 2 x 3 x 3, stride 1 x 2 x 2 and no pad."""
    image, w = x["x0"], x["y/0"]
    spread = np.zeros((*image.shape[:3], *(2 * n - 1 for n in image.shape[3:])))
    spread[..., ::2, ::2] = image
    spread = np.pad(spread, [(0, 0), (0, 0), (1, 1), (2, 2), (2, 2)])
    return {"y": convolve(spread, w.swapaxes(0, 1)[:, :, ::-1, ::-1, ::-1], x["y/1"])}


CASES = [
    pooling_case("Pooling", "pooling_param { kernel_size: [2, 3, 2] stride: [2, 1, 2] pad: [0, 1, 1] }", (2, 3, 2), (2, 1, 2), (0, 1, 1)),
    pooling_case("Pooling", "pooling_param { kernel_size: 2 kernel_size: 3 stride: 2 stride: 1 }", (2, 3), (2, 1), (0, 0)),
    pooling_case("Pooling3D", "pooling3d_param { kernel_size: 3 kernel_depth: 2 stride: 2 }", (2, 3, 3), (1, 2, 2)),
    pooling_case("Pooling3D", "pooling_param { kernel_size: 2 kernel_depth: 1 stride: 2 temporal_stride: 4 }", (1, 2, 2), (4, 2, 2)),
    pooling_case("NdPooling", "pooling_param { kernel_shape { dim: 1 dim: 2 dim: 3 } stride_shape { dim: 1 dim: 2 dim: 2 } pad_shape { dim: 0 dim: 1 dim: 1 } }",
                 (1, 2, 3), (1, 2, 2), (0, 1, 1)),
    convolution_case("Convolution3D", "convolution3d_param { num_output: 3 kernel_size: 3 kernel_depth: 2 stride: 2 pad: 1 temporal_pad: 1 filter_group: 3 }",
                     (1, 2, 2), (1, 1, 1)),
    convolution_case("Convolution3D", "convolution_param { num_output: 3 kernel_size: 3 kernel_depth: 2 temporal_stride: 2 }", (2, 1, 1), (0, 0, 0)),
    convolution_case("NdConvolution", "convolution_param { num_output: 3 kernel_shape { dim: 2 dim: 3 dim: 3 } stride_shape { dim: 2 dim: 1 dim: 2 } "
                     "pad_shape { dim: 1 dim: 0 dim: 1 } }", (2, 1, 2), (1, 0, 1)),
    convolution_case("Convolution", "convolution_param { num_output: 3 kernel_size: [2, 3, 3] pad: [0, 1, 0] }", (1, 1, 1), (0, 1, 0)),
    Case("Deconvolution3D", layer("Deconvolution3D", "x0", "y", "convolution3d_param { num_output: 3 kernel_size: 3 kernel_depth: 2 stride: 2 }"),
         normal(x0=(2, 2, 3, 4, 3), y_0=(2, 3, 2, 3, 3), y_1=(3,)), deconvolved, ("x0", "y/0", "y/1")),
    pooling_case("PoolingND", "pooling_nd_param { kernel_size: 2 stride: 2 stride: 1 stride: 2 }", (2, 2, 2), (2, 1, 2)),
]  # fmt: skip
