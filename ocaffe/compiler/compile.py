"""Compile a graph to a schedule with a memory plan: record, optimise and plan, repeatedly until the plan is within the memory limit.

No device is needed.
"""
from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterator
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
from ocaffe.ir.launch import Access, Schedule
from ocaffe.ir.rates import GENERIC_CPU, Rates
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref, Role
from ocaffe.memory.plan import MemoryPlan, overlap, plan
from ocaffe.memory.predict import Prediction, can_offload, predict
from ocaffe.memory.report import check_buffers, fixed_bytes, persistent, size_text, too_large
from ocaffe.passes.fit import FAR, Fit
from ocaffe.passes.optimise import Applied, optimise, pipeline
from ocaffe.passes.verify import InvalidSchedule
from ocaffe.support import log
from ocaffe.support.switches import Switches

CONSTANT_SHARE = 1 / 8  # of a limit, by which the estimate of the memory that no microbatch reduces may be wrong
WORTH = 0.005  # share of the time by which a split, or one more microbatch, must be faster to be worth it
NAMING_AIMS, NAMING_LAUNCHES = 2, 4000  # attempts to find a smaller plan, for the message of a refusal, and the launches of all of them
AIMS, AIM_SHARE, NEAR = 5, 0.98, 0.01  # attempts, each with a smaller aim: a plan may slightly exceed its bound
BATCHES, BATCH_ATTEMPTS = 4, 2  # batch sizes to try for the advice of a refusal, and attempts for each
BATCH_SHARE, BATCH_NEAR = 0.7, 1.08  # of a batch size that does not fit, to the next one; of one that fits, above which no larger one is tried
HOSTED_PART = 16  # values of this part of a limit may be worth their copies
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
    found, cut = _smallest(compilation, log.tell)
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
    found, _ = _smallest(_compilation(graph, group, target, options, switches, update))
    check_buffers(found.recording.schedule, target)
    return found


def _compilation(
    graph: Graph, group: ParameterGroup, target: Target, options: NetOptions, switches: Switches, update: Update | None
) -> _Compilation:  # fmt: skip
    if options.limit is not None and (target.rates is GENERIC_CPU or options.limit < target.rates.room):
        # The same with and without the device, and before and after its speeds are measured: `ocaffe plan` knows the plan of a training.
        target = replace(target, rates=assumed(target))
    return _Compilation(graph, group, target, options, switches, update, options.prepack_weights)


def _smallest(compilation: _Compilation, tell: Callable[[str], None] = lambda text: None) -> tuple[CompiledNet, bool]:
    """Return the fastest plan within the limit, or else the smallest one, and whether a split of the batch was tried. `tell`: gets a line in the latter case.

    The plan is then made as small as it can be: the search only made plans within the limit.
    """
    best, cut = _nearest(compilation)
    found = best.found
    if compilation.options.limit is not None and not found.keeps_limit:
        tell(f"no plan was found within {size_text(compilation.options.limit)}; ocaffe looks for the smallest one, which takes some seconds")
        found = _smaller(best.compilation, found)
    if compilation.options.limit is not None:
        found.plan = compilation.placed(found.recording.schedule)
    return found, cut


