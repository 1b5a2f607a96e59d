"""Compile a graph to a schedule with a memory plan: record, optimise and plan, repeatedly until the plan is within the memory limit.

No device is needed.
"""
from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ocaffe.cl.command_list import CommandList
from ocaffe.cl.rates import assumed
from ocaffe.errors import Error
from ocaffe.graph.build import infer_shapes
from ocaffe.graph.microbatch import Microbatch, batch_of, cuts
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.graph.record import Recording, Update, record
from ocaffe.ir.graph import Graph
from ocaffe.ir.launch import Schedule
from ocaffe.ir.rates import GENERIC_CPU, Rates
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Role
from ocaffe.memory.plan import MemoryPlan, overlap, plan
from ocaffe.memory.predict import Prediction, can_offload, predict
from ocaffe.memory.report import check_buffers, fixed_bytes, persistent, too_large
from ocaffe.passes.fit import FAR, Fit
from ocaffe.passes.optimise import Applied, optimise, pipeline
from ocaffe.passes.verify import InvalidSchedule
from ocaffe.support.switches import Switches

CONSTANT_SHARE = 1 / 8  # of a limit, by which the estimate of the memory that no microbatch reduces may be wrong
COUNTS = 2  # microbatch counts to try, from the smallest one that fits: a larger count needs less recomputation
NAMING_AIMS = 3  # attempts to find a smaller plan, for the message of a refusal
AIMS, AIM_SHARE = 5, 0.98  # attempts, each with a smaller aim: a plan may slightly exceed its bound
BATCH_SHARES = (0.95, 0.8, 0.5)  # of the batch size that would fit if all recycled memory grew with it: the first that fits is advised
HOSTED_PART, LEAST_ROOM = 16, 8  # values of this part of a limit may be worth their copies; they surely are if without them less than that part is left
KEEP_PART = 8  # a plan that keeps all values may take this part of a GPU's own memory (ADR 20)


@dataclass(eq=False)
class CompiledNet:
    """A net compiled for one set of shapes and options: a recording, optimised by `passes`, and its plan. `microbatch`: the split of the batch, if any."""

    recording: Recording
    plan: MemoryPlan
    options: NetOptions
    update: Update | None = None
    microbatch: Microbatch | None = None
    passes: tuple[Applied, ...] = ()
    commands: CommandList = field(init=False)  # set where the net runs on a session

    def predicted(self, rates: Rates) -> Prediction:
        """The predicted time of a run."""
        return predict(self.recording.schedule, rates)

    @property
    def keeps_limit(self) -> bool:
        """Whether the plan is within the limit of its options."""
        options = self.options
        return options.limit is None or options.beside + fixed_bytes([self.recording.schedule]) + self.plan.total <= options.limit


def compile_net(
    graph: Graph, group: ParameterGroup, target: Target, options: NetOptions, switches: Switches, update: Update | None = None
) -> CompiledNet:
    """Record, optimise and plan.

    If the plan exceeds `options.limit`, try more recomputation, then microbatches. Raises Error if no attempt is within the limit, or if a tensor
    is larger than a buffer of the device may be.
    """
    compilation = _compilation(graph, group, target, options, switches, update)
    found, cut = _nearest(compilation)
    if options.limit is not None and not found.keeps_limit:
        tried = "with all recomputation that helps" if compilation.may_recompute else "without recomputation"
        tried += ", in single samples" if cut else ""
        batch = _fitting_batch(replace(compilation, prepacks=False), found)
        raise too_large(graph, found.recording.schedule, found.plan, options.beside, options.limit, batch, tried)
    check_buffers(found.recording.schedule, target)
    return found


def nearest_net(
    graph: Graph, group: ParameterGroup, target: Target, options: NetOptions, switches: Switches, update: Update | None = None
) -> CompiledNet:
    """As `compile_net`, but if no attempt is within the limit, return the smallest one (`CompiledNet.keeps_limit`)."""
    found, _ = _nearest(_compilation(graph, group, target, options, switches, update))
    check_buffers(found.recording.schedule, target)
    return found


