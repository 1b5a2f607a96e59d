"""Pointwise, broadcast and reduce operations from a line of text.

Example: `pointwise(rec, "y0 = x0 > 0 ? x0 : s * x0", reads=[x], writes=[y], scalars=...)`. A recorded launch is symbolic: its
`lower` is a Pointwise or Reduce that holds the text, the places of operands and the scalars. It becomes a kernel when views, and
with them strides, are known. `ocaffe.kernels.expression.formula` describes the language of the texts.
"""
from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ocaffe.ir.kernel import JOIN, Access, Can, Kernel
from ocaffe.ir.launch import Call, Launch, Operand
from ocaffe.ir.recorder import MAX_COMPLETION_COUNTERS, Recorder, scalar
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import BLOCK, PLANES, Ref, Role, Shape
from ocaffe.kernels.expression.formula import CONSTANTS, FUNCTIONS, Formula, parse
from ocaffe.kernels.expression.render_pointwise import Random, render
from ocaffe.kernels.expression.render_reduce import IDENTITY, Reduction, chunk_count
from ocaffe.kernels.expression.source import ALIGNMENT, CTYPES, Port
from ocaffe.kernels.expression.strides import element_strides, in_blocks, merge

POINTWISE, REDUCTION = Kernel("pointwise", can=Can(join=True, recompute=True)), Kernel("reduction", can=JOIN)
WITH_EFFECT = Kernel("expression", can=Can(join=True, side_effect=True))
Read = Ref | tuple[Ref, int]
Scalars = Mapping[str, float | int | np.generic]


class Relu(NamedTuple):
    """y0 = x0 > 0 ? x0 : slope * x0. An epilogue can compute it."""

    slope: float


class Bounded(NamedTuple):
    """y0 = x0 clipped to the bounds. An epilogue can compute it."""

    lower: float
    upper: float


class ChannelAffine(NamedTuple):
    """y0 = factor * x0 + offset, with statements, factor and offset as texts without x0.

    An epilogue can compute it if factor and offset have one value per channel.
    """

    statements: str
    factor: str
    offset: str


class ResidualSum(NamedTuple):
    """y0 = x0 + x1. An epilogue can compute it: the product then accumulates on the other summand."""


class ReluBackward(NamedTuple):
    """y0 = x1 > 0 ? x0 : slope * x0. x1 is the ReLU's output, and only its sign matters.

    The launch that writes x0 can compute it.
    """

    slope: float


Meaning = Relu | Bounded | ChannelAffine | ResidualSum | ReluBackward


def pointwise(
    rec: Recorder,
    text: str,
    *,
    reads: Sequence[Read] = (),
    writes: Sequence[Ref] = (),
    modifies: Sequence[Ref] = (),
    scalars: Scalars | None = None,
    side_effect: bool = False,
    means: Meaning | None = None,
    random: str | None = None,
) -> None:
    """Record one launch that computes `text` for every element.

    In the text, x0, x1, .. are the values of `reads`, y0, .. of `writes` and m0, .. of `modifies` (read and written). Other names are
    `scalars` (kernel arguments) or local variables. The shape of the first write (or modify) is the domain. Every other operand has
    the same shape, or as many elements in the same order. A read `(ref, axis)` is broadcast: its axes map to the axes of the domain
    from `axis` on. The shape () is one value for all elements, and an axis of size 1 is broadcast too. Integer operands (uint8,
    int32, uint32) are converted to float on load. On store they are truncated and saturated.

    A write that accumulates (`rec.accumulates`) adds to the stored value. `random` names a random stream of this layer. `uniform` in
    the text is then a number in [0, 1) per element. All launches that use the same stream in the same iteration get the same numbers.
    `means` names the operation, so that a pass can fuse it into the launch that writes x0.
    """
    pairs = [_pair(read) for read in reads]
    domain = (*writes, *modifies)[0].shape
    if 0 in domain:
        rec.empty([ref for ref, _ in pairs], writes, modifies, text)
        return
    expression = Pointwise(
        text,
        domain,
        tuple(axis for _, axis in pairs),
        (len(reads), len(writes), len(modifies)),
        _scalars(scalars),
        rec.target,
        None if random is None else rec.key(random),
        means,
    )
    expression.check()
    operands = rec.operands([*(ref for ref, _ in pairs), *([rec.step] if random is not None else [])], writes, modifies)
    rec.add(expressed(rec.layer, rec.phase, operands, expression, WITH_EFFECT if side_effect else POINTWISE))


