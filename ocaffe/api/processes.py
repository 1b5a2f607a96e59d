"""pycaffe's names for training on several GPUs, as its train.py uses them.

Under `mpiexec -n N python script.py` each process is a rank with its own solver, and the solvers average their gradients. Without mpiexec there is one.
"""
from __future__ import annotations

import functools
import sys
from types import TracebackType
from typing import Any

from ocaffe.errors import Error
from ocaffe.parallel.world import World, join


@functools.cache
def world() -> World:
    """Return the ranks of this script. If it ends by an exception, all ranks end: the others would wait for it."""
    ranks = join()
    if ranks.several:
        def end_all(kind: type[BaseException], problem: BaseException, trace: TracebackType | None) -> None:
            ranks.abort(problem)

        sys.excepthook = end_all
    return ranks


def _check(what: str, value: int, only: int) -> None:
    if value != only:
        fact = f"{what}({value}), and this process is rank {world().rank} of {world().size}"
        raise Error(fact, fix="start the script by `mpiexec -n N python`: one process per device")


def solver_count() -> int:
    """Return the number of solvers that train together: of ranks."""
    return world().size


def set_solver_count(count: int) -> None:
    """Do nothing. Raises Error for another count than that of ranks."""
    _check("set_solver_count", count, world().size)


def solver_rank() -> int:
    """Return the rank of this process's solver."""
    return world().rank


def set_solver_rank(rank: int) -> None:
    """Do nothing. Raises Error for another rank than that of this process."""
    _check("set_solver_rank", rank, world().rank)


def set_multiprocess(several: bool) -> None:
    """Do nothing: mpiexec decides whether there are several processes."""


def has_nccl() -> bool:
    """Return whether solvers of several processes can exchange gradients: whether this process is one of several ranks."""
    return world().several


class NCCL:
    """pycaffe's NCCL class. Solvers of several ranks exchange parameters at their start and gradients in each step, so its methods do nothing."""

    def __init__(self, solver: Any, uid: str) -> None:
        self.solver, self.uid = solver, uid

    @staticmethod
    def new_uid() -> str:
        """Return an identifier of the group of processes."""
        return "ranks of mpiexec"

    def bcast(self) -> None:
        """Do nothing: the solvers have the weights of rank 0."""

    def on_start(self) -> None:
        """For `solver.add_callback(nccl)`."""

    def on_gradients_ready(self) -> None:
        """For `solver.add_callback(nccl)`."""

    def __call__(self, layer: int) -> None:
        """For `net.after_backward(nccl)`."""
