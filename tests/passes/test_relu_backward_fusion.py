"""The launch that writes a diff also computes the ReLU backward on it.

Results equal separate launches. The fusion happens only if no other launch reads the diff.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

import ocaffe
from ocaffe import proto
from ocaffe.cl.device import Device
from ocaffe.ir.launch import Launch
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.convolution import convolution
from ocaffe.kernels.convolution.dense_gpu import conv_gpu
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.expression.expression import ReluBackward, pointwise
from ocaffe.kernels.matmul import gemm_gpu
from ocaffe.kernels.matmul.gemm_gpu import Choice
from ocaffe.kernels.normalization.lrn import Response
from ocaffe.kernels.pooling.pooling import AVE, MAX, Pool
from ocaffe.passes import sign_masks
from ocaffe.passes.relu_backward_fusion import BITS, TOP, fuse_relu_backward
from ocaffe.passes.sign_masks import pack_sign_masks
from tests.harness import execute, of_kind, switch, winograd_in_parts

ONE, THREE = (1, 1, 1), (1, 3, 3)
PLAIN = ConvGeometry(2, 6, 8, 2, (1, 7, 9), (1, 7, 9), THREE, ONE, (0, 1, 1), ONE)
EVEN = ConvGeometry(2, 8, 6, 1, (1, 4, 8), (1, 4, 8), THREE, ONE, (0, 1, 1), ONE)
STRIDED = ConvGeometry(3, 8, 4, 1, (1, 8, 9), (1, 4, 5), THREE, (1, 2, 2), (0, 1, 1), ONE)
SPARSE = ConvGeometry(3, 12, 8, 1, (1, 7, 8), (1, 4, 4), ONE, (1, 2, 2), (0, 0, 0), ONE)
HALVES = gemm_gpu.QUAD_TILES["bf16"][-1]  # emulated on devices without tensor cores
DEPTHWISE = ConvGeometry(2, 8, 8, 8, (1, 7, 9), (1, 7, 9), THREE, ONE, (0, 1, 1), ONE)
Made = tuple[list[Ref], tuple[int, ...], Callable[[Recorder, Ref], None]]


def value(name: str, *shape: int, role: Role = Role.ACTIVATION) -> Ref:
    return Ref(name, shape, role)


def conv(g: ConvGeometry, splits: int = 0, tile: gemm_gpu.Tile = gemm_gpu.TILES[-1]) -> Callable[[], Made]:
    def make() -> Made:
        dy, w = value("top", g.batch, g.num_output, *g.out[1:]), value("w", *g.weight_shape)
        choice = Choice(conv_gpu.with_step(g, tile, "backward_data"), splits) if splits else None

        def write(rec: Recorder, dx: Ref) -> None:
            if choice is not None:
                conv_gpu.backward_data(rec, g, dy, w, dx, choice)
            else:
                convolution.backward_data(rec, g, dy, w, dx)

        return [dy, w], (g.batch, g.channels, *g.size[1:]), write

    return make


def winograd(out: int) -> Callable[[], Made]:
    def make() -> Made:
        refs, shape, write = conv(EVEN)()

        def in_parts(rec: Recorder, dx: Ref) -> None:
            with winograd_in_parts(rec, out):
                write(rec, dx)

        return refs, shape, in_parts

    return make


def product(columns: int, splits: int) -> Callable[[], Made]:
    def make() -> Made:
        dy, w = value("top", 5, 300), value("w", 300, columns * 4)
        choice = Choice(gemm_gpu.TILES[-1], splits)
        return [dy, w], (5, columns, 2, 2), lambda rec, dx: gemm_gpu.record(rec, dy, w, dx.view((5, columns * 4)), False, False, None, choice)

    return make


def pool(method: int, size: int) -> Callable[[], Made]:
    def make() -> Made:
        out = (3, 4) if size == 3 else (1, 1)
        window = (size, size) if size == 3 else (7, 8)
        made = Pool(method, window, (2, 2) if size == 3 else (1, 1), (0, 0), (7, 8), out)
        dy = value("top", 2, 12, *out)
        index = Ref("index", dy.shape, Role.SAVED, np.dtype(made.index_dtype))
        return [dy, index], (2, 12, 7, 8), lambda rec, dx: made.backward(rec, dy, index if method == MAX else None, dx)

    return make


def lrn() -> Made:
    dy, x = value("top", 2, 12, 5, 5), value("x", 2, 12, 5, 5)
    return [dy, x], (2, 12, 5, 5), lambda rec, dx: Response(3, 0.1, 0.75, 1.0).across_backward(rec, x, dy, dx)


WRITERS: list[tuple[str, Callable[[], Made]]] = [
    ("convolution", conv(PLAIN)), ("even convolution", conv(EVEN, 1)), ("in splits", conv(EVEN, 2)),
    ("stride over single pixels", conv(SPARSE)), ("16 bits", conv(EVEN, 1, HALVES)),
    ("depthwise", conv(DEPTHWISE)), ("Winograd in parts", winograd(2)), ("Winograd, 3 x 3", winograd(3)),
    ("Winograd, 4 x 4", winograd(4)),
    ("product", product(300, 1)), ("odd product", product(7, 1)),
    ("product in splits", product(7, 2)), ("max pooling", pool(MAX, 3)), ("average pooling", pool(AVE, 3)), ("largest of a plane", pool(MAX, 0)),
    ("average of a plane", pool(AVE, 0)), ("normalization", lrn),
]  # fmt: skip


def feeds(refs: list[Ref]) -> dict[Ref, np.ndarray]:
    rng = np.random.default_rng(11)
    return {ref: rng.integers(0, 9, ref.shape) if ref.name == "index" else rng.standard_normal(ref.shape) for ref in refs}


@pytest.mark.parametrize("parts", [1, 3], ids=["one ReLU", "three parts"])
@pytest.mark.parametrize("bits", [False, True], ids=["signs", "bits"])
@pytest.mark.parametrize("adds", [False, True], ids=["writes", "adds"])
@pytest.mark.parametrize(("name", "make"), WRITERS, ids=[name for name, _ in WRITERS])
def test_backward_of_relus(device: Any, monkeypatch: pytest.MonkeyPatch, name: str, make: Callable[[], Made], adds: bool, bits: bool, parts: int) -> None:
    monkeypatch.setattr(sign_masks, "MIN_VALUE_BYTES", 1 if bits else 1 << 40)
    results = []
    for fuse in (False, True):
        refs, shape, write = make()
        source, whole = value("source", *shape), value("y", *shape)
        diff = value("y.diff", *shape, role=Role.DIFF)
        rec = Recorder(of_kind(device.target, "gpu"), train=True)
        rec.enter("relu", "forward")
        pointwise(rec, "y0 = x0 > 0 ? x0 : 0", reads=[source], writes=[whole])
        if adds:
            rec.enter("other", "backward")
            pointwise(rec, "y0 = 2 * x0", reads=[source], writes=[diff])
        rec.enter("writer", "backward")
        write(rec, diff)
        count = len(rec.launches)
        rec.enter("relu", "backward")
        fetched = []
        widths = [shape[1]] if parts == 1 else [1, 2, shape[1] - 3]
        for part, width in enumerate(widths):
            place, size = sum(widths[:part]) * whole.dense_stride // shape[1], (shape[0], width, *shape[2:])
            dy, sign = (ref if parts == 1 else ref.view(size, place, ref.dense_stride) for ref in (diff, whole))
            dx, last = value(f"dx{part}", *size, role=Role.DIFF), value(f"last{part}", *size)
            pointwise(rec, "y0 = x1 > 0 ? x0 : slope * x0", reads=[dy, sign], writes=[dx], scalars={"slope": 0.25}, means=ReluBackward(0.25))
            rec.enter("last", "backward")
            pointwise(rec, "y0 = x0", reads=[dx], writes=[last])
            fetched.append(last)
        if fuse:
            rec.launches = fuse_relu_backward(rec.launches)
            assert len(rec.launches) == count + parts, [launch.what for launch in rec.launches]
        rec.launches = pack_sign_masks(rec.launches, rec.target)
        assert any(launch.what == "sign_mask.pack" for launch in rec.launches) == bits
        results.append(np.concatenate([out.reshape(shape[0], -1) for out in execute(rec, device.context, feeds([source, *refs]), fetched)], 1))
    np.testing.assert_allclose(results[1], results[0], rtol=0, atol=1e-6 * np.abs(results[0]).max())  # two programs may contract multiply-adds differently
    assert np.count_nonzero(results[0]) > 0


def recorded(device: Any, slopes: tuple[float, ...] = (0.0,), role: Role = Role.DIFF) -> tuple[Recorder, Ref, list[Ref]]:
    """Record a convolution that writes a diff, and ReLUs of these slopes that read equal parts of its channels."""
    _, shape, write = conv(PLAIN)()
    diff, whole = value("y.diff", *shape, role=role), value("y", *shape)
    rec = Recorder(of_kind(device.target, "gpu"), train=True)
    rec.enter("writer", "backward")
    write(rec, diff)
    rec.enter("relu", "backward")
    size, results = (shape[0], shape[1] // len(slopes), *shape[2:]), []
    for part, slope in enumerate(slopes):
        dy, sign = (ref.view(size, part * diff.dense_stride // len(slopes), ref.dense_stride) for ref in (diff, whole))
        results.append(value(f"dx{part}", *size, role=Role.DIFF))
        pointwise(rec, "y0 = x1 > 0 ? x0 : slope * x0", reads=[dy, sign], writes=[results[-1]], scalars={"slope": slope}, means=ReluBackward(slope))
    return rec, diff, results


def test_a_diff_that_somebody_else_reads_stays(device: Any) -> None:
    for other in (False, True):
        rec, diff, _ = recorded(device)
        if other:
            pointwise(rec, "y0 = x0", reads=[diff], writes=[value("again", *diff.shape)])
        assert len(rec.launches) - len(fuse_relu_backward(rec.launches)) == (not other)


def test_other_places_of_the_diff_stay(device: Any) -> None:
    for slopes, gone in (((0.0, 0.0), 2), ((0.0, 0.1), 0)):
        rec, _, _ = recorded(device, slopes)
        assert len(rec.launches) - len(fuse_relu_backward(rec.launches)) == gone
    rec, _, _ = recorded(device, (0.0, 0.0))
    del rec.launches[-1]
    assert len(fuse_relu_backward(rec.launches)) == len(rec.launches)


def test_a_result_whose_samples_must_be_dense_stays(device: Any) -> None:
    rec, _, (first, _) = recorded(device, (0.0, 0.0))
    pointwise(rec, "y0 = x0", reads=[first.view((first.count,))], writes=[value("flat", first.count)])
    assert len(fuse_relu_backward(rec.launches)) == len(rec.launches)


def test_a_value_that_is_kept_stays(device: Any) -> None:
    for kept in (0, 1):
        rec, diff, results = recorded(device)
        (diff, *results)[kept].persist = True
        assert len(fuse_relu_backward(rec.launches)) == len(rec.launches)


def test_phases_of_a_stride_stay(device: Any) -> None:
    _, shape, write = conv(STRIDED)()
    diff, sign, dx = value("y.diff", *shape, role=Role.DIFF), value("y", *shape), value("dx", *shape, role=Role.DIFF)
    rec = Recorder(of_kind(device.target, "gpu"), train=True)
    rec.enter("writer", "backward")
    write(rec, diff)
    pointwise(rec, "y0 = x1 > 0 ? x0 : slope * x0", reads=[diff, sign], writes=[dx], scalars={"slope": 0.0}, means=ReluBackward(0.0))
    assert len(fuse_relu_backward(rec.launches)) == len(rec.launches)


def test_one_layer_that_adds_twice_is_gated_once(device: Any) -> None:
    rec, diff, _ = recorded(device)
    _, _, write = conv(PLAIN)()
    relu = rec.launches.pop()
    for _ in range(2):
        rec.enter("writer", "backward")
        write(rec, diff)
    rec.launches.append(relu)
    count = len(rec.launches)
    merged = fuse_relu_backward(rec.launches)
    assert len(merged) == count - 1
    assert [launch.mask is not None for launch in merged if launch.kernel.slot("sign") is not None][-2:] == [False, True]


def test_levels_of_a_pyramid_are_no_parts(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each level adds to the whole diff with the same kernel and other sizes. Only the last level may apply the slope."""
    net = text_format.Parse(
        """force_backward: true
        layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }
        layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
          convolution_param { num_output: 4 kernel_size: 1 weight_filler { type: "xavier" } } }
        layer { name: "relu" type: "ReLU" bottom: "conv" top: "relu" relu_param { negative_slope: 0.25 } }
        layer { name: "spp" type: "SPP" bottom: "relu" top: "spp" spp_param { pyramid_height: 3 pool: AVE } }""",
        proto.NetParameter(),
    )
    of_gpu = Device(replace(device.info, target=of_kind(device.target, "gpu")), device)
    rng = np.random.default_rng(0)
    image, dy = rng.standard_normal((2, 3, 8, 8)), rng.standard_normal((2, 84))
    found = []
    for fuse in ("0", "1"):
        switch(monkeypatch, f"fuse={fuse}")
        with ocaffe.Net(net, ocaffe.TRAIN, keep=[], seed=1, device=of_gpu) as made:
            made.forward(data=image)
            made.backward(spp=dy)
            found.append(np.array(made.params["conv"][0].diff))
    assert np.abs(found[0] - found[1]).max() <= 1e-5 * np.abs(found[0]).max()


