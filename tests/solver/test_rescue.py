"""A training that ends by an error saves the last whole iteration, and never a half-updated state."""
from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

from ocaffe.cl.failure import REASONS
from ocaffe.cl.program import BuildError, ProgramKey
from ocaffe.cl.session import Session
from ocaffe.cli import main
from ocaffe.errors import Error
from ocaffe.graph import parameters
from tests.solver.test_training import SETTINGS, everything, make, train, workplace  # noqa: F401  (a fixture)
from tests.tiers import rest_is_long

LENGTH = 6  # iterations
OUT_OF_RESOURCES, EXEC_STATUS_ERROR = -5, -14
PLAIN = f'display: 0 test_interval: 100 max_iter: {LENGTH} lr_policy: "multistep" stepvalue: 3'
GOOD = 1 << 30


def refusal(routine: str, code: int = OUT_OF_RESOURCES) -> cl.Error:
    kind = cl.MemoryError if code == -4 else cl.RuntimeError
    return kind(cl._cl._ErrorRecord(routine, code, ""))


def without_norm() -> None:
    """Remove the BatchNorm layer. Its statistics change early in forward."""
    path = pathlib.Path("net.prototxt")
    path.write_text("\n".join(line for line in path.read_text().splitlines() if '"BatchNorm"' not in line))


def states(device: Any, extra: str) -> list[dict[str, np.ndarray]]:
    """Return the state after every iteration of a training without errors."""
    solver = make(device, extra)
    result = []
    for _ in range(LENGTH + 1):
        result.append(everything(solver))
        solver.step(1)
    solver.close()
    return result


def fail(patch: pytest.MonkeyPatch, number: int, times: int) -> list[int]:
    """Make OpenCL refuse `times` kernels from launch `number` on. Return a list with the number of launches so far."""
    launches, original = [0], cl.enqueue_nd_range_kernel

    def enqueue(*args: Any) -> Any:
        launches[0] += 1
        if number < launches[0] <= number + times:
            raise refusal("clEnqueueNDRangeKernel")
        return original(*args)

    patch.setattr(cl, "enqueue_nd_range_kernel", enqueue)
    return launches


def launches_by_iteration(device: Any, extra: str) -> list[int]:
    """Return the number of launches before every iteration, from the start of solve()."""
    with pytest.MonkeyPatch.context() as patch:
        solver = make(device, extra + " snapshot_after_train: false")
        count = fail(patch, 1 << 30, 0)
        result: list[int] = []
        solver.on_start = lambda: result.append(count[0])
        solver.solve()
        solver.close()
    return [*result, count[0]]


@pytest.mark.parametrize("extra, norm, times, reached", rest_is_long([
    ("", False, 1, {3, 4}), ("", True, GOOD, {3}), ("iter_size: 2", True, 1, {3, 4}),
    ("", True, 1, {3, 4}), ("", False, GOOD, {3}), ("iter_size: 2", False, GOOD, {3}), ("clip_gradients: 0.5", True, 1, {3, 4}),
], 3))  # fmt: skip
def test_refused_launches(device: Any, extra: str, norm: bool, times: int, reached: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenCL refuses a launch of the fourth iteration. What is saved is the state of a training without errors."""
    monkeypatch.setattr(parameters, "MIN_FLUSH_BYTES", 1)  # updates in the middle of backward
    if not norm:
        without_norm()
    extra = f"{PLAIN} {extra}"
    expected = states(device, extra)
    begin, end = launches_by_iteration(device, extra)[3:5]
    saved = []
    for number in range(begin, end, (end - begin) // 5):
        solver = make(device, f'{extra} snapshot_prefix: "n{number}"')
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Error, match="the device has too few resources") as caught:
            fail(patch, number, times)
            solver.solve()
        solver.close()
        found = sorted(pathlib.Path().glob(f"n{number}_iter_*.solverstate"))
        assert caught.value.fix and len(found) < 2
        if not found:
            assert times > 1
            assert "no snapshot of iteration 3 is written, earlier ones are kept: the error came after a part" in caught.value.fact
            assert not list(pathlib.Path().glob(f"n{number}_*"))
            continue
        state = str(found[0])
        assert f"--snapshot={state}" in caught.value.fact
        resumed = make(device, extra, resume=state)
        saved.append(resumed.iter)
        equal(everything(resumed), expected[resumed.iter])
        resumed.step(LENGTH - resumed.iter)
        equal(everything(resumed), expected[LENGTH])
        resumed.close()
    assert set(saved) == reached


def equal(mine: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    for name, array in theirs.items():
        if name != "loss":
            np.testing.assert_array_equal(mine[name], array, name)


def ended(device: Any, message: str, extra: str = "", **patched: Callable[..., Any]) -> str:
    """Train with functions of pyopencl replaced from the fourth iteration on. Return the error."""
    solver = make(device, f"{PLAIN} {extra}")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Error, match=message) as caught:
        def start() -> None:
            if solver.iter == 3:
                for name, function in patched.items():
                    patch.setattr(cl, name, function)

        solver.on_start = start
        solver.solve()
    solver.close()
    return str(caught.value)


def raises(problem: Exception) -> Callable[..., Any]:
    def function(*args: Any, **named: Any) -> Any:
        raise problem

    return function


@pytest.mark.parametrize("code", REASONS)
def test_reasons(device: Any, code: int) -> None:
    """Every status has a reason and a remedy, and the state is saved."""
    without_norm()
    reason, fix = REASONS[code]
    error = ended(device, re.escape(reason), enqueue_nd_range_kernel=raises(refusal("clEnqueueNDRangeKernel", code)))
    assert f"fix: {fix}" in error
    assert ("--snapshot=snap_iter_3.solverstate continues" in error) == (code != EXEC_STATUS_ERROR)


def test_a_command_that_failed_while_it_ran(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host does not know which commands were carried out. No snapshot is written, and earlier ones stay."""
    solver = make(device, f"{PLAIN} snapshot: 2 display: 1".replace("display: 0", ""))
    solver.on_start = lambda: monkeypatch.setattr(type(solver.network), "loss", raises(refusal("clWaitForEvents"))) if solver.iter == 4 else None
    with pytest.raises(Error, match=r"no snapshot of iteration 5 is written.*does not tell which commands"):
        solver.solve()
    solver.close()
    assert sorted(path.name for path in pathlib.Path().glob("*.solverstate")) == ["snap_iter_2.solverstate", "snap_iter_4.solverstate"]


def test_a_lost_device(device: Any) -> None:
    """The commands before the error are lost too: waiting for them and reading the weights fail."""
    solver = make(device, PLAIN)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Error, match=r"given up the command queue(?s:.*)no snapshot of iteration 3 is written"):
        def start() -> None:
            if solver.iter == 3:
                patch.setattr(cl, "enqueue_nd_range_kernel", raises(refusal("clEnqueueNDRangeKernel", -36)))
                patch.setattr(Session, "settled", raises(refusal("clFinish", -36)))

        solver.on_start = start
        solver.solve()
    solver.close()
    assert not list(pathlib.Path().glob("snap*"))


