"""The transports of gradients, and the choice of one."""
from __future__ import annotations

from typing import Protocol

from ocaffe import log
from ocaffe.cl.session import Exchange, Session
from ocaffe.errors import Error
from ocaffe.parallel.host_exchange import HostExchange
from ocaffe.parallel.nccl import NcclExchange, why_no_nccl
from ocaffe.parallel.world import World

TRANSPORTS = ("auto", "mpi", "nccl")


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


def make_exchange(name: str, session: Session, world: World) -> Transport | None:
    """Return the exchange for the ranks, by one of TRANSPORTS. None for one rank."""
    if name not in TRANSPORTS:
        raise Error(f"--exchange is '{name}'", fix=f"one of {', '.join(TRANSPORTS)}")
    if not world.several:
        return None
    problem = _why_no_nccl(session, world) if name != "mpi" else ""
    if name == "nccl" and problem:
        raise Error(f"--exchange nccl: {problem}", fix="pip install 'ocaffe[nccl]' on every host, one NVIDIA device per rank, or --exchange mpi")
    exchange: Transport = HostExchange(session, world) if name == "mpi" or problem else NcclExchange(session, world)
    if problem and session.device.target.runtime == "nvidia":
        log.warning("parallel.cpp:1", f"Gradients pass through host memory, not NCCL: {problem}. Remedy: pip install 'ocaffe[nccl]'")
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
