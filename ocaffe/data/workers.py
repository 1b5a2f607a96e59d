"""A pool of threads that decode images. Threads are enough, because Pillow and numpy release the GIL while they work.

The number of threads is the layer's own field (`threads` of ImageData, `parser_threads` of Data and AnnotatedData). Without it, it is OCAFFE_WORKERS,
else one per core.
"""
from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from functools import partial
from typing import TypeVar

from ocaffe.errors import Error

MAX_WORKERS = 8
T = TypeVar("T")


class Workers:
    """`count` threads, started when they are first needed."""

    def __init__(self, count: int | None = None, name: str = "ocaffe decode") -> None:
        self.count, self.name = count or usual_count(), name
        self._pool: Executor | None = None

    def run(self, tasks: Iterable[Callable[[], T]]) -> list[T]:
        """Run the tasks, several at a time, and return their results in order. No task runs any more when it returns or raises the first exception."""
        tasks = list(tasks)
        if self.count == 1 or len(tasks) < 2:
            return [task() for task in tasks]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.count, thread_name_prefix=self.name)
        futures = [self._pool.submit(task) for task in tasks]
        wait(futures)
        return [future.result() for future in futures]

    def share(self, tasks: Sequence[Callable[[], object]]) -> None:
        """Run many short tasks, each worker an equal share of them."""
        self.run([partial(_all, tasks[first :: self.count]) for first in range(min(self.count, len(tasks)))])

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


def _all(tasks: Iterable[Callable[[], object]]) -> None:
    for task in tasks:
        task()


def usual_count() -> int:
    """Return OCAFFE_WORKERS, else the number of cores that this process may use, at most MAX_WORKERS. Raise Error if it is not a number."""
    wanted = os.environ.get("OCAFFE_WORKERS")
    if not wanted:
        return min(cores(), MAX_WORKERS)
    if not wanted.isdecimal() or not int(wanted):
        raise Error(f"OCAFFE_WORKERS is '{wanted}'", fix="set it to the number of threads that decode images, for example 4")
    return int(wanted)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
