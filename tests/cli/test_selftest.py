"""`ocaffe selftest`: every kernel file has a case, and all cases pass. Wrong kernels, crashes and hangs become rows of the table."""
from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
from typing import Any

import numpy as np
import pytest

from ocaffe.cl.program import Programs
from ocaffe.cli import main
from ocaffe.errors import Error
from ocaffe.ir.target import Target
from ocaffe.kernels.files import kernel_files
from ocaffe.selftest import boxes, layers, updates
from ocaffe.selftest.case import TOLERANCE, Case
from ocaffe.selftest.selftest import Row, all_cases, program_keys, selftest
from tests.harness import changed

KERNELS = {path.stem for path in kernel_files().values() if path.suffix == ".cl"}


def programs(case: Any, target: Target) -> set[str]:
    """Return the kernel files that a case runs on `target`. 'generated' means kernels without a file."""
    return {key.family for key in program_keys(case, target)}


def test_every_kernel_file_has_a_case() -> None:
    """The case runs on the kernel's device class, or with `--math bf16`."""
    gpu_target = Target(kind="gpu", runtime="nvidia", compute_units=40)
    cores = dataclasses.replace(gpu_target, tensor_cores=True, math="bf16")
    targets = [Target(), gpu_target, cores, dataclasses.replace(cores, wgmma=True)]
    cpu, gpu, rounded, hopper = (set().union(*(programs(case, target) for case in all_cases())) for target in targets)
    assert cpu | gpu | rounded | hopper == {*KERNELS, "generated"}
    assert not [name for name in cpu if name.endswith("_gpu")] and not [name for name in gpu if name.endswith("_cpu")]


