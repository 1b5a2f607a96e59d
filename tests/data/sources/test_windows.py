"""The source of WindowData: sampling and cropping of windows, errors. (test_golden.py compares its pixels with Caffe.)"""
from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.data.changes.transform import Transform
from ocaffe.data.sources.windows import WindowSource
from ocaffe.formats.blob import write_blobproto
from tests.data.pictures import batch_of, failure, same_batches, save
from tests.data.small_databases import image

pytestmark = pytest.mark.quick

SIZE = (3, 30, 40)
BACKGROUND = [(0, 0.1, 1, 2, 20, 12), (3, 0.2, 5, 0, 39, 29), (1, 0.0, 0, 0, 3, 3)]
OBJECTS = [(1, 0.9, 4, 5, 30, 25), (2, 0.6, 10, 8, 15, 29), (7, 1.0, 0, 0, 39, 29)]
NEITHER = [(4, 0.45, 1, 1, 9, 9)]


def window_file(folder: pathlib.Path, **replace: Any) -> str:
    text = ""
    for number, windows in ((0, BACKGROUND), (3, [*OBJECTS[:2], *NEITHER]), (8, OBJECTS[2:])):
        path = save(folder / f"w{number}.png", image(number, SIZE))
        text += f"# {number}\n{path}\n3\n30\n40\n{len(windows)}\n" + "".join(" ".join(map(str, window)) + "\n" for window in windows)
    for old, new in replace.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "windows.txt").write_text(text)
    return str(folder / "windows.txt")


@pytest.fixture
def file(tmp_path: pathlib.Path) -> str:
    return window_file(tmp_path)


def source(path: str, batch: int, *, workers: int = 1, transform: Any = (), **data: Any) -> WindowSource:
    param = proto.WindowDataParameter(**{"source": path, "batch_size": batch, "fg_threshold": 0.5, "bg_threshold": 0.4, **data})
    made = WindowSource(param, Transform(proto.TransformationParameter(**{"crop_size": 8, **dict(transform)}), True), True, workers=workers)
    made.key = (1, 2)
    return made


def sample(made: WindowSource, buffer: np.ndarray, n: int) -> np.ndarray:
    """Return sample n without mean and scale."""
    height, width, y, x = made.layout.table(buffer)[n, :4]
    result = np.zeros(made.shapes()[0][1:], np.uint8)
    result[:, y : y + height, x : x + width] = made.layout.pixels(buffer)[n][: 3 * height * width].reshape(3, height, width)
    return result


def test_objects_come_last_and_all_windows_are_drawn_alike(file: str) -> None:
    made = source(file, 20, fg_fraction=0.3)
    labels = np.stack([made.layout.labels(batch_of(made, index)).copy() for index in range(40)])
    assert (labels[:, :14] == 0).all()
    shares = np.array([(labels[:, 14:] == label).mean() for label in (1, 2, 7)])  # of 240 samples
    assert np.abs(shares - 1 / 3).max() < 0.1 and shares.sum() == 1
    buffer = batch_of(made, 0)
    drawn = {sample(made, buffer, n).tobytes() for n in range(14)}
    assert len(drawn) == len(BACKGROUND)


@pytest.mark.parametrize("settings", [{}, {"crop_mode": "square", "context_pad": 2, "cache_images": True}])
def test_batches_depend_on_their_number(file: str, settings: Any) -> None:
    same_batches(lambda workers: source(file, 5, workers=workers, fg_fraction=0.5, transform={"mirror": True}, **settings))


def test_a_mirrored_window_is_the_mirror_image(file: str) -> None:
    """The context is mirrored too. Window 0 is near the left edge, and with context_pad 3 exceeds it."""
    settings = {"fg_fraction": 0.0, "context_pad": 3}
    plain, mirrored = source(file, 30, **settings), source(file, 30, transform={"mirror": True}, **settings)
    buffers = batch_of(plain, 0), batch_of(mirrored, 0)
    same = [np.array_equal(sample(plain, buffers[0], n), sample(mirrored, buffers[1], n)) for n in range(30)]
    turned = [np.array_equal(sample(plain, buffers[0], n), sample(mirrored, buffers[1], n)[:, :, ::-1]) for n in range(30)]
    assert all(a != b for a, b in zip(same, turned)) and 5 < sum(turned) < 25


def test_context_pixels_surround_the_window(file: str) -> None:
    made = source(file, 1, transform={"crop_size": 12}, context_pad=3)
    cut = made.cut((14, 11, 25, 22), (30, 40), False)  # 12 x 12 pixels, of which 6 x 6 are for the window, so it grows by 6 on every side
    assert cut.box == (5, 8, 30, 33) and cut.size == (12, 12)
    assert cut.at == (0, 0)
    at_the_edge = made.cut((0, 11, 11, 22), (30, 40), False)
    assert at_the_edge.at == (0, 3) and at_the_edge.box[1] == 0 and at_the_edge.size[1] <= 9
    assert made.cut((0, 11, 11, 22), (30, 40), True).at == (0, 0)  # mirroring moves the padding to the other side
    square = source(file, 1, crop_mode="square").cut((10, 10, 29, 13), (30, 40), False)
    assert square.box[2] - square.box[0] >= 20


