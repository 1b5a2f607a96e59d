"""Nets whose convolutions use wgmma, emulated, with channels in blocks: gradients equal those of the other kernels up to the rounding to bfloat16."""
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cl.device import Device
from ocaffe.compiler.compile import compile_net
from ocaffe.graph.build import build
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.ir.target import Target
from ocaffe.kernels.convolution.winograd import winograd_gpu
from ocaffe.kernels.matmul import gemm_gpu
from ocaffe.selftest.compare import Side, compare
from ocaffe.support.switches import Switches
from tests.harness import of_kind, switch, treat_as_large
from tests.passes.test_residual import gone_back

DATA = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 4 dim: 3 dim: 14 dim: 16 } } }'
LOSS = """layer { name: "whole" type: "Pooling" bottom: "BOTTOM" top: "whole" pooling_param { pool: AVE global_pooling: true } }
layer { name: "ip" type: "InnerProduct" bottom: "whole" top: "ip" inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "Reduction" bottom: "ip" top: "loss" reduction_param { operation: SUMSQ } loss_weight: 1 }"""


def convolution(name: str, bottom: str, outputs: int, kernel: int, stride: int = 1, bias: bool = False, group: int = 1) -> str:
    fillers = 'weight_filler { type: "msra" } bias_filler { type: "gaussian" std: 0.1 }'
    shape = f"num_output: {outputs} kernel_size: {kernel} pad: {kernel // 2} stride: {stride} bias_term: {str(bias).lower()} group: {group}"
    return f'layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}" convolution_param {{ {shape} {fillers} }} }}'


def normalized(name: str) -> str:
    return "".join(f'layer {{ name: "{name}/{kind}" type: "{kind}" bottom: "{name}" top: "{name}" {more} }}' for kind, more in (
        ("BatchNorm", ""), ("Scale", 'scale_param { bias_term: true filler { type: "gaussian" mean: 1 std: 0.1 } }')))  # fmt: skip


def relu(name: str) -> str:
    return f'layer {{ name: "{name}/relu" type: "ReLU" bottom: "{name}" top: "{name}" }}'


def clip(name: str) -> str:
    return f'layer {{ name: "{name}/clip" type: "Clip" bottom: "{name}" top: "{name}/clip" clip_param {{ min: 0 max: 0.4 }} }}'


def pool(name: str, bottom: str) -> str:
    return f'layer {{ name: "{name}" type: "Pooling" bottom: "{bottom}" top: "{name}" pooling_param {{ pool: MAX kernel_size: 2 stride: 2 }} }}'


def reshape(name: str, bottom: str, shape: tuple[int, ...]) -> str:
    dims = " ".join(f"dim: {size}" for size in shape)
    return f'layer {{ name: "{name}" type: "Reshape" bottom: "{bottom}" top: "{name}" reshape_param {{ shape {{ {dims} }} }} }}'


def concat(name: str, *bottoms: str) -> str:
    return f'layer {{ name: "{name}" type: "Concat" ' + "".join(f'bottom: "{bottom}" ' for bottom in bottoms) + f'top: "{name}" }}'


def response(name: str, bottom: str) -> str:
    return f'layer {{ name: "{name}" type: "LRN" bottom: "{bottom}" top: "{name}" lrn_param {{ local_size: 5 alpha: 0.5 }} }}'


