"""Hdf5Files: damaged files and files that refer to other files are errors, and never end this process."""
from __future__ import annotations

import gzip
import os
import pathlib
import signal
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import h5py
import numpy as np
import pytest

from ocaffe.errors import Error
from ocaffe.formats import hdf5_files
from ocaffe.formats.hdf5 import read_state_hdf5, read_weights_hdf5
from ocaffe.formats.hdf5_files import Hdf5Files

pytestmark = pytest.mark.quick

VALUES = np.arange(24, dtype=np.float32).reshape(6, 4)
HANGS = pathlib.Path(__file__).with_name("hang.solverstate.h5.gz")


@pytest.fixture(scope="module")
def files() -> Iterator[Hdf5Files]:
    with Hdf5Files() as made:
        yield made


@pytest.fixture
def secret(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "secret"
    with h5py.File(path, "w") as file:
        file["x"] = VALUES
    return path


@pytest.mark.parametrize(
    "more",
    [{}, {"chunks": (4, 4)}, {"chunks": (4, 3)}, {"chunks": (4, 4), "compression": "gzip"}, {"chunks": (2, 4), "fletcher32": True}],
)
@pytest.mark.parametrize("dtype", [">f8", "<i2", "<f4"])
def test_read(files: Hdf5Files, tmp_path: pathlib.Path, more: dict, dtype: str) -> None:
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=512) as file:
        file.create_dataset("x", data=VALUES.astype(dtype), **more)
    member = files.members(tmp_path / "a.h5")["x"]
    assert (member.kind, member.shape, member.dtype.str) == ("dataset", (6, 4), dtype)
    whole, some = files.read(tmp_path / "a.h5", "x"), files.read(tmp_path / "a.h5", "x", slice(1, 5))
    assert whole.dtype.str == dtype and (whole == VALUES).all() and (some == VALUES[1:5]).all()
    out = np.zeros((4, 4), dtype)
    assert files.read(tmp_path / "a.h5", "x", slice(1, 5), out) is out and (out == VALUES[1:5]).all()


def _format(name: str) -> Any:
    """Return a number format that numpy does not have, or that differs from numpy's in the file."""
    made = (h5py.h5t.IEEE_F16LE if name == "bfloat16" else h5py.h5t.IEEE_F32LE if name == "unnormalized" else h5py.h5t.STD_I32LE).copy()
    if name == "bfloat16":
        made.set_fields(15, 7, 8, 0, 7)
        made.set_ebias(127)
    elif name == "unnormalized":
        made.set_norm(h5py.h5t.NORM_NONE)
    else:  # bits 8 to 27 of an integer
        made.set_precision(20)
        made.set_offset(8)
    return made


