"""`--batch auto` of train, new and fit: the largest batch that the limit allows, known before the start."""
from __future__ import annotations

import pathlib
import re
from typing import Any

import numpy as np
import pytest

from ocaffe.cli import main
from ocaffe.data.databases.datum import encode_datum
from ocaffe.data.databases.writer import LmdbWriter
from ocaffe.fit.files import batch_in
from ocaffe.formats.text import read_net, read_solver
from ocaffe.graph.options import NetOptions
from ocaffe.ir.target import Target
from ocaffe.solver.planning import Machine, solver_to_plan
from tests.zoo.digits import write_folders

NET = """layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "db" batch_size: 3 backend: LMDB } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 8 kernel_size: 3 weight_filler { type: "msra" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip" inner_product_param { num_output: 10 weight_filler { type: "msra" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
SOLVER = 'net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" max_iter: 2 test_iter: 1 test_interval: 1 snapshot_after_train: false random_seed: 1'


@pytest.fixture
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def solver(here: pathlib.Path) -> str:
    with LmdbWriter("db") as writer:
        for number in range(2000):
            writer.put(b"%04d" % number, encode_datum(np.full((1, 16, 16), number % 251, np.uint8), number % 10))
    (here / "net.prototxt").write_text(NET)
    (here / "solver.prototxt").write_text(SOLVER)
    return "solver.prototxt"


def planned(solver: str, batch: int, target: Target, iter_size: int = 1) -> int:
    param = read_solver(solver)
    param.iter_size = iter_size
    return solver_to_plan(param, read_net, NetOptions(), batch).plans(Machine.assumed(target))(None).bytes


@pytest.mark.parametrize("iter_size", [1, 3])
def test_train(solver: str, iter_size: int, device: Any, capfd: pytest.CaptureFixture[str]) -> None:
    flags = ["train", "--solver", solver, "--device", device.number, "--set", f"iter_size={iter_size}", "--batch", "auto"]
    assert main([*flags, "--memory-limit", "4M"]) == 0
    said = capfd.readouterr().err
    found = re.search(r"Batch of (\d+), the largest that fits 4.0 MiB; the plan takes", said)
    assert found is not None and "Optimization Done" in said
    batch = int(found[1])
    assert planned(solver, batch, device.target, iter_size) <= 4 << 20 < planned(solver, int(batch * 1.05) + 1, device.target, iter_size)
    assert main(flags) == 0 and "Batch of 2000, all 2000 images" in capfd.readouterr().err
    assert main([*flags, "--memory-limit", "50K"]) == 1
    assert "a training with one image takes" in capfd.readouterr().err
    assert main([*flags[:-1], "0"]) == 1
    assert "--batch is '0'" in capfd.readouterr().err


def test_a_net_without_a_batch(here: pathlib.Path, device: Any, capfd: pytest.CaptureFixture[str]) -> None:
    data = 'layer { name: "d" type: "DummyData" top: "x" top: "l" dummy_data_param { shape { dim: 4 dim: 3 } shape { dim: 4 } } }'
    rest = NET.split("\n", 3)[3].replace('"conv"', '"x"').replace('"label"', '"l"')
    (here / "net.prototxt").write_text(f"{data}\n{rest}")
    (here / "solver.prototxt").write_text(SOLVER)
    assert main(["train", "--solver", "solver.prototxt", "--batch", "auto", "--device", device.number]) == 1
    assert "no layer of the TRAIN net has a batch size" in capfd.readouterr().err


def test_fit_and_new(here: pathlib.Path, device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write_folders(here / "photos", 80, classes=10)
    limit = ["--batch", "auto", "--memory-limit", "9M"]
    assert main(["new", "lenet", "--data", "photos", "--out", "new", *limit, "--device", device.number]) == 0
    said = capsys.readouterr().out
    batch = batch_in("new")
    assert f"batch of {batch}: the largest that fits 9.0 MiB" in said and "ocaffe train --solver new/solver.prototxt --memory-limit 9M" in said
    assert planned("new/solver.prototxt", batch, device.target) <= 9 << 20 < planned("new/solver.prototxt", int(batch * 1.05) + 1, device.target)
    assert main(["fit", "photos", "--net", "lenet", "--out", "fit", *limit, "--iterations", "4", "--device", device.number]) == 0
    assert abs(batch_in("fit") - batch) <= 1 and f"batch of {batch_in('fit')}: the largest" in capsys.readouterr().out
    assert main(["new", "lenet", "--data", "photos", "--out", "all", "--batch", "auto", "--device", device.number]) == 0
    assert batch_in("all") == 64 and "fewer than 10 iterations of an epoch of 640 images" in capsys.readouterr().out


def test_new_of_other_tasks(here: pathlib.Path, device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dataset", "shapes", "scenes", "--images", "60", "--size", "64x64", "--objects", "1,2", "--splits", "80,20,0"]) == 0
    assert main(["dataset", "voc", "scenes", "boxes"]) == 0
    assert main(["dataset", "masks", "scenes/JPEGImages", "scenes/SegmentationClass", "masks", "--lists", "scenes/ImageSets/Segmentation"]) == 0
    assert main(["dataset", "text", "text", "--images", "60", "--splits", "80,20"]) == 0
    for net, data, limit in (("ssd_shapes", "boxes", 60), ("segnet_basic", "masks", 70), ("crnn", "text", 20)):
        assert main(["new", net, "--data", data, "--out", net, "--batch", "auto", "--memory-limit", f"{limit}M", "--device", device.number]) == 0
        batch, file = batch_in(net), f"{net}/solver.prototxt"
        assert f"batch of {batch}: the largest that fits" in capsys.readouterr().out
        assert planned(file, batch, device.target) <= limit << 20 < planned(file, int(batch * 1.05) + 1, device.target), net
    assert main(["new", "faster_rcnn_zf", "--data", "boxes", "--out", "zf", "--batch", "auto", "--device", device.number]) == 0
    assert "takes one image at a time" in capsys.readouterr().out and read_solver("zf/solver.prototxt").iter_size == 1
