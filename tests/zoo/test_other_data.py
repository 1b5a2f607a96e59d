"""Nets of the zoo with other data than classes: their published files train on label images, and on samples of faces."""
from __future__ import annotations

import contextlib
import io
import pathlib
import re
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocaffe import proto
from ocaffe.cli import main
from ocaffe.data.databases.writer import LmdbWriter


def losses(net: str, device: Any) -> list[float]:
    """Write the published files of `net`, train for two iterations with a test before and after, and return the losses of the tests."""
    assert main(["new", net]) == 0
    path = pathlib.Path(net, "solver.prototxt")
    text = re.sub(r"^(test_iter|test_interval|max_iter|test_initialization|display|snapshot|average_loss): .*", "", path.read_text(), flags=re.MULTILINE)
    path.write_text(text + "test_iter: 1 test_interval: 2 max_iter: 2 random_seed: 1 snapshot_after_train: false\n")
    log = io.StringIO()
    with contextlib.redirect_stderr(log):
        assert main(["train", "--solver", str(path), "--device", device.number]) == 0, log.getvalue()
    return [float(found) for found in re.findall(r"Test net output #\d: (?:cls_)?loss = (\S+)", log.getvalue())]


def test_label_images(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, device: Any) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "examples/camvid"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for n in range(4):
        labels = np.repeat(rng.integers(0, 12, (1, 32), np.uint8), 24, axis=0)  # 11 is ignored
        Image.fromarray(labels).save(folder / f"{n}_labels.png")
        Image.fromarray(np.stack([labels * 20] * 3, axis=2)).save(folder / f"{n}.png")
    for part in ("train", "val"):
        (folder / f"{part}.txt").write_text("".join(f"{n}.png {n}_labels.png\n" for n in range(4)))
    before, after = losses("segnet_basic", device)
    assert np.isfinite([before, after]).all() and after != before


@pytest.mark.parametrize(("net", "side"), [("mtcnn_pnet", 12), ("mtcnn_onet", 48)])
def test_faces(net: str, side: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, device: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples/mtcnn").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part in ("train", "val"):
        with LmdbWriter(f"examples/mtcnn/mtcnn{side}_{part}_lmdb") as out:
            for n, label in enumerate((1, 0, -1, 1)):
                record = proto.MTCNNDatum(pts=rng.random(10))
                record.datum.channels, record.datum.height, record.datum.width, record.datum.label = 3, side, side, label
                record.datum.data = rng.integers(0, 256, 3 * side * side, np.uint8).tobytes()
                record.rois.xmin, record.rois.ymin, record.rois.xmax, record.rois.ymax = rng.random(4)
                out.put(f"{n:08}".encode(), record.SerializeToString())
    before, after = losses(net, device)
    assert np.isfinite([before, after]).all() and after != before
