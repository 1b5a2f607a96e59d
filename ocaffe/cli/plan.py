"""ocaffe plan: show the memory of a training or a net without a device, or a stage of the pipeline as text."""
from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ocaffe import proto
from ocaffe.cli.flags import Parser, batch_flag, device_flags, memory_flags, memory_limit, shape_flag, stages, state_flags
from ocaffe.compiler.compile import CompiledNet, compile_net
from ocaffe.compiler.network import phase_net
from ocaffe.data.databases.assumed import AssumedData, assumed_data, parse_shape
from ocaffe.errors import Error, shape_text
from ocaffe.formats.batch import batched
from ocaffe.formats.text import read_net, read_solver, write_text
from ocaffe.graph.build import build
from ocaffe.graph.microbatch import Microbatch
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.graph.record import Recording
from ocaffe.ir.graph import Graph
from ocaffe.ir.target import MATHS, TENSOR_MATHS, Target
from ocaffe.memory.caffe_estimate import SOLVER_BLOBS, caffe_memory
from ocaffe.memory.html import Total, page
from ocaffe.memory.plan import MemoryPlan
from ocaffe.memory.process import RuntimeMemory
from ocaffe.memory.report import ROLES, bytes_beside, dump, persistent, report, size_text
from ocaffe.shown import say
from ocaffe.solver.nets import net_messages
from ocaffe.solver.update import Updater
from ocaffe.support import log
from ocaffe.support.files import atomic_write
from ocaffe.support.switches import Switches

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
    def runtime(self) -> RuntimeMemory:
        """The memory of a CPU's runtime in the process, beside the plan."""
        return RuntimeMemory.of(net.recording.schedule for net in self.nets)

    @property
    def total(self) -> int:
        return sum(self.fixed.values()) + sum(self.slabs)


def main(argv: Sequence[str]) -> int:
    parser = Parser("plan", "Show the memory plan of a solver (TRAIN and TEST nets together) or of one net.")
    parser.flag("solver", "", "the solver prototxt")
    parser.flag("model", "", "or a net prototxt")
    parser.flag("phase", "TEST", "with --model: TRAIN or TEST", choices=("TRAIN", "TEST"))
    batch_flag(parser)
    shape_flag(parser)
    memory_flags(parser)
    parser.flag("html", "", "write a diagram of all lifetimes to this file")
    parser.flag("json", "", "write the numbers and lifetimes to this file")
    parser.flag("dump", "", f"print a stage of the pipeline: {', '.join(STAGES)}")
    device_flags(parser)
    state_flags(parser)
    options = parser.parse(argv)
    if bool(options.solver) == bool(options.model):
        fact = "--solver and --model are both given" if options.solver else "neither --solver nor --model is given"
        raise Error(fact, place="ocaffe plan", fix="--solver FILE for the nets of a training, or --model FILE for one net")
    if options.dump and options.dump not in STAGES:
        raise Error(f"--dump is '{options.dump}'", place="ocaffe plan", fix=f"--dump with one of {', '.join(STAGES)}")
    log.quiet()
    with assumed_data() as data:
        whole = _plan_solver(options, data) if options.solver else _plan_net(options, data)
    for note in data.notes:
        log.tell(f"note: {note}")
    for line in _dump(options.dump, whole.nets) if options.dump else _summary(whole):
        say(line)
    if options.json:
        with atomic_write(options.json) as out:
            out.write((json.dumps(_record(whole), indent=1) + "\n").encode())
    if options.html:
        title = pathlib.Path(options.solver or options.model).name
        with atomic_write(options.html) as out:
            out.write(page(title, [(net.name, net.recording.schedule, net.plan) for net in whole.nets], _totals(whole)).encode())
        log.tell(f"wrote {options.html}")
    return 0


def _totals(whole: WholePlan) -> list[Total]:
    """Return the bars of the page: the plan, its lower bounds, and Caffe's memory."""
    fixed, bound = sum(whole.fixed.values()), max(net.plan.lower_bound for net in whole.nets)
    found = [Total("this plan", whole.total), Total("lower bound", fixed + bound)]
    if (plain := max(net.plain for net in whole.nets)) != bound:
        found.append(Total("lower bound without recomputation", fixed + plain))
    return [*found, Total("BVLC Caffe", sum(whole.caffe.values()))] if any(whole.caffe.values()) else found


def _target(options: Any) -> Target:
    """Return the target of the device, if one is given, else a generic CPU.

    A GPU with enough memory of its own keeps more values (ADR 20). Else the plan depends on the device only in details.
    """
    if options.device or options.gpu:
        from ocaffe.cl.device import select_device

        device = select_device(options.device or None, options.gpu or None, math=options.math)
        try:
            return device.target
        finally:
            device.close()
    if options.math not in ("", *CPU_MATHS):
        fact = f"--math {options.math} without a device: the plan is that of a CPU, which has only {', '.join(CPU_MATHS)}"
        raise Error(fact, place="ocaffe plan", fix="add --device, or leave --math out")
    return Target(max_allocation=1 << 40)


