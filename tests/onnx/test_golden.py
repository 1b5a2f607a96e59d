"""Every deterministic forward case of tests/golden, exported and run in onnxruntime: what Caffe recorded. Layers without a meaning in ONNX are listed."""
from __future__ import annotations

from typing import Any

import pytest

from ocaffe import proto
from ocaffe.layers.base import registry
from ocaffe.model.weights import LayerWeights, Weights
from ocaffe.onnx.deploy import DATA, MEASURES
from ocaffe.onnx.export import Options, export
from ocaffe.onnx.verify import difference, run_onnx
from tests.test_golden import GOLDEN, ILL_CONDITIONED, TOLERANCE, TRAINING, Case, message_of

FOLDERS = ("layers", "forks", "nets")
REFUSED = {  # types that ONNX has no meaning for
    "Python": "a class of the user's",
    "HDF5Output": "it writes a file",
}


def cases() -> list[str]:
    names = (str(path.relative_to(GOLDEN).with_suffix("")) for folder in FOLDERS for path in (GOLDEN / folder).glob("*.npz"))
    return sorted(name for name in names if name not in TRAINING)


@pytest.mark.parametrize("name", cases())
def test_case(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
    monkeypatch.syspath_prepend(str(GOLDEN / "layers"))
    case = Case(GOLDEN / f"{name}.npz")
    message = message_of(case)
    phase = getattr(proto, case.about["phase"]) if case.about else message.state.phase
    types = {layer.type for layer in message.layer}
    if types & (MEASURES | DATA) or any(registry()[kind].is_loss for kind in types if kind in registry()):
        pytest.skip("losses go, and data layers become inputs")
    stored: dict[str, list[Any]] = {}
    for (layer, _), array in case.get("param", 1):
        stored.setdefault(layer, []).append(array)
    weights = Weights("", [LayerWeights(layer, blobs=blobs) for layer, blobs in stored.items()], str(case.path))
    options = Options(phase=phase, fillers=True, level=case.about.get("level", 0), stages=tuple(case.about.get("stages", ())))
    exported = export(message, weights, options)
    feeds = {blob: array for (blob,), array in case.get("in", 1)}
    compared = 0
    _, values = run_onnx(exported.model, feeds)
    for (blob,), expected in case.get("out", 1):
        if blob in exported.deployed.outputs:
            error = difference(values[exported.deployed.outputs.index(blob)], expected)
            assert error <= ILL_CONDITIONED.get((case.path.stem, f"out/{blob}"), TOLERANCE), f"{blob}: {error:.3g} of the largest magnitude"
            compared += 1
    assert compared
