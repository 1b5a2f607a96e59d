"""Weights files: golden files, every dialect of the wire format, and files that are not weights."""
from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.formats import wire
from ocaffe.formats.binary import read_net_binary
from ocaffe.formats.hdf5 import write_weights_hdf5
from ocaffe.formats.weights import fit, read_weights, write_weights

pytestmark = pytest.mark.quick

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
REAL = ROOT.parent / "shared" / "real" / "models"


def structure(message):
    """Return `message` without its blobs."""
    net = type(message)()
    net.CopyFrom(message)
    for layer in net.layer:
        layer.ClearField("blobs")
    return net


def parameters(npz: Path) -> dict[tuple[str, int], np.ndarray]:
    with np.load(npz) as arrays:
        return {
            (key.split("/", 1)[1].rsplit("/", 1)[0], int(key.rsplit("/", 1)[1])): arrays[key] for key in arrays if key.startswith("param/")
        }


# golden files


@pytest.mark.parametrize("name", ["src.caffemodel", "src.caffemodel.h5"])
def test_golden_values(name):
    weights = read_weights(GOLDEN / "weights" / name)
    expected = parameters(GOLDEN / "weights" / "src.npz")
    found = {(layer.name, i): blob for layer in weights.layers for i, blob in enumerate(layer.blobs)}
    shared = {key for key in expected if key[0] == "ip_shared"}
    assert set(found) == (expected.keys() - shared if name.endswith(".h5") else expected.keys())
    for key, blob in found.items():
        assert blob.dtype == np.float32 and blob.shape == expected[key].shape
        np.testing.assert_array_equal(blob, expected[key])
    assert [layer.name for layer in weights.layers if layer.name == "data"], "layers without blobs are listed too"


def test_golden_v1_file():
    weights = read_weights(GOLDEN / "upgrade" / "v1_weights.caffemodel")
    expected = parameters(GOLDEN / "upgrade" / "v1_weights.npz")
    assert weights.name == "oldweights"
    assert [(layer.name, layer.type) for layer in weights.layers] == [("conv", "Convolution"), ("ip", "InnerProduct")]
    for layer in weights.layers:
        for index, blob in enumerate(layer.blobs):
            assert blob.ndim == 4
            np.testing.assert_array_equal(fit(blob, expected[layer.name, index].shape), expected[layer.name, index])


@pytest.mark.parametrize("name", ["files/train_iter_8.caffemodel", "solvers/shared.init.caffemodel", "forks/ssd_train.init.caffemodel"])
def test_golden_file_written_again_is_the_same(tmp_path, name):
    source = GOLDEN / name
    message = proto.NetParameter.FromString(source.read_bytes())
    blobs = {layer.name: layer.blobs for layer in read_weights(source).layers}
    write_weights(tmp_path / "new.caffemodel", structure(message), blobs)
    assert proto.NetParameter.FromString((tmp_path / "new.caffemodel").read_bytes()) == message
    assert (tmp_path / "new.caffemodel").read_bytes() == source.read_bytes(), "fields in Caffe's order too"


def test_golden_file_with_diffs_written_again_is_the_same(tmp_path):
    source = GOLDEN / "solvers" / "Snap-Nesterov-BINARYPROTO_iter_10.caffemodel"
    message = proto.NetParameter.FromString(source.read_bytes())
    blobs = {layer.name: layer.blobs for layer in read_weights(source).layers}
    diffs = {layer.name: [np.array(blob.diff, np.float32).reshape(blob.shape.dim) for blob in layer.blobs] for layer in message.layer}
    assert any(blob.diff for layer in message.layer for blob in layer.blobs)
    write_weights(tmp_path / "new.caffemodel", structure(message), blobs, diffs)
    assert (tmp_path / "new.caffemodel").read_bytes() == source.read_bytes()


