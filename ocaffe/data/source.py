"""A source feeds a net: a pure function from the number of a batch to its bytes.

Batch k holds records k * B ... k * B + B - 1 of the endless sequence of records, which wraps at the end of the data. Nothing depends on what was
read before or on the timing of threads, so a run that resumes at batch k goes on exactly: the number k is the whole state.
"""
from __future__ import annotations

import contextlib
import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from ocaffe.errors import Error, Place, within
from ocaffe.ir.launch import Access, Operand, Upload
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role, Shape

ALIGNMENT = 64  # bytes; every part of a block begins at a multiple
SLOTS = 2  # batches on the device: one in use, one arriving; backward may still read the former
Note = tuple[str, str]  # a line of Caffe's log: its source ('data_layer.cpp:73') and its text

# Streams of random numbers that never meet: they are the highest word of the 256-bit Philox counter.
SAMPLE, SKIP, RECORDS, FILES, FILLER, AUGMENT = range(6)


@dataclass(frozen=True)
class BatchInfo:
    """What `fill` says of a batch: the shapes of the tops (none: they never change), the bytes it takes, and log lines that belong to it."""

    shapes: tuple[Shape, ...]
    nbytes: int
    notes: tuple[Note, ...] = ()


class Source(ABC):
    """Base of all sources. Used by one thread at a time."""

    key: tuple[int, int] = (0, 0)  # of the random numbers (key_of)
    notes: tuple[Note, ...] = ()  # log lines of opening it

    def __init__(self, place: Place | None = None, layer: str | None = None) -> None:
        """`place` and `layer` go into error messages."""
        self.place = place
        self.layer = layer
        self.staging: dict[int, Ref] = {}  # by size: the same for every recording, since one queue runs them all

    @abstractmethod
    def shapes(self) -> list[Shape]:
        """The shapes of the tops, from the first record."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Size of a block for a batch of `shapes`."""

    @abstractmethod
    def fill(self, index: int, block: np.ndarray) -> BatchInfo:
        """Write batch number `index` (0 = first of the training) into `block`, uint8. A batch with larger images may need more than
        the block has (`nbytes` of the result says so): then nothing is written, and the caller comes again with a larger one."""

    def close(self) -> None:  # noqa: B027  (most sources have nothing to do)
        """Let go of files and threads."""

    def located(self) -> contextlib.AbstractContextManager[None]:
        """Errors raised within get the place and layer of this source."""
        return within(self.place, self.layer)


def aligned(size: int) -> int:
    """`size` rounded up to the alignment of block parts."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def key_of(seed: int, layer: str) -> tuple[int, int]:
    """The Philox key of a layer's source."""
    return seed & 0xFFFFFFFFFFFFFFFF, zlib.crc32(layer.encode())


def upload(rec: Recorder, source: Source, nbytes: int) -> Ref:
    """Record the arrival of the next batch; returns its staging Ref."""
    fresh = Ref(f"{rec.layer}.batch", (nbytes,), Role.STAGING, np.dtype(np.uint8), slots=SLOTS)
    staging = source.staging.setdefault(nbytes, fresh)
    rec.add(Upload(layer=rec.layer, phase="forward", operands=[Operand(staging, Access.WRITE)], source=source, what="upload"))
    return staging


def bit_generator(key: tuple[int, int], stream: int, position: int = 0, part: int = 0) -> np.random.Philox:
    """The Philox generator of (key, stream, part) at `position`, each position being four words of 64 bits. Positions are neighbours:
    n words for each of many positions come from one call."""
    return np.random.Philox(key=np.array(key, np.uint64), counter=stream << 192 | part << 96 | position)


def draws(key: tuple[int, int], stream: int, first: int, count: int) -> np.ndarray:
    """Random words for the positions `first` ... `first + count - 1`: uint64 of shape (count, 4), the same however they are grouped."""
    return bit_generator(key, stream, first).random_raw(4 * count).reshape(count, 4)


def below(words: np.ndarray, bound: np.ndarray | int) -> np.ndarray:
    """Uniform integers in [0, bound) from random words, without the bias of a remainder (below 2^-32); bound < 2^32."""
    return ((words >> np.uint64(32)) * np.asarray(bound, np.uint64) >> np.uint64(32)).astype(np.int64)


def permutation(key: tuple[int, int], stream: int, part: int, count: int) -> np.ndarray:
    """A random order of `count` things. Sorted random words rather than Generator.permutation, which numpy may change between releases."""
    return np.argsort(bit_generator(key, stream, 0, part).random_raw(count), kind="stable")


def check_fields(message: object, honoured: set[str], what: str, fix: str) -> None:
    """Raise Error, without place, if a field of `message` is set, to something other than its default, that is not `honoured`."""
    default = type(message)()
    for field, value in message.ListFields():  # type: ignore[attr-defined]
        if field.name not in honoured and value != getattr(default, field.name):
            raise Error(f"{what} field '{field.name}' is not supported here", fix=fix)