def _compilation(
    graph: Graph, group: ParameterGroup, target: Target, options: NetOptions, switches: Switches, update: Update | None
) -> _Compilation:  # fmt: skip
    if options.limit is not None and target.rates is GENERIC_CPU:
        target = replace(target, rates=assumed(target))  # the same with and without the device: `ocaffe plan` knows the plan of a training
    return _Compilation(graph, group, target, options, switches, update, options.prepack_weights)


def _nearest(compilation: _Compilation) -> tuple[CompiledNet, bool]:
    """Return the first attempt within the limit, or else the smallest one, and whether a split of the batch was tried."""
    if (kept := compilation.kept()) is not None:
        return kept, False
    found = compilation.compiled()
    if compilation.options.limit is None or compilation.excess(found) <= 0:
        return found, False
    if compilation.prepacks:
        return _nearest(replace(compilation, prepacks=False))
    sizes = persistent([found.recording.schedule])
    hosts = [role for role in may_host(compilation.options, compilation.target) if compilation.update is not None and sizes.get(role)]
    attempts: list[tuple[_Compilation, CompiledNet, bool]] = []
    for count in range(len(hosts) + 1):
        if attempts and attempts[-1][1].keeps_limit and HOSTED_PART * sizes[hosts[count - 1]] < compilation.options.limit:
            break
        hosting = replace(compilation, hosts=frozenset(hosts[:count]))
        plain = hosting.compiled() if count else found
        if count == len(hosts) or LEAST_ROOM * hosting.budget(plain) >= compilation.options.limit:
            attempts.append((hosting, plain, False) if hosting.excess(plain) <= 0 else (hosting, *_kept_limit(hosting, plain)))
    best, found, cut = min(attempts, key=lambda each: (max(0, each[0].excess(each[1])), each[1].predicted(compilation.target.rates).seconds))
    return (found if found.keeps_limit else _smaller(best, found)), cut


def _smaller(compilation: _Compilation, found: CompiledNet) -> CompiledNet:
    """Return the smallest plan that some aims between a limit and the plan nearest to it reach, for a message: an aim that is too low reaches less."""
    low = max(1, compilation.budget(found))
    for _ in range(NAMING_AIMS if compilation.may_recompute else 0):
        fit = compilation.fit(quick=True)
        fit.limit = aim = math.isqrt(low * max(1, found.plan.total))
        other = compilation.compiled(fit, found.microbatch)
        found = min(found, other, key=compilation.excess)
        if not fit.keeps_limit:
            low = aim
    return found


def may_host(options: NetOptions, target: Target) -> list[Role]:
    """The persistent values that may be in the host's memory: under a limit, on one device with a link. Those with fewer copies come first."""
    if options.limit is None or options.in_flight is not None or not can_offload(target.rates):
        return []
    read = options.observed_diffs or options.apart or options.debug
    return [Role.HISTORY, *([Role.GRADIENT] if options.hold_gradients and not read else [])]


def _kept_limit(compilation: _Compilation, plain: CompiledNet) -> tuple[CompiledNet, bool]:
    """Reduce the memory of a net that is too large, by recomputation and then by microbatches.

    Return the first result within the limit, or else the smallest one, and whether a split of the batch was tried.
    """
    if not compilation.may_recompute:
        return plain, False
    attempts = [plain]
    hopeless = compilation.budget(plain) <= 0  # fixed bytes alone exceed the limit: the smallest plan is only to be named
    for found in compilation.within(plain, compilation.fit(quick=hopeless)):
        attempts.append(found)
        if compilation.excess(found) <= 0:
            return found, False
    places = cuts(compilation.graph, compilation.options.keeps) if not (compilation.options.debug or compilation.graph.message.debug_info) else []
    splits = [(plain, cut) for cut in places[-1:] if hopeless]
    for cut in () if hopeless else places:
        found = _in_microbatches(compilation, plain, cut)
        if compilation.excess(found) <= 0:
            return found, True
        splits.append((found, cut))
    splits.sort(key=lambda each: compilation.excess(each[0]))
    attempts += [nearest for nearest, _ in splits]
    near = [split for split in splits[1:] if split[0].plan.total <= FAR * compilation.budget(split[0])]
    for _, cut in splits[:1] + near:  # a stop before the last count may have been wrong
        for found in compilation.within(plain, compilation.fit(quick=True), Microbatch(cut, batch_of(compilation.graph, cut))):
            if compilation.excess(found) <= 0:
                return found, True
            attempts.append(found)
    return min(attempts, key=compilation.excess), bool(places)


