"""pycaffe's names for training on several GPUs, as its train.py uses them. ocaffe trains on one device in one process."""
from __future__ import annotations

from typing import Any

from ocaffe.errors import Error


def _one(what: str, value: int, only: int) -> None:
    if value != only:
        raise Error(f"{what}({value}): ocaffe trains on one device", fix="train on one, with iter_size in the solver for a larger batch")


def solver_count() -> int:
    """Return the number of solvers that train together: 1."""
    return 1


def set_solver_count(count: int) -> None:
    """Raises Error for any count but 1."""
    _one("set_solver_count", count, 1)


def solver_rank() -> int:
    """Return the rank of this process's solver: 0."""
    return 0


def set_solver_rank(rank: int) -> None:
    """Raises Error for any rank but 0."""
    _one("set_solver_rank", rank, 0)


def set_multiprocess(several: bool) -> None:
    """Do nothing: there is one process."""


def has_nccl() -> bool:
    """Return whether gradients can be exchanged between GPUs: False."""
    return False


class NCCL:
    """Stand-in for pycaffe's NCCL class. With one solver there are no gradients to exchange, so its methods do nothing."""

    def __init__(self, solver: Any, uid: str) -> None:
        self.solver, self.uid = solver, uid

    @staticmethod
    def new_uid() -> str:
        """Return an identifier of the group of processes."""
        return "one process"

    def bcast(self) -> None:
        """Send the weights of the first process to all others: none here."""

    def on_start(self) -> None:
        """For `solver.add_callback(nccl)`."""

    def on_gradients_ready(self) -> None:
        """For `solver.add_callback(nccl)`."""

    def __call__(self, layer: int) -> None:
        """For `net.after_backward(nccl)`."""
