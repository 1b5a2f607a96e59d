"""`ocaffe time` with nets whose shapes change from batch to batch."""
from __future__ import annotations

import pathlib

import pytest

from ocaffe.cl.device import Device
from ocaffe.cli import main
from tests.data.small_databases import write
from tests.data.sources.test_annotated import datum

BOXES = """
layer {
  name: "data" type: "AnnotatedData" top: "data" top: "label"
  data_param { source: "boxes" batch_size: 1 backend: LMDB }
  annotated_data_param { anno_type: BBOX }
}
layer { name: "sum" type: "Reduction" bottom: "label" top: "sum" loss_weight: 1 }
"""
KEPT = """
layer { name: "data" type: "DummyData" top: "data" dummy_data_param { shape { dim: 8 dim: 3 } data_filler { type: "gaussian" } } }
layer { name: "chosen" type: "DummyData" top: "chosen" dummy_data_param { shape { dim: 8 dim: 1 } data_filler { type: "uniform" min: 0 max: 1.9 } } }
layer { name: "whole" type: "Power" bottom: "chosen" top: "whole" }
layer { name: "filter" type: "Filter" bottom: "data" bottom: "whole" top: "kept" }
layer { name: "sum" type: "Reduction" bottom: "kept" top: "sum" loss_weight: 1 }
"""


@pytest.mark.parametrize("text", [BOXES, KEPT], ids=["rows of boxes", "measured shapes"])
def test_shapes_that_change(device: Device, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], text: str) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "boxes", [datum(number, [(1, 0.1, 0.1, 0.4, 0.5)] * (1 + 7 * number)) for number in range(4)])
    (tmp_path / "net.prototxt").write_text(text)
    assert main(["time", "--model", "net.prototxt", "--iterations", "4", f"--device={device.number}"]) == 0
    assert "Average Forward-Backward" in capfd.readouterr().err
