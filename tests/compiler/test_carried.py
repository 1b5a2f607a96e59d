"""Values that a pass carries from one compiled net to the next, where a layer measures its shapes (ocaffe/compiler/carried.py).

The second pass with the same inputs runs in one compiled net from its first launch to its last. So it tells the right values of the first pass.
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.compiler import compiled_nets
from ocaffe.compiler.carried import carried
from ocaffe.compiler.compile import Switches, compile_net
from ocaffe.errors import Error
from ocaffe.graph.build import build, infer_shapes
from ocaffe.graph.options import ALL, NetOptions
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.ir.launch import Measure
from ocaffe.ir.target import Target
from ocaffe.passes import prepacked_weights
from ocaffe.solver.solver import Solver
from tests.compiler.random_nets import SAMPLES, random_net
from tests.harness import switch, treat_as_large
from tests.layers.single import close
from tests.tiers import rest_is_long

INPUTS = f"""force_backward: true
layer {{ name: "in" type: "Input" top: "a" top: "x" top: "sel"
        input_param {{ shape {{ dim: [{SAMPLES}, 3, 4, 4] }} shape {{ dim: [{SAMPLES}, 2] }} shape {{ dim: {SAMPLES} }} }} }}
"""
PRODUCT = """layer { name: "c" type: "Convolution" bottom: "a" top: "c"
        convolution_param { num_output: 2 kernel_size: 1 weight_filler { type: "gaussian" } bias_filler { type: "gaussian" } } }
"""
FILTER = 'layer { name: "f" type: "Filter" bottom: "x" bottom: "sel" top: "y" }\n'


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill dead values with NaN, and let the passes treat values of a few elements like large ones."""
    switch(monkeypatch, "poison")
    treat_as_large(monkeypatch, 64)


@contextlib.contextmanager
def net_of(text: str, phase: int, device: Any, **settings: Any) -> Iterator[Net]:
    net = Net(text_format.Parse(text, proto.NetParameter()), phase, device=device, **settings)
    yield net
    net.close()


def fed(net: Net, chosen: tuple[int, ...]) -> None:
    """Write random values into the inputs. `chosen`: the number of samples that each selector chooses."""
    rng, counts = np.random.default_rng(sum(chosen)), iter(chosen)
    for name in net.inputs:
        shape = net.blobs[name].shape
        net.blobs[name].data[...] = rng.permutation(np.arange(SAMPLES) < next(counts)) if len(shape) == 1 else rng.standard_normal(shape)


def passed(net: Net) -> dict[tuple[str, str], np.ndarray]:
    """Run forward, and backward of a TRAIN net. Return all values that the net keeps, and all gradients."""
    net.forward()
    kinds = ["data"]
    if net._engine.options.backward:
        net.clear_param_diffs()
        net.backward()
        kinds.append("diff")
    names = net.blobs if net._engine.options.keep else net.outputs
    found = {(name, kind): np.array(getattr(net.blobs[name], kind)) for name in names for kind in kinds}
    params = [(layer, i, each) for layer, blobs in net.params.items() for i, each in enumerate(blobs)]
    return found | {(layer, f"{kind} of {i}"): np.array(getattr(each, kind)) for layer, i, each in params for kind in kinds}


def check(net: Net, *choices: tuple[int, ...]) -> dict[tuple[str, str], np.ndarray]:
    """Run the net with selections of these numbers of samples. Return the values of the last pass."""
    second: dict[tuple[str, str], np.ndarray] = {}
    for chosen in choices:
        fed(net, chosen)
        first, second = passed(net), passed(net)
        for key, value in second.items():
            assert first[key].shape == value.shape and first[key].tobytes() == value.tobytes(), f"{chosen} samples chosen: {key}"
    return second


VIEWS = {
    "Reshape": 'layer { name: "v" type: "Reshape" bottom: "c" top: "v" reshape_param { shape { dim: 0 dim: -1 } } }',
    "Flatten": 'layer { name: "v" type: "Flatten" bottom: "c" top: "v" }',
    "Split": 'layer { name: "v" type: "Split" bottom: "c" top: "v" top: "w" }',
    "Split with a loss": 'layer { name: "v" type: "Split" bottom: "c" top: "v" top: "w" loss_weight: 2 loss_weight: 0 }',
    "Dropout": 'layer { name: "v" type: "Dropout" bottom: "c" top: "v" include { phase: TEST } }',
    "loss": 'layer { name: "v" type: "Power" bottom: "c" top: "v" loss_weight: 0.5 power_param { power: 2 } }',
    "in place": 'layer { name: "v" type: "TanH" bottom: "c" top: "c" } layer { name: "w" type: "Flatten" bottom: "c" top: "v" }',
}


