"""Training under a memory limit: the same bits, less memory, or a refusal before iteration 0."""
from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cl.rates import assumed
from ocaffe.cli.flags import memory_limit
from ocaffe.compiler.compile import CompiledNet, compile_net, nearest_net
from ocaffe.errors import Error, NoRoom
from ocaffe.graph.build import build, infer_shapes
from ocaffe.graph.options import NetOptions, Recompute
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.ir.rates import Rates
from ocaffe.ir.target import Target
from ocaffe.kernels.matmul import gemm_gpu
from ocaffe.memory.report import fixed_bytes, size_texts
from ocaffe.solver.solver import Solver
from ocaffe.solver.update import Updater
from ocaffe.support.switches import Switches
from tests.harness import changed, treat_as_large
from tests.zoo import counts

RESIDUAL_BLOCK = """layer {{ name: "c{i}" type: "Convolution" bottom: "{x}" top: "c{i}" convolution_param {{
  num_output: 8 kernel_size: 3 pad: 1 weight_filler {{ type: "msra" }} }} }}
layer {{ name: "bn{i}" type: "BatchNorm" bottom: "c{i}" top: "c{i}" }}
layer {{ name: "sc{i}" type: "Scale" bottom: "c{i}" top: "c{i}" scale_param {{ bias_term: true }} }}
layer {{ name: "r{i}" type: "ReLU" bottom: "c{i}" top: "c{i}" }}
layer {{ name: "d{i}" type: "Dropout" bottom: "c{i}" top: "c{i}" dropout_param {{ dropout_ratio: 0.3 }} }}
"""


@pytest.fixture(autouse=True)
def small_values_count(monkeypatch: pytest.MonkeyPatch) -> None:
    treat_as_large(monkeypatch, 4096)
    monkeypatch.setattr(gemm_gpu, "SPLIT_SCRATCH", 1 << 16)


def deep_solver(blocks: int = 12) -> Any:
    """Return a solver whose net has so many blocks of Convolution, BatchNorm, Scale, ReLU and Dropout, with residual sums."""
    text = """layer { name: "data" type: "DummyData" top: "im" top: "y" dummy_data_param { shape { dim: 4 dim: 3 dim: 28 dim: 28 } shape { dim: 4 }
              data_filler { type: "gaussian" } data_filler { type: "constant" value: 1 } } }\n"""
    x = "im"
    for i in range(blocks):
        text += RESIDUAL_BLOCK.format(i=i, x=x)
        if i % 2:
            text += f'layer {{ name: "s{i}" type: "Eltwise" bottom: "c{i}" bottom: "{x}" top: "s{i}" }}\n'
            x = f"s{i}"
        else:
            x = f"c{i}"
    text += f'layer {{ name: "ip" type: "InnerProduct" bottom: "{x}" top: "ip" inner_product_param {{ num_output: 4 weight_filler {{ type: "xavier" }} }} }}\n'
    text += 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "y" top: "loss" }\n'
    settings = "base_lr: 0.05 lr_policy: 'fixed' momentum: 0.9 max_iter: 10 random_seed: 3 snapshot_after_train: false"
    return text_format.Parse(f"net_param {{ {text} }} {settings}", proto.SolverParameter())


def trained(device: Any, **settings: Any) -> tuple[dict[str, list[np.ndarray]], int, int]:
    """Return the parameters after five iterations, and the recycled and fixed bytes of the TRAIN net."""
    solver = Solver(deep_solver(), device, **settings)
    solver.step(5)
    compiled = solver.train_nets()[0]
    parameters = solver.network.parameter_arrays()
    solver.close()
    return parameters, compiled.plan.total, fixed_bytes([compiled.recording.schedule])


def equal(a: dict[str, list[np.ndarray]], b: dict[str, list[np.ndarray]]) -> bool:
    return all((x == y).all() for name in a for x, y in zip(a[name], b[name]))


def test_same_bits_in_less_memory(device: Any) -> None:
    kept, without, fixed = trained(device, recompute="none")
    cheap, usual, _ = trained(device, recompute="cheap")
    assert usual < without and equal(cheap, kept)
    limit = fixed + int(0.75 * usual)
    limited, recycled, own = trained(device, memory_limit=limit)  # its history may be on the host
    assert own + recycled <= limit and equal(limited, kept)


