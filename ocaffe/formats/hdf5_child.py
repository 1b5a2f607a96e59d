"""Child process that reads HDF5 files, because a damaged file can crash or hang HDF5's library.

Run it as a file and never import it: `python hdf5_child.py SYS_PATH SECONDS`, SYS_PATH as JSON. It imports nothing from ocaffe, so it starts fast.
Each line of stdin is a request, JSON with `path` and one of `list`, `attributes` and `read`. Each answer is a line of JSON, and for `read`
the bytes of the array or their place in the file. A file that is refused gives `{"problem": text, "fix": remedy}`, a damaged one
`{"damage": text}`.

A file can name other files: external links, external storage, virtual datasets and plugins of filters. They are refused, because a file
from elsewhere could copy the user's other files into the output, or select code that is then loaded.
"""
from __future__ import annotations

import json
import math
import os
import signal
import sys
from typing import Any

BYTES_PER_SECOND = 5_000_000  # each such part of a file or of values adds a second to the limit
# The largest ratio of deflate (zlib's documentation). A dataset that claims more values per stored byte is damaged, or would fill the memory.
LARGEST_RATIO = 1032
UNPACKED, USUAL_RATIO = 256 << 20, 50  # limits of a dataset that is read whole: bytes, and times its stored bytes. Trained weights shrink little
FILTERS = {1, 2, 3, 4, 5, 6, 32000}  # deflate, shuffle, fletcher32, szip, nbit, scaleoffset; h5py's lzf. They are built in
MAX_LINKS = 16  # soft links on the way to one object
MAX_DEPTH = 64  # of groups in groups
MAX_TEXT = 1 << 20  # bytes
MAX_PIECES = 4096  # of an answer
NO_H5PY = 77  # exit status


class Refused(Exception):
    """The request cannot be answered. The text is a fact about the file, `fix` the remedy."""

    def __init__(self, fact: str, fix: str) -> None:
        super().__init__(fact)
        self.fix = fix

    def answer(self) -> dict[str, str]:
        return {"problem": str(self), "fix": self.fix}


