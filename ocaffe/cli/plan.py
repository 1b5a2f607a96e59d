"""ocaffe plan: show the memory of a training or a net without a device, its time with less memory, or a stage of the pipeline as text."""
from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ocaffe.cl.feed import BUFFERS
from ocaffe.cli.flags import (
    Parser,
    batches_flag,
    check_outputs,
    device_flags,
    max_slowdown,
    memory_flags,
    memory_limit,
    shape_flag,
    slowdown_flag,
    stages,
    state_flags,
)
from ocaffe.data.databases.assumed import AssumedData, assumed_data, parse_shape
from ocaffe.errors import Error, shape_text
from ocaffe.formats.batch import batched
from ocaffe.formats.text import read_net, read_solver, write_text
from ocaffe.graph.microbatch import Microbatch
from ocaffe.graph.options import NetOptions
from ocaffe.graph.record import Recording
from ocaffe.ir.graph import Graph
from ocaffe.ir.launch import roots
from ocaffe.ir.target import MATHS, TENSOR_MATHS, Target
from ocaffe.ir.tensor import Role
from ocaffe.memory.curve import Curve, chosen_text, knee, smallest_within, table, trace
from ocaffe.memory.html import Total, page
from ocaffe.memory.plan import MemoryPlan
from ocaffe.memory.process import RuntimeMemory
from ocaffe.memory.report import ROLES, bytes_beside, dump, host_bytes, persistent, report, size_text
from ocaffe.shown import say
from ocaffe.solver.planning import Machine, NetsToPlan, NetToPlan, net_to_plan, solver_to_plan
from ocaffe.support import log
from ocaffe.support.files import atomic_write

STAGES = ("net", "graph", "schedule")
CPU_MATHS = [math for math in MATHS if math not in TENSOR_MATHS]


@dataclass
class Planned:
    """A compiled net. `plain` is its lower bound without recomputation."""

    name: str
    message: Any
    graph: Graph
    recording: Recording
    plan: MemoryPlan
    plain: int
    microbatch: Microbatch | None
    limited: bool


@dataclass
class WholePlan:
    """The plans of all nets of a solver, or of one net. They share slabs. Memory is in bytes."""

    nets: list[Planned]
    caffe: dict[str, int]  # memory that BVLC Caffe would allocate, by category
    on_cpu: bool  # the process of the training has this memory
    context: int = 0  # of the driver on the device, if it is open and has its own memory
    compilers: int = 0  # contexts of compilers there, at a first start

    @property
    def fixed(self) -> dict[str, int]:
        """Bytes of memory that is not recycled, by category."""
        found = persistent([net.recording.schedule for net in self.nets])
        return {label: found[role] for role, label in ROLES.items() if role in found}

    @property
    def slabs(self) -> list[int]:
        """Sizes of the slabs, each the maximum over all plans."""
        count = max(len(net.plan.slabs) for net in self.nets)
        return [max(net.plan.slabs[i] if i < len(net.plan.slabs) else 0 for net in self.nets) for i in range(count)]

    @property
    def on_host(self) -> int:
        """Bytes in the host's memory, where values are meanwhile."""
        return host_bytes([net.recording.schedule for net in self.nets], [net.plan for net in self.nets])

    @property
    def batches(self) -> int:
        """Bytes in the host's memory of the batches that a loader has ready for a device with its own memory."""
        staged = {root for net in self.nets for root in roots(net.recording.schedule) if root.role is Role.STAGING}
        return BUFFERS * sum(root.nbytes for root in staged) if self.context else 0

    @property
    def runtime(self) -> RuntimeMemory:
        """The memory of a CPU's runtime in the process, beside the plan."""
        return RuntimeMemory.of(net.recording.schedule for net in self.nets)

    @property
    def total(self) -> int:
        return sum(self.fixed.values()) + sum(self.slabs)

    @property
    def first_start(self) -> int:
        """Bytes on the device while programs are built with empty caches. Slabs do not exist then."""
        return self.context + max(self.total, self.compilers + sum(self.fixed.values()))


