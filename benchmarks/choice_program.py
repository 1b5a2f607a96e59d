"""The choice between keeping a value, computing it again and moving it to the host, as a mixed-integer linear program that HiGHS solves through SciPy.

It follows Checkmate (Jain et al., 2020): backward is a sequence of stages. Before a stage, launches of forward may run again. `S[t, v]` says that value v is
on the device when stage t begins, `R[t, g]` that group g of launches runs again before it. Copies follow MODeL (Steiner et al., 2022): a copy moves bytes in
each segment of time. They are at most those that the link carries while the launches of the segment run, or wait.

The schedule is the recorded one after all passes but three: those that choose, those that copy, and `reuse_dying_inputs`. So a fused launch is one launch.
The program counts the reuse of memory itself, because it depends on the choice. The time of a launch is `Rates.seconds`, as in ocaffe/memory/predict.py. The
bytes of a step are the sum of live values, as `lower_bound` of ocaffe/memory/plan.py counts them. So gaps between the places of a real plan cost nothing here.

The space of the program:

* The launches of forward and backward run in their recorded order, and once. No launch runs again within forward.
* A value is a root of at least `least` bytes that forward writes and backward only reads. Smaller ones stay as they are recorded, and are always there.
* A group is computed again as a whole: the launch that writes a value, and the launches that write its scratch operands alone. Launches of one layer that
  write parts of a value are one group too (`whole=False` excludes these, as ocaffe does). Parts by several layers (Concat) are not computed again.
* A group may run again before any stage, any number of times, while the parameters that it reads are unchanged.
* A stage begins at each launch of backward that reads a value which its predecessors in the stage do not read. A value may be dropped after any launch.
* A value may be copied to the host after its last use in forward, and back once, before any stage.
* Launches stay as they are: one that runs again is not fused into its reader, and a fused launch of forward writes values that are dropped, too. In the nets of
  docs/memory.md no recomputed expression has an expression as its reader.

Where times are rounded to segments, the program is the more optimistic side: a copy may end at once in its last segment and begin at once in its first one.
So its optimum, and the optimum of its linear relaxation, are lower bounds of the predicted time of every plan in this space.
"""
from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from ocaffe.ir.launch import HOST, Access, Schedule
from ocaffe.ir.rates import Rates
from ocaffe.ir.tensor import Ref, Role
from ocaffe.memory.plan import lifetimes, live_bytes
from ocaffe.memory.predict import beside_seconds
from ocaffe.passes.in_place import IN_PLACE_ROLES

MIB, ALIGNMENT = 1 << 20, 256


@dataclass(frozen=True)
class Step:
    """The memory at one launch of a group that runs again. `inside`: bytes that only the group sees. Values by their numbers.

    `made`: values that the group has begun to write. `pending`: values that it still reads. `sources`: those whose memory the launch's output may take.
    """

    inside: int
    made: frozenset[int]
    pending: frozenset[int]
    sources: tuple[int, ...]


@dataclass(frozen=True)
class Group:
    """Launches of forward that run again as a whole. `until`: the step of the schedule from which their parameters have changed; 0: they may not repeat."""

    name: str
    launches: list[int]
    seconds: float
    reads: list[int]
    writes: list[int]
    steps: list[Step]
    until: int


@dataclass(frozen=True)
class Stage:
    """Launches `begin` to `end` of backward. `last`: the last launch that reads each value that the stage reads."""

    begin: int
    end: int
    last: dict[int, int]


