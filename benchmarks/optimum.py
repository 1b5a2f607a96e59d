#!/usr/bin/env python3
"""The plans of ocaffe under memory limits, compared with the optimum of an integer program: predicted times, without a device.

    benchmarks/optimum.py [--seconds N] [--link GB/S] [--shares S,...] [--kinds gpu,link,cpu] [--cuts N] [--show] [--json FILE] [NET:BATCH ...]
    benchmarks/optimum.py --again FILE
    benchmarks/optimum.py --table FILE

A limit is the fixed bytes, and a share of the recycled memory that the net takes if all values are kept. In the rows of a GPU with a link, plan and program
may copy to the host. Both sides have the cost model of `Rates.seconds` and `predict`. The speeds are those that ocaffe assumes of an H100, or of a CPU with
two cores. `--again` plans anew the rows of a file, whose programs stay as they are: their optima do not depend on ocaffe's search.

The space of the program is in choice_program.py. The program is solved for the whole batch, and for each split into 2 to MOST microbatches of
ocaffe/graph/microbatch.py. A split is left out if its launches alone, or its linear relaxation, take longer than the best plan so far.

`lp_ms`: the optimum of the linear relaxations. `bound_ms`: the proven lower bound. `best_ms`: the best choice that the program found. `plan_ms`: ocaffe's plan.
`ratio`: plan / bound. `made_ms`: the time of the program's choice as a schedule; with copies it may exceed the limit by `made_over` bytes.
"""
from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from choice_program import ALIGNMENT, Net, Program, Solution, realised  # noqa: E402

from ocaffe import log, proto  # noqa: E402
from ocaffe.cl.rates import assumed  # noqa: E402
from ocaffe.compiler.compile import CompiledNet, compile_net  # noqa: E402
from ocaffe.compiler.network import phase_net  # noqa: E402
from ocaffe.data.databases.assumed import assumed_data  # noqa: E402
from ocaffe.errors import NoRoom  # noqa: E402
from ocaffe.formats.batch import batched  # noqa: E402
from ocaffe.formats.text import read_net  # noqa: E402
from ocaffe.graph.build import build  # noqa: E402
from ocaffe.graph.microbatch import Microbatch, batch_of, cuts  # noqa: E402
from ocaffe.graph.options import NetOptions  # noqa: E402
from ocaffe.graph.parameters import ParameterGroup  # noqa: E402
from ocaffe.graph.record import record  # noqa: E402
from ocaffe.ir.launch import Schedule  # noqa: E402
from ocaffe.ir.rates import GENERIC_CPU, Rates  # noqa: E402
from ocaffe.ir.target import Target  # noqa: E402
from ocaffe.memory.plan import lifetimes, lower_bound  # noqa: E402
from ocaffe.memory.predict import predict  # noqa: E402
from ocaffe.memory.report import fixed_bytes  # noqa: E402
from ocaffe.passes.fit import Fit  # noqa: E402
from ocaffe.passes.in_place import reuse_dying_inputs  # noqa: E402
from ocaffe.passes.offload import offload  # noqa: E402
from ocaffe.passes.optimise import Fact, optimise, pipeline  # noqa: E402
from ocaffe.solver.update import Updater  # noqa: E402
from ocaffe.support.switches import Switches  # noqa: E402

MIB = 1 << 20
NETS = ("lenet:64", "alexnet:64", "vgg16:64", "resnet18:64", "unet:1")
IMAGES = {"lenet": (1, 28, 28), "alexnet": (3, 256, 256), "unet": (1, 512, 512)}
SHARES = {"unet": "0.85,0.8,0.6"}  # other nets: USUAL
USUAL = "0.85,0.65,0.5"
KINDS = {"gpu": "H100", "link": "H100, copies", "cpu": "CPU"}
MOST = 32  # microbatches
LEAST, PARTS = MIB, 200  # values below these bytes, and below this part of the recycled memory, are no choice: ocaffe leaves the former alone
CPU = Target(runtime="intel", vector_width=16, max_allocation=1 << 40)
GPU = Target(
    kind="gpu", name="H100", runtime="nvidia", compute_units=132, unified_memory=False, global_memory=80 << 30, max_allocation=1 << 40, free_memory=80 << 30,
    local_memory=48 << 10, device_fence="PTX", tensor_cores=True,
)  # fmt: skip


