"""`ocaffe dataset`: its databases, from folders and from a simulated network, and the files that remain after a failure."""
from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import pathlib
import subprocess
import sys
import tarfile
import types
import urllib.error
from collections.abc import Callable, Iterator
from typing import Any

import lmdb
import numpy as np
import pytest

from ocaffe import proto
from ocaffe.cli.dataset import main
from ocaffe.data.databases.writer import LmdbWriter
from ocaffe.data.stores.label_names import label_names
from ocaffe.errors import Error
from ocaffe.formats.blob import read_blobproto
from ocaffe.tools.datasets import originals, sets

pytestmark = pytest.mark.quick

REAL = pathlib.Path(__file__).parents[3] / "shared" / "real" / "data" / "mnist"
RNG = np.random.default_rng(0)
IMAGES = {"train": RNG.integers(0, 256, (30, 28, 28), np.uint8), "t10k": RNG.integers(0, 256, (7, 28, 28), np.uint8)}
LABELS = {part: RNG.integers(0, 10, len(images), np.uint8) for part, images in IMAGES.items()}


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


FILES = {f"{part}-images-idx3-ubyte": idx(images) for part, images in IMAGES.items()}
FILES |= {f"{part}-labels-idx1-ubyte": idx(labels) for part, labels in LABELS.items()}


def records(path: pathlib.Path) -> list[tuple[bytes, Any]]:
    with lmdb.open(str(path), readonly=True, lock=False) as environment, environment.begin() as transaction:
        return [(key, proto.Datum.FromString(value)) for key, value in transaction.cursor()]


def check_mnist(folder: pathlib.Path) -> None:
    for part, prefix in (("train", "train"), ("test", "t10k")):
        found = records(folder / f"mnist_{part}_lmdb")
        assert [key for key, _ in found] == [b"%08d" % n for n in range(len(IMAGES[prefix]))]
        for (_, datum), image, label in zip(found, IMAGES[prefix], LABELS[prefix]):
            assert (datum.channels, datum.height, datum.width, datum.label) == (1, 28, 28, label)
            assert datum.data == image.tobytes()


def failure(call: Callable[[], Any]) -> Error:
    with pytest.raises(Error) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("spelling", ["{}", "{}.gz", "dots", "dots.gz"])
def test_mnist_from_a_folder(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], spelling: str) -> None:
    for name, content in FILES.items():
        name = name.replace("-idx", ".idx") if "dots" in spelling else name
        packed = spelling.endswith(".gz")
        (tmp_path / (name + ".gz" * packed)).write_bytes(gzip.compress(content) if packed else content)
    assert main(["mnist", "--from", str(tmp_path), str(tmp_path / "made" / "here")]) == 0
    check_mnist(tmp_path / "made" / "here")
    assert sorted(os.listdir(tmp_path / "made" / "here")) == ["mnist_test_lmdb", "mnist_train_lmdb"]
    out = capsys.readouterr().out
    assert "mnist_train_lmdb: 30 images of 1x28x28" in out and "is not MNIST's (sha256 differs)" in out
    assert label_names(str(tmp_path / "made" / "here" / "mnist_train_lmdb")) == []  # another set's classes


def test_existing_databases_stay(tmp_path: pathlib.Path) -> None:
    (tmp_path / "mnist_test_lmdb").mkdir()
    error = failure(lambda: main(["mnist", f"--from={tmp_path}", str(tmp_path)]))
    assert error.fact == f"{tmp_path}/mnist_test_lmdb exists already" and "remove it" in str(error.fix)


def test_bad_folders_and_files(tmp_path: pathlib.Path) -> None:
    run = lambda: main(["mnist", "--from", str(tmp_path), str(tmp_path / "out")])  # noqa: E731
    assert "the folder none does not exist" in failure(lambda: main(["mnist", "--from", "none", "out"])).fact
    assert f"the folder {tmp_path} has no file train-images-idx3-ubyte or" in failure(run).fact
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    for bad, fact in (
        (b"\x1f\x8b" + FILES["train-images-idx3-ubyte"], "is a gzip archive, and its name does not end in .gz"),
        (FILES["train-labels-idx1-ubyte"], "is an IDX file with 1 axis, not an IDX file of bytes with 3 axes"),
        (FILES["train-images-idx3-ubyte"][:-1], "has 23,535 bytes, and 23,536 by its header"),
        (idx(IMAGES["train"][:9]), "has 9 images, train-labels-idx1-ubyte 30 labels"),
        (b"", "is empty, not an IDX file"),
        (b"<!DOCTYPE html><html>", "is a web page, not an IDX file of bytes with 3 axes"),
        (b"\x93NUMPY", "is a .npy file of numpy, not an IDX file of bytes with 3 axes"),
        (b"IDX3 1 2 3", "it begins with the bytes 49 44 58 33, not with 00 00 08 03"),
        (FILES["train-images-idx3-ubyte"][:9], "ends in the middle of its header"),
    ):
        (tmp_path / "train-images-idx3-ubyte").write_bytes(bad)
        error = failure(run)
        assert fact in error.fact and error.fix
        assert "images," in error.fact or error.fact.startswith(f"{tmp_path}/train-images-idx3-ubyte ")
    os.remove(tmp_path / "train-images-idx3-ubyte")
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(FILES["train-images-idx3-ubyte"])[:-20])
    assert "train-images-idx3-ubyte.gz is damaged" in failure(run).fact
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(FILES["train-images-idx3-ubyte"])
    assert f"mv {tmp_path}/train-images-idx3-ubyte.gz {tmp_path}/train-images-idx3-ubyte" in (failure(run).fix or "")
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"<html></html>")
    assert "is a web page, not a gzip archive" in failure(run).fact
    assert not (tmp_path / "out").exists()