@dataclass
class Net:
    """A schedule as the program sees it. `fixed`: live bytes by step of all that no choice changes. `between`: the same, that live on from the step before.

    `used`: the last launch of forward that touches each value. `sources`: by step, the roots whose memory the output of the launch may take.
    """

    schedule: Schedule
    rates: Rates
    least: int
    whole: bool = True
    values: list[Ref] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    born: list[int] = field(default_factory=list)
    used: list[int] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    fixed: list[int] = field(default_factory=list)
    between: list[int] = field(default_factory=list)
    maker: dict[int, int] = field(default_factory=dict)  # value -> group

    def __post_init__(self) -> None:
        schedule = self.schedule
        self.forward = next((step for step, launch in enumerate(schedule) if launch.phase != "forward"), len(schedule))
        self.seconds = [self.rates.seconds(launch) for launch in schedule]
        self.reads: dict[Ref, list[int]] = defaultdict(list)
        self.writes: dict[Ref, list[int]] = defaultdict(list)
        for step, launch in enumerate(schedule):
            for access, table in ((launch.reads, self.reads), (launch.writes, self.writes)):
                for root in dict.fromkeys(ref.root for ref in access):
                    table[root].append(step)
        self.lives = {life.ref: life for life in lifetimes(schedule, ALIGNMENT)}
        parts = self._parts()
        self._name_values(parts)
        self._make_groups(parts)
        self._make_stages()
        fixed = [life for root, life in self.lives.items() if root not in self.number]
        self.fixed = live_bytes(fixed, len(schedule))
        begun = live_bytes([type(life)(life.ref, life.first, life.first, life.size) for life in fixed], len(schedule))
        self.between = [bytes_ - new for bytes_, new in zip(self.fixed, begun)]

    def sources(self, step: int) -> list[Ref]:
        """Roots whose memory the output of a launch may take if they die there, by the rules of `reuse_dying_inputs`."""
        launch, found = self.schedule[step], []
        for i, j in launch.inplace:
            source, result = launch[i], launch[j]
            root = source.root
            if (
                launch.operand(j).access is Access.WRITE and result.base is None and result in self.lives and self.lives[result].first == step
                and result.role in IN_PLACE_ROLES and root.role in IN_PLACE_ROLES and not (root.persist or result.persist)
                and root.nbytes == result.nbytes and root.dtype == result.dtype and root.layout == result.layout
                and source.is_dense and source.count == root.count and root.slots == result.slots == 1 and root not in found
            ):  # fmt: skip
                found.append(root)
        return found

    def _parts(self) -> dict[int, int]:
        """The number of the group of each launch of forward."""
        group = list(range(self.forward))

        def find(step: int) -> int:
            while group[step] != step:
                step = group[step]
            return step

        self.unmade: set[Ref] = set()
        for root, steps in self.writes.items():
            early = [step for step in steps if step < self.forward]
            if len(early) < 2 or root.persistent:
                continue
            span = range(early[0], early[-1] + 1)
            if len({self.schedule[step].layer for step in span}) > 1 or not self.whole:
                self.unmade.add(root)
                continue
            for step in span:
                group[find(step)] = find(early[0])
        changed = True
        while changed:  # launches that write scratch operands of one group belong to it
            changed = False
            for first in sorted({find(step) for step in range(self.forward)}):
                steps = [step for step in range(self.forward) if find(step) == first]
                roots = {ref.root for step in steps for ref in self.schedule[step].writes}
                readers = {find(other) if other < self.forward else -1 for root in roots for other in self.reads[root]} - {first}
                if all(root.role is Role.SCRATCH and not root.persistent for root in roots) and len(readers) == 1 and -1 not in readers:
                    group[first] = readers.pop()
                    changed = True
        return {step: find(step) for step in range(self.forward)}

    def _name_values(self, parts: dict[int, int]) -> None:
        for root, life in self.lives.items():
            writes = self.writes[root]
            if not writes or writes[0] >= self.forward or writes[-1] >= self.forward or life.size < self.least:
                continue
            users = {parts.get(step, -1) for step in self.reads[root]}
            if users <= {parts[writes[0]]}:
                continue  # only its own group sees it
            self.values.append(root)
            self.sizes.append(life.size)
            self.born.append(life.first)
            self.used.append(max(step for step in (*writes, *self.reads[root]) if step < self.forward))
        self.number = {root: number for number, root in enumerate(self.values)}

    def _make_groups(self, parts: dict[int, int]) -> None:
        members: dict[int, list[int]] = defaultdict(list)
        for step, first in parts.items():
            members[first].append(step)
        for steps in sorted(members.values(), key=max):
            launches = [self.schedule[step] for step in steps]
            touched = {step: {operand.ref.root for operand in self.schedule[step].operands} for step in steps}
            written = dict.fromkeys(ref.root for launch in launches for ref in launch.writes)
            made = [self.number[root] for root in written if root in self.number]
            if not made:
                continue
            reads = [number for root in dict.fromkeys(ref.root for launch in launches for ref in launch.reads)
                     if (number := self.number.get(root, -1)) >= 0 and number not in made]  # fmt: skip
            inside = [root for root in written if root in self.lives and root not in self.number]
            found = []
            for step in steps:
                size = sum(
                    self.lives[root].size for root in inside
                    if any(root in touched[other] for other in steps if other <= step) and any(root in touched[other] for other in steps if other >= step)
                )  # fmt: skip
                begun = {self.number[ref.root] for other in steps if other <= step for ref in self.schedule[other].writes if ref.root in self.number}
                later = {self.number[ref.root] for other in steps if other >= step for ref in self.schedule[other].reads if ref.root in self.number}
                after = {self.number[ref.root] for other in steps if other > step for ref in self.schedule[other].reads if ref.root in self.number}
                sources = tuple(self.number[root] for root in self.sources(step) if self.number.get(root, -1) in reads and self.number[root] not in after)
                found.append(Step(size, frozenset(begun), frozenset(later - set(made)), sources))
            until = 0 if any(root in self.unmade for root in written) else min(map(self._until, steps))
            self.groups.append(Group(launches[-1].layer, steps, sum(self.seconds[step] for step in steps), reads, made, found, until))
            for number in made:
                self.maker[number] = len(self.groups) - 1

    def _until(self, step: int) -> int:
        """The step from which a launch cannot run again; 0: it never can."""
        launch = self.schedule[step]
        if isinstance(launch, HOST) or launch.kernel.can.side_effect or any(ref.persistent for ref in launch.writes):
            return 0
        end = len(self.schedule)
        for ref in launch.reads:
            if ref.persistent:
                for other in self.writes[ref.root]:
                    if other > step and any(ref.overlaps(written) for written in self.schedule[other].writes):
                        end = min(end, other)
        return 0 if end < self.forward else end

    def _make_stages(self) -> None:
        begin, last = self.forward, dict[int, int]()
        for step in range(self.forward, len(self.schedule)):
            found = {self.number[ref.root] for ref in self.schedule[step].reads if ref.root in self.number}
            if found - last.keys() and step > begin:
                self.stages.append(Stage(begin, step, last))
                begin, last = step, {}
            last.update(dict.fromkeys(found, step))
        self.stages.append(Stage(begin, len(self.schedule), last))