def _nearest(compilation: _Compilation) -> tuple[_Attempt, bool]:
    """Return the fastest attempt within the limit, or else the smallest one, and whether a split of the batch was tried."""
    if (kept := compilation.kept()) is not None:
        return _Attempt(compilation, kept, kept), False
    found = compilation.compiled()
    if compilation.options.limit is None or compilation.excess(found) <= 0:
        if compilation.options.limit is None or not compilation.may_keep:
            return _Attempt(compilation, found, found), False
        return _whole(compilation, found), False  # to keep some values may be faster than to recompute all cheap ones
    if compilation.prepacks:
        return _nearest(replace(compilation, prepacks=False))
    sizes = persistent([found.recording.schedule])
    hosts = [role for role in may_host(compilation.options, compilation.target) if compilation.update is not None and sizes.get(role)]
    attempts: list[_Attempt] = []
    for count in range(len(hosts) + 1):
        if attempts and attempts[-1].found.keeps_limit and HOSTED_PART * sizes[hosts[count - 1]] < compilation.options.limit:
            break
        hosting = replace(compilation, hosts=frozenset(hosts[:count]))
        plain = hosting.compiled() if count else found
        if count < len(hosts) and hosting.budget(plain) <= 0:
            continue
        if attempts and attempts[-1].found.keeps_limit and hosting.seconds(plain) >= hosting.seconds(attempts[-1].found):
            break
        attempts.append(_whole(hosting, plain) if hosting.excess(plain) > 0 else _Attempt(hosting, plain, plain, hosting.seconds(plain)))
    for attempt in attempts if compilation.may_recompute else ():
        fastest = min((each.found for each in attempts if each.found.keeps_limit), key=compilation.seconds, default=None)
        _split(attempt, math.inf if fastest is None else (1 - WORTH) * compilation.seconds(fastest))
    best = min(attempts, key=lambda each: (max(0, each.compilation.excess(each.found)), compilation.seconds(each.found)))
    return best, any(each.cut for each in attempts)


@dataclass
class _Attempt:
    """The best plan that was found for one choice of persistent values in the host's memory. `plain`: without recomputation.

    `least`: seconds that each plan without a split takes at least. `cut`: whether a split of the batch was tried.
    """

    compilation: _Compilation
    plain: CompiledNet
    found: CompiledNet
    least: float = 0.0
    cut: bool = False

    @property
    def hopeless(self) -> bool:
        """Whether fixed bytes alone exceed the limit. Then the smallest plan is only to be named."""
        return self.compilation.budget(self.plain) <= 0


def _whole(compilation: _Compilation, plain: CompiledNet) -> _Attempt:
    """Reduce the memory of a net by recomputation and copies. Take the first result within the limit, or else the smallest one."""
    attempt = _Attempt(compilation, plain, plain)
    if compilation.may_recompute:
        fit = compilation.fit(quick=attempt.hopeless)
        attempt.found = min([plain, *compilation.within(plain, fit)], key=lambda each: (max(0, compilation.excess(each)), compilation.seconds(each)))
        attempt.least = fit.least
    return attempt


def _split(attempt: _Attempt, below: float) -> None:
    """Look for a split of the batch that takes less than `below` seconds within the limit. If there is none, look for a smaller plan."""
    compilation, plain = attempt.compilation, attempt.plain
    if attempt.found.keeps_limit and compilation.seconds(attempt.found) <= (1 + WORTH) * attempt.least:
        return
    places = cuts(compilation.graph, compilation.options.keeps) if not (compilation.options.debug or compilation.graph.message.debug_info) else []
    attempt.cut = bool(places)
    splits = [(plain, cut) for cut in places[-1:] if attempt.hopeless]
    fewest = 2
    for cut in () if attempt.hopeless else places:
        found, least = _in_microbatches(compilation, plain, cut, fewest, below)
        if compilation.excess(found) <= 0 and found.microbatch is not None and compilation.seconds(found) < below:
            attempt.found, below, fewest = found, (1 - WORTH) * compilation.seconds(found), found.microbatch.count // 2
        if below < math.inf and least >= below:
            return  # later cuts repeat more
        splits.append((found, cut))
    if below < math.inf:
        return
    splits.sort(key=lambda each: compilation.excess(each[0]))
    near = [split for split in splits[1:] if split[0].plan.total <= FAR * compilation.budget(split[0])]
    attempt.found = min([attempt.found, *(nearest for nearest, _ in splits)], key=compilation.excess)
    for _, cut in splits[:1] + near:  # a stop before the last count may have been wrong
        for found in compilation.within(plain, compilation.fit(quick=True), Microbatch(cut, batch_of(compilation.graph, cut))):
            attempt.found = min(attempt.found, found, key=compilation.excess)
            if compilation.excess(found) <= 0:
                return


