"""BatchNorm as in forks: param blocks, layouts of files, statistics of groups of samples. The expected values are the forks' arithmetic in numpy."""
from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import log, proto
from ocaffe.api.net import Net
from ocaffe.api.pysolver import SGDSolver
from ocaffe.compiler.network import phase_net
from ocaffe.errors import Error
from ocaffe.formats.text import parse
from ocaffe.graph.build import build
from tests.layers.single import KINDS, close, layer_of
from tests.layers.test_norm_layers import draw, gradient, outcome, over_channels, standard, stored_net
from tests.layers.test_pointwise_layers import batch_norm

pytestmark = pytest.mark.quick

HEAD = "layer { name: 'x' type: 'Input' top: 'x' top: 't' input_param { shape { dim: 4 dim: 3 dim: 2 dim: 2 } shape { dim: 4 } } } "
TAIL = " layer { name: 'f' type: 'InnerProduct' bottom: 'y' top: 'f' } layer { name: 'l' type: 'SoftmaxWithLoss' bottom: 'f' bottom: 't' top: 'l' }"
TAIL = TAIL.replace("top: 'f' }", "top: 'f' inner_product_param { num_output: 2 weight_filler { type: 'xavier' } } }")
FILLERS = "scale_filler { type: 'constant' value: 1 } bias_filler { type: 'constant' value: 0 }"


def blocks(*rates: float) -> str:
    return "".join(f" param {{ lr_mult: {rate} decay_mult: {rate} }}" for rate in rates)


def net_of(specs: str, fields: str) -> Any:
    text = f"{HEAD} layer {{ name: 'b' type: 'BatchNorm' bottom: 'x' top: 'y' {specs} batch_norm_param {{ {fields} }} }} {TAIL}"
    return parse(text, proto.NetParameter, "net.prototxt")


# -- param blocks --------------------------------------------------------------------------------------------------------------------------

NVCAFFE = [(0, 0)] * 3 + [(1, 1)] * 2


@pytest.mark.parametrize("fields", [FILLERS, "scale_bias: true", "bias_filler { value: 1 }", f"{FILLERS} engine: CUDNN"])
@pytest.mark.parametrize("rates", [(), (1,), (1, 1), (0, 0, 0), (1, 1, 1), (1, 1, 0, 0), (0, 0, 0, 1, 1), (1, 1, 0, 0, 0), (0, 0, 0, 2, 0.5)])
def test_scale_and_bias_of_nvcaffe_learn(fields: str, rates: tuple[float, ...]) -> None:
    """NVCaffe 0.16 sets lr_mult and decay_mult of its five blobs, whatever the prototxt says. NVCaffe 0.15 has scale and bias first."""
    graph = build(phase_net(net_of(blocks(*rates), fields), proto.TRAIN), proto.TRAIN)
    assert [(parameter.lr_mult, parameter.decay_mult) for parameter in graph.params if parameter.layer == "b"] == NVCAFFE


@pytest.mark.parametrize(
    "rates, expected",
    [((1, 1, 0, 0), NVCAFFE), ((1, 1, 0, 0, 0), NVCAFFE), ((0, 0, 0, 2, 0.5), [(0, 0)] * 3 + [(2, 2), (0.5, 0.5)])],
)
def test_more_blocks_than_bvlc_has_parameters(rates: tuple[float, ...], expected: list[tuple[float, float]]) -> None:
    """Without other fields, four blocks are those of NVCaffe 0.15, and five that begin with 0 those of Intel, where lr_mult counts."""
    graph = build(phase_net(net_of(blocks(*rates), ""), proto.TRAIN), proto.TRAIN)
    assert [(parameter.lr_mult, parameter.decay_mult) for parameter in graph.params if parameter.layer == "b"] == expected


@pytest.mark.parametrize("rates", [(1,), (0, 2)])
def test_rates_of_statistics_alone_are_refused(rates: tuple[float, ...]) -> None:
    """In BVLC Caffe the layer has nothing that learns. The remedy for a net of NVCaffe works as it stands."""
    with pytest.raises(Error, match="running statistics, which are not learned") as caught:
        phase_net(net_of(blocks(*rates), ""), proto.TRAIN)
    fields = str(caught.value.fix).rpartition("batch_norm_param {")[2].strip(" }")
    assert fields == "scale_bias: true"
    phase_net(net_of(blocks(*rates), fields), proto.TRAIN)