@pytest.mark.parametrize("keep", [None, []], ids=["all kept", "none kept"])
@pytest.mark.parametrize("phase", [proto.TRAIN, proto.TEST], ids=["TRAIN", "TEST"])
@pytest.mark.parametrize("view", VIEWS)
def test_outputs_beside_a_filter(device: Any, view: str, phase: int, keep: list[str] | None) -> None:
    """Outputs that are views of a value before the Filter; what reads that value behind the Filter; its gradient."""
    read = "w" if view.startswith("Split") else "c"
    behind = "" if read == "c" else f'layer {{ name: "t" type: "TanH" bottom: "{read}" top: "t" }}\n'
    behind += f'layer {{ name: "r" type: "Reduction" bottom: "{read}" top: "r" loss_weight: 1 reduction_param {{ operation: SUMSQ }} }}\n'
    behind += 'layer { name: "s" type: "Reduction" bottom: "y" top: "s" loss_weight: 1 reduction_param { operation: SUMSQ } }\n'
    with net_of(INPUTS + PRODUCT + VIEWS[view] + "\n" + FILTER + behind, phase, device, keep=keep) as net:
        found = check(net, (2,), (SAMPLES,), (0,), (3,))
        weight, bias = (each.data for each in net.params["c"])
        c = np.einsum("oi,nihw->nohw", weight[:, :, 0, 0], net.blobs["a"].data) + bias.reshape(-1, 1, 1)
        c = np.tanh(c) if view == "in place" else c
        close(found["r", "data"], (c.astype(np.float64) ** 2).sum())


def test_places_in_a_concat_that_change(device: Any) -> None:
    """A value before the measurement is part of a Concat behind it: its place depends on the samples before it, and the size of the whole does not."""
    text = INPUTS.replace("3, 4, 4", "2") + """
        layer { name: "c" type: "InnerProduct" bottom: "a" top: "c" inner_product_param { num_output: 2 weight_filler { type: "gaussian" } } }
        layer { name: "p" type: "Python" bottom: "x" bottom: "sel" top: "y" top: "z" python_param { module: "tests.compiler.parted" layer: "Parted" } }
        layer { name: "all" type: "Concat" bottom: "y" bottom: "c" bottom: "z" top: "all" concat_param { axis: 0 } }
        layer { name: "i" type: "InnerProduct" bottom: "all" top: "i" inner_product_param { num_output: 2 weight_filler { type: "gaussian" } } }
        layer { name: "r" type: "Reduction" bottom: "i" top: "r" loss_weight: 1 reduction_param { operation: SUMSQ } }"""
    for phase in (proto.TRAIN, proto.TEST):
        with net_of(text, phase, device, keep=[]) as net:
            check(net, (2,), (5,), (0,), (SAMPLES,), (1,))


def test_a_concat_with_nothing(device: Any) -> None:
    """Without chosen samples the Concat has the size of its other bottom, so that passes choose other views."""
    text = INPUTS + """
        layer { name: "i" type: "InnerProduct" bottom: "x" top: "i" inner_product_param { num_output: 2 weight_filler { type: "gaussian" } } }
        layer { name: "t" type: "TanH" bottom: "i" top: "t" }
        layer { name: "f" type: "Filter" bottom: "x" bottom: "sel" top: "y" }
        layer { name: "all" type: "Concat" bottom: "t" bottom: "y" top: "all" concat_param { axis: 0 } }
        layer { name: "r" type: "InnerProduct" bottom: "all" top: "r" inner_product_param { num_output: 2 weight_filler { type: "gaussian" } } }"""
    with net_of(text, proto.TEST, device, keep=[]) as net:
        check(net, (2,), (0,), (5,), (0,))