def test_a_gpu_keeps_all_values_if_it_has_the_memory() -> None:
    param = deep_solver()
    graph = build(param.net_param, proto.TRAIN)

    def recycled(recompute: Recompute, gpu: Target, limit: int | None = None) -> int:
        options = NetOptions(recompute=recompute, limit=limit)
        return compile_net(graph, ParameterGroup(graph.params), gpu, options, Switches()).plan.total

    large = Target(kind="gpu", unified_memory=False, global_memory=1 << 30, free_memory=1 << 30)
    kept, cheap = recycled("none", large), recycled("cheap", large)
    assert cheap < kept == recycled("auto", large)
    for gpu in (replace(large, global_memory=7 * kept), replace(large, free_memory=kept), replace(large, unified_memory=True)):
        assert recycled("auto", gpu) == cheap
    fixed = fixed_bytes([compile_net(graph, ParameterGroup(graph.params), large, NetOptions(), Switches()).recording.schedule])
    assert recycled("auto", large, limit=fixed + cheap) == cheap


def test_nets_that_measure_shapes_recompute() -> None:
    """Their values are copied from one recording to the next, so both must keep the same ones."""
    text = deep_solver().net_param
    text.layer.add(name="selector", type="DummyData", top=["selector"]).dummy_data_param.shape.add(dim=[4])
    last = next(layer for layer in reversed(text.layer) if layer.type == "Dropout").top[0]
    text.layer.add(name="some", type="Filter", bottom=[last, "selector"], top=["some"])
    text.layer.add(name="sum", type="Reduction", bottom=["some"], top=["sum"], loss_weight=[1])
    graph, found = build(text, proto.TRAIN), {}
    gpu = Target(kind="gpu", unified_memory=False, global_memory=1 << 30, free_memory=1 << 30)
    for recompute in ("none", "cheap", "auto"):
        found[recompute] = compile_net(graph, ParameterGroup(graph.params), gpu, NetOptions(recompute=recompute), Switches()).plan.total
    assert found["auto"] == found["cheap"] < found["none"]


def test_plans_for_all_shapes_recompute_the_same_values_before_them() -> None:
    """A value below 1/128 of all droppable bytes is kept, but not if a Filter changes that sum."""
    text = """layer { name: "x" type: "Input" top: "x" input_param { shape { dim: [16, 8, 28, 28] } } }
        layer { name: "v" type: "Input" top: "v" input_param { shape { dim: [2, 1, 28, 28] } } }
        layer { name: "all" type: "Input" top: "all" input_param { shape { dim: 16 } } }
        layer { name: "small" type: "Convolution" bottom: "v" top: "small" convolution_param { num_output: 1 kernel_size: 3 pad: 1 } }
        layer { name: "abs" type: "TanH" bottom: "small" top: "t" } layer { name: "power" type: "Power" bottom: "t" top: "p" power_param { scale: 2 shift: 1 } }
        layer { name: "small2" type: "Convolution" bottom: "p" top: "small2" convolution_param { num_output: 1 kernel_size: 3 pad: 1 } }
        layer { name: "loss" type: "Reduction" bottom: "small2" top: "loss" loss_weight: 1 }
        layer { name: "some" type: "Filter" bottom: "x" bottom: "all" top: "some" }"""
    below = "some"
    for i in range(8):
        text += f"""layer {{ name: "c{i}" type: "Convolution" bottom: "{below}" top: "c{i}" convolution_param {{ num_output: 8 kernel_size: 3 pad: 1 }} }}
            layer {{ name: "t{i}" type: "TanH" bottom: "c{i}" top: "t{i}" }}
            layer {{ name: "p{i}" type: "Power" bottom: "t{i}" top: "p{i}" power_param {{ scale: 2 shift: 1 }} }}"""
        below = f"p{i}"
    text += f'layer {{ name: "sum" type: "Reduction" bottom: "{below}" top: "sum" loss_weight: 1 }}'
    graph = build(text_format.Parse(text, proto.NetParameter()), proto.TRAIN)
    layer = next(node.layer for node in graph.nodes if node.name == "some")
    found = []
    for samples in (16, 4):
        layer.extent = (samples,)
        infer_shapes(graph, {top: top.shape for node in graph.nodes if not node.bottoms for top in node.tops})
        schedule = compile_net(graph, ParameterGroup(graph.params), Target(), NetOptions(), Switches()).recording.schedule
        found.append(any(ref.name == "p again" for launch in schedule for ref in (*launch.reads, *launch.writes)))
    assert found == [True, True]


