"""The mean image of a database."""
from __future__ import annotations

import re
from functools import partial

import numpy as np

from ocaffe import proto
from ocaffe.data.databases.database import Database, Item, Key, Reader, open_database
from ocaffe.data.databases.datum import NO_DATA, Datum, DatumReader, not_a_datum
from ocaffe.data.databases.writer import OPENED
from ocaffe.data.decoding.decode import Color, open_image, planes
from ocaffe.data.workers import Workers
from ocaffe.errors import Error, shape_text
from ocaffe.formats.wire import Malformed
from ocaffe.support import log
from ocaffe.support.progress import progress

SOURCE = "compute_image_mean.cpp"
_REPORT_EVERY = 1000  # records, as in Caffe
_CHUNK = 32  # images are decoded in chunks of this size and then added


def database_mean(path: str, backend: str) -> np.ndarray:
    """Return the mean of all images of the database, channels x height x width, float32. Sums of bytes are exact. Raise Error."""
    try:
        database = open_database(path, proto.DataParameter.DB.Value(backend.upper()))
    except Error as problem:
        fix = re.sub(r"backend: (\w+)", lambda field: f"--backend={field[1].lower()}", problem.fix or "")  # here the prototxt's field is a flag
        raise Error(problem.fact, place="ocaffe compute_image_mean", fix=fix or None) from None
    log.info(OPENED[backend], f"Opened {backend} {path}")
    parse, workers = DatumReader(), Workers()
    reader = Reader(database)
    sums: np.ndarray | None = None
    done = 0
    with progress(database.entries, "image", f"mean of {path}") as bar:
        for first in range(0, database.entries, _CHUNK):
            items = reader.read(first, min(_CHUNK, database.entries - first))
            datums = [_parse(database, parse, first + n, item) for n, item in enumerate(items)]
            images = workers.run(partial(_image, database, first + n, item[0], datum) for n, (item, datum) in enumerate(zip(items, datums)))
            if sums is None:
                if datums[0].encoded:
                    log.info(f"{SOURCE}:57", "Decoding Datum")
                log.info(f"{SOURCE}:70", "Starting iteration")
                sums = np.zeros(images[0].shape, np.float64)
            for image, item in zip(images, items):
                if image.shape != sums.shape:
                    fact = f"the image is {shape_text(image.shape)}, that of the first record {shape_text(sums.shape)}"
                    fix = "make the database with one size: convert_imageset --resize_height --resize_width"
                    raise Error(database.fault(fact, done, item[0]).fact, place="ocaffe compute_image_mean", fix=fix)
                sums += image
                done += 1
                bar.update()
                if done % _REPORT_EVERY == 0:
                    log.info(f"{SOURCE}:96", f"Processed {done} files.")
    workers.close()
    if done % _REPORT_EVERY:
        log.info(f"{SOURCE}:101", f"Processed {done} files.")
    assert sums is not None  # a database has at least one record
    return (sums / done).astype(np.float32)


def _parse(database: Database, parse: DatumReader, record: int, item: Item) -> Datum:
    try:
        return parse(item[1])
    except Malformed as problem:
        raise database.fault(not_a_datum(problem, item[1]), record, item[0]) from None


def _image(database: Database, record: int, key: Key, datum: Datum) -> np.ndarray:
    """Return the values of a record, channels x height x width."""
    try:
        if not datum.encoded:
            return datum.values.reshape(datum.shape)
        if datum.pixels is None:
            raise Error("it is encoded, but has no data", fix=NO_DATA)
        return planes(open_image(datum.pixels), Color.UNCHANGED)
    except Error as problem:
        fix = None if "transform_param" in (problem.fix or "") else problem.fix  # compute_image_mean has no net
        raise database.fault(Error(problem.fact, fix=fix), record, key) from None