def test_weights_that_are_packed_for_some_shapes(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few samples make it worthwhile to keep packed weights, so that only one of the two compiled nets keeps them."""
    filters = 'num_output: 16 kernel_size: 3 pad: 1 weight_filler { type: "gaussian" }'
    text = INPUTS + f"""
        layer {{ name: "c" type: "Convolution" bottom: "a" top: "c" convolution_param {{ {filters} }} }}
        layer {{ name: "f" type: "Filter" bottom: "c" bottom: "sel" top: "y" }}
        layer {{ name: "d" type: "Convolution" bottom: "y" top: "d" convolution_param {{ {filters} }} }}"""
    with net_of(text, proto.TEST, device, keep=[]) as net:
        flops = {}
        for count in (SAMPLES, 1):
            fed(net, (count,))
            net.forward()
            flops[count] = sum(launch.flops for launch in net._engine.current().recording.schedule)
        made = sum(ref.nbytes for ref in net._engine.network.graph.prepacked.values())
    monkeypatch.setattr(prepacked_weights, "MIN_BYTES_PER_FLOP", 2 * made / (flops[1] + flops[SAMPLES]))
    with net_of(text, proto.TEST, device, keep=[]) as net:
        check(net, (SAMPLES,), (1,), (SAMPLES,), (2,), (0,), (1,))


DATA = f"""layer {{ name: "in" type: "DummyData" top: "a" top: "x" top: "u" dummy_data_param {{
    shape {{ dim: [{SAMPLES}, 3, 4, 4] }} shape {{ dim: [{SAMPLES}, 2] }} shape {{ dim: {SAMPLES} }}
    data_filler {{ type: "gaussian" }} data_filler {{ type: "gaussian" }} data_filler {{ type: "uniform" min: 0 max: 1 }} }} }}
layer {{ name: "sel" type: "Threshold" bottom: "u" top: "sel" threshold_param {{ threshold: 0.5 }} }}
"""


def test_a_solver_beside_a_filter(device: Any) -> None:
    """Blobs that a script can read change nothing, neither parameters nor losses. The loss weight is on a view."""
    layers = DATA + PRODUCT + VIEWS["Split with a loss"] + FILTER + """
        layer { name: "s" type: "Reduction" bottom: "y" top: "s" loss_weight: 1 }
        layer { name: "r" type: "Reduction" bottom: "w" top: "r" loss_weight: 1 reduction_param { operation: SUMSQ } }"""
    settings = "base_lr: 0.001 lr_policy: 'fixed' momentum: 0.9 random_seed: 3 display: 1 max_iter: 6 snapshot_after_train: false"
    param = text_format.Parse(f"net_param {{ {layers} }} {settings}", proto.SolverParameter())
    trained = []
    for keep in (frozenset[str](), ALL):
        solver, losses = Solver(param, device, keep=keep), []
        solver.on_record = lambda record, losses=losses: losses.append(record["loss"])
        solver.step(6)
        trained.append([*solver.network.parameter_arrays()["c"], np.array(losses)])
        assert len(solver.network.nets.all()) > 2, "the selections have several sizes"
        solver.close()
    for plain, kept in zip(*trained):
        close(kept, plain, 1e-6)


def test_plans_that_differ_before_the_measurement(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a memory limit lets the plan for other shapes have other launches before the measurement, for example microbatches of another size."""
    with net_of(INPUTS + PRODUCT + FILTER, proto.TEST, device, memory_limit=1 << 20) as net:
        fed(net, (SAMPLES,))
        net.forward()
        schedule = net._engine.current().recording.schedule
        step = next(index for index, launch in enumerate(schedule) if isinstance(launch, Measure))
        assert carried(schedule, schedule, step) and carried(schedule, [schedule[0], *schedule], step) is None
        monkeypatch.setattr(compiled_nets, "carried", lambda *schedules: None)
        fed(net, (2,))
        fact = r"(?s)'f' \(Filter\)\n  with its new shape, the plan has other launches before this layer.*give --memory-limit a larger number"
        with pytest.raises(Error, match=fact):
            net.forward()


def test_the_workspace_before_a_measurement_does_not_depend_on_its_size() -> None:
    """Large nets may use more memory for Winograd's algorithm. The number of values that a Filter chooses must not change the launches before it."""
    filters = "convolution_param { num_output: 64 kernel_size: 3 pad: 1 }"
    text = f"""layer {{ name: "in" type: "Input" top: "x" top: "s" input_param {{ shape {{ dim: [64, 64, 112, 112] }} shape {{ dim: 64 }} }} }}
        layer {{ name: "c" type: "Convolution" bottom: "x" top: "c" {filters} }} layer {{ name: "f" type: "Filter" bottom: "c" bottom: "s" top: "y0" }}"""
    text += "".join(f'layer {{ name: "d{i}" type: "Convolution" bottom: "y{i}" top: "y{i + 1}" {filters} }}' for i in range(12))
    graph, schedules = build(text_format.Parse(text, proto.NetParameter()), proto.TEST), []
    for extent in (None, (4,)):
        next(node.layer for node in graph.nodes if node.name == "f").extent = extent
        infer_shapes(graph, {top: top.shape for node in graph.nodes if not node.bottoms for top in node.tops})
        gpu, options = Target(kind="gpu", max_allocation=1 << 34), NetOptions(backward=False)
        schedules.append(compile_net(graph, ParameterGroup(graph.params), gpu, options, Switches()).recording.schedule)
    step = next(index for index, launch in enumerate(schedules[0]) if isinstance(launch, Measure))
    assert carried(*schedules, step)


# -- random nets ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", rest_is_long(range(24), 8))
def test_random_nets(device: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nets with several measurements, views, Concats, losses and work in place, also compared with a plan that shares no memory."""
    draw = Random(seed)
    treat_as_large(monkeypatch, draw.choice([64, 600]))
    phase, keep = draw.choice([proto.TRAIN, proto.TRAIN, proto.TEST]), draw.choice([None, []])
    text = random_net(seed)
    choices = [(4, 2), (draw.randrange(SAMPLES + 1), 2), (3, draw.randrange(SAMPLES + 1))]
    with net_of(text, phase, device, keep=keep, seed=seed) as net:
        found = check(net, *choices)
    switch(monkeypatch, "plan=none")
    with net_of(text, phase, device, keep=keep, seed=seed) as net:
        fed(net, choices[-1])
        passed(net)
        for key, value in passed(net).items():
            close(found[key], value, 1e-4)
