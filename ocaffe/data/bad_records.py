"""Records that cannot be used. By default the first one ends the run; `skip_bad_records` lets some of them pass."""
from __future__ import annotations

import threading
from typing import Any

from ocaffe.data.databases.database import NoDatum
from ocaffe.errors import Error
from ocaffe.support import log

_LAYERS = ("Data", "ImageData")


class BadRecord(Error):
    """One bad record too many. The remedy is a field of the layer, which every net has; a command with a flag for it adds the flag."""


def skip_bad_records(net: Any, limit: int) -> Any:
    """Set `limit` in the data layers of a NetParameter that do not set it themselves. Return `net`. Raise Error if it has none."""
    layers = [layer for layer in net.layer if layer.type in _LAYERS]
    if limit and not layers:
        fact = f"bad records are to be skipped, and net '{net.name}' has no layer of type {' or '.join(_LAYERS)}"
        raise Error(fact, fix="remove skip_bad_records from the solver, or leave out the flag that sets it")
    for layer in layers if limit else ():
        if not layer.transform_param.HasField("skip_bad_records"):
            layer.transform_param.skip_bad_records = limit
    return net


class BadRecords:
    """The bad records of one source, at most `limit`. Another record takes the place of a bad one, so a batch still depends only on its number.

    Any number of threads may use it.
    """

    def __init__(self, limit: int, entries: int) -> None:
        self._limit, self._entries = limit, entries
        self._found: set[int] = set()
        self._changing = threading.Lock()

    def good(self, record: int) -> int:
        """Return `record`, or the first one after it that is not known to be bad. After the last record comes the first."""
        while record in self._found:
            record = (record + 1) % self._entries
        return record

    def add(self, record: int, problem: Error) -> None:
        """Log that `record` is bad. Raise BadRecord with `problem`, which names the record, if it is one too many."""
        with self._changing:
            if record in self._found:
                return
            skipped = len(self._found)
            if skipped >= self._limit or skipped + 1 >= self._entries:
                before = f" ({skipped} bad records before it were skipped, and the limit is {self._limit})" if self._limit else ""
                lost = skipped + 1 >= self._entries or isinstance(problem, NoDatum)
                more = "" if lost else "; or skip up to N such records: transform_param { skip_bad_records: N }"
                kind = BadRecord if more else Error  # a flag that skips records does not help if all are bad
                raise kind(problem.fact + before, fix=f"{problem.fix}{more}")
            self._found.add(record)
            log.warning("data_reader.cpp:80", f"Skipped bad record {skipped + 1} of at most {self._limit}: {problem.fact}")
