"""propagate_down: false, where Caffe's shared diffs pass a gradient nevertheless (docs/differences.md)."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.api.net import Net

pytestmark = pytest.mark.unoptimised

FIRST = """layer { name: "in" type: "Input" top: "x" input_param { shape { dim: [2, 3, 2, 2] } } }
layer { name: "t" type: "Input" top: "t" input_param { shape { dim: 2 } } }
layer { name: "b0" type: "Bias" bottom: "x" top: "b0" bias_param { axis: 0 num_axes: 0 } }"""
SPLIT = 'layer { name: "p" type: "Power" bottom: "b0" top: "b" power_param { scale: 2 } } layer { name: "p2" type: "Power" bottom: "b" top: "other" }'
SLICE = 'layer { name: "s" type: "Slice" bottom: "b0" top: "b" top: "other" slice_param { slice_point: 1 } }'
LOSS = """layer { name: "o" type: "Reduction" bottom: "other" top: "o" loss_weight: 1 reduction_param { operation: SUMSQ } }"""
VIEWS = {
    "Reshape": "reshape_param { shape { dim: [2, -1] } }", "Flatten": "", "Slice": "", "Concat": "", "Permute": "permute_param { order: [0, 1] }",
    "Softmax": "", "LRN": "", "MVN": "", "BatchNorm": "", "Im2col": "convolution_param { kernel_size: 2 }", "Scale": "",
}  # fmt: skip


def diffs(text: str, device: Any) -> list[np.ndarray]:
    net = Net(text_format.Parse(text, proto.NetParameter()), proto.TRAIN, device=device)
    net.blobs["x"].data[...] = np.random.default_rng(1).standard_normal((2, 3, 2, 2))
    for layer in ("cut",) if "cut" in net.params else ():
        for blob in net.params[layer]:
            blob.data[...] = 0.5
    net.forward()
    net.backward()
    return [np.array(net.blobs["b0"].diff), np.array(net.params["b0"][0].diff)]


CASES = [(kind, before) for kind in (*VIEWS, "HingeLoss") for before in (SPLIT, SLICE)]


@pytest.mark.parametrize(("kind", "before"), [*CASES, ("in place", SLICE)])
def test_no_gradient_passes(device: Any, kind: str, before: str) -> None:
    """The other reader alone counts, or the other top."""
    text = FIRST + before + LOSS
    top, name, bottoms = ("b" if kind == "in place" else "y"), ("Power" if kind == "in place" else kind), 'bottom: "b"'
    flags = "propagate_down: false"
    if kind == "HingeLoss":
        bottoms, flags = bottoms + ' bottom: "t"', f"{flags} {flags}"
    cut = f'layer {{ name: "cut" type: "{name}" {bottoms} top: "{top}" {flags} {VIEWS.get(kind, "")} }}'
    end = "" if kind == "HingeLoss" else f'layer {{ name: "e" type: "Exp" bottom: "{top}" top: "e" loss_weight: 1 }}'
    silent = "" if before == SPLIT else 'layer { name: "q" type: "Silence" bottom: "b" }'
    got, expected = diffs(text + cut + end, device), diffs(text + silent, device)
    assert expected[0].any()
    for a, b in zip(got, expected):
        np.testing.assert_allclose(a, b, rtol=1e-6)
