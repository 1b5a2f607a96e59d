"""Training from given weights: which layers stay as they are, and how fast the others learn."""
from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from typing import Any

from ocaffe.errors import Error
from ocaffe.ir.graph import Graph


def freeze(layers: Sequence[Any], graph: Graph, until: str) -> None:
    """Fix the parameters of all layers up to `until`. Their BatchNorms use the given statistics. Raise Error if there is no such layer.

    `layers` are those of the training net without its data layers, `graph` is the net's.
    """
    names = [layer.name for layer in layers]
    if until not in names:
        near = difflib.get_close_matches(until, names, 1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise Error(f"--freeze is '{until}', and the net has no such layer", fix=f"{meant}`ocaffe summary` lists the layers of a prototxt")
    last = names.index(until)
    for layer in layers[: last + 1]:
        if layer.type == "BatchNorm":
            layer.batch_norm_param.use_global_stats = True
        else:
            _multiply(layer, graph, 0)


def slow_down(layers: Sequence[Any], graph: Graph) -> None:
    """Let a layer learn half as fast as one whose blobs are half as high. So the first layers, which suit all images, keep most of their weights.

    The layers of BatchNorm use the given statistics, because those of a few small batches are worse. The Scale layers that belong to them stay too.
    """
    heights = {node.name: node.tops[0].shape[2] for node in graph.nodes if node.params and len(node.tops[0].shape) == 4 and node.tops[0].shape[2] > 1}
    least = min(heights.values(), default=1)
    normed: set[str] = set()
    for layer in layers:
        if layer.type == "BatchNorm":
            layer.batch_norm_param.use_global_stats = True
        else:
            fixed = layer.type == "Scale" and layer.bottom[0] in normed
            _multiply(layer, graph, 0 if fixed else 2.0 ** -round(math.log2(heights.get(layer.name, least) / least)))
        normed = normed - set(layer.top) | (set(layer.top) if layer.type == "BatchNorm" else set())


def _multiply(layer: Any, graph: Graph, factor: float) -> None:
    """Multiply the rates of a layer with parameters."""
    count = next((len(node.params) for node in graph.nodes if node.name == layer.name), 0)
    while len(layer.param) < count:
        layer.param.add()
    for param in layer.param:
        if factor != 1:
            param.lr_mult *= factor
        if not factor:
            param.decay_mult = 0
