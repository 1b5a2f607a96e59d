"""Tar shards: image files and labels in tar files, with the names of the library WebDataset. `000.jpg` and `000.cls` are a sample.

The headers of the members are read once. Later each image is read at its place, in any order, so that shuffling costs nothing.
"""
from __future__ import annotations

import glob
import os
import re
import tarfile
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ocaffe.data.stores.file_store import FileOpener, Files, Label, label_values
from ocaffe.data.stores.folder import is_image_name
from ocaffe.data.stores.labels_txt import LABELS
from ocaffe.errors import Error
from ocaffe.formats.json_file import parse_json
from ocaffe.shown import command, path_word
from ocaffe.support.files import open_plain, to_read
from ocaffe.support.here import here
from ocaffe.support.kinds import EMPTY, kind_of, unpacking

SUFFIX = ".tar"
_TAR_BLOCK = 512  # bytes; headers and contents begin at multiples
_COMPRESSED = re.compile(r"\.(tgz|tbz2?|txz|tzst|tar\.\w+)$", re.IGNORECASE)
_RANGE = re.compile(r"\{(\d{1,18})\.\.(\d{1,18})\}")
_MOST_TEXT = 1 << 20  # bytes of a member with labels
_MOST_SHARDS = 1 << 20  # of a range
_NUMBER = "write the number of the class to it"
_JSON = 'write the number of the class to it as {"label": 0}'
_LABEL_KINDS = ("cls", "json")  # suffixes of members with labels; the first one that a sample has is used


class Member(NamedTuple):
    """A file in a shard: its name, and the place of its content."""

    name: str
    at: int
    size: int


class Shard(NamedTuple):
    """A tar file. Size and time of change tell whether it is the file whose headers were read."""

    path: str
    size: int
    changed: int


class Found(NamedTuple):
    """An image in a shard, and its label or labels."""

    shard: Shard
    member: Member
    label: Label


def is_shards(source: str) -> bool:
    """Return whether `source` names tar files: a .tar (also compressed, which is refused later), a pattern of them, or a folder with nothing else."""
    if not os.path.isdir(source):
        return _is_tar(source)
    names = _names(source)
    return any(map(_is_tar, names)) and all(_is_tar(name) or name == LABELS for name in names)


