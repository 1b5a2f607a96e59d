"""Errors of CUDA and NCCL say the cause in words, and their remedies fit it. A driver is not needed: stand-ins answer."""
from __future__ import annotations

import enum
from types import SimpleNamespace
from typing import Any

import pytest

from ocaffe.cl.cuda_memory import MPI, CudaMemory
from ocaffe.cl.failure import status_name
from ocaffe.errors import Error
from ocaffe.parallel.nccl import NcclExchange

pytestmark = pytest.mark.quick


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_UNKNOWN = 999


@pytest.fixture
def memory() -> Any:
    """Return CudaMemory on a device with 300 MiB free, whose driver has two functions that fail."""
    texts = {2: b"out of memory", 999: b"unknown error"}
    found: Any = CudaMemory.__new__(CudaMemory)
    found.driver = SimpleNamespace(
        CUresult=CUresult, cuGetErrorString=lambda status: (0, texts[status]), full=lambda: (CUresult(2), None), broken=lambda: (CUresult(999), None)
    )
    found._device = SimpleNamespace(name="H200", free=lambda: 300 << 20)
    return found


def test_a_full_device_is_no_fault_of_the_driver(memory: Any) -> None:
    """The exchange by MPI needs memory of the same device, so it is no remedy for a full one."""
    with pytest.raises(Error, match="CUDA's full fails on 'H200': out of memory") as caught:
        memory.call("full")
    fix = str(caught.value.fix)
    assert "nvidia-smi" in fix and "300 MiB are free" in fix and "lower batch_size" in fix and "--exchange" not in fix and "dmesg" not in fix
    with pytest.raises(Error, match="unknown error") as caught:
        memory.call("broken")
    assert str(caught.value.fix).startswith(MPI) and "dmesg" in str(caught.value.fix)


@pytest.mark.parametrize(("status", "cause"), [(1, "the device's memory"), (2, "/dev/shm"), (6, "another rank that ended"), (3, "NCCL itself")])
def test_nccl_says_the_cause(status: int, cause: str) -> None:
    exchange: Any = NcclExchange.__new__(NcclExchange)
    exchange._library = SimpleNamespace(ncclGetErrorString=lambda code: b"some error")
    exchange._check(0)
    with pytest.raises(Error, match=rf"NCCL fails: some error \({status}\); the cause is .*{cause}") as caught:
        exchange._check(status)
    assert MPI in str(caught.value.fix) and "NCCL_DEBUG=INFO" in str(caught.value.fix)


def test_names_of_opencl() -> None:
    assert status_name(-6) == "CL_OUT_OF_HOST_MEMORY, -6" and status_name(-4).startswith("CL_MEM_OBJECT_ALLOCATION_FAILURE")
    assert status_name(-123) == "OpenCL status -123"