def test_names_are_unique() -> None:
    names = [case.name for case in all_cases()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
def test_case(case: Any, device: Any) -> None:
    findings = case.run(device)
    assert findings and all(finding.error <= TOLERANCE for finding in findings), findings


@pytest.mark.parametrize("case", updates.cases(), ids=lambda case: case.name)
def test_updates_as_on_a_gpu(case: updates.UpdateCase, device: Any) -> None:
    findings = case.run(changed(device, kind="gpu"))
    assert all(finding.error <= TOLERANCE for finding in findings), findings


def case_of(name: str) -> Case:
    return next(case for case in [*layers.cases(), *boxes.cases()] if case.name == name)


def test_a_wrong_value_is_found(device: Any) -> None:
    good = case_of("transpositions")

    def wrong(x: Any, got: Any) -> Any:
        value = good.values(x, got)["a"].copy()
        value[1, 2, 3, 4] += 1e-3 * np.abs(value).max()
        return {"a": value}

    value, gradient = dataclasses.replace(good, values=wrong).run(device)
    assert value.error > TOLERANCE and value.place.startswith("at [1, 2, 3, 4]: ") and "in numpy" in value.place
    assert gradient.error <= TOLERANCE


def test_a_wrong_gradient_is_found(device: Any) -> None:
    """A gradient is wrong although the value is right."""
    good = case_of("matrix product")

    def flat(x: Any, got: Any) -> Any:
        return {"y": good.values({**x, "y/0": x["y/0"] * 1.001}, got)["y"] * 0 + got["y"] + 1.001 * (x["x0"] @ x["y/0"].T) - 1.001 * got["y"]}

    findings = {finding.what: finding.error for finding in dataclasses.replace(good, values=flat).run(device)}
    assert findings["gradient of y/0"] > TOLERANCE


def test_other_shapes_and_nan_are_found(device: Any) -> None:
    good = case_of("argmax")
    assert dataclasses.replace(good, values=lambda x, got: {"y": got["y"][:, :, 0]}).run(device)[0].place.startswith("shape (50, 1, 3), numpy has")
    assert dataclasses.replace(good, values=lambda x, got: {"y": got["y"] * np.nan}).run(device)[0].error == np.inf


# -- the processes -------------------------------------------------------------------------------------------------------

CHILD = """
import json, os, sys, time
def say(**answer): print(json.dumps(answer), flush=True)
names, build = json.loads(sys.argv[1])[3::3]
say(device="0:0: made up")
if build and "broken" in names:
    say(begin="all programs")
    say(built=[1, 2])
    os.abort()
for name in names:
    say(begin=name)
    if name == "crash": print("driver: out of luck", file=sys.stderr, flush=True); os.abort()
    if name == "hang": time.sleep(60)
    if name == "error": say(name=name, seconds=1, problem="RuntimeError: no"); break
    say(name=name, seconds=1, findings=[["y", 1.0 if name == "wrong" else 1e-7, "at [0]: 1 here, 2 in numpy"]])
"""


def rows(names: list[str], script: str = CHILD, timeout: float = 30, built: Any = print) -> tuple[list[Row], list[str]]:
    devices: list[str] = []
    return list(selftest(names, None, None, None, timeout, devices.append, [sys.executable, "-c", script], built=built)), devices


def test_what_a_bad_driver_does_is_a_row() -> None:
    found, devices = rows(["good", "crash", "wrong", "error", "late"])
    assert [(row.name, row.word) for row in found] == [
        ("good", "passed"), ("crash", "CRASHED"), ("wrong", "FAILED"), ("error", "FAILED"), ("late", "passed"),
    ]  # fmt: skip
    details = {row.name: row.detail for row in found}
    assert "SIGABRT" in details["crash"] and "driver: out of luck" in details["crash"]
    assert details["wrong"] == "y: off by 1 of the largest magnitude; at [0]: 1 here, 2 in numpy"
    assert details["error"] == "RuntimeError: no" and details["good"] == ""
    assert devices == ["0:0: made up"]


def test_a_hang_is_a_row() -> None:
    found, _ = rows(["hang", "good"], timeout=1.5)
    assert [(row.name, row.word, row.detail) for row in found] == [("hang", "HANGS", "no answer for 1.5 s"), ("good", "passed", "")]


def test_a_compiler_that_crashes_before_the_first_family_is_no_row() -> None:
    counts: list[tuple[int, int]] = []
    found, devices = rows(["good", "broken"], built=lambda *each: counts.append(each))
    assert [(row.name, row.word) for row in found] == [("good", "passed"), ("broken", "passed")]
    assert counts == [(1, 2)] and devices == ["0:0: made up"]


@pytest.mark.parametrize("name", ["matrix product", "pointwise, several", "update: SGD, wrong label", "exchange of gradients: 16 bits"])
def test_programs_that_are_built_first_are_those_that_run(device: Any, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("OCAFFE_CACHE", str(tmp_path))
    case = next(case for case in all_cases() if case.name == name)
    monkeypatch.setattr(device, "programs", programs := Programs(device))
    counts: list[tuple[int, int]] = []
    programs.progress = lambda *each: counts.append(each)
    programs.build_all(program_keys(case, device.target))
    before = len(counts)
    case.run(device)
    assert 0 < before == len(counts), "a program was built later"


def test_a_crash_while_the_device_is_opened() -> None:
    found, _ = rows(["good", "other"], "import os; os._exit(3)")
    assert [(row.name, row.word, row.detail) for row in found] == [("opening the device", "CRASHED", "exit status 3")]


def test_no_such_device() -> None:
    with pytest.raises(Error, match="no such"):
        rows(["good"], f"print('{json.dumps({'refused': 'no such device'})}')")


def test_command(device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    count = len(updates.cases())
    assert main(["selftest", f"--device={device.number}", "--only=update", "--kind=gpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"device {device.number}: {device.name}") and f"{count} of {count} families passed" in lines[-1]
    assert sum(line.startswith("update: ") and " passed " in line for line in lines) == count
    assert main(["selftest", "--list"]) == 0
    assert capsys.readouterr().out.splitlines() == [case.name for case in all_cases()]


def test_command_failures(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import ocaffe.cli.selftest as command

    monkeypatch.setattr(command, "selftest", lambda *args, **kinds: iter([Row("a", "passed", 1, 1e-7), Row("b", "CRASHED", detail="signal SIGSEGV")]))
    assert main(["selftest", "--only=update: A"]) == 1
    assert "    signal SIGSEGV" in capsys.readouterr().out.splitlines()
    assert main(["selftest", "--only=nothing like it"]) == 1
    assert "--list" in capsys.readouterr().err
    assert main(["selftest", "--device=nonesuch", "--only=copies"]) == 1
    assert main(["selftest", "--math=nonesuch", "--only=copies"]) == 1
    assert main(["selftest", "--kind=nonesuch", "--only=copies"]) == 1
