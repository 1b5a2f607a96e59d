"""`ocaffe tune`: measure the candidate kernels of each problem on a device. ocaffe/ir/tuned.py describes the tables."""
from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from ocaffe import proto
from ocaffe.cl.command_list import CommandList
from ocaffe.cl.session import Session
from ocaffe.errors import Error
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.graph.record import record
from ocaffe.ir.graph import Graph
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import FLOAT, Ref, Role, Shape
from ocaffe.ir.tuned import Problem, Tuned
from ocaffe.kernels.convolution import convolution
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.matmul.gemm import gemm
from ocaffe.memory.plan import plan
from ocaffe.passes.bf16 import lower_to_bf16

T = TypeVar("T")
MAX_CANDIDATES = 10  # maximum number of candidates to measure, in the order of the estimate
ALIKE = 2  # maximum number of candidates that differ only after the slash (the split of the depth)
ROUNDS = 5  # candidates take turns in each round; the minimum time of each counts
HOPELESS = 1.7  # a candidate slower than the best time so far by this factor is not measured again
MAX_TIME_RATIO = 0.95  # of the default's time: a smaller gain is noise
LAUNCH = 4e-6  # overhead of a launch in seconds
AHEAD = 24  # number of problems whose programs are built together
COMPILERS = 2  # 1 / COMPILERS of the free memory is for the contexts of compilers, which end before anything is measured
NOISE = 1 << 22  # number of random values to fill operands with
SWEEP = 64 << 20  # bytes that are written between two runs, so that caches are cold, as after other layers


class Survey(Tuned):
    """Records the problems of a recording. Chooses as `under` does, except for the choices in `forced`."""

    def __init__(self, under: Tuned, forced: dict[str, str] | None = None) -> None:
        super().__init__({**under.choices, **(forced or {})}, {**under.places, **dict.fromkeys(forced or {}, "`ocaffe tune`")})
        self.asked: Counter[Problem] = Counter()
        self.names: dict[Problem, list[str]] = {}

    def choose(self, problem: Problem, candidates: Sequence[T]) -> T:
        self.asked[problem] += 1
        self.names[problem] = [str(candidate) for candidate in candidates]
        return super().choose(problem, candidates)


Tensor = Callable[..., Ref]  # name, shape -> an operand that is read


def _forward(rec: Recorder, g: ConvGeometry, tensor: Tensor) -> None:
    convolution.forward(rec, g, tensor("x", g.input_shape), tensor("w", g.weight_shape), None, _made(g.output_shape))


def _backward_data(rec: Recorder, g: ConvGeometry, tensor: Tensor) -> None:
    convolution.backward_data(rec, g, tensor("dy", g.output_shape), tensor("w", g.weight_shape), _made(g.input_shape))


def _backward_filter(rec: Recorder, g: ConvGeometry, tensor: Tensor) -> None:
    convolution.backward_filter(rec, g, tensor("x", g.input_shape), tensor("dy", g.output_shape), _made(g.weight_shape))


def _product(rec: Recorder, shape: tuple[int, ...], tensor: Tensor) -> None:
    m, n, k, trans_a, trans_b = shape
    a, b = tensor("a", (k, m) if trans_a else (m, k)), tensor("b", (n, k) if trans_b else (k, n))
    gemm(rec, a, b, _made((m, n)), trans_a=bool(trans_a), trans_b=bool(trans_b))


def _made(shape: Shape) -> Ref:
    return Ref("result", shape, Role.ACTIVATION)


# Functions that record a problem, by its operation.
OPERATIONS: dict[str, Callable[[Recorder, Any, Tensor], None]] = {
    "forward": _forward, "backward_data": _backward_data, "backward_filter": _backward_filter, "gemm": _product,
}  # fmt: skip


def problems(target: Target, graphs: Iterable[Graph]) -> Counter[Problem]:
    """Return the problems of these nets with their number of occurrences. TRAIN nets include backward."""
    survey = Survey(target.tuned)
    for graph in graphs:
        record(graph, ParameterGroup(graph.params), replace(target, tuned=survey), NetOptions(backward=graph.phase == proto.TRAIN))
    return survey.asked


def flops(problem: Problem) -> int:
    """Return the floating point operations of a problem."""
    if isinstance(problem.shape, ConvGeometry):
        return problem.shape.flops
    m, n, k, *_ = problem.shape
    return int(2 * m * n * k)


@dataclass(frozen=True)
class Found:
    """The result for a problem. `default` is the choice without the user's table."""

    problem: Problem
    default: str
    best: str
    seconds: dict[str, float]

    @property
    def gain(self) -> float:
        """Share of the default's time that the best candidate saves."""
        return 1 - self.seconds[self.best] / (self.seconds[self.default] or 1.0)


@dataclass
class Trial:
    """A candidate, recorded separately. `within`: the other problems that its recording contains."""

    name: str
    commands: CommandList
    within: set[Problem]


@dataclass
class Trials:
    """All candidates for a problem, the default first, and the operands that they read."""

    candidates: list[Trial]
    tensors: dict[str, Ref]


