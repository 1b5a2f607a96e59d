"""The strides of operands along the domain of an expression, and the merging of axes that are contiguous in memory."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ocaffe.ir.tensor import Layout, Ref, Shape

LIMIT = 2**31 - 2**16  # the kernels use int indices along a merged axis and step past its end by a vector or a work-group


def element_strides(ref: Ref, axis: int | None, domain: Shape) -> tuple[int, ...]:
    """Return the stride of `ref` in elements along each axis of the domain. It is 0 along axes that are broadcast.

    `axis` None: the Ref has as many elements as the domain, in the same order. Otherwise its axes map to the domain's axes from
    `axis` on, and an axis of size 1 is broadcast.
    """
    if axis is None:
        assert ref.count == math.prod(domain), f"{ref} does not have the {math.prod(domain)} elements of {domain}"
        assert ref.is_dense or ref.shape[0] == domain[0], f"strided {ref} does not fit {domain}"
        own, axis = domain, 0
        batch = math.prod(domain[1:]) if ref.is_dense else ref.batch_stride
    else:
        own, batch = ref.shape, ref.batch_stride
        fits = axis + len(own) <= len(domain) and all(n in (1, m) for n, m in zip(own, domain[axis:]))
        assert fits, f"{ref} does not fit axis {axis} of {domain}"
    result = [0] * len(domain)
    stride = 1
    for i in reversed(range(len(own))):
        if own[i] > 1:
            result[axis + i] = batch if i == 0 else stride
        stride *= own[i]
    return tuple(result)


def in_blocks(domain: Shape, strides: Sequence[Sequence[int]], blocked: Sequence[bool], layout: Layout) -> tuple[Shape, list[tuple[int, ...]]]:
    """Divide the channels, axis 1 of the domain, into the blocks of a layout, which become the innermost axis.

    `blocked[k]`: operand k has this layout, so its spatial axes are further apart by the channels of a block. Operands in the order of Caffe are read
    and written across their planes. So an expression with both kinds converts the order.
    """
    channels, block = domain[1], layout.channels
    assert channels % block == 0, f"{channels} channels are not whole blocks of {block}"

    def divided(own: Sequence[int], apart: bool) -> tuple[int, ...]:
        if apart and any(own[1:]):
            return (own[0], own[1] * block, *(stride * block for stride in own[2:]), 1)
        return (own[0], own[1] * block, *own[2:], own[1])

    return (domain[0], channels // block, *domain[2:], block), [divided(own, apart) for own, apart in zip(strides, blocked)]


@dataclass(frozen=True)
class Space:
    """A domain after merging: `sizes` from the outermost axis to the innermost, and the stride `strides[k][d]` of operand k along axis d.

    `marks[d]` tells whether axis d is reduced. Only axes with equal marks are merged. There is at least one axis.
    """

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    marks: tuple[bool, ...]


def merge(domain: Shape, strides: Sequence[Sequence[int]], marks: Sequence[bool] | None = None) -> Space:
    """Merge neighbouring axes that are one axis in the memory of every operand."""
    marks = marks if marks is not None else (False,) * len(domain)
    sizes: list[int] = []  # innermost first, like `kept` and `flags`
    kept: list[list[int]] = []  # per axis, the stride of each operand
    flags: list[bool] = []
    for d in reversed(range(len(domain))):
        if domain[d] == 1:
            continue
        own = [s[d] for s in strides]
        joins = sizes and flags[-1] == marks[d] and sizes[-1] * domain[d] <= LIMIT
        if joins and all(outer == inner * sizes[-1] for outer, inner in zip(own, kept[-1])):
            sizes[-1] *= domain[d]
        else:
            sizes.append(domain[d])
            kept.append(own)
            flags.append(marks[d])
    if not sizes:
        sizes, kept, flags = [1], [[0] * len(strides)], [False]
    assert math.prod(sizes[1:]) <= LIMIT, f"more rows in {domain} than an int can count"
    by_operand = tuple(tuple(axis[k] for axis in reversed(kept)) for k in range(len(strides)))
    return Space(tuple(reversed(sizes)), by_operand, tuple(reversed(flags)))
