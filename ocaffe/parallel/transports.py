"""The transports of gradients, and the choice of one."""
from __future__ import annotations

from typing import Protocol

from ocaffe.cl.session import Exchange, Session
from ocaffe.errors import Error
from ocaffe.parallel.host_exchange import HostExchange
from ocaffe.parallel.world import World

TRANSPORTS = ("auto", "mpi", "nccl")


class Transport(Exchange, Protocol):
    """An exchange of gradients. `str()` names the transport."""

    in_flight: int  # bytes of gradients that may be in the exchange while backward continues
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
    session.exchange = exchange = HostExchange(session, world)
    return exchange
