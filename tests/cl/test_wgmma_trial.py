"""Hopper's wgmma is used only after a trial on the device; a driver that refuses, crashes, hangs or computes wrong results leaves mma.sync."""
from __future__ import annotations

import contextlib
import pathlib
import re
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ocaffe import proto
from ocaffe.cl import device as devices
from ocaffe.cl import verdicts, wgmma_trial
from ocaffe.cl.device import Device, DeviceInfo, with_math
from ocaffe.cl.limits import with_bounds
from ocaffe.cl.open_ptx import FIRST
from ocaffe.cl.program import BuildError
from ocaffe.cl.session import Session
from ocaffe.compiler.network import Network, phase_net
from ocaffe.formats.text import parse
from ocaffe.ir.target import Target
from ocaffe.selftest import wgmma as child
from tests.harness import switch

KIB = 1024
PASSES = "pass"
SIGNALS = pytest.mark.skipif(sys.platform == "win32", reason="signals")


def card(driver: str = "580", capability: int = 9) -> DeviceInfo:
    target = Target(kind="gpu", runtime="nvidia", local_memory=48 * KIB, tensor_cores=True, extensions=frozenset({"cl_nv_compiler_options"}))
    own = SimpleNamespace(compute_capability_major_nv=capability)
    return DeviceInfo("0:1", "NVIDIA H100", "NVIDIA CUDA", "OpenCL 3.0 CUDA", "OpenCL 3.0", driver, target, 2000, (), "", None, own)


def target_of(info: DeviceInfo, math: str) -> Target:
    """The target of a device that is opened with this math."""
    info = with_math(info, math)
    passes = devices.begin_trial(info)
    return replace(info.target, wgmma=passes is not None and passes())


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> SimpleNamespace:
    """Imitated trials: `code` is run in their place, `numbers` are the devices that they were of."""
    monkeypatch.setenv("OCAFFE_CACHE", str(tmp_path))
    switch(monkeypatch, "wgmma=1")
    monkeypatch.setattr(verdicts, "_here", {})
    made = SimpleNamespace(code=PASSES, numbers=[])

    def command(number: str) -> list[str]:
        made.numbers.append(number)
        return [sys.executable, "-c", made.code]

    monkeypatch.setattr(wgmma_trial, "_command", command)
    return made


@pytest.mark.parametrize("math", ["bf16", "tf32"])
def test_the_first_use_runs_the_trial(trials: SimpleNamespace, capsys: pytest.CaptureFixture[str], math: str) -> None:
    assert not any(target_of(card(), other).wgmma for other in ("fp32", "ieee", "fp16")) and not trials.numbers
    for _ in range(2):
        target = target_of(card(), math)
        assert (target.wgmma, target.math, target.static_local_memory) == (True, math, 200 * KIB)
    assert trials.numbers == ["0:1"]
    target_of(card(driver="590"), math)
    assert trials.numbers == ["0:1", "0:1"] and not capsys.readouterr().err


@pytest.mark.parametrize("capability", [8, 10])
def test_other_generations_have_none(trials: SimpleNamespace, capability: int) -> None:
    target = target_of(card(capability=capability), "bf16")
    assert not target.wgmma and target.static_local_memory == 48 * KIB and not trials.numbers


