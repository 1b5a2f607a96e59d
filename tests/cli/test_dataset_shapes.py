"""`ocaffe dataset shapes`: the files of VOC's layout, class folders of digits, the same bytes for the same seed, and mistakes."""
from __future__ import annotations

import os
import pathlib
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from PIL import Image

from ocaffe.cli.dataset import main
from ocaffe.errors import Error
from ocaffe.tools.datasets import sets
from ocaffe.tools.datasets.sets import DataSet
from tests.cli.test_dataset import FILES
from tests.tools.synthetic.test_scenes import drawn_digits

SMALL = ("--images=10", "--size=64x48", "--objects=1,3", "--crops=20", "--crop-size=32")


@pytest.fixture(autouse=True)
def digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace scikit-learn's digits, which not every installation has."""
    monkeypatch.setattr("ocaffe.cli.dataset_shapes.digits", lambda folder: DataSet({part: drawn_digits() for part in ("train", "test")}))


def run(*arguments: str | pathlib.Path) -> None:
    assert main(["shapes", *map(str, arguments)]) == 0


def files(root: pathlib.Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_files(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "scenes"
    run(out, *SMALL)
    names = [f"{number:06d}" for number in range(10)]
    for kind in ("Main", "Segmentation"):
        lists = {part: (out / "ImageSets" / kind / f"{part}.txt").read_text().split() for part in ("train", "val", "test")}
        assert [len(listed) for listed in lists.values()] == [8, 1, 1]
        assert lists["train"] + lists["val"] + lists["test"] == names
    assert (out / "labels.txt").read_text().split() == list("0123456789")
    assert (out / "SegmentationClass" / "labels.txt").read_text().split() == ["background", *"0123456789"]
    for name in names:
        root = ElementTree.parse(out / "Annotations" / f"{name}.xml").getroot()
        assert root.findtext("filename") == f"{name}.jpg" and [root.findtext(f"size/{side}") for side in ("width", "height", "depth")] == ["64", "48", "3"]
        with Image.open(out / "JPEGImages" / f"{name}.jpg") as image:
            assert image.format == "JPEG" and image.size == (64, 48) and image.mode == "RGB"
        masks = []
        for folder in ("SegmentationClass", "SegmentationObject"):
            with Image.open(out / folder / f"{name}.png") as mask:
                assert mask.mode == "P" and mask.getpalette()[:6] == [0, 0, 0, 128, 0, 0]
                masks.append(np.array(mask))
        for number, thing in enumerate(root.iter("object"), 1):
            rows, columns = np.nonzero(masks[1] == number)
            corners = [int(thing.findtext(f"bndbox/{corner}", "")) for corner in ("xmin", "ymin", "xmax", "ymax")]
            assert corners == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            assert (masks[0][rows, columns] == int(thing.findtext("name", "")) + 1).all() and thing.findtext("difficult") in ("0", "1")
        assert masks[1].max() == number
    assert sorted(os.listdir(out / "crops")) == list("0123456789") and all(len(os.listdir(out / "crops" / label)) == 2 for label in "0123456789")
    said = capsys.readouterr().out
    assert "train: 8 scenes, " in said and "crops: 20 images of 32 x 32" in said


def test_a_seed_gives_the_same_bytes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "a", *SMALL)
    monkeypatch.setenv("OCAFFE_WORKERS", "1")
    run(tmp_path / "b", *SMALL)
    run(tmp_path / "c", *SMALL, "--seed=2")
    first = files(tmp_path / "a")
    assert first == files(tmp_path / "b")
    other = files(tmp_path / "c")
    same = {name for name in first if first[name] == other.get(name)}
    assert first.keys() == other.keys() and not any(name.endswith(".jpg") for name in same)


def test_png_and_parts(tmp_path: pathlib.Path) -> None:
    run(tmp_path / "out", "--images=3", "--size=40x40", "--splits=0,2,1", "--format=png", "--objects=1,1")
    assert sorted(os.listdir(tmp_path / "out" / "ImageSets" / "Main")) == ["test.txt", "val.txt"]
    assert sorted(os.listdir(tmp_path / "out" / "JPEGImages")) == ["000000.png", "000001.png", "000002.png"]
    assert not (tmp_path / "out" / "crops").exists()


def test_mnist_needs_its_files(tmp_path: pathlib.Path) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(Error, match=r"no image has the label \d"):  # the small files lack some classes
        run(tmp_path / "out", "--images=2", f"--mnist={tmp_path}")
    assert not (tmp_path / "out").exists()


def test_digits_of_scikit_learn(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setattr("ocaffe.cli.dataset_shapes.digits", sets.digits)
    run(tmp_path / "out", "--images=2", "--size=64x64")
    assert len(os.listdir(tmp_path / "out" / "Annotations")) == 2


@pytest.mark.parametrize(
    ("flags", "fact"),
    [
        (["--size=300"], "--size is 300"),
        (["--size=8x300"], "--size is 8x300"),
        (["--size=300x99999"], "--size is 300x99999"),
        (["--objects=0,3"], "--objects is 0,3"),
        (["--objects=4,3"], "--objects is 4,3"),
        (["--objects=1,31"], "--objects is 1,31"),
        (["--objects=3"], "--objects is 3"),
        (["--splits=1,2"], "--splits is 1,2"),
        (["--splits=1,-1,1"], "--splits is 1,-1,1"),
        (["--splits=0,0,0"], "--splits is 0,0,0"),
        (["--splits=a,b,c"], "--splits is a,b,c"),
        (["--splits=inf,1,1"], "--splits is inf,1,1"),
        (["--images=0"], "--images is 0"),
        (["--crops=-1"], "--crops is -1"),
        (["--crop-size=8"], "--crop-size is 8"),
        (["--mnist=none"], "the folder none does not exist"),
        (["--size=32x32", "--objects=30,30", "--images=1"], "has room for"),
    ],
)
def test_mistakes(tmp_path: pathlib.Path, flags: list[str], fact: str) -> None:
    with pytest.raises(Error) as caught:
        run(tmp_path / "out", *flags)
    assert fact in caught.value.fact and caught.value.fix and os.listdir(tmp_path) == []


def test_nothing_is_overwritten(tmp_path: pathlib.Path) -> None:
    with pytest.raises(Error, match="exists already"):
        run(tmp_path, *SMALL)