def _smaller(compilation: _Compilation, found: CompiledNet) -> CompiledNet:
    """Return the smallest plan that some aims below the plan nearest to a limit reach, for a message: an aim that is too low reaches less."""
    low = max(1, compilation.budget(found), max((sum(map(_recycled, {*launch.refs(*Access)})) for launch in found.recording.schedule), default=0) // 2)
    attempts = min(NAMING_AIMS, NAMING_LAUNCHES // max(1, len(found.recording.schedule)))
    fit = compilation.fit()
    for _ in range(attempts if compilation.may_recompute else 0):
        before, fit.limit = fit.choice, math.isqrt(low * max(1, found.plan.total if fit.choice is None else fit.choice.found.peak))
        found = min(found, compilation.compiled(fit, found.microbatch), key=compilation.excess)
        if compilation.excess(found) <= 0:
            break
        if not fit.keeps_limit:
            low, fit.choice = fit.limit, before
    return found


def _recycled(ref: Ref) -> int:
    return 0 if ref.persistent else ref.nbytes


def may_host(options: NetOptions, target: Target) -> list[Role]:
    """The persistent values that may be in the host's memory: under a limit, on one device with a link. Those with fewer copies come first."""
    if options.limit is None or options.in_flight is not None or not can_offload(target.rates):
        return []
    read = options.observed_diffs or options.apart or options.debug
    return [Role.HISTORY, *([Role.GRADIENT] if options.hold_gradients and not read else [])]


def _fitting_batch(compilation: _Compilation, found: CompiledNet) -> tuple[int, int]:
    """Return the largest of some batch sizes with which the net is within the limit, without microbatches, and the present batch size.

    The first is 0 if none of those tried fits or the layers accept no other batch size.
    """
    shapes = {top: top.shape for node in compilation.graph.nodes for top in node.tops}
    inputs = {top: top.shape for node in compilation.graph.nodes if not node.bottoms for top in node.tops}
    present = max((shape[0] for shape in inputs.values() if shape), default=0)

    def fits(batch: int) -> bool:
        infer_shapes(compilation.graph, {top: (batch, *shape[1:]) if shape[:1] == (present,) else shape for top, shape in inputs.items()})
        attempts = compilation.within(found, compilation.fit(quick=True)) if compilation.may_recompute else [compilation.compiled()]
        return any(compilation.excess(each) <= 0 for each in itertools.islice(attempts, BATCH_ATTEMPTS))

    try:
        size = present * max(0.0, compilation.budget(found) / max(1, found.plan.total))  # recycled memory grows with the batch
        fitting, above, batch = 0, present, int(AIM_SHARE * size)
        for _ in range(BATCHES):
            if not fitting < batch < above or above <= BATCH_NEAR * fitting:
                break
            if fits(batch):
                fitting = batch
            else:
                above = batch
            batch = math.isqrt(fitting * above) if fitting else int(BATCH_SHARE * batch)
        return fitting, present
    except Error:
        return 0, present
    finally:
        infer_shapes(compilation.graph, shapes)


def _in_microbatches(compilation: _Compilation, plain: CompiledNet, cut: int, fewest: int, below: float) -> tuple[CompiledNet, float]:
    """Split the layers up to `cut` into at least `fewest` microbatches. Return the fastest split within the limit, or else the nearest to it.

    The number is the least time that any of these splits takes without recomputation. Splits for which it is `below` seconds or more are not searched.
    `plain`: the net without a split.
    """
    batch = batch_of(compilation.graph, cut)
    tried: dict[int, CompiledNet] = {}
    best, least = None, math.inf

    def may_fit_after(many: int) -> bool:
        """Whether a count above `many` may fit: memory is about a constant, and a part that falls with the count."""
        few = max((count for count in tried if 2 * count <= many), default=None)  # neighbours are too near to tell
        if few is None:
            return True
        constant = (many * compilation.excess(tried[many]) - few * compilation.excess(tried[few])) / (many - few)
        return constant <= CONSTANT_SHARE * compilation.budget(plain)

    for count in range(max(2, fewest), batch + 1):  # from the fewest: schedules of many microbatches are long
        if batch % count:
            continue
        search = compilation.fit(quick=True, below=below)
        found = min(compilation.within(plain, search, Microbatch(cut, count)), key=compilation.excess)
        before, least = least, min(least, search.least)
        if search.least >= below:
            if search.least >= before:
                break
            continue
        tried[count] = found
        if compilation.excess(found) > 0:
            if best is not None or not may_fit_after(count):
                break
            continue
        if not search.keeps_all:
            search.quick = False
            thorough = [each for each in compilation.within(plain, search, Microbatch(cut, count)) if compilation.excess(each) <= 0]
            found = min([found, *thorough], key=compilation.seconds)
        if best is not None and compilation.seconds(found) >= (1 - WORTH) * compilation.seconds(best):
            best = min(best, found, key=compilation.seconds)
            break
        best = found
    return best or min(tried.values(), key=compilation.excess, default=plain), least


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

    @property
    def may_keep(self) -> bool:
        """Whether values may be kept that are cheap to recompute, because that is faster: on a GPU with its own memory."""
        own = not (self.target.is_cpu or self.target.unified_memory)
        return own and self.options.recompute == "auto" and self.options.backward and self.may_recompute and not self.measures

    def kept(self) -> CompiledNet | None:
        """Return the plan that keeps all values for backward, if it may be chosen and a GPU's own memory has room for it."""
        options, target = self.options, self.target
        if not self.may_keep:
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

    def seconds(self, found: CompiledNet) -> float:
        """Return the predicted time of a run."""
        return found.predicted(self.target.rates).seconds

    def fit(self, quick: bool = False, below: float = math.inf) -> Fit:
        """Return the search for values to compute again or to copy to the host. `within` sets its limit."""
        return Fit(0, self.target.rates, self.target.alignment, quick, below)

    def within(self, similar: CompiledNet, fit: Fit, microbatch: Microbatch | None = None) -> Iterator[CompiledNet]:
        """Yield plans, up to the first one within the limit, or one whose aim no choice reaches.

        The first aim is what the limit leaves of a similar net; its fixed bytes may differ a little.
        """
        aim = self.budget(similar)
        reached, missed = math.inf, 0  # the least aim that a choice reaches although its plan is too large, and the largest that none reaches
        for _ in range(AIMS):
            fit.limit = aim
            found = self.compiled(fit, microbatch)
            yield found
            room = self.budget(found)
            if found.plan.total <= room or (not fit.keeps_limit and room <= aim):
                return
            if fit.keeps_limit:
                reached, aim = aim, int(aim * AIM_SHARE * room / found.plan.total)
            else:
                missed, aim = aim, room
            if missed and reached < math.inf:
                if reached <= (1 + NEAR) * missed:
                    return
                aim = aim if missed < aim < reached else (missed + int(reached)) // 2

    def compiled(self, fit: Fit | None = None, microbatch: Microbatch | None = None, keep: bool = False) -> CompiledNet:
        options, switches = self.options, self.switches
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
        enough = None if fit is None or options.limit is None else options.limit - options.beside - fixed_bytes([schedule])
        return CompiledNet(recording, self.placed(schedule, enough), options, self.update, microbatch, tuple(applied))

    def placed(self, schedule: Schedule, enough: int | None = None) -> MemoryPlan:
        """Return the plan of a schedule. `enough`: the bytes that it may have; it need not be smaller."""
        alignment, slab_limit = (1, 1) if self.switches.separate else (self.target.alignment, self.target.max_allocation)
        share = self.switches.share and not self.options.apart
        placed = plan(schedule, alignment=alignment, slab_limit=slab_limit, gradient_slab=self.target.gradient_slab, share=share, enough=enough)
        if self.switches.verify and (both := overlap(placed)) is not None:
            raise InvalidSchedule(f"the plan gives {both[0].ref} and {both[1].ref} the same memory at the same time")
        return placed


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
