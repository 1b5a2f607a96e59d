"""Plans the nets of a solver, or of a file, without a session and without their data: the device whose memory and times are meant, and all nets of a step."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ocaffe import proto
from ocaffe.cl.device import Device
from ocaffe.cl.rates import assumed, rates_of
from ocaffe.cl.session import room_of_first_start
from ocaffe.cl.workers import most_contexts
from ocaffe.compiler.compile import CompiledNet, compile_net, nearest_net
from ocaffe.compiler.network import phase_net
from ocaffe.compiler.points import NetOfStep, plans_of
from ocaffe.formats.batch import with_batch
from ocaffe.graph.build import build
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.ir.graph import Graph
from ocaffe.ir.rates import Rates
from ocaffe.ir.target import Target
from ocaffe.memory.caffe_estimate import SOLVER_BLOBS, caffe_memory
from ocaffe.memory.curve import Plans
from ocaffe.solver.nets import net_messages
from ocaffe.solver.update import Updater
from ocaffe.support.switches import Switches


class Machine(NamedTuple):
    """A device to plan for. `rates`: of the predicted times. `name`: for people, with how its speeds are known.

    `context`: bytes of the driver's context. `compilers`: bytes of the contexts of compilers at a first start without a limit.
    """

    target: Target
    rates: Rates
    name: str
    context: int = 0
    compilers: int = 0

    @classmethod
    def assumed(cls, target: Target) -> Machine:
        """A device on which nothing is measured."""
        return cls(target, assumed(target), f"'{target.name}' with assumed speeds")

    @classmethod
    def measured(cls, device: Device) -> Machine:
        """An open device. Its speeds are measured once and stored."""
        rates = rates_of(device)
        target = device.target if device.target.unified_memory else replace(device.target, rates=rates)  # as a session with a limit has it
        return cls(target, rates, f"'{target.name}' with its measured speeds").with_driver(device)

    def with_driver(self, device: Device) -> Machine:
        """The same with the memory that the driver adds to a plan."""
        return self._replace(context=device.context_bytes, compilers=most_contexts(room_of_first_start(device), device.context_bytes))


@dataclass
class NetToPlan:
    """A net, with the settings of its recording. `runs`: so many times it runs in a step; 0 for a TEST net of a solver."""

    name: str
    message: Any
    graph: Graph
    group: ParameterGroup
    net_options: NetOptions
    runs: int
    update: Updater | None = None

    def compiled(self, target: Target, **changes: Any) -> CompiledNet:
        return compile_net(self.graph, self.group, target, replace(self.net_options, **changes), Switches.read(), self.update)

    def nearest(self, target: Target, limit: int | None, beside: int) -> CompiledNet:
        """Return the plan within a limit, or else the smallest one."""
        return nearest_net(self.graph, self.group, target, replace(self.net_options, limit=limit, beside=beside), Switches.read(), self.update)


@dataclass
class NetsToPlan:
    """All nets of a solver, or one net. `caffe`: memory that BVLC Caffe would allocate, by category."""

    nets: Sequence[NetToPlan]
    caffe: dict[str, int]

    @property
    def batch(self) -> int:
        """The first axis of the inputs of the first net; 0 if it has none."""
        graph = self.nets[0].graph
        return max((top.shape[0] for node in graph.nodes if not node.bottoms for top in node.tops if top.shape), default=0)

    @property
    def records(self) -> int:
        """The images of the first data layer of the first net; 0 if they are not known."""
        orders = (getattr(getattr(node.layer, "source", None), "order", None) for node in self.nets[0].graph.nodes)
        return max((order.entries for order in orders if order is not None), default=0)

    @property
    def images(self) -> int:
        """The images of a step; 0 if the net has no inputs."""
        return self.batch * self.nets[0].runs

    def plans(self, machine: Machine) -> Plans:
        """Return the function from a memory limit to the plan of all nets."""
        return plans_of([NetOfStep(_nearest(net, machine.target), net.runs) for net in self.nets], machine.target, machine.rates)


def _nearest(net: NetToPlan, target: Target) -> Callable[[int | None, int], CompiledNet]:
    return lambda limit, beside: net.nearest(target, limit, beside)


def net_to_plan(net: Any, phase: str, level: int, stage: tuple[str, ...], options: NetOptions) -> NetsToPlan:
    """Return a net of a file for planning. `phase`: TRAIN or TEST."""
    number = proto.TRAIN if phase == "TRAIN" else proto.TEST
    message = phase_net(net, number, level, stage)
    graph = build(message, number)
    options = replace(options, backward=phase == "TRAIN", prepack_weights=phase != "TRAIN")
    caffe = caffe_memory(graph, [], 0) if phase == "TRAIN" else caffe_memory(None, [graph], 0)
    return NetsToPlan([NetToPlan(phase, message, graph, ParameterGroup(graph.params), options, 1)], caffe)


def solver_to_plan(
    param: Any, read: Callable[[str], Any], options: NetOptions, batch: int = 0, prepare: Callable[[Any, int], Any] = lambda net, phase: net
) -> NetsToPlan:  # fmt: skip
    """Return the TRAIN and TEST nets of a SolverParameter for planning. `read` returns the net of a path. TEST nets share parameters by name.

    `batch`: of the TRAIN net, 0 for that of the file. `prepare`: as of Solver.
    """
    train, tests = net_messages(param, read)
    message = with_batch(prepare(train(), proto.TRAIN), batch)
    graph = build(message, proto.TRAIN)
    group = ParameterGroup(graph.params)
    options = replace(options, backward=True)
    if param.iter_size > 1 or param.snapshot_diff:
        options = options.holding_gradients(add=param.iter_size > 1)
    nets = [NetToPlan("TRAIN", message, graph, group, options, max(1, param.iter_size), Updater(group, param))]
    theirs = {(p.layer, p.index): p for p in graph.params}
    for index, make in enumerate(tests):
        message = prepare(make(), proto.TEST)
        test = build(message, proto.TEST)
        own = []
        for parameter in test.params:
            shared = theirs.get((parameter.layer, parameter.index))
            if shared is None:
                own.append(parameter)
            else:
                parameter.data = shared.data
        scoring = replace(options, backward=False, hold_gradients=False, accumulate=False)
        nets.append(NetToPlan(f"TEST #{index}", message, test, ParameterGroup(own), scoring, 0))
    return NetsToPlan(nets, caffe_memory(graph, [net.graph for net in nets[1:]], SOLVER_BLOBS.get(param.type, 3)))
