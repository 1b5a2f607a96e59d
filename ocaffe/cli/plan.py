"""ocaffe plan: what a training or a net needs in memory, before any device is touched; and every stage of the pipeline as text."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ocaffe import log, proto
from ocaffe.cli.flags import Parser, device_flags, stages, state_flags
from ocaffe.errors import Error, shape_text
from ocaffe.graph.build import build
from ocaffe.graph.ir import Graph
from ocaffe.graph.record import Choices, ParameterGroup, Recording
from ocaffe.memory.plan import MemoryPlan
from ocaffe.memory.report import ROLES, caffe_bytes, dump, persistent, report, size_text
from ocaffe.model.text import read_net, read_solver, write_text
from ocaffe.model.upgrade import upgrade_net
from ocaffe.network import Switches, compile_net, phase_net
from ocaffe.solver.nets import net_messages
from ocaffe.solver.update import Updater
from ocaffe.target import Target

STAGES = ("net", "graph", "schedule")


@dataclass
class Planned:
    """One net through the pipeline."""

    name: str
    message: Any
    graph: Graph
    recording: Recording
    plan: MemoryPlan


def main(argv: Sequence[str]) -> int:
    parser = Parser("plan", "Show the memory plan of a solver (TRAIN and TEST nets together) or of one net.")
    parser.flag("solver", "", "the solver prototxt")
    parser.flag("model", "", "or a net prototxt")
    parser.flag("phase", "TEST", "with --model: TRAIN or TEST", choices=("TRAIN", "TEST"))
    parser.flag("batch", 0, "batch size of data and inputs instead of those of the files")
    parser.flag("dump", "", f"print a stage of the pipeline: {', '.join(STAGES)}")
    device_flags(parser)
    state_flags(parser)
    options = parser.parse(argv)
    if bool(options.solver) == bool(options.model):
        raise Error("give a solver or a model", place="ocaffe plan", fix="--solver FILE or --model FILE")
    if options.dump and options.dump not in STAGES:
        raise Error(f"--dump is '{options.dump}'", place="ocaffe plan", fix=f"one of {', '.join(STAGES)}")
    log.quiet()
    nets, histories = _plan_solver(options) if options.solver else ([_plan_net(options)], 0)
    for line in _dump(options.dump, nets) if options.dump else _summary(nets, histories):
        print(line)
    return 0


def _target(options: Any) -> Target:
    """The device's target if one is named, else a generic one: the plan depends on it only in details."""
    if options.device or options.gpu:
        from ocaffe.cl.device import select_device

        device = select_device(options.device or None, options.gpu or None)
        try:
            return device.target
        finally:
            device.close()
    return Target()


def _batched(net: Any, batch: int) -> Any:
    """The net with another batch size, in every layer that feeds it."""
    if batch:
        net = upgrade_net(net)
        for layer in net.layer:
            for field, value in layer.ListFields():
                if field.name.endswith("_param") and hasattr(value, "batch_size"):
                    value.batch_size = batch
            for shape in layer.input_param.shape if layer.type == "Input" else ():
                shape.dim[0] = batch
    return net


def _plan_net(options: Any) -> Planned:
    phase = proto.TRAIN if options.phase == "TRAIN" else proto.TEST
    message = phase_net(_batched(read_net(options.model, options.allow_unknown_fields), options.batch), phase, options.level, stages(options.stage))
    graph = build(message, phase)
    recording, placed = compile_net(graph, ParameterGroup(graph.params), _target(options), Choices(backward=phase == proto.TRAIN), Switches.read())
    return Planned(options.phase, message, graph, recording, placed)


def _plan_solver(options: Any) -> tuple[list[Planned], int]:
    param = read_solver(options.solver, options.allow_unknown_fields)
    param.train_state.level = options.level
    param.train_state.stage.extend(stages(options.stage))
    target, switches = _target(options), Switches.read()
    train, tests = net_messages(param, lambda path: _batched(read_net(path, options.allow_unknown_fields), options.batch))
    choices = Choices(hold_gradients=param.iter_size > 1)
    message = train()
    graph = build(message, proto.TRAIN)
    group = ParameterGroup(graph.params)
    updater = Updater(group, param)
    recording, placed = compile_net(graph, group, target, choices, switches, updater)
    nets = [Planned("TRAIN", message, graph, recording, placed)]
    theirs = {(p.layer, p.index): p for p in graph.params}
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
        recording, placed = compile_net(test, ParameterGroup(own), target, replace(choices, backward=False), switches)
        nets.append(Planned(f"TEST #{index}", message, test, recording, placed))
    return nets, updater.rule.histories


def _summary(nets: list[Planned], histories: int) -> Iterator[str]:
    for net in nets:
        yield from report(net.name, net.recording.schedule, net.plan)
    fixed = persistent([net.recording.schedule for net in nets])
    slabs: list[int] = []
    for net in nets:
        slabs = [max(pair) for pair in zip([*slabs, *[0] * len(net.plan.slabs)], [*net.plan.slabs, *[0] * len(slabs)])]
    yield ""
    for role, label in ROLES.items():
        if role in fixed:
            yield f"{label:<24} {size_text(fixed[role]):>10}"
    yield f"{'recycled, all nets':<24} {size_text(sum(slabs)):>10}"
    total = sum(fixed.values()) + sum(slabs)
    yield f"{'total':<24} {size_text(total):>10}"
    train = nets[0].graph if nets[0].name == "TRAIN" else None
    tests = [net.graph for net in nets if net.graph is not train]
    caffe = caffe_bytes(train, tests, histories)
    yield f"{'Caffe, at the least':<24} {size_text(caffe):>10}   ocaffe takes {100 * total / caffe:.0f} %" if caffe else ""


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
