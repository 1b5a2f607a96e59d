"""The depthwise convolutions of forks: differences from Convolution. tests/kernels tests the kernels, tests/test_golden.py the golden data."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ocaffe.errors import Error
from tests.layers.single import KINDS, close, layer_of, run
from tests.layers.test_deconvolution import deconvolve, text

PR5665 = "ConvolutionDepthwise"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer_type", [PR5665, "DepthwiseConvolution", "Convolution"])
def test_all_three_names(device: Any, kind: str, layer_type: str) -> None:
    rng = np.random.default_rng(3)
    w, bias = rng.normal(size=(4, 1, 3, 3)), rng.normal(size=4)
    group = "num_output: 9" if layer_type == PR5665 else "num_output: 4 group: 4"
    layer = layer_of(text(f"{group} kernel_size: 3 stride: 2 pad: 1", layer_type=layer_type))
    for width in (7, 9):
        x, dy = rng.normal(size=(2, 4, 5, width)), rng.normal(size=(2, 4, 3, (width + 1) // 2))
        result = run(device, kind, layer, [x], [dy], params=[w, bias], strided=True, held=0.5)
        dx, y, dw = deconvolve(dy, w, x, 4, (2, 2), (1, 1), (1, 1))
        close(result.tops[0], y + bias.reshape(-1, 1, 1), 1e-5)
        close(result.diffs[0], dx + 0.5, 1e-5)
        close(result.param_diffs[0], dw, 1e-5)
        assert result.rec.launches[0].call.program in (f"conv_depthwise_{kind}", f"conv_narrow_{kind}")


@pytest.mark.parametrize("kind", KINDS)
def test_windows_too_large_for_registers(device: Any, kind: str) -> None:
    """A window of 16 x 16 with stride 8, as in the upsampling of FCNs. Some directions use the general kernels."""
    rng = np.random.default_rng(4)
    x, w, dy = rng.normal(size=(2, 2, 24, 40)), rng.normal(size=(2, 1, 16, 16)), rng.normal(size=(2, 2, 3, 5))
    settings = "num_output: 2 group: 2 bias_term: false kernel_size: 16 stride: 8 pad: 4"
    result = run(device, kind, text(settings, layer_type="Convolution"), [x], [dy], params=[w])
    dx, y, dw = deconvolve(dy, w, x, 2, (8, 8), (4, 4), (1, 1))
    for got, want in ((result.tops[0], y), (result.diffs[0], dx), (result.param_diffs[0], dw)):
        close(got, want, 1e-5)


@pytest.mark.parametrize(
    ("settings", "shape", "fact"),
    [("kernel_size: 3", (4, 5, 5), "bottom 0 is 4 x 5 x 5"), ("kernel_size: 3 axis: 2", (1, 4, 5, 5), "axis is 2, and the channels must be axis 1")],
)
def test_refused(settings: str, shape: tuple[int, ...], fact: str) -> None:
    with pytest.raises(Error, match=fact):
        layer_of(text(settings, layer_type=PR5665)).infer(shape)
