"""Fuse channel reductions into the convolution that writes the reduced values.

The reductions are BatchNorm's statistics, the two sums of BatchNorm's backward pass, and gradients of biases. The convolution's work-groups have the
values in registers, so the fusion avoids a second read from memory.

For a bias gradient each work-group writes the sum of each of its channels. For BatchNorm's backward pass it also reads the normalized values, and writes
partial results of both sums. For statistics it writes, for each channel, the number of values, their mean, and the sum of squared deviations from that
mean, which avoids cancellation. The recorded reduction then combines the partial results in a fixed order (Chan, Golub and LeVeque, "Algorithms for
computing the sample variance", 1983). It takes deviations from the mean of the first one.
"""
from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ocaffe.ir.kernel import REDUCED, REDUCTION, Access
from ocaffe.ir.launch import Launch, Operand, Schedule
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.expression.expression import Reduce, reexpressed, without
from ocaffe.kernels.expression.formula import Node, parse, plain_text, substituted
from ocaffe.passes.relu_backward_fusion import steps_of_result

STATISTICS, GRADIENTS, SUMS = 1, 2, 3  # values of the define CHANNEL_REDUCTION


@dataclass(frozen=True)
class _Form:
    """How the recorded reduction continues after the fusion.

    `kind`: a value of CHANNEL_REDUCTION. `text`: the new expression over the `reads` rows of partial results. `shifts`: the deviations are from a shift,
    the first mean. `values`: number of the reduction's own reads that the convolution replaces. `derivative`: the activation's derivative, in C, of
    BatchNorm's backward pass.
    """

    kind: int
    text: str
    reads: int
    shifts: bool = False
    values: int = 1
    derivative: str = ""


# The terms that the convolution kernels can sum (channel_reduction.h). A reduction is compared with them as a parsed formula, so that the names of
# its local variables do not matter. In GRADIENTS x0 is the gradient, x1 the normalized blob's source, x2 its mean, x3 1 / deviation, x4 scale, x5 bias.
_STATISTICS_TERMS = {name: parse("d = x0 - x1; v0 = d; v1 = d * d").terms[name] for name in ("v0", "v1")}
_SUM_TERMS = {"v0": parse("v0 = x0").terms["v0"]}
_X0 = parse("g = x0").terms["g"]
_NORMALIZED = parse("h = (x1 - x2) * x3").terms["h"]
_ACTIVATED = parse("h = (x1 - x2) * x3; pre = h * x4 + x5").terms["pre"]
_PRE = Node("name", text="pre")


def fuse_channel_reductions(schedule: Schedule) -> Schedule:
    """The schedule in which convolutions write partial reductions, and the recorded reductions combine them."""
    writers: dict[Ref, list[int]] = defaultdict(list)
    for step, launch in enumerate(schedule):
        for root in {ref.root for ref in launch.writes}:
            writers[root].append(step)
    collected: dict[int, tuple[int, Ref]] = {}  # last step of a product -> kind and Ref of its partial sums
    result: list[Launch | None] = list(schedule)
    for step, launch in enumerate(schedule):
        if not is_by_channel(launch):
            continue
        assert isinstance(launch.lower, Reduce)
        form, x = form_of(launch.lower), launch["x0"]
        before = [other for other in writers[x.root] if other < step]
        maker = schedule[before[-1]] if before else None
        if maker is None or form is None or not partials_per_channel(maker) or (form.kind == GRADIENTS and not maker.kernel.can.sums_gradients):
            continue
        written = next(operand.ref for operand in schedule[before[-1]].operands if operand.access is not Access.READ and operand.ref.root is x.root)
        steps = sorted(steps_of_result(schedule, before))
        first = first_channel(x, written)
        if first is None or (form.kind == GRADIENTS and not _can_read_normalized(launch, written, range(steps[0], step), schedule)):
            continue
        if before[-1] not in collected:
            collected[before[-1]] = form.kind, _collect([schedule[each] for each in steps], written, launch, form)
        elif form.kind == GRADIENTS or collected[before[-1]][0] != form.kind:
            continue  # another reduction uses it already
        last = step + (launch.lower.chunks > 1 and not launch.lower.last_block)  # the last stage
        result[last] = _finish(launch, schedule[last], form, collected[before[-1]][1], first)
        if last > step:
            result[step] = None
    return [launch for launch in result if launch is not None]


def partials_per_channel(launch: Launch) -> int:
    """The partial results per channel that a launch can write; 0: none."""
    count = launch.kernel.can.parts
    return 0 if count is None or launch.kernel.slot(REDUCED.name) is None else count(launch)


def is_by_channel(launch: Launch) -> bool:
    """Whether a launch is a sum, or its first stage, over all axes but the channels."""
    own = launch.lower
    return isinstance(own, Reduce) and own.op == "sum" and own.reduced == (0, *range(2, len(own.domain))) and len(own.domain) > 1