def expressed(layer: str, phase: str, operands: Sequence[Operand], expression: Pointwise | Reduce, kernel: Kernel, origin: Launch | None = None) -> Launch:
    """Return the launch of an expression over `operands`, which get the names that the expression has for them."""
    named = [replace(operand, name=name) for operand, name in zip(operands, expression.names, strict=True)]
    inplace = expression.inplace(named) if isinstance(expression, Pointwise) else ()
    return Launch(layer, phase, named, kernel, lower=expression, inplace=inplace, origin=origin)


def reexpressed(launch: Launch, operands: Sequence[Operand], expression: Pointwise | Reduce) -> Launch:
    """Return the launch that replaces `launch` by an expression over other operands."""
    made = expressed(launch.layer, launch.phase, operands, expression, launch.kernel, launch.origin or launch)
    return replace(launch, operands=made.operands, lower=expression, inplace=made.inplace, origin=made.origin)


def reduce(
    rec: Recorder,
    text: str,
    *,
    reads: Sequence[Read],
    writes: Sequence[Ref],
    axes: Sequence[int],
    modifies: Sequence[Ref] = (),
    scalars: Scalars | None = None,
    finish: str = "y0 = v0",
    op: str = "sum",
) -> None:
    """Record a reduction over `axes` of the domain, which is the shape of the first read without an axis.

    It takes one launch, or two if one launch cannot fill the device. `text` computes v0, v1, .. of every element. These values are summed over
    the reduced axes; `op` "max" takes the maximum instead. `finish` computes y0, .. from the totals, once per kept index.
    `finish` may also use reads that are constant along the reduced axes. Writes have one element per kept index, in order, and
    accumulate as in `pointwise`. `finish` updates `modifies` (m0, ..); an operand with a single element is updated once.
    """
    pairs = [_pair(read) for read in reads]
    domain = next(ref.shape for ref, axis in pairs if axis is None)
    reduced = tuple(sorted(axis % len(domain) for axis in axes)) if domain else ()
    kept = tuple(size for d, size in enumerate(domain) if d not in reduced)
    if 0 in kept:
        rec.empty([ref for ref, _ in pairs], writes, modifies, text)
        return
    values = tuple(sorted((n for n in parse(text).assigned if re.fullmatch(r"v\d+", n)), key=lambda n: int(n[1:])))
    if 0 in domain:
        _reduce_nothing(rec, values, finish, pairs, writes, modifies, domain, reduced, scalars, op)
        return
    constants = _scalars(scalars)

    def stage(
        text: str,
        finish: str,
        reads: Sequence[tuple[Ref, int | None]],
        writes: Sequence[Ref],
        modifies: Sequence[Ref],
        domain: Shape,
        reduced: tuple[int, ...],
        chunks: int = 1,
        counter_operands: Sequence[Operand] = (),
    ) -> None:
        places, counts = tuple(axis for _, axis in reads), (len(reads), len(writes), len(modifies))
        expression = Reduce(text, finish, values, op, domain, reduced, places, counts, constants, rec.target, chunks, bool(counter_operands))
        expression.check()
        operands = [*rec.operands([ref for ref, _ in reads], writes, modifies), *counter_operands]
        rec.add(expressed(rec.layer, rec.phase, operands, expression, WITH_EFFECT if modifies else REDUCTION))

    inner_kept = bool(domain) and _innermost(domain) not in reduced
    perhaps_blocks = rec.target.wgmma and len(domain) > 2 and kept == domain[1:2] and kept[0] % BLOCK == 0
    chunks = chunk_count(math.prod(kept), inner_kept, math.prod(domain[d] for d in reduced), rec.target, perhaps_blocks)
    if chunks == 1:
        stage(text, finish, pairs, writes, modifies, domain, reduced)
        return
    partial = rec.scratch("partial", (len(values), *kept, chunks))
    if rec.target.last_block_reduction and math.prod(kept) <= MAX_COMPLETION_COUNTERS:
        counter_operands = Operand(partial, Access.WRITE), Operand(rec.completion_counters.view((math.prod(kept),)), Access.READ)
        stage(text, finish, pairs, writes, modifies, domain, reduced, chunks, counter_operands)
        return
    partials = [partial.view((*kept, chunks), i * chunks * math.prod(kept)) for i in range(len(values))]
    stage(text, "; ".join(f"y{i} = {value}" for i, value in enumerate(values)), pairs, partials, (), domain, reduced, chunks)
    # The second stage reads the partial results and then the reads of `finish`, named x0, x1, ..
    again: list[tuple[Ref, int | None]] = [(each, None) for each in partials]
    names = {}
    for i, pair in enumerate(pairs):
        if f"x{i}" in parse(finish).used:
            names[f"x{i}"] = f"x{len(again)}"
            again.append(without(pair, domain, reduced))
    finish = re.sub(r"\bx\d+\b", lambda match: names[match[0]], finish)
    stage("; ".join(f"{value} = x{i}" for i, value in enumerate(values)), finish, again, writes, modifies, (*kept, chunks), (len(kept),))


