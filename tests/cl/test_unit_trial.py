"""A matrix unit is used only after the selftest has passed with it; the verdict is cached."""
from __future__ import annotations

import pathlib
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ocaffe.cl import unit_trial
from ocaffe.cl.device import Device, DeviceInfo, with_math
from ocaffe.cli import selftest as command
from ocaffe.errors import Error
from ocaffe.ir.target import Target
from ocaffe.kernels.matmul import gemm_gpu
from ocaffe.selftest.case import ROUNDED
from ocaffe.selftest.selftest import Row, product_cases
from ocaffe.support import parent
from tests.kernels.test_matrix_units import emulated

UNIT = "WMMA of RDNA 3"


def card(driver: str = "1", unit: str = UNIT) -> DeviceInfo:
    target = Target(kind="gpu", runtime="amd", name="gfx1100", matrix_unit=unit)
    return DeviceInfo("0:1", "gfx1100", "AMD", "OpenCL 2.1", "OpenCL 2.0", driver, target, 2000, (), "", None, None)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> list[list[str]]:
    """The commands that a trial runs. They exit with status 1 for bf16."""
    monkeypatch.setenv("OCAFFE_CACHE", str(tmp_path))
    commands: list[list[str]] = []
    real = unit_trial._command

    def imitated(number: str, math: str) -> list[str]:
        commands.append(real(number, math)[1:])
        return [sys.executable, "-c", f"raise SystemExit({int(math == 'bf16')})"]

    monkeypatch.setattr(unit_trial, "_command", imitated)
    return commands


def test_the_first_use_runs_the_selftest(runs: list[list[str]]) -> None:
    assert with_math(card(), "fp16").target.math == "fp16" and runs == [["-m", "ocaffe", "selftest", "--device", "0:1", "--math", "fp16", "--products"]]
    assert not with_math(card(), "fp16").target.matrix_unit_only
    with pytest.raises(Error, match=r"(?s)'gfx1100' computes matrix products wrong with it.*fix: leave out --math; `ocaffe selftest --device 0:1 --math bf16"):
        with_math(card(), "bf16")


def test_other_modes_and_devices_need_none(runs: list[list[str]]) -> None:
    assert with_math(card(), "fp32").target.math == "fp32" and with_math(card(), "ieee").target.math == "ieee"
    nvidia = replace(card(), target=Target(kind="gpu", runtime="nvidia", tensor_cores=True))
    assert with_math(nvidia, "bf16").target.math == "bf16" and not runs
    with pytest.raises(Error, match="its matrix unit has only fp16, bf16"):
        with_math(card(), "tf32")
    with pytest.raises(Error, match="no tensor cores usable from OpenCL"):
        with_math(card(unit=""), "fp16")


def test_the_verdict_is_of_device_driver_and_mode(runs: list[list[str]]) -> None:
    unit_trial.store(card().facts, UNIT, "fp16", True)
    unit_trial.store(card().facts, UNIT, "bf16", False)
    assert with_math(card(), "fp16").target.math == "fp16"
    with pytest.raises(Error, match="computes matrix products wrong with it"):
        with_math(card(), "bf16")
    assert not runs
    with_math(card(driver="2"), "fp16")
    assert len(runs) == 1


def test_the_selftest_itself_uses_the_unit_for_all_products(runs: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*parent.telling(unit_trial="1").popitem())
    target = with_math(card(), "bf16").target
    assert target.matrix_unit_only and not runs and all(tile.unit for tile in gemm_gpu.tiles_for(target))


@pytest.mark.parametrize("failing", ["", "matrix product", "rows"])
def test_the_users_selftest_is_remembered(runs: list[list[str]], monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    """A family without products decides nothing."""
    monkeypatch.setattr(command, "selftest", lambda names, *_, **__: (Row(name, "FAILED" if name == failing else "passed") for name in names))
    monkeypatch.setattr(command, "list_devices", lambda: [card()])
    assert command.main(["--math", "fp16"]) == int(failing != "")
    if failing == "matrix product":
        with pytest.raises(Error, match="computes matrix products wrong with it"):
            with_math(card(), "fp16")
    else:
        with_math(card(), "fp16")
    command.main(["--math", "fp16", "--only", "matrix"])  # not all families of products
    command.main(["--math", "tf32"])  # the unit does not have it
    assert not runs


@pytest.mark.parametrize("math", ["fp16"])
def test_families_of_products(device: Any, math: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The families of the trial pass on the emulated unit, and most of their products use it."""
    unit, used = "MFMA of CDNA 2", []
    monkeypatch.setattr(gemm_gpu, "unit_tiles", lambda unit, math: (emulated(unit, math),))
    program = gemm_gpu.Tile.defines
    monkeypatch.setattr(gemm_gpu.Tile, "defines", lambda tile: used.append(bool(tile.unit)) or program(tile))  # type: ignore[func-returns-value]
    target = replace(device.target, kind="gpu", matrix_unit=unit, matrix_unit_only=True, math=math)
    own = Device(replace(device.info, target=target), device)
    cases = {case.name: case for case in product_cases()}
    for name in ("matrix product", "convolution, strides, dilation"):
        findings = cases[name].run(own)
        assert findings and all(finding.error <= ROUNDED[math] for finding in findings), findings
    assert np.mean(used) > 0.5 and len(cases) >= 10
