"""Detectors with the operators of YOLO and NanoDet exports become Caffe nets that compute the same."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript", reason="PyTorch's exporter needs it")
pytest.importorskip("torch", reason="PyTorch makes the models")

from ocaffe.cli import main  # noqa: E402
from ocaffe.convert.import_model import import_net  # noqa: E402
from ocaffe.convert.importer.read import read_model  # noqa: E402
from tests.convert import heads  # noqa: E402

pytestmark = pytest.mark.unoptimised
OTHERS = [  # opset, decoded, dynamo, open batch
    (11, True, False, False), (16, True, False, True), (18, False, False, False), (18, True, True, True), (20, False, True, False),
]  # fmt: skip


@pytest.mark.parametrize("name", heads.MODELS)
def test_models(name: str, device: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The comparison runs the net at a second batch too. The note of a net that does not take it is missing."""
    onnx.save(heads.MODELS[name](), tmp_path / "m.onnx")
    assert main(["convert", *(str(tmp_path / f"m.{kind}") for kind in ("onnx", "prototxt", "caffemodel")), "--device", device.number]) == 0
    said = capsys.readouterr().out
    assert "equal to ocaffe's outputs in onnxruntime" in said and "takes only the batch" not in said


@pytest.mark.parametrize("opset, decoded, dynamo, open_batch", OTHERS)
@pytest.mark.parametrize("name", heads.MODELS)
def test_other_exports(name: str, opset: int, decoded: bool, dynamo: bool, open_batch: bool, tmp_path: Path) -> None:
    """Each form of an export becomes a net that takes any batch."""
    onnx.save(heads.model(name, opset, decoded, dynamo, open_batch), tmp_path / "m.onnx")
    assert not import_net(read_model(tmp_path / "m.onnx"), "m.onnx").fixed
