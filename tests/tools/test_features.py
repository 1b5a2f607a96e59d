"""extract_features, compared with the database that Caffe's tool wrote for the same net and weights."""
from __future__ import annotations

import os
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.cli import main
from ocaffe.data.databases.database import Reader, open_database

pytestmark = pytest.mark.quick

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden" / "files"
NET, WEIGHTS = "files/train_net.prototxt", "files/train_iter_16.caffemodel"


@pytest.fixture(autouse=True)
def workplace(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(GOLDEN, tmp_path / "files", ignore=shutil.ignore_patterns("features_lmdb"))
    monkeypatch.chdir(tmp_path)


def rows(path: str, backend: int = proto.DataParameter.LMDB) -> tuple[list[bytes], list[tuple[int, int, int]], np.ndarray]:
    database = open_database(path, backend)
    items = Reader(database).read(0, database.entries)
    datums = [proto.Datum.FromString(bytes(value)) for _, value in items]
    return [bytes(key) for key, _ in items], [(each.channels, each.height, each.width) for each in datums], np.array([each.float_data for each in datums])


def test_golden(device: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["extract_features", f"--device={device.number}", WEIGHTS, NET, "ip1,pool1", "files/features_lmdb,pools", "2", "lmdb"]) == 0
    keys, shapes, values = rows("files/features_lmdb")
    expected_keys, expected_shapes, expected = rows(str(GOLDEN / "features_lmdb"))
    assert (keys, shapes) == (expected_keys, expected_shapes)
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-4)
    assert rows("pools")[1] == [(4, 5, 6)] * 6
    assert "Extracted features of 6 query images for feature blob ip1" in capfd.readouterr().err


def test_a_blob_that_is_named_twice(device: Any) -> None:
    assert main(["extract_features", f"--device={device.number}", WEIGHTS, NET, "ip1,ip1", "one,two", "2", "lmdb"]) == 0
    (keys, _, one), (_, _, two) = rows("one"), rows("two")
    assert len(keys) == 6 and np.array_equal(one, two)


def test_leveldb_and_more_rows_than_a_report(device: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("plyvel")
    monkeypatch.setattr("ocaffe.cli.extract_features._REPORT_EVERY", 2)
    assert main(["extract_features", f"--device={device.number}", WEIGHTS, NET, "loss", "out", "3", "leveldb"]) == 1  # a loss has no axis
    assert "blob 'loss' is scalar" in capfd.readouterr().err and not os.path.exists("out")
    assert main(["extract_features", f"--device={device.number}", WEIGHTS, NET, "ip1", "out", "1", "leveldb"]) == 0
    keys, shapes, _ = rows("out", proto.DataParameter.LEVELDB)
    assert keys == [b"%010d" % number for number in range(3)] and shapes == [(4, 1, 1)] * 3
    assert "Extracted features of 2 query images" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["ip1,loss", "out", "2", "lmdb"], "2 blobs (ip1,loss), 1 databases (out)"),
        (["ip1", "out", "0", "lmdb"], "batches is 0"),
        (["ip1,pool1", "out,./out/", "2", "lmdb"], "the database ./out/ is named twice"),
        *((["ip1", name, "2", "lmdb"], f"{name} exists already") for name in (".", "..", "/")),
        (["ip1", "out", "2", "sqlite"], "sqlite"),
        (["ip1", "out", "2", "lmdb", "TPU"], "TPU"),
        (["ip2", "out", "2", "lmdb", "CPU"], "no blob 'ip2'"),
        (["ip1", "files", "2", "lmdb", "CPU", "0"], "files exists already"),
    ],
)
def test_refused(device: Any, arguments: list[str], told: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["extract_features", WEIGHTS, NET, *arguments]) == 1
    assert told in capfd.readouterr().err and not os.path.exists("out")


def test_weights_are_no_database(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["extract_features", WEIGHTS, NET, "ip1", f"./{WEIGHTS}", "2", "lmdb"]) == 1
    assert f"the output ./{WEIGHTS} is the input {WEIGHTS}" in capsys.readouterr().err
