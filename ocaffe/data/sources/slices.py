"""The source of FlowNet's CustomData layer: slices of the channels of a database's records, in an order of its own."""
from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.data.changes.transform import mean_image
from ocaffe.data.databases.database import Reader, open_database
from ocaffe.data.databases.datum import Datum, DatumReader, not_a_datum
from ocaffe.data.source import RECORDS, BatchInfo, Source, check_fields, permutation
from ocaffe.data.sources.floats import FloatLayout
from ocaffe.errors import Error, Place, shape_text
from ocaffe.formats.nearby import MissingPath
from ocaffe.formats.wire import Malformed
from ocaffe.ir.tensor import Shape
from ocaffe.support.files import text_lines
from ocaffe.support.whole import signed

FIELDS = frozenset({
    "block_size", "disk_reader_threads", "encoding", "permute_every_iter", "preselection_file", "preselection_label", "rand_permute", "rand_permute_order",
    "rand_permute_seed", "range_end", "range_start", "slice_point", "subtract", "verbose",
})  # fmt: skip
_COMMON = {"source", "batch_size", "backend", "prefetch", "scale", "mean_file"}
_UNKNOWN = 32767  # a flow that is not known
_STEPS = 32.0  # of a flow, in each pixel
UINT8, FLOW, BITS = (proto.DataParameter.CHANNELENCODING.Value(name) for name in ("UINT8", "UINT16FLOW", "BOOL1"))


