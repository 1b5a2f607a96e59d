"""Sources feed nets. A source is a pure function from the number of a batch to its bytes.

Batch k holds records k * B ... k * B + B - 1 of the endless sequence of records, which wraps at the end of the data. Of N ranks, rank r reads the
records r, r + N, r + 2N, ... of that sequence (`Share`). A batch depends neither on earlier reads nor on the timing of threads. The number k is the
whole state, so a run that resumes at batch k reads the same batches.
"""
from __future__ import annotations

import contextlib
import dataclasses
import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from ocaffe.data.effort import Effort
from ocaffe.data.shared_buffers import SharedBuffers
from ocaffe.errors import Error, Place, within
from ocaffe.formats.fork_fields import IGNORED, REFUSED
from ocaffe.formats.fork_fields import key_of as key_of_field
from ocaffe.ir.labels import LabelRange
from ocaffe.ir.launch import Access, Operand, Upload
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role, Shape

ALIGNMENT = 64  # bytes; each region of a batch buffer starts at a multiple
SLOTS = 2  # batches on the device: one in use, one being copied; backward may still read the earlier one
Note = tuple[str, str]  # a line of Caffe's log: its source ('data_layer.cpp:73') and its text

# Numbers of disjoint random streams: the highest word of the 256-bit Philox counter.
SAMPLE, SKIP, RECORDS, FILES, _, AUGMENT, CHANGES, PARTNERS, JOINS = range(9)  # the fifth one was that of fillers


@dataclass(frozen=True)
class BatchInfo:
    """The result of `fill`: the shapes of the tops (empty if they never change), the size of the batch, and log lines for it.

    `buffer`: the memory with the batch if it is not the caller's buffer. The source has kept the caller's buffer in exchange (Crew.staged).
    """

    shapes: tuple[Shape, ...]
    nbytes: int
    notes: tuple[Note, ...] = ()
    buffer: np.ndarray | None = dataclasses.field(default=None, compare=False)


@dataclass(frozen=True)
class Share:
    """The part of the endless sequence of records that one of several ranks reads: every `ranks`-th record, from record `rank` on."""

    rank: int = 0
    ranks: int = 1

    def positions(self, index: int, batch: int) -> range:
        """Return the positions of the records of batch number `index` of this rank. A batch has `batch` records."""
        first = index * batch * self.ranks + self.rank
        return range(first, first + batch * self.ranks, self.ranks)