def _reduce_nothing(
    rec: Recorder,
    values: Sequence[str],
    finish: str,
    pairs: Sequence[tuple[Ref, int | None]],
    writes: Sequence[Ref],
    modifies: Sequence[Ref],
    domain: Shape,
    reduced: Sequence[int],
    scalars: Scalars | None,
    op: str,
) -> None:
    """Record a reduction over no elements: apply `finish` to the identity of the operation."""
    assert not modifies, f"{finish!r} would count a reduction of nothing"
    used = [i for i in range(len(pairs)) if f"x{i}" in parse(finish).used]
    names = {f"x{i}": f"x{k}" for k, i in enumerate(used)}
    text = re.sub(r"\bx\d+\b", lambda match: names[match[0]], finish)
    start = "0" if op == "sum" else "-INFINITY"
    pointwise(
        rec,
        "; ".join([*(f"{value} = {start}" for value in values), text]),
        reads=[without(pairs[i], domain, reduced) for i in used],
        writes=writes,
        scalars={name: value for name, value in (scalars or {}).items() if name in parse(finish).used},
    )


_COPY, _SUM = parse("y0 = x0").terms, parse("v0 = x0").terms


@dataclass(frozen=True)
class Pointwise:
    """The computation of a pointwise launch, before strides are known.

    `places[i]` is the axis of the domain that the first axis of read i maps to. None means that read i covers the whole domain.
    """

    text: str
    domain: Shape
    places: tuple[int | None, ...]
    counts: tuple[int, int, int]  # of reads, writes, modifies; if `key` is set, the step buffer follows the reads
    scalars: tuple[tuple[str, np.generic], ...]
    target: Target
    key: tuple[np.uint32, np.uint32] | None = None
    means: Meaning | None = None

    @cached_property
    def formula(self) -> Formula:
        return parse(self.text)

    @property
    def is_plain_copy(self) -> bool:
        """Whether it copies its only read to its only write."""
        return self.counts == (1, 1, 0) and self.formula.terms == _COPY

    def check(self) -> None:
        _check(self.text, self.formula, {*_names("x", self.counts[0]), *_names("m", self.counts[2]), "uniform", *dict(self.scalars)})
        missing = {*_names("y", self.counts[1]), *_names("m", self.counts[2])} - self.formula.assigned
        if missing:
            raise ValueError(f"expression {self.text!r} does not assign {', '.join(sorted(missing))}")

    def split(self, operands: Sequence[Operand]) -> tuple[list[Operand], list[Operand], list[Operand]]:
        """Split `operands` into reads (without the step buffer), writes and modifies."""
        reads = self.counts[0]
        return _split([*operands[:reads], *operands[reads + (self.key is not None) :]], self.counts)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the operands, in order."""
        return *_names("x", self.counts[0]), *(("step",) if self.key is not None else ()), *_names("y", self.counts[1]), *_names("m", self.counts[2])

    def __str__(self) -> str:
        return self.text

    def inplace(self, operands: Sequence[Operand]) -> tuple[tuple[str, str], ...]:
        """Return pairs of operands that may share memory: equal shape and type, and no other read of that memory is broadcast."""
        reads, writes, _ = self.split(operands)
        pairs = []
        for read, place in zip(reads, self.places):
            broadcast = any(other.ref.root is read.ref.root and at is not None for other, at in zip(reads, self.places))
            for write in writes:
                alike = place is None and read.ref.shape == write.ref.shape and read.ref.dtype == write.ref.dtype
                if alike and not broadcast and write.access is Access.WRITE:
                    pairs.append((read.name, write.name))
        return tuple(pairs)

    def after(
        self, first: Pointwise, links: Sequence[int], made: int, others: Sequence[int], first_reads: Sequence[Ref], own_reads: Sequence[Ref]
    ) -> tuple[Pointwise, list[int]]:
        """Fuse `first` and this expression. The reads `links` of this expression are the output y`made` of `first`.

        The fused expression writes the outputs of this one, then the outputs `others` of `first`. The second result is its
        reads, as indices into first_reads + own_reads.
        """
        order: list[int] = []
        index: dict[tuple[Ref, int | None], int] = {}  # a Ref that both expressions read is one operand

        def operand(number: int, ref: Ref, place: int | None) -> str:
            if (ref, place) not in index:
                index[ref, place] = len(order)
                order.append(number)
            return f"x{index[ref, place]}"

        names_a = {f"x{i}": operand(i, ref, place) for i, (ref, place) in enumerate(zip(first_reads, first.places))}
        names_a |= {f"y{i}": f"y{self.counts[1] + others.index(i)}" if i in others else f"link{i}" for i in range(first.counts[1])}
        names_b = {f"x{i}": names_a[f"y{made}"] if i in links else operand(len(first_reads) + i, ref, place)
                   for i, (ref, place) in enumerate(zip(own_reads, self.places))}  # fmt: skip
        text = f"{_renamed(first.text, names_a, 'p_')}; {_renamed(self.text, names_b, 'q_')}"
        scalars = (*((f"p_{name}", value) for name, value in first.scalars), *((f"q_{name}", value) for name, value in self.scalars))
        places = (*first.places, *self.places)
        counts = (len(order), self.counts[1] + len(others), self.counts[2])
        return Pointwise(text, self.domain, tuple(places[i] for i in order), counts, scalars, self.target), order

    def per_channel(self, operands: Sequence[Operand], channels: int) -> Affine | None:
        """Return the factor and offset of an affine expression if they have one value per index of axis 1, else None."""
        assert isinstance(self.means, ChannelAffine)
        reads, _, _ = self.split(operands)
        refs = []
        for read, place in zip(reads[1:], self.places[1:]):
            if read.ref.count == 1:
                refs.append(read.ref.view(()))
            elif place is not None and place + len(read.ref.shape) >= 2 and read.ref.is_dense and read.ref.count == channels == self._size(read.ref, place, 1):
                refs.append(read.ref.view((channels,)))
            else:
                return None
        return Affine(*self.means, tuple(refs), self.scalars, self.target)

    @staticmethod
    def _size(ref: Ref, place: int, axis: int) -> int:
        """Return the size of a broadcast read along an axis of the domain."""
        return ref.shape[axis - place] if 0 <= axis - place < len(ref.shape) else 1

    def __call__(self, launch: Launch) -> Call:
        reads, writes, modifies = self.split(launch.operands)
        strides = [element_strides(operand.ref, place, self.domain) for operand, place in zip(reads, self.places)]
        strides += [element_strides(operand.ref, None, self.domain) for operand in (*writes, *modifies)]
        if self.key is not None:  # the element and sample numbers have strides along the axes, like operands
            inner = [math.prod(self.domain[d + 1 :]) for d in range(len(self.domain))]
            strides += [(0, *inner[1:]), (1, *[0] * (len(inner) - 1))] if inner else [(), ()]
        space = merge(*_in_blocks(self.domain, strides, [*reads, *writes, *modifies]))
        ports = _ports(reads, writes, modifies, space.strides)
        random = None if self.key is None else Random(space.strides[-2], space.strides[-1], self.key)
        return render(self.formula, space.sizes, *ports, self.scalars, _accumulate(writes), self.target, random)


@dataclass(frozen=True)
class Affine:
    """y = factor * x + offset per channel, with statements, factor and offset as texts over x1, .. = `refs`."""

    text: str
    factor: str
    offset: str
    refs: tuple[Ref, ...]
    scalars: tuple[tuple[str, np.generic], ...]
    target: Target


def factors_and_offsets(product: Launch, steps: Sequence[Affine], bias: Ref | None) -> tuple[Ref, Launch]:
    """Return a table of all `steps` (offsets, then factors) and the launch that computes it before `product`.

    `bias` is the product's own offset.
    """
    channels = next(ref.shape[1] for ref in product.writes)
    table = Ref(f"{product.layer}.epilogue", (2, channels), Role.SCRATCH)
    reads: list[tuple[Ref, int | None]] = []
    scalars: list[tuple[str, np.generic]] = []
    text = ["f = 1", "s = 0"]
    if bias is not None:
        reads.append((bias.view((channels,)), None))
        text[1] = "s = x0"
    for number, step in enumerate(steps):
        names = {f"x{i}": f"x{len(reads) + i - 1}" for i in range(1, len(step.refs) + 1)}
        reads += [(ref, None if ref.shape else 0) for ref in step.refs]
        scalars += [(f"p{number}_{name}", value) for name, value in step.scalars]
        body = "; ".join([*([step.text] if step.text else []), f"k = {step.factor}", f"b = {step.offset}"])
        text += [_renamed(body, names, f"p{number}_"), f"f = f * p{number}_k", f"s = s * p{number}_k + p{number}_b"]
    text += ["y0 = s", "y1 = f"]
    expression = Pointwise("; ".join(text), (channels,), tuple(place for _, place in reads), (len(reads), 2, 0), tuple(scalars), steps[0].target)
    expression.check()
    writes = [table.view((channels,)), table.view((channels,), channels)]
    operands = [*(Operand(ref, Access.READ) for ref, _ in reads), *(Operand(ref, Access.WRITE) for ref in writes)]
    return table, expressed(product.layer, product.phase, operands, expression, REDUCTION, product.origin or product)


@dataclass(frozen=True)
class Reduce:
    """The computation of a reducing launch, before strides are known.

    With `chunks` > 1, the writes have an axis of that size after the kept axes. With `last_block`, the last work-group adds
    the chunks instead. Two more operands then hold the partial results and the completion counters.
    """

    text: str
    finish: str
    values: tuple[str, ...]
    op: str
    domain: Shape
    reduced: tuple[int, ...]
    places: tuple[int | None, ...]
    counts: tuple[int, int, int]
    scalars: tuple[tuple[str, np.generic], ...]
    target: Target
    chunks: int
    last_block: bool = False

    @cached_property
    def formula(self) -> Formula:
        return parse(self.text)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the operands, in order."""
        named = (name for letter, count in zip("xym", self.counts) for name in _names(letter, count))
        return *named, *(("parts", "counters") if self.last_block else ())

    def __str__(self) -> str:
        return f"{self.op}: {self.text} | {self.finish}"

    @property
    def is_plain_sum(self) -> bool:
        """Whether it only sums its first read."""
        return self.op == "sum" and self.formula.terms == _SUM

    def check(self) -> None:
        assert self.op in IDENTITY, self.op
        inputs = {*_names("x", self.counts[0]), *dict(self.scalars)}
        _check(self.text, parse(self.text), inputs)
        _check(self.finish, parse(self.finish), inputs | {*self.values, *_names("m", self.counts[2])})
        missing = {*_names("y", self.counts[1]), *_names("m", self.counts[2])} - parse(self.finish).assigned
        if missing or not self.values:
            raise ValueError(f"reduction {self.text!r} | {self.finish!r} does not assign {', '.join(sorted(missing)) or 'v0'}")

    def __call__(self, launch: Launch) -> Call:
        reads, writes, modifies = _split(launch.operands[: sum(self.counts)], self.counts)
        marks = tuple(d in self.reduced for d in range(len(self.domain)))
        kept = tuple(size for size, mark in zip(self.domain, marks) if not mark)
        strides = [element_strides(operand.ref, place, self.domain) for operand, place in zip(reads, self.places)]
        for i, own in enumerate(strides):
            constant = not any(stride for stride, mark in zip(own, marks) if mark)
            assert constant or f"x{i}" not in parse(self.finish).used, f"x{i} varies along the reduced axes: {self.finish!r} cannot use it"
        chunk_strides = []
        for operand in (*writes, *modifies):
            ref = operand.ref
            if ref.count == 1:
                along: tuple[int, ...] = (0,) * (len(kept) + 1)
            elif self.chunks > 1 and not self.last_block:
                along = element_strides(ref, None, (*kept, self.chunks))
            else:
                along = (*element_strides(ref, None, kept), 0)
            chunk_strides.append(along[-1])
            inner = iter(along)
            strides.append(tuple(0 if mark else next(inner) for mark in marks))
        domain, strides = _in_blocks(self.domain, strides, [*reads, *writes, *modifies])
        space = merge(domain, strides, (*marks, marks[1]) if len(domain) > len(marks) else marks)
        ports = _ports(reads, writes, modifies, space.strides)
        return Reduction(
            parse(self.text),
            parse(self.finish),
            self.values,
            self.op,
            space,
            *ports,
            self.scalars,
            _accumulate(writes),
            self.chunks,
            tuple(chunk_strides),
            self.last_block,
        ).render(self.target)