def test_unreadable_weights(device: Any) -> None:
    without_norm()
    refused = {name: raises(refusal(name, -4)) for name in ("enqueue_nd_range_kernel", "enqueue_copy", "enqueue_map_buffer")}
    assert "no snapshot of iteration 3 is written, earlier ones are kept: the device has too little memory" in ended(device, "too little memory", **refused)
    assert not list(pathlib.Path().glob("snap*"))


@pytest.mark.parametrize("patched, reason", [("Buffer", "refused a buffer of"), ("Kernel", "too little memory")])
def test_a_test_net_that_does_not_fit(device: Any, patched: str, reason: str) -> None:
    """The TEST net is bound between two iterations."""
    solver = make(device, PLAIN + " test_interval: 4 test_iter: 1 test_initialization: false")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Error, match=reason) as caught:
        def start() -> None:
            if solver.iter == 3:
                solver.session.release(solver.test_networks[0].nets.compiled(solver.test_options[0]).commands)  # as if it was not bound yet
                patch.setattr(cl, patched, raises(refusal("clCreate", -4)))

        solver.on_start = start
        solver.solve()
    solver.close()
    assert "--snapshot=snap_iter_4.solverstate continues from there" in str(caught.value)


def test_a_program_that_does_not_build(device: Any) -> None:
    key = ProgramKey("softmax", ())
    patched = raises(BuildError(key, "a device", "kernel void f() {}", "<source>:1: error"))
    solver = make(device, PLAIN)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Error, match="'softmax' does not build on a device") as caught:
        solver.on_start = lambda: patch.setattr(type(solver.network.nets), "run", patched) if solver.iter == 3 else None
        solver.solve()
    solver.close()
    assert "--snapshot=snap_iter_3.solverstate continues from there" in str(caught.value)


def test_other_errors(device: Any) -> None:
    """The first error stays the exception. Nothing is saved before the first iteration, or where the solver never saves."""
    for extra, iteration, files in (("", 2, 2), ("", 0, 0), ("snapshot_after_train: false", 2, 0)):
        solver = make(device, f"{PLAIN} {extra}")
        solver.on_start = lambda: 1 // (iteration - solver.iter)  # noqa: B023
        with pytest.raises(ZeroDivisionError):
            solver.solve()
        solver.close()
        assert len(list(pathlib.Path().glob("snap*"))) == files
        for path in pathlib.Path().glob("snap*"):
            assert "_iter_2." in path.name
            path.unlink()


@pytest.mark.parametrize("extra", ["snapshot_after_train: false", "", "snapshot: 6", "snapshot_format: HDF5"])
def test_weights_that_are_not_finite(device: Any, extra: str) -> None:
    """The training ends with an error, and the files of an earlier run stay."""
    train(device, f"{PLAIN} {extra} snapshot: 6".replace("snapshot: 6 snapshot: 6", "snapshot: 6"), LENGTH)
    before = {path.name: path.read_bytes() for path in pathlib.Path().glob("snap*")}
    assert before
    solver = make(device, f"{PLAIN} {extra} base_lr: 1e30")
    with pytest.raises(Error, match="are NaN or infinite"):
        solver.solve()
    solver.close()
    assert {path.name: path.read_bytes() for path in pathlib.Path().glob("snap*")} == before


def test_status_of_the_command(device: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"{name}: {value}" for name, value in (SETTINGS | {"max_iter": "6", "display": "0"}).items()]
    pathlib.Path("solver.prototxt").write_text("\n".join(lines))
    monkeypatch.setattr(cl, "enqueue_nd_range_kernel", raises(refusal("clEnqueueNDRangeKernel")))
    for command in (["train", "--solver=solver.prototxt"], ["time", "--model=net.prototxt", "--iterations=1"]):
        assert main([*command, f"--device={device.number}"]) == 1
        error = capfd.readouterr().err
        assert "error: the device has too few resources" in error and "Traceback" not in error
