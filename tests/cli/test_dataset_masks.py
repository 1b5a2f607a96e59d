"""`ocaffe dataset masks`: pairs of all kinds of masks, parts, class weights, the layers that read the result, and each mistake."""
from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from PIL import Image

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cli.dataset import main
from ocaffe.errors import Error
from ocaffe.tools.datasets.color_table import read_color_table
from ocaffe.tools.datasets.mask_set import Counts
from ocaffe.tools.synthetic.voc_writer import with_palette
from tests.cli.test_dataset_boxes import picture, text
from tests.cli.test_dataset_shapes import SMALL
from tests.cli.test_dataset_shapes import digits as digits  # the fixture
from tests.data.sources.test_dense import parts as staged
from tests.data.sources.test_dense import source

COLORS = {0: (10, 20, 30), 1: (200, 0, 0), 2: (0, 0, 200), 255: (0, 0, 0)}
TABLE = "name,r,g,b\nsky,10,20,30\nroad,200,0,0\nVoid,0,0,0\ncar,0,0,200\n"


def classes_of(name: str) -> np.ndarray:
    """Return a mask of classes 0 to 2, and 255."""
    mask = np.random.default_rng(int(name)).integers(0, 3, (20, 40)).astype(np.uint8)
    mask[0, :4] = 255
    return mask


def colored(mask: np.ndarray) -> np.ndarray:
    return np.array([COLORS.get(number, (1, 1, 1)) for number in range(256)], np.uint8)[mask]


def save(path: pathlib.Path, image: Image.Image) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def pairs(root: pathlib.Path, count: int = 5, kind: str = "palette") -> None:
    for number in range(count):
        picture(root / "images" / f"{number}.jpg")
        mask = classes_of(str(number))
        made = with_palette(mask) if kind == "palette" else Image.fromarray(mask if kind == "gray" else colored(mask))
        save(root / "masks" / f"{number}.png", made)


def run(root: pathlib.Path, out: pathlib.Path, *flags: str) -> None:
    assert main(["masks", str(root / "images"), str(root / "masks"), str(out), *flags]) == 0


def refused(root: pathlib.Path, out: pathlib.Path, *flags: str) -> Error:
    with pytest.raises(Error) as caught:
        run(root, out, *flags)
    assert caught.value.fix
    return caught.value


