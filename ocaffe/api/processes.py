"""pycaffe's names for training on several GPUs, as its train.py uses them.

Each process is a rank with its own solver, and the solvers average their gradients. `mpiexec -n N python script.py` starts the processes, or the script
does, as pycaffe's train.py: it calls NCCL.new_uid() first, and each process then set_solver_count and set_solver_rank. Otherwise there is one rank.
"""
from __future__ import annotations

import functools
import importlib.util
import os
import sys
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from ocaffe.errors import Error
from ocaffe.parallel.own_processes import announced, become_rank, new_group
from ocaffe.parallel.world import World, join, ranks_expected


@functools.cache
def world() -> World:
    """Return the ranks of this script. If it ends by an exception, all ranks end: the others would wait for it."""
    if _own.count > 1:
        if _own.rank is None:
            raise Error(f"set_solver_count({_own.count}), and no rank", fix="call set_solver_rank in each process before it creates a solver")
        become_rank(_own.rank, _own.count)
    ranks = join()
    if ranks.several:
        def end_all(kind: type[BaseException], problem: BaseException, trace: TracebackType | None) -> None:
            ranks.abort(problem)

        sys.excepthook = end_all
    return ranks


@dataclass
class _Own:
    """The setting of a process that the script has started by itself."""

    count: int = 1
    rank: int | None = None


_own = _Own()


def _check(what: str, value: int, only: int) -> None:
    if value != only:
        fact = f"{what}({value}), and this process is rank {world().rank} of {world().size}"
        fix = "start the script by `mpiexec -n N python`, or call caffe.NCCL.new_uid() before you start the processes; one process per device"
        raise Error(fact, fix=fix)


def _sets_own() -> bool:
    """Whether the settings of this process make it a rank. If mpiexec has started it, or if it has a solver, they are compared with its rank."""
    return announced() and ranks_expected()[0] == 1


def solver_count() -> int:
    """Return the number of solvers that train together: of ranks."""
    return world().size


def set_solver_count(count: int) -> None:
    """Set the number of processes, if the script starts them. Otherwise raises Error for another count than that of ranks."""
    if _sets_own():
        _own.count = count
        world.cache_clear()  # a copy of the parent's
    else:
        _check("set_solver_count", count, world().size)


def solver_rank() -> int:
    """Return the rank of this process's solver."""
    return world().rank


def set_solver_rank(rank: int) -> None:
    """Set the rank of this process, if the script starts the processes. Otherwise raises Error for another rank."""
    if _sets_own():
        _own.rank = rank
    else:
        _check("set_solver_rank", rank, world().rank)


def set_multiprocess(several: bool) -> None:
    """Do nothing: the number of solvers says whether there are several processes."""


def has_nccl() -> bool:
    """Return whether solvers of several processes can exchange gradients: whether MPI is installed."""
    return importlib.util.find_spec("mpi4py") is not None


class NCCL:
    """pycaffe's NCCL class. Solvers of several ranks average gradients by themselves in each step, so only `bcast` does something."""

    def __init__(self, solver: Any, uid: bytes | str) -> None:
        self.solver, self.uid = solver, uid

    @staticmethod
    def new_uid() -> bytes:
        """Return an identifier of the group of processes. Call it before you start them."""
        return b"ranks of mpiexec" if ranks_expected()[0] > 1 else os.fsencode(new_group())

    def bcast(self) -> None:
        """Copy the parameters and the history of rank 0 to all ranks. All ranks call it."""
        self.solver.broadcast()

    def on_start(self) -> None:
        """For `solver.add_callback(nccl)`."""

    def on_gradients_ready(self) -> None:
        """For `solver.add_callback(nccl)`."""

    def __call__(self, layer: int) -> None:
        """For `net.after_backward(nccl)`."""
