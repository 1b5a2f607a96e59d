"""Run a single layer forward and backward through tests/harness.py, for tests without net, planner and command list."""
from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.ir.graph import Blob, Parameter
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role
from ocaffe.layers.base import Layer, registry
from tests.harness import execute, of_kind

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "layers"
KINDS = ("cpu", "gpu")


@dataclasses.dataclass
class Result:
    """Data of the tops, diffs of the bottoms (None if not propagated) and of the parameters, and the recorder."""

    tops: list[np.ndarray]
    diffs: list[np.ndarray | None]
    param_diffs: list[np.ndarray]
    rec: Recorder
    layer: Layer


def layer_of(text: str, phase: int | None = None) -> Layer:
    """Return the layer of a LayerParameter in text form."""
    param = text_format.Parse(text, proto.LayerParameter())
    return registry()[param.type].implementation(param)(param, proto.TRAIN if phase is None else phase)


def ref(name: str, shape: Sequence[int], role: Role, strided: bool | Collection[str]) -> Ref:
    """Return a Ref, or a view with gaps between samples that starts at an odd offset. `strided` may name the Refs that are such views."""
    shape = tuple(shape)
    if not (strided if isinstance(strided, bool) else name in strided) or not shape:
        return Ref(name, shape, role)
    stride = int(np.prod(shape[1:])) + 7
    return Ref(f"{name}.root", (shape[0] * stride + 5,), role).view(shape, 5, stride, name)


def run(
    device: Any,
    kind: str,
    layer: Layer | str,
    bottoms: Sequence[Any],
    top_diffs: Sequence[Any] | None = None,
    *,
    params: Sequence[Any] = (),
    propagate: Sequence[bool] | None = None,
    held: float | None = None,
    strided: bool | Collection[str] = False,
    train: bool = True,
) -> Result:
    """Run forward, and backward if `top_diffs` are given. A None in `top_diffs` means no diff. Bottom diffs start as `held`, if given, and are added to."""
    layer = layer_of(layer) if isinstance(layer, str) else layer
    rec = Recorder(of_kind(device.target, kind), train=train)
    bottoms = [np.asarray(array, np.float32) for array in bottoms]
    propagate = list(propagate) if propagate is not None else [True] * len(bottoms)
    feeds: dict[Ref, np.ndarray] = {}
    blobs = [Blob(f"x{i}", array.shape) for i, array in enumerate(bottoms)]
    for blob, array in zip(blobs, bottoms):
        blob.data = ref(blob.name, blob.shape, Role.ACTIVATION, strided)
        feeds[blob.data] = array
    shapes = layer.infer(*(array.shape for array in bottoms))
    assert [spec.shape for spec in layer.parameters()] == [np.shape(array) for array in params]
    layer.params = [Parameter("layer", i, np.shape(array), None) for i, array in enumerate(params)]
    for parameter, array in zip(layer.params, params):
        parameter.data = Ref(f"param{parameter.index}", parameter.shape, Role.PARAMETER)
        parameter.diff = Ref(f"param{parameter.index}.diff", parameter.shape, Role.GRADIENT)
        feeds[parameter.data] = np.asarray(array, np.float32)
    tops = [Blob(f"y{i}", tuple(shape)) for i, shape in enumerate(shapes)]
    if layer.moves_data:
        for top in tops:
            top.data = ref(top.name, top.shape, Role.ACTIVATION, strided)
    rec.enter("layer", "forward")
    layer.forward(rec, blobs, tops)
    if top_diffs is not None:
        for top, diff in zip(tops, top_diffs):
            if diff is not None:
                top.diff = ref(f"{top.name}.diff", top.shape, Role.DIFF, strided)
                feeds[top.diff] = np.asarray(diff, np.float32)
        for blob, wanted in zip(blobs, propagate):
            if wanted and (layer.moves_data or held is not None):
                blob.diff = ref(f"{blob.name}.diff", blob.shape, Role.DIFF, strided)
                if held is not None:
                    feeds[blob.diff] = np.full(blob.shape, held, np.float32)
                    rec._written.add(blob.diff.root)  # as if an earlier node had written it
        rec.enter("layer", "backward")
        layer.backward(rec, tops, blobs, propagate)
    diffs = [blob.diff for blob in blobs]
    gradients = [parameter.diff for parameter in layer.params] if top_diffs is not None else []
    fetched = iter(execute(rec, device.context, feeds, [top.data for top in tops] + [d for d in diffs + gradients if d is not None]))
    out = [next(fetched) for _ in tops]
    return Result(out, [None if d is None else next(fetched) for d in diffs], [next(fetched) for _ in gradients], rec, layer)


def close(actual: np.ndarray | None, expected: Any, tolerance: float = 1e-4) -> None:
    """Check that shapes are equal, NaN and infinity agree, and errors relative to the largest magnitude are at most `tolerance`."""
    assert actual is not None
    expected = np.asarray(expected)
    assert actual.shape == expected.shape
    finite = np.isfinite(expected)
    assert ((actual == expected) | (np.isnan(actual) & np.isnan(expected)) | finite).all()
    if finite.any():
        scale = max(np.abs(expected[finite]).max(), 1e-30)
        error = np.abs(actual.astype(np.float64) - expected)[finite].max() / scale
        assert error <= tolerance, f"relative error {error:.2g}"


def cases(layer_type: str) -> list[str]:
    """Return the names of the golden cases of a layer type."""
    names = sorted(path.stem for path in GOLDEN.glob(f"{layer_type}-*.prototxt"))
    assert names, f"no golden case of {layer_type}"
    return names


def run_golden(device: Any, kind: str, case: str) -> None:
    """Run the only layer of a golden case that is not an Input, and compare all arrays of the case."""
    net = text_format.Parse((GOLDEN / f"{case}.prototxt").read_text(), proto.NetParameter())
    (param,) = [layer for layer in net.layer if layer.type != "Input"]
    arrays = dict(np.load(GOLDEN / f"{case}.npz"))
    top_diffs = None
    if any(key.startswith("in_diff/") for key in arrays):
        top_diffs = [arrays.get(f"top_diff/{name}") for name in param.top]
    wanted = [f"in_diff/{name}" in arrays for name in param.bottom]
    layer = registry()[param.type](param, net.state.phase)
    params = [arrays[key] for key in sorted(arrays) if key.startswith("param/")]
    result = run(device, kind, layer, [arrays[f"in/{name}"] for name in param.bottom], top_diffs, params=params, propagate=wanted)
    for name, top in zip(param.top, result.tops):
        close(top, arrays[f"out/{name}"])
    for name, diff, want in zip(param.bottom, result.diffs, wanted):
        if want:
            close(diff, arrays[f"in_diff/{name}"])