def test_golden_hdf5_written_again_is_the_same(tmp_path):
    source = GOLDEN / "files" / "train_iter_8.caffemodel.h5"
    blobs = {layer.name: layer.blobs for layer in read_weights(source).layers}
    net = proto.NetParameter()
    for name in blobs:
        net.layer.add(name=name)
    write_weights_hdf5(tmp_path / "new.h5", net, blobs)
    assert_same_hdf5(tmp_path / "new.h5", source)


def assert_same_hdf5(a: Path, b: Path) -> None:
    def items(path):
        found = {}
        with h5py.File(path) as file:
            file.visititems(lambda name, item: found.__setitem__(name, (item.dtype, item[()]) if isinstance(item, h5py.Dataset) else None))
        return found

    left, right = items(a), items(b)
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert (value is None) == (right[name] is None)
        if value is not None:
            assert value[0] == right[name][0]
            np.testing.assert_array_equal(value[1], right[name][1])


@pytest.mark.skipif(not REAL.exists(), reason="needs the public models")
@pytest.mark.parametrize("name", ["mtcnn_det3/det3", "ultralight_RFB320/RFB-320", "lenet_ljf/lenet_iter_10000"])
def test_public_models(name):
    path = REAL / f"{name}.caffemodel"
    net = read_net_binary(path)
    expected = {layer.name: [np.array(blob.data, np.float32) for blob in layer.blobs] for layer in [*net.layer, *net.layers]}
    weights = read_weights(path)
    assert sum(len(layer.blobs) for layer in weights.layers) > 5
    for layer in weights.layers:
        for ours, theirs in zip(layer.blobs, expected[layer.name], strict=True):
            np.testing.assert_array_equal(ours.reshape(-1), theirs)


# dialects of the wire format


def blob_field(*pieces: bytes) -> bytes:
    body = b"".join(pieces)
    return wire.header(7, len(body)) + body


def net_of(*blobs: bytes) -> bytes:
    body = wire.string(1, "ip") + wire.string(2, "InnerProduct") + b"".join(blobs)
    return wire.string(1, "net") + wire.header(100, len(body)) + body


def shape_of(*dims: int) -> bytes:
    body = b"".join(wire.integer(1, dim) for dim in dims)
    return wire.header(7, len(body)) + body


def packed(number: int, values: np.ndarray) -> bytes:
    return wire.header(number, values.nbytes) + values.tobytes()