def _fitting_batch(compilation: _Compilation, found: CompiledNet) -> tuple[int, int]:
    """Return a batch size, found by trial, with which the net is within the limit, and the present batch size.

    The first is 0 if none of those tried fits or the layers accept no other batch size.
    """
    shapes = {top: top.shape for node in compilation.graph.nodes for top in node.tops}
    inputs = {top: top.shape for node in compilation.graph.nodes if not node.bottoms for top in node.tops}
    present = max((shape[0] for shape in inputs.values() if shape), default=0)

    def fits(batch: int) -> bool:
        infer_shapes(compilation.graph, {top: (batch, *shape[1:]) if shape[:1] == (present,) else shape for top, shape in inputs.items()})
        smaller = compilation.compiled()
        attempts = compilation.within(smaller, compilation.fit(quick=True)) if compilation.may_recompute else ()
        return any(compilation.excess(each) <= 0 for each in itertools.chain([smaller], attempts))

    try:
        size = present * max(0.0, compilation.budget(found) / max(1, found.plan.total))  # recycled memory grows with the batch
        tried = dict.fromkeys(int(size * share) for share in BATCH_SHARES)
        return next((batch for batch in tried if 0 < batch < present and fits(batch)), 0), present
    except Error:
        return 0, present
    finally:
        infer_shapes(compilation.graph, shapes)


def _in_microbatches(compilation: _Compilation, plain: CompiledNet, cut: int) -> CompiledNet:
    """Split the layers up to `cut` into microbatches. Return the split within the limit with the least predicted time, or else the nearest to it.

    `plain`: the net without a split.
    """
    batch = batch_of(compilation.graph, cut)
    counts = [count for count in range(2, batch + 1) if batch % count == 0]
    tried: dict[int, CompiledNet] = {}
    searches: dict[int, Fit] = {}

    def within(count: int) -> CompiledNet:
        return min(compilation.within(plain, searches[count], Microbatch(cut, count)), key=compilation.excess)

    def fits(count: int) -> bool:
        if count not in tried:
            searches[count] = compilation.fit(quick=True)
            tried[count] = within(count)
        return compilation.excess(tried[count]) <= 0

    def fastest(some: Sequence[int]) -> CompiledNet:
        fitting = []
        for count in filter(fits, some):
            searches[count].quick = False
            thorough = within(count)
            fitting.append(thorough if compilation.excess(thorough) <= 0 else tried[count])
            if searches[count].keeps_all:
                break  # more microbatches have nothing to save
        return min(fitting, key=lambda found: found.predicted(compilation.target.rates).seconds)

    def may_fit_after(many: int) -> bool:
        """Whether a count above `many` may fit: memory is about a constant, and a part that falls with the count."""
        few = max((count for count in tried if 2 * count <= many), default=None)  # neighbours are too near to tell
        if few is None:
            return True
        constant = (many * compilation.excess(tried[many]) - few * compilation.excess(tried[few])) / (many - few)
        return constant <= CONSTANT_SHARE * compilation.budget(plain)

    for index, count in enumerate(counts):  # from the fewest: schedules of many microbatches are long
        if fits(count):
            return fastest(counts[index : index + COUNTS])
        if not may_fit_after(count):
            break
    return min(tried.values(), key=compilation.excess, default=plain)