def main(argv: Sequence[str]) -> int:
    parser = Parser("plan", "Show the memory plan of a solver (TRAIN and TEST nets together) or of one net.")
    parser.flag("solver", "", "the solver prototxt")
    parser.flag("model", "", "or a net prototxt")
    parser.flag("phase", "TEST", "with --model: TRAIN or TEST", choices=("TRAIN", "TEST"))
    batches_flag(parser, "batch size of data and inputs, in place of the files'; with --curve several, separated by ','")
    shape_flag(parser)
    memory_flags(parser)
    slowdown_flag(parser)
    parser.flag("curve", False, "show the predicted time of a step with less and less memory, and the knee of this curve")
    parser.flag("html", "", "write a diagram of all lifetimes, and with --curve of the curves, to this file")
    parser.flag("json", "", "write the numbers, lifetimes and curves to this file")
    parser.flag("dump", "", f"print a stage of the pipeline: {', '.join(STAGES)}")
    device_flags(parser)
    state_flags(parser)
    options = parser.parse(argv)
    _check(options)
    check_outputs("plan", (options.solver, options.model), html=options.html, json=options.json)
    slowdown = max_slowdown(options)
    machine = _machine(options, options.curve or slowdown is not None)
    limit = memory_limit(options.memory_limit, machine.target.free_memory)
    log.quiet()
    note, curves = "", list[Curve]()
    with assumed_data() as data:
        nets = _nets(options, data, *options.batch[:1])
        plans = nets.plans(machine) if options.curve or slowdown is not None else None
        if plans is not None and slowdown is not None:
            chosen = smallest_within(plans, slowdown)
            limit, note = chosen.limit, chosen_text(chosen, plans(None), slowdown)
        if plans is not None and options.curve:
            curves.append(Curve(f"batch {nets.batch}", nets.images, trace(plans)))
            for batch in options.batch[1:]:
                other = _nets(options, data, batch)
                curves.append(Curve(f"batch {batch}", other.images, trace(other.plans(machine))))
        whole = WholePlan(_planned(nets.nets, machine.target, limit), nets.caffe, machine.target.is_cpu, machine.context, 0 if limit else machine.compilers)
    for line in data.notes:
        log.tell(f"note: {line}")
    title = pathlib.Path(options.solver or options.model).name
    for line in _dump(options.dump, whole.nets) if options.dump else _curve_lines(title, machine, curves) if curves else _summary(whole):
        say(line)
    if note:
        say(f"{note}, on {machine.name}")
    if options.json:
        with atomic_write(options.json) as out:
            out.write((json.dumps(_record(whole, machine, curves), indent=1) + "\n").encode())
    if options.html:
        with atomic_write(options.html) as out:
            parts = [(net.name, net.recording.schedule, net.plan) for net in whole.nets]
            out.write(page(title, parts, _totals(whole), curves, machine.name).encode())
        log.tell(f"wrote {options.html}")
    return 0


def _check(options: Any) -> None:
    """Raise Error for flags that are missing or contradict each other."""
    if bool(options.solver) == bool(options.model):
        fact = "--solver and --model are both given" if options.solver else "neither --solver nor --model is given"
        raise Error(fact, place="ocaffe plan", fix="--solver FILE for the nets of a training, or --model FILE for one net")
    if options.dump and options.dump not in STAGES:
        raise Error(f"--dump is '{options.dump}'", place="ocaffe plan", fix=f"--dump with one of {', '.join(STAGES)}")
    if options.memory_limit == "auto" and not (options.device or options.gpu):
        fact = "--memory-limit is 'auto', the free memory of a device, and none is given"
        raise Error(fact, place="ocaffe plan", fix="--device with a name that ocaffe device_query lists, or a number such as --memory-limit 7.5G")
    if options.curve and options.dump:
        raise Error("--curve and --dump are both given, and each prints a text of its own", place="ocaffe plan", fix="leave out one of them")
    if options.curve and options.memory_limit:
        fact = f"--curve shows the plans for all limits, and --memory-limit {options.memory_limit} is given too"
        raise Error(fact, place="ocaffe plan", fix="leave out one of them")
    if len(options.batch) > 1 and not options.curve:
        fact = f"--batch is {','.join(map(str, options.batch))}, several sizes, and a plan has one"
        raise Error(fact, place="ocaffe plan", fix=f"--batch {options.batch[0]}, or --curve to compare them")


def _curve_lines(title: str, machine: Machine, curves: Sequence[Curve]) -> Iterator[str]:
    yield f"{title}: times are predicted for {machine.name}"
    for curve in curves:
        yield ""
        yield f"{curve.name}:"
        yield from table(curve)


