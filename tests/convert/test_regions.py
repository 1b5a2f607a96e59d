"""ROIPooling as a table of maxima: bit for bit the numbers of Caffe and of ocaffe."""
from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from ocaffe.convert.consumers import run_in
from ocaffe.convert.export import Exported, Options, export
from ocaffe.convert.model import save
from ocaffe.convert.verify import OnnxSession, opened, run_net
from tests.convert.test_golden import GOLDEN, OPSETS, cases, exported
from tests.test_golden import Case

pytestmark = pytest.mark.unoptimised

NET = """
layer {{ name: "data" type: "Input" top: "data" top: "rois" input_param {{ shape {{ dim: {} dim: 3 dim: {} dim: {} }} shape {{ dim: 60 dim: 5 }} }} }}
layer {{ name: "pool" type: "ROIPooling" bottom: "data" bottom: "rois" top: "pool" roi_pooling_param {{ pooled_h: {} pooled_w: {} spatial_scale: {} }} }}
"""
MAPS = {  # N, H, W, bins, scale
    "one pixel": (1, 1, 1, 2, 3, 1), "one row": (2, 1, 9, 3, 2, 0.5), "more bins than pixels": (1, 4, 3, 7, 7, 0.0625), "one bin": (3, 17, 6, 1, 1, 0.0625),
    "a plane": (3, 19, 33, 7, 6, 0.0625), "scale 1": (2, 16, 15, 6, 6, 1), "scale 1/7": (1, 12, 13, 14, 13, 0.14285714),
}  # fmt: skip


def model(folder: pathlib.Path, name: str, **options: Any) -> Exported:
    net = folder / "net.prototxt"
    net.write_text(NET.format(*MAPS[name]))
    return export(str(net), None, Options(**options))


def feeds(name: str) -> dict[str, np.ndarray]:
    """Return a plane and regions in it, beyond its borders, with swapped corners, with corners between two pixels, and very large ones."""
    images, height, width, _, _, scale = MAPS[name]
    rng = np.random.default_rng(len(name))
    ends = rng.uniform(-0.3, 1.3, (60, 4)) * [width, height, width, height]
    ends[::3] = np.round(2 * ends[::3]) / 2
    ends[40:] = np.sort(ends[40:].reshape(20, 2, 2), 1).reshape(20, 4)
    ends[:2] = [[-1000, -500, 3000, 7000], [-1e9, -1e9, 1e9, 1e9]]
    rois = np.concatenate([rng.integers(0, images, (60, 1)), ends / scale], 1)
    return {"data": rng.standard_normal((images, 3, height, width), np.float32), "rois": rois.astype(np.float32)}


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("name", MAPS)
def test_equal_to_ocaffe(name: str, opset: int, device: Any, tmp_path: pathlib.Path) -> None:
    made, given = model(tmp_path, name, opset=opset), feeds(name)
    with opened(made, device, ["pool"]) as net:
        expected = run_net(net, made, given, ["pool"])["pool"]
    assert (expected == 0).any()  # empty bins
    (actual,) = OnnxSession(made.model, ["pool"]).run(given)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("runtime, module", [("reference", "onnx"), ("openvino", "openvino")])
@pytest.mark.parametrize("name", ["a plane", "scale 1/7"])
def test_other_runtimes(name: str, runtime: str, module: str, tmp_path: pathlib.Path) -> None:
    pytest.importorskip(module)
    made, given = model(tmp_path, name), feeds(name)
    save(made.model, tmp_path / "net.onnx")
    ((actual,),) = run_in(runtime, tmp_path / "net.onnx", given, ["pool"], runs=1)[1]
    np.testing.assert_array_equal(actual, OnnxSession(made.model, ["pool"]).run(given)[0])


def test_another_batch(device: Any, tmp_path: pathlib.Path) -> None:
    made, given = model(tmp_path, "a plane", dynamic_batch=True), feeds("a plane")
    images = np.arange(60, dtype=np.float32)[:, None] % 6
    given = {"data": np.concatenate([given["data"], -given["data"]]), "rois": np.concatenate([images, given["rois"][:, 1:]], 1)}
    with opened(made, device, ["pool"]) as net:
        expected = run_net(net, made, given, ["pool"])["pool"]
    np.testing.assert_array_equal(OnnxSession(made.model, ["pool"]).run(given)[0], expected)


@pytest.mark.parametrize("name", [name for name in cases() if name.startswith("forks/ROIPooling.")])
def test_equal_to_caffe(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
    case = Case(GOLDEN / f"{name}.npz")
    made = exported(case)
    (((blob,), expected),) = case.get("out", 1)
    (actual,) = OnnxSession(made.model, [made.values[blob]]).run({blob: array for (blob,), array in case.get("in", 1)})
    np.testing.assert_array_equal(actual, expected)