def form_of(own: Reduce) -> _Form | None:
    """The form of a reduction that a convolution can fuse; None: it is another reduction."""
    terms = {name: own.formula.terms[name] for name in own.values}
    if terms == _STATISTICS_TERMS:
        return _Form(STATISTICS, "d = x1 - x3; v0 = x0 * d; v1 = x2 + x0 * d * d", 3, True)
    if terms == _SUM_TERMS:
        return _Form(SUMS, "v0 = x0", 1)
    if own.values != ("v0", "v1") or terms["v1"] != Node("*", (terms["v0"], _NORMALIZED)):
        return None
    derivative = _derivative(terms["v0"], own.scalars)
    return None if derivative is None else _Form(GRADIENTS, "v0 = x0; v1 = x1", 2, False, own.counts[0], derivative)


def _derivative(gradient: Node, scalars: Sequence[tuple[str, np.generic]]) -> str | None:
    """The derivative of the activation behind a normalization, in C over `pre`, from the term of the gradient.

    "" if there is no activation; None if the term cannot be written in C.
    """
    if gradient == _X0:
        return ""
    if gradient.op != "*" or gradient.args[0] != _X0:
        return None
    text = plain_text(substituted(gradient.args[1], lambda node: _PRE if node == _ACTIVATED else None))
    literals = {"pre": "pre"} | {name: f"{float(value)!r}f" for name, value in scalars if np.isfinite(value)}
    if text is None or not literals.keys() >= set(NAME.findall(text)):
        return None
    return NAME.sub(lambda name: literals[name[0]], text)


NAME = re.compile(r"\b[a-z_]\w*")


def _can_read_normalized(launch: Launch, written: Ref, meanwhile: Sequence[int], schedule: Schedule) -> bool:
    """Whether the launch that writes `written`, the whole gradient, can read the normalized blob at the same places.

    No launch may change the operands of the sum in the steps `meanwhile`, from the first step of that result to the sum.
    """
    assert isinstance(launch.lower, Reduce)
    dy, *others = (operand.ref for operand in launch.operands[: launch.lower.counts[0]])
    same = dy.shape[:2] == others[0].shape[:2] == written.shape[:2] and dy.dense_stride == others[0].dense_stride == written.dense_stride
    return same and not any(ref.overlaps(other) for step in meanwhile for other in schedule[step].writes for ref in others)


def first_channel(x: Ref, written: Ref) -> int | None:
    """The channel of `written` at which the channels of x begin; None if x is not a range of its channels."""
    if len(written.shape) < 2 or x.shape[0] != written.shape[0] or x.batch_stride != written.batch_stride:
        return None
    plane = written.dense_stride // written.shape[1]
    first, rest = divmod(x.root_offset - written.root_offset, plane)
    return first if not rest and x.dense_stride == plane * x.shape[1] and 0 <= first <= written.shape[1] - x.shape[1] else None


def _collect(products: list[Launch], written: Ref, launch: Launch, form: _Form) -> Ref:
    """Let all launches of an operation write partial sums for `launch`; their Ref is [kind][channel][partial sum] (kernels/common/channel_reduction.h)."""
    collects = partials_per_channel(products[0])
    assert collects is not None
    sums = Ref(f"{products[0].layer}.moments", (form.reads, written.shape[1], collects), Role.SCRATCH)
    reads: list[Ref] = []
    defines: dict[str, int | str] = {"CHANNEL_REDUCTION": form.kind}
    if form.kind == GRADIENTS:
        x, mean, inverse, *affine = (operand.ref for operand in launch.operands[1 : form.values])
        reads = [x, mean, inverse, *(affine or [mean, mean])]
    if form.derivative:
        defines["DERIVATIVE"] = f"({form.derivative})"
    for number, product in enumerate(products):
        product.put(REDUCED.name, sums, Access.MODIFY if number else Access.WRITE)
        for slot, ref in zip(REDUCTION[1:], reads):
            product.put(slot.name, ref)
        product.define(**defines)
    return sums


def _finish(first: Launch, final: Launch, form: _Form, statistics: Ref, channel: int) -> Launch:
    """The last stage `final` of the reduction that began with `first`, reading the partial sums from `channel` on."""
    begin, own = first.lower, final.lower
    assert isinstance(begin, Reduce) and isinstance(own, Reduce)
    channels, all_channels, partials = begin.domain[1], *statistics.shape[1:]
    starts = [(number * all_channels + channel) * partials for number in range(form.reads)]
    reads: list[tuple[Ref, int | None]] = [(statistics.view((channels, partials), start), None) for start in starts]
    if form.shifts:
        reads.append((statistics.view((channels,), starts[1], partials), 0))
    skipped = (form.values if final is first else len(own.values)) + form.shifts  # the values, or their sums, and the shift
    rest = [(operand.ref, place) for operand, place in zip(final.operands[skipped : own.counts[0]], own.places[skipped:])]
    names = {f"x{skipped - form.shifts + i}": f"x{form.reads + i}" for i in range(len(rest) + form.shifts)}
    finish = re.sub(r"\bx\d+\b", lambda match: names[match[0]], own.finish)
    reads += [without(pair, own.domain, own.reduced) for pair in rest] if final is first else rest
    places, counts = tuple(place for _, place in reads), (len(reads), *own.counts[1:])
    lower = replace(own, text=form.text, finish=finish, domain=(channels, partials), reduced=(1,), places=places, counts=counts, chunks=1, last_block=False)
    lower.check()
    operands = [*(Operand(ref, Access.READ) for ref, _ in reads), *final.operands[own.counts[0] : sum(own.counts)]]
    return reexpressed(final, operands, lower)