def play_network(monkeypatch: pytest.MonkeyPatch, answers: Callable[[str], bytes]) -> list[str]:
    """Make a download return or raise the result of `answers`. Return the list of requested addresses."""
    asked: list[str] = []

    @contextlib.contextmanager
    def opened(address: str) -> Iterator[types.SimpleNamespace]:
        asked.append(address)
        content = answers(address)
        yield types.SimpleNamespace(total=len(content), chunks=lambda: iter((content,)))

    monkeypatch.setattr(originals, "opened", opened)
    return asked


def test_download(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first mirror is down, the second sends wrong data, the third sends the right file."""
    monkeypatch.setattr(sets, "_MNIST", {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()})

    def answers(address: str) -> bytes:
        if "ossci" in address:
            raise urllib.error.URLError("down")
        name = address.rpartition("/")[2].removesuffix(".gz")
        return gzip.compress(FILES[name] if "lecun" in address else b"an advertisement")

    asked = play_network(monkeypatch, answers)
    assert main(["mnist", str(tmp_path)]) == 0
    check_mnist(tmp_path)
    assert label_names(str(tmp_path / "mnist_test_lmdb")) == list("0123456789")
    assert len(asked) == 12 and asked[2] == "http://yann.lecun.com/exdb/mnist/train-images-idx3-ubyte.gz"


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_no_network(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def answers(address: str) -> bytes:
        raise urllib.error.URLError("no route to host")

    asked = play_network(monkeypatch, answers)
    error = failure(lambda: main([name, str(tmp_path / "out")]))
    assert all(f"{address} (<urlopen error no route to host>)" in error.fact for address in asked) and len(asked) >= 2
    assert "--from" in str(error.fix) and not (tmp_path / "out").exists()


def test_a_broken_download_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    play_network(monkeypatch, lambda address: gzip.compress(b"content")[:-9])
    original = originals.Original("file", hashlib.sha256(b"content").hexdigest(), ("http://a/file.gz",))
    assert "http://a/file.gz (Compressed file ended" in failure(lambda: originals.download(original)).fact


# -- CIFAR-10

CIFAR = {name: RNG.integers(0, 256, (count, 3073), np.uint8) for name, count in [*((f"data_batch_{i}.bin", 4 + i) for i in range(1, 6)), ("test_batch.bin", 3)]}


def archive(folder: str = "cifar-10-batches-bin/") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, rows in CIFAR.items():
            member = tarfile.TarInfo(folder + name)
            member.size = rows.size
            tar.addfile(member, io.BytesIO(rows.tobytes()))
    return buffer.getvalue()


@pytest.mark.parametrize("form", ["archive", "folder", "subfolder", "download"])
def test_cifar10(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    source = tmp_path / "source"
    inner = source / "cifar-10-batches-bin" if form == "subfolder" else source
    inner.mkdir(parents=True)
    if form == "archive":
        (source / "cifar-10-binary.tar.gz").write_bytes(archive())
    elif form == "download":
        content = archive()
        monkeypatch.setattr(sets, "_CIFAR10", originals.Original("cifar-10-binary.tar.gz", hashlib.sha256(content).hexdigest(), ("http://a/c.tar.gz",)))
        play_network(monkeypatch, lambda address: content)
    else:
        for name, rows in CIFAR.items():
            (inner / name).write_bytes(rows.tobytes())
    out = tmp_path / "out"
    assert main(["cifar10", *([] if form == "download" else ["-from", str(source)]), str(out)]) == 0
    train = np.concatenate([rows for name, rows in CIFAR.items() if name != "test_batch.bin"])
    for part, rows in (("train", train), ("test", CIFAR["test_batch.bin"])):
        found = records(out / f"cifar10_{part}_lmdb")
        assert label_names(str(out / f"cifar10_{part}_lmdb"))[:3] == ["airplane", "automobile", "bird"]
        assert len(found) == len(rows)
        for (_, datum), row in zip(found, rows):
            assert (datum.channels, datum.height, datum.width, datum.label, datum.data) == (3, 32, 32, row[0], row[1:].tobytes())
    mean = read_blobproto(out / "mean.binaryproto")
    assert mean.shape == (1, 3, 32, 32) and np.abs(mean.ravel() - train[:, 1:].mean(0)).max() < 1e-4


def test_cifar10_that_is_none(tmp_path: pathlib.Path) -> None:
    assert "has no file cifar-10-binary.tar or cifar-10-binary.tar.gz" in failure(lambda: sets.cifar10(str(tmp_path))).fact
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"nonsense")
    assert "not a gzip archive" in failure(lambda: sets.cifar10(str(tmp_path))).fact
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(archive()[:500])
    assert "cifar-10-binary.tar" in failure(lambda: sets.cifar10(str(tmp_path))).fact
    for name, rows in CIFAR.items():
        (tmp_path / name).write_bytes(rows.tobytes()[:-1])
    assert "data_batch_1.bin has 15,364 bytes, not a multiple of 3,073" in failure(lambda: sets.cifar10(str(tmp_path))).fact
    os.remove(tmp_path / "data_batch_3.bin")
    assert "data_batch_3.bin" in failure(lambda: sets.cifar10(str(tmp_path))).fact


# -- digits


def test_digits(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("sklearn")
    assert main(["digits", str(tmp_path)]) == 0
    train, test = (records(tmp_path / f"digits_{part}_lmdb") for part in ("train", "test"))
    assert len(train) + len(test) == 1797 and 0.19 < len(test) / 1797 < 0.21
    assert len({datum.data for _, datum in train} | {datum.data for _, datum in test}) > 1790  # no image is in both sets
    for part in (train, test):
        counts = np.bincount([datum.label for _, datum in part])
        assert counts.min() / counts.max() > 0.6  # classes are balanced
        assert len({datum.label for _, datum in part[:30]}) > 5  # classes are mixed
        pixels = np.stack([np.frombuffer(datum.data, np.uint8) for _, datum in part])
        assert pixels.shape[1] == 784 and pixels.min() == 0 and pixels.max() == 255
    assert label_names(str(tmp_path / "digits_train_lmdb")) == list("0123456789")
    assert records(tmp_path / "digits_train_lmdb")[0][1].label == train[0][1].label


def test_digits_needs_scikit_learn(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "leave out --from" in str(failure(lambda: main(["digits", "--from", str(tmp_path), str(tmp_path)])).fix)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert "pip install scikit-learn" in str(failure(lambda: main(["digits", str(tmp_path)])).fix)


# -- the writer


def test_the_map_grows_and_keys_may_come_in_any_order(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "db")
    order = np.random.default_rng(1).permutation(2500)
    with LmdbWriter(path, first_map=1 << 16) as out:
        for n in order:
            out.put(b"%08d" % n, bytes([n % 256]) * 200)
        assert not os.path.exists(path)
    assert out.count == 2500
    with lmdb.open(path, readonly=True, lock=False) as environment, environment.begin() as transaction:
        found = list(transaction.cursor())
    assert found == [(b"%08d" % n, bytes([n % 256]) * 200) for n in range(2500)]


def test_nothing_remains_of_a_failure(tmp_path: pathlib.Path) -> None:
    with pytest.raises(KeyError), LmdbWriter(str(tmp_path / "db")) as out:
        out.put(b"a", b"b")
        raise KeyError
    assert os.listdir(tmp_path) == []
    code = f"from ocaffe.data.databases.writer import LmdbWriter; import os; LmdbWriter({str(tmp_path / 'db')!r}).put(b'0', b'0'); os._exit(9)"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, timeout=60)
    assert len(os.listdir(tmp_path)) == 1  # left by a killed run
    with LmdbWriter(str(tmp_path / "db")) as out:
        out.put(b"a", b"b")
    assert os.listdir(tmp_path) == ["db"]
    assert "exists already" in failure(lambda: LmdbWriter(str(tmp_path / "db"))).fact
    (tmp_path / "file").write_text("")
    assert "cannot be written" in failure(lambda: LmdbWriter(str(tmp_path / "file" / "db"))).fact


def test_wrong_usage(tmp_path: pathlib.Path) -> None:
    assert "imagenet" in failure(lambda: main(["imagenet", str(tmp_path)])).fact


@pytest.mark.skipif(not REAL.is_dir(), reason="the real MNIST is not here")
def test_the_real_mnist(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mnist", "--from", str(REAL), str(tmp_path)]) == 0
    assert "sha256" not in capsys.readouterr().out
    train = records(tmp_path / "mnist_train_lmdb")
    assert len(train) == 60000 and [datum.label for _, datum in train[:8]] == [5, 0, 4, 1, 9, 2, 1, 3]
    assert len(records(tmp_path / "mnist_test_lmdb")) == 10000