VALUES = np.arange(6, dtype="<f4").reshape(2, 3) - 2.5
LEGACY = b"".join(wire.integer(i + 1, n) for i, n in enumerate((1, 1, 2, 3)))
DIALECTS = {  # blob, dtype
    "packed": ((shape_of(2, 3), packed(5, VALUES)), np.float32),
    "packed shape": ((wire.header(7, 4) + b"\x0a\x02\x02\x03", packed(5, VALUES)), np.float32),
    "in two pieces": ((packed(5, VALUES[0]), shape_of(2, 3), packed(5, VALUES[1])), np.float32),
    "unpacked": ((b"".join(b"\x2d" + struct.pack("<f", v) for v in VALUES.flat), shape_of(2, 3)), np.float32),
    "mixed": ((b"".join(b"\x2d" + struct.pack("<f", v) for v in VALUES[0]), packed(5, VALUES[1]), shape_of(2, 3)), np.float32),
    "double": ((shape_of(2, 3), packed(8, VALUES.astype("<f8"))), np.float64),
    "double unpacked": ((shape_of(2, 3), b"".join(b"\x41" + struct.pack("<d", v) for v in VALUES.flat)), np.float64),
    "with a diff": ((shape_of(2, 3), packed(5, VALUES), packed(6, VALUES * 9)), np.float32),
    "2013": ((LEGACY, packed(5, VALUES)), np.float32),
    "NVCaffe float": ((shape_of(2, 3), wire.integer(10, 1), packed(12, VALUES)), np.float32),
    "NVCaffe half": ((shape_of(2, 3), wire.integer(10, 2), packed(12, VALUES.astype("<f2")), packed(13, VALUES.astype("<f2"))), np.float16),
    "NVCaffe double": ((shape_of(2, 3), wire.integer(10, 0), packed(12, VALUES.astype("<f8"))), np.float64),
    "OpenCL float": ((shape_of(2, 3), packed(11, VALUES), packed(12, VALUES * 2), wire.integer(13, 0)), np.float32),
    "OpenCL half": ((shape_of(2, 3), packed(11, VALUES.astype("<f2")), wire.integer(13, 1)), np.float16),
    "unknown fields between": ((packed(900, VALUES), shape_of(2, 3), wire.integer(901, 7), packed(5, VALUES)), np.float32),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_dialects(tmp_path, dialect):
    pieces, dtype = DIALECTS[dialect]
    path = tmp_path / "x.caffemodel"
    path.write_bytes(net_of(blob_field(*pieces)))
    weights = read_weights(path)
    (layer,) = weights.layers
    assert (weights.name, weights.path, layer.name, layer.type) == ("net", str(path), "ip", "InnerProduct")
    (blob,) = layer.blobs
    assert blob.dtype == dtype and blob.shape == ((1, 1, 2, 3) if dialect == "2013" else (2, 3))
    np.testing.assert_array_equal(blob.reshape(2, 3), VALUES)


def test_scalar_and_empty_layer(tmp_path):
    path = tmp_path / "x.caffemodel"
    path.write_bytes(net_of(blob_field(wire.header(7, 0), packed(5, VALUES[0, :1]))))
    assert read_weights(path).layers[0].blobs[0].shape == ()


def test_packed_values_are_not_copied(tmp_path):
    path = tmp_path / "x.caffemodel"
    path.write_bytes(net_of(blob_field(shape_of(2, 3), packed(5, VALUES))))
    blob = read_weights(path).layers[0].blobs[0]
    assert not blob.flags.owndata and not blob.flags.writeable


@pytest.mark.skipif(sys.platform != "linux", reason="needs files with holes")
def test_more_than_2_gib(tmp_path):
    """The values are a hole in a sparse file, so the test takes neither disk nor memory."""
    count = 600_000_000
    path = tmp_path / "x.caffemodel"
    blob = shape_of(count) + wire.header(5, 4 * count)
    body = wire.string(1, "ip") + wire.header(7, len(blob) + 4 * count) + blob
    with open(path, "wb") as stream:
        stream.write(wire.header(100, len(body) + 4 * count) + body)
        stream.seek(4 * count - 4, os.SEEK_CUR)
        stream.write(struct.pack("<f", 7))
    (array,) = read_weights(path).layers[0].blobs
    assert array.shape == (count,)
    assert (array[0], array[-1]) == (0, 7)


def test_v0_layers_and_types_of_forks(tmp_path):
    body = packed(5, VALUES) + LEGACY
    v0 = wire.string(1, "old") + wire.string(2, "innerproduct") + wire.header(50, len(body)) + body
    outer = wire.header(1, len(v0)) + v0 + wire.string(2, "bottom")
    fork = wire.string(4, "new") + wire.integer(5, 999)
    path = tmp_path / "x.caffemodel"
    path.write_bytes(wire.header(2, len(outer)) + outer + wire.header(2, len(fork)) + fork)
    old, new = read_weights(path).layers
    assert (old.name, old.type, len(old.blobs)) == ("old", "InnerProduct", 1)
    np.testing.assert_array_equal(fit(old.blobs[0], (2, 3)), VALUES)
    assert (new.name, new.type, new.blobs) == ("new", "", [])


def test_parameters_of_forks_do_not_disturb(tmp_path):
    """Field 143 is a different message in BVLC Caffe and in PSPNet. Field 149 is a bool, a string or a message."""
    body = (
        wire.string(1, "ip")
        + packed(143, VALUES)
        + wire.integer(149, 1)
        + blob_field(shape_of(2, 3), packed(5, VALUES))
        + wire.string(149, "x")
    )
    path = tmp_path / "x.caffemodel"
    path.write_bytes(wire.header(100, len(body)) + body)
    np.testing.assert_array_equal(read_weights(path).layers[0].blobs[0], VALUES)


def test_fit():
    blob = VALUES.reshape(1, 1, 2, 3)
    assert fit(blob, [2, 3]).shape == (2, 3) and fit(blob, (1, 1, 2, 3)) is blob
    assert fit(VALUES.reshape(1, 1, 1, 6), (6,)).shape == (6,)
    assert fit(np.zeros((1, 1, 1, 1)), ()).shape == ()
    assert fit(blob, (6,)) is None and fit(blob, (3, 2)) is None and fit(VALUES, (1, 1, 2, 3)) is None


# writing


def test_protobuf_reads_what_is_written(tmp_path):
    net = proto.NetParameter(name="n", source_file="secret")
    net.layer.add(name="ip", type="InnerProduct", bottom=["a"], top=["b"], loss_weight=[1], phase=proto.TRAIN, source_line=7)
    net.layer[0].inner_product_param.num_output = 2
    net.layer[0].blobs.add()
    net.layer.add(name="bare", type="ReLU")
    arrays = [VALUES, np.float32(3) * np.ones(()), VALUES.astype(np.float64).T, VALUES.astype(np.float16), np.empty((0, 4), np.float32)]
    path = tmp_path / "x.caffemodel"
    write_weights(path, net, {"ip": arrays})
    read = proto.NetParameter.FromString(path.read_bytes())
    assert read.name == "n" and [layer.name for layer in read.layer] == ["ip", "bare"]
    assert b"secret" not in path.read_bytes() and not read.layer[0].HasField("source_line")
    assert read.layer[0].inner_product_param.num_output == 2 and list(read.layer[0].loss_weight) == [1]
    for blob, array in zip(read.layer[0].blobs, arrays, strict=True):
        values = blob.double_data if array.dtype == np.float64 else blob.data
        assert tuple(blob.shape.dim) == array.shape
        np.testing.assert_array_equal(np.array(values).reshape(array.shape), array)
    assert net.layer[0].source_line == 7 and len(net.layer[0].blobs) == 1, "the given net stays as it was"
    for blob, array in zip(read_weights(path).layers[0].blobs, arrays, strict=True):
        np.testing.assert_array_equal(blob, array)


def test_blobs_are_asked_for_once_and_in_order(tmp_path):
    asked = []

    class Lazy(dict):
        def get(self, name, default=()):
            asked.append(name)
            return [VALUES]

    net = proto.NetParameter(layer=[proto.LayerParameter(name=name) for name in "ab"])
    write_weights(tmp_path / "x.caffemodel", net, Lazy())
    assert asked == ["a", "b"]


def test_a_net_in_an_old_format_is_no_net_to_write(tmp_path):
    with pytest.raises(ValueError, match="V1"):
        write_weights(tmp_path / "x", proto.NetParameter(layers=[proto.V1LayerParameter(name="a")]), {})
    assert not list(tmp_path.iterdir())


def test_hdf5_names_with_slashes_and_shared_blobs(tmp_path):
    net = proto.NetParameter(layer=[proto.LayerParameter(name=name) for name in ("i3a/1x1", "i3a/3x3", "i3a", "b")])
    blobs = {"i3a/1x1": [VALUES, VALUES[0]], "i3a": [VALUES[1]], "b": [None, VALUES.astype(np.float64)]}
    path = tmp_path / "x.h5"
    write_weights_hdf5(path, net, blobs, {"b": [None, VALUES * 2]})
    layers = {layer.name: layer.blobs for layer in read_weights(path).layers}
    assert list(layers) == ["b", "i3a", "i3a/1x1", "i3a/3x3"]
    np.testing.assert_array_equal(layers["i3a/1x1"][1], VALUES[0])
    np.testing.assert_array_equal(layers["i3a"][0], VALUES[1])
    assert layers["i3a/3x3"] == [] and layers["b"][0] is None and layers["b"][1].dtype == np.float64
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["diff/b/1"][()], VALUES * 2)


