"""Copies between the device and the host's memory beside the launches of a run: the actions of BeginStore, EndStore, BeginFetch and EndFetch.

Each direction has a queue of its own (host_memory.py).
"""
from __future__ import annotations

from typing import Any, Protocol

from ocaffe.cl.session import Session
from ocaffe.ir.launch import BeginFetch, BeginStore, EndFetch, EndStore, Transfer
from ocaffe.ir.tensor import Ref


class Commands(Protocol):
    """The interface of a command list that transfers use (ocaffe/cl/command_list.py)."""

    session: Session
    copies: dict[Ref, Any]  # the event of the last copy to or from a Ref of the host

    def locate(self, ref: Ref, slot: int = 0) -> tuple[Any, int]:
        """Return buffer and offset in elements."""


class BeginAction:
    """Begin a copy after the launches that were enqueued before. Does not wait."""

    def __init__(self, commands: Commands, launch: Transfer, step: int) -> None:
        self.commands = commands
        self.host, self.stores = launch.host, isinstance(launch, BeginStore)
        (source, begin), (target, at) = (commands.locate(operand.ref) for operand in launch.operands)
        item = launch.host.dtype.itemsize
        self.copy = {"dest": target, "src": source, "src_offset": begin * item, "dst_offset": at * item, "byte_count": launch.host.nbytes}

    def __call__(self, slot: int) -> Any:
        session = self.commands.session
        device = session.device
        ready = device.cl.enqueue_marker(device.queue)
        device.queue.flush()  # a command on the other queue waits for the marker
        queue = device.copy_queue(self.stores)
        event = device.cl.enqueue_copy(queue, **self.copy, wait_for=[ready])
        queue.flush()
        self.commands.copies[self.host] = event
        if session.timeline is not None:
            event.wait()
        return ready


class EndAction:
    """Let the launches that follow wait for a copy. The host does not wait."""

    def __init__(self, commands: Commands, launch: Transfer, step: int) -> None:
        self.commands, self.host = commands, launch.host

    def __call__(self, slot: int) -> Any:
        device = self.commands.session.device
        return device.cl.enqueue_barrier(device.queue, wait_for=[self.commands.copies.pop(self.host)])


ON_COPY_QUEUES: dict[type[Transfer], Any] = {BeginStore: BeginAction, EndStore: EndAction, BeginFetch: BeginAction, EndFetch: EndAction}
