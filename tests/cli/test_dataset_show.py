"""`ocaffe dataset show`: contact sheets."""
from __future__ import annotations

import pathlib
from argparse import Namespace
from collections.abc import Sequence

import numpy as np
import pytest
from PIL import Image

from ocaffe import proto
from ocaffe.cl.device import Device
from ocaffe.cli.dataset import main
from ocaffe.cli.dataset_show import caption, pictures, stored
from ocaffe.errors import Error
from ocaffe.tools.drawing.contact_sheet import contact_sheet
from tests.data.small_databases import image, raw, write

NET = """layer { name: "d" type: "Data" top: "data" top: "label" include { phase: TRAIN } data_param { source: "none" batch_size: 4 }
  transform_param { scale: 0.5 mean_value: 10 mean_value: 20 mean_value: 30 vertical_mirror: true %s } }"""


def show(*argv: str) -> None:
    assert main(["show", *argv]) == 0


def cells(path: pathlib.Path, count: int, size: tuple[int, int], columns: int) -> list[np.ndarray]:
    """Return the pictures of a sheet, blue green red, each at the height and width `size`."""
    sheet = np.asarray(Image.open(path))
    corners = [(6 + n // columns * (size[0] + 20), 6 + n % columns * (size[1] + 6)) for n in range(count)]
    return [sheet[y : y + size[0], x : x + size[1], ::-1].transpose(2, 0, 1) for y, x in corners]


def test_stored(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "db", [raw(n) for n in range(5)])
    show(path, "--out", str(tmp_path / "s.png"), "--count", "9")
    assert "5 images" in capsys.readouterr().out
    for n, cell in enumerate(cells(tmp_path / "s.png", 5, (72, 96), 2)):  # 6 x 8, enlarged by 12
        assert (cell[:, ::12, ::12] == image(n)).all()


def test_folder_with_names(tmp_path: pathlib.Path) -> None:
    for number, name in enumerate(("cat", "dog")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.fromarray(image(number, (3, 120, 100)).transpose(1, 2, 0)).save(tmp_path / "photos" / name / "1.png")
    show(str(tmp_path / "photos"), "--out", str(tmp_path / "s.png"))
    first, second = cells(tmp_path / "s.png", 2, (120, 100), 2)
    assert (first[::-1] == image(0, (3, 120, 100))).all() and (second[::-1] == image(1, (3, 120, 100))).all()


@pytest.fixture
def bare(tmp_path: pathlib.Path) -> str:
    """A database without labels."""
    return write(tmp_path / "bare", [proto.Datum(channels=3, height=6, width=8, data=image(n).tobytes()).SerializeToString() for n in range(3)])


def test_images_without_labels(device: Device, bare: str, tmp_path: pathlib.Path) -> None:
    options = Namespace(source=bare, count=3, skip_bad_records=0)
    assert [(image.shape, labels.size) for image, labels in stored(options)] == [((3, 6, 8), 0)] * 3
    (tmp_path / "net.prototxt").write_text(NET % "")
    show(bare, "--augment", str(tmp_path / "net.prototxt"), "--out", str(tmp_path / "s.png"), "--count", "3", "--device", device.number)
    assert caption(np.empty(0), ["cat"]) == ""


def test_several_labels(tmp_path: pathlib.Path) -> None:
    lines = []
    for n in range(2):
        Image.fromarray(image(n).transpose(1, 2, 0)).save(tmp_path / f"{n}.png")
        lines.append(f"{tmp_path}/{n}.png 0.5 {n} -3\n")
    (tmp_path / "list.txt").write_text("".join(lines))
    options = Namespace(source=str(tmp_path / "list.txt"), count=9, skip_bad_records=0, root_folder="", label_count=3)
    assert [labels.tolist() for _, labels in stored(options)] == [[0.5, 0, -3], [0.5, 1, -3]]


def test_bad_images_are_left_out(device: Device, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "db", [raw(0), b"bad", raw(2)])
    with pytest.raises(Error, match="record 1 "):
        show(path, "--out", str(tmp_path / "s.png"))
    show(path, "--out", str(tmp_path / "s.png"), "--skip-bad-records", "1")
    assert "Skipped bad record 1 of at most 1" in capfd.readouterr().err
    (tmp_path / "net.prototxt").write_text(NET % "")
    show(path, "--augment", str(tmp_path / "net.prototxt"), "--out", str(tmp_path / "s.png"), "--skip-bad-records", "1", "--device", device.number)


@pytest.mark.parametrize("solver", [False, True])
def test_augmented(device: Device, tmp_path: pathlib.Path, solver: bool) -> None:
    path = write(tmp_path / "db", [raw(n) for n in range(6)])
    (tmp_path / "net.prototxt").write_text(NET % "")
    (tmp_path / "solver.prototxt").write_text(f'net: "{tmp_path}/net.prototxt" base_lr: 0.1 lr_policy: "fixed"')
    name = "solver.prototxt" if solver else "net.prototxt"
    show(path, "--augment", str(tmp_path / name), "--out", str(tmp_path / "s.png"), "--count", "6", "--device", device.number)
    flips = []
    for n, cell in enumerate(cells(tmp_path / "s.png", 6, (72, 96), 3)):
        picture = cell[:, ::12, ::12]
        flips.append(bool((picture == image(n)[:, ::-1]).all()))
        assert flips[-1] or (picture == image(n)).all()
    assert set(flips) == {True, False}


@pytest.mark.parametrize(("argv", "fact"), [
    (["--count", "0"], "--count is 0"),
    (["--label-count", "-1"], "--label-count is -1"),
    (["--out", "sheet.jpg"], "--out is sheet.jpg"),
    (["--augment", "net.prototxt", "--phase", "TEST"], "the TEST net has no Data or ImageData layer"),
    (["--augment", "solver.prototxt", "--phase", "TEST"], "the solver has no TEST net"),
])  # fmt: skip
def test_errors(argv: Sequence[str], fact: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.prototxt").write_text(NET % "")
    (tmp_path / "solver.prototxt").write_text('net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed"')
    path = write(tmp_path / "db", [raw(0)])
    with pytest.raises(Error, match=fact):
        main(["show", path, *argv])
    assert not list(tmp_path.glob("*.png"))


def test_errors_of_the_layer_have_its_place(device: Device, tmp_path: pathlib.Path) -> None:
    (tmp_path / "net.prototxt").write_text("\n\n" + NET % "mixup { }")
    (tmp_path / "solver.prototxt").write_text(f'net: "{tmp_path}/net.prototxt" base_lr: 0.1 lr_policy: "fixed"')
    path = write(tmp_path / "db", [raw(0)])
    for name in ("net.prototxt", "solver.prototxt"):
        with pytest.raises(Error, match="label_classes is missing") as failure:
            main(["show", path, "--augment", str(tmp_path / name), "--device", device.number])
        assert str(failure.value.place) == f"{tmp_path}/net.prototxt:3"


BOXES = """layer { name: "d" type: "AnnotatedData" top: "data" top: "label" include { phase: TRAIN } data_param { source: "none" batch_size: 2 }
  annotated_data_param { anno_type: BBOX } transform_param { mirror: true scale: 0.5 mean_value: 40 } }"""


@pytest.fixture
def boxes(tmp_path: pathlib.Path) -> str:
    """A database of two black images of 80 x 100 (height x width), the first with two boxes, the second with none."""
    records = []
    for count in (2, 0):
        made = proto.AnnotatedDatum(type=proto.AnnotatedDatum.BBOX)
        made.datum.channels, made.datum.height, made.datum.width, made.datum.label, made.datum.data = 3, 80, 100, -1, bytes(3 * 80 * 100)
        for label in range(count):
            corners = {"xmin": 0.1 + label / 2, "ymin": 0.25, "xmax": 0.4 + label / 2, "ymax": 0.75, "difficult": label == 1}
            made.annotation_group.add(group_label=label).annotation.add(instance_id=0).bbox.CopyFrom(proto.NormalizedBBox(**corners))
        records.append(made.SerializeToString())
    return write(tmp_path / "boxes", records)


def edges(cell: np.ndarray, channels: Sequence[int]) -> tuple[int, int, int, int]:
    """Return the extents of the pixels in which these channels (blue, green, red) are 255 and the others 0."""
    ys, xs = np.nonzero((cell == np.array([255 * (channel in channels) for channel in range(3)])[:, None, None]).all(0))
    return int(xs.min()), int(ys.min()), int(xs.max()) + 1, int(ys.max()) + 1


def test_boxes(device: Device, boxes: str, tmp_path: pathlib.Path) -> None:
    show(boxes, "--out", str(tmp_path / "s.png"))
    first, second = cells(tmp_path / "s.png", 2, (80, 100), 2)
    assert edges(first, [2]) == (10, 20, 40, 60) and edges(first, [1]) == (60, 20, 90, 60)  # red, lime
    assert not second.any()
    (tmp_path / "net.prototxt").write_text(BOXES)
    seen = set()
    for seed in range(1, 9):
        show(boxes, "--augment", str(tmp_path / "net.prototxt"), "--out", str(tmp_path / "s.png"), "--count=2", f"--seed={seed}", "--device", device.number)
        seen.add(edges(cells(tmp_path / "s.png", 2, (80, 100), 2)[0], [2]))
    assert seen == {(10, 20, 40, 60), (60, 20, 90, 60)}  # with and without mirror


def test_boxes_need_their_layer_and_whole_records(boxes: str, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.prototxt").write_text(NET % "")
    with pytest.raises(Error, match="the TRAIN net has no AnnotatedData layer"):
        main(["show", boxes, "--augment", str(tmp_path / "net.prototxt"), "--out", str(tmp_path / "s.png")])
    good = proto.AnnotatedDatum()
    good.datum.channels, good.datum.height, good.datum.width, good.datum.data = 1, 4, 5, bytes(20)
    short, text = proto.AnnotatedDatum(), proto.AnnotatedDatum()
    short.datum.channels, short.datum.height, short.datum.width = 1, 4, 5
    text.datum.encoded, text.datum.data = True, b"text"
    path = write(tmp_path / "bad", [good.SerializeToString(), short.SerializeToString(), text.SerializeToString(), b"\xff"])
    with pytest.raises(Error, match=r"record 1 .*it has 0 bytes for an image of 1 x 4 x 5"):
        show(path, "--out", str(tmp_path / "s.png"))
    show(path, "--out", str(tmp_path / "s.png"), "--skip-bad-records=3")
    said = capfd.readouterr()
    assert "s.png: 1 images" in said.out
    assert all(part in said.err for part in ("Skipped bad record 3 of at most 3", "it is not an image file", "it is not an AnnotatedDatum"))


def test_no_source(tmp_path: pathlib.Path) -> None:
    with pytest.raises(Error):
        main(["show", str(tmp_path / "none"), "--out", str(tmp_path / "s.png")])
    assert not list(tmp_path.glob("*.png"))


def test_captions() -> None:
    assert caption(np.array([1.0]), ["cat", "dog"]) == "dog"
    assert caption(np.array([0.25, 0.0, 0.75]), ["cat", "dog"]) == "0.75 2 + 0.25 cat"
    assert caption(np.array([0.003, 0.997]), ["cat", "dog"]) == "dog"
    assert caption(np.array([1234567.0]), ["cat"]) == "1234567"
    assert caption(np.array([0.5, 3]), []) == "0.5 3"


def test_pixels_are_those_before_mean_and_scale() -> None:
    data = np.array([[[[-5.0]], [[90.0]]]])
    assert pictures(data, proto.TransformationParameter(scale=0.5, mean_value=[20, 60])).ravel().tolist() == [10, 240]


def test_sheet_of_other_channels() -> None:
    assert contact_sheet([image(0, (1, 4, 4)), image(0, (2, 300, 500))], ["a", "a very long caption of a picture" * 9]).startswith(b"\x89PNG")