def test_the_user_may_switch_it_off(trials: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as bounded:
        switch(bounded, "limits=local_memory=32768")
        assert not target_of(replace(card(), target=with_bounds(card().target)), "bf16").wgmma
    switch(monkeypatch, "wgmma=0")
    assert not target_of(card(), "bf16").wgmma and not trials.numbers
    switch(monkeypatch, "wgmma=1")
    assert target_of(card(), "bf16").wgmma


@pytest.mark.parametrize(
    "code, reason",
    [
        ("import sys; print('a warning\\nH100, step 2 of 2: ptxas fatal', file=sys.stderr); sys.exit(3)", "exit status 3: H100, step 2 of 2: ptxas fatal"),
        ("import sys; print('7 of 4096 results are wrong', file=sys.stderr); sys.exit(3)", "exit status 3: 7 of 4096 results are wrong"),
        ("import os; os._exit(139)", "exit status 139"),
        ("import time; time.sleep(60)", "no answer for 0.5 s"),
    ],
    ids=["refused", "wrong", "crash", "hang"],
)
def test_a_failed_trial_leaves_one_line(
    trials: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path, code: str, reason: str
) -> None:
    trials.code = code
    if "sleep" in code:
        monkeypatch.setattr(wgmma_trial, "SECONDS", 0.5)
    target = target_of(card(), "bf16")
    assert target == replace(card().target, math="bf16")
    [line] = capsys.readouterr().err.splitlines()
    [file] = (tmp_path / "units").iterdir()
    assert line.endswith(f"NVIDIA H100: the trial of wgmma failed, products use mma.sync instead: {reason} (to try it again, delete {file})")
    trials.code = PASSES
    assert not target_of(card(), "tf32").wgmma and len(trials.numbers) == 1 and not capsys.readouterr().err


@pytest.mark.parametrize(
    "code, lasts",
    [
        ("raise MemoryError('no context')", False),
        pytest.param("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", False, marks=SIGNALS),
        pytest.param("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", True, marks=SIGNALS),
    ],
    ids=["not opened", "killed from outside", "crash"],
)
def test_failures_for_other_reasons_are_forgotten_with_the_process(trials: SimpleNamespace, code: str, lasts: bool) -> None:
    trials.code = code
    assert not target_of(card(), "bf16").wgmma and not target_of(card(), "bf16").wgmma and len(trials.numbers) == 1
    trials.code = PASSES
    verdicts._here.clear()  # as in another process
    assert target_of(card(), "bf16").wgmma != lasts and len(trials.numbers) == 1 + (not lasts)


@pytest.mark.parametrize("code", [PASSES, "raise SystemExit(1)"])
def test_without_a_cache_a_process_tries_once(trials: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setenv("OCAFFE_CACHE", "off")
    trials.code = code
    assert {target_of(card(), "bf16").wgmma for _ in range(3)} == {code == PASSES} and len(trials.numbers) == 1


def test_an_opened_device_waits_when_its_target_is_read(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then a net is built and compilers start."""
    waits: list[str] = []
    monkeypatch.setattr(devices, "begin_trial", lambda info: lambda: bool(waits.append("trial")) or True)
    opened = Device(device.info, device)
    monkeypatch.setattr(Session, "expect", lambda session, layers: waits.append("compilers"))
    with contextlib.closing(opened):
        net = parse('layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 } } }', proto.NetParameter)
        Network(phase_net(net, proto.TEST), proto.TEST, Session(opened), quiet=True)
        assert waits == ["compilers"]
        assert opened.target == replace(device.target, wgmma=True) and opened.target.wgmma and waits == ["compilers", "trial"]


def test_the_program_of_the_trial(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is emulated on this device, in the local memory that every device has."""
    monkeypatch.setattr(wgmma_trial, "DEFINES", (("LOCAL_BYTES", str(8 * KIB)),))
    assert child.wrong(device, emulated=True) == ""
    monkeypatch.setattr(wgmma_trial, "SOURCE", wgmma_trial.SOURCE.replace("k < 16", "k < 15"))
    assert child.wrong(device, emulated=True).endswith("of 4096 results are wrong")


def test_the_process_of_the_trial(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler of this device refuses the program."""
    if devices._capability(device.cl_device, device.target.extensions) == wgmma_trial.CAPABILITY:
        assert wgmma_trial.Trial(device.number).outcome() == ("", True)
        return
    with pytest.raises(BuildError, match=FIRST):
        child.wrong(device)
    problem, lasts = wgmma_trial.Trial(device.number).outcome()
    assert lasts and re.fullmatch(rf"exit status 3: .*{FIRST} .*: .*error.*", problem)
