"""Every layer type has a golden case or a case with a numpy reference, and the latter pass; a layer type without an ONNX rule is refused by name."""
from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.convert.export import Options, export
from ocaffe.convert.verify import OnnxSession
from ocaffe.errors import Error
from ocaffe.formats.text import parse, read_net
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.formats.weights import LayerWeights, Weights
from ocaffe.layers.base import Layer, registry
from ocaffe.selftest import boxes, flow, layers, quantization
from ocaffe.selftest.case import Case, layer, normal
from tests.layers.gradient_cases import CASES
from tests.layers.single import close
from tests.test_golden import GOLDEN
from tests.test_golden import Case as GoldenCase
from tests.test_golden import cases as golden_cases

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOT_IN_ONNX = (  # prefixes of names of cases: data layers, losses, values that depend on a training, accuracies
    "AdaCosAddmScale", "AssistedExcitation TRAIN", "BoxOutput", "ChannelScale global TRAIN", "CombinedMargin", "CosinAddm", "CTCGreedyDecoder accuracy",
    "CTCGreedyDecoder with indicators", "CtcLoss", "CustomData", "DataAugmentation mean TRAIN", "DecodeBBox TRAIN", "DeformableConvolution",
    "DenseImageData", "DetectionEvaluate", "DetectionLoss", "DiceCoefLoss", "DisparityData", "EuclideanLoss", "EvalDetection", "FloatWriter", "FLOWriter",
    "FrcnnAnchorTarget", "FrcnnProposalTarget", "FrcnnRoiData", "GenerateAugmentationParameters replaced TRAIN", "GlobalLSEMargin TRAIN",
    "GuidedDropout stochastic TRAIN", "ImageLabelmapData", "ImageSegData", "ImgWriter", "K1_EuclideanLoss", "K2_EuclideanLoss", "L1Loss",
    "LabelSpecificAdd TRAIN", "LargeMarginInnerProduct", "LiftedStructSimilaritySoftmaxLoss", "LpqLoss", "Lstm on flat", "Lstm with flat", "MMDLoss",
    "MTCNNData", "MTCNNEuclideanLoss", "PFMWriter", "RegionLoss", "ROIAlignment steps", "RoIData", "RReLU TRAIN", "SegAccuracy", "SegData",
    "SmoothL1Loss with", "SmoothL1LossOHEM", "SoftmaxWithLoss", "SpatialDropout", "TagEvaluate", "TripletLoss", "VideoData", "WarpCTCLoss", "Yolov3 ",
)  # fmt: skip


def nets() -> Iterator[Any]:
    """The messages of all golden cases and of all cases with a numpy reference."""
    for name in golden_cases():
        yield upgrade_net(read_net(str(GoldenCase(GOLDEN / f"{name}.npz").prototxt)))
    for case in [*layers.cases(), *boxes.cases(), *flow.cases(), *quantization.cases(), *CASES]:
        yield parse(case.net, proto.NetParameter, case.name)


def test_every_layer_type_has_a_case() -> None:
    covered = set()
    for net in nets():
        for param in net.layer:
            if param.type in registry():
                covered |= {param.type, registry()[param.type].implementation(param).type}  # a Python layer may name a layer type of ours
    missing = sorted(set(registry()) - covered)
    assert not missing, f"add a golden case, or a case to tests/layers/gradient_cases.py, for {', '.join(missing)}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(device: Any, case: Case) -> None:
    case.check(device)


@pytest.mark.parametrize("case", [case for case in CASES if not case.name.startswith(NOT_IN_ONNX)], ids=lambda case: case.name)
def test_onnx(case: Case, tmp_path: pathlib.Path) -> None:
    """The exported layer gives the values of the reference in onnxruntime."""
    case.prepare(str(tmp_path))
    arrays = case.arrays()
    blobs: dict[str, list[np.ndarray | None]] = {}
    for name in sorted((name for name in arrays if "/" in name), key=lambda name: int(name.rpartition("/")[2])):
        blobs.setdefault(name.partition("/")[0], []).append(arrays.pop(name))
    weights = Weights("", [LayerWeights(name, blobs=parameters) for name, parameters in blobs.items()])
    model = export(case.message(arrays, str(tmp_path)), weights, Options(phase=getattr(proto, case.phase))).model
    expected = case.values({name: array.astype(float) for name, array in case.arrays().items()}, {})
    for name, value in zip(expected, OnnxSession(model, list(expected)).run(arrays)):
        close(value, expected[name])


def test_wrong_values_are_named(device: Any) -> None:
    """A case fails with the names of the outputs and gradients that differ."""
    wrong = Case("wrong", layer("TanH", "x0", "y"), normal(x0=(2, 3)), lambda x, got: {"y": 2 * x["x0"]}, ("x0",))
    with pytest.raises(AssertionError, match=r"wrong: .*\ny: off by .*\ngradient of x0: off by"):
        wrong.check(device)


def test_the_script_on_the_page_runs() -> None:
    """The complete script of docs/layers.md. It registers a layer type, which must not stay."""
    script = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "layers.md").read_text(), re.S)
    assert script is not None
    try:
        exec(script[1], {"__name__": "layers_page"})
    finally:
        registry().pop("Sine", None)


def test_a_layer_without_a_rule_for_onnx_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry()["TanH"], "onnx", Layer.onnx)
    text = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 3 } } } ' + layer("TanH", "x", "y")
    with pytest.raises(Error, match="no ONNX operators for the type TanH"):
        export(parse(text, proto.NetParameter, "net"))
