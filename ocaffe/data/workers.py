"""A few threads that decode images: Pillow and numpy let go of the interpreter while they work.

How many: the layer's own field (`threads` of ImageData, `parser_threads` of Data and AnnotatedData), else OCAFFE_WORKERS, else one per core.
"""
from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from typing import TypeVar

from ocaffe.errors import Error

MAX_WORKERS = 8
T = TypeVar("T")


class Workers:
    """`count` threads, made when they are first needed."""

    def __init__(self, count: int | None = None, name: str = "ocaffe decode") -> None:
        self.count, self.name = count or usual_count(), name
        self._pool: Executor | None = None

    def run(self, tasks: Iterable[Callable[[], T]]) -> list[T]:
        """Do the tasks, several at a time, and return their results in order; returns when none is left, then raises what the first raised."""
        tasks = list(tasks)
        if self.count == 1 or len(tasks) < 2:
            return [task() for task in tasks]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.count, thread_name_prefix=self.name)
        futures = [self._pool.submit(task) for task in tasks]
        wait(futures)
        return [future.result() for future in futures]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


def usual_count() -> int:
    """OCAFFE_WORKERS, else one for each core that this process may use, but not more than MAX_WORKERS. Raises Error for what is no number."""
    wanted = os.environ.get("OCAFFE_WORKERS")
    if not wanted:
        return min(cores(), MAX_WORKERS)
    if not wanted.isdecimal() or not int(wanted):
        raise Error(f"OCAFFE_WORKERS is '{wanted}'", fix="set it to the number of threads that decode images, for example 4")
    return int(wanted)


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
