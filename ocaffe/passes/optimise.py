"""The pipeline of passes. A pass takes a schedule and returns a schedule; the Refs of a recording may become views of one another.

The table in `pipeline` is the one place that states each pass, its order, the facts that it requires, and the facts that it ends.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from ocaffe.ir.launch import Schedule
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref
from ocaffe.memory.predict import can_offload
from ocaffe.passes.add_before_scatter import add_before_scatter
from ocaffe.passes.bf16 import lower_to_bf16
from ocaffe.passes.bias_sums_before_pooling import sum_before_scatter
from ocaffe.passes.channel_reduction_fusion import fuse_channel_reductions
from ocaffe.passes.common_subexpressions import eliminate_common_subexpressions
from ocaffe.passes.concat_views import elide_concat_copies
from ocaffe.passes.copy_elision import elide_copies
from ocaffe.passes.elementwise_fusion import fuse_elementwise
from ocaffe.passes.epilogue_fusion import fuse_epilogues
from ocaffe.passes.fit import Fit
from ocaffe.passes.in_place import reuse_dying_inputs
from ocaffe.passes.join_launches import join_launches
from ocaffe.passes.layouts import layouts
from ocaffe.passes.pack_batches import batch_packs
from ocaffe.passes.prepacked_weights import keep_prepacked_weights
from ocaffe.passes.recompute import recompute
from ocaffe.passes.relu_backward_fusion import fuse_relu_backward
from ocaffe.passes.sign_masks import pack_sign_masks
from ocaffe.passes.spread_copies import spread_copies
from ocaffe.passes.sum_batches import batch_sums
from ocaffe.passes.verify import InvalidSchedule, Verifier
from ocaffe.support.switches import Switches


class Fact(Enum):
    """Facts that hold of a recorded schedule, until a pass ends them."""

    BLOBS_OWN_STORAGE = "no blob is a view of another blob that a pass chose"
    MASKS_ARE_BLOBS = "a fused ReLU backward reads a blob, not packed bits"
    CAFFES_ORDER = "all values are in Caffe's order"
    FLOAT_BLOBS = "all blobs and diffs are float"
    FORWARD_ONCE = "no forward launch is repeated in backward"
    INPUTS_SURVIVE = "no launch writes into the storage of its input, unless it was recorded so"


@dataclass(frozen=True)
class Pass:
    """A rewrite of a schedule. `requires`: facts that must hold before it; `ends`: facts that may not hold after it."""

    run: Callable[[Schedule], Schedule]
    requires: frozenset[Fact]
    ends: frozenset[Fact] = frozenset()

    @property
    def name(self) -> str:
        run: Any = self.run
        return str((run.func if isinstance(run, partial) else run).__name__)


@dataclass(frozen=True)
class Applied:
    """One pass of a finished run: its name, and the number of launches before and after it."""

    name: str
    before: int
    after: int


def pipeline(
    target: Target, *, fuse: bool = True, share: bool = True, recomputes: bool = True, limited: bool = False, fit: Fit | None = None,
    prepacked: dict[Any, Ref] | None = None, join: bool = False,
) -> list[Pass]:
    """The passes of a compilation, in order.

    `fuse`: merge launches. `share`: Refs may share memory. `recomputes`: recompute cheap values. `limited`: there is a memory limit. `fit`: recompute more,
    or copy to the host, until the recycled memory is within its limit, or nothing helps. `prepacked`: keep results that depend on weights alone; the dict
    holds them for all shapes of a net. `join`: launches on CPUs may run as task graphs.
    """
    own, masks, floats = Fact.BLOBS_OWN_STORAGE, Fact.MASKS_ARE_BLOBS, Fact.FLOAT_BLOBS
    planes, once, inputs = Fact.CAFFES_ORDER, Fact.FORWARD_ONCE, Fact.INPUTS_SURVIVE
    rewrites = once, inputs
    fits, fit, offloads = fit is not None, fit or Fit(0, target.rates), limited and can_offload(target.rates)
    table = [
        (fuse, eliminate_common_subexpressions, {own, floats, *rewrites}, set()),
        (fuse, fuse_epilogues, {own, floats, *rewrites}, {own}),  # a residual sum is written into the memory of its input
        (share, elide_concat_copies, {floats, *rewrites}, {own}),
        (share, elide_copies, {floats, *rewrites}, {own}),
        (fuse, add_before_scatter, {masks, floats, *rewrites}, set()),
        (fuse, fuse_relu_backward, {masks, floats, *rewrites}, {own}),
        (fuse, fuse_channel_reductions, {masks, floats, *rewrites}, set()),
        (share, partial(pack_sign_masks, target=target, everywhere=fits), {masks, floats, *rewrites}, {masks}),
        (fuse, sum_before_scatter, {floats, *rewrites}, set()),
        (fuse and (prepacked is not None if target.is_cpu else share), partial(layouts, target=target), {planes, floats, *rewrites}, {planes}),
        (fuse and share, partial(lower_to_bf16, target=target), {floats, *rewrites}, {floats}),
        (fits and fuse, fuse_elementwise, {inputs}, set()),  # values between fused launches take no memory
        (fits, fit.choose_to_fit, set(rewrites), {once}),
        (not fits and recomputes, recompute, set(rewrites), {once}),
        (fuse, fuse_elementwise, {inputs}, set()),  # after recomputation: it fuses the repeated launches too
        (fuse, batch_packs, set(), set()),
        (fuse and not (limited or recomputes), batch_sums, set(), set()),  # its parts need memory
        (offloads and fits, fit.offload_to_fit, {inputs}, set()),  # copies run beside the final launches
        (offloads, spread_copies, {inputs}, set()),
        (share, reuse_dying_inputs, {inputs}, {inputs}),  # after them all: it destroys values that recomputation could read
        (prepacked is not None, partial(keep_prepacked_weights, kept={} if prepacked is None else prepacked), set(), set()),
        (join and target.is_cpu, partial(join_launches, target=target), set(), set()),  # of the final launches
    ]
    return [Pass(run, frozenset(requires), frozenset(ends)) for wanted, run, requires, ends in table if wanted]  # type: ignore[arg-type]


def optimise(schedule: Schedule, passes: Sequence[Pass]) -> tuple[Schedule, list[Applied]]:
    """Run the passes one after the other. Return the schedule, and the number of launches before and after each pass.

    The switch `verify` checks the schedule after every pass. Raises InvalidSchedule, which names pass, launch and tensor.
    """
    verifier = Verifier(schedule) if Switches.read().verify else None
    facts = set(Fact)
    applied = []
    if verifier is not None:
        verifier.check(schedule, "record", has_layouts=False)
    for each in passes:
        if not each.requires <= facts:
            missing = ", ".join(f"'{fact.value}'" for fact in sorted(each.requires - facts, key=lambda fact: fact.name))
            raise InvalidSchedule(f"pass {each.name} requires {missing}, which an earlier pass ended")
        before = len(schedule)
        schedule = each.run(schedule)
        facts -= each.ends
        applied.append(Applied(each.name, before, len(schedule)))
        if verifier is not None:
            verifier.check(schedule, each.name, has_layouts=Fact.CAFFES_ORDER not in facts or each is passes[-1])
    return schedule, applied
