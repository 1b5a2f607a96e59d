"""A few threads that decode images: Pillow and numpy let go of the interpreter while they work."""
from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from typing import TypeVar

MOST_WORKERS = 8
T = TypeVar("T")


class Workers:
    """`count` threads (default: one per core), made when they are first needed."""

    def __init__(self, count: int | None = None) -> None:
        self.count = count or min(os.cpu_count() or 1, MOST_WORKERS)
        self._pool: Executor | None = None

    def run(self, tasks: Iterable[Callable[[], T]]) -> list[T]:
        """Do the tasks, several at a time, and return their results in order; returns when none is left, then raises what the first raised."""
        tasks = list(tasks)
        if self.count == 1 or len(tasks) < 2:
            return [task() for task in tasks]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.count, thread_name_prefix="ocaffe decode")
        futures = [self._pool.submit(task) for task in tasks]
        wait(futures)
        return [future.result() for future in futures]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
