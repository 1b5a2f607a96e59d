"""A pool of threads that decode images. Threads are enough, because libjpeg-turbo, Pillow and numpy release the GIL while they work.

The number of threads is the layer's own field (`threads` of ImageData, `parser_threads` of Data and AnnotatedData). Without it, it is OCAFFE_WORKERS,
else one per core.
"""
from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from ocaffe.errors import Error
from ocaffe.support.whole import whole

T = TypeVar("T")


class Workers:
    """`count` threads, started when they are first needed. Several threads may run tasks on them at the same time."""

    def __init__(self, count: int | None = None, name: str = "ocaffe decode") -> None:
        self.count, self.name = count or usual_count(), name
        self._pool: Executor | None = None
        self._starting = threading.Lock()

    def run(self, tasks: Iterable[Callable[[], T]]) -> list[T]:
        """Run the tasks, several at a time, and return their results in order. No task runs any more when it returns or raises the first exception."""
        tasks = list(tasks)
        if self.count == 1 or len(tasks) < 2:
            return [task() for task in tasks]
        with self._starting:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.count, thread_name_prefix=self.name)
        results: list[Any] = [None] * len(tasks)
        numbers = iter(range(len(tasks)))  # shared: each thread takes the next task, because a future for each one takes longer than a short task

        def work() -> None:
            for number in numbers:
                try:
                    results[number] = True, tasks[number]()
                except BaseException as problem:  # raised below, in order
                    results[number] = False, problem

        wait([self._pool.submit(work) for _ in range(min(self.count, len(tasks)))])
        for done, result in results:
            if not done:
                raise result
        return [result for _, result in results]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


def usual_count() -> int:
    """Return OCAFFE_WORKERS, else the number of cores that this process may use. Raise Error if it is not a number."""
    wanted = os.environ.get("OCAFFE_WORKERS")
    if not wanted:
        return cores()
    if whole(wanted) < 1:
        raise Error(f"OCAFFE_WORKERS is '{wanted}'", fix=f"export OCAFFE_WORKERS={cores()}: the number of threads that decode images, here one for each core")
    return int(wanted)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