NETS = {  # and the values that must be in blocks, at least
    "residual": (
        DATA + convolution("c0", "data", 16, 3) + normalized("c0") + relu("c0") + convolution("c1", "c0", 32, 3) + normalized("c1") + relu("c1")
        + convolution("c2", "c1", 16, 1) + normalized("c2") + 'layer { name: "sum" type: "Eltwise" bottom: "c0" bottom: "c2" top: "sum" }' + relu("sum")
        + convolution("c3", "sum", 16, 3, 2) + normalized("c3") + relu("c3") + convolution("c4", "c3", 16, 3) + LOSS.replace("BOTTOM", "c4"),
        {"c1", "c2", "c4"},
    ),
    "plain": (
        DATA + convolution("c0", "data", 16, 3, bias=True) + relu("c0") + convolution("c1", "c0", 32, 3, bias=True) + relu("c1") + pool("p1", "c1")
        + convolution("c2", "p1", 16, 3, bias=True) + relu("c2") + convolution("c3", "c2", 16, 1, bias=True) + relu("c3") + LOSS.replace("BOTTOM", "c3"),
        {"c1", "c2"},
    ),
    "responses": (
        DATA + convolution("c0", "data", 24, 5, 2, bias=True) + relu("c0") + response("n0", "c0") + pool("p0", "n0") + response("n1", "p0")
        + convolution("c1", "n1", 16, 3, bias=True) + LOSS.replace("BOTTOM", "c1"),
        {"c0", "n0", "p0", "n1", "c1"},
    ),
    "inverted": (
        DATA + convolution("c0", "data", 16, 3) + normalized("c0") + relu("c0") + convolution("wide", "c0", 24, 1) + normalized("wide") + relu("wide")
        + convolution("d", "wide", 24, 3, group=24) + normalized("d") + relu("d") + convolution("c1", "d", 16, 1) + normalized("c1")
        + 'layer { name: "sum" type: "Eltwise" bottom: "c0" bottom: "c1" top: "sum" }' + convolution("c2", "sum", 24, 1) + relu("c2")
        + convolution("d2", "c2", 24, 3, 2, bias=True, group=24) + relu("d2") + convolution("c3", "d2", 16, 1) + LOSS.replace("BOTTOM", "c3"),
        {"wide", "d", "c1", "c2", "d2", "c3"},
    ),
    "groups": (
        DATA + convolution("c0", "data", 64, 3, bias=True) + relu("c0") + convolution("c1", "c0", 80, 3, bias=True, group=2) + relu("c1")
        + convolution("c2", "c1", 64, 3, 2, group=2) + normalized("c2") + relu("c2") + convolution("c3", "c2", 16, 1) + LOSS.replace("BOTTOM", "c3"),
        {"c0", "c1", "c2", "c3"},
    ),
    "bounded": (
        DATA + convolution("c0", "data", 16, 3) + normalized("c0") + clip("c0") + convolution("c1", "c0/clip", 24, 3, 2) + normalized("c1") + clip("c1")
        + LOSS.replace("BOTTOM", "c1/clip"),
        {"c1", "c1/clip"},
    ),
    "axis": (
        DATA + convolution("c0", "data", 16, 3) + relu("c0") + reshape("apart", "c0", (2, 2, 16, 14, 16))
        + convolution("c1", "apart", 16, 3, bias=True).replace("group: 1", "group: 1 axis: 2") + reshape("together", "c1", (4, 16, 14, 16))
        + convolution("c2", "together", 16, 1) + LOSS.replace("BOTTOM", "c2"),
        {"c2"},
    ),
    "branches": (
        DATA + convolution("c0", "data", 16, 3) + relu("c0") + convolution("a", "c0", 16, 1, bias=True) + relu("a") + convolution("b", "c0", 32, 3, bias=True)
        + relu("b") + 'layer { name: "all" type: "Concat" bottom: "a" bottom: "b" top: "all" }' + convolution("c", "all", 16, 1, bias=True) + relu("c")
        + LOSS.replace("BOTTOM", "c"),
        {"c"},
    ),
    "copies": (  # Concat copies a bottom that is an input or its own bottom again
        DATA.replace("dim: 3", "dim: 16") + convolution("c0", "data", 16, 3) + concat("twice", "c0", "c0") + convolution("c1", "twice", 16, 3)
        + concat("all", "data", "c1") + convolution("c2", "all", 16, 1) + LOSS.replace("BOTTOM", "c2"),
        {"c2"},
    ),
    "dense": (  # a Concat is a bottom of another one
        DATA + convolution("c0", "data", 32, 3) + relu("c0") + convolution("a", "c0", 16, 1) + convolution("b", "c0", 16, 3) + concat("ab", "a", "b")
        + concat("abc", "ab", "c0") + convolution("d", "ab", 16, 1) + concat("m", "abc", "d") + convolution("z", "m", 16, 3) + LOSS.replace("BOTTOM", "z"),
        {"z"},
    ),
}  # fmt: skip