def test_ignored_blocks_are_noted() -> None:
    lines: list[str] = []
    build(phase_net(net_of(blocks(0, 0, 0, 0, 0), FILLERS), proto.TRAIN), proto.TRAIN, lambda source, text: lines.append(text))
    assert any("scale and bias learn with lr_mult 1, as in NVCaffe 0.16" in line for line in lines)


def test_training_with_blocks_of_nvcaffe_15(device: Any, tmp_path: pathlib.Path) -> None:
    """One step of the solver is the fork's arithmetic: w -= lr (gradient + decay w) for scale and bias, and averages for the statistics."""
    param = proto.SolverParameter(base_lr=0.5, lr_policy="fixed", max_iter=1, weight_decay=0.1, random_seed=1, snapshot_prefix=str(tmp_path / "s"))
    param.net_param.CopyFrom(net_of(blocks(1, 1, 0, 0), FILLERS))
    x, labels = draw(4, 3, 2, 2) + 1, np.array([0, 1, 1, 0])
    with SGDSolver(param, device=device) as solver:
        solver.net.blobs["x"].data[...], solver.net.blobs["t"].data[...] = x, labels
        weight = solver.net.params["f"][0].data.astype(np.float64)
        solver.step(1)
        after = [blob.data.copy() for blob in solver.net.params["b"]]
    h = standard(x.astype(np.float64), 1e-5)
    p = np.exp(h.reshape(4, -1) @ weight.T)
    p /= p.sum(1, keepdims=True)
    p[range(4), labels] -= 1
    dy = (p / 4 @ weight).reshape(x.shape)
    close(after[3], 1 - 0.5 * ((dy * h).sum((0, 2, 3)) + 0.1))
    close(after[4], -0.5 * dy.sum((0, 2, 3)))
    close(after[0], x.mean((0, 2, 3)))
    close(after[1], x.var((0, 2, 3)) * 16 / 15)


# -- files ---------------------------------------------------------------------------------------------------------------------------------

VALUES = np.array([[1.5, -2, 3], [4, 5, 6], [0.7, -8, 9], [4, 9, 16]], np.float32)  # scale, bias, mean, variance


@pytest.mark.parametrize("shape", [(3,), (1, 3), (1, 3, 1, 1)])
@pytest.mark.parametrize("in_front", [True, False], ids=["0.15", "0.16"])
@pytest.mark.parametrize("weight", [0.0, 1.0])
@pytest.mark.parametrize("text", ["", "batch_norm_param { scale_bias: true }"])
def test_file_of_nvcaffe(device: Any, tmp_path: pathlib.Path, shape: tuple[int, ...], in_front: bool, weight: float, text: str) -> None:
    """y = scale (x - mean) / sqrt(variance + eps) + bias. NVCaffe reads no weight; 0.15 writes 0. With cuDNN it writes 1 x C x 1 x 1."""
    scale, bias, mean, variance = (row.reshape(shape) for row in VALUES)
    statistics = [mean, variance, np.full((1,) * len(shape), weight, np.float32)]
    x = draw(2, 3, 4, 5)
    blobs = [scale, bias, *statistics] if in_front else [*statistics, scale, bias]
    net = stored_net(device, tmp_path, "BatchNorm", blobs, text)
    wide = [over_channels(row, x) for row in VALUES]
    close(outcome(net, x), wide[0] * (x - wide[2]) / np.sqrt(wide[3] + 1e-5) + wide[1])


@pytest.mark.parametrize("shape", [(3,), (1, 3)])
def test_file_of_tsn(device: Any, tmp_path: pathlib.Path, shape: tuple[int, ...]) -> None:
    """TSN stores slope, bias, mean and variance as 1 x C."""
    x = draw(2, 3, 4, 5)
    net = stored_net(device, tmp_path, "BN", [row.reshape(shape) for row in VALUES], "bn_param { frozen: true }")
    wide = [over_channels(row, x) for row in VALUES]
    close(outcome(net, x), wide[0] * (x - wide[2]) / np.sqrt(wide[3] + 1e-5) + wide[1])


