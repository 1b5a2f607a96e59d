"""Writes the values of a training run as event files for TensorBoard."""
from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from ocaffe.errors import Error


@contextlib.contextmanager
def event_log(folder: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield a function that writes records of Solver.on_record to `folder`. Raise Error.

    The tags are train/loss, train/lr, train/NAME and test/NAME (test1/NAME for the second TEST net).
    """
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise Error("--tensorboard needs tensorboardX, which is not installed", place="ocaffe train", fix="pip install 'ocaffe[tensorboard]'") from None
    try:
        os.makedirs(folder, exist_ok=True)
        writer = SummaryWriter(folder)
    except OSError as problem:
        raise Error(f"cannot be written: {problem.strerror}", place=folder, fix="give --tensorboard a folder that can be written") from problem

    def write(record: dict[str, Any]) -> None:
        for tag, value in scalars(record):
            writer.add_scalar(tag, value, record["iteration"])
        writer.flush()

    try:
        yield write
    finally:
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
