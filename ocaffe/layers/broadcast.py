"""Broadcasting of bottoms against each other, as in numpy: shapes, reads, and gradients of bottoms that were repeated."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ocaffe.errors import shape_text
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.layers.base import Layer


def broadcast_shape(layer: Layer, shapes: Sequence[Shape]) -> Shape:
    """Return the common shape. Raises the layer's error if there is none."""
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        fact = f"the bottoms are {', '.join(map(shape_text, shapes))}"
        raise layer.error(
            f"{fact}; along each axis, counted from the last, sizes must be equal or 1",
            "make the sizes of these axes equal, or 1, by a Reshape layer",
        ) from None


def reads(refs: Sequence[Ref], shape: Shape) -> list[Read]:
    """Return the operands of an expression over `shape`."""
    return [ref if ref.shape == shape else (ref, len(shape) - len(ref.shape)) for ref in refs]


def write_gradient(rec: Recorder, text: str, operands: Sequence[Ref], diff: Ref) -> None:
    """diff = the sum of `text` over the axes along which its blob was repeated. The first operand has the shape of the top."""
    shape = operands[0].shape
    own = (1,) * (len(shape) - len(diff.shape)) + diff.shape
    axes = [axis for axis, (size, whole) in enumerate(zip(own, shape)) if size != whole]
    if axes:
        reduce(rec, f"v0 = {text}", reads=reads(operands, shape), writes=[diff], axes=axes)
    else:
        pointwise(rec, f"y0 = {text}", reads=reads(operands, shape), writes=[diff.view(shape)] if diff.shape != shape else [diff])