class Source(ABC):
    """Base class of all sources. One thread at a time may use a source, unless it is `reentrant`: then any number may fill batches."""

    reentrant = False
    effort: Effort | None = None  # the work of its threads, if it counts it

    key: tuple[int, int] = (0, 0)  # of the random numbers (key_of)
    share = Share()  # of the records
    notes: tuple[Note, ...] = ()  # log lines for the opening of the source
    shared: SharedBuffers | None = None  # the buffers of its consumer, if other processes can write to them

    def __init__(self, place: Place | None = None, layer: str | None = None) -> None:
        """`place` and `layer` go into error messages."""
        self.place = place
        self.layer = layer
        self.limits: dict[int, list[LabelRange]] = {}  # by top: the labels that its readers accept
        self.staging: dict[int, Ref] = {}  # by size; all recordings share it, because one queue runs them all

    @abstractmethod
    def shapes(self) -> list[Shape]:
        """Return the shapes of the tops, from the first record."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of a batch buffer: the host memory for a batch of `shapes`."""

    @property
    def spare_buffers(self) -> int:
        """The number of buffers that processes of the source would write to and exchange for those of `fill`."""
        return 0

    def unshare(self) -> None:
        """Use `shared` no longer. The consumer has ended."""
        self.shared = None

    @abstractmethod
    def fill(self, index: int, buffer: np.ndarray) -> BatchInfo:
        """Write batch number `index` (0: the first of the training) into `buffer`, uint8.

        A batch with larger images may not fit. Then nothing is written and `nbytes` of the result exceeds the buffer's size. The caller must call
        again with a larger buffer.
        """

    def wrong_label(self, top: int, labels: np.ndarray) -> tuple[int, Error] | None:
        """Return the index of the first label that a reader of `top` does not accept, with the error. Each `fill` calls this for its tops."""
        for limit in self.limits.get(top, ()):
            index = limit.first_wrong(labels.reshape(-1))
            if index is not None:
                return index, limit.error(float(labels.reshape(-1)[index]))
        return None

    def hurry(self, step: int = 1) -> None:  # noqa: B027  (most sources have no faster way)
        """Fill batches faster from now on, if that is possible. The consumer waits for them. It takes every `step`-th batch."""

    def close(self) -> None:  # noqa: B027  (most sources have nothing to do)
        """Close files and end threads."""

    def located(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that adds the place and layer of this source to errors."""
        return within(self.place, self.layer)


def aligned(size: int) -> int:
    """Return `size` rounded up to the alignment of the regions of a batch buffer."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def key_of(seed: int, layer: str) -> tuple[int, int]:
    """Return the Philox key of a layer's source."""
    return seed & 0xFFFFFFFFFFFFFFFF, zlib.crc32(layer.encode())


def upload(rec: Recorder, source: Source, nbytes: int) -> Ref:
    """Record the upload of the next batch. Return its staging Ref."""
    fresh = Ref(f"{rec.layer}.batch", (nbytes,), Role.STAGING, np.dtype(np.uint8), slots=SLOTS)
    staging = source.staging.setdefault(nbytes, fresh)
    rec.add(Upload(layer=rec.layer, phase="forward", operands=[Operand(staging, Access.WRITE)], source=source))
    return staging


def bit_generator(key: tuple[int, int], stream: int, position: int = 0, part: int = 0) -> np.random.Philox:
    """Return the Philox generator of (key, stream, part) at `position`.

    A position has four words of 64 bits. Consecutive positions are consecutive in the generator, so one call draws words for many positions.
    """
    return np.random.Philox(key=np.array(key, np.uint64), counter=stream << 192 | part << 96 | position)


def draws(key: tuple[int, int], stream: int, positions: range) -> np.ndarray:
    """Return random words for the positions: uint64, (count, 4). They do not depend on how calls group the positions."""
    if not positions:
        return np.empty((0, 4), np.uint64)
    return bit_generator(key, stream, positions[0]).random_raw(4 * (positions[-1] + 1 - positions[0])).reshape(-1, 4)[:: positions.step]


def below(words: np.ndarray, bound: np.ndarray | int) -> np.ndarray:
    """Return uniform integers in [0, bound) from random words; bound < 2^32. The product is used because a remainder is biased; its bias is below 2^-32."""
    return ((words >> np.uint64(32)) * np.asarray(bound, np.uint64) >> np.uint64(32)).astype(np.int64)


def permutation(key: tuple[int, int], stream: int, part: int, count: int) -> np.ndarray:
    """Return a random order of `count` items. It sorts random words, because numpy may change Generator.permutation between releases."""
    return np.argsort(bit_generator(key, stream, 0, part).random_raw(count), kind="stable")


def check_fields(message: object, honoured: set[str], what: str, fix: str) -> None:
    """Raise Error without a place if a field of `message` that is not `honoured` differs from its default."""
    default = type(message)()
    for field, value in message.ListFields():  # type: ignore[attr-defined]
        key = key_of_field(message, field.name)  # type: ignore[arg-type]
        if field.name in honoured or key in IGNORED or value == getattr(default, field.name):
            continue
        if key in REFUSED:
            raise Error(f"{what} field '{field.name}' is not supported here: {REFUSED[key].did}", fix=REFUSED[key].of(message).without)
        raise Error(f"{what} field '{field.name}' is not supported here", fix=fix)
