"""convert_imageset and compute_image_mean: output equals real Caffe's byte for byte; and every flag."""
from __future__ import annotations

import os
import pathlib
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocaffe import proto
from ocaffe.cli import main
from ocaffe.data.databases.database import Reader, open_database
from ocaffe.data.databases.writer import LevelDbWriter, LmdbWriter, Writer
from ocaffe.data.decoding.decode import Color, open_image, planes
from ocaffe.errors import Error
from ocaffe.formats.blob import read_blobproto
from ocaffe.tools.datasets.encode import Recipe

pytestmark = pytest.mark.quick

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "golden" / "files"
COMMANDS = GOLDEN.joinpath("commands.txt").read_text().splitlines()


@pytest.fixture(autouse=True)
def workplace(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inputs of real Caffe's tools, without their output."""
    (tmp_path / "files").mkdir()
    shutil.copytree(GOLDEN / "images", tmp_path / "files" / "images")
    for path in GOLDEN.glob("images*.txt"):
        shutil.copy(path, tmp_path / "files")
    for name in ("lmdb_raw", "lmdb_png"):  # inputs of compute_image_mean
        shutil.copytree(GOLDEN / name, tmp_path / "golden" / name)
    monkeypatch.chdir(tmp_path)


def records(path: str | pathlib.Path) -> dict[bytes, Any]:
    """Return key -> Datum of the database in a folder."""
    backend = proto.DataParameter.LMDB if os.path.exists(os.path.join(path, "data.mdb")) else proto.DataParameter.LEVELDB
    database = open_database(str(path), backend)
    return {bytes(key): proto.Datum.FromString(bytes(value)) for key, value in Reader(database).read(0, database.entries)}


def pixels(datum: Any) -> np.ndarray:
    if datum.encoded:
        return np.stack(planes(open_image(datum.data), Color.UNCHANGED))
    return np.frombuffer(datum.data, np.uint8).reshape(datum.channels, datum.height, datum.width)


def convert(*arguments: str, out: str = "out") -> dict[bytes, Any]:
    assert main(["convert_imageset", *arguments, out]) == 0
    return records(out)


def refused(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 1
    return capfd.readouterr().err


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("convert")], ids=lambda line: line.rpartition("/")[2])
def test_golden_database(command: str) -> None:
    if "leveldb" in command:
        pytest.importorskip("plyvel")
    *_, out = words = command.split()
    assert main(words) == 0
    ours, theirs = records(out), records(GOLDEN / pathlib.Path(out).name)
    assert list(ours) == list(theirs)
    reencoded = "--encode_type=jpg" in command
    for key, expected in theirs.items():
        if reencoded:  # encoded by the libjpeg of Pillow
            assert ours[key].label == expected.label and ours[key].encoded and not ours[key].HasField("channels")
            assert np.abs(pixels(ours[key]).astype(int) - pixels(expected)).max() <= 1
        elif "--gray" in command:
            assert np.abs(pixels(ours[key]).astype(int) - pixels(expected)).max() <= 1 and ours[key].label == expected.label
        else:
            assert ours[key].SerializeToString() == expected.SerializeToString()


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("compute")], ids=lambda line: line.rpartition("/")[2])
def test_golden_mean(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    tool, database, out = command.replace("files/lmdb", "golden/lmdb").split()
    assert main([tool, database, out]) == 0
    expected = read_blobproto(GOLDEN / pathlib.Path(out).name)
    found = read_blobproto(out)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    said = [line.partition("] ")[2] for line in capfd.readouterr().err.splitlines()]
    log = GOLDEN / f"compute_image_mean_{pathlib.Path(out).stem}.log"
    assert [line.replace("golden/", "files/") for line in said] == [line.partition("] ")[2] for line in log.read_text().splitlines()]


def test_convert_log_is_caffes(capfd: pytest.CaptureFixture[str]) -> None:
    convert("files/images/", "files/images.txt", out="files/lmdb_raw")
    ours = [line[29:] for line in capfd.readouterr().err.splitlines()]
    assert ours == [line[29:] for line in (GOLDEN / "lmdb_raw.log").read_text().splitlines()]


@pytest.mark.parametrize("backend", ["lmdb", "leveldb"])
def test_mean_of_both_backends_and_without_file(backend: str, capfd: pytest.CaptureFixture[str]) -> None:
    if backend == "leveldb":
        pytest.importorskip("plyvel")
    convert(f"--backend={backend}", "files/images/", "files/images.txt")
    assert main(["compute_image_mean", "-backend", backend, "out"]) == 0
    assert "mean_value channel [2]: 129.035" in capfd.readouterr().err


def test_mean_of_floats() -> None:
    images = np.random.default_rng(5).standard_normal((3, 2, 4, 5)).astype(np.float32)
    with LmdbWriter("floats") as out:
        for number, image in enumerate(images):
            out.put(b"%d" % number, proto.Datum(channels=2, height=4, width=5, float_data=image.reshape(-1)).SerializeToString())
    assert main(["compute_image_mean", "floats", "mean.binaryproto"]) == 0
    np.testing.assert_allclose(read_blobproto("mean.binaryproto")[0], images.mean(0), atol=1e-6)


def test_shuffle_seed_and_switches() -> None:
    plain = convert("--noshuffle", "-check_size=false", "files/images/", "files/images.txt")
    one = convert("--shuffle", "--seed=3", "files/images/", "files/images.txt", out="one")
    two = convert("files/images/", "-shuffle=true", "files/images.txt", "--seed", "3", out="two")
    names = [key[9:] for key in plain]
    assert [key[9:] for key in one] == [key[9:] for key in two] != names == sorted(key[9:] for key in one)
    assert [key[:9] for key in one] == [key[:9] for key in plain]
    by_name = {key[9:]: datum for key, datum in plain.items()}
    assert all(datum == by_name[key[9:]] for key, datum in one.items())


def test_unreadable_files_are_listed(capfd: pytest.CaptureFixture[str]) -> None:
    pathlib.Path("files/images/broken.png").write_bytes(pathlib.Path("files/images/im00.png").read_bytes()[:300])
    pathlib.Path("files/images/a text.png").write_text("no image")
    pathlib.Path("list.txt").write_text("im00.png 4\nnone.png 1\n\nbroken.png 2\na text.png 3\r\nim01.png 5  \n")
    found = convert("files/images/", "list.txt")
    assert [(key, datum.label) for key, datum in found.items()] == [(b"00000000_im00.png", 4), (b"00000004_im01.png", 5)]
    said = capfd.readouterr().err
    assert "3 of 5 files cannot be read and are not in out: none.png, broken.png, a text.png" in said
    assert said.count("Could not open or find file") == 3 and "No such file" in said and "truncated" in said and "not an image file" in said


def test_some_unreadable_files_at_the_start(capfd: pytest.CaptureFixture[str]) -> None:
    pathlib.Path("list.txt").write_text("none.png 1\nim00.png 4\n")
    assert len(convert("files/images/", "list.txt", out="short")) == 1
    pathlib.Path("list.txt").write_text("".join(f"none{number}.png 1\n" for number in range(4)) + "im00.png 4\nnone9.png 1\n")
    assert len(convert("files/images/", "list.txt")) == 1
    pathlib.Path("list.txt").write_text("".join(f"none{number}.png 1\n" for number in range(5)) + "im00.png 4\n")
    said = refused(capfd, "convert_imageset", "files/images/", "list.txt", "two")
    assert "none of the first 5 images can be read; the first: files/images/none0.png" in said and "correct the folder, or the names" in said


def test_gray_files_are_encoded_gray() -> None:
    pathlib.Path("list.txt").write_text("gray0.png 0\nim00.png 1\n")
    gray, color = convert("--gray", "--encoded", "files/images/", "list.txt").values()
    assert pixels(gray).shape[0] == pixels(color).shape[0] == 1
    assert gray.data == pathlib.Path("files/images/gray0.png").read_bytes()


@pytest.mark.parametrize(("extension", "magic"), [("png", b"\x89PNG"), (".JPG", b"\xff\xd8"), ("bmp", b"BM"), ("webp", b"RIFF")])
def test_encode_type_of_resized_images(extension: str, magic: bytes) -> None:
    raw = convert("--resize_height=9", "--resize_width=7", "files/images/", "files/images_odd.txt")
    found = convert("--resize_height=9", "--resize_width=7", f"--encode_type={extension}", "files/images/", "files/images_odd.txt", out="encoded")
    for plain, datum in zip(raw.values(), found.values(), strict=True):
        assert datum.encoded and datum.data.startswith(magic) and pixels(datum).shape == (3, 9, 7)
        if extension != ".JPG":
            np.testing.assert_array_equal(pixels(datum), pixels(plain))


def test_upper_case_extension_is_copied() -> None:
    os.rename("files/images/jpg00.jpg", "files/images/jpg00.JPEG")
    pathlib.Path("list.txt").write_text("jpg00.JPEG 0\n")
    (datum,) = convert("--encode_type=jpg", "files/images/", "list.txt").values()
    assert datum.data == pathlib.Path("files/images/jpg00.JPEG").read_bytes()


@pytest.mark.parametrize("writer", [partial(LmdbWriter, first_map=1 << 16), LevelDbWriter], ids=["lmdb", "leveldb"])
def test_writers_grow_and_leave_nothing_half_done(writer: Callable[..., Writer], tmp_path: pathlib.Path) -> None:
    if writer is LevelDbWriter:
        pytest.importorskip("plyvel")
    with writer("big", commit_every=7) as out:
        for number in range(50):
            out.put(b"%08d" % number, proto.Datum(data=bytes(9000), label=number).SerializeToString())
    assert [datum.label for datum in records("big").values()] == list(range(50))
    with pytest.raises(KeyError), writer("half") as out:
        out.put(b"0", b"0")
        raise KeyError
    assert {path.name for path in tmp_path.iterdir()} == {"big", "files", "golden"}


def _small(count: int) -> Callable[[], None]:
    def write() -> None:
        with LmdbWriter("odd") as out:
            for number in range(count):
                out.put(b"%d" % number, proto.Datum(channels=1, height=2, width=2 + number, data=bytes(4 + 2 * number)).SerializeToString())

    return write


def _write(name: str, text: str) -> Callable[[], None]:
    return lambda: pathlib.Path(name).write_text(text) and None


IMAGES = ["files/images/", "files/images.txt", "out"]


@pytest.mark.parametrize(
    ("prepare", "arguments", "told"),
    [
        (None, ["convert_imageset", "--check_size", "files/images/", "files/images_odd.txt", "out"], ["odd.txt:2", "3 x 40 x 21", "3 x 17 x 33", "--resize_h"]),
        (None, ["convert_imageset", "--resize_width=3", *IMAGES], ["--resize_width is 3, and --resize_height is 0, the default", "give --resize_height too"]),
        (None, ["convert_imageset", "--backend=sqlite", *IMAGES], ["sqlite", "lmdb"]),
        (None, ["convert_imageset", "--encode_type=xyz", *IMAGES], ["'xyz' is not an image format", "png"]),
        (None, ["convert_imageset", "--check_size=maybe", *IMAGES], ["'maybe' is neither true nor false"]),
        (None, ["convert_imageset", "--grey", *IMAGES], ["--grey", "--help"]),
        (None, ["convert_imageset", "files/images", "files/images.txt", "out"], ["none of the first 5", "files/imagesim00.png: it", "with a slash"]),
        (None, ["convert_imageset", "files/images/", "none.txt", "out"], ["none.txt", "No such file", "FILE LABEL"]),
        (None, ["convert_imageset", "files/images/", "files/images.txt", "golden"], ["golden exists already", "remove it"]),
        (None, ["convert_imageset", "files/images/", "files/images.txt", "files/images.txt/db"], ["cannot be written"]),
        (_write("l", "im00.png 1\nim01.png x\n"), ["convert_imageset", "files/images/", "l", "out"], ["l:2", "'x' is not a whole number"]),
        (_write("l", "im00.png\n"), ["convert_imageset", "files/images/", "l", "out"], ["l:1", "'im00.png' has no space and label"]),
        (_write("l", "im00.png 4294967296\n"), ["convert_imageset", "files/images/", "l", "out"], ["l:1", "4294967296 does not fit"]),
        (_write("l", "\n"), ["convert_imageset", "files/images/", "l", "out"], ["l", "names no image"]),
        (None, ["compute_image_mean", "none", "mean"], ["ocaffe compute_image_mean", "none does not exist"]),
        (None, ["compute_image_mean", "golden/lmdb_raw", "--backend=leveldb"], ["no LEVELDB database", "--backend=lmdb"]),
        (_small(2), ["compute_image_mean", "odd"], ["record 1 (key '1')", "1 x 2 x 3", "1 x 2 x 2", "--resize_height"]),
    ],
)  # fmt: skip
def test_refused(prepare: Callable[[], None] | None, arguments: list[str], told: list[str], capfd: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    if prepare is not None:
        prepare()
    before = {path.name for path in tmp_path.iterdir()}
    said = refused(capfd, *arguments)
    assert said.count("error: ") == 1 and all(text in said for text in told), said
    assert {path.name for path in tmp_path.iterdir()} == before


def test_writer_without_plyvel(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "plyvel", None)
    with pytest.raises(Error, match="plyvel") as caught:
        LevelDbWriter("db")
    assert "pip install plyvel" in str(caught.value) and not any(path.name.startswith("db") for path in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("limits", "size", "expected"),
    [((60, 0), (20, 30), (60, 90)), ((60, 80), (20, 30), (53, 80)), ((10, 25), (20, 30), (17, 25)), ((10, 0), (20, 30), (20, 30))],
)
def test_shortest_and_longest_side(limits: tuple[int, int], size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert Recipe(shortest=limits[0], longest=limits[1]).resized(*size) == expected


def test_odd_kinds_of_files() -> None:
    """Images with a palette, alpha or 16 bits become three bytes per pixel, as in cv::imread."""
    color = Image.open("files/images/im00.png").convert("RGB")
    color.quantize(16).save("p.png")
    color.convert("RGBA").save("a.png")
    Image.fromarray(np.full((24, 28), 0x1234, np.uint16)).save("s.png")
    pathlib.Path("list.txt").write_text("p.png 0\na.png 1\ns.png 2\n")
    palette, alpha, deep = convert("./", "list.txt").values()
    np.testing.assert_array_equal(pixels(alpha), np.asarray(color)[..., ::-1].transpose(2, 0, 1))
    np.testing.assert_array_equal(pixels(palette), np.asarray(Image.open("p.png").convert("RGB"))[..., ::-1].transpose(2, 0, 1))
    assert (pixels(deep) == 0x12).all()


def test_a_mean_does_not_replace_a_file_of_its_database(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compute_image_mean", "golden/lmdb_raw", "golden/lmdb_raw/data.mdb"]) == 1
    assert "golden/lmdb_raw/data.mdb is an input and an output" in capsys.readouterr().err