Terms = dict[int, float]  # variable -> factor


@dataclass
class Solution:
    """`seconds`: of the best choice found, infinite without one. `bound`: proven; no choice takes less. `took`: seconds of the solver.

    `held`: (stage, value) on the device when the stage begins. `repeated`: (stage, group) that runs again before it. `copied`: values on the host meanwhile.
    """

    seconds: float
    bound: float
    took: float
    held: set[tuple[int, int]] = field(default_factory=set)
    repeated: set[tuple[int, int]] = field(default_factory=set)
    copied: set[int] = field(default_factory=set)

    def text(self, net: Net) -> str:
        """The launches that run again and the copies, for people."""
        again = [f"{net.groups[index].name} before {net.schedule[net.stages[t].begin].layer}" for t, index in sorted(self.repeated)]
        copies = [net.values[number].name for number in sorted(self.copied)]
        return f"repeats {', '.join(again) or 'nothing'}; copies {', '.join(copies) or 'nothing'}"


def realised(net: Net, solution: Solution) -> tuple[Schedule, dict[Ref, Ref]]:
    """The schedule with the launches that run again, on Refs of its own, and these Refs by the recorded ones. Copies are left to the caller."""
    own = {root: Ref(root.name, root.shape, root.role, root.dtype, slots=root.slots, layout=root.layout) for root in net.lives}
    begins = {stage.begin: t for t, stage in enumerate(net.stages)}
    current: dict[Ref, Ref] = dict(own)
    result: Schedule = []
    for step, launch in enumerate(net.schedule):
        if (t := begins.get(step, -1)) >= 0:
            for _, index in sorted(each for each in solution.repeated if each[0] == t):
                group = net.groups[index]
                written = dict.fromkeys(ref.root for each in group.launches for ref in net.schedule[each].writes)
                fresh = {root: Ref(f"{root.name} again", root.shape, root.role, root.dtype, layout=root.layout) for root in written}
                for each in group.launches:
                    result.append(replace(net.schedule[each].moved({**current, **fresh}), phase="backward", recomputed=True))
                current.update({root: fresh[root] for root in written if root in net.number and (t, net.number[root]) not in solution.held})
        result.append(launch.moved(current))
    return result, own