def test_errors(tmp_path: pathlib.Path) -> None:
    path = window_file(tmp_path)
    assert "crop_size is not set" in failure(lambda: source(path, 4, transform={"crop_size": 0})).fact
    assert "crop_mode is 'round'" in failure(lambda: source(path, 4, crop_mode="round")).fact
    assert "context_pad 4 on both sides leaves nothing of crop_size 8" in failure(lambda: source(path, 4, context_pad=4)).fact
    assert "has no object window, and a batch takes 1" in failure(lambda: source(path, 4, fg_threshold=1.5)).fact
    assert "has no background window, and a batch takes 3" in failure(lambda: source(path, 4, bg_threshold=-1)).fact
    assert "cannot be read: No such file" in failure(lambda: source(str(tmp_path / "none"), 4)).fact
    assert "2 mean_value given for images of 3 channels" in failure(lambda: source(path, 4, transform={"mean_value": [1, 2]})).fact
    mean = str(tmp_path / "mean.binaryproto")
    write_blobproto(mean, np.zeros((3, 7, 7), np.float32))
    assert "is 3 x 7 x 7, windows 3 x 8 x 8" in failure(lambda: source(path, 4, transform={"mean_file": mean})).fact
    listed = "label overlap x1 y1 x2 y2"
    for old, new, fact, fix in (
        ("# 3", "3", "'3' where '#' and the number of an image were expected", listed),
        ("# 3", "# three", "'three' where the number of an image was expected", listed),
        ("2 0.6", "-1 0.6", "image 3 has a window of overlap 0.6 with label -1", "below 0.5 (fg_threshold)"),
        ("7 1.0 0 0 39 29", "7 1.0 0", "line 25: '7 1.0 0' has 3 words, and a window has 6", listed),
        ("\n3\n30", "\n1\n30", "line 3: image 0 is listed with 1 channel, and all images are read with 3", "write 3 in this line"),
        ("0 0 39 29", f"0 0 39 {(1 << 64) - 1}", "'18446744073709551615' where the corners of a window of image", listed),
    ):
        error = failure(lambda old=old, new=new: source(window_file(tmp_path, **{old: new}), 4))  # type: ignore[misc]
        assert fact in error.fact and fix in str(error.fix)
    (tmp_path / "empty").write_text("\n")
    assert "it is empty" in failure(lambda: source(str(tmp_path / "empty"), 4)).fact
    outside = window_file(tmp_path, **{"0 0 39 29": "0 0 40 29"})
    assert "is 40 x 30, a window of it 0 0 40 29" in failure(lambda: [batch_of(source(outside, 4), n) for n in range(20)]).fact
    path = window_file(tmp_path)
    (tmp_path / "w0.png").unlink()
    assert f"image 0: {tmp_path}/w0.png: it cannot be read" in failure(lambda: batch_of(source(path, 4), 0)).fact


@pytest.mark.parametrize(
    ("old", "new", "fact", "fix"),
    [
        ("1 0.1 0 0 9 9", "1 0.1 0 0 9", "line 7: '1 0.1 0 0 9' has 5 words", "label overlap x1 y1 x2 y2"),
        ("1 0.1 0 0 9 9", "1 0.1 0 0 9 9 9", "line 7: '1 0.1 0 0 9 9 9' has 7 words", "label overlap x1 y1 x2 y2"),
        ("\n2\n", "\n3\n", "line 6: the number of windows is 3, and 2 follow", "write 2 in this line"),
        ("\n2\n", "\n1\n", "line 6: the number of windows is 1, and 2 follow", "write 2 in this line"),
        ("\n8\n6\n", "\n8\n", "line 6: '1 0.1 0 0 9 9' where the number of windows was expected", "the file, channels, height, width, the number of windows"),
        ("# 1\n", "", "line 9: 'b.png' where '#' and the number of an image were expected", "per image"),
    ],
)
def test_the_line_that_shifts_others_is_named(old: str, new: str, fact: str, fix: str, tmp_path: pathlib.Path) -> None:
    """Words may be divided into lines as one likes, so the error shows at a later word."""
    text = "# 0\na.png\n3\n8\n6\n2\n1 0.1 0 0 9 9\n2 0.9 1 1 5 5\n# 1\nb.png\n3\n8\n7\n1\n1 0.9 0 0 2 2\n"
    assert text.count(old) >= 1
    path = tmp_path / "windows.txt"
    path.write_text(text.replace(old, new, 1))
    error = failure(lambda: source(str(path), 4))
    assert fact in error.fact and fix in str(error.fix)


def test_words_divided_otherwise(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "windows.txt"
    path.write_text("# 0 a.png 3 8 6 1\n1 0.1 0 0 9 x\n")
    assert "line 2: 'x' where the corners of a window of image 0 was expected" in failure(lambda: source(str(path), 4)).fact