class Reader:
    """Answers requests. The file of the last `read` stays open."""

    def __init__(self, h5py: Any) -> None:
        self.h5py = h5py
        self.path = ""
        self.file: Any = None

    def answer(self, request: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """Return the answer and the array to send after it, or None."""
        _limit(os.path.getsize(request["path"]))
        if request["path"] != self.path:
            self.close()
            self.file, self.path = self.h5py.File(request["path"], "r"), request["path"]
        try:
            if "read" in request:
                return self.read(request["read"], request["rows"])
            result = self.members(request["list"]) if "list" in request else self.attributes(request["attributes"])
        except BaseException:
            self.close()
            raise
        if not request["keep"]:
            self.close()
        return result, None

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
        self.file, self.path = None, ""

    def find(self, name: str) -> Any:
        """Return the object of this path. Hard and soft links are followed, no other links. Raise KeyError if there is none."""
        item, parts, links = self.file, _parts(name), 0
        while parts:
            part = parts.pop()
            if part == ".":
                continue
            if not isinstance(item, self.h5py.Group):
                raise KeyError(name)
            link = item.get(part, getlink=True)
            if link is None:
                raise KeyError(name)
            if isinstance(link, self.h5py.SoftLink):
                links += 1
                if links > MAX_LINKS:
                    raise Refused(f"'{name}' goes through more than {MAX_LINKS} links", f"write the dataset itself in the place of the link '{name}'")
                item = self.file if link.path.startswith("/") else item
                parts += _parts(link.path)
            elif isinstance(link, self.h5py.HardLink):
                item = item[part]
            else:
                where = f" to '{link.filename}'" if isinstance(link, self.h5py.ExternalLink) else ""
                raise Refused(f"'{name}' is a link{where} outside the file", f"write the dataset itself in the place of the link '{name}'")
        return item

    def members(self, name: str) -> dict[str, Any]:
        """Return the kind, shape and type of each member of a group."""
        group = self.find(name)
        if not isinstance(group, self.h5py.Group):
            raise Refused(f"'{name}' is not a group", f"write a group '{name}' with the datasets in it")
        return {"members": {key: self.member(f"{name.rstrip('/')}/{key}") for key in group}}

    def member(self, name: str) -> dict[str, Any]:
        try:
            item = self.find(name)
            if isinstance(item, self.h5py.Group):
                return {"kind": "group", "id": str(self.h5py.h5o.get_info(item.id).addr)}
            if not isinstance(item, self.h5py.Dataset):
                return {"kind": "other"}
            return {"kind": "dataset", "shape": item.shape, "dtype": item.dtype.str, "type": str(item.dtype)}
        except Refused as problem:
            return {"kind": "other", **problem.answer()}
        except KeyError:
            return {"kind": "other", "problem": f"'{name}' is a link to nothing", "fix": f"write the dataset '{name}', or remove the link"}

    def attributes(self, name: str) -> dict[str, Any]:
        """Return the attributes of a group that are text or one number."""
        result: dict[str, Any] = {}
        for key, value in self.find(name).attrs.items():
            value = value.decode("utf-8", "replace") if isinstance(value, bytes) else value.item() if hasattr(value, "item") and value.size == 1 else value
            if isinstance(value, (str, int, float)):
                result[key] = value
        return {"attributes": result}

    def read(self, name: str, rows: list[int] | None) -> tuple[dict[str, Any], Any]:
        """Return rows of a dataset, or all of it. Plain bytes are not read: the answer has their places."""
        data = self.find(name)
        if not isinstance(data, self.h5py.Dataset):
            raise Refused(f"'{name}' is not a dataset", f"write a dataset '{name}' of numbers")
        if data.shape is None:
            raise Refused(f"dataset '{name}' is empty", "write values to it")
        self.check_storage(name, data, whole=not rows)
        if data.dtype.kind not in "fiu":
            return {"text": self.text(name, data)}, None
        first, last = rows or (0, data.shape[0] if data.shape else 1)
        if rows and (not data.shape or last > data.shape[0]):
            raise Refused(f"dataset '{name}' has no row {last - 1}: the file was changed", "start again, and do not change the file while it is read")
        shape = (last - first, *data.shape[1:]) if data.shape else ()
        answer = {"dtype": data.dtype.str, "shape": shape}
        pieces = _pieces(data, first, last) if shape and self.h5py.h5t.py_create(data.dtype) == data.id.get_type() else None  # the file's type, too
        if pieces is not None:
            return {**answer, "pieces": pieces}, None
        _limit(_read_bytes(data, last - first))
        import numpy as np

        return answer, np.ascontiguousarray(data[first:last] if data.shape else data[()])

    def text(self, name: str, data: Any) -> str:
        """Return the value of a dataset of one string."""
        if self.h5py.check_string_dtype(data.dtype) is None or data.size != 1 or data.nbytes > MAX_TEXT:
            raise Refused(f"dataset '{name}' is of type {data.dtype}, not of numbers", "write it as numbers, such as float32")
        value = data[...].reshape(-1)[0]
        return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)

    def check_storage(self, name: str, data: Any, whole: bool) -> None:
        """Refuse values in other files, filters that are plugins, and sizes that the stored bytes cannot have. `whole`: all values are to be read."""
        settings = data.id.get_create_plist()
        if settings.get_external_count():
            where = _clean(settings.get_external(0)[0])
            raise Refused(f"the values of dataset '{name}' are in '{where}', outside the file", "write the values into the file itself, without external=")
        if settings.get_layout() == self.h5py.h5d.VIRTUAL:
            raise Refused(f"dataset '{name}' is virtual: its values are in other datasets", "write a plain dataset with a copy of the values")
        filters = [settings.get_filter(i) for i in range(settings.get_nfilters())]
        for number, _, _, text in filters:
            if number not in FILTERS and not os.environ.get("HDF5_PLUGIN_PATH"):
                fact = f"dataset '{name}' is compressed by filter {number} ({_clean(text)}), a plugin, and HDF5_PLUGIN_PATH is not set"
                raise Refused(fact, "write it with compression='gzip' or without compression, or set HDF5_PLUGIN_PATH to the folder of the plugin")
        each = data.id.get_type().get_size()  # h5py may widen values
        stored, chunk, claimed = data.id.get_storage_size(), math.prod(data.chunks or ()) * each, data.size * each
        held = min(stored, os.path.getsize(self.path)) * (1 if data.chunks is None else LARGEST_RATIO)
        if max(claimed, chunk if stored else 0) > held:
            fact = f"dataset '{name}' claims {claimed:,} bytes, but {stored:,} are stored in a file of {os.path.getsize(self.path):,}"
            raise Refused(fact, "write all values of the dataset; if they were written, the file is damaged: copy it again")
        if whole and data.nbytes > max(UNPACKED, USUAL_RATIO * stored):
            fact = f"dataset '{name}' unpacks to {data.nbytes:,} bytes, {data.nbytes // stored} times its {stored:,} bytes in the file"
            raise Refused(fact, "write the dataset without compression, if its values are right")


