"""Values of images at places in pixels, as GridSample nodes."""
from __future__ import annotations

import numpy as np

from ocaffe.ir.graph import Blob
from ocaffe.onnx.graph import OnnxGraph

SINCE, LINEAR_SINCE = 16, 20  # the first opset with GridSample, and that with its mode "linear"


def pixel_sample(graph: OnnxGraph, image: str, places: str, size: tuple[int, int], padding: str, to: Blob | None) -> str:
    """Add the nodes that sample `image` (N x C x `size`) at `places` (N x h x w x 2: columns and rows in pixels). `padding`: "zeros" or "border"."""
    if graph.opset < SINCE:
        raise graph.refused(f"ONNX has GridSample since opset {SINCE}, this is opset {graph.opset}", f"--opset={SINCE}")
    scale = np.array([2 / max(1, n - 1) for n in reversed(size)], np.float32)
    grid = graph.op("Sub", graph.op("Mul", places, scale), 1.0)
    mode = "linear" if graph.opset >= LINEAR_SINCE else "bilinear"
    return graph.op("GridSample", image, grid, to=to, mode=mode, padding_mode=padding, align_corners=1)
