"""NumPy's files of strangers: what NumPy writes is read as it is; objects, sizes that do not fit and archives that unpack without limit are refused."""
from __future__ import annotations

import io
import pathlib
import tracemalloc
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ocaffe.errors import Error
from ocaffe.formats import numpy_file
from ocaffe.formats.numpy_file import read_npy, read_npz

pytestmark = pytest.mark.quick

ARRAYS = [
    np.arange(24, dtype=np.float32).reshape(2, 3, 4), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.array(7), np.zeros((0, 3), bool),
    np.arange(5, dtype=">i2"), np.arange(3, dtype=np.float16), np.arange(4, dtype=np.uint64),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(ARRAYS)))
def test_arrays_are_those_of_numpy(tmp_path: pathlib.Path, number: int) -> None:
    array = ARRAYS[number]
    np.save(tmp_path / "a.npy", array)
    found = read_npy(tmp_path / "a.npy", "")
    assert found.dtype == array.dtype and found.shape == array.shape and (found == array).all() and found.flags.writeable


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archives(tmp_path: pathlib.Path, save: Callable[..., None]) -> None:
    save(tmp_path / "a.npz", **{str(number): array for number, array in enumerate(ARRAYS)})
    found = read_npz(tmp_path / "a.npz", "")
    assert found.keys() == {str(number) for number in range(len(ARRAYS))}
    assert all((found[str(number)] == array).all() for number, array in enumerate(ARRAYS))


def header(text: str, version: bytes = b"\1\0", values: bytes = bytes(64)) -> bytes:
    return b"\x93NUMPY" + version + len(text).to_bytes(2 if version == b"\1\0" else 4, "little") + text.encode() + values


def described(shape: str, dtype: str = "'<f4'", more: str = "") -> str:
    return f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, {more}}}\n"


REFUSED = {
    "more than the file has": (header(described("(17,)")), "its header says 17 values, 68 bytes, and 64 bytes follow"),
    "terabytes": (header(described("(1 << 40,)")), "cannot be read as .npy"),
    "2^62": (header(described(f"({2**62},)")), "its header says"),
    "2^62 of nothing": (header(described(f"({2**62}, 0)")), "cannot be read as .npy"),
    "negative": (header(described("(-1,)")), "its header says -1 values"),
    "negative twice": (header(described("(-4, -4)")), "its header says"),
    "objects": (header(described("(2,)", "'|O'")), "objects of Python, not numbers"),
    "records": (header(described("(2,)", "[('a', '<f4')]")), "not numbers"),
    "a code": (header(described("(2,)", "__import__('os')")), "cannot be read as .npy"),
    "brackets": (header("(" * 9000), "cannot be read as .npy"),
    "signs": (header("-" * 9900 + "1"), "cannot be read as .npy: its header is nested too deep"),
    "brackets in version 2": (header("(" * 100_000, b"\2\0"), "cannot be read as .npy"),
    "version 3": (header(described("(2,)"), b"\3\0"), "version 3.0"),
    "version 9": (header(described("(2,)"), b"\x09\0"), "version 9.0"),
    "a header that is cut off": (header(described("(2,)"))[:40], "cannot be read as .npy"),
    "another file": (b"no array", "cannot be read as .npy"),
    "nothing": (b"", "cannot be read as .npy"),
    "more keys": (header(described("(2,)", more="'x': 1")), "cannot be read as .npy"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arrays_that_are_refused(tmp_path: pathlib.Path, name: str) -> None:
    content, told = REFUSED[name]
    (tmp_path / "a.npy").write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(Error) as caught:
            read_npy(tmp_path / "a.npy", "write it by np.save")
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()
    assert told in caught.value.fact and caught.value.fix and caught.value.place == str(tmp_path / "a.npy") and "\n" not in caught.value.fact


def archive(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as made:
        for name, content in members.items():
            made.writestr(name, content)
    return buffer.getvalue()


GOOD = header(described("(16,)"))
ARCHIVES: dict[str, tuple[bytes, str]] = {
    "many arrays": (archive({f"{number}.npy": GOOD for number in range(1001)}), "it has 1,001 arrays, and the limit is 1,000"),
    "a bomb": (archive({"a.npy": header(described("(1000,)"), values=bytes(1 << 20))}), "unpack to 1,048,"),
    "another method": (archive({"a.npy": GOOD}, zipfile.ZIP_BZIP2), "compressed by another method"),
    "a pickle": (archive({"a.npy": b"cos\nsystem\n"}), "cannot be read"),
    "an archive that is cut off": (archive({"a.npy": GOOD})[:-30], "cannot be read"),
    "another file": (b"PK", "cannot be read"),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives_that_are_refused(tmp_path: pathlib.Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content, told = ARCHIVES[name]
    monkeypatch.setattr(numpy_file, "FREE", 500_000)  # so that a small bomb does
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(Error) as caught:
        read_npz(tmp_path / "a.npz", "write it by np.savez")
    assert told in caught.value.fact and caught.value.fix


def test_a_member_that_says_another_size(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes in the archive's directory decide what is unpacked, not the bytes."""
    content: Any = bytearray(archive({"a.npy": header(described("(1000,)"), values=bytes(4000))}))
    at = content.rindex(b"PK\1\2") + 24
    content[at : at + 4] = (200).to_bytes(4, "little")
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(Error, match="Bad CRC-32"):
        read_npz(tmp_path / "a.npz", "")
    monkeypatch.setattr(numpy_file, "FREE", 100)
    monkeypatch.setattr(numpy_file, "RATIO", 1)
    (tmp_path / "b.npz").write_bytes(archive({"a.npy": header(described("(1000,)"), values=bytes(4000))}))
    with pytest.raises(Error, match="unpack to"):
        read_npz(tmp_path / "b.npz", "")
