"""The transports of gradients, and the choice of one."""
from __future__ import annotations

from typing import Protocol

from ocaffe.cl.session import Exchange, Session
from ocaffe.errors import Error
from ocaffe.parallel.host_exchange import HostExchange
from ocaffe.parallel.nccl import NcclExchange, why_no_nccl
from ocaffe.parallel.world import World
from ocaffe.support import log

TRANSPORTS = ("auto", "mpi", "nccl")
BITS = (32, 16)  # of a gradient's value on its way between ranks: float, bfloat16


class Transport(Exchange, Protocol):
    """An exchange of gradients. `str()` names the transport."""

    in_flight: int  # bytes of gradients that may be in the exchange while backward continues
    late_rows: int  # as in NetOptions
    exposed: float  # seconds during which the device had nothing to do but to wait for an exchange

    @property
    def device_bytes(self) -> int:
        """Device memory of the exchange beside the plan."""

    def close(self) -> None:
        """End it."""


def make_exchange(name: str, bits: int, session: Session, world: World) -> Transport | None:
    """Return the exchange for the ranks, by one of TRANSPORTS and the bits of a value that ranks send each other. None for one rank."""
    if bits not in BITS:
        raise Error(f"--gradient-bits is {bits}", fix=f"--gradient-bits with one of {', '.join(map(str, BITS))}")
    if name not in TRANSPORTS:
        raise Error(f"--exchange is '{name}'", fix=f"--exchange with one of {', '.join(TRANSPORTS)}")
    if not world.several:
        return None
    problem = "" if name == "mpi" else "it sends floats of 32 bits" if bits == 16 else _why_no_nccl(session, world)
    if name == "nccl" and problem:
        fix = "give --exchange mpi, which sends 16 bits too, or leave out --gradient-bits"
        if bits != 16:
            fix = "`pip install cuda-bindings nvidia-nccl-cu12` on every host, and one NVIDIA device for each rank; or give --exchange mpi"
        raise Error(f"--exchange nccl: {problem}", fix=fix)
    exchange: Transport = HostExchange(session, world, bits) if name == "mpi" or problem else NcclExchange(session, world)
    if problem and bits == 32 and session.device.target.runtime == "nvidia":
        log.warning("parallel.cpp:1", f"Gradients pass through host memory, not NCCL: {problem}. Remedy: pip install cuda-bindings nvidia-nccl-cu12")
    session.exchange = exchange
    return exchange


def _why_no_nccl(session: Session, world: World) -> str:
    """Return why the ranks cannot use NCCL, or '' if they can."""
    for rank, problem in enumerate(world.gather(why_no_nccl(session))):
        if problem:
            return f"rank {rank} on {world.hosts[rank]}: {problem}"
    places = list(zip(world.hosts, world.gather(session.device.number)))
    for rank, place in enumerate(places):
        if place in places[:rank]:
            return f"ranks {places.index(place)} and {rank} share device {place[1]} of {place[0]}"
    return ""