def _names(folder: str) -> list[str]:
    """Return the sorted names in a folder without the hidden ones. Raise Error."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError as problem:
        raise Error(f"the folder {folder} cannot be read: {problem.strerror}", fix=to_read(folder, problem, "set source to the folder of the shards")) from None


def _is_tar(name: str) -> bool:
    return name.lower().endswith(SUFFIX) or bool(_COMPRESSED.search(name))


class ShardFiles(Files):
    """The images of tar shards, in the order of the shards' names and of the members.

    A sample has an image, and its labels as text in a member .cls, or under "label" in a member .json. Members with other suffixes are ignored.
    """

    def __init__(self, source: str, label_count: int, floats: bool) -> None:
        """`floats`: labels may be fractions. Raise Error without a place."""
        self.opener = FileOpener(_read)
        self._shards: list[Shard] = []
        self._names: list[str] = []
        self._shard, self._at, self._size, values = array("l"), array("q"), array("q"), array("d")
        for path in shard_paths(source):
            for image, labels in _samples(path, self._shards, label_count, floats):
                self._shard.append(len(self._shards) - 1)
                self._names.append(image.name)
                self._at.append(image.at)
                self._size.append(image.size)
                values.extend(labels)
        self.entries = len(self._names)
        if not self.entries:
            raise Error(f"the shards {source} have no image", fix="write samples to them: an image and its label, such as 000.jpg and 000.cls")
        self.labels = np.array(values, np.float32).reshape(self.entries, label_count)
        self.notes = (("image_data_layer.cpp:38", f"Opening {len(self._shards)} shards {source}"),)

    def file(self, record: int) -> Found:
        member = Member(self._names[record], self._at[record], self._size[record])
        return Found(self._shards[self._shard[record]], member, self.label(record))

    def name(self, found: Found) -> str:
        return f"{found.shard.path}, member {found.member.name}"

    def fault(self, problem: Error, record: int, found: Found) -> Error:
        return Error(f"{self.name(found)}: {problem.fact}", fix=problem.fix or "make the shard again without the sample")


def _read(found: Found) -> bytes:
    """Return the content of a member. Raise Error without a place."""
    shard, (_, at, size), again = found.shard, found.member, "copy the shard again"
    try:
        with open_plain(shard.path, buffering=0) as stream:
            if _identity(stream, shard.path) != shard:
                raise Error("the shard was changed after its headers were read", fix="start again")
            stream.seek(at)
            content = stream.read(size)
    except OSError as problem:
        raise Error(f"it cannot be read: {problem.strerror}", fix=to_read(shard.path, problem, again)) from None
    if len(content) != size:
        raise Error(f"it has {len(content):,} bytes, and {size:,} by its header", fix=again)
    return content


def shard_paths(source: str) -> list[str]:
    """Return the tar files of `source`: a file, a pattern such as train-*.tar or train-{000..009}.tar, or a folder. Raise Error."""
    if os.path.isdir(source):
        return [os.path.join(source, name) for name in _names(source) if _is_tar(name)]
    if os.path.exists(source):
        return [source]
    span = _RANGE.search(source)
    if span:
        first, last = (int(number) for number in span.groups())
        if not first <= last < first + _MOST_SHARDS:
            if last < first:
                raise Error(f"the range {span[0]} in '{source}' ends before it begins", fix=f"give the smaller number first: {{{span[2]}..{span[1]}}}")
            raise Error(f"the range {span[0]} in '{source}' has {last - first + 1:,} shards", fix=f"give at most {_MOST_SHARDS:,}, or the folder of the shards")
        return [f"{source[: span.start()]}{number:0{len(span[1])}d}{source[span.end() :]}" for number in range(first, last + 1)]
    found = sorted(glob.glob(source))
    if not found:
        raise Error(f"no file has the name '{source}'", fix=f"source is a .tar, a pattern of them, or a folder (relative to {here()})")
    return found


def _samples(path: str, shards: list[Shard], label_count: int, floats: bool) -> Iterator[tuple[Member, list[float]]]:
    """Add the shard `path` to `shards`. Yield its images with their labels. Raise Error."""
    try:
        with open_plain(path) as stream:
            shards.append(_identity(stream, path))
            _check_plain(stream, path)
            samples: dict[str, dict[str, Member]] = {}
            for member in _members(stream, path):
                folder, slash, base = member.name.removeprefix("./").rpartition("/")
                stem, _, suffix = base.partition(".")
                kind = "image" if is_image_name(f".{suffix}") and "." not in suffix else suffix.lower()
                if not stem or kind not in ("image", *_LABEL_KINDS):
                    continue
                sample = samples.setdefault(folder + slash + stem, {})
                if kind in sample:
                    raise Error(f"{path}, member {member.name}: the sample has {sample[kind].name} too", fix="make the shard with one image in each sample")
                sample[kind] = member
            for sample in samples.values():
                yield _sample(stream, path, sample, label_count, floats)
    except OSError as problem:
        raise Error(f"the shard {path} cannot be read: {problem.strerror}", fix=to_read(path, problem, "correct its name, or copy it again")) from None


def _identity(stream: BinaryIO, path: str) -> Shard:
    status = os.fstat(stream.fileno())
    return Shard(path, status.st_size, status.st_mtime_ns)


def _check_plain(stream: BinaryIO, path: str) -> None:
    begin = stream.read(512)
    stream.seek(0)
    packed = unpacking(begin, path, tar=False)
    if packed:
        raise Error(f"the shard {path} is {packed.name}, and only plain tar files can be read in any order", fix=packed.way)
    if _COMPRESSED.search(path):
        plain = _COMPRESSED.sub(".tar", path)
        raise Error(f"the shard {path} has the name of a compressed file, and is not one", fix=command("mv", path_word(path), path_word(plain)))
    kind = kind_of(begin, path)
    if kind is not None and kind.name != EMPTY and not kind.way.startswith("unpack it: tar"):
        raise Error(f"the shard {path} is {kind.name}, not a tar file", fix=kind.way or "leave it out of source, which names the shards")


def _members(stream: BinaryIO, path: str) -> Iterator[Member]:
    """Yield the files in a tar file. Only headers are read. Raise Error."""
    tar: Any
    at, copy = -1, "copy or make the shard again"
    try:
        with tarfile.open(fileobj=stream, mode="r:") as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # tarfile keeps all of them for itself
                if tar.offset <= at:  # a negative size; older versions of Python would read it forever
                    raise Error(f"{path}, member {member.name}: its header is damaged", fix=copy)
                at = tar.offset
                if member.isdir() or os.path.basename(member.name).startswith("."):
                    continue
                if not member.isfile() or member.issparse():
                    fact = f"{path}, member {member.name}: it is a link or a sparse file, not a plain one"
                    raise Error(fact, fix="make the shard with tar --dereference --hard-dereference")
                yield Member(member.name, member.offset_data, member.size)
            end = tar.offset
        stream.seek(end)
        last = stream.read(_TAR_BLOCK)
    except (Error, OSError):
        raise
    except Exception as problem:  # for damaged files tarfile raises exceptions of many types
        raise Error(f"the shard {path} is damaged near byte {max(at, 0):,}: {problem or type(problem).__name__}", fix=copy) from None
    if len(last) < _TAR_BLOCK:
        raise Error(f"the shard {path} ends at byte {end + len(last):,} without the end mark of a tar file: it is truncated", fix=copy)
    if last.strip(b"\0"):
        raise Error(f"the shard {path} is damaged: the header at byte {end:,} is not one of tar", fix=copy)


def _sample(stream: BinaryIO, path: str, sample: dict[str, Member], label_count: int, floats: bool) -> tuple[Member, list[float]]:
    """Return the image of a sample and its labels. Raise Error."""
    member = next(iter(sample.values()))
    source = next((sample[kind] for kind in _LABEL_KINDS if kind in sample), None)
    if "image" not in sample or source is None:
        fact = f"{path}, member {member.name}: the sample has no {'image' if source else '.cls or .json with its label'}"
        folder, slash, base = member.name.rpartition("/")
        stem = folder + slash + base.partition(".")[0]
        raise Error(fact, fix=f"add {stem}.{'jpg' if source else 'cls'} to the shard, or leave the sample out of it")
    try:
        if source.size > _MOST_TEXT:
            raise Error(f"it has {source.size:,} bytes, and {_MOST_TEXT:,} are allowed", fix="write the number of the class alone to it")
        stream.seek(source.at)
        text = stream.read(source.size).decode("utf-8-sig")
        words = text.split() if source is sample.get("cls") else _json_words(text)
        if len(words) != label_count:
            more = f", or set label_count: {len(words)} in image_data_param" if words else ""
            numbers = f"{label_count} numbers" if label_count > 1 else "one number"
            raise Error(f"it has {len(words)} labels, and label_count is {label_count}", fix=f"write {numbers} to it{more}")
        return sample["image"], label_values(words, floats)
    except (Error, ValueError) as problem:
        fact, fix = (problem.fact, problem.fix) if isinstance(problem, Error) else (str(problem), _NUMBER)
        raise Error(f"{path}, member {source.name}: {fact}", fix=fix) from None


def _json_words(text: str) -> Sequence[str]:
    """Return the value of "label" as words: a number, or a list of numbers. Raise Error."""
    if not text.strip():
        raise Error("it is empty", fix=_JSON)
    try:
        found = parse_json(text.encode(), "")
    except Error as problem:
        raise Error(problem.fact, fix=_JSON) from None
    if not isinstance(found, dict) or "label" not in found:
        raise Error('it has no "label"', fix=_JSON)
    return [str(value) for value in (found["label"] if isinstance(found["label"], list) else [found["label"]])]