def _renamed(text: str, names: Mapping[str, str], prefix: str) -> str:
    """Rename the operands of a text by `names`. Its other names get `prefix`, so that they stay unique."""

    def new(match: re.Match[str]) -> str:
        name = match[0]
        if name in names:
            return names[name]
        own = name not in FUNCTIONS and name not in CONSTANTS and name != "float" and re.fullmatch(r"[ym]\d+", name) is None
        return prefix + name if own else name

    return re.sub(r"(?<![\w.])[A-Za-z_]\w*", new, text)


def in_domain(launch: Launch, index: int) -> bool:
    """Whether operand `index` of an expression has the shape of its domain. Such an operand may have any layout."""
    ref, expression = launch.operands[index].ref, launch.lower
    if not isinstance(expression, (Pointwise, Reduce)):
        return False
    reads = expression.counts[0]
    if isinstance(expression, Reduce) and index >= reads:
        return False
    return (index >= reads or expression.places[index] is None) and ref.shape == expression.domain


def treats_alike(launch: Launch) -> bool:
    """Whether an expression treats all elements alike, so that their order does not matter if all operands have the same."""
    expression = launch.lower
    return (
        isinstance(expression, Pointwise) and expression.key is None and all(place is None for place in expression.places)
        and len({operand.ref.shape for operand in launch.operands}) == 1
    )  # fmt: skip


