"""BlobProto and Datum: files, messages, numpy."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.formats.blob import array_to_blob, array_to_datum, blob_to_array, datum_to_array, read_blobproto, write_blobproto

pytestmark = pytest.mark.quick

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
REAL = ROOT.parent / "shared" / "real" / "mean"


def test_golden_mean_read_and_written_again(tmp_path):
    source = GOLDEN / "files" / "mean.binaryproto"
    mean = read_blobproto(source)
    assert mean.shape == (1, 3, 24, 28) and mean.dtype == np.float32
    message = proto.BlobProto.FromString(source.read_bytes())
    np.testing.assert_array_equal(mean.reshape(-1), np.array(message.data, np.float32))
    for array in (mean, mean[0]):
        write_blobproto(tmp_path / "new.binaryproto", array)
        assert (tmp_path / "new.binaryproto").read_bytes() == source.read_bytes()


def test_golden_doubles():
    blob = read_blobproto(GOLDEN / "upgrade" / "blob_double.binaryproto")
    assert blob.shape == (2, 3) and blob.dtype == np.float64


def test_five_axes_need_a_shape(tmp_path):
    array = np.arange(32, dtype=np.float32).reshape(1, 2, 2, 2, 4)
    write_blobproto(tmp_path / "x.binaryproto", array)
    np.testing.assert_array_equal(read_blobproto(tmp_path / "x.binaryproto"), array)


@pytest.mark.skipif(not REAL.exists(), reason="needs the public mean files")
def test_public_means_agree():
    binary, numpy = read_blobproto(REAL / "imagenet_mean.binaryproto"), read_blobproto(REAL / "ilsvrc_2012_mean.npy")
    assert binary.shape[1:] == numpy.shape
    np.testing.assert_allclose(binary[0], numpy, rtol=1e-5)


def test_npy(tmp_path):
    np.save(tmp_path / "mean.npy", np.eye(3))
    np.testing.assert_array_equal(read_blobproto(tmp_path / "mean.npy"), np.eye(3))
    (tmp_path / "mean.npy").write_bytes(b"\x93NUMPY\x01\x00cut")
    with pytest.raises(Error, match=r"cannot be read as \.npy"):
        read_blobproto(tmp_path / "mean.npy")
    (tmp_path / "header.npy").write_bytes(b"\x93NUMPY\x01\x00\x16\x00{'descr': '<f4', 'sha\xff\n")  # numpy raises SyntaxError or TokenError
    np.save(tmp_path / "words.npy", np.array(["one"]))
    for name in ("header.npy", "words.npy"):
        with pytest.raises(Error, match=r"cannot be read as \.npy"):
            read_blobproto(tmp_path / name)
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(Error, match=r"cannot be read as \.npy"):
        read_blobproto(tmp_path / "objects.npy")


def test_wrong_files(tmp_path):
    for name, fact in (("files/solver.prototxt", "text file"), ("files/train_iter_8.caffemodel", "damaged, or is not a .binaryproto")):
        with pytest.raises(Error, match=fact):
            read_blobproto(GOLDEN / name)
    (tmp_path / "cut").write_bytes((GOLDEN / "files" / "mean.binaryproto").read_bytes()[:-5])
    with pytest.raises(Error, match="truncated"):
        read_blobproto(tmp_path / "cut")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_message_round_trip(dtype):
    data, diff = np.arange(6, dtype=dtype).reshape(2, 3), -np.ones((2, 3), dtype)
    message = array_to_blob(data, diff)
    assert (message.double_data if dtype == np.float64 else message.data)[5] == 5
    for array, values in ((data, blob_to_array(message)), (diff, blob_to_array(message, diff=True))):
        assert values.dtype == dtype
        np.testing.assert_array_equal(values, array)


def test_message_with_old_axes_and_without_values():
    assert blob_to_array(proto.BlobProto(num=1, channels=2, height=1, width=3, data=range(6))).shape == (1, 2, 1, 3)
    with pytest.raises(ValueError, match="reshape"):
        blob_to_array(array_to_blob(np.ones(2)), diff=True)


def test_datum_round_trip():
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    datum = array_to_datum(pixels, 7)
    assert (datum.channels, datum.height, datum.width, datum.label, len(datum.data)) == (2, 3, 4, 7, 24)
    np.testing.assert_array_equal(datum_to_array(datum), pixels)
    floats = array_to_datum(pixels / 8)
    assert not floats.HasField("label") and datum_to_array(floats).dtype == np.float32
    np.testing.assert_array_equal(datum_to_array(floats), pixels / 8)
    with pytest.raises(ValueError, match="three axes"):
        array_to_datum(pixels[0])
    with pytest.raises(ValueError, match="decoded first"):
        datum_to_array(proto.Datum(encoded=True, data=b"x"))
