"""Measured speeds of a device: kept in the cache by device and driver, measured again if the entry is damaged, and never at an ordinary start."""
from __future__ import annotations

import json
import pathlib
from dataclasses import replace
from typing import Any

import pytest

from ocaffe.cl import host_memory, rates
from ocaffe.cl.device import Device
from ocaffe.cl.peaks import COPIED, link_rates
from ocaffe.cl.rates import SPEEDS, assumed, measured, rates_of
from ocaffe.cl.session import Session
from ocaffe.support import cache

SOME = {"flops": 1e12, "bandwidth": 2e11, "launch": 3e-6, "to_host": 0.0, "from_host": 0.0}


@pytest.fixture
def counted(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> list[Device]:
    """The devices that were measured, in a process with an empty cache."""
    found: list[Device] = []

    def measure(device: Device) -> dict[str, float]:
        found.append(device)
        return SOME

    monkeypatch.setenv("OCAFFE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(rates, "measured", measure)
    forget(monkeypatch)
    return found


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin a new process, as far as speeds are concerned."""
    monkeypatch.setattr(rates, "_here", {})


def entry(tmp_path: pathlib.Path) -> pathlib.Path:
    [file] = (tmp_path / "cache" / "rates").iterdir()
    return file


def test_speeds_are_measured_once(device: Device, counted: list[Device], monkeypatch: pytest.MonkeyPatch) -> None:
    first = rates_of(device)
    assert (first.flops, first.bandwidth, first.launch) == (1e12, 2e11, 3e-6)
    forget(monkeypatch)
    assert {name: getattr(rates_of(device), name) for name in SPEEDS} == SOME
    assert len(counted) == 1


def test_a_process_without_a_cache_measures_once(device: Device, counted: list[Device], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCAFFE_CACHE", "off")
    rates_of(device)
    rates_of(device)
    assert len(counted) == 1


@pytest.mark.parametrize("change", ["cut", "empty", "other bytes"])
def test_damaged_entry_is_measured_again(
    device: Device, counted: list[Device], monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, change: str
) -> None:
    rates_of(device)
    file = entry(tmp_path)
    data = file.read_bytes()
    file.write_bytes({"cut": data[:-3], "empty": b"", "other bytes": data[:-5] + b"11111"}[change])
    for _ in range(2):  # the second finds the new entry
        forget(monkeypatch)
        rates_of(device)
    assert len(counted) == 2


@pytest.mark.parametrize(
    "stored",
    [[], {}, {**SOME, "launch": 0.0}, {**SOME, "flops": "fast"}, {**SOME, "flops": float("inf")}, {**SOME, "to_host": -1.0}, {**SOME, "more": 1.0}, 1.0],
    ids=str,
)
def test_entry_without_whole_speeds_is_measured_again(
    device: Device, counted: list[Device], monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, stored: Any
) -> None:
    rates_of(device)
    cache.Entries("rates").store(entry(tmp_path).name, json.dumps(stored).encode())
    forget(monkeypatch)
    assert rates_of(device).launch == 3e-6
    assert len(counted) == 2


@pytest.mark.parametrize("change", [{"driver_version": "1.2.3"}, {"name": "another card"}, {"platform_version": "OpenCL 9"}], ids=str)
def test_another_device_or_driver_is_measured(device: Device, counted: list[Device], monkeypatch: pytest.MonkeyPatch, change: dict[str, str]) -> None:
    rates_of(device)
    monkeypatch.setattr(device, "info", replace(device.info, **change))
    rates_of(device)
    assert len(counted) == 2


def test_a_session_without_a_limit_measures_nothing(device: Device, counted: list[Device]) -> None:
    Session(device)
    assert not counted


def test_a_measurement_keeps_within_the_room(device: Device, counted: list[Device]) -> None:
    """A training with a limit below its buffers would else exceed the limit. Speeds that are known need no room."""
    assert rates_of(device, COPIED - 1).flops == assumed(device.target).flops and not counted
    known = rates_of(device, COPIED)
    assert len(counted) == 1 and rates_of(device, 1).flops == known.flops


def test_measured_speeds_are_those_of_a_device(device: Device) -> None:
    """Wide bounds: a hundred times slower, or faster, than any device that ocaffe was run on."""
    found = measured(device)
    assert 1e8 < found["flops"] < 1e16
    assert 1e8 < found["bandwidth"] < 1e15
    assert 1e-8 < found["launch"] < 1e-1
    links = found["to_host"], found["from_host"]
    assert min(links) > 1e7 if host_memory.has_host_memory(device) else links == (0, 0)
    assert all(value == float(f"{value:.1e}") for value in found.values())


def test_copies_to_the_host_have_a_rate(device: Device) -> None:
    """On a device that shares the host's memory nothing copies, but the kernel runs there too."""
    if device.target.unified_memory:
        assert all(1e7 < rate < 1e15 for rate in link_rates(device))