class Program:
    """The program of a net within `limit` bytes of recycled memory. Its units are milliseconds and MiB. `link`: values may move to the host and back.

    `exact`: a value takes all its bytes while it is copied. Otherwise it takes those that are on the device, which is a relaxation, and much easier to solve.
    `copied`: values that may be copied; None: all.
    """

    def __init__(self, net: Net, limit: int, link: bool = False, exact: bool = True, copied: Collection[int] | None = None) -> None:
        self.net, self.limit, self.link, self.exact, self.copied = net, limit, link, exact, copied
        self.cost: list[float] = []
        self.integer: list[bool] = []
        self.upper: list[float] = []
        self.rows: list[tuple[Terms, float]] = []  # the sum of the terms is at most the number
        self.memory: dict[frozenset[tuple[int, float]], float] = {}  # terms in MiB -> the most fixed MiB beside them
        self.base = sum(net.seconds)
        self._eithers: dict[tuple[int, int], int] = {}
        self._variables()
        self._order()
        if link:
            self._copies()
        self._forward_rows()
        for stage in range(len(net.stages)):
            self._between_rows(stage)
            self._stage_rows(stage)
        for terms, fixed in self.memory.items():
            self.rows.append((dict(terms), limit / MIB - fixed))

    def variable(self, cost: float = 0.0, integer: bool = True, upper: float = 1.0) -> int:
        self.cost.append(cost)
        self.integer.append(integer)
        self.upper.append(upper)
        return len(self.cost) - 1

    def at_most(self, terms: Terms, number: float) -> None:
        self.rows.append((terms, number))

    def _variables(self) -> None:
        net = self.net
        stages = range(len(net.stages))
        need = {number: max((t for t in stages if number in net.stages[t].last), default=-1) for number in range(len(net.values))}
        self.again: list[list[int]] = [[] for _ in net.groups]  # stages before which a group may run again
        for index in reversed(range(len(net.groups))):
            group = net.groups[index]
            latest = max(need[number] for number in group.writes)
            self.again[index] = [t for t in stages if t <= latest and net.stages[t].begin < group.until]
            for number in group.reads:
                need[number] = max(need[number], max(self.again[index], default=-1))
        self.need = need
        self.S = {(t, number): self.variable() for t in stages for number in need if t <= need[number]}
        self.R = {(t, index): self.variable(1e3 * net.groups[index].seconds) for index in range(len(net.groups)) for t in self.again[index]}
        self.F: dict[tuple[int, int], int] = {}  # a fetch arrives before stage t
        self.H: dict[int, int] = {}  # a value is copied to the host
        self.D: dict[tuple[int, int], int] = {}  # it is still on the device in segment s, since its copy is not complete
        self.Q: dict[tuple[int, int, bool], int] = {}  # it comes back meanwhile: (stage, value, in the launches of the stage)
        if self.link:
            for number, latest in need.items():
                if latest >= 0 and (self.copied is None or number in self.copied):
                    self.H[number] = self.variable(1e3 * beside_seconds(net.values[number].nbytes, net.rates))
                    self.F.update({(t, number): self.variable() for t in range(latest + 1)})
        self.users: dict[int, list[int]] = defaultdict(list)
        for index, group in enumerate(net.groups):
            for number in group.reads:
                self.users[number].append(index)

    def there(self, stage: int, number: int) -> Terms:
        """The ways in which a value is there before a stage without a launch."""
        return {table[stage, number]: 1.0 for table in (self.S, self.F) if (stage, number) in table}

    def _order(self) -> None:
        """A value is there if it was there before, is computed again or is fetched; a launch needs its operands."""
        for (t, number), variable in self.S.items():
            if t:
                if number in self.net.stages[t - 1].last:
                    continue  # it was read in the stage before
                self.at_most({variable: 1.0, **self._ways(t - 1, number, -1.0)}, 0.0)
        for t, stage in enumerate(self.net.stages):
            for number in stage.last:
                self.at_most(self._ways(t, number, -1.0), -1.0)
        for (t, index), variable in self.R.items():
            for number in self.net.groups[index].reads:
                self.at_most({variable: 1.0, **self._ways(t, number, -1.0)}, 0.0)

    def _ways(self, t: int, number: int, factor: float) -> Terms:
        found = dict.fromkeys(self.there(t, number), factor)
        if (t, index := self.net.maker.get(number, -1)) in self.R:
            found[self.R[t, index]] = factor
        return found

    # Memory

    def _row(self, terms: Iterable[tuple[int, float]], fixed: float) -> None:
        total: Terms = defaultdict(float)
        for variable, factor in terms:
            total[variable] += factor
        key = frozenset(total.items())
        self.memory[key] = max(self.memory.get(key, 0.0), fixed / MIB)

    def _shared(self, sources: Sequence[int], alive: Sequence[Terms], running: int | None) -> Terms:
        """The number of sources that live beside the output of a launch that takes the memory of one of them, if one dies. `running`: if it runs."""
        if len(sources) == 1:
            return alive[0]
        both = self.variable(integer=False, upper=float(len(sources)))
        total: Terms = {both: -1.0}
        for terms in alive:
            for variable, factor in terms.items():
                total[variable] = total.get(variable, 0.0) + factor
        self.at_most(total, 0.0)
        self.at_most({both: -1.0} if running is None else {running: len(sources) - 1.0, both: -1.0}, 1.0 - len(sources) if running is None else 0.0)
        return {both: 1.0}

    def _forward_rows(self) -> None:
        net = self.net
        for step in range(net.forward):
            terms: list[tuple[int, float]] = []
            fixed = net.fixed[step]
            segment = self.segment[step] if self.link else 0
            for number, size in enumerate(net.sizes):
                if net.born[number] <= step <= net.used[number]:
                    fixed += size
                elif net.used[number] < step:
                    kept = self.S.get((0, number)), self.D.get((segment, number))
                    terms += [(variable, size / MIB) for variable in kept if variable is not None]
            sources = net.sources(step)
            if any(net.lives[root].last == step for root in sources if root not in net.number):
                fixed -= net.lives[sources[0]].size
            elif dying := [net.number[root] for root in sources if root in net.number and net.used[net.number[root]] == step]:
                size = net.sizes[dying[0]]
                fixed -= size * len(dying)
                alive = [{variable: 1.0 for variable in (self.S.get((0, number)), self.H.get(number)) if variable is not None} for number in dying]
                terms += [(variable, factor * size / MIB) for variable, factor in self._shared(dying, alive, None).items()]
            self._row(terms, fixed)

    def _later(self, t: int, number: int) -> list[int] | None:
        """Variables of which one is 1 if the value is needed after all groups before stage t have run; None: it is."""
        if number in self.net.stages[t].last:
            return None
        return [self.S[t + 1, number]] if (t + 1, number) in self.S else []

    def _between_rows(self, t: int) -> None:
        """Memory while groups run before stage t."""
        net = self.net
        running = [index for index in range(len(net.groups)) if (t, index) in self.R]
        if not running:
            return
        fixed = net.between[net.stages[t].begin]
        # alive[v]: pairs (group, variable): the value is needed by this group or a later one, or after them all. Variable None: always.
        needed: dict[int, list[tuple[int, int | None]]] = {}
        for number in range(len(net.values)):
            if t > self.need[number] and self._later(t, number) is not None:
                continue
            later = self._later(t, number)
            chain: list[tuple[int, int | None]] = []
            if later is None:
                needed[number] = [(len(net.groups), None)]
                continue
            current = later[0] if later else None
            if current is not None:
                chain.append((len(net.groups), current))
            for index in sorted((index for index in self.users[number] if (t, index) in self.R), reverse=True):
                if current is None:
                    current = self.R[t, index]
                else:
                    merged = self.variable(integer=False)
                    self.at_most({current: 1.0, merged: -1.0}, 0.0)
                    self.at_most({self.R[t, index]: 1.0, merged: -1.0}, 0.0)
                    current = merged
                chain.append((index, current))
            needed[number] = chain

        def alive(number: int, index: int) -> Terms | None:
            """Terms that are 1 if group `index` or a later one, or what follows, needs the value; None: always."""
            for user, variable in reversed(needed.get(number, [])):
                if user >= index:
                    return None if variable is None else {variable: 1.0}
            return {}

        for index in running:
            group, run = net.groups[index], self.R[t, index]
            before: list[tuple[int, float]] = []
            always = 0
            mine = {*group.reads, *group.writes}
            for number, size in enumerate(net.sizes):
                if number in mine:
                    continue
                maker = net.maker.get(number, -1)
                terms = alive(number, index) if maker < index or (t, maker) not in self.R else self.there(t, number)
                if terms is None:
                    always += size
                else:
                    before += [(variable, factor * size / MIB) for variable, factor in terms.items()]
                before += [(variable, size / MIB) for variable in self._moving(t, number)]
            for step in group.steps:
                now, beside = [*before, (run, step.inside / MIB)], always
                for number in mine:
                    size = net.sizes[number]
                    if number in group.writes:
                        after = alive(number, index + 1)
                        terms = self.there(t, number) if number not in step.made else None if after is None else self._either(run, after)
                    elif number in step.sources:
                        continue
                    else:
                        terms = alive(number, index if number in step.pending else index + 1)
                    if terms is None:
                        beside += size
                    else:
                        now += [(variable, factor * size / MIB) for variable, factor in terms.items()]
                    now += [(variable, size / MIB) for variable in self._moving(t, number)]
                if step.sources:
                    after_all = [alive(number, index + 1) for number in step.sources]
                    if None in after_all:  # one of them lives on; another one may die
                        terms_all = [terms if terms is not None else {} for terms in after_all]
                        beside += sum(net.sizes[number] for number, terms in zip(step.sources, after_all) if terms is None)
                        for number, terms in zip(step.sources, terms_all):
                            now += [(variable, factor * net.sizes[number] / MIB) for variable, factor in terms.items()]
                    else:
                        shared = self._shared(step.sources, [terms or {} for terms in after_all], run)
                        now += [(variable, factor * net.sizes[step.sources[0]] / MIB) for variable, factor in shared.items()]
                self._row(now, fixed + beside)

    def _moving(self, t: int, number: int) -> list[int]:
        """Variables of copies of a value that are in progress before stage t."""
        keys = ((self.D, (self.stage_segment(t) - 1, number)), (self.Q, (t, number, False))) if self.link else ()
        return [table[key] for table, key in keys if key in table]  # type: ignore[index]

    def _either(self, run: int, after: Terms) -> Terms:
        """A term that is 1 if the group runs or the value is needed later."""
        if not after:
            return {run: 1.0}
        key = run, next(iter(after))
        if key not in self._eithers:
            merged = self.variable(integer=False)
            self.at_most({run: 1.0, merged: -1.0}, 0.0)
            self.at_most({**after, merged: -1.0}, 0.0)
            self._eithers[key] = merged
        return {self._eithers[key]: 1.0}

    def _stage_rows(self, t: int) -> None:
        net, stage = self.net, self.net.stages[t]
        for step in range(stage.begin, stage.end):
            fixed = net.fixed[step]
            terms: list[tuple[int, float]] = []
            sources = net.sources(step)
            dying = [net.number[root] for root in sources if root in net.number and stage.last.get(net.number[root]) == step]
            if any(net.lives[root].last == step for root in sources if root not in net.number):
                fixed -= net.lives[sources[0]].size
                dying = []
            for number, size in enumerate(net.sizes):
                if (t, number, True) in self.Q:
                    terms.append((self.Q[t, number, True], size / MIB))
                if number in dying:
                    continue
                if stage.last.get(number, -1) >= step:
                    fixed += size
                elif (t + 1, number) in self.S:
                    terms.append((self.S[t + 1, number], size / MIB))
                if self.link and (self.stage_segment(t), number) in self.D:
                    terms.append((self.D[self.stage_segment(t), number], size / MIB))
            if dying:
                alive = [{self.S[t + 1, number]: 1.0} if (t + 1, number) in self.S else {} for number in dying]
                terms += [(variable, factor * net.sizes[dying[0]] / MIB) for variable, factor in self._shared(dying, alive, None).items()]
            self._row(terms, fixed)

    # Copies

    def stage_segment(self, t: int) -> int:
        """The segment of the launches of stage t, and of the groups that run again before stage t + 1."""
        return self.forward_segments + t

    def _copies(self) -> None:
        net = self.net
        ends = sorted({net.used[number] for number in self.H} | {net.forward - 1})
        self.forward_segments = len(ends)
        self.segment = [next(index for index, end in enumerate(ends) if step <= end) for step in range(net.forward)]
        count = self.forward_segments + len(net.stages)
        spent = [0.0] * count
        for step in range(net.forward):
            spent[self.segment[step]] += 1e3 * net.seconds[step]
        for t, stage in enumerate(net.stages):
            spent[self.stage_segment(t)] += 1e3 * sum(net.seconds[stage.begin : stage.end])
        repeats: dict[int, Terms] = defaultdict(dict)
        for (t, index), variable in self.R.items():
            repeats[self.stage_segment(t) - 1][variable] = 1e3 * net.groups[index].seconds
        waits = [self.variable(1.0, integer=False, upper=np.inf) for _ in range(count)]
        to_host, from_host = (rate / 1e3 / MIB for rate in (net.rates.to_host, net.rates.from_host))  # MiB per millisecond
        stores: dict[int, Terms] = defaultdict(dict)
        fetches: dict[int, Terms] = defaultdict(dict)
        first = self.forward_segments - 1  # the first segment with fetches
        for number, held in self.H.items():
            size = net.sizes[number] / MIB
            after, latest = self.segment[net.used[number]] + 1, self.need[number]
            moved = {s: self.variable(integer=False) for s in range(after, self.stage_segment(latest))}
            back = {s: self.variable(integer=False) for s in range(first, self.stage_segment(latest))}
            for s, variable in moved.items():
                stores[s][variable] = size
                self.D[s, number] = self.variable(integer=self.exact)
                # still there: at least what is not copied
                self.at_most({held: 1.0, self.D[s, number]: -1.0, **{moved[other]: -1.0 for other in moved if other <= s}}, 0.0)
            self.at_most({**dict.fromkeys(moved.values(), 1.0), held: -1.0}, 0.0)
            if (0, number) in self.S:
                self.at_most({self.S[0, number]: 1.0, held: 1.0}, 1.0)
            self.at_most({**{self.F[t, number]: 1.0 for t in range(latest + 1)}, held: -1.0}, 0.0)
            for s, variable in back.items():
                fetches[s][variable] = size
                sofar = {back[other]: 1.0 for other in back if other <= s}
                self.at_most({**sofar, **{moved[other]: -1.0 for other in moved if other <= s}}, 0.0)  # only what has been copied comes back
                t = s - self.forward_segments + 1  # the stage before which the segment ends
                self.at_most({**{self.F[other, number]: 1.0 for other in range(t + 1)}, **dict.fromkeys(sofar, -1.0)}, 0.0)
            for t in range(latest + 1):
                earlier = {back[s]: 1.0 for s in back if s <= self.stage_segment(t) - 1}
                for inside, terms in ((True, earlier), (False, {back[s]: 1.0 for s in back if s <= self.stage_segment(t) - 2})):
                    if terms:
                        variable = self.Q[t, number, inside] = self.variable(integer=self.exact)
                        self.at_most({**terms, variable: -1.0, **{self.F[other, number]: -1.0 for other in range(t + 1)}}, 0.0)
        for s in range(count):
            for moved_terms, rate in ((stores[s], to_host), (fetches[s], from_host)):
                if moved_terms:
                    self.at_most({**moved_terms, waits[s]: -rate, **{variable: -rate * each for variable, each in repeats[s].items()}}, rate * spent[s])

    def solve(self, seconds: float, gap: float = 0.002, relaxed: bool = False) -> Solution:
        """Solve within `seconds`, up to a relative `gap`. `relaxed`: the linear relaxation, whose optimum is a lower bound."""
        begun = time.perf_counter()
        rows, columns, factors = [], [], []
        for row, (terms, _) in enumerate(self.rows):
            rows += [row] * len(terms)
            columns += terms.keys()
            factors += terms.values()
        matrix = csr_array((factors, (rows, columns)), shape=(len(self.rows), len(self.cost)))
        found = milp(
            self.cost, constraints=LinearConstraint(matrix, ub=np.array([number for _, number in self.rows])), bounds=Bounds(0.0, np.array(self.upper)),
            integrality=np.array(self.integer, int) * (not relaxed), options={"time_limit": seconds, "mip_rel_gap": gap},
        )  # fmt: skip
        took = time.perf_counter() - begun
        bound = found.mip_dual_bound if not relaxed and found.mip_dual_bound is not None else found.fun if found.fun is not None else None
        if found.status == 2:  # there is no choice within the limit
            return Solution(np.inf, np.inf, took)
        base = 1e3 * self.base
        proven = (base + max(0.0, bound if bound is not None and np.isfinite(bound) else 0.0)) / 1e3
        if found.x is None:
            return Solution(np.inf, proven, took)
        on = found.x > 0.5
        return Solution(
            (base + found.fun) / 1e3, proven, took, {key for key, variable in self.S.items() if on[variable]},
            {key for key, variable in self.R.items() if on[variable]}, {number for number, variable in self.H.items() if on[variable]},
        )  # fmt: skip
