"""Every deterministic forward case of tests/golden, exported and run in onnxruntime: equal to Caffe's results. Layers that cannot be exported are listed."""
from __future__ import annotations

import functools
import json
import pathlib
from typing import Any

import onnx
import pytest

from ocaffe import proto
from ocaffe.convert.deploy import DATA, MEASURES
from ocaffe.convert.export import Exported, Options, export
from ocaffe.convert.verify import HALF_TOLERANCE, OnnxSession
from ocaffe.errors import Error
from ocaffe.formats.text import read_net
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.formats.weights import LayerWeights, Weights
from ocaffe.layers.base import registry
from tests.test_golden import GOLDEN, TOLERANCE, TRAINING, Case, message_of

FOLDERS = ("layers", "forks", "nets")
WITHOUT_MEANING = {"HDF5Output", "MarginInnerProduct", "Python", "Silence"}  # besides losses and Accuracy, which an export drops
NOTHING = {"layers/Input-two"}  # no layer reads the inputs
REFUSED = {"forks/DetectionOutput.ssd-eta"}  # a decreasing threshold
ONLY_LOSSES = {"forks/Net-SSD-TRAIN-logistic-corner", "forks/Net-SSD-TRAIN-noshare"}  # these cases record only losses
OPSETS = (13, 18, 21, onnx.defs.onnx_opset_version())  # besides 17, the opsets in which operators changed


@functools.cache
def cases() -> list[str]:
    names = (str(path.relative_to(GOLDEN).with_suffix("")) for folder in FOLDERS for path in (GOLDEN / folder).glob("*.npz"))
    return sorted(name for name in names if name not in TRAINING)


@functools.cache
def types_of(name: str) -> set[str]:
    about = GOLDEN / f"{name}.json"
    prototxt = json.loads(about.read_text())["prototxt"] if about.exists() else f"{pathlib.Path(name).name}.prototxt"
    return {layer.type for layer in upgrade_net(read_net(str(about.with_name(prototxt)))).layer}


def is_measured(kind: str) -> bool:
    """Whether an export drops layers of this type or replaces them by inputs."""
    return kind in MEASURES | DATA or (kind in registry() and registry()[kind].is_loss)


@functools.cache
def meant() -> list[str]:
    """Return the cases that can be exported: single layers that are not dropped, and all nets."""
    unmeant = {kind for kind in registry() if is_measured(kind)} | WITHOUT_MEANING
    without = REFUSED | NOTHING | ONLY_LOSSES
    return [name for name in cases() if name not in without and (name.startswith("nets/") or "/Net-" in name or not types_of(name) & unmeant)]


def exported(case: Case, **options: Any) -> Exported:
    message = message_of(case)
    phase = getattr(proto, case.about["phase"]) if case.about else message.state.phase
    stored: dict[str, list[Any]] = {}
    for (layer, _), array in case.get("param", 1):
        stored.setdefault(layer, []).append(array)
    weights = Weights("", [LayerWeights(layer, blobs=blobs) for layer, blobs in stored.items()], str(case.path))
    return export(message, weights, Options(phase=phase, level=case.about.get("level", 0), stages=tuple(case.about.get("stages", ())), fillers=True, **options))


def check(name: str, tolerance: float = TOLERANCE, **options: Any) -> None:
    """Export a case, run it, and compare all values that Caffe recorded and the model has."""
    case = Case(GOLDEN / f"{name}.npz", tolerance)
    result = exported(case, **options)
    onnx.checker.check_model(result.model, full_check=True)
    feeds = {blob: array for (blob,), array in case.get("in", 1)}
    values = dict(zip(result.deployed.outputs, (info.name for info in result.model.graph.output)))
    values = {blob: values.get(blob, value) for blob, value in result.values.items()} | values
    recorded = [blob for (blob,), _ in case.get("out", 1) if blob in values]
    assert recorded
    for blob, array in zip(recorded, OnnxSession(result.model, [values[blob] for blob in recorded]).run(feeds)):
        case.compare("out", 1, [blob], array)


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(GOLDEN)
    monkeypatch.syspath_prepend(str(GOLDEN / "layers"))
    return GOLDEN


@pytest.mark.parametrize("name", meant())
def test_case(name: str) -> None:
    check(name)


def one_of_each() -> list[str]:
    """Return the last case of every layer type."""
    return sorted({name.split("-")[0]: name for name in meant() if not name.startswith("nets/")}.values())


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("name", one_of_each())
def test_other_opsets(name: str, opset: int) -> None:
    check(name, opset=opset)


def refused() -> list[str]:
    """Return the cases in which a layer that cannot be exported computes an output."""
    return sorted({name for name in cases() if types_of(name) & (WITHOUT_MEANING - {"Silence"}) and not any(map(is_measured, types_of(name)))} | REFUSED)


@pytest.mark.parametrize("name", refused())
def test_what_has_no_meaning_is_refused(name: str) -> None:
    with pytest.raises(Error) as problem:
        exported(Case(GOLDEN / f"{name}.npz"))
    facts = ["computes nothing", *(["cannot be exported to ONNX", "has no ONNX operators"] if problem.value.layer else [])]
    assert any(fact in problem.value.fact for fact in facts)
    assert "--cut-at" in str(problem.value.fix)


@pytest.mark.parametrize("name", one_of_each())
def test_sixteen_bits(name: str) -> None:
    check(name, HALF_TOLERANCE, fp16=True)


@pytest.mark.parametrize("name", [name for name in meant() if name.startswith("nets/") or "/Net-" in name])
def test_folded_nets(name: str) -> None:
    check(name, fold=True)