@pytest.mark.parametrize("chunks", [None, (2, 4)])
@pytest.mark.parametrize("name", ["bfloat16", "unnormalized", "offset"])
def test_other_number_formats(name: str, chunks: tuple[int, int] | None, files: Hdf5Files, tmp_path: pathlib.Path) -> None:
    """The type that h5py names is that in memory. The bytes in the file may have another one, and another size."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        if chunks is not None:
            settings.set_chunk(chunks)
        space = h5py.h5s.create_simple(VALUES.shape)
        h5py.h5d.create(file.id, b"x", _format(name), space, dcpl=settings).write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(VALUES))
        file["pad"] = np.full(100, 7, np.float32)
    assert (files.read(tmp_path / "a.h5", "x") == VALUES).all()
    assert (files.read(tmp_path / "a.h5", "x", slice(1, 5)) == VALUES[1:5]).all()


def test_soft_links_inside_the_file(files: Hdf5Files, tmp_path: pathlib.Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["g/x"] = VALUES
        file["g/near"], file["far"] = h5py.SoftLink("x"), h5py.SoftLink("/g/near")
        file["loop"], file["gone"] = h5py.SoftLink("loop"), h5py.SoftLink("nothing")
    assert (files.read(tmp_path / "a.h5", "far") == VALUES).all()
    members = files.members(tmp_path / "a.h5")
    assert "more than 16 links" in members["loop"].problem and "link to nothing" in members["gone"].problem


def external_storage(file: h5py.File, secret: pathlib.Path) -> None:
    file.create_dataset("data/ip/0", (25,), np.uint8, external=[(str(secret), 0, 25)])


def external_link(file: h5py.File, secret: pathlib.Path) -> None:
    file["data/ip/0"] = h5py.ExternalLink(str(secret), "x")


def link_to_external_link(file: h5py.File, secret: pathlib.Path) -> None:
    file["other"] = h5py.ExternalLink(str(secret), "/")
    file["data/ip/0"] = h5py.SoftLink("/other/x")


def virtual(file: h5py.File, secret: pathlib.Path) -> None:
    layout = h5py.VirtualLayout((6, 4), np.float32)
    layout[:] = h5py.VirtualSource(secret, "x", (6, 4))
    file.create_virtual_dataset("data/ip/0", layout)


def plugin(file: h5py.File, secret: pathlib.Path) -> None:
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_chunk((6, 4))
    settings.set_filter(32001, h5py.h5z.FLAG_OPTIONAL)
    group = file.create_group("data/ip")
    made = h5py.h5d.create(group.id, b"0", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((6, 4)), settings)
    made.write_direct_chunk((0, 0), VALUES.tobytes())


def never_written(file: h5py.File, secret: pathlib.Path) -> None:
    file.create_dataset("data/ip/0", (1 << 40,), np.float32)


def few_of_its_chunks(file: h5py.File, secret: pathlib.Path) -> None:
    file.create_dataset("data/ip/0", (1 << 40,), np.float32, chunks=(1024,))[:5] = 1


def zeros_that_unpack(file: h5py.File, secret: pathlib.Path) -> None:
    made = file.create_dataset("data/ip/0", (65 << 20,), np.float32, chunks=(1 << 20,), compression="gzip")
    packed = zlib.compress(bytes(4 << 20))
    for start in range(0, 65 << 20, 1 << 20):
        made.id.write_direct_chunk((start,), packed)


def references(file: h5py.File, secret: pathlib.Path) -> None:
    file["data/x"] = VALUES
    file.create_dataset("data/ip/0", data=[file["data/x"].regionref[:2]], dtype=h5py.regionref_dtype)


def huge_number(file: h5py.File, secret: pathlib.Path) -> None:
    file["data/ip/1000000000"] = VALUES


@pytest.mark.parametrize(
    "make, fact, fix",
    [
        (external_storage, "the values of dataset '/data/ip/0' are in '{}', outside the file", "into the file itself"),
        (external_link, "'/data/ip/0' is a link to '{}' outside the file", "in the place of the link"),
        (link_to_external_link, "'/data/ip/0' is a link to '{}' outside the file", "in the place of the link"),
        (virtual, "dataset '/data/ip/0' is virtual", "write a plain dataset"),
        (plugin, "dataset '/data/ip/0' is compressed by filter 32001", "set HDF5_PLUGIN_PATH"),
        (never_written, "dataset '/data/ip/0' claims 4,398,046,511,104 bytes, but 0 are stored", "write all values of the dataset"),
        (few_of_its_chunks, "dataset '/data/ip/0' claims 4,398,046,511,104 bytes, but 4,096 are stored", "write all values of the dataset"),
        (zeros_that_unpack, "dataset '/data/ip/0' unpacks to 272,629,760 bytes, 1", "without compression"),
        (references, "dataset '/data/ip/0' is of type object, not of numbers", "such as float32"),
        (huge_number, "layer 'ip' has a blob of number 1000000000", "number the datasets"),
    ],
)
def test_refused(
    tmp_path: pathlib.Path, secret: pathlib.Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[h5py.File, pathlib.Path], None], fact: str, fix: str
) -> None:
    monkeypatch.delenv("HDF5_PLUGIN_PATH", raising=False)
    path = tmp_path / "a.caffemodel.h5"
    with h5py.File(path, "w") as file:
        make(file, secret)
    with pytest.raises(Error) as caught:
        read_weights_hdf5(path)
    assert fact.format(secret) in caught.value.fact and caught.value.place == str(path) and fix in str(caught.value.fix)


def test_groups_that_contain_each_other(tmp_path: pathlib.Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data/a/b/0"] = VALUES
        file["data/a/b/again"] = file["data"]
    (layer,) = read_weights_hdf5(tmp_path / "a.h5").layers
    assert layer.name == "a/b" and layer.blobs[0] is not None and (layer.blobs[0] == VALUES).all()


def test_deep_groups(tmp_path: pathlib.Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data/" + "g/" * 60 + "0"] = VALUES
    (layer,) = read_weights_hdf5(tmp_path / "a.h5").layers
    assert layer.name == "/".join("g" * 60)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["data/" + "g/" * 1500 + "0"] = VALUES
    with pytest.raises(Error, match="at most 64 are read"):
        read_weights_hdf5(tmp_path / "b.h5")


@pytest.mark.parametrize("attribute, value", [("data_cursor", "[1"), ("data_cursor", "[[1]]"), ("random_seed", "x")])
def test_damaged_attributes(tmp_path: pathlib.Path, attribute: str, value: str) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["iter"] = [3]
        file.create_group("history")
        file.create_group("ocaffe").attrs[attribute] = value
    with pytest.raises(Error, match="the attributes of its group 'ocaffe' are invalid"):
        read_state_hdf5(tmp_path / "a.h5")


def test_iteration_of_another_type(tmp_path: pathlib.Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["iter"] = np.dtype("f4")
        file.create_group("history")
    with pytest.raises(Error, match="'iter' is not a dataset"):
        read_state_hdf5(tmp_path / "a.h5")


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no limit of time here")
def test_library_that_does_not_end(tmp_path: pathlib.Path) -> None:
    """One damaged byte in the heap of attributes makes HDF5's library search forever."""
    path = tmp_path / "a.solverstate.h5"
    path.write_bytes(gzip.decompress(HANGS.read_bytes()))
    with Hdf5Files(seconds=0.3) as files:
        with pytest.raises(Error, match="does not come to an end"):
            files.attributes(path, "ocaffe")
        assert files.read(path, "iter").shape == (1,)  # another process