@dataclass(frozen=True)
class _Compilation:
    """The inputs of all compilations of one net."""

    graph: Graph
    group: ParameterGroup
    target: Target
    options: NetOptions
    switches: Switches
    update: Update | None
    prepacks: bool  # whether weights are kept prepacked
    hosts: frozenset[Role] = frozenset()  # the persistent values in the host's memory, beside those of the options

    @property
    def may_recompute(self) -> bool:
        return self.options.recompute != "none" and self.switches.share and not self.options.apart

    @property
    def measures(self) -> bool:
        """Whether shapes depend on data. Then values are copied from one recording to the next, which must keep the same ones."""
        return any(node.layer.measures(node.tops) for node in self.graph.nodes)

    def kept(self) -> CompiledNet | None:
        """Return the plan that keeps all values for backward, if it may be chosen and a GPU's own memory has room for it."""
        options, target = self.options, self.target
        if options.recompute != "auto" or not options.backward or target.is_cpu or target.unified_memory or not self.may_recompute or self.measures:
            return None
        found = self.compiled(keep=True)
        allowed = min(target.global_memory // KEEP_PART, target.available_memory, target.global_memory if options.limit is None else options.limit)
        return found if options.beside + fixed_bytes([found.recording.schedule]) + found.plan.total <= allowed else None

    def budget(self, found: CompiledNet) -> int:
        """Return the bytes of the limit that remain for recycled memory."""
        assert self.options.limit is not None
        return self.options.limit - self.options.beside - fixed_bytes([found.recording.schedule])

    def excess(self, found: CompiledNet) -> int:
        """Return the bytes by which a plan exceeds the limit."""
        return found.plan.total - self.budget(found)

    def fit(self, quick: bool = False) -> Fit:
        """Return the search for values to compute again or to copy to the host. `within` sets its limit."""
        return Fit(0, self.target.rates, self.target.alignment, quick)

    def within(self, similar: CompiledNet, fit: Fit, microbatch: Microbatch | None = None) -> Iterator[CompiledNet]:
        """Yield plans, up to the first one within the limit, or one whose aim no choice reaches.

        The first aim is what the limit leaves of a similar net; its fixed bytes may differ a little.
        """
        fit.limit = self.budget(similar)
        for _ in range(AIMS):
            found = self.compiled(fit, microbatch)
            yield found
            room = self.budget(found)
            if found.plan.total <= room or (not fit.keeps_limit and room <= fit.limit):
                return
            fit.limit = int(fit.limit * AIM_SHARE * room / found.plan.total) if fit.keeps_limit else room

    def compiled(self, fit: Fit | None = None, microbatch: Microbatch | None = None, keep: bool = False) -> CompiledNet:
        options, switches = self.options, self.switches
        alignment, slab_limit = (1, 1) if switches.separate else (self.target.alignment, self.target.max_allocation)
        free = not options.apart
        fuse, share = options.fuse and switches.fuse and free, switches.share and free
        recomputes = options.recompute != "none" and free and not keep
        given = replace(options, microbatch=microbatch, fuse=fuse, prepack_weights=self.prepacks, on_host=options.on_host | self.hosts)
        prepacked = self.graph.prepacked if self.prepacks and free else None
        join = fuse and switches.joined and not options.backward
        passes = pipeline(
            self.target, fuse=fuse, share=share, recomputes=recomputes, limited=options.limit is not None, fit=fit,
            prepacked=prepacked, join=join,
        )  # fmt: skip
        blocks = fuse and share and not self.measures  # kernels by wgmma require channels in blocks, which the pass `layouts` makes
        recording = record(self.graph, self.group, self.target if blocks else replace(self.target, wgmma=False), given, self.update)
        schedule, applied = optimise(recording.schedule, passes)
        if schedule is not recording.schedule:
            recording = _renumber(recording, schedule)
        placed = plan(schedule, alignment=alignment, slab_limit=slab_limit, gradient_slab=self.target.gradient_slab, share=share)
        if switches.verify and (both := overlap(placed)) is not None:
            raise InvalidSchedule(f"the plan gives {both[0].ref} and {both[1].ref} the same memory at the same time")
        return CompiledNet(recording, placed, options, self.update, microbatch, tuple(applied))


def _renumber(recording: Recording, schedule: Schedule) -> Recording:
    """Return the recording with the optimised schedule. Its ranges are mapped by the origins of the launches."""
    number = {id(launch): index for index, launch in enumerate(recording.schedule)}
    kept = [number[id(launch.origin or launch)] for launch in schedule]

    def at(index: int) -> int:
        return bisect.bisect_left(kept, index)

    return replace(
        recording,
        schedule=schedule,
        forward_end=at(recording.forward_end),
        backward_end=at(recording.backward_end),
        forward_ranges=[(at(a), at(b)) for a, b in recording.forward_ranges],
        backward_ranges={node: (at(a), at(b)) for node, (a, b) in recording.backward_ranges.items()},
    )
