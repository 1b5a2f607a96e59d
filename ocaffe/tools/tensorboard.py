"""The numbers of a training as event files for TensorBoard."""
from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from ocaffe.errors import Error


@contextlib.contextmanager
def event_log(folder: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Takes the records of Solver.on_record: train/loss, train/lr, train/NAME, test/NAME (test1/NAME of the second TEST net), by iteration. Raises Error."""
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
    """Tag and value of all that a record says; an output of several elements has one tag for each."""
    number = record.get("net", 0)
    group = f"{record['phase']}{number or ''}"
    for name in ("loss", "lr"):
        if name in record:
            yield f"{group}/{name}", record[name]
    for name, values in record["outputs"].items():
        if name in record:  # a net's loss of the last iteration, beside the smoothed one
            name = f"{name}_last"
        for index, value in enumerate(values):
            yield f"{group}/{name}" + (f"/{index}" if len(values) > 1 else ""), value