def _in_blocks(domain: Shape, strides: list[tuple[int, ...]], operands: Sequence[Operand]) -> tuple[Shape, list[tuple[int, ...]]]:
    """Divide the channels into blocks if an operand has such a layout, unless all elements are treated alike. Further strides belong to no operand."""
    blocked = [operand.ref.root.blocked for operand in operands]
    layout = max(operand.ref.root.layout for operand in operands) if operands else PLANES
    if layout == PLANES or (all(blocked) and len(strides) == len(operands) and len({operand.ref.shape for operand in operands}) == 1):
        return domain, strides
    return in_blocks(domain, strides, [*blocked, *[False] * (len(strides) - len(blocked))], layout)


def _pair(read: Read) -> tuple[Ref, int | None]:
    return (read, None) if isinstance(read, Ref) else read


def _scalars(scalars: Scalars | None) -> tuple[tuple[str, np.generic], ...]:
    return tuple((name, scalar(value)) for name, value in (scalars or {}).items())


def _names(letter: str, count: int) -> list[str]:
    return [f"{letter}{i}" for i in range(count)]


def _check(text: str, formula: Formula, inputs: set[str]) -> None:
    unknown = formula.used - inputs
    if unknown:
        raise ValueError(f"expression {text!r} uses {', '.join(sorted(unknown))}, which is neither operand, scalar nor assigned before")


