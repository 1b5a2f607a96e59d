"""Save the state of the last whole iteration when a training ends by an error.

An iteration is whole if the device has carried out all of its commands, the update included. It must not have begun to change the state for
the next one. Three facts show this:

* Session.updates counts the updates that the device took wholly. Session.changed says whether commands after them have changed parameters.
* The error is not one of a command that ran, because then the host does not know which commands were carried out.
* The device reports that it has carried out everything (Session.settled).
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from ocaffe.cl.failure import DeviceFailure, device_failure
from ocaffe.cl.session import Session
from ocaffe.compiler.network import Network
from ocaffe.errors import Error
from ocaffe.parallel.world import World
from ocaffe.shown import Lines, flag
from ocaffe.solver.checks import writes_snapshots
from ocaffe.solver.policies import LearningRate
from ocaffe.support import log


class Training(Protocol):
    """The state of a solver that this module reads and corrects."""

    param: Any  # the SolverParameter
    session: Session
    network: Network
    world: World
    rate: LearningRate
    iter: int
    begin: Begin | None  # of the last iteration that began
    tried: int  # the iteration of the last snapshot that was begun

    def snapshot(self) -> str:
        """Write weights and state. Return the path of the state."""


class Begin(NamedTuple):
    """The host's state at the beginning of an iteration. `updates`: the value of Session.updates."""

    iteration: int
    updates: int
    current_step: int
    cursor: dict[str, int]

    @classmethod
    def of(cls, solver: Training) -> Begin:
        return cls(solver.iter, solver.session.updates, solver.rate.current_step, solver.network.inputs.cursor)

    def restore(self, solver: Training) -> None:
        """Set the host's state back. The next iteration is this one again."""
        solver.iter, solver.rate.current_step, solver.begin = self.iteration, self.current_step, None
        solver.network.inputs.seek(self.cursor)


@contextlib.contextmanager
def whole_iteration(solver: Training) -> Iterator[Begin]:
    """Context of the commands of one iteration, with the state at its begin.

    If OpenCL refuses a command after others have changed the state, the iteration is completed where possible.
    """
    session = solver.session
    begin = solver.begin = Begin.of(solver)
    session.changed, session.refused = False, []
    try:
        yield begin
        if session.refused:
            raise session.refused[0]
    finally:
        session.refused = None


@contextlib.contextmanager
def rescued(solver: Training) -> Iterator[None]:
    """Context of a training. If it ends by an error, write a snapshot of the last whole iteration where that is possible.

    Exceptions of OpenCL become Errors with a remedy.
    """
    started = solver.iter
    try:
        yield
    except Exception as problem:
        error = device_failure(problem) or problem
        note = _rescue(solver, error, started)
        if note:
            log.error("solver.cpp:464", f"The training ends by an error: {note}")
            if isinstance(error, Error):
                error.fact = Lines(error.fact, f"  {note}")
        if error is problem:
            raise
        raise error from problem


def _rescue(solver: Training, problem: Exception, started: int) -> str:
    """Write the snapshot. Return what was done and why, or '' where there was nothing to save."""
    if not writes_snapshots(solver.param) or not solver.world.first:
        return ""
    _to_whole_iteration(solver)
    if solver.iter in (started, solver.tried):
        return ""
    kept = f"no snapshot of iteration {solver.iter} is written, earlier ones are kept"
    if solver.session.changed:
        return f"{kept}: the error came after a part of iteration {solver.iter} had changed the weights or statistics"
    if isinstance(problem, DeviceFailure) and not problem.refused:
        return f"{kept}: the device does not tell which commands it has carried out"
    try:
        if not solver.session.settled():
            return f"{kept}: not all commands of the device are complete"
        path = solver.snapshot()
    except Exception as reason:
        return f"{kept}: {device_failure(reason) or reason}"
    return f"the state after {solver.iter} iterations is saved; {flag('snapshot', path)} continues from there"


def _to_whole_iteration(solver: Training) -> None:
    """Set the host's state to that of the last iteration that the device took wholly."""
    begin = solver.begin
    if begin is None or solver.iter != begin.iteration:
        return  # between two iterations
    if solver.session.updates > begin.updates:  # the error came between the update and the end of the iteration
        solver.iter += 1
        solver.network.inputs.seek({name: batch + solver.param.iter_size for name, batch in begin.cursor.items()})
    else:
        begin.restore(solver)
