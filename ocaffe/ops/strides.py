"""How operands lie in memory over the domain of an expression, and which of the domain's axes are one axis in memory."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ocaffe.ir.tensor import Ref, Shape

LIMIT = 2**31 - 2**16  # an index within one merged axis is an int in the kernels, which step past its end by a vector or a work-group


def element_strides(ref: Ref, axis: int | None, domain: Shape) -> tuple[int, ...]:
    """Distance in elements between neighbours of `ref` along each axis of the domain; 0 where it is broadcast.

    `axis` None: the Ref has as many elements as the domain, in the same order. Else its axes lie on the domain's from `axis` on, and an axis of
    size 1 is broadcast.
    """
    if axis is None:
        assert ref.count == math.prod(domain), f"{ref} has not the {math.prod(domain)} elements of {domain}"
        assert ref.is_dense or ref.shape[0] == domain[0], f"strided {ref} does not fit {domain}"
        own, axis = domain, 0
        batch = math.prod(domain[1:]) if ref.is_dense else ref.batch_stride
    else:
        own, batch = ref.shape, ref.batch_stride
        fits = axis + len(own) <= len(domain) and all(n in (1, m) for n, m in zip(own, domain[axis:]))
        assert fits, f"{ref} does not lie on axis {axis} of {domain}"
    result = [0] * len(domain)
    stride = 1
    for i in reversed(range(len(own))):
        if own[i] > 1:
            result[axis + i] = batch if i == 0 else stride
        stride *= own[i]
    return tuple(result)


@dataclass(frozen=True)
class Space:
    """A domain after merging: `sizes` from the outermost axis to the innermost, `strides[k][d]` of operand k along axis d.

    `marks[d]` says whether axis d is reduced; only axes of one mark merge. At least one axis, perhaps of size 1.
    """

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    marks: tuple[bool, ...]


def merge(domain: Shape, strides: Sequence[Sequence[int]], marks: Sequence[bool] | None = None) -> Space:
    """Join neighbouring axes that every operand steps through as if they were one."""
    marks = marks if marks is not None else (False,) * len(domain)
    sizes: list[int] = []  # innermost first, as the next two
    kept: list[list[int]] = []  # the stride of each operand
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
