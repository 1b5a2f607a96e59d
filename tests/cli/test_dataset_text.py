"""`ocaffe dataset text`: lists, texts and images agree, a seed gives the same bytes, digits for training and testing are apart, and mistakes."""
from __future__ import annotations

import os
import pathlib

import numpy as np
import pytest
from PIL import Image

from ocaffe.cli.dataset_text import main
from ocaffe.errors import Error
from ocaffe.tools.datasets.sets import DataSet, Part
from ocaffe.tools.synthetic.scenes import Glyphs
from ocaffe.tools.synthetic.text_lines import LineComposer
from tests.cli.test_dataset_shapes import files
from tests.tools.synthetic.test_scenes import drawn_digits

SMALL = ("--images=30", "--splits=4,2", "--length=1,5", "--width=96")


@pytest.fixture(autouse=True)
def set_of_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocaffe.cli.dataset_text.digits", lambda _: DataSet({"train": drawn_digits(), "test": drawn_digits(10)}))


def run(out: pathlib.Path, *flags: str) -> None:
    assert main([str(out), *flags]) == 0


def test_files(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "lines"
    run(out, *SMALL)
    names = (out / "labels.txt").read_text().split()
    assert names == ["blank", *"0123456789"]
    for part, count in (("train", 20), ("val", 10)):
        lists = [[line.split() for line in (out / folder / f"{part}.txt").read_text().splitlines()] for folder in (".", "texts")]
        assert [len(rows) for rows in lists] == [count, count]
        for (name, *labels), (same, text) in zip(*lists):
            assert name == same and len(labels) == 5 and 1 <= len(text) <= 5
            assert "".join(names[int(label)] for label in labels[: len(text)]) == text and set(labels[len(text) :]) <= {"0"}
            with Image.open(out / name) as image:
                assert image.format == "PNG" and image.size == (96, 32) and image.mode == "L"
        assert {len(text) for _, text in lists[1]} >= {1, 5}
    assert "train: 20 images, " in capsys.readouterr().out


def test_a_seed_gives_the_same_bytes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "a", *SMALL)
    monkeypatch.setenv("OCAFFE_WORKERS", "1")
    run(tmp_path / "b", *SMALL)
    run(tmp_path / "c", *SMALL, "--seed=2")
    first = files(tmp_path / "a")
    assert first == files(tmp_path / "b")
    other = files(tmp_path / "c")
    assert first.keys() == other.keys() and not any(name.endswith(".png") for name in first if first[name] == other[name])


def test_parts_have_their_own_digits(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first lines of both parts have the digits of their own part of the set, and would differ with those of the other part."""
    drawn = drawn_digits()
    narrow = Part(drawn.images * (np.arange(28) < 5).astype(np.uint8), drawn.labels)
    monkeypatch.setattr("ocaffe.cli.dataset_text.digits", lambda _: DataSet({"train": drawn, "test": narrow}))
    run(tmp_path / "out", "--images=2", "--splits=1,1", "--length=5,5")
    for part, own, other in (("train", drawn, narrow), ("val", narrow, drawn)):
        with Image.open(tmp_path / f"out/images/{part}/000000.png") as image:
            written = np.asarray(image)
        lines = [LineComposer(Glyphs(digits), 32, 128, 1, part).line(0, 5, 5).pixels for digits in (own, other)]
        assert (written == lines[0]).all() and (written != lines[1]).any()


@pytest.mark.parametrize("length", [1, 8])
def test_the_ink_differs_from_the_background(length: int) -> None:
    composer = LineComposer(Glyphs(drawn_digits()), 32, 128, 5, "train")
    for number in range(20):
        line = composer.line(number, length, length)
        assert line.pixels.shape == (32, 128) and len(line.text) == length and np.ptp(line.pixels.astype(int)) > 60


def test_jpg_and_one_part(tmp_path: pathlib.Path) -> None:
    run(tmp_path / "out", "--images=3", "--splits=0,1", "--format=jpg", "--height=40")
    assert sorted(os.listdir(tmp_path / "out")) == ["images", "labels.txt", "texts", "val.txt"]
    with Image.open(tmp_path / "out/images/val/000002.jpg") as image:
        assert image.format == "JPEG" and image.size == (128, 40)


@pytest.mark.parametrize(
    ("flags", "fact"),
    [
        (["--length=0,3"], "--length is 0,3"),
        (["--length=4,3"], "--length is 4,3"),
        (["--length=1,101"], "--length is 1,101"),
        (["--height=8"], "--height is 8"),
        (["--width=9999"], "--width is 9999"),
        (["--splits=1,2,3"], "--splits is 1,2,3"),
        (["--images=0"], "--images is 0"),
        (["--mnist=none"], "the folder none does not exist"),
        (["--length=60,60", "--images=2"], "has digits of less than 8 pixels in an image of 128 x 32"),
    ],
)
def test_mistakes(tmp_path: pathlib.Path, flags: list[str], fact: str) -> None:
    with pytest.raises(Error) as caught:
        run(tmp_path / "out", *flags)
    assert fact in caught.value.fact and caught.value.fix and os.listdir(tmp_path) == []
