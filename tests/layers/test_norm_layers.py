"""MVN, Normalize, BN, and the BatchNorm of Caffe's forks: values, gradients, weights files of all layouts, shapes beyond the golden cases."""
from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.errors import Error
from ocaffe.formats.weights import write_weights
from ocaffe.ir.tensor import Shape
from ocaffe.solver.solver import Solver
from tests.layers.single import KINDS, cases, close, layer_of, run, run_golden
from tests.layers.test_pointwise_layers import batch_norm


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def gradient(function: Callable[[np.ndarray], np.ndarray], x: np.ndarray, dy: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """Return the gradient of sum(dy * function(x)) by central differences in float64."""
    x = x.astype(np.float64)
    result = np.zeros(x.shape)
    for place in np.ndindex(x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[place] += sign * step
            ends.append((dy * function(moved).reshape(dy.shape)).sum())
        result[place] = (ends[0] - ends[1]) / (2 * step)
    return result


# -- MVN -----------------------------------------------------------------------------------------------------------------------------------


def test_mvn_golden(device: Any) -> None:
    for case in cases("MVN"):
        run_golden(device, "gpu" if device.target.is_cpu else "cpu", case)


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("by_variance", [True, False])
def test_mvn(device: Any, kind: str, across: bool, by_variance: bool) -> None:
    """Strided views, a diff that is added to, and images whose mean is far from zero."""
    x, dy = draw(2, 3, 4, 5) + 300, draw(2, 3, 4, 5, seed=1)
    axes = (1, 2, 3) if across else (2, 3)

    def mvn(x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(axes, keepdims=True)
        return centred / x.std(axes, keepdims=True) if by_variance else centred

    text = f"across_channels: {str(across).lower()} normalize_variance: {str(by_variance).lower()}"
    result = run(device, kind, f"type: 'MVN' mvn_param {{ {text} }}", [x], [dy], strided=True, held=2.0)
    close(result.tops[0], mvn(x.astype(np.float64)))
    close(result.diffs[0], 2 + gradient(mvn, x, dy))
    backward = [launch for launch in result.rec.launches if launch.phase == "backward"]
    assert "x0" not in {ref.name for launch in backward for ref in launch.reads}, "in place is possible"


def test_mvn_of_few_axes() -> None:
    layer = layer_of("name: 'l' type: 'MVN'")
    assert layer.infer((4, 6)) == [(4, 6, 1, 1)]
    with pytest.raises(Error, match="bottom 0 is 1 x 2 x 3 x 4 x 5, MVN takes 1 to 4 axes"):
        layer.infer((1, 2, 3, 4, 5))


# -- Normalize -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 4, 5), (2, 30, 6)], ids=str)
@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_normalize(device: Any, kind: str, shape: Shape, across: bool, shared: bool) -> None:
    """The gradient of the bottom is multiplied by the scales after the projection, as in SSD."""
    x, dy = draw(*shape), draw(*shape, seed=1)
    scale = np.float32(1.5) if shared else 1 + np.abs(draw(shape[1], seed=2))
    spread = scale if shared else scale.reshape(-1, *[1] * (len(shape) - 2))
    axes = tuple(range(1, len(shape))) if across else (1,)

    def unit(x: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).sum(axes, keepdims=True) + 1e-3)

    text = f"across_spatial: {str(across).lower()} channel_shared: {str(shared).lower()} eps: 1e-3"
    result = run(device, kind, f"type: 'Normalize' norm_param {{ {text} }}", [x], [dy], params=[scale], strided=True, held=1.0)
    wide = x.astype(np.float64)
    close(result.tops[0], spread * unit(wide), 1e-5)
    # The fork's projection ignores eps in the norm, so the difference is of the order of eps.
    norm = np.sqrt((wide * wide).sum(axes, keepdims=True) + 1e-3)
    close(result.diffs[0], 1 + spread * (dy - unit(wide) * (unit(wide) * dy).sum(axes, keepdims=True)) / norm, 1e-5)
    others = tuple(range(len(shape))) if shared else (0, *range(2, len(shape)))
    close(result.param_diffs[0], (dy * unit(wide)).sum(others), 1e-5)
    if shared:
        close(result.diffs[0], 1 + 1.5 * gradient(unit, x, dy), 1e-3)


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("norm", ["L1", "L2"])
def test_normalize_without_scale(device: Any, kind: str, shape: Shape, norm: str) -> None:
    x, dy = draw(*shape), draw(*(*shape, 1, 1)[:4], seed=1)

    def norms(x: np.ndarray) -> np.ndarray:
        return np.abs(x).sum(1, keepdims=True) if norm == "L1" else np.sqrt((x * x).sum(1, keepdims=True))

    text = f"type: 'Normalize' top: 'y' top: 'norm' normalize_param {{ normalize_type: '{norm}' }}"
    result = run(device, kind, text, [x], [dy, None], strided=True, held=1.0)
    wide = x.astype(np.float64)
    close(result.tops[0], (wide / norms(wide)).reshape(dy.shape))
    close(result.tops[1], norms(wide).reshape(dy.shape[0], 1, *dy.shape[2:]))
    close(result.diffs[0], 1 + gradient(lambda x: x / norms(x), x, dy))


# -- BN ------------------------------------------------------------------------------------------------------------------------------------


def blobs_of(channels: int, count: int) -> list[np.ndarray]:
    """Return slope, bias, mean, variance."""
    return [(draw(channels, seed=i) if i < 3 else 1 + np.abs(draw(channels, seed=3))).reshape(1, channels, 1, 1) for i in range(count)]


def standard(x: np.ndarray, eps: float) -> np.ndarray:
    axes = (0, *range(2, x.ndim))
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def over_channels(values: np.ndarray, x: np.ndarray) -> np.ndarray:
    return values.reshape(1, -1, *[1] * (x.ndim - 2))


@pytest.mark.parametrize("shape", [(4, 3, 2, 5), (6, 3)], ids=str)
@pytest.mark.parametrize("fork", ["momentum: 0.9 eps: 1e-3", "bn_mode: LEARN"])
def test_bn_of_a_batch(device: Any, kind: str, shape: Shape, fork: str) -> None:
    running = "momentum" in fork
    x, dy, eps = draw(*shape) + 3, draw(*shape, seed=1), 1e-3 if running else 1e-9
    blobs = blobs_of(3, 4 if running else 2)
    slope, bias = (over_channels(blob, x).astype(np.float64) for blob in blobs[:2])
    layer = layer_of(f"type: 'BN' bn_param {{ {fork} }}", proto.TRAIN if running else proto.TEST)
    result, after = batch_norm(device, kind, layer, x, dy, blobs, strided=True, held=2.0)
    close(result.tops[0], slope * standard(x.astype(np.float64), eps) + bias)
    close(result.diffs[0], 2 + gradient(lambda x: slope * standard(x, eps), x, dy))
    axes = (0, *range(2, x.ndim))
    close(result.param_diffs[0].ravel(), (dy * standard(x.astype(np.float64), eps)).sum(axes))
    close(result.param_diffs[1].ravel(), dy.sum(axes, dtype=np.float64))
    if running:
        close(after[2].ravel(), 0.9 * blobs[2].ravel() + 0.1 * x.mean(axes, dtype=np.float64))
        close(after[3].ravel(), 0.9 * blobs[3].ravel() + 0.1 * x.var(axes, dtype=np.float64))


@pytest.mark.parametrize("text, phase", [("momentum: 0.9", "TEST"), ("frozen: true", "TRAIN"), ("bn_mode: INFERENCE", "TRAIN")])
def test_bn_without_the_batch(device: Any, kind: str, text: str, phase: str) -> None:
    x, dy, blobs = draw(4, 3, 2, 5), draw(4, 3, 2, 5, seed=1), blobs_of(3, 2 if "mode" in text else 4)
    result, after = batch_norm(device, kind, layer_of(f"type: 'BN' bn_param {{ {text} }}", getattr(proto, phase)), x, dy, blobs, held=2.0)
    mean, inverse = (0, 1) if "mode" in text else (blobs[2], 1 / np.sqrt(blobs[3] + 1e-5))
    close(result.tops[0], blobs[0] * (x - mean) * inverse + blobs[1], 1e-5)
    close(result.diffs[0], 2 + dy * blobs[0] * inverse, 1e-5)
    close(result.param_diffs[0].ravel(), (dy * (x - mean) * inverse).sum((0, 2, 3)))
    assert all((a == b).all() for a, b in zip(after, blobs))


def test_frozen_bn_is_not_learned() -> None:
    layers = [layer_of(f"type: 'BN' bn_param {{ frozen: {word} }}") for word in ("true", "false")]
    for layer in layers:
        layer.infer((2, 3))
    assert [[blob.learned for blob in layer.parameters()] for layer in layers] == [[False] * 4, [True, True, False, False]]
    assert [layer.parameters()[3].filler.value for layer in layers] == [1, 0]


# -- BatchNorm of forks --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, relu, blobs",
    [("scale_bias: true", "", 5), ("use_weight_bias: true", " fused_relu: true", 5), ("use_weight_bias: true bias_term: false", "", 4)],
)
def test_batch_norm_with_scale(device: Any, kind: str, text: str, relu: str, blobs: int) -> None:
    """Two steps in TRAIN with the running statistics of each fork, then TEST."""
    shape = (4, 3, 2, 5)
    scale, bias = draw(3, seed=1), draw(3, seed=2) if blobs == 5 else np.zeros(3, np.float32)
    state = [np.zeros(3), np.zeros(3), np.zeros(1), scale, bias][:blobs]
    x, mean, variance, weight = draw(*shape), np.zeros(3), np.zeros(3), 0.0
    param = f"type: 'BatchNorm' batch_norm_param {{ moving_average_fraction: 0.8 eps: 1e-3 {text}{relu} }}"

    def affine(h: np.ndarray) -> np.ndarray:
        y = over_channels(scale, h) * h + over_channels(bias, h)
        return np.maximum(y, 0) if relu else y

    for step in range(2):
        x, dy = draw(*shape, seed=10 + step) + 1, draw(*shape, seed=20 + step)
        result, after = batch_norm(device, kind, layer_of(param, proto.TRAIN), x, dy, state, strided=True, held=1.0)
        state = after
        wide = x.astype(np.float64)
        close(result.tops[0], affine(standard(wide, 1e-3)))
        close(result.diffs[0], 1 + gradient(lambda x: affine(standard(x, 1e-3)), x, dy))
        passed = dy * (affine(standard(wide, 1e-3)) > 0) if relu else dy
        close(result.param_diffs[3], (passed * standard(wide, 1e-3)).sum((0, 2, 3)))
        if blobs == 5:
            close(result.param_diffs[4], passed.sum((0, 2, 3), dtype=np.float64))
        now = wide.mean((0, 2, 3)), wide.var((0, 2, 3)) * 40 / 39
        if "scale_bias" in text:
            mean, variance = (b if step == 0 else 0.8 * a + 0.2 * b for a, b in zip((mean, variance), now))
            weight = 1.0
        else:
            mean, variance, weight = 0.8 * mean + now[0], 0.8 * variance + now[1], 0.8 * weight + 1
        for mine, theirs in zip(after, (mean, variance, np.array([weight]))):
            close(mine, theirs)
    result, _ = batch_norm(device, kind, layer_of(param, proto.TEST), x, dy, state)
    h = (x - over_channels(mean / weight, x)) / np.sqrt(over_channels(variance / weight, x) + 1e-3)
    close(result.tops[0], affine(h))
    passed = dy * (affine(h) > 0) if relu else dy
    close(result.diffs[0], passed * over_channels(scale, x) / np.sqrt(over_channels(variance / weight, x) + 1e-3))
    close(result.param_diffs[3], (passed * h).sum((0, 2, 3)))


def test_relu_alone_and_least_eps(device: Any, kind: str) -> None:
    x, dy = draw(4, 3, 2, 5), draw(4, 3, 2, 5, seed=1)
    zero = [np.zeros(3), np.zeros(3), np.zeros(1)]
    result, _ = batch_norm(device, kind, layer_of("type: 'BatchNorm' batch_norm_param { relu: true }", proto.TRAIN), x, dy, zero)
    close(result.tops[0], np.maximum(standard(x.astype(np.float64), 1e-5), 0))
    close(result.diffs[0], gradient(lambda x: np.maximum(standard(x, 1e-5), 0), x, dy))
    for text, eps in (("scale_bias: true", 1e-5), ("", 1e-9)):
        layer = layer_of(f"type: 'BatchNorm' batch_norm_param {{ eps: 1e-9 {text} }}")
        layer.infer((2, 3))
        assert layer.eps == pytest.approx(eps)  # type: ignore[attr-defined]


def test_update_of_statistics_in_use(device: Any, kind: str) -> None:
    x, dy = draw(4, 3, 2, 5), draw(4, 3, 2, 5, seed=1)
    blobs = [draw(3, seed=2), 1 + np.abs(draw(3, seed=3)), np.array([2.5], np.float32)]
    layer = layer_of("type: 'BatchNorm' batch_norm_param { use_global_stats: true update_global_stats: true moving_average_fraction: 0.8 }", proto.TRAIN)
    result, after = batch_norm(device, kind, layer, x, dy, blobs, strided=True, held=1.0)
    mean = blobs[0].astype(np.float64) / 2.5
    variance = ((x - over_channels(mean, x)) ** 2).mean((0, 2, 3))
    inverse = over_channels(1 / np.sqrt(variance + 1e-5), x)
    close(result.tops[0], (x - over_channels(mean, x)) * inverse)
    close(result.diffs[0], 1 + dy * inverse)
    for mine, theirs in zip(after, (0.8 * blobs[0] + mean, 0.8 * blobs[1] + variance * 40 / 39, [3.0])):
        close(mine, theirs)


# -- which fork's layer it is --------------------------------------------------------------------------------------------------------------

ONE = "layer { name: 'x' type: 'Input' top: 'x' input_param { shape { dim: 2 dim: 3 dim: 4 dim: 5 } } } layer { name: 'l' type: '%s' bottom: 'x' top: 'y' %s }"


def stored_net(device: Any, folder: pathlib.Path, layer_type: str, blobs: list[np.ndarray], text: str = "") -> Net:
    """Return a TEST net of one layer, with weights from a file with these blobs."""
    net = text_format.Parse(ONE % (layer_type, text), proto.NetParameter())
    write_weights(folder / "w.caffemodel", net, {"l": blobs})
    return Net(net, phase=proto.TEST, weights=str(folder / "w.caffemodel"), device=device)


def outcome(net: Net, x: np.ndarray) -> np.ndarray:
    try:
        net.blobs["x"].data[...] = x
        net.forward()
        return net.blobs["y"].data.copy()
    finally:
        net.close()


@pytest.mark.parametrize("in_front", [False, True])
@pytest.mark.parametrize("weight", [1.0, 40.0])
def test_batch_norm_of_other_forks_files(device: Any, tmp_path: pathlib.Path, in_front: bool, weight: float) -> None:
    """NVCaffe 0.17 stores scale and bias last, 0.15 first. The prototxt may omit that they exist."""
    x, (scale, bias, mean, variance) = draw(2, 3, 4, 5), (blob.ravel() for blob in blobs_of(3, 4))
    statistics = [mean, variance, np.array([weight], np.float32)]
    blobs = [scale, bias, *statistics] if in_front else [*statistics, scale, bias]
    net = stored_net(device, tmp_path, "BatchNorm", blobs)
    p = net._network.graph.nodes[1].layer.own()
    assert (p.scale_bias, p.HasField("use_weight_bias")) == (weight == 1, weight != 1)
    h = (x - over_channels(mean / weight, x)) / np.sqrt(over_channels(variance / weight, x) + 1e-5)
    close(outcome(net, x), over_channels(scale, x) * h + over_channels(bias, x))


@pytest.mark.parametrize("count", [2, 4])
def test_bn_is_told_by_its_blobs(device: Any, tmp_path: pathlib.Path, count: int) -> None:
    x, blobs = draw(2, 3, 4, 5), blobs_of(3, count)
    result = outcome(stored_net(device, tmp_path, "BN", blobs), x)
    h = (x - blobs[2]) / np.sqrt(blobs[3] + 1e-5) if count == 4 else standard(x.astype(np.float64), 1e-9)
    close(result, blobs[0] * h + blobs[1])


def test_normalize_is_told_by_its_blobs(device: Any, tmp_path: pathlib.Path) -> None:
    x = draw(2, 3, 4, 5)
    result = outcome(stored_net(device, tmp_path, "Normalize", [np.float32(7)]), x)
    close(result, 7 * x / np.sqrt((x * x).sum((1, 2, 3), keepdims=True)))
    close(outcome(stored_net(device, tmp_path, "Normalize", []), x), x / np.sqrt((x * x).sum(1, keepdims=True)))


def test_fields_beat_blobs(device: Any, tmp_path: pathlib.Path) -> None:
    with pytest.raises(Error, match="the file has 2 blobs for this layer, the net 4"):
        stored_net(device, tmp_path, "BN", blobs_of(3, 2), "bn_param { frozen: true }")


def test_training_goes_on_with_what_a_file_told(device: Any, tmp_path: pathlib.Path) -> None:
    """A solver reads TRAIN and TEST nets from one file, writes a snapshot and resumes from it."""
    text = """
        layer { name: 'd' type: 'DummyData' top: 'x' top: 'label' dummy_data_param { shape { dim: 2 dim: 3 dim: 4 dim: 5 } shape { dim: 2 }
                data_filler { type: 'gaussian' } data_filler { type: 'constant' } } }
        layer { name: 'l' type: 'BN' bottom: 'x' top: 'y' }
        layer { name: 'ip' type: 'InnerProduct' bottom: 'y' top: 'ip' inner_product_param { num_output: 2 weight_filler { type: 'xavier' } } }
        layer { name: 'loss' type: 'SoftmaxWithLoss' bottom: 'ip' bottom: 'label' }"""
    net = text_format.Parse(text, proto.NetParameter())
    write_weights(tmp_path / "w.caffemodel", net, {"l": blobs_of(3, 4)})
    settings = f"base_lr: 0.1 lr_policy: 'fixed' max_iter: 1 test_iter: 1 test_interval: 1 snapshot_prefix: '{tmp_path}/s'"
    param = text_format.Parse(settings, proto.SolverParameter())
    param.net_param.CopyFrom(net)
    with pytest.raises(Error, match="PSPNet's BN or SegNet's"):
        Solver(param, device)
    for options in ({"weights": [str(tmp_path / "w.caffemodel")]}, {"resume": str(tmp_path / "s_iter_1.solverstate")}):
        solver = Solver(param, device, **options)
        try:
            assert [len(one.graph.nodes[1].params) for one in (solver.network, *solver.test_networks)] == [4, 4]
            solver.solve()
        finally:
            solver.close()


@pytest.mark.parametrize(
    "text, shape, fact",
    [
        ("type: 'BN'", (2, 3), "bn_param does not say whether PSPNet's BN or SegNet's is meant"),
        ("type: 'BN' bn_param { frozen: true bn_mode: LEARN }", (2, 3), r"fields of PSPNet's BN \(frozen\) and of SegNet's \(bn_mode\)"),
        ("type: 'BN' bn_param { frozen: true }", (2,), "bottom 0 is 2, it must be N x C x .."),
        ("type: 'BN' top: 'y' top: 'mean' bn_param { bn_mode: LEARN }", (2, 3), "2 tops are given, SegNet's BN has 1 or 3"),
        ("type: 'BN' top: 'y' top: 'm' top: 'v' bn_param { bn_mode: INFERENCE }", (2, 3), "INFERENCE computes no mean and variance"),
        ("type: 'Normalize' norm_param { } normalize_param { }", (2, 3), "norm_param and normalize_param are both given"),
        ("type: 'Normalize' norm_param { }", (2,), "bottom 0 is 2, it must be N x C x .."),
        ("type: 'Normalize' normalize_param { normalize_type: 'L3' }", (2, 3), "normalize_type is 'L3'"),
        ("type: 'BatchNorm' phase: TRAIN batch_norm_param { stats_batch_size: 2 use_global_stats: false }", (3, 3), "3 samples, stats_batch_size is 2"),
    ],
)
def test_mistakes(text: str, shape: Shape, fact: str) -> None:
    with pytest.raises(Error, match=fact):
        layer_of(f"name: 'l' {text}").infer(shape)


# -- other shapes --------------------------------------------------------------------------------------------------------------------------


def test_reshape(device: Any) -> None:
    """A reshaped net gives the results of a new net of these sizes."""
    text = """force_backward: true
        layer {{ name: 'x' type: 'Input' top: 'x' input_param {{ shape {{ dim: {} dim: 3 dim: {} dim: {} }} }} }}
        layer {{ name: 'm' type: 'MVN' bottom: 'x' top: 'm' }} layer {{ name: 'p' type: 'PReLU' bottom: 'm' top: 'm' }}
        layer {{ name: 'i' type: 'Interp' bottom: 'm' top: 'i' interp_param {{ height: 7 width: 6 }} }}
        layer {{ name: 'b' type: 'BN' bottom: 'i' top: 'b' bn_param {{ scale_filler {{ type: 'constant' value: 2 }} }} }}
        layer {{ name: 'n' type: 'Normalize' bottom: 'b' top: 'n' norm_param {{ across_spatial: false }} }}
        layer {{ name: 's' type: 'SPP' bottom: 'n' top: 's' spp_param {{ pyramid_height: 2 }} }}"""  # BN after Normalize would make the scale's gradient 0

    def net_of(shape: Shape) -> Net:
        return Net(text_format.Parse(text.format(shape[0], *shape[2:]), proto.NetParameter()), phase=proto.TRAIN, device=device)

    def results(net: Net, x: np.ndarray) -> list[np.ndarray]:
        net.blobs["x"].data[...] = x
        net.forward()
        net.blobs["s"].diff[...] = np.arange(net.blobs["s"].count).reshape(net.blobs["s"].shape)
        net.clear_param_diffs()
        net.backward()
        return [net.blobs["s"].data.copy(), *(blob.diff.copy() for blob in (net.blobs["x"], *(net.params[name][0] for name in "pnb")))]

    net = net_of((2, 3, 4, 5))
    try:
        results(net, draw(2, 3, 4, 5))
        shape = (3, 3, 7, 6)  # for which Interp is the identity
        net.blobs["x"].reshape(*shape)
        net.reshape()
        fresh = net_of(shape)
        try:
            for mine, theirs in zip(results(net, draw(*shape)), results(fresh, draw(*shape)), strict=True):
                assert mine.shape == theirs.shape and (mine == theirs).all() and np.abs(mine).max() > 0
        finally:
            fresh.close()
    finally:
        net.close()