def test_library_that_crashes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, secret: pathlib.Path) -> None:
    child = tmp_path / "child.py"
    child.write_text("import os, sys\nsys.stdin.readline()\nos.abort()\n")
    monkeypatch.setattr(hdf5_files, "CHILD", child)
    with Hdf5Files() as files, pytest.raises(Error, match="HDF5's library crashed \\(SIGABRT\\)"):
        files.members(secret)


def test_damaged_bits(files: Hdf5Files, tmp_path: pathlib.Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data/ip/0"] = VALUES
    good, path = (tmp_path / "a.h5").read_bytes(), tmp_path / "b.h5"
    random, refused = np.random.default_rng(0), 0
    for _ in range(300):
        content = bytearray(good)
        content[random.integers(8, len(good))] ^= 1 << random.integers(8)
        path.write_bytes(content)
        try:
            for layer in files.members(path, "/data"):
                files.read(path, f"/data/{layer}/0")
        except Error:
            refused += 1
    assert refused > 20


def test_the_working_directory_may_change(files: Hdf5Files, secret: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.members(secret)
    monkeypatch.chdir(secret.parent)
    assert list(files.members(os.path.basename(secret))) == ["x"]


@pytest.mark.parametrize(("name", "fact"), [("", "sys.executable is empty"), ("/none/python", "/none/python, does not start: No such file")])
def test_a_program_that_contains_python(name: str, fact: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"] = np.zeros(3)
    monkeypatch.setattr("sys.executable", name)
    with Hdf5Files() as files, pytest.raises(Error) as caught:
        files.members(tmp_path / "a.h5")
    assert fact in caught.value.fact and str(caught.value.fix).startswith("before `import ocaffe`: import sys; sys.executable = '/")
