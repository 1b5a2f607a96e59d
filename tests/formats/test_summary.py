"""The output of `summarize` for each kind of file, with files of real Caffe where they exist."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ocaffe import log, proto
from ocaffe.errors import Error
from ocaffe.formats.blob import array_to_blob, write_blobproto
from ocaffe.formats.text import read_net, write_text
from ocaffe.tools.file_summary import summarize

pytestmark = pytest.mark.quick

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@pytest.mark.parametrize(
    "file, lines",
    [
        ("files/train_iter_8.caffemodel", ["weights of net 'FilesNet': 6 layers, 788 values (0.0 MiB), float32", "  conv1  Convolution   4 x 3 x 5 x 5, 4"]),
        ("files/train_iter_8.caffemodel.h5", ["weights: 6 layers, 788 values (0.0 MiB), float32", "  ip1      4 x 120, 4"]),
        ("files/train_iter_8.solverstate", ["solver state", "  iteration     8", "  history       4 blobs, 788 values (0.0 MiB)"]),
        ("files/train_iter_8.solverstate.h5", ["solver state", "  weights       files/train_iter_8.caffemodel.h5"]),
        ("files/mean.binaryproto", ["blob (a mean image?) of 1 x 3 x 24 x 28, 2,016 values (0.0 MiB)", "  mean of each channel: 141.056, 134.957, 129.035"]),
        ("files/solver.prototxt", ["solver of type SGD", "  base_lr: 0.05", "  lr_policy: \"step\""]),
        ("files/lmdb_raw", ["LMDB database of 12 records", "  the first, '00000000_im00.png': 3 x 24 x 28 of bytes, label 0"]),
        ("files/lmdb_png", ["  the first, '00000000_im00.png': an encoded image, label 0"]),
    ],
)  # fmt: skip
def test_files_of_caffe(file: str, lines: list[str]) -> None:
    found = summarize(GOLDEN / file)
    assert [line for line in lines if line not in found] == []


def test_net_that_can_be_built(tmp_path: Path) -> None:
    log.quiet()
    (tmp_path / "net.prototxt").write_text("""
        name: "n" layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }
        layer { name: "c" type: "Convolution" bottom: "x" top: "y" convolution_param { num_output: 4 kernel_size: 3 } }""")
    lines = summarize(tmp_path / "net.prototxt")
    assert lines[:2] == ["net 'n'", "  layers: 2 (1 Convolution, 1 Input)"]
    assert lines[2].startswith("  TRAIN and TEST: 2 layers, 112 values (0.0 MiB) of parameters")
    assert " ".join(lines[-1].split()) == "c Convolution 2 x 4 x 6 x 6 4 x 3 x 3 x 3, 4"


def test_net_that_cannot_be_built() -> None:
    log.quiet()
    lines = summarize(GOLDEN / "files" / "train_net.prototxt")
    assert [line for line in lines if "TRAIN: shapes are unknown, for it cannot be built here: " in line] and "    conv1     Convolution      conv1" in lines


def test_blobs_of_all_ages(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    write_blobproto(tmp_path / "old", array)  # num, channels, height, width
    (tmp_path / "new").write_bytes(array_to_blob(array).SerializeToString())
    (tmp_path / "double").write_bytes(array_to_blob(array.astype(np.float64)).SerializeToString())
    for name in ("old", "new", "double"):
        assert summarize(tmp_path / name)[:2] == ["blob (a mean image?) of 1 x 2 x 3 x 4, 24 values (0.0 MiB)", "  from 0 to 23, mean 11.5"]


def test_caffemodel_with_inputs_of_its_own(tmp_path: Path) -> None:
    net = proto.NetParameter(input=["x"], force_backward=True)
    net.input_shape.add().dim.extend([1, 2])
    net.layer.add(name="a", type="ReLU")
    (tmp_path / "net").write_bytes(net.SerializeToString())
    assert summarize(tmp_path / "net")[0] == "weights: 1 layers, 0 values (0.0 MiB), none"


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    net = proto.NetParameter(name="n")
    net.layer.add(name="a", type="InnerProduct", blobs=[array_to_blob(np.array([1, np.nan], np.float32))])
    (tmp_path / "net").write_bytes(net.SerializeToString())
    assert summarize(tmp_path / "net")[-1] == "  1 blobs have values that are not finite"


def test_other_hdf5(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["images"] = np.zeros((5, 3, 2, 2), np.float32)
    assert summarize(tmp_path / "data.h5") == ["HDF5 file with 1 datasets", "  images  5 x 3 x 2 x 2  float32"]


def test_what_nobody_knows(tmp_path: Path) -> None:
    (tmp_path / "x.prototxt").write_text("nonsense: 3\n")
    with pytest.raises(Error, match="nonsense"):
        summarize(tmp_path / "x.prototxt")
    (tmp_path / "x.bin").write_bytes(b"\x93NUMPY\x01\x00")
    with pytest.raises(Error, match=r"is a \.npy file of numpy, not a caffemodel"):
        summarize(tmp_path / "x.bin")
    with pytest.raises(Error, match=r"no file data\.mdb"):
        summarize(tmp_path)


def test_reads_what_it_writes(tmp_path: Path) -> None:
    """A solver and a net are distinguished even if they share field names."""
    (tmp_path / "net.prototxt").write_text(write_text(read_net(GOLDEN / "files" / "train_net.prototxt")))
    (tmp_path / "solver.prototxt").write_text('net: "x"\ndebug_info: true\nbase_lr: 1\n')
    assert summarize(tmp_path / "net.prototxt")[0] == "net 'FilesNet'" and summarize(tmp_path / "solver.prototxt")[0] == "solver of type SGD"