# files that are not weights


def test_every_truncation_is_noticed(tmp_path):
    """A file cut off at any byte is an error, except at the end of a layer: there the format does not show that bytes are missing."""
    whole = net_of(blob_field(shape_of(2, 3), packed(5, VALUES)))
    path = tmp_path / "x.caffemodel"
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(Error):
            read_weights(path)
    path.write_bytes(whole[:-1])
    with pytest.raises(Error, match=f"ends at byte {len(whole) - 1}, but needs {len(whole)}"):
        read_weights(path)


def test_random_bytes(tmp_path):
    rng = np.random.default_rng(1)
    path = tmp_path / "x.caffemodel"
    for size in (1, 2, 10, 100, 5000):
        for _ in range(40):
            path.write_bytes(rng.bytes(size))
            with pytest.raises(Error):
                read_weights(path)


def test_damage_names_the_layer(tmp_path):
    path = tmp_path / "x.caffemodel"
    path.write_bytes(net_of(blob_field(shape_of(2, 4), packed(5, VALUES))))
    with pytest.raises(Error, match="blob 0 of layer 'ip' has the shape 2 x 4, but 6 values"):
        read_weights(path)


NOT_WEIGHTS = [
    (b"", "empty"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS pointer"),
    (b'name: "LeNet"\nlayer { }\n', "text file"),
    (b"<!doctype html><html><body>404", "web page"),
    (b"\x1f\x8b\x08\x00", "gzip archive"),
    (b"\x89HDF\r\n\x1a\nno more", "cannot be read as HDF5"),
    (wire.integer(1, 8) + wire.string(2, "x.caffemodel"), "solver state"),
    (LEGACY + packed(5, VALUES), "single blob"),
    (wire.string(1, "net without layers"), "no layers"),
    (net_of(blob_field(shape_of(2, 3), wire.integer(10, 9), packed(12, VALUES))), "data type 9"),
    (net_of(blob_field(shape_of(2, 3), wire.header(5, 23) + bytes(23))), "23 bytes for float32"),
    (net_of(blob_field(wire.integer(1, -1), packed(5, VALUES))), "shape"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "fact"), NOT_WEIGHTS, ids=[row[1] for row in NOT_WEIGHTS])
def test_not_weights(tmp_path, content, fact):
    path = tmp_path / "x.caffemodel"
    path.write_bytes(content)
    with pytest.raises(Error) as caught:
        read_weights(path)
    assert fact in caught.value.fact and caught.value.place == str(path)


def test_missing_folder_and_wrong_hdf5(tmp_path):
    with pytest.raises(Error, match="no such file"):
        read_weights(tmp_path / "x")
    with pytest.raises(Error, match="is a folder"):
        read_weights(tmp_path)
    with pytest.raises(Error, match="it is a solver state"):
        read_weights(GOLDEN / "files" / "train_iter_8.solverstate.h5")


def test_truncated_hdf5(tmp_path):
    content = (GOLDEN / "weights" / "src.caffemodel.h5").read_bytes()
    path = tmp_path / "x.h5"
    for size in (100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(Error, match="cannot be read as HDF5"):
            read_weights(path)


def test_read_net_binary_refuses_what_is_no_net(tmp_path):
    path = tmp_path / "x"
    for content, fact in (
        (b"name: 'x'", "text file"),
        (b"\x89HDF\r\n\x1a\n", "HDF5"),
        (b"\xff\xff\x01", "damaged"),
        (b"\x0a\x01\x01", "no layers"),
    ):
        path.write_bytes(content)
        with pytest.raises(Error, match=fact):
            read_net_binary(path)
