"""Elementwise fusion: consecutive expressions become one launch, so that values between them need not go through memory.

BatchNorm, Scale and ReLU take one pass over memory in forward, and one when backward recomputes them. A value between them is still written if a later launch
reads it.
"""
from __future__ import annotations

from collections import defaultdict

from ocaffe.ir.launch import Access, Launch, Operand, Schedule
from ocaffe.ir.tensor import BFLOAT, FLOAT, Ref, Role
from ocaffe.kernels.expression.expression import Pointwise, reexpressed

MAX_OPERANDS = 26  # operands of a fused launch: larger kernels build slowly, and some devices limit the number of arguments
MAX_TEXT = 4096  # characters of a fused expression: the time to fuse a long chain and to build it would grow with the square of its length


def fuse_elementwise(schedule: Schedule) -> Schedule:
    """The schedule with every expression fused into the next one that reads it, if no launch between them interferes."""
    readers: dict[Ref, list[int]] = defaultdict(list)
    writers: dict[Ref, list[int]] = defaultdict(list)
    for step, launch in enumerate(schedule):
        for root in {ref.root for ref in launch.reads}:
            readers[root].append(step)
        for root in {ref.root for ref in launch.writes}:
            writers[root].append(step)
    result: list[Launch | None] = list(schedule)
    at: dict[Ref, int] = {}  # the present step of the expression that computes a value
    for step, launch in enumerate(schedule):
        current = launch
        for root in dict.fromkeys(ref.root for ref in launch.reads):
            if root not in at or not isinstance(current.lower, Pointwise):
                continue
            first = result[at[root]]
            later = [other for other in readers[root] if other != step]
            moved = range(at[root] + 1, step)
            touched = [ref for ref in first.refs(*Access) if ref.root is not root] if first is not None else []
            if (
                first is None or first.phase != launch.phase or any(other < step for other in later)
                or any(ref.overlaps(other) for ref in touched for w in writers[ref.root] if w in moved for other in schedule[w].writes)
                or any(r in moved for ref in first.writes if ref.root is not root for r in readers[ref.root])
            ):  # fmt: skip
                continue
            kept = bool(later) or root.role is Role.OUTPUT or root.persist
            fused = _fused(first, current, root, kept)
            if fused is not None:
                result[at[root]] = None
                current = result[step] = fused
        if isinstance(current.lower, Pointwise) and current.phase in ("forward", "backward"):
            at.update({ref: step for ref in current.writes if ref.base is None and len(writers[ref]) == 1})
    return [launch for launch in result if launch is not None]


def _fused(first: Launch, second: Launch, root: Ref, kept: bool) -> Launch | None:
    """Both launches as one, if they go over the same elements; else None."""
    a, b = first.lower, second.lower
    assert isinstance(a, Pointwise) and isinstance(b, Pointwise)
    reads_a, writes_a, modifies_a = a.split(first.operands)
    reads_b, writes_b, modifies_b = b.split(second.operands)
    links = [i for i, operand in enumerate(reads_b) if operand.ref.root is root]
    also = {operand.ref.root for operand in writes_a if operand.ref.root is not root}
    if (
        also & {operand.ref.root for operand in second.operands}
        or a.domain != b.domain or modifies_a or a.key is not None or b.key is not None or first.kernel.can.side_effect or second.kernel.can.side_effect
        or any(operand.access is not Access.WRITE for operand in writes_a)
        or any(b.places[i] is not None or reads_b[i].ref.shape != root.shape or not reads_b[i].ref.is_dense for i in links)
        or root.dtype not in (FLOAT, BFLOAT) or root.shape != a.domain
        or any(operand.ref.root is root for operand in (*writes_b, *modifies_b))
        or len(reads_a) + len(reads_b) + len(writes_a) + len(writes_b) + len(modifies_b) > MAX_OPERANDS
        or len(a.text) + len(b.text) > MAX_TEXT
    ):  # fmt: skip
        return None
    made = next(i for i, operand in enumerate(writes_a) if operand.ref.root is root)
    others = [i for i in range(len(writes_a)) if i != made or kept]
    expression, order = b.after(a, links, made, others, [op.ref for op in reads_a], [op.ref for op in reads_b])
    sources = [*reads_a, *reads_b]
    operands: list[Operand] = [sources[i] for i in order] + [*writes_b, *(writes_a[i] for i in others), *modifies_b]
    return reexpressed(second, operands, expression)
