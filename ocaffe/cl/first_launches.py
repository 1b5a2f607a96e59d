"""Let other processes compile kernels before this one launches them.

PoCL compiles a kernel for the size of its work-groups when it is launched first, under a lock of the process, and keeps the code in its cache. These are
half of the seconds of a first start. Other processes therefore launch the kernels too, beginning with the last one. This process goes on and finds in the
cache what they have compiled.

PoCL compiles only what it runs. The other processes run one work-group of each kernel on zeros. If a kernel crashes on them, its process ends without a
word, and this one compiles the rest.
"""
from __future__ import annotations

import os
import pickle
import subprocess
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from ocaffe.cl.device import Device
from ocaffe.cl.discovery import discover, start_child
from ocaffe.cl.workers import identity, worker_count

_LONGEST = 120  # seconds of a process
NAME = "first launches"  # of the threads
MARGIN = 1 << 20  # bytes before and after an operand: a pooling window of index 0 begins in the padding, before the image


class FirstLaunch(NamedTuple):
    """A launch of one work-group. An argument is a scalar of numpy, or the Access of a buffer.

    Operands begin at byte MARGIN of their buffer. `size`: bytes of the largest operand.
    """

    function: str
    local: tuple[int, ...]
    arguments: tuple[Any, ...]
    size: int


def start_launches(device: Device, launches: Sequence[tuple[str, str, FirstLaunch]], apart: bool = False) -> None:
    """Start processes that launch kernels. Each launch has the text and the options of its program.

    `apart`: wait for their end, so that this process compiles nothing; else do not wait.
    """
    count = worker_count(len(launches), 0, 0) + apart
    size = 2 * MARGIN + max((launch.size for _, _, launch in launches), default=0)
    plain = [(text, options, launch.function, launch.local, launch.arguments) for text, options, launch in reversed(launches)]
    threads = []
    for first in range(count):
        process = start_child("launch", {**os.environ, "POCL_AFFINITY": "0"}, discover().folder, stderr=subprocess.DEVNULL)  # not bound to this one's cores
        if process is not None:
            request = pickle.dumps((identity(device), size, plain[first::count]))
            threads.append(threading.Thread(target=_attend, args=(process, request), daemon=True, name=NAME))
            threads[-1].start()
    for thread in threads if apart else ():
        thread.join()


def _attend(process: subprocess.Popen[bytes], request: bytes) -> None:
    try:
        process.communicate(request, timeout=_LONGEST)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
