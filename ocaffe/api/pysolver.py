"""`get_solver` and the solver classes of pycaffe, on the same engine as `ocaffe train`."""
from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, ClassVar

import numpy as np

from ocaffe import proto
from ocaffe.api import runtime
from ocaffe.api.engine import Lease
from ocaffe.api.net import Net, is_path, kept_names, whole_bytes
from ocaffe.api.processes import world
from ocaffe.cl.device import Device
from ocaffe.cl.failure import explained
from ocaffe.cl.outputs import Fetched
from ocaffe.compiler.compile import CompiledNet
from ocaffe.errors import Error, WrongType
from ocaffe.formats.text import read_solver
from ocaffe.formats.upgrade import upgrade_solver
from ocaffe.solver.checks import writes_snapshots
from ocaffe.solver.ranks import broadcast_state
from ocaffe.solver.snapshot import owned, prefix_of
from ocaffe.solver.solver import Solver as Training
from ocaffe.support import log


class Solver:
    """A solver from a prototxt or a SolverParameter message: `net`, `test_nets`, `iter`, `lr`, `param`, `step(n)`, `solve()`, `snapshot()`, `restore(file)`.

    All blobs stay readable unless `keep` names fewer. `keep=[]` plans memory as `ocaffe train` does, within `memory_limit`
    bytes if given. `device` is the same as for Net. The log is quiet unless init_log() was called or GLOG_minloglevel is set.
    Raises Error if a file is wrong.
    """

    rule: ClassVar[str] = ""  # the type of solver; empty: the type in the file

    @explained
    def __init__(
        self,
        file: str | Any,
        *,
        keep: Iterable[str] | None = None,
        device: Device | str | None = None,
        memory_limit: int | None = None,
    ) -> None:
        log.as_library()
        kept, memory_limit = kept_names(keep), whole_bytes(memory_limit)
        param = proto.SolverParameter()
        param.CopyFrom(_settings(file))
        if self.rule:
            param.type = self.rule
        seed = runtime.random_seed()
        if seed is not None and param.random_seed < 0:
            param.random_seed = seed
        own = not isinstance(device, Device)
        opened = runtime.open_device(device) if not isinstance(device, Device) else device
        self._solver = Training(param, opened, file=str(file) if is_path(file) else None, keep=kept, memory_limit=memory_limit, world=world())
        self._lease = Lease(self._solver.session, own)
        self.net = Net._of(self._solver.network, self._lease, self._solver.passes[0][0])
        self.test_nets = [Net._of(network, self._lease, options) for network, options in zip(self._solver.test_networks, self._solver.test_options)]
        self._callbacks: list[tuple[Callable[[], object], Callable[[], object]]] = []
        self._solver.run_layers = self._run_layers
        self._solver.on_start = lambda: self._call(0)
        self._solver.on_gradients = lambda: self._call(1)

    @property
    def iter(self) -> int:
        """Number of iterations done."""
        return self._solver.iter

    @property
    def param(self) -> Any:
        """The SolverParameter. base_lr, max_iter and display may be changed during training."""
        return self._solver.param

    @property
    def lr(self) -> float:
        """The learning rate of the present iteration."""
        return float(copy.copy(self._solver.rate)(self._solver.iter)[0])  # a copy, because a call advances the state of multistep

    def step(self, iterations: int) -> None:
        """Train for `iterations` iterations. Values that the script wrote into parameters before are used."""
        self._run(lambda: self._solver.step(int(iterations)))

    def solve(self, resume: str | None = None) -> None:
        """Train to max_iter, with the tests and snapshots of the prototxt. `resume`: a .solverstate to start from."""
        if resume:
            self.restore(resume)
        param = self._solver.param
        with owned(prefix_of(param, self._solver.file)) if writes_snapshots(param) and world().first else contextlib.nullcontext():
            self._run(self._solver.solve)

    def _run_layers(self, words: dict[str, float]) -> tuple[CompiledNet, Fetched] | None:
        """Run a forward and a backward pass with the callbacks of the net, if it has any. They may read and write blobs between the layers."""
        engine, last = self.net._engine, len(self.net._engine.network.graph.nodes) - 1
        if not engine.hooked:
            return None
        engine.forward(0, last, words)
        engine.backward(last, 0)
        compiled = engine.current()
        return compiled, compiled.commands.fetch()

    @explained
    def _run(self, work: Callable[[], None]) -> None:
        self.net._engine.check_open()
        self._enter()
        try:
            work()
        finally:
            self._show()
            self.net._engine.after()

    def _enter(self) -> None:
        """Send the values that scripts wrote to the device, and switch to recordings of whole passes."""
        if self._solver.session.touched:
            self.net._engine.before()
        self._show()

    def _show(self) -> None:
        """Make blobs show the values of the compiled nets that the solver runs."""
        for net in self.test_nets:
            net._engine.together()
        if self.net._engine.hooked:
            return
        self.net._engine.together(self._solver.network.nets.compiled(*self._solver.passes[-1]))

    def snapshot(self) -> None:
        """Write weights and state, including values that scripts wrote."""
        with self.net._engine.changing():
            self._solver.snapshot()

    def restore(self, file: str) -> None:
        """Continue from a .solverstate. Raises Error if it belongs to another net or solver."""
        with self.net._engine.changing():
            self._solver.restore(file)

    def broadcast(self) -> None:
        """Copy the parameters and the history of rank 0 to all ranks. All ranks call it."""
        if self._solver.world.several:
            with self.net._engine.changing():
                broadcast_state(self._solver)

    def apply_update(self) -> None:
        """Update the parameters from their diffs, without forward or backward. `iter` does not change."""
        self._run(self._solver.apply_update)

    def share_weights(self, net: Net) -> None:
        """Share this solver's parameters with the layers of the same names in `net`, which then sees every update.

        Raises Error for other shapes.
        """
        net.share_with(self.net)

    def add_callback(self, on_start: Any, on_gradients_ready: Callable[[], object] | None = None) -> None:
        """Call `on_start()` before each iteration and `on_gradients_ready()` before each update.

        A single argument is an object with these two methods. Both methods may read and change the blobs of the net, the parameters and the diffs of both.
        Raises Error for a solver with keep=[], which does not store gradients.
        """
        if not self._solver.passes[0][0].keep:
            raise Error("a solver with keep=[] updates the parameters during backward and stores no gradients", fix="leave keep away, or name a blob")
        start, ready = (on_start.on_start, on_start.on_gradients_ready) if on_gradients_ready is None else (on_start, on_gradients_ready)
        self._callbacks.append((start, ready))

    def _call(self, which: int) -> None:
        """Call the callbacks. Refresh the arrays before each one, and send the values that it wrote after it."""
        for callback in self._callbacks:
            self.net._engine.after()
            callback[which]()
            self._enter()

    def loss_history(self) -> np.ndarray:
        """Return the last losses, at most average_loss of them."""
        return np.array(self._solver.losses.recent, np.float32)

    def close(self) -> None:
        """Stop reading data and free the memory on the device."""
        self._solver.close()
        self._lease.close()

    def __enter__(self) -> Solver:
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class SGDSolver(Solver):
    """Stochastic gradient descent with momentum, regardless of the type in the file; see Solver."""

    rule = "SGD"


