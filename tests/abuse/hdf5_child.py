"""One child process for all reads of HDF5 in a process of the campaign."""
from __future__ import annotations

import os
from typing import Any

from ocaffe.formats.hdf5_files import Hdf5Files


def share_child() -> None:
    """Let all reads of HDF5 in a process share one child process. A read starts one of its own otherwise, which takes 0.1 s."""
    start = Hdf5Files._started
    shared: dict[int, Any] = {}  # by process, because forked ones must not use one pipe

    def started(self: Any) -> Any:
        child = shared.get(os.getpid())
        if child is None or child.poll() is not None:
            self._child = None
            child = shared[os.getpid()] = start(self)
            self._end.detach()
        self._child, self._end = child, None
        return child

    Hdf5Files._started = started  # type: ignore[method-assign]