class Tuner:
    """Measures problems on one session. `base` has the choices without the user's table.

    `found` has the results; `refused` has the problems for which the device has too little memory.
    """

    def __init__(self, session: Session, base: Tuned) -> None:
        self.session, self.base = session, base
        self.found: dict[Problem, Found] = {}
        self.refused: dict[Problem, Error] = {}
        device, cl = session.device, session.device.cl
        values = np.random.default_rng(0).standard_normal(NOISE).astype(np.float32)
        self._noise = cl.Buffer(device.context, cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR, hostbuf=values)
        halves = np.tile(values.view(np.uint16)[1::2], 2)  # the upper halves are bfloat16 values
        self._halves = cl.Buffer(device.context, cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR, hostbuf=halves)
        self._swept = cl.Buffer(device.context, cl.mem_flags.READ_WRITE, SWEEP)

    @property
    def choices(self) -> dict[str, str]:
        """The candidates that are better than the default."""
        return {str(problem): found.best for problem, found in self.found.items() if found.best != found.default}

    def tune(self, asked: Counter[Problem], seconds: float | None = None) -> Iterator[Found]:
        """Measure the problems, longest first. No new problem is started after `seconds` seconds."""
        end = None if seconds is None else time.perf_counter() + seconds
        order = sorted(asked, key=lambda problem: (-asked[problem] * flops(problem), str(problem)))
        for first in range(0, len(order), AHEAD):
            part = {problem: self._trials(problem) for problem in order[first : first + AHEAD]}
            keys = (key for trials in part.values() for trial in trials.candidates for key in trial.commands.keys)
            self.session.programs.build_all(keys, self.session.device.target.free_memory // COMPILERS)
            for problem, trials in part.items():
                if end is not None and time.perf_counter() > end:
                    return
                before = set(self.found)
                try:
                    self._tune(problem, trials)
                except Error as error:
                    self.refused[problem] = error
                yield from (self.found[each] for each in self.found if each not in before)

    def _tune(self, problem: Problem, trials: Trials) -> None:
        """Measure a problem, after the problems within its candidates, such as the product in Winograd's algorithm."""
        if problem in self.found:
            return
        within = {each for trial in trials.candidates for each in trial.within} - self.found.keys()
        for each in within:
            self._tune(each, self._trials(each))
        if within:
            trials = self._trials(problem)
        default = trials.candidates[0].name
        times = self._measure(trials) if len(trials.candidates) > 1 else {default: 0.0}
        best = min(times, key=lambda name: times[name])
        self.found[problem] = Found(problem, default, best if times[best] < MAX_TIME_RATIO * times[default] else default, times)

    def _record(self, problem: Problem, tensors: dict[str, Ref], forced: dict[str, str]) -> tuple[Recorder, Survey]:
        survey = Survey(self.base, {**self.choices, **forced})
        # Kernels for channels in blocks choose their tiles themselves (kernels/convolution/blocks_gpu/conv_blocks.py).
        rec = Recorder(replace(self.session.device.target, tuned=survey, wgmma=False), train=True)
        rec.enter("tune", "forward")
        OPERATIONS[problem.operation](rec, problem.shape, lambda name, shape: tensors.setdefault(name, Ref(name, shape, Role.INPUT)))
        rec.launches = lower_to_bf16(rec.launches, rec.target, tensors.values())  # as in a net: with half the bytes, other tiles are the fastest
        return rec, survey

    def _names(self, problem: Problem, tensors: dict[str, Ref]) -> list[str]:
        """Return the candidates to measure, the default first."""
        names = self._record(problem, tensors, {})[1].names[problem]
        result = [self.base.choices.get(str(problem), names[0])]
        alike: Counter[str] = Counter()
        for name in names:
            alike[name.split(" /")[0]] += 1
            if name not in result and alike[name.split(" /")[0]] <= ALIKE and len(result) < MAX_CANDIDATES:
                result.append(name)
        return result

    def _trials(self, problem: Problem) -> Trials:
        tensors: dict[str, Ref] = {}
        found = []
        for name in self._names(problem, tensors):
            rec, survey = self._record(problem, tensors, {str(problem): name})
            placed = plan(rec.launches, alignment=self.session.device.target.alignment)
            found.append(Trial(name, CommandList(self.session, rec.launches, placed, rec.step), survey.names.keys() - {problem}))
        return Trials(found, tensors)

    def _measure(self, trials: Trials) -> dict[str, float]:
        """Return the seconds of each candidate, the minimum over all rounds."""
        times: dict[str, float] = {}
        try:
            self.session.bind([trial.commands for trial in trials.candidates])
            for ref in trials.tensors.values():
                self._fill(ref)
            for trial in trials.candidates:
                trial.commands.run()  # warms up
            with self.session.timed() as timeline:
                for number in range(ROUNDS):
                    limit = HOPELESS * min(times.values(), default=0)
                    for trial in trials.candidates:
                        if not number or times[trial.name] <= limit:
                            self.session.device.cl.enqueue_fill_buffer(self.session.device.queue, self._swept, np.uint32(number), 0, SWEEP)
                            trial.commands.run()
                            self.session.device.queue.finish()
                            taken = timeline.collect() + LAUNCH * len(trial.commands.schedule)
                            times[trial.name] = min(taken, times.get(trial.name, taken))
        finally:
            for trial in trials.candidates:
                self.session.release(trial.commands)
        return times

    def _fill(self, ref: Ref) -> None:
        """Fill an operand with random values. Zeros would take less power, and values that are not finite take other paths."""
        cl, queue = self.session.device.cl, self.session.device.queue
        buffer = self.session.buffers(ref)[0]
        noise = self._noise if ref.dtype == FLOAT else self._halves
        for begin in range(0, ref.nbytes, 4 * NOISE):
            cl.enqueue_copy(queue, buffer, noise, dst_offset=begin, byte_count=min(4 * NOISE, ref.nbytes - begin))