class NesterovSolver(SGDSolver):
    """Nesterov's accelerated gradient; see Solver."""

    rule = "Nesterov"


class AdaGradSolver(SGDSolver):
    """AdaGrad; see Solver."""

    rule = "AdaGrad"


class RMSPropSolver(SGDSolver):
    """RMSProp; see Solver."""

    rule = "RMSProp"


class AdaDeltaSolver(SGDSolver):
    """AdaDelta; see Solver."""

    rule = "AdaDelta"


class AdamSolver(SGDSolver):
    """Adam; see Solver."""

    rule = "Adam"


SOLVERS = {cls.rule: cls for cls in (SGDSolver, NesterovSolver, AdaGradSolver, RMSPropSolver, AdaDeltaSolver, AdamSolver)}


def get_solver(file: str | Any, **options: Any) -> Solver:
    """Return the solver of a prototxt, of the class that its `type` names. `options` are those of Solver. Raises Error."""
    return SOLVERS.get(_settings(file).type, Solver)(file, **options)  # the constructor raises Error for an unknown type


def _settings(file: str | Any) -> Any:
    """Return the SolverParameter of a prototxt, or the given one, in today's format."""
    message = read_solver(file) if is_path(file) else file
    if not hasattr(message, "DESCRIPTOR"):
        raise WrongType(f"{file!r} is given as the file of a solver", fix="give the path of a prototxt, or a SolverParameter message")
    return upgrade_solver(message)
