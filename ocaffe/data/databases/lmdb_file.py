"""Reads the records of an LMDB file by ordinary reads.

The LMDB library reads through a memory map and trusts the file. A damaged page, a disk error, or a file that shrinks then ends the process by a signal.
Here every number of the file is checked before it is used, and each fault raises Damaged. The copy of a read costs no more than the page faults of a map.

The format is version 1 of LMDB's mdb.c (LMDB 0.9), in the byte order and word size of this machine. A page begins with its number, flags, and the ends of
its table of nodes. A tree of branch pages leads to leaf pages, whose nodes are records in the order of their keys. A large value has pages of its own.
"""
from __future__ import annotations

import os
import struct
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

import numpy as np

from ocaffe.support.files import check_plain
from ocaffe.support.kinds import kind_of

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_META = struct.Struct("@IIPN IHH5N IHH5N NN")  # magic, version, address, map size; the free and the main tree; last page, transaction
_TREE = struct.Struct("@IHH5N")  # page size (of the free tree), flags, depth, branch, leaf and overflow pages, entries, root
_WORD = struct.calcsize("@N")
_HEADER = np.dtype([("number", np.uintp), ("pad", np.uint16), ("flags", np.uint16), ("lower", np.uint16), ("upper", np.uint16)])
_HEAD = _HEADER.itemsize
_OVERFLOW_HEAD = struct.Struct("@NHHI")  # number, pad, flags, number of pages
_NODE = 8  # bytes before the key of a node: low and high half of the size or page, flags, key size
_BRANCH, _LEAF, _OVERFLOW, _KINDS = 0x01, 0x02, 0x04, 0x6F  # page flags; _KINDS: all that say what a page is
_LARGE = 0x01  # node flag: the value has pages of its own
_MANY = 0x04  # node flag: the value is the tree or page of the values of a key; 0x02 alone: the tree of a named database
_PAGE_SIZES = [1 << bits for bits in range(8, 16)]
_MAX_DEPTH = 32  # LMDB's limit
_RUN = 1 << 20  # bytes that are read with one call; the size of a longer value is verified first, because a damaged size must not fill the memory
_LEAVES = 256  # leaf pages that are read together; parsing many at once takes a tenth of the time per record


COPY = "copy the database again, or make it again"


class Damaged(Exception):
    """The file cannot be read. The message is the fact, `fix` the remedy."""

    remedy = COPY  # of damage

    def __init__(self, fact: str, fix: str = "", whole: bool = False) -> None:
        """`fix`: another remedy. `whole`: the fact is about the whole database, not about a record."""
        super().__init__(fact)
        self.fix, self.whole = fix or self.remedy, whole


class Changed(Damaged):
    """Another process wrote the file, and no reader slot protects the snapshot."""

    remedy = "run again, and let no process write the database meanwhile"


class Meta(NamedTuple):
    """A state of the database: a transaction and the tree that it committed."""

    transaction: int
    page_size: int
    last_page: int
    depth: int
    entries: int
    root: int


