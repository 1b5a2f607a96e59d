"""ImageData on lists, folders, tables and shards: the same batches from each, several labels on the device, bad images, a training."""
from __future__ import annotations

import io
import os
import pathlib
import sys
import tarfile
import time
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cli import main
from ocaffe.data.changes.transform import Transform
from ocaffe.data.prefetch import Prefetcher
from ocaffe.data.sources.file_images import ListSource
from tests.data.pictures import failure, save
from tests.data.small_databases import image, samples

pytestmark = pytest.mark.quick

CLASSES = ["cat", "dog", "eel"]
KINDS = ["list.txt", "set", "table.csv", "shards"]


@pytest.fixture
def photos(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Nine images of three classes, in all forms."""
    monkeypatch.chdir(tmp_path)
    names = [f"{name}/im {n}.png" for name in CLASSES for n in range(3)]
    for number, name in enumerate(names):
        save(tmp_path / "set" / name, image(number))
    (tmp_path / "list.txt").write_text("".join(f"set/{name} {number // 3}\n" for number, name in enumerate(names)))
    (tmp_path / "table.csv").write_text("file,class\n" + "".join(f"set/{name},{name[:3]}\n" for name in names))
    (tmp_path / "shards").mkdir()
    for shard in range(2):
        with tarfile.open(tmp_path / "shards" / f"{shard}.tar", "w") as tar:
            for number, name in list(enumerate(names))[shard * 5 : shard * 5 + 5]:
                tar.add(tmp_path / "set" / name, f"{number}.png")
                member = tarfile.TarInfo(f"{number}.cls")
                member.size = 1
                tar.addfile(member, io.BytesIO(b"%d" % (number // 3)))
    return tmp_path


def source(name: str, batch: int = 4, *, train: bool = True, workers: int = 2, transform: Any = (), **data: Any) -> ListSource:
    param = proto.ImageDataParameter(**{"source": name, "batch_size": batch, **data})
    made = ListSource(param, Transform(proto.TransformationParameter(**dict(transform)), train), True, workers=workers)
    made.key = (3, 4)
    return made


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("shuffle", [False, True])
def test_all_forms_give_the_same_batches(photos: pathlib.Path, kind: str, shuffle: bool) -> None:
    settings: dict[str, Any] = {"shuffle": shuffle, "transform": {"crop_size": 4, "mirror": True}}
    ours, listed = source(kind, **settings), source("list.txt", **settings)
    for index in range(4):
        for mine, theirs in zip(samples(ours, index), samples(listed, index)):
            assert (mine == theirs).all()
    assert {float(label) for label in samples(ours, 0)[1]} <= {0, 1, 2}


@pytest.mark.skipif(sys.platform == "win32", reason="needs sockets that keep messages whole")
@pytest.mark.parametrize("kind", KINDS)
def test_processes_give_the_same_batches(photos: pathlib.Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    made, plain = (source(kind, workers=workers, shuffle=True, transform={"crop_size": 4}) for workers in (3, 1))
    made.hurry()
    crew = made._crew
    assert crew is not None
    deadline = time.monotonic() + 20
    while not crew.ready and time.monotonic() < deadline:
        time.sleep(0.005)
    monkeypatch.setattr(made._threads, "run", lambda parts: pytest.fail("threads staged a part") if list(parts) else [])
    prefetcher = Prefetcher(made, 3)
    for index in range(3):
        for mine, theirs in zip(samples(made, index, prefetcher.get().data), samples(plain, index)):
            assert (mine == theirs).all()
    prefetcher.close()
    made.close()


def test_log_lines(photos: pathlib.Path) -> None:
    def said(kind: str, **settings: Any) -> list[str]:
        return [text for _, text in source(kind, **settings).notes]

    assert said("list.txt")[:2] == ["Opening file list.txt", "A total of 9 images."]
    assert said("set")[0] == "Opening folder set: 3 classes" and "set shuffle: true" in said("set")[1] and said("set")[2] == "A total of 9 images."
    assert said("set", shuffle=True)[1] == "Shuffling data" and "A total of 9 images." in said("set", train=False)[1]
    assert said("table.csv")[0] == "Opening file table.csv: 3 classes" and said("shards")[0] == "Opening 2 shards shards"


@pytest.mark.parametrize("kind", KINDS)
def test_bad_images_are_named_and_skipped(photos: pathlib.Path, kind: str) -> None:
    if kind == "shards":
        path = photos / "shards" / "0.tar"
        content = path.read_bytes()
        at = content.index(b"IHDR")  # of the first image
        path.write_bytes(content[:at] + b"XXXX" + content[at + 4 :])
        os.remove(photos / "shards" / "1.tar")
    else:
        (photos / "set" / "cat" / "im 0.png").write_bytes(b"")
    place = {
        "list.txt": "list.txt, line 1: set/cat/im 0.png: ", "set": "set/cat/im 0.png: ", "table.csv": "table.csv, line 2: set/cat/im 0.png: ",
        "shards": "shards/0.tar, member 0.png: ",
    }[kind]  # fmt: skip
    error = failure(lambda: samples(source(kind), 0))
    assert error.fact.startswith(place) and "{ skip_bad_records: N }" in str(error.fix)
    images, labels = samples(source(kind, transform={"skip_bad_records": 1}), 0)
    assert (images[0] == image(1)).all() and labels.tolist()[:2] == [0, 0]


def test_mistakes_of_sources(photos: pathlib.Path) -> None:
    (photos / "db").mkdir()
    (photos / "db" / "data.mdb").write_bytes(b"")
    for name, fields, fact in (
        ("db", {}, "source 'db' is a database"),
        ("set", {"label_count": 2}, "label_count is 2, and an image in class folders has one label"),
        ("set", {"root_folder": "x/"}, "root_folder is 'x/', and source 'set' is no list of names"),
        ("none", {}, "the list 'none' cannot be read: No such file"),
    ):
        error = failure(lambda name=name, fields=fields: source(name, **fields))  # type: ignore[misc]
        assert fact in error.fact and error.fix


NET = """
layer { name: "d" type: "ImageData" top: "data" top: "label" image_data_param { source: "%s" batch_size: 3 %s } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
        inner_product_param { num_output: 3 weight_filler { type: "constant" value: 0.001 } } }
"""


@pytest.mark.parametrize("kind", ["list", "csv"])
def test_several_labels_on_the_device(photos: pathlib.Path, device: Any, kind: str) -> None:
    rows = np.array([[0.5, -1, 3e6], [2, 0.25, 0], [1e-3, 7, -8]], np.float32)
    mark = "," if kind == "csv" else " "
    (photos / f"several.{kind}").write_text("".join(mark.join([f"set/cat/im {n}.png", *map(str, row.tolist())]) + "\n" for n, row in enumerate(rows)))
    loss = 'layer { type: "EuclideanLoss" bottom: "ip" bottom: "label" top: "loss" }'
    (photos / "net.prototxt").write_text(NET % (f"several.{kind}", "label_count: 3") + loss)
    with Net(str(photos / "net.prototxt"), proto.TRAIN, device=device) as net:
        net.forward()
        assert net.blobs["label"].shape == (3, 3)
        assert (net.blobs["label"].data == rows).all() and (net.blobs["data"].data == np.stack([image(n) for n in range(3)])).all()
        expected = ((net.blobs["ip"].data - rows) ** 2).sum() / 6
        np.testing.assert_allclose(net.blobs["loss"].data, expected, rtol=1e-5)


def test_a_training_from_a_folder(photos: pathlib.Path, device: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """Each class has its own color, so a linear net learns it if images and labels agree."""
    for label, name in enumerate(CLASSES):
        for n in range(3):
            save(photos / "set" / name / f"im {n}.png", image(n) // 8 + np.uint8(200) * (np.arange(3, dtype=np.uint8) == label)[:, None, None])
    loss = 'layer { type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }'
    net = text_format.Parse(NET % ("set", "shuffle: true") + loss, proto.NetParameter())
    net.layer[0].transform_param.scale = 0.01
    (photos / "net.prototxt").write_text(str(net))
    settings = 'base_lr: 0.02 lr_policy: "fixed" max_iter: 30 display: 29 random_seed: 1 snapshot_after_train: false'
    (photos / "solver.prototxt").write_text(f'net: "net.prototxt" {settings}')
    assert main(["train", "--solver=solver.prototxt", f"--device={device.number}"]) == 0
    losses = [float(line.split("loss = ")[1].split()[0]) for line in capfd.readouterr().err.splitlines() if ", loss = " in line]
    assert losses[-1] < 0.1 * losses[0]


def test_lint_reads_folders(photos: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    loss = 'layer { type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" name: "loss" }'
    (photos / "net.prototxt").write_text((NET % ("set", "")).replace("num_output: 3", "num_output: 2") + loss)
    main(["lint", "net.prototxt"])
    assert "2" in capsys.readouterr().out