def test_a_plan_for_new_shapes_never_reads_dropped_values(device: Any) -> None:
    """Fewer samples behind a Filter need less memory, so that the plan for them would keep values that the limited one has dropped."""

    def convolved(name: str, bottom: str) -> str:
        filters = 'num_output: 8 kernel_size: 5 pad: 2 weight_filler { type: "msra" }'  # Winograd's algorithm would need a workspace
        layers = f'layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}" convolution_param {{ {filters} }} }}'
        return layers + f'layer {{ name: "{name}t" type: "TanH" bottom: "{name}" top: "{name}t" }}'

    text = """layer { name: "x" type: "Input" top: "x" input_param { shape { dim: [16, 8, 28, 28] } } }
        layer { name: "all" type: "Input" top: "all" input_param { shape { dim: 16 } } }"""
    text += convolved("a", "x") + convolved("b", "at") + convolved("c", "bt") + 'layer { name: "some" type: "Filter" bottom: "ct" bottom: "all" top: "some" }'
    text += convolved("d", "some") + convolved("e", "dt") + convolved("f", "et")
    text += 'layer { name: "sum" type: "Reduction" bottom: "ft" top: "sum" loss_weight: 1 }'
    message = text_format.Parse(text, proto.NetParameter())
    images = np.random.default_rng(0).standard_normal((16, 8, 28, 28)).astype(np.float32)
    with Net(message, proto.TRAIN, keep=[], device=device, memory_limit=2_600_000) as net:
        net.forward(x=images, all=np.ones(16, np.float32))
        net.backward()
        with pytest.raises(Error, match="needs 'at', which the plan for the old shape has dropped"):
            net.forward(x=images, all=(np.arange(16) < 4).astype(np.float32))


def test_refused_before_the_first_iteration(device: Any) -> None:
    alone = changed(device, rates=replace(assumed(device.target), to_host=0.0, from_host=0.0))  # without a link, that fewer bytes remain on the device
    with pytest.raises(Error, match=r"TRAIN net needs .* are allowed(?s:.*)batch_size"):
        Solver(deep_solver(), alone, memory_limit=900_000)


def test_the_batch_that_is_named_fits(device: Any) -> None:
    param, limit = deep_solver(), 2_500_000
    with pytest.raises(Error, match="are allowed") as refused:
        Solver(param, device, memory_limit=limit, recompute="none")
    batch = int(re.search(r"batch_size (\d+) \(it is 4\)", str(refused.value))[1])
    assert 1 <= batch < 4
    for shape in param.net_param.layer[0].dummy_data_param.shape:
        shape.dim[0] = batch
    solver = Solver(param, device, memory_limit=limit, recompute="none")
    assert needed(solver) <= limit
    solver.close()


@pytest.mark.parametrize("sizes, texts", [
    ((3 << 30, 1 << 30), ("3.0 GiB", "1.0 GiB")), ((1437 << 20, 1400 << 20), ("1437 MiB", "1400 MiB")),
    (((1 << 30) + 1024, 1 << 30), ("1048577 KiB", "1048576 KiB")), ((5, 5), ("5 B", "5 B")),
])  # fmt: skip
def test_sizes_are_told_apart(sizes: tuple[int, int], texts: tuple[str, str]) -> None:
    assert size_texts(*sizes) == texts


@pytest.mark.parametrize("settings", ["iter_size: 2", "snapshot_diff: true", "test_interval: 2 test_iter: 1 test_state { }"])
def test_a_limit_is_one_of_all_nets_together(device: Any, settings: str) -> None:
    """The limit includes the history if update and passes are separate, and the TEST nets."""
    param = deep_solver()
    text_format.Merge(settings, param)
    solver = Solver(param, device)
    limit = int(0.9 * needed(solver))
    solver.close()
    solver = Solver(param, device, memory_limit=limit)
    assert needed(solver) <= limit
    solver.close()


@pytest.mark.parametrize("settings", ["", "iter_size: 3", "snapshot_diff: true", "test_interval: 2 test_iter: 1 test_state { }"])
def test_a_slowdown_chooses_a_limit_of_all_nets_together(device: Any, settings: str) -> None:
    """The limit is kept. Bits are equal, because this net is not split for so little."""
    param = deep_solver(6)
    text_format.Merge(settings, param)
    free = Solver(param, device, recompute="cheap")
    solver = Solver(param, device, recompute="cheap", max_slowdown=0.15)
    limit = solver.passes[0][0].limit
    assert limit is not None and {options.limit for options in [*(each for each, _ in solver.passes), *solver.test_options]} == {limit}
    assert f"memory limit {limit >> 10}K: predicted " in solver.limit_note and not free.limit_note
    assert needed(solver) <= limit < needed(free)
    for each in (free, solver):
        each.step(3)
    assert equal(solver.network.parameter_arrays(), free.network.parameter_arrays())
    for each in (free, solver):
        each.close()