def _totals(whole: WholePlan) -> list[Total]:
    """Return the bars of the page: the plan, its lower bounds, and Caffe's memory."""
    fixed, bound = sum(whole.fixed.values()), max(net.plan.lower_bound for net in whole.nets)
    found = [Total("this plan", whole.total), Total("lower bound", fixed + bound)]
    if (plain := max(net.plain for net in whole.nets)) != bound:
        found.append(Total("lower bound without recomputation", fixed + plain))
    return [*found, Total("BVLC Caffe", sum(whole.caffe.values()))] if any(whole.caffe.values()) else found


def _machine(options: Any, timed: bool) -> Machine:
    """Return the device, if one is given, else a generic CPU. `timed`: its speeds are of interest; those of a device are measured once.

    A GPU with enough memory of its own keeps more values (ADR 20). Else the plan depends on the device only in details.
    """
    if options.device or options.gpu:
        from ocaffe.cl.device import select_device

        device = select_device(options.device or None, options.gpu or None, math=options.math)
        try:
            if timed or (options.memory_limit and device.context_bytes):  # a training there chooses by measured speeds
                return Machine.measured(device)
            return Machine.assumed(device.target).with_driver(device)
        finally:
            device.close()
    if options.math not in ("", *CPU_MATHS):
        fact = f"--math {options.math} without a device: the plan is that of a CPU, which has only {', '.join(CPU_MATHS)}"
        raise Error(fact, place="ocaffe plan", fix="add --device, or leave --math out")
    return Machine.assumed(Target(max_allocation=1 << 40))


def _nets(options: Any, data: AssumedData, batch: int = 0) -> NetsToPlan:
    """Return the nets of the solver or of the model. `batch`: in place of the files'; 0: theirs."""
    shape, recorded = parse_shape(options.shape), NetOptions(recompute=options.recompute)

    def read(path: str) -> Any:
        return data.complete(batched(read_net(path, options.allow_unknown_fields), batch), shape)

    if options.model:
        net = read(options.model)
        return net_to_plan(net, options.phase, options.level, stages(options.stage, net), recorded)
    param = read_solver(options.solver, options.allow_unknown_fields)
    param.train_state.level = options.level
    param.train_state.stage.extend(stages(options.stage))
    return solver_to_plan(param, read, recorded)


def _planned(wanted: Sequence[NetToPlan], target: Target, limit: int | None) -> list[Planned]:
    """Compile all nets.

    Nets with a limit are compiled twice, because each needs the memory that the others keep.
    """
    limited = limit is not None
    beside = bytes_beside([net.compiled(target).recording.schedule for net in wanted]) if limited else [0] * len(wanted)
    nets = []
    for net, size in zip(wanted, beside):
        plain = net.net_options.backward and net.net_options.recompute != "none"
        bound = net.compiled(target, recompute="none").plan.lower_bound if plain else None
        made = net.compiled(target, limit=limit, beside=size)
        least = made.plan.lower_bound if bound is None else bound
        nets.append(Planned(net.name, net.message, net.graph, made.recording, made.plan, least, made.microbatch, limited))
    return nets


def _summary(whole: WholePlan) -> Iterator[str]:
    for net in whole.nets:
        yield from report(net.name, net.recording.schedule, net.plan)
        if net.plain != net.plan.lower_bound:
            larger = "" if net.limited else "; a GPU with 8 times as much memory recomputes nothing"
            yield f"  without recomputation the lower bound is {size_text(net.plain)}{larger}"
        if net.microbatch is not None:
            yield f"  the batch is split: the layers up to '{net.graph.nodes[net.microbatch.cut].name}' run in {net.microbatch.count} microbatches"
        again = _recomputed_flops(net)
        if again:
            yield f"  recomputed: {again / 1e9:.1f} GFLOP in convolutions and products, {100 * again / (3 * _flops(net)):.1f} % more"
    yield ""
    ours = [*whole.fixed.items(), ("recycled, all nets", sum(whole.slabs)), ("total", whole.total)]
    caffe = sum(whole.caffe.values())
    theirs = [*((label, size) for label, size in whole.caffe.items() if size), ("total", caffe)]
    yield f"{'ocaffe':<36}{'BVLC Caffe'}"
    for (label, size), (other, takes) in itertools.zip_longest(ours[:-1], theirs[:-1], fillvalue=("", 0)):
        left = f"{label:<22}{size_text(size):>10}" if label else ""
        yield f"{left:<36}{other:<22}{size_text(takes):>10}" if other else left
    for (label, size), (_, takes) in zip(ours[-1:], theirs[-1:]):
        yield f"{label:<22}{size_text(size):>10}    {label:<22}{size_text(takes):>10}"
    if caffe:
        yield f"ocaffe takes {100 * whole.total / caffe:.0f} % of what Caffe does"
    if whole.on_host:
        yield f"pinned memory of the host: {size_text(whole.on_host)}, for values that are not on the device between their uses"
    if whole.batches:
        yield f"memory of the host for batches: {size_text(whole.batches)}, and a batch more for each process that reads images"
    if whole.context:
        yield f"with the driver's context of {size_text(whole.context)} the device shows {size_text(whole.total + whole.context)}, and up to 64 MiB more"
        if whole.first_start > whole.total + whole.context:
            yield f"while a first start builds programs it shows up to {size_text(whole.first_start)}; a --memory-limit holds then, too"
    if whole.on_cpu:
        yield f"on a CPU the process also takes its start-up and the runtime's memory: {whole.runtime}"