class SliceSource(Source):
    """Batches of the records of a database: a top for each slice of the channels, and one for the label without slice_point."""

    def __init__(self, param: Any, tops: int, *, place: Place | None = None, layer: str | None = None) -> None:
        """`param` is the DataParameter; `tops`: the number of the layer's tops."""
        super().__init__(place, layer)
        with self.located():
            check_fields(param, _COMMON | FIELDS, "data_param", "remove it: CustomData refuses it too")
            if not param.batch_size:
                raise Error(f"batch_size is {'0' if param.HasField('batch_size') else 'missing'}", fix="set batch_size in data_param to at least 1")
            self.batch = int(param.batch_size)
            self._database = open_database(param.source, param.backend)
            self._reader, self._parse = Reader(self._database, random=True), DatumReader()
            self.shape = self._datum(0).shape
            channels, height, width = self.shape
            points = [0, *map(int, param.slice_point), channels]
            self._slices = list(pairwise(points))
            if any(begin >= end for begin, end in self._slices):
                fact = f"slice_point are {', '.join(map(str, param.slice_point))}, a record has {channels} channels"
                raise Error(fact, fix=f"give slice_point in rising order, from 1 to {channels - 1}")
            self._labels = tops == len(self._slices) + 1
            if tops not in (len(self._slices), len(self._slices) + 1):
                fix = f"give {len(self._slices)} tops, and one more for the labels if you want them; or {tops - 1} slice_point for {tops} slices"
                raise Error(f"the layer has {tops} tops, and slice_point makes {len(self._slices)} slices", fix=fix)
            kinds = list(param.encoding)[: len(self._slices)]
            self._encodings = kinds + [UINT8] * (len(self._slices) - len(kinds)) if kinds else []
            self._mean, self._scale = _mean(param, self.shape), np.float32(param.scale)
            self._order = _Order(param, self._database.entries)
            shapes: list[Shape] = [(self.batch, end - begin, height, width) for begin, end in self._slices]
            self.layout = FloatLayout([*shapes, *([(self.batch, 1, 1, 1)] if self._labels else [])])
        size = ",".join(map(str, self.layout.shapes[0]))
        self.notes = (("custom_data_layer.cpp:387", f"DB entries: {self._database.entries}"), ("custom_data_layer.cpp:607", f"output data size: {size}"))

    def shapes(self) -> list[Shape]:
        return self.layout.shapes

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes

    def fill(self, index: int, buffer: np.ndarray) -> BatchInfo:
        views = self.layout.views(buffer)
        with self.located():
            records = self._order.records(self.key, index, self.share.positions(index, self.batch))
            items = self._reader.records(records)
            for n, (record, (key, value)) in enumerate(zip(records, items)):
                try:
                    datum = self._parsed(value)
                    if datum.shape != self.shape:
                        fix = "write all records of the database with one shape"
                        raise Error(f"it is {shape_text(datum.shape)}, the first record is {shape_text(self.shape)}", fix=fix)
                    for (begin, end), part, view in zip(self._slices, self._decoded(datum), views):
                        np.subtract(part, 0 if self._mean is None else self._mean[begin:end], out=view[n])
                        if self._scale != 1:
                            view[n] *= self._scale
                    if self._labels:
                        views[-1][n] = datum.label or 0
                    for top, view in enumerate(views):
                        wrong = self.wrong_label(top, view[n])
                        if wrong is not None:
                            raise wrong[1]
                except Error as problem:
                    raise self._database.fault(problem, record, key) from None
        return BatchInfo((), self.nbytes)

    def _datum(self, record: int) -> Datum:
        [(key, value)] = self._reader.records([record])
        try:
            return self._parsed(value)
        except Error as problem:
            raise self._database.fault(problem, record, key) from None

    def _parsed(self, value: Any) -> Datum:
        """Return the Datum in a record. Raise Error without a place."""
        try:
            datum = self._parse(value)
        except Malformed as problem:
            fix = "write Datums as FlowNet 2's convert_imageset_and_flow does"
            raise Error(not_a_datum(problem, value).fact, fix=fix) from None
        if datum.encoded:
            raise Error("it is an image file (encoded)", fix='read this database by a layer of type: "Data"')
        return datum

    def _decoded(self, datum: Datum) -> Iterator[np.ndarray]:
        """Yield the values of each slice. Raise Error without a place."""
        _, height, width = self.shape
        if datum.pixels is None or not self._encodings:
            if self._encodings:
                raise Error("it has float_data, and encoding is given", fix="remove encoding from data_param, or write the records as bytes in data")
            values = datum.values.reshape(self.shape)
            for begin, end in self._slices:
                yield values[begin:end]
            return
        at, pixels = 0, height * width
        sizes = {UINT8: pixels, FLOW: 2 * pixels, BITS: (pixels - 1) // 8 + 1}
        needed = sum(sizes[kind] * (end - begin) for kind, (begin, end) in zip(self._encodings, self._slices))
        if datum.pixels.size != needed:
            names = ", ".join(proto.DataParameter.CHANNELENCODING.Name(kind) for kind in self._encodings)
            fact = f"it has {datum.pixels.size} bytes of data, and slices of {names} have {needed}"
            raise Error(fact, fix="set slice_point and encoding in data_param to those with which the database was written")
        for kind, (begin, end) in zip(self._encodings, self._slices):
            count = sizes[kind] * (end - begin)
            part, at = datum.pixels[at : at + count], at + count
            if kind == FLOW:
                steps = part.copy().view("<i2")
                values = np.where(steps == _UNKNOWN, np.float32(np.nan), steps.astype(np.float32) / np.float32(_STEPS))
            elif kind == BITS:
                values = np.unpackbits(part.reshape(end - begin, -1), axis=1, count=pixels, bitorder="little")
            else:
                values = part
            yield values.reshape(end - begin, height, width)


def _mean(param: Any, shape: tuple[int, int, int]) -> np.ndarray | None:
    """Return what is subtracted: C x H x W, or C x 1 x 1. Raise Error without a place."""
    if param.mean_file:
        mean = mean_image(param.mean_file)
        if mean.shape != shape:
            fact = f"mean_file {param.mean_file} is {shape_text(mean.shape)}, a record {shape_text(shape)}"
            raise Error(fact, fix="make the mean of this database by compute_image_mean, or remove mean_file and give subtract once for each channel")
        return mean
    values = np.float32(param.subtract)
    if len(values) > shape[0]:
        raise Error(f"{len(values)} subtract are given for {shape[0]} channels", fix=f"give at most {shape[0]} subtract, one for each of the first channels")
    return np.pad(values, (0, shape[0] - len(values)))[:, None, None] if len(values) else None


class _Order:
    """The order of records: selected, permuted and cut to a range, as the fork's settings say."""

    def __init__(self, param: Any, entries: int) -> None:
        """Raise Error without a place."""
        chosen = _preselected(param, entries) if param.preselection_file else np.arange(entries)
        first = min(max(param.range_start, 0), len(chosen) - 1)
        last = len(chosen) - 1 if not 0 <= param.range_end < len(chosen) else int(param.range_end)
        if last < first:
            fix = f"set range_end to at least {param.range_start} (range_start), or remove it"
            raise Error(f"range_end is {param.range_end}, range_start {param.range_start}", fix=fix)
        self._run, self._every = int(param.block_size), int(param.permute_every_iter) if param.rand_permute else 0
        self._seed, self._permuted = int(param.rand_permute_seed), bool(param.rand_permute)
        self._range, self._cut_first = slice(first, last + 1), param.rand_permute_order == proto.DataParameter.FIRST_RANGE_THEN_PERMUTE
        self._chosen = chosen[self._range] if self._cut_first else chosen
        self._last: tuple[Any, np.ndarray] | None = None

    def records(self, key: tuple[int, int], index: int, positions: range) -> list[int]:
        """Return the records at these positions, which are those of batch number `index`."""
        part = index // self._every if self._every else 0
        if self._last is None or self._last[0] != (key, part):
            self._last = (key, part), self._made(key, part)
        order = self._last[1]
        return [int(order[position % len(order)]) for position in positions]

    def _made(self, key: tuple[int, int], part: int) -> np.ndarray:
        order = self._chosen
        if self._permuted:
            order = self._shuffled(order, key, 0)
        order = order if self._cut_first else order[self._range]
        return self._shuffled(order, key, part) if part else order

    def _shuffled(self, order: np.ndarray, key: tuple[int, int], part: int) -> np.ndarray:
        """Return the records in a random order: the fork's for rand_permute_seed, as long as it does not permute again."""
        result, words = order.copy(), _glibc(self._seed) if self._seed and not part else None
        step = self._run or len(order)
        for begin in range(0, len(order), step):
            # the fork leaves the last record of such a run at its place
            run = result[begin : begin + step][: -1 if self._run else None]
            if words is not None:
                for i in range(1, len(run)):  # std::random_shuffle of libstdc++
                    j = next(words) % (i + 1)
                    run[i], run[j] = run[j], run[i]
            else:
                run[...] = run[permutation(key, RECORDS, part << 32 | begin, len(run))]
        return result


def _glibc(seed: int) -> Iterator[int]:
    """Yield the numbers of glibc's rand() after srand(seed)."""
    state = [seed & 0xFFFFFFFF]
    for _ in range(30):
        word = state[-1] - (1 << 32) if state[-1] >> 31 else state[-1]
        high, low = int(word / 127773), word - int(word / 127773) * 127773
        value = 16807 * low - 2836 * high
        state.append(value + 2147483647 if value < 0 else value)
    state += state[:3]
    while True:
        state.append((state[-3] + state[-31]) & 0xFFFFFFFF)
        if len(state) > 344:
            yield state[-1] >> 1
            del state[:-344]


def _preselected(param: Any, entries: int) -> np.ndarray:
    """Return the records that have preselection_label in preselection_file. Raise Error without a place."""
    path = param.preselection_file
    fix = f"write a text file with {entries} whole numbers, one for each record"
    if not param.HasField("preselection_label"):
        raise Error("preselection_file is given without preselection_label", fix="set preselection_label to the number that marks the records to read")
    if not os.path.exists(path):
        raise MissingPath(f"preselection_file {path} does not exist", path, "preselection_file", fix)
    words = "".join(text_lines(path)).split()
    wrong = next((word for word in words if signed(word) is None), None)
    if wrong is not None or len(words) != entries:
        fact = f"has '{wrong}'" if wrong is not None else f"has {len(words)} numbers, the database {entries} records"
        raise Error(f"preselection_file {path} {fact}", fix=fix)
    chosen = np.flatnonzero(np.array([int(word) for word in words]) == param.preselection_label)
    if not len(chosen):
        raise Error(f"preselection_file {path} has no {param.preselection_label}", fix="set preselection_label to a number that the file has")
    return chosen