def test_no_smaller_plan_is_no_limit(device: Any) -> None:
    solver = Solver(deep_solver(0), device, max_slowdown=0.0)
    assert solver.passes[0][0].limit is None and "there is no memory limit" in solver.limit_note
    solver.close()


def needed(solver: Solver) -> int:
    """Return the bytes of a solver's nets: fixed memory of its command lists, and their shared slabs."""
    plans = [commands.plan.total for commands in solver.session.command_lists]
    return fixed_bytes([commands.schedule for commands in solver.session.command_lists]) + max(plans)


def test_a_net_of_the_python_api_keeps_a_limit(device: Any) -> None:
    message = deep_solver().net_param
    nets = [Net(message, proto.TRAIN, keep=[], device=device, seed=5)]
    total = nets[0]._engine.current().plan.total + fixed_bytes([nets[0]._engine.current().recording.schedule])
    nets.append(Net(message, proto.TRAIN, keep=[], device=device, seed=5, memory_limit=int(0.85 * total)))
    for net in nets:
        net.forward()
        net.backward()
    limited = nets[1]._engine.current()
    assert limited.plan.total + fixed_bytes([limited.recording.schedule]) <= 0.85 * total
    for name, params in nets[0].params.items():
        for mine, other in zip(params, nets[1].params[name]):
            assert mine.diff.tobytes() == other.diff.tobytes(), name
    with pytest.raises(Error, match="are allowed"):
        Net(message, proto.TRAIN, device=device, memory_limit=900_000).forward()
    for net in nets:
        net.close()


@pytest.mark.parametrize(("text", "size"), [("4096", 4096), ("2G", 2 << 30), ("1.5m", 3 << 19), ("512KiB", 512 << 10), ("auto", 950), ("", None)])
def test_limits_as_text(text: str, size: int | None) -> None:
    assert memory_limit(text, 1000) == size


def test_wrong_limit() -> None:
    with pytest.raises(Error, match="--memory-limit is 'much'"):
        memory_limit("much")


# Batches whose divisors are near each other: the memory of splits of an H100 does not fall evenly with their number. Channels and kernel of convolutions.
UNEVEN = {
    "a": ([18, 3, 16, 16], [(4, 3, "MAX"), (8, 3, "AVE"), (16, 5, "MAX"), (16, 3, ""), (64, 5, ""), (32, 5, "")], 2_209_752),
}


def uneven(shape: list[int], convolutions: list[tuple[int, int, str]]) -> Any:
    text = f"""layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: {shape} }} }} }}
               layer {{ name: "y" type: "Input" top: "y" input_param {{ shape {{ dim: {shape[0]} }} }} }}"""
    bottom = "x"
    for i, (channels, kernel, pool) in enumerate(convolutions):
        size = f"num_output: {channels} kernel_size: {kernel} pad: {kernel // 2}"
        text += f'layer {{ name: "c{i}" type: "Convolution" bottom: "{bottom}" top: "c{i}" convolution_param {{ {size} }} }}\n'
        bottom = f"c{i}"
        if i:
            text += f'layer {{ name: "r{i}" type: "ReLU" bottom: "{bottom}" top: "{bottom}" }}\n'
        if pool:
            settings = f"pool: {pool} kernel_size: 2 stride: 2"
            text += f'layer {{ name: "p{i}" type: "Pooling" bottom: "{bottom}" top: "p{i}" pooling_param {{ {settings} }} }}\n'
            bottom = f"p{i}"
    for name, count in (("f", 500), ("o", 10)):
        text += f'layer {{ name: "{name}" type: "InnerProduct" bottom: "{bottom}" top: "{name}" inner_product_param {{ num_output: {count} }} }}\n'
        bottom = name
    text += 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "o" bottom: "y" top: "loss" }'
    return build(text_format.Parse(text, proto.NetParameter()), proto.TRAIN)


