"""Weights from .caffemodel to .caffemodel.h5 and back. Real Caffe wrote the pairs of files."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.formats.transcode import convert_weights
from ocaffe.formats.weights import read_weights, write_weights

pytestmark = pytest.mark.quick

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
pytest.importorskip("h5py")


def values(path: Path) -> dict[tuple[str, int], np.ndarray]:
    return {(layer.name, index): blob for layer in read_weights(path).layers for index, blob in enumerate(layer.blobs) if blob is not None}


def assert_same(first: Path, second: Path) -> None:
    a, b = values(first), values(second)
    assert a.keys() == b.keys()
    for key, array in a.items():
        assert array.shape == b[key].shape and array.dtype == b[key].dtype and np.array_equal(array, b[key]), key


@pytest.mark.parametrize("name", ["files/train_iter_8", "weights/src"])
def test_as_caffe_wrote_both(tmp_path: Path, name: str) -> None:
    """With the net, each file converts to Caffe's other file, including blobs that layers share."""
    binary, hdf5 = GOLDEN / f"{name}.caffemodel", GOLDEN / f"{name}.caffemodel.h5"
    net = GOLDEN / ("files/train_net.prototxt" if name.startswith("files") else "weights/src.prototxt")
    convert_weights(binary, tmp_path / "new.caffemodel.h5", net)
    assert_same(tmp_path / "new.caffemodel.h5", hdf5)
    convert_weights(hdf5, tmp_path / "new.caffemodel", net)
    assert_same(tmp_path / "new.caffemodel", binary)


def test_there_and_back_without_a_net(tmp_path: Path) -> None:
    source = GOLDEN / "weights" / "src.caffemodel"
    convert_weights(source, tmp_path / "a.h5")
    convert_weights(tmp_path / "a.h5", tmp_path / "b.caffemodel")
    assert_same(source, tmp_path / "b.caffemodel")


def test_shared_blob_without_a_net(tmp_path: Path) -> None:
    """If a layer shares one of its two blobs, the file shows that a blob is missing."""
    import h5py

    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["data/ip/1"] = np.zeros(3, np.float32)
    with pytest.raises(Error, match="does not have blob 0, which the layer shares with another"):
        convert_weights(tmp_path / "x.h5", tmp_path / "new.caffemodel")
    assert [path.name for path in tmp_path.iterdir()] == ["x.h5"]


def test_prototxt_of_another_net(tmp_path: Path) -> None:
    with pytest.raises(Error, match=r"has weights of layer 'conv1', which .*lenet\.prototxt does not have"):
        (tmp_path / "lenet.prototxt").write_text('layer { name: "ip" type: "InnerProduct" }')
        convert_weights(GOLDEN / "files" / "train_iter_8.caffemodel", tmp_path / "new.h5", tmp_path / "lenet.prototxt")
    assert [path.name for path in tmp_path.iterdir()] == ["lenet.prototxt"]


@pytest.mark.parametrize("name", ["", ".", "a//b", "/a"])
def test_names_that_hdf5_cannot_hold(tmp_path: Path, name: str) -> None:
    net = proto.NetParameter(layer=[{"name": name, "type": "InnerProduct"}])
    write_weights(tmp_path / "x.caffemodel", net, {name: [np.ones(3, np.float32)]})
    with pytest.raises(Error, match=f"cannot hold the weights of layer '{name}'"):
        convert_weights(tmp_path / "x.caffemodel", tmp_path / "x.h5")
    assert [path.name for path in tmp_path.iterdir()] == ["x.caffemodel"]
