"""`get_solver` and the solver classes of pycaffe (CAFFE.md §4) on the same engine as `ocaffe train`."""
from __future__ import annotations

import copy
from typing import Any

import numpy as np

from ocaffe import log
from ocaffe.cl.device import Device, select_device
from ocaffe.graph.record import ALL
from ocaffe.model.text import read_solver
from ocaffe.net import Net
from ocaffe.solver.solver import Solver

_random_seed: int | None = None


def set_random_seed(seed: int) -> None:
    """Seed of the solvers made from now on that name no random_seed."""
    global _random_seed
    _random_seed = int(seed)


class SGDSolver:
    """A solver from a prototxt: `net`, `test_nets`, `iter`, `step(n)`, `solve()`, `snapshot()`, `restore(file)`.

    All blobs stay readable unless `keep` names fewer; `keep=[]` plans memory as `ocaffe train` does, within `memory_limit` bytes if given.
    """

    def __init__(self, file: str | Any, *, keep: Any = None, device: Device | str | None = None, memory_limit: int | None = None) -> None:
        if log.minimum == 0:
            log.quiet()
        param = read_solver(file) if isinstance(file, str) else file
        if _random_seed is not None and param.random_seed < 0:
            param.random_seed = _random_seed
        opened = device if isinstance(device, Device) else select_device(device)
        kept = ALL if keep is None else frozenset(keep)
        self._solver = Solver(param, opened, file=file if isinstance(file, str) else None, keep=kept, memory_limit=memory_limit)
        self.net = Net._of(self._solver.network)
        self.test_nets = [Net._of(network) for network in self._solver.test_networks]

    @property
    def iter(self) -> int:
        return self._solver.iter

    @property
    def param(self) -> Any:
        return self._solver.param

    @property
    def lr(self) -> float:
        """The rate of the present iteration."""
        return copy.copy(self._solver.rate)(self._solver.iter)[0]  # a copy: asking must not advance multistep

    def step(self, iterations: int) -> None:
        """Train for some iterations; what was written into parameters before is used."""
        self.net._before()
        self._solver.step(iterations)
        self._refresh()

    def solve(self, resume: str | None = None) -> None:
        """Train to max_iter, from a .solverstate if given."""
        if resume:
            self.restore(resume)
        self.net._before()
        self._solver.solve()
        self._refresh()

    def _refresh(self) -> None:
        self.net._after()

    def snapshot(self) -> None:
        """Write weights and state, with what scripts wrote into them."""
        with self.net._changing():
            self._solver.snapshot()

    def restore(self, file: str) -> None:
        """Continue from a .solverstate."""
        with self.net._changing():
            self._solver.restore(file)

    def apply_update(self) -> None:
        """Update the parameters from their diffs, without forward or backward; `iter` stays."""
        self.net._before()
        self._solver.apply_update()
        self._refresh()

    def loss_history(self) -> np.ndarray:
        """The losses in the smoothing window."""
        return np.array(self._solver.losses.window, np.float32)


def get_solver(file: str, **options: Any) -> SGDSolver:
    """The solver of a prototxt, whatever its type."""
    return SGDSolver(file, **options)
