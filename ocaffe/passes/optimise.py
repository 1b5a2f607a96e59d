"""Rewrites of a schedule that save launches and memory: launches in, launches out; the Refs of a recording may become views of one another."""
from __future__ import annotations

from ocaffe.ir.launch import Access, Schedule, roots
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref, Role
from ocaffe.passes.bf16 import lower_to_bf16
from ocaffe.passes.bias_sums_before_pooling import sum_before_scatter
from ocaffe.passes.channel_reduction_fusion import fuse_channel_reductions
from ocaffe.passes.common_subexpressions import eliminate_common_subexpressions
from ocaffe.passes.concat_views import elide_concat_copies
from ocaffe.passes.copy_elision import elide_copies
from ocaffe.passes.elementwise_fusion import fuse_elementwise
from ocaffe.passes.epilogue_fusion import fuse_epilogues
from ocaffe.passes.recompute import recompute, recompute_to_fit
from ocaffe.passes.relu_backward_fusion import fuse_relu_backward
from ocaffe.passes.sign_masks import pack_sign_masks

RECYCLED = frozenset({Role.ACTIVATION, Role.DIFF, Role.SAVED, Role.SCRATCH})


def optimise(schedule: Schedule, target: Target, *, fuse: bool = True, in_place: bool = True, again: bool = True, budget: int | None = None) -> Schedule:
    """All rewrites in their order: fusion first, since what it removes needs no memory; in place last, since it destroys what recomputation reads.

    `again`: recompute what is cheap; `budget`: and more, until the recycled memory has this lower bound (bytes), or nothing helps.
    """
    if fuse:
        schedule = eliminate_common_subexpressions(schedule)
        schedule = fuse_epilogues(schedule)
    if in_place:
        schedule = elide_copies(elide_concat_copies(schedule))
    if fuse:
        schedule = fuse_channel_reductions(fuse_relu_backward(schedule))
    if in_place:
        schedule = pack_sign_masks(schedule, target, everywhere=budget is not None)
    if fuse:
        schedule = sum_before_scatter(schedule)
    if fuse and in_place:
        lower_to_bf16(schedule, target)
    if budget is not None:
        schedule = recompute_to_fit(schedule, budget)
    elif again:
        schedule = recompute(schedule)
    if fuse:
        schedule = fuse_elementwise(schedule)
    if in_place:
        reuse_dying_inputs(schedule)
    return schedule


def reuse_dying_inputs(schedule: Schedule) -> None:
    """Where a launch allows it and its input dies there, the output takes the input's memory."""
    life = roots(schedule)
    for step, launch in enumerate(schedule):
        for i, j in launch.inplace:
            source, result = launch.operands[i].ref, launch.operands[j].ref
            if launch.operands[j].access is Access.WRITE and _may_share(source, result, life, step):
                result.base = source.root
                result.offset, result.stride = 0, None
                life[source.root] = (life[source.root][0], life.pop(result)[1])
                break


def _may_share(source: Ref, result: Ref, life: dict[Ref, tuple[int, int]], step: int) -> bool:
    root = source.root
    return (
        result.base is None and result in life and life[result][0] == step and life[root][1] == step
        and result.role in RECYCLED and root.role in RECYCLED
        and not (root.persist or result.persist)
        and root.nbytes == result.nbytes and root.dtype == result.dtype
        and source.is_dense and source.count == root.count and root.slots == result.slots == 1
    )  # fmt: skip