@pytest.mark.parametrize("kind", ["palette", "gray", "color"])
def test_kinds_of_masks(tmp_path: pathlib.Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    pairs(tmp_path, kind=kind)
    text(tmp_path / "colors.csv", TABLE)
    text(tmp_path / "masks" / "labels.txt", "sky\nroad\ncar\n")
    out = tmp_path / "new" / "out"
    run(tmp_path, out, *([f"--colors={tmp_path}/colors.csv"] if kind == "color" else []))
    assert sorted(os.listdir(out)) == ["class_weights.prototxt", "images", "labels.txt", "masks", "test.txt", "train.txt"]
    assert (out / "labels.txt").read_text() == "sky\nroad\ncar\n"
    lines = {part: (out / f"{part}.txt").read_text().splitlines() for part in ("train", "test")}
    assert [len(each) for each in lines.values()] == [4, 1]
    assert sorted(lines["train"] + lines["test"]) == [f"images/{number}.jpg masks/{number}.png" for number in range(5)]
    for name in "01234":
        assert (out / "images" / f"{name}.jpg").read_bytes() == (tmp_path / "images" / f"{name}.jpg").read_bytes()
        with Image.open(out / "masks" / f"{name}.png") as mask:
            assert mask.mode == "L" and (np.array(mask) == classes_of(name)).all()
    said = capsys.readouterr().out
    assert "train.txt: 4 pairs, 0.50 % of the pixels are ignored" in said and "  road  " in said


def test_the_layer_reads_the_result(tmp_path: pathlib.Path) -> None:
    pairs(tmp_path)
    run(tmp_path, tmp_path / "out", "--test=0")
    _, labels = staged(source(str(tmp_path / "out" / "train.txt"), 5, root_folder=f"{tmp_path}/out/"), 0)
    assert (labels[:, 0] == np.stack([classes_of(name) for name in "01234"])).all()


def test_scenes_train_with_the_weights(tmp_path: pathlib.Path, device: Any) -> None:
    """A net reads the masks of synthetic scenes, and the loss accepts the fragment with the weights."""
    assert main(["shapes", str(tmp_path / "scenes"), *SMALL]) == 0
    folders = [str(tmp_path / "scenes" / name) for name in ("JPEGImages", "SegmentationClass")]
    assert main(["masks", *folders, str(tmp_path / "out"), f"--lists={tmp_path}/scenes/ImageSets/Segmentation"]) == 0
    assert (tmp_path / "out" / "labels.txt").read_text().split() == ["background", *"0123456789"]
    net = f"""
    layer {{ name: "data" type: "DenseImageData" top: "data" top: "label"
      dense_image_data_param {{ source: "{tmp_path}/out/train.txt" root_folder: "{tmp_path}/out/" batch_size: 4 }} }}
    layer {{ name: "score" type: "Convolution" bottom: "data" top: "score" convolution_param {{ num_output: 11 kernel_size: 1 }} }}
    layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" {(tmp_path / "out/class_weights.prototxt").read_text()} }}
    """
    with Net(text_format.Parse(net, proto.NetParameter()), phase=proto.TRAIN, device=device) as made:
        loss = made.forward()["loss"]
        labels, score = np.array(made.blobs["label"].data).astype(int), np.array(made.blobs["score"].data)
    lines = (tmp_path / "out" / "class_weights.prototxt").read_text().splitlines()
    given = np.array([float(line.split()[1]) for line in lines if "class_weighting" in line])
    assert (score == 0).all() and labels.max() > 0 and len(given) == 11
    assert np.allclose(loss, np.log(11) * given[labels].sum() / 4, rtol=1e-4)  # SegNet divides by the batch; the filler is 0


def test_weights() -> None:
    counts = Counts()
    for pixels in ([80, 20, 0], [50, 0, 50], [100, 0, 0]):
        counts.add(np.array([*pixels, *[0] * 252, 7]))
    frequency = [230 / 300, 20 / 100, 50 / 100]
    np.testing.assert_allclose(counts.weights(4), [*(0.5 / np.array(frequency)), 1])
    assert counts.images == 3 and counts.pixels[255] == 21
    np.testing.assert_array_equal(Counts().weights(2), [1, 1])


def test_parts(tmp_path: pathlib.Path) -> None:
    pairs(tmp_path)
    for name, content in (("train", "0\n1\n"), ("trainval", "0\n"), ("val", "2\n"), ("cat_train", "0 1\n")):
        text(tmp_path / "lists" / f"{name}.txt", content)
    run(tmp_path, tmp_path / "listed", f"--lists={tmp_path}/lists")
    assert (tmp_path / "listed" / "val.txt").read_text() == "images/2.jpg masks/2.png\n"
    assert sorted(path.name for path in (tmp_path / "listed").glob("*.txt")) == ["labels.txt", "train.txt", "val.txt"]
    assert sorted(os.listdir(tmp_path / "listed" / "images")) == ["0.jpg", "1.jpg", "2.jpg"]
    first, second = ((run(tmp_path, tmp_path / str(seed), f"--seed={seed}"), (tmp_path / str(seed) / "test.txt").read_text())[1] for seed in (3, 8))
    run(tmp_path, tmp_path / "again", "--seed=3")
    assert first == (tmp_path / "again" / "test.txt").read_text() != second
    for part, name in (("train", "0"), ("train", "1"), ("val", "2")):
        for kind, suffix, end in (("images", "jpg", "_left"), ("masks", "png", "_ids")):
            (tmp_path / "city" / kind / part / "town").mkdir(parents=True, exist_ok=True)
            (tmp_path / kind / f"{name}.{suffix}").rename(tmp_path / "city" / kind / part / "town" / f"{name}{end}.{suffix}")
    save(tmp_path / "city/masks/val/town/2_color.png", Image.new("RGB", (4, 4)))
    run(tmp_path / "city", tmp_path / "towns", "--image-suffix=_left", "--mask-suffix=_ids")
    assert (tmp_path / "towns" / "val.txt").read_text() == "images/val/town/2.jpg masks/val/town/2.png\n"
    picture(tmp_path / "city/images/more/1_left.jpg")
    assert "is in none of the parts train and val" in refused(tmp_path / "city", tmp_path / "new", "--image-suffix=_left", "--mask-suffix=_ids").fact


def test_a_list_with_a_name_that_begins_with_a_space(tmp_path: pathlib.Path) -> None:
    """The layer divides its lists at white space, so the name is refused, not reported as missing."""
    pairs(tmp_path)
    for folder, suffix in (("images", "jpg"), ("masks", "png")):
        (tmp_path / folder / f"1.{suffix}").rename(tmp_path / folder / f" 1.{suffix}")
    text(tmp_path / "lists/train.txt", "  0\n 1\n")
    error = refused(tmp_path, tmp_path / "out", f"--lists={tmp_path}/lists")
    assert "white space" in error.fact and "rename" in str(error.fix)


def test_names_of_classes(tmp_path: pathlib.Path) -> None:
    pairs(tmp_path)
    run(tmp_path, tmp_path / "numbers")
    assert (tmp_path / "numbers" / "labels.txt").read_text() == "0\n1\n2\n"
    text(tmp_path / "names", "a\nb\nc\nd\n")
    run(tmp_path, tmp_path / "named", f"--labels={tmp_path}/names")
    content = (tmp_path / "named" / "class_weights.prototxt").read_text()
    assert (tmp_path / "named" / "labels.txt").read_text() == "a\nb\nc\nd\n" and "class_weighting: 1  # d\n" in content
    param = text_format.Parse(content, proto.LayerParameter()).loss_param
    assert len(param.class_weighting) == 4 and param.ignore_label == 255 and param.weight_by_label_freqs


Change = Callable[[pathlib.Path], Any]


def mask(pixels: Any, name: str = "1.png") -> Change:
    return lambda root: save(root / "masks" / name, Image.fromarray(np.broadcast_to(np.array(pixels, np.uint8), (20, 40, *np.shape(pixels))).copy()))


SKIPPED: list[tuple[Change, str, str, str]] = [
    (lambda root: save(root / "masks/1.png", Image.new("L", (41, 20))), "masks/1.png", "the mask is 41 x 20 (width x height), the image", "of two sizes"),
    (mask(3), "masks/1.png", "the pixel at x 0, y 0 has the class 3, and there are the classes 0 to 2, and 255", "with unknown classes"),
    (mask([1, 2, 3]), "masks/1.png", "its pixels are of type RGB, not classes", "that cannot be read"),
    (lambda root: save(root / "masks/1.png", Image.new("I;16", (40, 20))), "masks/1.png", "its pixels are of type I;16", "that cannot be read"),
    (lambda root: save(root / "masks/1.png", Image.new("LA", (40, 20))), "masks/1.png", "its pixels are of type LA", "that cannot be read"),
    (lambda root: [(root / "masks/1.png").unlink(), save(root / "masks/1.jpg", Image.new("L", (40, 20)))], "1.jpg", "it is a JPEG file", "cannot be read"),
    (lambda root: (root / "masks/1.png").unlink(), "images/1.jpg", "it has no mask", "without mask"),
    (lambda root: (root / "images/1.jpg").unlink(), "masks/1.png", "it has no image", "without image"),
    (lambda root: (root / "images/1.jpg").write_bytes(b"text"), "images/1.jpg", "it is not an image file", "that cannot be read"),
    (lambda root: (root / "masks/1.png").write_bytes((root / "masks/1.png").read_bytes()[:80]), "masks/1.png", "it cannot be decoded", "that cannot be read"),
    (lambda root: [(root / f"{kind}/1.{suffix}").rename(root / f"{kind}/1 2.{suffix}") for kind, suffix in (("images", "jpg"), ("masks", "png"))],
     "images/1 2.jpg", "the name has white space", "with white space in the name"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "place", "fact", "reason"), SKIPPED, ids=[each[2][:24] for each in SKIPPED])
def test_what_cannot_be_used(
    tmp_path: pathlib.Path, change: Change, place: str, fact: str, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    pairs(tmp_path)
    text(tmp_path / "masks" / "labels.txt", "a\nb\nc\n")
    change(tmp_path)
    error = refused(tmp_path, tmp_path / "out", "--test=0")
    assert place in str(error.place) and fact in error.fact and str(error.fix).endswith("--skip-bad") and not (tmp_path / "out").exists()
    run(tmp_path, tmp_path / "out", "--test=0", "--skip-bad")
    said = capfd.readouterr()
    assert reason in said.out and "left out: 1 pairs" in said.out and fact in said.err
    assert len((tmp_path / "out" / "train.txt").read_text().splitlines()) == 4


def test_unknown_colors(tmp_path: pathlib.Path) -> None:
    pairs(tmp_path, kind="color")
    text(tmp_path / "colors", "10 20 30 sky\n200 0 0 road\n0 0 0 ignore\n")
    error = refused(tmp_path, tmp_path / "out", f"--colors={tmp_path}/colors")
    assert "pixels have colors that the table lacks, the first is (0, 0, 200) at x " in error.fact and str(error.place).endswith(".png")


def test_color_tables(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "colors"
    text(path, "64 128 64\tAn animal\n0 0 0 void\n1 1 1 IGNORE\n192 0 128 Bridge\n")
    table = read_color_table(str(path))
    assert table.names == ["An animal", "Bridge"]
    assert table.classes(np.array([[[192, 0, 128], [0, 0, 0], [64, 128, 64]], [[1, 1, 1]] * 3], np.uint8)).tolist() == [[1, 255, 0], [255] * 3]
    for content, place, fact in (
        ("1 2 3\n", f"{path}:1", "'1 2 3' is not a name and a color"),
        ("a,1,2,3\nb,1,2,300\n", f"{path}:2", "'b,1,2,300' is not a name and a color"),
        ("a,1,2,3\nname,r,g,b\n", f"{path}:2", "is not a name"),
        ("a,1,2,3\nb,1,2,3\n", f"{path}:2", "the color of 'b,1,2,3' occurs twice"),
        ("a,1,2,3\na,1,2,4\n", f"{path}:2", "the name of 'a,1,2,4' occurs twice"),
        ("void,1,2,3\n", str(path), "it has 0 classes"),
        ("".join(f"c{number},{number % 256},{number // 256},0\n" for number in range(256)), str(path), "it has 256 classes"),
    ):
        text(path, content)
        with pytest.raises(Error) as caught:
            read_color_table(str(path))
        assert str(caught.value.place) == place and fact in caught.value.fact and caught.value.fix


def test_mistakes(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "out"
    assert "does not exist" in refused(tmp_path, out).fact
    pairs(tmp_path, 2)
    text(tmp_path / "names", "\n".join(map(str, range(256))))
    text(tmp_path / "lists/train.txt", "../1\n")
    text(tmp_path / "unknown/train.txt", "7\n")
    (tmp_path / "empty").mkdir()
    for flags, fact in (
        (["--test=1"], "--test is 1"),
        (["--test=0.1"], "--test is 0.1, and there are 2 pairs"),
        (["--labels=none"], "cannot be read"),
        (["--colors=none"], "it cannot be read: No such file"),
        ([f"--labels={tmp_path}/names"], "there are 256 classes"),
        ([f"--lists={tmp_path}/empty"], "has no list train.txt"),
        ([f"--lists={tmp_path}/lists"], "'../1' lies outside"),
        ([f"--lists={tmp_path}/unknown"], "there are no image and no mask of this name"),
        ([f"--lists={tmp_path}/unknown", "--skip-bad"], "none of the 1 pairs of the part 'train' can be used"),
        (["--image-suffix=_x"], "whose name ends in _x"),
        (["--mask-suffix=_x"], f"the folder {tmp_path}/masks has no image file whose name ends in _x"),
    ):
        assert fact in refused(tmp_path, out, *flags).fact
        assert not out.exists()
    assert "exists already" in refused(tmp_path, tmp_path / "empty", "--test=0").fact


def test_black_and_white(tmp_path: pathlib.Path) -> None:
    """White is level 255, which is ignored. So masks of 0 and 255 need a table of colors."""
    for number in range(5):
        picture(tmp_path / "images" / f"{number}.jpg")
        save(tmp_path / "masks" / f"{number}.png", Image.fromarray(np.uint8(classes_of(str(number)) == 1) * 255))
    text(tmp_path / "masks" / "labels.txt", "background\nobject\n")
    error = refused(tmp_path, tmp_path / "out")
    assert error.fact == "all pixels have the class 0, or the level 255, which is ignored" and "--colors" in str(error.fix)
    assert not (tmp_path / "out").exists()
    text(tmp_path / "colors.csv", "background,0,0,0\nobject,255,255,255\n")
    run(tmp_path, tmp_path / "out", f"--colors={tmp_path}/colors.csv")
    with Image.open(tmp_path / "out/masks/3.png") as mask:
        assert (np.asarray(mask) == (classes_of("3") == 1)).all()