@dataclass
class Case:
    """A net on a target. `rates` predict times on both sides."""

    graph: Any
    group: ParameterGroup
    target: Target
    rates: Rates
    update: Updater
    cuts: int | None = None  # None: all
    schedules: dict[Microbatch | None, list[tuple[float, Schedule]]] = field(default_factory=dict)

    def plan(self, limit: int | None, link: bool = False) -> CompiledNet:
        """Return ocaffe's plan; without a limit, one that keeps all values. Raises NoRoom."""
        target = replace(self.target, rates=self.rates if link else replace(self.rates, to_host=0.0, from_host=0.0))
        options = NetOptions(backward=True, recompute="none" if limit is None else "auto", limit=limit)
        return compile_net(self.graph, self.group, target, options, Switches.read(), self.update)

    def nets(self, least: int, microbatch: Microbatch | None = None, below: float = math.inf) -> tuple[list[Net], float]:
        """Return the net after all passes that do not choose: with masks of ReLUs everywhere, and where ocaffe always has them.

        Without those whose launches take `below` seconds or longer. The number is the least time of these, or infinite.
        """
        if microbatch not in self.schedules:
            self.schedules[microbatch] = [self._schedule(microbatch, masks) for masks in (True, False)]
        found: list[Net] = []
        left = math.inf
        for seconds, schedule in self.schedules[microbatch]:
            if seconds >= below:
                left = min(left, seconds)
            elif not found or seconds != sum(found[0].seconds):
                found.append(Net(schedule, self.rates, least))
        return found, left

    def _schedule(self, microbatch: Microbatch | None, masks: bool) -> tuple[float, Schedule]:
        """Return the schedule that the program starts from, after the time of its launches. `masks`: all that are possible."""
        target = replace(self.target, rates=GENERIC_CPU)
        recording = record(self.graph, self.group, target, NetOptions(backward=True, limit=1 << 60, microbatch=microbatch), self.update)
        made = pipeline(target, limited=True, fit=Fit(1, target.rates) if masks else None)
        passes = [each for each in made if not each.ends & {Fact.FORWARD_ONCE, Fact.INPUTS_SURVIVE}]
        schedule, _ = optimise(recording.schedule, passes)
        return sum(map(self.rates.seconds, schedule)), schedule

    def splits(self) -> Iterator[list[Microbatch]]:
        """Yield for each cut its microbatches, fewest first."""
        for cut in cuts(self.graph, lambda name: False)[: self.cuts]:
            batch = batch_of(self.graph, cut)
            yield [Microbatch(cut, count) for count in range(2, min(batch, MOST) + 1) if batch % count == 0]


def case(net: str, batch: int, kind: str, link: float, data: Any) -> Case:
    """Return a net of the zoo. `kind`: a key of KINDS. `link`: bytes/s of a GPU's link."""
    target = CPU if kind == "cpu" else GPU
    rates = assumed(target) if kind == "cpu" else replace(assumed(target), to_host=link, from_host=link)
    message = batched(read_net(str(ROOT / "zoo" / net / "train_val.prototxt")), batch)
    graph = build(phase_net(data.complete(message, IMAGES.get(net, (3, 224, 224))), proto.TRAIN), proto.TRAIN)
    group = ParameterGroup(graph.params)
    return Case(graph, group, target, rates, Updater(group, proto.SolverParameter(type="SGD", momentum=0.9)))


@dataclass
class Optimum:
    """`lp`, `bound`: lower bounds in seconds of all choices. `best`: the best choice found, of `net`, which has `microbatch`. `took`: seconds for all."""

    lp: float = math.inf
    bound: float = math.inf
    best: Solution = field(default_factory=lambda: Solution(math.inf, math.inf, 0.0))
    net: Net | None = None
    microbatch: Microbatch | None = None
    programs: int = 0
    took: float = 0.0


