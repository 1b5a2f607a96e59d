"""Data, HDF5Data and DummyData against what Caffe put out (golden/data), and against numpy where Caffe draws at random."""
from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.graph.ir import Blob, Role
from ocaffe.graph.recorder import Recorder
from ocaffe.layers.base import Layer, registry
from tests.harness import execute
from tests.layers.single import KINDS, close, ref

GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
CASES = sorted(path.stem for kind in ("Data", "HDF5Data") for path in (GOLDEN / "data").glob(f"{kind}-*.npz") if path.stem != "Data-leveldb")


@pytest.fixture(autouse=True)
def in_golden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)


def layer_of(text: str, phase: int = proto.TRAIN) -> Layer:
    param = text_format.Parse(text, proto.LayerParameter())
    return registry()[param.type](param, phase)


def run(device: Any, kind: str, layer: Layer, batch: int = 0, *, strided: bool = False, seed: int = 0) -> dict[str, np.ndarray]:
    """What the layer puts out for batch number `batch`. As the net does, records for the shapes that this batch has."""
    shapes = [tuple(shape) for shape in layer.infer()]
    source = layer.source  # type: ignore[attr-defined]
    if source is not None:
        shapes_now = source.fill(batch, np.empty(0, np.uint8)).shapes if layer.param.type == "Data" else shapes
        shapes = list(shapes_now)
    rec = Recorder(dataclasses.replace(device.target, kind=kind), train=True, seed=seed)
    rec.enter(layer.param.name, "forward")
    tops = [Blob(name, shape) for name, shape in zip(layer.param.top, shapes)]
    if layer.moves_data:
        for top in tops:
            top.data = ref(top.name, top.shape, Role.ACTIVATION, strided)
    layer.forward(rec, [], tops)
    return dict(zip(layer.param.top, execute(rec, device.context, {}, [top.data for top in tops], batch=batch)))


def golden_layer(case: str) -> Layer:
    net = text_format.Parse((GOLDEN / "data" / f"{case}.prototxt").read_text(), proto.NetParameter())
    (param,) = net.layer
    return registry()[param.type](param, net.state.phase)


@pytest.mark.parametrize("strided", [False, True], ids=["dense", "strided"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
def test_golden(device: Any, kind: str, case: str, strided: bool) -> None:
    layer = golden_layer(case)
    arrays = dict(np.load(GOLDEN / "data" / f"{case}.npz"))
    for batch in range(5):
        prefix = f"out@{batch + 1}/" if batch else "out/"
        expected = {key[len(prefix) :]: arrays.pop(key) for key in list(arrays) if key.startswith(prefix)}
        if expected:
            tops = run(device, kind, layer, batch, strided=strided)
            assert list(tops) == list(layer.param.top)
            for name, array in expected.items():
                close(tops[name], array, 1e-6)
    assert not arrays, f"not compared: {sorted(arrays)}"