def _parts(name: str) -> list[str]:
    """Return the names in a path, the last one first."""
    parts = [part for part in reversed(name.split("/")) if part]
    if len(parts) > MAX_DEPTH:
        fix = f"write it inside fewer groups: at most {MAX_DEPTH - 1}"
        raise Refused(f"'{parts[-1]}/...' is {len(parts)} names deep, and at most {MAX_DEPTH} are read", fix)
    return parts


def _clean(text: bytes) -> str:
    return text.rstrip(b"\0").decode("utf-8", "replace")


def _pieces(data: Any, first: int, last: int) -> list[tuple[int, int]] | None:
    """Return the offset and size in the file of each piece of the rows. Return None if the file does not have them as plain bytes in order.

    The parent reads pieces faster than HDF5's library, and a pipe would take several times as long.
    """
    row = math.prod(data.shape[1:]) * data.dtype.itemsize
    if data.chunks is None:
        offset = data.id.get_offset()
        return None if offset is None else [(offset + first * row, (last - first) * row)]
    each = data.chunks[0]
    if data.id.get_create_plist().get_nfilters() or data.chunks[1:] != data.shape[1:] or (last - first) // each > MAX_PIECES:
        return None
    pieces = []
    for start in range(first - first % each, last, each):
        offset = data.id.get_chunk_info_by_coord((start, *[0] * (data.ndim - 1))).byte_offset
        if offset is None:  # never written
            return None
        begin, end = max(first, start), min(last, start + each)
        pieces.append((offset + (begin - start) * row, (end - begin) * row))
    return pieces


def _read_bytes(data: Any, rows: int) -> int:
    """Return the bytes of the chunks that `rows` rows touch."""
    chunks = data.chunks or data.shape
    sizes = (rows + 2 * chunks[0], *data.shape[1:]) if data.shape else ()
    return math.prod(-(-size // max(chunk, 1)) * chunk for size, chunk in zip(sizes, chunks)) * data.dtype.itemsize


def _limit(size: int) -> None:
    """End this process by SIGPROF if it computes for longer than `size` bytes need. Waiting for a slow disk does not count."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, float(sys.argv[2]) + size / BYTES_PER_SECOND)


def main() -> None:
    sys.path[:] = json.loads(sys.argv[1])
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is an expected result here: write no core file
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):  # to the whole group; the parent decides, and this process ends with it
            signal.signal(number, signal.SIG_IGN)
    try:
        import h5py
    except ImportError:
        os._exit(NO_H5PY)
    h5py._errors.silence_errors()
    reader = Reader(h5py)
    for line in sys.stdin.buffer:
        array = None
        try:
            answer, array = reader.answer(json.loads(line))
        except Refused as problem:
            answer = problem.answer()
        except MemoryError:
            answer = {"problem": "its values do not fit into memory", "fix": "write smaller files, or free memory"}
        except Exception as problem:  # h5py raises many classes for damaged files: OSError, RuntimeError, KeyError, ValueError, TypeError, ...
            answer = {"damage": (str(problem).strip().splitlines() or [type(problem).__name__])[0]}
        out.write(json.dumps(answer).encode() + b"\n")
        if array is not None:
            out.write(array.reshape(-1).view("u1").data)
        out.flush()


if __name__ == "__main__":
    main()