@pytest.mark.parametrize("net", UNEVEN)
def test_single_samples_that_fit_are_found(net: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # with the sizes that values have in use
    shape, convolutions, limit = UNEVEN[net]
    gpu = Target(
        kind="gpu", name="H100", runtime="nvidia", compute_units=132, unified_memory=False, global_memory=80 << 30, max_allocation=1 << 40,
        free_memory=80 << 30, local_memory=48 << 10, device_fence="PTX", tensor_cores=True,
    )  # fmt: skip
    graph = uneven(shape, convolutions)
    group = ParameterGroup(graph.params)
    updater = Updater(group, proto.SolverParameter(type="SGD", momentum=0.9))
    found = compile_net(graph, group, gpu, NetOptions(backward=True, limit=limit), Switches(), updater)
    assert found.microbatch is not None and found.keeps_limit


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_refusal_names_a_limit_that_is_kept(share: float) -> None:
    """The number does not depend on how low the refused limit is, by more than the steps of the search."""
    param = deep_solver()
    graph = build(param.net_param, proto.TRAIN)
    group = ParameterGroup(graph.params)

    def planned(limit: int) -> CompiledNet:
        return nearest_net(graph, group, Target(), NetOptions(backward=True, limit=limit), Switches())

    least = planned(int(share * planned(1 << 40).plan.total))
    named = fixed_bytes([least.recording.schedule]) + least.plan.total
    assert not least.keeps_limit and planned(named).keeps_limit
    assert not planned(int(0.8 * named)).keeps_limit


def test_nothing_to_recycle_is_refused_plainly() -> None:
    text = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: [2, 8] } } } layer { name: "r" type: "ReLU" bottom: "x" top: "x" }'
    graph = build(text_format.Parse(text, proto.NetParameter()), proto.TEST)
    with pytest.raises(NoRoom, match="are allowed"):
        compile_net(graph, ParameterGroup(graph.params), Target(), NetOptions(limit=10), Switches())


def test_a_refusal_names_the_phase_of_the_net() -> None:
    for phase in ("TRAIN", "TEST"):
        graph = build(deep_solver().net_param, proto.Phase.Value(phase))
        with pytest.raises(NoRoom, match=f"the {phase} net needs"):
            compile_net(graph, ParameterGroup(graph.params), Target(), NetOptions(limit=10), Switches())


def test_a_refusal_tells_that_it_looks_for_the_smallest_plan(capfd: pytest.CaptureFixture[str]) -> None:
    graph = build(deep_solver().net_param, proto.TRAIN)
    with pytest.raises(NoRoom):
        compile_net(graph, ParameterGroup(graph.params), Target(), NetOptions(backward=True, limit=100_000), Switches())
    assert "no plan was found within 97.7 KiB; ocaffe looks for the smallest one" in capfd.readouterr().err


def test_low_limits_have_assumed_speeds_whatever_was_measured() -> None:
    """Else a plan would depend on what the cache holds."""
    graph = build(deep_solver().net_param, proto.TRAIN)
    free = compile_net(graph, ParameterGroup(graph.params), Target(), NetOptions(backward=True, recompute="none"), Switches())
    limit = fixed_bytes([free.recording.schedule]) + int(0.6 * free.plan.total)

    def planned(rates: Rates) -> list[str]:
        found = compile_net(graph, ParameterGroup(graph.params), Target(rates=rates), NetOptions(backward=True, limit=limit), Switches())
        return [f"{launch.layer} {launch.what} {launch.recomputed}" for launch in found.recording.schedule]

    linked = Rates(flops=1e9, bandwidth=1e9, launch=1e-6, to_host=1e11, from_host=1e11)
    expected = planned(assumed(Target()))
    assert planned(replace(linked, room=limit + 1)) == expected != planned(replace(linked, room=limit))


@pytest.mark.long
def test_the_search_goes_down_to_a_small_limit() -> None:
    """For ResNet-50 in batches of 64 a search that begins with this limit ends far above it: at 1.25 times its bytes and more."""
    rates = replace(assumed(counts.H100), to_host=5e10, from_host=5e10)
    limit = 650 << 20
    with pytest.raises(NoRoom, match="are allowed") as refused:
        counts.compiled("resnet50", "TRAIN", replace(counts.H100, rates=rates), NetOptions(backward=True, limit=limit), batch=64)
    named = re.search(r"needs (\d+) MiB", str(refused.value))
    assert named is not None and limit < int(named[1]) << 20 < 1.25 * limit