def layer(name: str, kind: str, bottoms: str, text: str = "", top: str = "") -> str:
    given = " ".join(f'bottom: "{bottom}"' for bottom in bottoms.split())
    return f'layer {{ name: "{name}" type: "{kind}" {given} top: "{top or name}" {text} }}'


def filtered(name: str, bottom: str, bias: float = -0.4) -> str:
    """Return a Convolution with a bias for which the maxima of some windows are not positive."""
    fillers = f'weight_filler {{ type: "gaussian" std: 0.3 }} bias_filler {{ type: "constant" value: {bias} }}'
    return layer(name, "Convolution", bottom, f"convolution_param {{ num_output: 6 kernel_size: 1 {fillers} }}")


def rectified(name: str, bottom: str, top: str = "") -> str:
    return layer(name, "ReLU", bottom, "relu_param { negative_slope: SLOPE }", top)


def pooled(name: str, bottom: str, window: str) -> str:
    return layer(name, "Pooling", bottom, f"pooling_param {{ {window} }}")


def squared(*bottoms: str) -> str:
    return "".join(layer(f"{bottom}_loss", "Reduction", bottom, "reduction_param { operation: SUMSQ } loss_weight: 1") for bottom in bottoms)


def gradients(net: Any, device: Device, keep: list[str]) -> tuple[list[np.ndarray], list[Launch]]:
    """Return the gradients of all parameters, and the launches."""
    with ocaffe.Net(net, ocaffe.TRAIN, keep=keep, seed=1, device=device) as made:
        made.forward(data=np.random.default_rng(0).standard_normal((2, 3, 13, 11)))
        made.backward()
        diffs = [np.array(blob.diff) for blobs in made.params.values() for blob in blobs]
        return diffs, [launch for compiled in made._network.nets.all() for launch in compiled.recording.schedule]


