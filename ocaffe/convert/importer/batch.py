"""Import for any batch: the net is built for two batches. Sizes that differ between both nets follow the batch.

Shapes at one batch do not tell which axis is the batch. A batch of 1 would be confused with axes that an operator inserts, and a batch that is a size of
the model with that size.
"""
from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from ocaffe.convert.importer.builder import Builder
from ocaffe.convert.importer.graph import Graph
from ocaffe.errors import Error
from ocaffe.ir.tensor import Shape

PRIMES = (43, 47, 59, 61, 67, 71, 73, 79, 83, 89)  # rare as sizes of images and as numbers of tokens


def batches(graph: Graph) -> tuple[int, int]:
    """Return two batches that are no sizes in the file."""
    shapes = *graph.declared.values(), *map(graph.shape, graph.inputs), *(array.shape for array in graph.constants.values())
    used = {size for shape in shapes for size in shape}
    first, second, *_ = sorted(PRIMES, key=lambda prime: prime in used)
    return first, second


def mark_repeated(one: Graph, two: Graph) -> None:
    """Reduce constants that are repeated along an axis of the batch to one value there, in both graphs."""
    for name in one.constants.keys() & two.constants.keys():
        pair = one.constants[name], two.constants[name]
        axes = [axis for axis, sizes in enumerate(zip(pair[0].shape, pair[1].shape)) if sizes == (one.sizes[1], two.sizes[1])]
        if pair[0].ndim != pair[1].ndim or len(axes) != 1 or not all(_equal(array, array.take([0], axes[0])) for array in pair):
            continue
        for graph, array in zip((one, two), pair):
            graph.constants[name], graph.repeated[name] = array.take([0], axes[0]), axes[0]


def _equal(array: np.ndarray, other: np.ndarray) -> bool:
    return np.array_equal(array, np.broadcast_to(other, array.shape), equal_nan=array.dtype.kind == "f")


def merge(one: Builder, two: Builder) -> Any:
    """Return the NetParameter of both nets, with the original batch. Raises Error with the first layer that is not the same for every batch."""
    for mine, other in itertools.zip_longest(one.message.layer, two.message.layer):
        if mine is None or other is None or _plan(mine) != _plan(other):
            raise _depends(one, mine or other, "it is another layer")
        if mine.type == "Input":
            for name in set(mine.top) & set(one.graph.batch):
                mine.input_param.shape[0].dim[one.graph.batch[name]] = one.graph.sizes[0]
        elif mine.type == "Reshape" and mine != other:
            bottoms, tops = ([builder.shapes[name] for builder in (one, two)] for name in (mine.bottom[0], mine.top[0]))
            dims = _dims(bottoms, tops)
            if dims.count(-1) > 1:
                raise _depends(one, mine, "several axes of its top have other sizes")
            mine.reshape_param.shape.dim[:] = dims
        elif mine != other:
            raise _depends(one, mine, "a field has another value")
        elif not all(np.array_equal(*blobs, equal_nan=True) for blobs in zip(one.blobs.get(mine.name, []), two.blobs.get(mine.name, []))):
            raise _depends(one, mine, "its constants have other values")
    return one.message


def _plan(layer: Any) -> tuple[Any, ...]:
    return layer.name, layer.type, list(layer.bottom), list(layer.top)


def _dims(bottoms: list[Shape], tops: list[Shape]) -> list[int]:
    """Return the dims of a Reshape: 0 for an axis that is copied for both batches, -1 for another one that differs, else the size."""
    sizes, copied = list(zip(*tops)), list(zip(*bottoms))
    return [0 if pair in copied[axis : axis + 1] else pair[0] if pair[0] == pair[1] else -1 for axis, pair in enumerate(sizes)]


def _depends(net: Builder, layer: Any, fact: str) -> Error:
    return Error(f"{fact} with another batch", place=net.graph.place, layer=f"'{layer.name}' ({layer.type})")
