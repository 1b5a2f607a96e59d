"""Fences between work-groups: the choice for a device, the text and options of programs, and sums by atomics of device scope on runtimes that have them."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ocaffe.cl import fences, program
from ocaffe.cl.device import Device
from ocaffe.cl.program import ProgramKey, program_text
from ocaffe.cl.quirks import Facts, limited, quirks_of
from ocaffe.errors import Error
from ocaffe.ir.target import Target
from ocaffe.selftest import layers
from ocaffe.selftest.case import Case, layer, normal
from ocaffe.support.switches import VARIABLE
from tests.harness import switch

BOTH = fences.ACQUIRE_RELEASE | fences.DEVICE_SCOPE


def card(version: str = "OpenCL 3.0 X", able: int = BOTH, compiles: tuple[tuple[int, int], ...] = ((1, 2), (3, 0)), name: str = "Card") -> Any:
    versions = [SimpleNamespace(version=major << 22 | minor << 12) for major, minor in compiles]
    return SimpleNamespace(name=name, version=version, atomic_memory_capabilities=able, opencl_c_all_versions=versions)


@pytest.mark.parametrize(
    "listed, kind, runtime, capability, fence",
    [
        (card(), "gpu", "nvidia", 9, "PTX"),
        (card(), "gpu", "nvidia", 6, ""),
        (card(), "gpu", "intel", 0, "SCOPE"),
        (card(), "cpu", "intel", 0, ""),
        (card("OpenCL 2.0 AMD-APP", 0, ()), "gpu", "amd", 0, "SCOPE"),  # required there, so the device has no query for it
        (card("OpenCL 1.2 AMD-APP", 0, ()), "gpu", "amd", 0, ""),
        (card(able=fences.DEVICE_SCOPE), "gpu", "arm", 0, ""),
        (card(able=fences.ACQUIRE_RELEASE), "gpu", "arm", 0, ""),
        (card(compiles=((1, 2),)), "gpu", "rusticl", 0, ""),
    ],
)
def test_choice(listed: Any, kind: str, runtime: str, capability: int, fence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert fences.device_fence(listed, kind, runtime, capability) == fence


def test_choice_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    switch(monkeypatch, "fence=off")
    assert fences.device_fence(card(), "gpu", "nvidia", 9) == ""
    switch(monkeypatch, "fence=amd")
    assert fences.device_fence(card(), "gpu", "amd", 0) == "AMD"
    told = r"OCAFFE_DEBUG has fence=AMD, which 'Card' does not have(?s:.*)fix: export OCAFFE_DEBUG=verify(,join=0)?\n.*fence=off, fence=SCOPE"
    with pytest.raises(Error, match=told):
        fences.device_fence(card(), "gpu", "intel", 0)


def test_pocl_has_none() -> None:
    facts = Facts("Portable Computing Language", "OpenCL 3.0 PoCL 3.1", "some card", kind="gpu")
    assert limited(Target(kind="gpu", device_fence="SCOPE"), quirks_of(facts)).device_fence == ""


def test_only_programs_with_the_fence_have_its_file() -> None:
    plain, joined = ProgramKey("gemm_gpu"), ProgramKey("gemm_gpu", (("DEVICE_FENCE", "SCOPE"),))
    assert program_text(plain, "SCOPE") == program_text(plain) and "memory_scope_device" not in program_text(plain)
    assert "memory_scope_device" in program_text(joined, "SCOPE")
    ptx = ProgramKey("gemm_gpu", (("DEVICE_FENCE", "PTX"),))
    assert program_text(ptx, "PTX") == program_text(ptx)


@pytest.fixture
def scoped(device: Device) -> Iterator[Device]:
    """The device as a large GPU that orders memory by atomics of device scope."""
    standard = fences.standard(device.cl_device)
    if not standard or device.target.runtime == "pocl":
        pytest.skip("the runtime has no acquire-release atomics of device scope, or it miscompiles returns between barriers (ocaffe/cl/quirks.py)")
    target = replace(device.target, kind="gpu", vector_width=4, compute_units=132, device_fence="SCOPE")
    yield Device(replace(device.info, target=target), device)


SOME = ("convolution, depthwise", "softmax of rows", "softmax of maps")
DEEP = Case(
    "deep product", layer("InnerProduct", "x0", "y", "inner_product_param { num_output: 8 bias_term: false }"), normal(x0=(8, 20000), y_0=(8, 20000)),
    lambda x, got: {"y": x["x0"] @ x["y/0"].T},
)  # fmt: skip
LONG = Case("long sum", layer("Reduction", "x0", "y", "reduction_param { axis: 0 }"), normal(x0=(300000,)), lambda x, got: {"y": np.array(x["x0"].sum())})


@pytest.mark.parametrize("case", [*(case for case in layers.cases() if case.name in SOME), DEEP, LONG], ids=lambda case: case.name)
def test_sums_by_atomics_of_device_scope(scoped: Device, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    used = []

    def text(key: ProgramKey, fence: str = "") -> str:
        used.append(fences.uses(fence, key.source, key.defines))
        return program_text(key, fence)

    monkeypatch.setattr(program, "program_text", text)
    for _ in range(3):
        case.check(scoped)
    assert any(used), "no program of the case has a last-block reduction"