def emulated(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip PoCL, and let values of any size be bfloat16."""
    if device.target.runtime == "pocl":
        pytest.skip("PoCL compiles the emulation for minutes; tests/kernels/convolution/blocks_gpu/test_conv_blocks.py runs its kernels")
    treat_as_large(monkeypatch, 1)


def of_math(device: Device, math: str, wgmma: bool) -> Device:
    """Return the device with the kernels of GPUs and an arithmetic of products."""
    with pytest.MonkeyPatch.context() as patch:
        if not wgmma:
            switch(patch, "wgmma=0")  # of a device that has it, too
        return Device(replace(device.info, target=replace(of_kind(device.target, "gpu"), math=math, wgmma=wgmma)), device)


SHORT = {"bf16": ("residual", "groups", "branches", "axis", "copies"), "tf32": ("responses", "inverted")}  # CPU runtimes compile each net for seconds
CASES = [
    pytest.param(name, math, bound, marks=[] if name in SHORT[math] else pytest.mark.long)
    for math, bound in (("bf16", 0.03), ("tf32", 0.1)) for name in NETS
]  # fmt: skip


# A CPU's products without wgmma are those of floats: 0 for tf32. One ReLU that passes another value makes a few percent.
@pytest.mark.parametrize("name, chosen, bound", CASES)
def test_gradients(device: Device, monkeypatch: pytest.MonkeyPatch, name: str, chosen: str, bound: float) -> None:
    """The errors of gradients, relative to float multiply-adds, are as large as without blocks."""
    emulated(device, monkeypatch)
    monkeypatch.setattr(gemm_gpu, "tiles_for", lambda *_: gemm_gpu.TILES[-1:])
    monkeypatch.setattr(winograd_gpu, "product_tiles", lambda _: gemm_gpu.TILES[-1:])
    text, wanted = NETS[name]
    message, results = text_format.Parse(text, proto.NetParameter()), []
    for math, wgmma in (("ieee", False), (chosen, False), (chosen, True)):
        chosen_device = of_math(device, math, wgmma)
        with gone_back(message, chosen_device, keep=[], seed=1) as (net, diffs):
            refs = [ref for compiled in net._network.nets.all() for launch in compiled.recording.schedule for ref in (*launch.reads, *launch.writes)]
            results.append(diffs)
            blocked = {ref.root for ref in refs if ref.root.blocked}
            assert all(ref.dtype in (chosen_device.target.block_type, np.uint32, np.uint8) for ref in blocked)  # images, masks, indices of maxima
            assert {ref.name for ref in blocked} >= (wanted if wgmma else set()), blocked
            assert wgmma or not blocked
    for key, expected in results[0].items():
        before, after = (np.abs(found[key] - expected).max() / np.abs(expected).max() for found in results[1:])
        assert after <= 3 * before + bound, (key, before, after)


SMOOTH = {
    "linear": convolution("c0", "data", 16, 3, bias=True) + convolution("c1", "c0", 32, 3) + convolution("c2", "c1", 16, 1) + convolution("c3", "c2", 16, 3, 2),
    "responses": convolution("c0", "data", 16, 3, bias=True) + response("n0", "c0") + convolution("c3", "n0", 16, 1, bias=True),
    "normalized": convolution("c0", "data", 16, 3) + normalized("c0") + convolution("c1", "c0", 32, 3) + normalized("c1") + convolution("c3", "c1", 16, 1),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_errors_of_tf32_without_kinks(device: Device, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Where no rounding makes a ReLU or a maximum choose otherwise, all gradients have TF32's error, an eighth of bfloat16's."""
    emulated(device, monkeypatch)
    message, results = text_format.Parse(DATA + SMOOTH[name] + LOSS.replace("BOTTOM", "c3"), proto.NetParameter()), []
    for math, wgmma in (("ieee", False), ("tf32", True)):
        with gone_back(message, of_math(device, math, wgmma), keep=[], seed=1) as (_, diffs):
            results.append(diffs)
    for key, expected in results[0].items():
        assert np.abs(results[1][key] - expected).max() <= 0.005 * np.abs(expected).max(), key


@pytest.mark.parametrize("math, bound", [("bf16", 0.03), ("tf32", 0.005)])
def test_a_clip_is_part_of_the_convolution_before_it(device: Device, monkeypatch: pytest.MonkeyPatch, math: str, bound: float) -> None:
    """In TEST. In TRAIN backward needs the values between."""
    emulated(device, monkeypatch)
    text = DATA.replace("dim: 4", "dim: 8") + convolution("c0", "data", 16, 3, bias=True) + clip("c0")
    text += convolution("c1", "c0/clip", 24, 1) + normalized("c1") + clip("c1")
    text += convolution("d", "c1/clip", 24, 3, bias=True, group=24) + clip("d") + convolution("c2", "d/clip", 16, 1, bias=True) + clip("c2")
    text += convolution("c3", "c2/clip", 24, 3, bias=True)
    text += 'layer { name: "sum" type: "Eltwise" bottom: "d/clip" bottom: "c3" top: "sum" }' + clip("sum")
    text += convolution("c4", "sum/clip", 16, 1, bias=True)
    images, found = np.random.default_rng(0).standard_normal((8, 3, 14, 16)).astype(np.float32), []
    for chosen, wgmma in (("ieee", False), (math, True)):
        with Net(text_format.Parse(text, proto.NetParameter()), proto.TEST, keep=[], seed=1, device=of_math(device, chosen, wgmma)) as net:
            for layer in net.params:
                if layer.endswith("BatchNorm"):
                    net.params[layer][1].data[...] = net.params[layer][2].data[...] = 1
            found.append(net.forward(data=images)["c4"].copy())
            schedules = [compiled.recording.schedule for compiled in net._network.nets.all()]
            own = [launch.layer for schedule in schedules for launch in schedule if "fmin" in launch.what]
            assert own == [] if wgmma else own == ["c0/clip", "c1/clip", "d/clip", "c2/clip", "sum/clip"]
    assert np.abs(found[1] - found[0]).max() <= bound * np.abs(found[0]).max()


@pytest.mark.parametrize("math", ["bf16", "tf32"])
def test_signs_of_a_value_in_caffes_order(device: Device, monkeypatch: pytest.MonkeyPatch, math: str) -> None:
    """Signs that a convolution needs in blocks are packed from a copy, where the value must stay: here because an InnerProduct reads the pooled value.

    A frozen convolution needs only the signs of its bottom. Another one needs the value, and so no bits. The gradients of the layer before are equal.
    """
    emulated(device, monkeypatch)
    product = 'inner_product_param { num_output: 3 weight_filler { type: "xavier" } }'
    text = DATA + convolution("c0", "data", 16, 3, bias=True) + relu("c0") + convolution("c1", "c0", 32, 3, bias=True)
    text += pool("p0", "c0").replace("MAX", "AVE") + f'layer {{ name: "seen" type: "InnerProduct" bottom: "p0" top: "seen" {product} }}'
    text += 'layer { name: "more" type: "Reduction" bottom: "seen" top: "more" reduction_param { operation: SUMSQ } loss_weight: 1 }'
    text += LOSS.replace("BOTTOM", "c1")
    results, bits = [], []
    for rate in (0, 1):
        given = text.replace('name: "c1"', f'name: "c1" param {{ lr_mult: {rate} }} param {{ lr_mult: {rate} }}')
        with gone_back(text_format.Parse(given, proto.NetParameter()), of_math(device, math, True), keep=[], seed=1) as (net, diffs):
            results.append({key: diffs[key] for key in ("c0/0", "c0/1")})
            schedule = [launch for compiled in net._network.nets.all() for launch in compiled.recording.schedule]
            bits.append({ref.root.name for launch in schedule for ref in launch.reads if ref.root.blocked and ref.dtype == np.uint32})
    assert bits == [{"c0.positive"}, set()]
    for key, values in results[0].items():
        assert values.any()
        np.testing.assert_array_equal(values, results[1][key])


@pytest.mark.parametrize("math, bound", [("bf16", 0.03), ("tf32", 0.005)])
def test_compare_sees_caffes_order(device: Device, monkeypatch: pytest.MonkeyPatch, math: str, bound: float) -> None:
    """`ocaffe compare` reads values in blocks in Caffe's order."""
    emulated(device, monkeypatch)
    text = DATA + convolution("c0", "data", 16, 3) + convolution("c1", "c0", 24, 1, bias=True) + LOSS.replace("BOTTOM", "c1")
    sides = []
    for chosen, wgmma in (("ieee", False), (math, True)):
        sides.append(Side(text_format.Parse(text, proto.NetParameter()), proto.TRAIN, of_math(device, chosen, wgmma), plain=False))
    assert any(launch.kernel.needs_blocks for launch in sides[1].network.nets.bound(sides[1].options).recording.schedule)
    rows = [row for row in compare(*sides) if row.error is not None]
    assert len(rows) > 4 and all(row.error <= bound for row in rows), rows
    for side in sides:
        side.network.close()


def test_few_pixels_in_test_have_kernels_that_split_the_depth() -> None:
    message = text_format.Parse(NETS["plain"][0], proto.NetParameter())
    for units, backward, expected in ((1, False, True), (132, False, False), (132, True, True)):
        target = Target(kind="gpu", runtime="nvidia", tensor_cores=True, math="bf16", wgmma=True, compute_units=units)
        graph = build(message, proto.TRAIN, lambda source, text: None)
        schedule = compile_net(graph, ParameterGroup(graph.params), target, NetOptions(backward=backward), Switches()).recording.schedule
        assert any(launch.kernel.needs_blocks for launch in schedule) == expected


@pytest.mark.parametrize("switches, options", [(Switches(share=False), {}), (Switches(), {"fuse": False}), (Switches(), {"apart": True})])
def test_schedules_without_the_pass_have_other_kernels(switches: Switches, options: dict[str, bool]) -> None:
    """A solver's debug_info, a run layer by layer, and the plain side of a comparison keep Caffe's order."""
    message = text_format.Parse(NETS["plain"][0], proto.NetParameter())
    target = Target(kind="gpu", runtime="nvidia", tensor_cores=True, math="bf16", wgmma=True, compute_units=132)
    for plain in (False, True):
        graph = build(message, proto.TRAIN, lambda source, text: None)
        given, chosen = (NetOptions(backward=True, **options), switches) if plain else (NetOptions(backward=True), Switches())
        schedule = compile_net(graph, ParameterGroup(graph.params), target, given, chosen).recording.schedule
        assert any(launch.kernel.needs_blocks for launch in schedule) != plain
