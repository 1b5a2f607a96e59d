"""Small image files and lists of them for the tests of this folder."""
from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocaffe.data.source import Source
from ocaffe.errors import Error


def save(path: pathlib.Path, pixels: np.ndarray) -> str:
    """Write a C x H x W picture (blue, green, red) as PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels[::-1].transpose(1, 2, 0))).save(path, "PNG")
    return str(path)


def listing(folder: pathlib.Path, lines: Sequence[str]) -> str:
    path = folder / "list.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def batch_of(source: Source, index: int) -> np.ndarray:
    """Return batch number `index` in a buffer of its size."""
    buffer = np.full(source.fill(index, np.empty(0, np.uint8)).nbytes, 0xA5, np.uint8)
    source.fill(index, buffer)
    return buffer


def same_batches(make: Callable[[int], Any], count: int = 4) -> None:
    """Check that a batch depends only on its number, not on the order of requests, the number of workers or old content of the buffer."""
    one, four = make(1), make(4)
    forwards = [batch_of(one, index) for index in range(count)]
    backwards = [batch_of(four, index) for index in reversed(range(count))][::-1]
    shapes = [one.fill(index, np.empty(0, np.uint8)).shapes for index in range(count)]
    assert shapes == [four.fill(index, np.empty(0, np.uint8)).shapes for index in range(count)]
    assert all(used(one, shape, a) == used(one, shape, b) for shape, a, b in zip(shapes, forwards, backwards))
    assert used(one, shapes[0], forwards[0]) != used(one, shapes[1], forwards[1])
    one.close()
    four.close()


def used(source: Any, shapes: Any, buffer: np.ndarray) -> list[bytes]:
    """Return the parts of a buffer that the device reads."""
    if hasattr(source, "layouts"):
        layouts = source.layouts(shapes[0])
        rows = None
    elif callable(source.layout):
        layout = source.layout(list(shapes) if hasattr(source, "boxed") else shapes[0])
        layout, rows = layout if isinstance(layout, tuple) else (layout, None)
        layouts = [layout]
    else:
        layouts, rows = [source.layout], None
    parts, begin = [], 0
    for layout in layouts:
        part = buffer[begin : begin + layout.nbytes]
        table = layout.table(part)
        images = [pixels[: layout.channels * row[0] * row[1]] for pixels, row in zip(layout.pixels(part), table)]
        parts += [table.tobytes(), layout.labels(part).tobytes(), *(image.tobytes() for image in images)]
        begin += layout.nbytes
    return parts + ([view.tobytes() for view in rows.views(buffer)] if rows else [])


def content(files: Any, record: int) -> bytes:
    """Return the bytes of an image file of a store."""
    (found,) = files.find([record])
    return bytes(files.opener.parse(found).file)


def name(files: Any, record: int) -> str:
    """Return the name of an image file of a store."""
    (found,) = files.find([record])
    return str(files.name(found))


def fault(files: Any, record: int) -> Error:
    """Return the error of reading an image file of a store, with its place."""
    (found,) = files.find([record])
    return files.fault(failure(lambda: files.opener.parse(found)), record, found)  # type: ignore[no-any-return]


def failure(call: Callable[[], Any]) -> Error:
    with pytest.raises(Error) as caught:
        call()
    return caught.value