@dataclass
class NetToPlan:
    """A net, with the settings of its recording."""

    name: str
    message: Any
    graph: Graph
    group: ParameterGroup
    net_options: NetOptions
    update: Any = None

    def compiled(self, target: Target, **changes: Any) -> CompiledNet:
        return compile_net(self.graph, self.group, target, replace(self.net_options, **changes), Switches.read(), self.update)


def _planned(wanted: list[NetToPlan], target: Target) -> list[Planned]:
    """Compile all nets.

    Nets with a limit are compiled twice, because each needs the memory that the others keep.
    """
    limited = any(net.net_options.limit is not None for net in wanted)
    beside = bytes_beside([net.compiled(target, limit=None).recording.schedule for net in wanted]) if limited else [0] * len(wanted)
    nets = []
    for net, size in zip(wanted, beside):
        plain = net.net_options.backward and net.net_options.recompute != "none"
        bound = net.compiled(target, recompute="none", limit=None).plan.lower_bound if plain else None
        made = net.compiled(target, beside=size)
        least = made.plan.lower_bound if bound is None else bound
        nets.append(Planned(net.name, net.message, net.graph, made.recording, made.plan, least, made.microbatch, limited))
    return nets


def _net_options(options: Any, target: Target, backward: bool) -> NetOptions:
    limit = memory_limit(options.memory_limit, target.free_memory)
    return NetOptions(backward=backward, recompute=options.recompute, limit=limit, prepack_weights=not backward)


def _plan_net(options: Any, data: AssumedData) -> WholePlan:
    phase = proto.TRAIN if options.phase == "TRAIN" else proto.TEST
    net = data.complete(batched(read_net(options.model, options.allow_unknown_fields), options.batch), parse_shape(options.shape))
    message = phase_net(net, phase, options.level, stages(options.stage))
    graph, target = build(message, phase), _target(options)
    net = NetToPlan(options.phase, message, graph, ParameterGroup(graph.params), _net_options(options, target, phase == proto.TRAIN))
    return WholePlan(_planned([net], target), caffe_memory(graph if phase == proto.TRAIN else None, [] if phase == proto.TRAIN else [graph], 0), target.is_cpu)


def _plan_solver(options: Any, data: AssumedData) -> WholePlan:
    param = read_solver(options.solver, options.allow_unknown_fields)
    param.train_state.level = options.level
    param.train_state.stage.extend(stages(options.stage))
    target = _target(options)
    shape = parse_shape(options.shape)
    train, tests = net_messages(param, lambda path: data.complete(batched(read_net(path, options.allow_unknown_fields), options.batch), shape))
    net_options = replace(_net_options(options, target, True), hold_gradients=param.iter_size > 1 or param.snapshot_diff)
    message = train()
    graph = build(message, proto.TRAIN)
    group = ParameterGroup(graph.params)
    wanted = [NetToPlan("TRAIN", message, graph, group, net_options, Updater(group, param))]
    theirs = {(p.layer, p.index): p for p in graph.params}
    graphs = []
    for index, make in enumerate(tests):
        message = make()
        test = build(message, proto.TEST)
        own = []
        for parameter in test.params:
            shared = theirs.get((parameter.layer, parameter.index))
            if shared is None:
                own.append(parameter)
            else:
                parameter.data = shared.data
        graphs.append(test)
        wanted.append(NetToPlan(f"TEST #{index}", message, test, ParameterGroup(own), replace(net_options, backward=False, hold_gradients=False)))
    return WholePlan(_planned(wanted, target), caffe_memory(graph, graphs, SOLVER_BLOBS.get(param.type, 3)), target.is_cpu)


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
    if whole.on_cpu:
        yield f"on a CPU the process also takes its start-up and the runtime's memory: {whole.runtime}"


def _flops(net: Planned) -> int:
    """Return the floating point operations of a forward pass."""
    return sum(launch.flops for launch in net.recording.schedule if launch.phase == "forward")


def _recomputed_flops(net: Planned) -> int:
    return sum(launch.flops for launch in net.recording.schedule if launch.recomputed)


def _record(whole: WholePlan) -> dict[str, Any]:
    """Return the plan for JSON, with all lifetimes, so that a reader can check the bound."""
    main = whole.nets[0]
    return {
        "total_bytes": whole.total,
        "lower_bound_bytes": sum(whole.fixed.values()) + max(net.plan.lower_bound for net in whole.nets),
        "lower_bound_without_recompute_bytes": sum(whole.fixed.values()) + max(net.plain for net in whole.nets),
        "caffe_bytes": sum(whole.caffe.values()),
        "caffe_categories": whole.caffe,
        "launches": len(main.recording.schedule),
        "categories": {**whole.fixed, "recycled": sum(whole.slabs)},
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
    }  # fmt: skip


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