def merged(text: str, slope: float, device: Device, kind: str = "gpu", keep: Sequence[str] = ()) -> list[Launch]:
    """Return the launches of a net after checking that its gradients equal those without fusion."""
    data = layer("data", "Input", "", "input_param { shape { dim: 2 dim: 3 dim: 13 dim: 11 } }")
    net = text_format.Parse(data + text.replace("SLOPE", str(slope)), proto.NetParameter())
    of_class = Device(replace(device.info, target=of_kind(device.target, kind)), device)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sign_masks, "MIN_VALUE_BYTES", 1)
        found, launches = gradients(net, of_class, list(keep))
        switch(patch, "fuse=0")
        plain, _ = gradients(net, of_class, list(keep))
    for want, got in zip(plain, found):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())
    assert np.any(plain[0])
    return launches


def gates_of(launches: list[Launch]) -> dict[str, int]:
    """Return the mask kind of each fused ReLU backward, by layer."""
    return {launch.layer: int(dict(launch.call.defines)["FUSED_RELU"]) for launch in launches if launch.call is not None and launch.mask is not None}


OVERLAPPING, APART, EACH = "kernel_size: 3 stride: 2 pad: 1", "kernel_size: 2 stride: 2", "kernel_size: 3 stride: 1 pad: 1"
START = filtered("conv", "data") + rectified("relu", "conv")
THIN = filtered("more", "data") + rectified("thin", "more")
MAXIMA = START + pooled("pool", "relu", OVERLAPPING)
MEAN = pooled("mean", "relu", "pool: AVE kernel_size: 2")
END = filtered("second", "pool") + squared("second")
TOPS = {
    "overlapping windows": MAXIMA + END,
    "windows apart": START + pooled("pool", "relu", APART) + END,
    "a window for each pixel": START + pooled("pool", "relu", EACH) + END,
    "whole planes": filtered("conv", "data", bias=-1.3) + rectified("relu", "conv") + pooled("pool", "relu", "global_pooling: true") + END,
    "in place": filtered("conv", "data") + rectified("relu", "conv", "conv") + pooled("pool", "conv", OVERLAPPING) + END,
    "branches": START + THIN + layer("all", "Concat", "relu thin") + pooled("pool", "all", OVERLAPPING) + END,
    "top that a layer changes": MAXIMA + layer("bent", "PReLU", "pool", "prelu_param { filler { value: -0.5 } }", "pool") + END,
}