@pytest.mark.parametrize("text, blobs", [("", 3), ("batch_norm_param { use_weight_bias: true }", 5)])
def test_weight_of_zero_is_told(device: Any, tmp_path: pathlib.Path, text: str, blobs: int, capsys: pytest.CaptureFixture[str]) -> None:
    """BVLC Caffe and Intel's fork take 0 for both statistics then, which is hardly meant. Statistics of 0 are those of a new net."""
    scale, bias, mean, variance = VALUES
    x, stored = draw(2, 3, 4, 5), [mean, variance, np.zeros(1, np.float32), scale, bias][:blobs]
    log.minimum = 0
    result = outcome(stored_net(device, tmp_path, "BatchNorm", stored, text), x)
    assert "blob 2 of the file, the weight of the running statistics, is 0" in capsys.readouterr().err
    h = x / np.sqrt(1e-5)
    close(result, over_channels(scale, x) * h + over_channels(bias, x) if blobs == 5 else h)
    outcome(stored_net(device, tmp_path, "BatchNorm", [np.zeros(3, np.float32)] * 2 + stored[2:], text), x)
    assert "running statistics" not in capsys.readouterr().err


# -- statistics of groups ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fields", ["", "use_weight_bias: true relu: true"])
def test_statistics_of_groups(device: Any, kind: str, fields: str) -> None:
    """Intel's stats_batch_size: each group of samples is normalized by itself, and the running sums are updated once per group, in order."""
    x, dy = draw(6, 3, 2, 5) + 1, draw(6, 3, 2, 5, seed=1)
    affine = bool(fields)
    state = [draw(3, seed=3), 1 + np.abs(draw(3, seed=4)), np.array([2.5], np.float32), draw(3, seed=5), draw(3, seed=6)][: 5 if affine else 3]

    def output(x: np.ndarray) -> np.ndarray:
        h = np.concatenate([standard(part, 1e-3) for part in np.split(x.astype(np.float64), 3)])
        return np.maximum(over_channels(state[3], x) * h + over_channels(state[4], x), 0) if affine else h

    layer = layer_of(f"type: 'BatchNorm' batch_norm_param {{ stats_batch_size: 2 moving_average_fraction: 0.8 eps: 1e-3 {fields} }}", proto.TRAIN)
    result, after = batch_norm(device, kind, layer, x, dy, state, strided=True, held=1.0)
    close(result.tops[0], output(x))
    close(result.diffs[0], 1 + gradient(output, x, dy))
    mean, variance, weight = (value.astype(np.float64) for value in state[:3])
    for part in np.split(x.astype(np.float64), 3):
        mean, variance, weight = 0.8 * mean + part.mean((0, 2, 3)), 0.8 * variance + part.var((0, 2, 3)) * 20 / 19, 0.8 * weight + 1
    for mine, theirs in zip(after, (mean, variance, weight)):
        close(mine, theirs)
    if affine:
        h = np.concatenate([standard(part, 1e-3) for part in np.split(x.astype(np.float64), 3)])
        passed = dy * (output(x) > 0)
        close(result.param_diffs[3], (passed * h).sum((0, 2, 3)))
        close(result.param_diffs[4], passed.sum((0, 2, 3), dtype=np.float64))


def test_size_of_groups_of_a_net(device: Any) -> None:
    """bn_stats_batch_size of a net holds for its BatchNorm layers, and only where batch statistics are used."""
    text = "bn_stats_batch_size: 2 layer { name: 'x' type: 'Input' top: 'x' input_param { shape { dim: %d dim: 3 } } }"
    text += " layer { name: 'b' type: 'BatchNorm' bottom: 'x' top: 'y' }"
    x = draw(4, 3)
    groups = np.concatenate([standard(part, 1e-5) for part in np.split(x.astype(np.float64), 2)])
    for phase, expected in ((proto.TRAIN, groups), (proto.TEST, x / np.sqrt(1e-5))):
        net = Net(text_format.Parse(text % 4, proto.NetParameter()), phase=phase, device=device)
        close(outcome(net, x), expected)
    Net(text_format.Parse(text % 3, proto.NetParameter()), phase=proto.TEST, device=device).close()
    with pytest.raises(Error, match="the batch has 3 samples, stats_batch_size is 2"):
        Net(text_format.Parse(text % 3, proto.NetParameter()), phase=proto.TRAIN, device=device)