def optimum(given: Case, budget: int, least: int, link: bool, seconds: float, known: float) -> Optimum:
    """Solve for a budget in bytes of recycled memory. `known`: seconds of a plan that is at hand. Each program has `seconds` at most."""
    begun = time.perf_counter()
    found = Optimum()
    for split in ([None], *given.splits()):
        for microbatch in split:
            left = min(known, found.best.seconds)
            nets, without = given.nets(least, microbatch, math.inf if microbatch is None else left)
            found.bound = min(found.bound, without)
            for net in nets:
                _solve(found, net, microbatch, budget, link, seconds, left)
    found.took = time.perf_counter() - begun
    return found


def _solve(found: Optimum, net: Net, microbatch: Microbatch | None, budget: int, link: bool, seconds: float, left: float) -> None:
    """Solve one program and enter it in `found`, unless its relaxation takes `left` seconds or longer."""
    program = Program(net, budget, link, exact=False)
    found.programs += 1
    relaxed = program.solve(seconds, relaxed=True)
    found.lp = min(found.lp, relaxed.bound)
    if relaxed.bound == math.inf or (microbatch is not None and relaxed.bound >= left):
        found.bound = min(found.bound, relaxed.bound)
        return
    solved = program.solve(seconds)
    found.bound = min(found.bound, solved.bound)
    choices = [solved]
    if link:  # choices that hold: with whole buffers for these copies, and without copies
        choices = [Program(net, budget, link, copied=solved.copied).solve(seconds), Program(net, budget).solve(seconds)]
    for choice in choices:
        if choice.seconds < found.best.seconds:
            found.best, found.net, found.microbatch = choice, net, microbatch


def made(found: Optimum, budget: int) -> tuple[float, int]:
    """The program's choice as a schedule: its predicted seconds, and its bytes beyond the budget (0: within it)."""
    net = found.net
    assert net is not None
    schedule, own = realised(net, found.best)
    schedule = offload(schedule, {own[net.values[number]] for number in found.best.copied}, net.rates, budget, ALIGNMENT)
    schedule = reuse_dying_inputs(schedule)
    bound, _ = lower_bound(lifetimes(schedule, ALIGNMENT), len(schedule))
    return predict(schedule, net.rates).seconds, max(0, bound - budget)