class LmdbFile:
    """An open data.mdb. Any number of threads may read."""

    def __init__(self, path: str) -> None:
        """Raises OSError, Damaged."""
        self._path = os.path.abspath(path)
        self._open()
        self.page_size = _meta(self.read(0, _HEAD + _META.size), path).page_size

    def _open(self) -> None:
        check_plain(self._path)
        self._descriptor = os.open(self._path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
        weakref.finalize(self, os.close, self._descriptor)
        self._seeking = threading.Lock()
        self._known: tuple[bytes, list[Meta]] = (b"", [])

    def __getstate__(self) -> tuple[str, int, tuple[int, int]]:
        return self._path, self.page_size, self._identity()

    def __setstate__(self, state: tuple[str, int, tuple[int, int]]) -> None:
        self._path, self.page_size, identity = state
        self._open()
        if self._identity() != identity:
            raise Changed("data.mdb was replaced while it was read")

    def _identity(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_dev, status.st_ino

    @property
    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, at: int, size: int) -> bytes:
        """Return `size` bytes from byte `at` on."""
        pieces: list[bytes] = []
        wanted = size
        while wanted:
            try:
                piece = self._pread(wanted, at + size - wanted)
            except OSError as problem:
                raise Damaged(f"bytes {at:,} to {at + size:,} of data.mdb cannot be read: {problem.strerror}") from None
            if not piece:
                raise Damaged(f"data.mdb ends at byte {self.size:,}, and a record needs {at + size:,}")
            pieces.append(piece)
            wanted -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _pread(self, size: int, at: int) -> bytes:
        if sys.platform != "win32":
            return os.pread(self._descriptor, size, at)
        with self._seeking:
            os.lseek(self._descriptor, at, os.SEEK_SET)
            return os.read(self._descriptor, size)

    def read_into(self, at: int, space: memoryview) -> None:
        """Fill `space` with the bytes from byte `at` on."""
        if hasattr(os, "preadv") and os.preadv(self._descriptor, [space], at) == len(space):
            return
        space[:] = self.read(at, len(space))

    def metas(self) -> list[Meta]:
        """Return the last two committed states, the newer one first."""
        content = self.read(0, self.page_size + _HEAD + _META.size)
        if content != self._known[0]:
            metas = [_meta(content[at : at + _HEAD + _META.size], self._path) for at in (0, self.page_size)]
            if metas[0].page_size != metas[1].page_size:
                raise Damaged(f"its two meta pages have page sizes {metas[0].page_size} and {metas[1].page_size}")
            self._known = content, sorted(metas, reverse=True)
        return self._known[1]


def _others(flags: int, key: bytes) -> Damaged:
    """Return the error for a node with these flags that is no record of Caffe."""
    name = key.decode("utf-8", "backslashreplace")
    if flags & _MANY:
        fact = f"the key '{name}' has several values (dupsort), and a key of Caffe's databases has one"
        return Damaged(fact, "write the records with one key each, to a database that is opened without dupsort", whole=True)
    fact = f"its records are in the named database '{name}' inside it, and Caffe's databases have them in the unnamed main one"
    return Damaged(fact, f'write the records to the main database; in Python: leave out env.open_db(b"{name}"), and db= in begin() and put()', whole=True)


def _meta(page: bytes, path: str) -> Meta:
    """Parse a meta page of the file `path`, whose name is for errors."""
    magic, version, *rest = _META.unpack_from(page, _HEAD)
    if magic != _MAGIC:
        kind = kind_of(page, path)
        if kind is not None:
            raise Damaged(f"its data.mdb is {kind.name}", kind.way or COPY)
        fact = "its data.mdb is not an LMDB file of this kind of machine (word size, byte order)"
        raise Damaged(fact, f"{COPY} on this kind of machine, for example by `ocaffe convert_imageset`")
    if version != _VERSION:
        fact = f"its format has version {version}, and Caffe's databases have version {_VERSION}"
        raise Damaged(fact, "make the database again with LMDB 0.9, for example by `ocaffe convert_imageset`")
    size, depth, entries, root, last, transaction = rest[2], rest[12], rest[16], rest[17], rest[18], rest[19]
    if size not in _PAGE_SIZES or depth > _MAX_DEPTH or entries > last * size or (entries and not 1 < root <= last):
        raise Damaged(f"its meta page is damaged: pages of {size} bytes, {last + 1} pages, depth {depth}, {entries} records")
    return Meta(transaction, size, last, depth, entries, root)


class Nodes(NamedTuple):
    """Nodes of some leaf pages: where their keys and values are, in bytes. `page` is the first page of a large value, else 0."""

    content: bytes  # of the leaf pages
    base: np.ndarray  # to be added to a position in `content` for one in the file
    key: np.ndarray
    value: np.ndarray  # it follows its key, unless it is large
    size: np.ndarray
    page: np.ndarray


class Spot(NamedTuple):
    """Where a record is: the position of its key in the file, and sizes in bytes. The value follows the key, or begins at a page of its own."""

    at: int
    key: int
    size: int
    page: int  # the first page of the value, or 0
    content: memoryview | None  # the key and the value that follows it, if they have been read


class Snapshot:
    """One state of the database. Any number of threads may read."""

    def __init__(self, file: LmdbFile, meta: Meta, protected: bool) -> None:
        """`protected`: a reader slot lets writers keep the pages of this state."""
        self.file, self.meta, self.protected = file, meta, protected

    def verify(self) -> None:
        """Raise Changed if pages that have been read may not be those of this state."""
        newest = self.file.metas()[0].transaction
        if newest < self.meta.transaction or (newest > self.meta.transaction and not self.protected):
            raise Changed("the database was changed while it was read")

    def leaves(self) -> Iterator[list[int]]:
        """Yield the numbers of all leaf pages in the order of their keys, some at a time."""
        if self.meta.entries:
            yield from self._below([self.meta.root], self.meta.depth)

    def _below(self, pages: list[int], level: int) -> Iterator[list[int]]:
        if level <= 1:
            yield from (pages[at : at + _LEAVES] for at in range(0, len(pages), _LEAVES))
            return
        for page in pages:
            yield from self._below(self._children(page), level - 1)

    def _children(self, number: int) -> list[int]:
        _, rows, at, words = self._table([number], _BRANCH)
        low, high, top, key = (words[rows, (at >> 1) + part].astype(np.uint64) for part in range(4))
        pages = low | high << np.uint64(16) | (top << np.uint64(32) if _WORD == 8 else np.uint64(0))
        self._require((pages <= self.meta.last_page) & (at + _NODE + key.astype(np.int64) <= self.meta.page_size), rows, [number])
        return [int(page) for page in pages]

    def nodes(self, leaves: Sequence[int]) -> Nodes:
        """Return the nodes of these leaf pages."""
        size, last = self.meta.page_size, self.meta.last_page
        content, rows, at, words = self._table(leaves, _LEAF)
        low, high, flags, keys = (words[rows, (at >> 1) + part].astype(np.int64) for part in range(4))
        length, large = low | high << 16, flags == _LARGE
        start = at + _NODE + keys
        self._require(start + np.where(large, _WORD, length) <= size, rows, leaves)
        if (flags > _LARGE).any():
            first = int(np.argmax(flags > _LARGE))
            raise _others(int(flags[first]), content[rows[first] * size + at[first] + _NODE :][: keys[first]])
        key, value = rows * size + at + _NODE, rows * size + start
        page = np.zeros(len(rows), np.int64)
        if large.any():
            places = value[large][:, None] + np.arange(_WORD)
            pages = np.frombuffer(content, np.uint8)[places].view(np.uintp)[:, 0]
            inside = pages <= last
            page[large] = np.where(inside, pages, 0).astype(np.int64)
            self._require(inside & (page[large] > 1) & (page[large] * size + _HEAD + length[large] <= (last + 1) * size), rows[large], leaves)
        self.verify()
        return Nodes(content, (np.array(leaves, np.int64)[rows] - rows) * size, key, value, length, page)

    def _table(self, numbers: Sequence[int], kind: int) -> tuple[bytes, np.ndarray, np.ndarray, np.ndarray]:
        """Read pages of one kind. Return their bytes, then of each node the page's index and the position in it, and the pages as words of 16 bits."""
        size = self.meta.page_size
        content = b"".join(self.file.read(first * size, count * size) for first, count in _runs(numbers))
        pages = np.frombuffer(content, np.uint8).reshape(len(numbers), size)
        head = np.ascontiguousarray(pages[:, :_HEAD]).view(_HEADER)[:, 0]
        lower, upper = head["lower"].astype(np.int64), head["upper"].astype(np.int64)
        sound = (head["number"] == np.array(numbers, np.uintp)) & (head["flags"] & _KINDS == kind)
        sound &= (lower >= _HEAD + 2) & (lower <= upper) & (upper <= size) & (lower % 2 == 0)
        self._require(sound, np.arange(len(numbers)), numbers)
        count = (lower - _HEAD) // 2
        words = pages.view(np.uint16)
        rows, columns = np.nonzero(np.arange(count.max()) < count[:, None])
        at = words[rows, _HEAD // 2 + columns].astype(np.int64)
        self._require((at >= upper[rows]) & (at + _NODE <= size) & (at % 2 == 0), rows, numbers)
        return content, rows, at, words

    def _require(self, sound: np.ndarray, rows: np.ndarray, numbers: Sequence[int]) -> None:
        if not sound.all():
            raise Damaged(f"page {numbers[int(rows[int(np.argmin(sound))])]} of data.mdb is damaged")

    def key(self, spot: Spot) -> bytes:
        return bytes(spot.content[: spot.key]) if spot.content is not None else self.file.read(spot.at, spot.key)

    def values(self, spots: Sequence[Spot], arena: Arena) -> list[memoryview]:
        """Return the values at `spots`, large ones in `arena`. Raises Damaged."""
        arena.clear()
        large = self._large([(spot.page, spot.size) for spot in spots if spot.page], arena)
        values = [next(large) if spot.page else self._small(spot) for spot in spots]
        if any(spot.page or spot.content is None for spot in spots):
            self.verify()
        return values

    def _small(self, spot: Spot) -> memoryview:
        content = spot.content if spot.content is not None else memoryview(self.file.read(spot.at, spot.key + spot.size))
        return content[spot.key : spot.key + spot.size]

    def _large(self, places: Sequence[tuple[int, int]], arena: Arena) -> Iterator[memoryview]:
        """Return the large values at `places` (first page, bytes). Neighbours in the file are read with one call."""
        size = self.meta.page_size
        runs: list[list[tuple[int, int]]] = []
        end = 0  # the page after the last run
        for page, length in places:
            if page != end or (end - runs[-1][0][0]) * size > _RUN:
                runs.append([])
            runs[-1].append((page, length))
            end = page + -(-(_HEAD + length) // size)
        values = []
        try:
            for run in runs:
                begin, (last, length) = run[0][0] * size, run[-1]
                if length > _RUN:
                    self._check_large(last, length, self.file.read(last * size, _HEAD))
                space = arena.take(last * size + _HEAD + length - begin)
                self.file.read_into(begin, space)
                values += [(page, space[page * size - begin : page * size - begin + _HEAD + length]) for page, length in run]
            for (page, content), (_, length) in zip(values, chain.from_iterable(runs)):
                self._check_large(page, length, content)
        except Damaged:
            self.verify()  # an old page that a writer has used again looks damaged
            raise
        return (content[_HEAD:] for _, content in values)

    def _check_large(self, page: int, length: int, content: bytes | memoryview) -> None:
        number, _, flags, count = _OVERFLOW_HEAD.unpack_from(content)
        if number != page or flags & _KINDS != _OVERFLOW or count != -(-(_HEAD + length) // self.meta.page_size):
            raise Damaged(f"page {page} of data.mdb is damaged")


class Arena:
    """Memory that is used again by each read, because fresh memory takes longer to get than to fill."""

    def __init__(self) -> None:
        self._memory, self.used = memoryview(bytearray()), 0  # `used`: bytes since the last clear()

    def clear(self) -> None:
        """Let later values overwrite the earlier ones."""
        self.used = 0

    def take(self, size: int) -> memoryview:
        if self.used + size > len(self._memory):
            self._memory, self.used = np.empty(max(size, 2 * len(self._memory)), np.uint8).data, 0  # views keep the earlier memory alive
        self.used += size
        return self._memory[self.used - size : self.used]


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield first number and length of the runs of consecutive numbers."""
    if list(numbers) == list(range(numbers[0], numbers[0] + len(numbers))):
        yield numbers[0], len(numbers)
        return
    first = 0
    for at in range(1, len(numbers) + 1):
        if at == len(numbers) or numbers[at] != numbers[at - 1] + 1:
            yield numbers[first], at - first
            first = at


class Forward:
    """Finds records in order. A jump passes over the leaf pages between."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._restart()

    def _restart(self) -> None:
        self._leaves = self._snapshot.leaves()
        self._nodes: Iterator[tuple[int, int, int, int, int]] = iter(())
        self._content = memoryview(b"")
        self._at = self._end = 0  # the next record, and the first one of the next leaf pages

    def find(self, records: Sequence[int]) -> list[Spot]:
        """Return where these records are, fewer if one is missing. Raises Damaged."""
        spots: list[Spot] = []
        try:
            for first, count in _runs(records):
                found = self._run(first, count)
                spots += found
                if len(found) < count:
                    break
        except Damaged:
            self._restart()
            self._snapshot.verify()  # an old page that a writer has used again looks damaged
            raise
        return spots

    def _run(self, first: int, count: int) -> list[Spot]:
        """Return `count` consecutive records (fewer at the end)."""
        if first < self._at:
            self._restart()
        while first >= self._end:
            if not self._load():
                return []
        spots: list[Spot] = []
        skipped = first - self._at
        while len(spots) < count and (self._at < self._end or self._load()):
            spots += self._some(skipped, count - len(spots))
            skipped = 0
        return spots

    def _load(self) -> bool:
        """Read the next leaf pages. Return whether there are any."""
        leaves = next(self._leaves, None)
        if leaves is None:
            return False
        nodes = self._snapshot.nodes(leaves)
        self._content = memoryview(nodes.content)
        columns = nodes.base + nodes.key, nodes.key, nodes.value, nodes.size, nodes.page
        self._nodes = zip(*(column.tolist() for column in columns))
        self._at, self._end = self._end, self._end + len(nodes.key)
        return True

    def _some(self, skipped: int, count: int) -> list[Spot]:
        """Return at most `count` records of the loaded leaf pages, after `skipped` ones."""
        content, rows = self._content, islice(self._nodes, skipped, skipped + count)
        spots = [Spot(at, value - key, size, page, content[key : value if page else value + size]) for at, key, value, size, page in rows]
        self._at += skipped + len(spots)
        return spots


class Anywhere:
    """Finds records in any order. It lists the positions of all of them first."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Raises Damaged."""
        self._snapshot = snapshot
        parts: list[list[np.ndarray]] = []
        found = 0
        for leaves in snapshot.leaves():
            nodes = snapshot.nodes(leaves)
            parts.append([nodes.base + nodes.key, (nodes.value - nodes.key).astype(np.uint16), nodes.size.astype(np.uint32), nodes.page])
            found += len(nodes.key)
            if found > snapshot.meta.entries:  # a damaged tree may have no end
                raise Damaged(f"it has more than the {snapshot.meta.entries} records of its meta page")
        self._count, self._columns = found, [np.concatenate(column) for column in zip(*parts)]

    def find(self, records: Sequence[int]) -> list[Spot]:
        """Return where these records are. Raises Damaged."""
        if max(records) >= self._count:
            raise Damaged(f"it has {self._count} records, and its meta page says {self._snapshot.meta.entries}")
        chosen = np.array(records, np.intp)
        rows = zip(*(column[chosen].tolist() for column in self._columns))
        return [Spot(at, key, size, page, None) for at, key, size, page in rows]
