"""The names by which pycaffe's train.py divides the work over GPUs. ocaffe trains on one device, so one process is all there is."""
from __future__ import annotations

from typing import Any

from ocaffe.errors import Error


def _one(what: str, value: int, only: int) -> None:
    if value != only:
        raise Error(f"{what}({value}): ocaffe trains on one device", fix="train on one, with iter_size in the solver for a larger batch")


def solver_count() -> int:
    """How many solvers work together: 1."""
    return 1


def set_solver_count(count: int) -> None:
    """Raises Error for any count but 1."""
    _one("set_solver_count", count, 1)


def solver_rank() -> int:
    """Which of the solvers this process is: 0."""
    return 0


def set_solver_rank(rank: int) -> None:
    """Raises Error for any rank but 0."""
    _one("set_solver_rank", rank, 0)


def set_multiprocess(several: bool) -> None:
    """Nothing has to be divided, so either is right."""


def has_nccl() -> bool:
    """Whether gradients can be exchanged between GPUs: no."""
    return False


class NCCL:
    """Exchanges gradients between the solvers of several processes; of one solver there is nothing to exchange, so a script for many runs with one."""

    def __init__(self, solver: Any, uid: str) -> None:
        self.solver, self.uid = solver, uid

    @staticmethod
    def new_uid() -> str:
        """What the processes find each other by."""
        return "one process"

    def bcast(self) -> None:
        """Give every process the weights of the first."""

    def on_start(self) -> None:
        """For `solver.add_callback(nccl)`."""

    def on_gradients_ready(self) -> None:
        """For `solver.add_callback(nccl)`."""

    def __call__(self, layer: int) -> None:
        """For `net.after_backward(nccl)`."""