def _split(operands: Sequence[Operand], counts: tuple[int, int, int]) -> tuple[list[Operand], list[Operand], list[Operand]]:
    reads, writes, _ = counts
    return list(operands[:reads]), list(operands[reads : reads + writes]), list(operands[reads + writes :])


def _ports(
    reads: Sequence[Operand], writes: Sequence[Operand], modifies: Sequence[Operand], strides: Sequence[tuple[int, ...]]
) -> tuple[tuple[Port, ...], tuple[Port, ...], tuple[Port, ...]]:
    rest = iter(strides)

    def ports(letter: str, operands: Sequence[Operand]) -> tuple[Port, ...]:
        return tuple(port(f"{letter}{i}", o.ref, next(rest), letter != "x") for i, o in enumerate(operands))

    def port(name: str, ref: Ref, own: tuple[int, ...], written: bool) -> Port:
        return Port(name, CTYPES[ref.dtype.name], own, written, math.gcd(ALIGNMENT, ref.root_offset, *own[:-1]))

    return ports("x", reads), ports("y", writes), ports("m", modifies)


def _accumulate(writes: Sequence[Operand]) -> int:
    return sum(1 << bit for bit, operand in enumerate(writes) if operand.access is Access.MODIFY)


def _innermost(domain: Shape) -> int:
    """Return the last axis with a size above 1, or the last axis if there is none."""
    return max((d for d, size in enumerate(domain) if size > 1), default=len(domain) - 1)


def without(read: tuple[Ref, int | None], domain: Shape, reduced: Sequence[int]) -> tuple[Ref, int]:
    """Place a read that is constant along the reduced axes in a domain that has only the kept axes, or starts with them."""
    ref, axis = read
    axis, own = (0, domain) if axis is None else (axis, ref.shape)
    kept = [d for d in range(axis, axis + len(own)) if d not in reduced]
    return ref.view(tuple(own[d - axis] for d in kept)), sum(d not in reduced for d in range(axis))
