"""The exchange of gradients by NCCL, in place in the memory of NVIDIA's devices (transport `nccl`).

The contexts of OpenCL and CUDA take turns on the device, so nothing overlaps. NCCL gets few large pieces: all buckets that have begun. Gradients that
are not in memory of CUDA (those that iter_size adds up, and those that clip_gradients needs at once) pass through a buffer that is.
"""
from __future__ import annotations

import ctypes
import importlib.util
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ocaffe.cl.cuda_memory import MPI, CudaMemory, why_not
from ocaffe.cl.session import Session
from ocaffe.errors import Error
from ocaffe.ir.target import LARGEST_IMPORT
from ocaffe.parallel.world import World

IN_FLIGHT = 128 << 20  # bytes of gradients that NCCL averages at a time. Each time costs 0.35 ms on two H100s, because the contexts take turns
LATE_ROWS = 384 << 20  # the same at the end of backward
PASSAGE = 32 << 20  # bytes of the buffer through which other gradients pass
# Variables of NCCL for ranks of one host, if the user has not set them. On two H200s CUDA's context and NCCL's buffers take 1020 MiB instead of 1387.
# A step of VGG-16 in bfloat16 takes 32.2 ms with them, 31.9 with NCCL's defaults. Between hosts NCCL needs its larger buffers.
SMALL_BUFFERS = {
    "NCCL_CUMEM_ENABLE": "0",  # no buffers by cuMemCreate, whose pages are 2 MiB
    "NCCL_BUFFSIZE": str(1 << 20),
    "NCCL_LL128_BUFFSIZE": str(256 << 10),
    "NCCL_LL_BUFFSIZE": str(64 << 10),
    "NCCL_MIN_NCHANNELS": "28",  # 4 MiB each; nothing else runs beside NCCL
    "NCCL_MAX_NCHANNELS": "28",
    "NCCL_NTHREADS": "640",
    "NCCL_MIN_P2P_NCHANNELS": "1",  # for messages between two ranks, which are not used here
    "NCCL_MAX_P2P_NCHANNELS": "1",
}
_FLOAT, _AVERAGE = 7, 4  # ncclFloat32, ncclAvg (NCCL 2.10)
_ID_BYTES = 128
_INFO = "NCCL_DEBUG=INFO mpiexec ... shows NCCL's messages"
# ncclResult_t: the cause and the remedy. 3, 4 and 5 are faults of NCCL or of the call.
_CAUSES = {
    1: ("CUDA's driver or the device's memory", f"`nvidia-smi` shows errors and free memory of the device; {_INFO}; or {MPI}"),
    2: ("the system: the net between the ranks, shared memory (/dev/shm) or open files", f"{MPI}; {_INFO}"),
    6: ("the net between the ranks, or another rank that ended", f"see the log of the other ranks; {_INFO}; or {MPI}"),
}