@pytest.mark.parametrize("slope", [0.0, 0.25])
@pytest.mark.parametrize("name", TOPS)
def test_max_pooling_asks_its_top(device: Any, name: str, slope: float) -> None:
    """If the top is kept for backward, there is no sign mask, and the ReLU's output is not kept."""
    for kind in ("gpu", device.target.kind) if name == "whole planes" else ("gpu",):
        launches = merged(TOPS[name], slope, device, kind)
        forward, backward = (launch for launch in launches if launch.layer == "pool")
        assert gates_of(launches) == {"pool": TOP} and not any(launch.what == "sign_mask.pack" for launch in launches)
        assert backward["sign"] is forward["y"]
        assert forward["x"].root not in {ref.root for launch in launches if launch.phase == "backward" for ref in launch.reads}


BIAS = "param { lr_mult: 0 } bias_param { filler { value: -0.5 } }"
BESIDE = THIN + layer("all", "Concat", "pool thin") + pooled("mean", "all", "pool: AVE kernel_size: 2") + squared("mean")
NO_TOPS: dict[str, tuple[str, list[str], dict[str, int]]] = {  # net, kept blobs, the mask kind by layer
    "nobody else reads the top": (MAXIMA + pooled("mean", "pool", "pool: AVE kernel_size: 2") + squared("mean"), [], {"pool": BITS}),
    "nobody else reads more than signs there": (START + pooled("pool", "relu", EACH) + BESIDE, [], {"pool": BITS}),
    "averages": (START + pooled("pool", "relu", f"pool: AVE {OVERLAPPING}") + END, [], {"pool": BITS}),
    "other gradients at other pixels": (MAXIMA + MEAN + END + squared("mean"), [], {"pool": BITS}),
    "something else has gone back": (START + MEAN + pooled("pool", "relu", OVERLAPPING) + END + squared("mean"), [], {"mean": BITS}),
    "maxima of other values": (START + layer("shifted", "Bias", "relu", BIAS) + pooled("pool", "shifted", OVERLAPPING) + END, [], {"pool": BITS}),
    "somebody looks at the top": (MAXIMA + END, ["pool"], {"pool": BITS}),
}


@pytest.mark.parametrize("name", NO_TOPS)
def test_other_pooling_does_not_ask_its_top(device: Any, name: str) -> None:
    text, keep, gates = NO_TOPS[name]
    assert gates_of(merged(text, 0.25, device, keep=keep)) == gates


def test_a_top_spares_a_mask_of_its_bottom_alone(device: Any) -> None:
    """The bottom and another ReLU's output are parts of a blob that backward does not need. Only the bottom needs no mask."""
    both = layer("all", "Concat", "relu thin") + 'layer { name: "end" type: "Silence" bottom: "all" }'
    text = MAXIMA + END + THIN + pooled("mean", "thin", "pool: AVE kernel_size: 2") + squared("mean") + both
    assert gates_of(merged(text, 0.25, device)) == {"pool": TOP, "mean": BITS}