def row(given: Case, keep: CompiledNet, share: float, link: bool, options: argparse.Namespace) -> dict[str, Any]:
    budget = int(share * keep.plan.total)
    result: dict[str, Any] = {"share": share}
    known = _plan(result, given, keep, link)
    found = optimum(given, budget, min(LEAST, keep.plan.total // PARTS), link, options.seconds, known)
    result["optimum_s"], result["programs"] = round(found.took, 1), found.programs
    for name, value in (("keep", keep.predicted(given.rates).seconds), ("lp", found.lp), ("bound", found.bound), ("best", found.best.seconds)):
        result[f"{name}_ms"] = _ms(value)
    if found.net is not None:
        seconds, over = made(found, budget)
        result["made_ms"], result["made_over"] = round(1e3 * seconds, 3), over
        result["choice"] = found.best.text(found.net)
    result["split"] = None if found.microbatch is None else f"{found.microbatch.count} up to {given.graph.nodes[found.microbatch.cut].name}"
    return _compared(result)


def _plan(result: dict[str, Any], given: Case, keep: CompiledNet, link: bool) -> float:
    """Enter ocaffe's plan for the row's share in `result`. Return its predicted seconds; infinite: it is refused."""
    fixed = fixed_bytes([keep.recording.schedule])
    limit = fixed + int(result["share"] * keep.plan.total)
    result["limit_mib"] = round(limit / MIB)
    begun = time.perf_counter()
    try:
        plan = given.plan(limit, link)
    except NoRoom:
        plan = None
    result["plan_s"] = round(time.perf_counter() - begun, 1)
    seconds = math.inf if plan is None else plan.predicted(given.rates).seconds
    result["plan_ms"] = _ms(seconds)
    if plan is not None:
        schedule = plan.recording.schedule
        result["plan_mib"] = round((plan.plan.total + fixed) / MIB)
        result["plan_split"] = plan.microbatch and f"{plan.microbatch.count} up to {given.graph.nodes[plan.microbatch.cut].name}"
        result["plan_repeats"] = list(dict.fromkeys(launch.layer for launch in schedule if launch.recomputed))
        result["plan_copies"] = [launch.operands[0].ref.name for launch in schedule if launch.kernel.name == "store begin"]
    return seconds


def _ms(seconds: float) -> float | None:
    return round(1e3 * seconds, 3) if seconds < math.inf else None


def _compared(result: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its ratio."""
    result.pop("ratio", None)
    if result["plan_ms"] is not None and result["bound_ms"] is not None:
        result["ratio"] = round(result["plan_ms"] / result["bound_ms"], 3)
    return result


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the rows as a table of docs/memory.md."""
    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.2f}"

    lines = ["| net, batch | target | limit, MiB | all kept, ms | relaxed, ms | bound, ms | found, ms | plan, ms | plan / bound | program, s | plan, s |",
             "|" + "---|" * 11]  # fmt: skip
    for each in rows:
        times = [number(each[f"{name}_ms"]) for name in ("keep", "lp", "bound", "best")]
        plan = number(each["plan_ms"]) or "refused"
        ratio = f"{each['ratio']:.3f}" if "ratio" in each else ""
        cells = [f"{each['net']} {each['batch']}", KINDS[each["kind"]], each["limit_mib"], *times, plan, ratio, each["optimum_s"], each["plan_s"]]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", default=NETS)
    parser.add_argument("--seconds", type=float, default=60, help="of the solver, for each program")
    parser.add_argument("--link", type=float, default=50, help="GB/s of the GPU in each direction")
    parser.add_argument("--shares", help="of the recycled memory, separated by commas")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--cuts", type=int, help="try the first cuts alone, in ocaffe's order")
    parser.add_argument("--show", action="store_true", help="print the choices too")
    parser.add_argument("--json")
    parser.add_argument("--again", help="plan the rows of such a file anew, and keep their programs")
    parser.add_argument("--table", help="print such a file as a table, and measure nothing")
    options = parser.parse_args()
    if options.table:
        print("\n".join(table(json.loads(pathlib.Path(options.table).read_text()))))
        return
    log.quiet(2)
    rows: list[dict[str, Any]] = []
    with assumed_data() as data:
        for found in _again(options, data) if options.again else _rows(options, data):
            rows.append(found)
            hidden = () if options.show else ("choice", "plan_repeats", "plan_copies")
            print(json.dumps({key: value for key, value in found.items() if key not in hidden}), flush=True)
            if options.json:
                pathlib.Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")


def _rows(options: argparse.Namespace, data: Any) -> Iterator[dict[str, Any]]:
    for each in options.nets:
        name, batch = each.split(":")
        for kind in options.kinds.split(","):
            given = case(name, int(batch), kind, 1e9 * options.link, data)
            given.cuts = options.cuts
            keep = given.plan(None)
            for share in (options.shares or SHARES.get(name, USUAL)).split(","):
                yield {"net": name, "batch": int(batch), "kind": kind, **row(given, keep, float(share), kind == "link", options)}


def _again(options: argparse.Namespace, data: Any) -> Iterator[dict[str, Any]]:
    for result in json.loads(pathlib.Path(options.again).read_text()):
        given = case(result["net"], result["batch"], result["kind"], 1e9 * options.link, data)
        for name in ("plan_mib", "plan_split", "plan_repeats", "plan_copies"):
            result.pop(name, None)
        _plan(result, given, given.plan(None), result["kind"] == "link")
        yield _compared(result)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