def _flops(net: Planned) -> int:
    """Return the floating point operations of a forward pass."""
    return sum(launch.flops for launch in net.recording.schedule if launch.phase == "forward")


def _recomputed_flops(net: Planned) -> int:
    return sum(launch.flops for launch in net.recording.schedule if launch.recomputed)


def _record(whole: WholePlan, machine: Machine, curves: Sequence[Curve]) -> dict[str, Any]:
    """Return the plan for JSON, with all lifetimes, so that a reader can check the bound. Curves are the last entry, if there are some."""
    main = whole.nets[0]
    return {
        "total_bytes": whole.total,
        "lower_bound_bytes": sum(whole.fixed.values()) + max(net.plan.lower_bound for net in whole.nets),
        "lower_bound_without_recompute_bytes": sum(whole.fixed.values()) + max(net.plain for net in whole.nets),
        "caffe_bytes": sum(whole.caffe.values()),
        "caffe_categories": whole.caffe,
        "launches": len(main.recording.schedule),
        "categories": {**whole.fixed, "recycled": sum(whole.slabs)},
        "context_bytes": whole.context,
        "first_start_bytes": whole.first_start,
        "host_bytes": whole.on_host,
        "batches_bytes": whole.batches,
        "runtime_bytes": whole.runtime.bytes if whole.on_cpu else 0,
        "nets": [
            {
                "name": net.name,
                "launches": len(net.recording.schedule),
                "recycled_bytes": net.plan.total,
                "lower_bound_bytes": net.plan.lower_bound,
                "lower_bound_without_recompute_bytes": net.plain,
                "peak_step": net.plan.peak_step,
                "forward_flops": _flops(net),
                "recomputed_flops": _recomputed_flops(net),
                "pieces": 1 if net.microbatch is None else net.microbatch.count,
                "lifetimes": [
                    {"name": life.ref.name, "bytes": life.size, "first": life.first, "last": life.last,
                     "slab": net.plan.places[life.ref][0], "offset": net.plan.places[life.ref][1]}
                    for life in net.plan.lives
                ],
            }
            for net in whole.nets
        ],
        **({"predicted_for": machine.name, "curves": [_curve_record(curve) for curve in curves]} if curves else {}),
    }  # fmt: skip


def _curve_record(curve: Curve) -> dict[str, Any]:
    free, best = curve.points[0], knee(curve.points)
    points = [
        {
            "memory_limit": point.flag or None, "limit_bytes": point.limit, "total_bytes": point.bytes, "host_bytes": point.host_bytes,
            "step_seconds": point.seconds, "image_seconds": point.seconds / curve.images if curve.images else None, "slowdown": point.slowdown(free),
            "recomputed_launches": point.recomputed, "microbatches": point.microbatches, "equal_bits": point.same_bits, "knee": point is best,
        }
        for point in curve.points
    ]  # fmt: skip
    return {"name": curve.name, "images": curve.images, "points": points}


def _dump(stage: str, nets: list[Planned]) -> Iterator[str]:
    for net in nets:
        yield f"# {net.name}"
        if stage == "net":
            yield write_text(net.message)
        elif stage == "graph":
            for node in net.graph.nodes:
                bottoms = ", ".join(f"{blob.name} ({shape_text(blob.shape)})" for blob in node.bottoms)
                tops = ", ".join(f"{blob.name} ({shape_text(blob.shape)})" for blob in node.tops)
                marks = f"backward to {[blob.name for blob, wanted in zip(node.bottoms, node.propagate) if wanted]}" if node.backward else ""
                yield f"{node.type:<18} {node.name:<24} {bottoms} -> {tops} {marks}"
        else:
            yield from dump(net.recording.schedule, net.plan)
