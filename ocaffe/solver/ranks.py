"""The beginning of a training on several ranks: the checks that they do the same, and the broadcast of the state."""
from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

from ocaffe import __version__
from ocaffe.cl.session import Session
from ocaffe.compiler.compile import CompiledNet
from ocaffe.compiler.network import Network
from ocaffe.ir.launch import BeginExchange
from ocaffe.ir.tensor import Role
from ocaffe.memory.report import size_text
from ocaffe.parallel.transports import Transport
from ocaffe.parallel.world import World
from ocaffe.solver.average import Average
from ocaffe.solver.update import Updater
from ocaffe.support import log

_OWN = ("device_id", "snapshot_prefix")  # fields of a solver in which ranks may differ


class Training(Protocol):
    """The parts of a solver that this module reads."""

    param: Any
    world: World
    session: Session
    network: Network
    test_networks: list[Network]
    updater: Updater
    average: Average | None
    iter: int

    def train_nets(self) -> Sequence[CompiledNet]: ...


def join_ranks(solver: Training, exchange: Transport) -> None:
    """Raise Error if the ranks would train different nets. Log the transport."""
    world, solved = solver.world, type(solver.param)()
    solved.CopyFrom(solver.param)
    for field in _OWN:
        solved.ClearField(field)
    buckets = [
        [(launch.begin, launch.operands[0].ref.count) for launch in net.recording.schedule if isinstance(launch, BeginExchange)]
        for net in solver.train_nets()
    ]
    world.check_equal({
        "version of ocaffe": __version__,
        "solver": solved.SerializeToString(deterministic=True),
        "net": solver.network.message.SerializeToString(deterministic=True),
        "TEST net": [network.message.SerializeToString(deterministic=True) for network in solver.test_networks],
        "transport of gradients": str(exchange),
        "list of gradients to exchange": buckets,
    })  # fmt: skip
    for rank, (host, process) in enumerate(zip(world.hosts, world.gather(os.getpid()))):  # mpiexec names processes that end by their numbers
        log.info("parallel.cpp:1", f"Rank {rank} is process {process} on {host}")
    hosts = len(set(world.hosts))
    log.info("parallel.cpp:1", f"{world.size} ranks on {hosts} host{'s' * (hosts > 1)}; gradients are averaged by {exchange}")
    log.info("parallel.cpp:1", f"The exchange takes {size_text(exchange.device_bytes)} on the device beside the plan")


def average_statistics(solver: Training) -> None:
    """Set the parameters that forward passes change (BatchNorm's running statistics) to their means over all ranks.

    The scale of Caffe's BatchNorm is a parameter too and is the same on all ranks, so the mean of its sums is the sum of all ranks.
    """
    found = {
        (ref.root, ref.root_offset, ref.count): ref
        for net in solver.train_nets() for launch in net.recording.schedule if launch.phase != "update"
        for ref in launch.writes if ref.root.role is Role.PARAMETER
    }  # fmt: skip
    for ref in found.values():
        solver.session.write(ref, solver.world.mean(solver.session.read(ref)))


def broadcast_state(solver: Training) -> None:
    """Copy the parameters and the history of rank 0 to all ranks."""
    refs = [solver.network.group.data, *solver.updater.history, *([solver.updater.average] if solver.updater.average is not None else [])]
    for ref in refs:
        if ref.count:
            array = solver.session.read(ref)
            solver.world.broadcast_array(array)
            if not solver.world.first:
                solver.session.write(ref, array)
