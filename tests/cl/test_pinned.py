"""Pinned memory: its lifetime, and copies through it."""
from __future__ import annotations

import gc
import mmap
import weakref
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from ocaffe.cl import pinned as module
from ocaffe.cl.device import Device
from ocaffe.cl.host_memory import EXTENSION
from ocaffe.cl.pinned import Staging, is_pinned, pinned, pinned_in_place
from ocaffe.cl.session import Session
from ocaffe.errors import NoRoom
from ocaffe.ir.tensor import Ref, Role
from tests.harness import of_its_own


def read(device: Device, buffer: Any, count: int) -> np.ndarray:
    result = np.empty(count, np.uint8)
    device.cl.enqueue_copy(device.queue, result, buffer)
    return result


def test_it_lives_as_long_as_the_array(device: Device) -> None:
    own = of_its_own(device)
    array = pinned(own, (3, 5, 7), np.float32)
    assert array.shape == (3, 5, 7) and array.dtype == np.float32 and not array.any() and array.flags.c_contiguous
    row = array[1]
    own.close()
    del array, own
    gc.collect()
    row[...] = 2
    assert row.sum() == 70


def test_memory_that_is_pinned_in_place_lives_as_long_as_the_array(device: Device) -> None:
    if EXTENSION in device.target.extensions:
        pytest.skip("pinned in place, memory takes as much of the device")
    own = of_its_own(device)
    file = mmap.mmap(-1, 4 * mmap.PAGESIZE)
    alive, memory = weakref.ref(file), np.frombuffer(file, np.uint8)[mmap.PAGESIZE : 2 * mmap.PAGESIZE]
    array = pinned_in_place(own, memory)
    assert is_pinned(array) and array.ctypes.data == memory.ctypes.data
    row = array[5:]
    del file, memory, array
    gc.collect()
    buffer = own.cl.Buffer(own.context, own.cl.mem_flags.READ_WRITE, row.nbytes)
    row[...] = 7
    own.cl.enqueue_copy(own.queue, buffer, row)
    assert alive() is not None and (read(own, buffer, row.nbytes) == 7).all()
    own.close()
    del row
    gc.collect()
    assert alive() is None


def test_what_counts_as_pinned(device: Device) -> None:
    own = of_its_own(device)
    array = pinned(own, (4, 6), np.float32)
    assert is_pinned(array) and is_pinned(array[1:, ::2]) and is_pinned(array.reshape(-1).view(np.uint8))
    assert not is_pinned(array.copy()) and not is_pinned(np.zeros(3))
    assert pinned(own, (0, 3), np.float32).shape == (0, 3)


def test_ordinary_memory_where_pinning_helps_nobody(device: Device) -> None:
    if not device.target.unified_memory:
        pytest.skip("it has memory of its own")
    array = pinned(device, (2, 3), np.int32)
    assert array.dtype == np.int32 and not array.any() and not is_pinned(array)


def test_ordinary_memory_where_the_driver_refuses(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    own, cl = of_its_own(device), device.cl

    def refuse(*args: Any) -> None:
        raise cl.MemoryError("no more", -4, "create_buffer")

    def full(*args: Any) -> None:
        raise NoRoom("no more", fix="less")

    monkeypatch.setattr(cl, "Buffer", refuse)
    monkeypatch.setattr(module, "nvidia_buffer", full)
    assert not is_pinned(pinned(own, (9,), np.uint8))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", [1, 999, 1000, 1001, 3000, 12345])
def test_staged_arrays_arrive_whole(device: Device, threads: int, size: int) -> None:
    own = of_its_own(device)
    staging = Staging(own, threads, 1000)
    assert staging.helps == (threads > 1)
    buffer = own.cl.Buffer(own.context, own.cl.mem_flags.READ_WRITE, size + 64)
    own.cl.enqueue_fill_buffer(own.queue, buffer, np.uint8(7), 0, size + 64)
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    staging.send(buffer, 16, data)
    got = read(own, buffer, size + 64)
    assert (got[16 : 16 + size] == data).all() and (got[:16] == 7).all() and (got[16 + size :] == 7).all()
    staging.close()


def test_a_chunk_is_filled_when_its_copy_is_done(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every copy is delayed until a caller waits for it."""
    own, copy = of_its_own(device), device.cl.enqueue_copy

    class Late:
        def __init__(self, *args: Any, **settings: Any) -> None:
            self.copy = partial(copy, *args, **settings)

        def wait(self) -> None:
            self.copy().wait()

    staging, data = Staging(own, 3, 100), np.random.default_rng(2).integers(0, 256, 1950, np.uint8)
    buffer = own.cl.Buffer(own.context, own.cl.mem_flags.READ_WRITE, data.nbytes)
    monkeypatch.setattr(own.cl, "enqueue_copy", Late)
    staging.send(buffer, 0, data)
    monkeypatch.undo()
    np.testing.assert_array_equal(read(own, buffer, data.nbytes), data)
    staging.close()


def test_which_writes_are_staged(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cores", lambda: 2)
    staged: list[int] = []
    send = Staging.send
    monkeypatch.setattr(Staging, "send", lambda self, buffer, begin, data: (staged.append(data.nbytes), send(self, buffer, begin, data))[1])
    count = (1 << 18) + 1
    values = np.random.default_rng(0).standard_normal(count, np.float32)
    own = of_its_own(device)
    for opened in (device, Device(replace(own.info, target=replace(own.target, stream_above=1 << 20)), own)):
        staged.clear()
        session, ref = Session(opened), Ref("x", (count,), Role.INPUT)
        memory = pinned(opened, (count,), np.float32)
        memory[...] = values * 2
        for array in (values, memory):
            session.write(ref, array)
            np.testing.assert_array_equal(session.read(ref), array)
        small = Ref("y", (count - 1,), Role.INPUT)
        session.write(small, values[1:])
        np.testing.assert_array_equal(session.read(small), values[1:])
        assert staged == [array.nbytes for array in (values, values[1:]) if opened.target.streams(array.nbytes)]
        session.dispose()
