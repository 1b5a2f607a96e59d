"""`device_query`: Caffe's labels, one field a line."""
from __future__ import annotations

import pytest

from ocaffe.cl.device import Device, list_devices
from ocaffe.cl.discovery import Discovery, Runtime
from ocaffe.cli import device_query
from ocaffe.cli.device_query import device_query_text
from ocaffe.errors import Error

pytestmark = pytest.mark.quick


def fields(text: str) -> dict[str, str]:
    return {label.strip(): value.strip() for label, value in (line.split(":", 1) for line in text.split("\n"))}


def test_one_device(device: Device) -> None:
    found = fields(device_query_text(spec=device.number).split("\n\n")[0])
    assert found["Device id"].split(",")[0].split(" ")[0] == device.number
    assert found["Name"] == device.name and found["Driver version"] == device.driver_version
    assert int(found["Total global memory"]) == device.target.global_memory
    assert int(found["Number of multiprocessors"]) == device.target.compute_units
    assert int(found["Clock rate"]) == device.info.clock * 1000
    assert found["Vector width"] == f"{device.target.vector_width} floats"
    assert set(found["Extensions"].split()) == device.target.extensions
    if device.info.runtime is not None:
        assert device.info.runtime.library in found["Runtime library"]


def test_values_stand_in_caffes_column(device: Device) -> None:
    lines = device_query_text(spec=device.number).split("\n")
    assert f"Name:                          {device.name}" in lines
    assert f"Total shared memory per block: {device.target.local_memory}" in lines


@pytest.mark.parametrize("gpu", [None, "all"])
def test_all_devices(device: Device, gpu: str | None) -> None:
    paragraphs = device_query_text(gpu).split("\n\n")
    ids = [fields(paragraph)["Device id"] for paragraph in paragraphs if paragraph.startswith("Device id")]
    assert [text.split(",")[0].split(" ")[0] for text in ids] == [found.number for found in list_devices()]
    assert sum("the default" in text for text in ids) == 1


def test_runtimes_that_were_left_out_are_named(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    runtimes = (Runtime("/opt/bad.so", "bad.icd", problem="a trial ended with SIGABRT"), Runtime("/opt/idle.so", "idle.icd"))
    monkeypatch.setattr(device_query, "discover", lambda: Discovery(runtimes))
    found = fields(device_query_text().split("\n\n")[-1])
    assert found == {"Runtime left out": "/opt/bad.so: a trial ended with SIGABRT", "Runtime without devices": "/opt/idle.so (idle.icd)"}


def test_no_such_gpu_and_no_device_at_all(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Error, match="--gpu 77"):
        device_query_text(gpu="77")
    monkeypatch.setattr(device_query, "list_devices", list)
    with pytest.raises(Error, match="no OpenCL device on this machine"):
        device_query_text()
