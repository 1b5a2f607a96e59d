"""Carriers bring chunks of gradients from the host memory of one rank to that of another: shared memory on one host, messages between hosts.

A round has two steps. In the first, every rank sends chunk q of its values to rank q. In the second, every rank sends its result to all.
"""
from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ocaffe.parallel.world import World, wait
from ocaffe.support import log

ALIGNMENT = 16  # floats; each chunk begins at a multiple
ROUND = 1 << 22  # floats that a round averages, at most
_SHARED = "/dev/shm"  # Linux has its shared memory here, of which containers often have 64 MiB


def largest_chunk(ranks: int) -> int:
    """Return the floats of the largest chunk of a round."""
    return -(-ROUND // (ranks * ALIGNMENT)) * ALIGNMENT


class Carrier(Protocol):
    """The rooms of one round. Each room has the number of floats that `open` was called with, or more."""

    def open(self, chunk: int) -> None:
        """Begin a round. No chunk has more than `chunk` floats, at most `largest_chunk`."""

    def outgoing(self, rank: int) -> np.ndarray:
        """Return the room for the values that go to `rank`."""

    def swap(self) -> None:
        """Wait until the rooms of `incoming` are filled."""

    def incoming(self, rank: int) -> np.ndarray:
        """Return the values that came from `rank`."""

    @property
    def result(self) -> np.ndarray:
        """The room for the result that goes to all ranks."""

    def spread(self) -> None:
        """Wait until the rooms of `arrived` are filled. The rooms of `outgoing` can be filled for the next round."""

    def arrived(self, rank: int) -> np.ndarray:
        """Return the result of `rank`. It is valid until the next `spread`."""


Pin = Callable[[np.ndarray], np.ndarray]  # returns an array over the same memory, which a device copies fast


def carrier_of(world: World, pin: Pin) -> Carrier:
    """Return the carrier for the ranks: shared memory if all are on one host, and it has room for them."""
    if world.local_size < world.size:
        return Messages(world, pin)
    needed = world.size * SharedRooms.nbytes(world.size)
    free = world.broadcast(shutil.disk_usage(_SHARED).free if os.path.isdir(_SHARED) else needed)
    if free >= needed:
        return SharedRooms(world, pin)
    # A process that writes to shared memory for which there is no room is ended by a signal.
    fact = f"{_SHARED} has {free >> 20} MiB free, and shared memory of {world.size} ranks takes {needed >> 20} MiB: they send messages, which is slower"
    log.warning("parallel.cpp:1", f"{fact}. Remedy: more room there, in a container with --shm-size")
    return Messages(world, pin)


class SharedRooms:
    """Memory that all ranks of one host share. A rank writes to its own rooms and reads those of the others.

    Two sets of rooms are used in turn, so two waits per round are enough.
    """

    def __init__(self, world: World, pin: Pin) -> None:
        from mpi4py import MPI

        self._rank = world.rank
        self._comm = world.duplicate()
        self._memory = MPI.Win.Allocate_shared(self.nbytes(world.size), 1, comm=self._comm)
        self._memory.Lock_all()
        memory: list[Any] = [self._memory.Shared_query(rank)[0] for rank in range(world.size)]
        self._rooms = [pin(np.frombuffer(each, np.float32)).reshape(2, world.size, -1) for each in memory]
        self._turn = 0

    @staticmethod
    def nbytes(ranks: int) -> int:
        """Return the bytes of one rank's rooms."""
        return 2 * ranks * largest_chunk(ranks) * 4

    def open(self, chunk: int) -> None:
        pass  # the rooms of any chunk have the same places

    def outgoing(self, rank: int) -> np.ndarray:
        return self._rooms[self._rank][self._turn, rank]

    def swap(self) -> None:
        self._barrier()

    def incoming(self, rank: int) -> np.ndarray:
        return self._rooms[rank][self._turn, self._rank]

    @property
    def result(self) -> np.ndarray:
        return self._rooms[self._rank][self._turn, self._rank]

    def spread(self) -> None:
        self._barrier()
        self._turn ^= 1

    def arrived(self, rank: int) -> np.ndarray:
        return self._rooms[rank][self._turn ^ 1, rank]

    def _barrier(self) -> None:
        self._memory.Sync()
        wait(self._comm.Ibarrier())
        self._memory.Sync()


class Messages:
    """Messages of MPI between hosts. The values are added by the ranks, not by MPI: MPI's own sum can differ from one run to the next."""

    def __init__(self, world: World, pin: Pin) -> None:
        self._comm, self._size = world.duplicate(), world.size
        self._memory = [pin(np.zeros(world.size * largest_chunk(world.size), np.float32)) for _ in range(3)]
        self._own = pin(np.zeros(largest_chunk(world.size), np.float32))

    def open(self, chunk: int) -> None:
        self._sent, self._came, self._all = (each[: self._size * chunk].reshape(self._size, chunk) for each in self._memory)
        self.result = self._own[:chunk]

    def outgoing(self, rank: int) -> np.ndarray:
        return self._sent[rank]

    def swap(self) -> None:
        wait(self._comm.Ialltoall(self._sent, self._came))

    def incoming(self, rank: int) -> np.ndarray:
        return self._came[rank]

    def spread(self) -> None:
        wait(self._comm.Iallgather(self.result, self._all))

    def arrived(self, rank: int) -> np.ndarray:
        return self._all[rank]


def describe(carrier: Any) -> str:
    return "shared memory" if isinstance(carrier, SharedRooms) else "messages"
