"""Writes the values of a training run as event files for TensorBoard."""
from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from ocaffe.errors import Error
from ocaffe.support import log
from ocaffe.support.files import to_write


@contextlib.contextmanager
def event_log(folder: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield a function that writes records of Solver.on_record to `folder`. Raise Error.

    The tags are train/loss, train/lr, train/NAME and test/NAME (test1/NAME for the second TEST net). After a write that fails the file is left as it is,
    because what follows a torn event cannot be read.
    """
    try:
        from tensorboardX import record_writer  # not SummaryWriter: its thread ends on a full disk, and then its queue blocks
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary
    except ImportError:
        raise Error("--tensorboard needs tensorboardX, which is not installed", place="ocaffe train", fix="pip install tensorboardX") from None
    channel = log.Channel(f"{folder} (--tensorboard)")
    try:
        os.makedirs(folder, exist_ok=True)
        writer = record_writer.RecordWriter(os.path.join(folder, f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"))
    except OSError as problem:
        fix = to_write(os.path.join(folder, "events"), problem, "choose another folder with --tensorboard")
        raise Error(f"cannot be written: {problem.strerror}", place=folder, fix=fix) from problem

    def add(**content: Any) -> None:
        if not channel.failed:
            with channel:
                writer.write(Event(wall_time=time.time(), **content).SerializeToString())
                writer.flush()

    add(file_version="brain.Event:2")
    try:
        yield lambda record: add(step=record["iteration"], summary=Summary(value=[Summary.Value(tag=tag, simple_value=x) for tag, x in scalars(record)]))
    finally:
        with contextlib.suppress(OSError):
            writer.close()


def scalars(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield tags and values of a record. An output with several elements has one tag per element."""
    number = record.get("net", 0)
    group = f"{record['phase']}{number or ''}"
    for name in ("loss", "lr"):
        if name in record:
            yield f"{group}/{name}", record[name]
    for name, values in record["outputs"].items():
        if name in record:  # the loss of the last iteration; the record's own is smoothed
            name = f"{name}_last"
        for index, value in enumerate(values):
            yield f"{group}/{name}" + (f"/{index}" if len(values) > 1 else ""), value
