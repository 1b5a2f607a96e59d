"""Small databases for the tests of this folder."""
from __future__ import annotations

import io
import pathlib
from collections.abc import Iterable
from typing import Any

import lmdb
import numpy as np
from PIL import Image

from ocaffe import proto
from ocaffe.data.changes.transform import Transform
from ocaffe.data.sources.database_images import ImageSource
from ocaffe.data.sources.image_batches import PictureSource
from ocaffe.formats.blob import array_to_datum

LMDB, LEVELDB = proto.DataParameter.LMDB, proto.DataParameter.LEVELDB


def write(path: pathlib.Path, values: Iterable[bytes]) -> str:
    """Write an LMDB of these values, with keys 00000000, 00000001, ..."""
    environment = lmdb.open(str(path), map_size=1 << 24, lock=False)
    with environment.begin(write=True) as transaction:
        for number, value in enumerate(values):
            transaction.put(b"%08d" % number, value)
    environment.close()
    return str(path)


def image(number: int, shape: tuple[int, int, int] = (3, 6, 8)) -> np.ndarray:
    """Return a picture of C x H x W bytes that is different for each number."""
    return np.random.default_rng(number).integers(0, 256, shape, np.uint8)


def raw(number: int, shape: tuple[int, int, int] = (3, 6, 8)) -> bytes:
    return array_to_datum(image(number, shape), number).SerializeToString()


def png(number: int, shape: tuple[int, int, int] = (3, 6, 8)) -> bytes:
    """Return the same picture as a PNG file. Datum has the channel order blue, green, red."""
    buffer = io.BytesIO()
    planes = image(number, shape)
    Image.fromarray(planes[0] if shape[0] == 1 else np.ascontiguousarray(planes[::-1].transpose(1, 2, 0))).save(buffer, "PNG")
    return proto.Datum(data=buffer.getvalue(), label=number, encoded=True).SerializeToString()


def source(path: Any, batch: int, *, train: bool = True, labels: bool = True, workers: int | None = 1, transform: Any = (), **data: Any) -> ImageSource:
    """Return the source of a Data layer. `transform`: fields of transform_param, `data`: fields of data_param."""
    param = proto.DataParameter(**{"source": str(path), "batch_size": batch, "backend": LMDB, **data})
    made = ImageSource(param, Transform(proto.TransformationParameter(**dict(transform)), train), labels, workers=workers)
    made.key = (1, 2)
    return made


def batch_of(made: PictureSource, index: int) -> np.ndarray:
    """Return batch number `index` in a buffer of its size."""
    buffer = np.full(made.fill(index, np.empty(0, np.uint8)).nbytes, 0xA5, np.uint8)
    made.fill(index, buffer)
    return buffer


def samples(made: PictureSource, index: int, buffer: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return images and labels of batch number `index` (in `buffer`), cropped and mirrored by numpy, without mean and scale."""
    info = made.fill(index, np.empty(0, np.uint8))
    buffer = batch_of(made, index) if buffer is None else buffer
    layout = made.layout(info.shapes[0])
    _, _, out_height, out_width = info.shapes[0]
    out = []
    for pixels, (height, width, y, x, _, _, mirror, _) in zip(layout.pixels(buffer), layout.table(buffer)):
        flat = pixels[: layout.channels * height * width]
        planes = flat.reshape(layout.channels, height, width)
        whole = flat.reshape(height, width, layout.channels).transpose(2, 0, 1) if layout.interleaved else planes
        cut = whole[:, y : y + out_height, x : x + out_width]
        out.append(cut[:, :, ::-1] if mirror else cut)
    return np.stack(out), layout.labels(buffer).copy()
