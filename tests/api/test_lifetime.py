"""Nets that are created and dropped, and nets in threads."""
from __future__ import annotations

import gc
import os
import threading
from typing import Any

import numpy as np
import pytest

import ocaffe as caffe
from tests.api.nets import message, net, numbers

PAGE = 4096


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE


def make_and_drop(count: int) -> None:
    for _ in range(count):
        caffe.Net(message(), caffe.TRAIN, device=os.environ.get("OCAFFE_TEST_DEVICE", "cpu")).forward(data=numbers(2, 3, 8, 8))


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="counts resident pages as Linux shows them")
@pytest.mark.parametrize(("first", "count", "allowed"), [(30, 100, 3 << 20), pytest.param(250, 1000, 10 << 20, marks=pytest.mark.sweep)])
def test_nets_made_and_dropped_leave_nothing(first: int, count: int, allowed: int) -> None:
    """Dropped nets do not leak.

    The `first` nets fill the caches of allocators. A net takes 40 KB on its device and another 40 KB on the host.
    """
    make_and_drop(first)
    gc.collect()
    objects = len(gc.get_objects())  # before the first measurement of memory, because this list takes megabytes
    before = resident()
    make_and_drop(count)
    gc.collect()
    grown = resident() - before
    assert len(gc.get_objects()) - objects < 2 * count, "Python objects of nets that were dropped"
    assert grown < allowed, "memory of nets that were dropped"


def test_a_net_is_gone_at_once(device: Any) -> None:
    """Reference counts free the buffers of a dropped net without the garbage collector."""
    gc.disable()
    try:
        small = net(device)
        held = small.forward(data=numbers(2, 3, 8, 8))["prob"]
        session = small._network.session
        assert session._persistent
        del small
        assert not session._persistent and not session.command_lists
        np.testing.assert_allclose(held.sum(1), 1, rtol=1e-5)
    finally:
        gc.enable()


def test_several_threads_with_one_net_each(device: Any) -> None:
    expected = {seed: net(device, seed=seed).forward(data=numbers(2, 3, 8, 8, seed=seed))["prob"].copy() for seed in range(4)}
    failed: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            own = caffe.Net(message(), caffe.TRAIN, device=device.number, seed=seed)
            for _ in range(5):
                np.testing.assert_array_equal(own.forward(data=numbers(2, 3, 8, 8, seed=seed))["prob"], expected[seed])
                own.backward(prob=numbers(2, 5, 3, 3))
        except BaseException as problem:
            failed.append(problem)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