class _Id(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = [("internal", ctypes.c_byte * _ID_BYTES)]


def load() -> ctypes.CDLL | None:
    """Return NCCL's library: that of NVIDIA's wheel, else the system's. None if there is none."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec is not None else []
    for path in (*(str(folder / "nccl" / "lib" / "libnccl.so.2") for folder in folders), "libnccl.so.2"):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        library.ncclGetErrorString.restype = ctypes.c_char_p
        library.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, _Id, ctypes.c_int]
        library.ncclAllReduce.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
        return library
    return None


def why_no_nccl(session: Session) -> str:
    """Return why this rank cannot use NCCL, or '' if it can."""
    return why_not(session.device) or ("" if load() is not None else "there is no libnccl.so.2")


class _Bucket(NamedTuple):
    buffer: Any
    offset: int
    floats: int


def _index(buckets: Sequence[_Bucket], buffer: Any, offset: int) -> int | None:
    return next((i for i, bucket in enumerate(buckets) if (bucket.buffer, bucket.offset) == (buffer, offset)), None)


class NcclExchange:
    """Averages buckets in place. `end` waits for the device, then reduces all buckets that have begun."""

    in_flight, late_rows = IN_FLIGHT, LATE_ROWS

    def __init__(self, session: Session, world: World) -> None:
        library = load()
        assert library is not None
        if len(set(world.hosts)) == 1:
            for name, value in SMALL_BUFFERS.items():
                os.environ.setdefault(name, value)
        self._library, self._device = library, session.device
        before = session.device.free()
        session.memory = self._memory = CudaMemory(session.device)
        session.device.target = replace(session.device.target, gradient_slab=LARGEST_IMPORT)
        self._passage: Any = None
        unique = _Id()
        if world.first:
            self._check(library.ncclGetUniqueId(ctypes.byref(unique)))
        unique = _Id.from_buffer_copy(world.broadcast(bytes(unique)))
        self._comm = ctypes.c_void_p()
        self._check(library.ncclCommInitRank(ctypes.byref(self._comm), world.size, unique, world.rank))
        self._stream: Any = self._memory.call("cuStreamCreate", 1)  # 1: it does not wait for the default stream
        self._begun: list[_Bucket] = []
        self._averaged: list[_Bucket] = []  # and not ended
        self.exposed = 0.0
        self._spare = self._memory.allocate(4)
        self._all_reduce([(self._address(self._spare), 1)])  # NCCL loads its kernels and makes its buffers now
        after = session.device.free()
        self.device_bytes = 0 if before is None or after is None else max(before - after, 0)

    def __str__(self) -> str:
        version = ctypes.c_int()
        self._check(self._library.ncclGetVersion(ctypes.byref(version)))
        return f"nccl ({version.value // 10000}.{version.value // 100 % 100}.{version.value % 100})"

    def begin(self, filled: Any, buffer: Any, offset: int, count: int, exact: bool = False) -> None:
        self._begun.append(_Bucket(buffer, offset, count))

    def end(self, buffer: Any, offset: int) -> None:
        index = _index(self._averaged, buffer, offset)
        if index is None:
            self._device.queue.finish()
            begin = time.perf_counter()
            within = [(address + 4 * offset, floats) for buffer, offset, floats in self._begun if (address := self._memory.address(buffer)) is not None]
            if within:
                self._all_reduce(within)
            for bucket in self._begun:
                if self._memory.address(bucket.buffer) is None:
                    self._pass(bucket)
            self.exposed += time.perf_counter() - begin
            self._averaged += self._begun
            self._begun = []
            index = _index(self._averaged, buffer, offset)
        assert index is not None
        self._averaged.pop(index)

    def _pass(self, bucket: _Bucket) -> None:
        """Average a bucket that CUDA cannot access."""
        copy, queue = self._device.cl.enqueue_copy, self._device.queue
        if self._passage is None:
            self._passage = self._memory.allocate(PASSAGE)
        address = self._address(self._passage)
        for begin in range(0, 4 * bucket.floats, PASSAGE):
            size, place = min(PASSAGE, 4 * bucket.floats - begin), 4 * bucket.offset + begin
            copy(queue, self._passage, bucket.buffer, byte_count=size, src_offset=place)
            queue.finish()
            self._all_reduce([(address, size // 4)])
            copy(queue, bucket.buffer, self._passage, byte_count=size, dst_offset=place)
            queue.finish()

    def _address(self, buffer: Any) -> int:
        """Return CUDA's address of a buffer that CUDA has made."""
        address = self._memory.address(buffer)
        assert address is not None
        return address

    def _all_reduce(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Average ranges, each an address and a number of floats."""
        library, stream = self._library, int(self._stream)
        self._check(library.ncclGroupStart())
        for address, floats in ranges:
            self._check(library.ncclAllReduce(address, address, floats, _FLOAT, _AVERAGE, self._comm, stream))
        self._check(library.ncclGroupEnd())
        self._memory.call("cuStreamSynchronize", self._stream)

    def _check(self, status: int) -> None:
        if status:
            cause, fix = _CAUSES.get(status, ("NCCL itself", f"{MPI}; {_INFO}"))
            raise Error(f"NCCL fails: {self._library.ncclGetErrorString(status).decode()} ({status}); the cause is {cause}", fix=fix)

    def close(self) -> None:
        """Destroy the communicator. If a bucket is open, the training has failed, and NCCL would wait for the other ranks."""
        if not self._begun and not self._averaged:
            self._library.ncclCommDestroy(self._comm)
