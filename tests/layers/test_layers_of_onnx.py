"""The layers of ONNX operators with the kernels of both device classes, adding to diffs that hold values, and on views with gaps."""
from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.formats.text import parse
from ocaffe.layers.base import registry
from ocaffe.selftest.case import Case
from tests.layers.gradient_cases import CASES
from tests.layers.single import KINDS, close, run

IN_VIEWS = ("StridedSlice", "GridSample", "ROIAlign", "Where", "Compare", "RMSNorm")  # the others read rows across samples
TYPES = (*IN_VIEWS, "Gather", "GatherElements", "GatherND", "GRU", "LSTM", "RNN")
OF_TYPES = [case for case in CASES if case.net.count("layer {") == 1 and re.search(rf'type: "({"|".join(TYPES)})"', case.net)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", OF_TYPES, ids=lambda case: case.name)
def test_kinds(device: Any, case: Case, kind: str) -> None:
    (param,) = parse(case.net, proto.NetParameter, "").layer
    layer = registry()[param.type].implementation(param)
    arrays = case.arrays()
    bottoms, params = ([arrays[name] for name in sorted(arrays) if ("/" in name) == inside] for inside in (False, True))
    expected = case.values({name: np.asarray(array, np.float64) for name, array in arrays.items()}, {})
    rng = np.random.default_rng(1)
    dys = [rng.standard_normal(np.shape(expected[top])) for top in param.top]
    wanted = [name in case.smooth for name in sorted(arrays) if "/" not in name]
    backward = any(wanted)
    plain = run(device, "cpu", layer(param, proto.TRAIN), bottoms, dys if backward else None, params=params, propagate=wanted)
    for strided in (False, param.type in IN_VIEWS):
        more = {"params": params, "propagate": wanted, "strided": strided, "held": 0.5 if backward else None}
        result = run(device, kind, layer(param, proto.TRAIN), bottoms, dys if backward else None, **more)
        for top, name in zip(result.tops, param.top):
            close(top, expected[name])
        for diff, before in zip(result.diffs, plain.diffs):
            if before is not None:
                close(diff, before + 0.5)
        for gradient, before in zip(result.param_diffs, plain.param_diffs):
            close(gradient, before)
