"""onnx's reference evaluator as a judge: each operator that ocaffe exports is right there, or is in UNJUDGED, and then its layer is left out."""
from __future__ import annotations

import contextlib
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from ocaffe.cli import main
from ocaffe.convert import consumers
from ocaffe.convert.export import Exported, Options, export
from ocaffe.convert.pieces import reads
from ocaffe.convert.reference import UNJUDGED, evaluator, unjudged
from ocaffe.convert.verify import difference, random_inputs, verify
from ocaffe.errors import Error
from ocaffe.support.progress import heartbeat
from tests.convert.test_golden import GOLDEN, exported, meant
from tests.test_golden import TOLERANCE, Case

LRN = """
name: "lrn"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 9 dim: 9 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 8 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "norm" type: "LRN" bottom: "conv" top: "norm" lrn_param { local_size: 5 alpha: 0.5 beta: 0.75 } }
layer { name: "up" type: "Deconvolution" bottom: "norm" top: "up" convolution_param { num_output: 4 group: 2 kernel_size: 2 weight_filler { type: "xavier" } } }
layer { name: "fc" type: "InnerProduct" bottom: "up" top: "fc" inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""
EXACT = 1e-4  # of the largest magnitude


def alone(node: Any, opset: int, values: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Compute one node in the reference, from the values of onnxruntime."""
    read = [name for name in dict.fromkeys(reads(node)) if name in values]
    infos = [[onnx.helper.make_value_info(name, onnx.TypeProto()) for name in names if name] for names in (read, node.output)]
    graph = onnx.helper.make_graph([node], "alone", *infos)
    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(graph, opsets={"": opset}).run(None, {name: values[name] for name in read}))


def nodes(name: str) -> Iterator[tuple[Any, bool]]:
    """Yield the nodes of an exported golden case, and whether the reference computes them as onnxruntime does."""
    case = Case(GOLDEN / f"{name}.npz", TOLERANCE)
    model = exported(case).model
    feeds = {blob: array for (blob,), array in case.get("in", 1)}
    given = {info.name: np.require(feeds[info.name], np.float32) for info in model.graph.input if info.name in feeds}
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    made = [name for node in model.graph.node for name in node.output if name]
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    values = constants | given | dict(zip(made, session.run(made, given)))
    for node in model.graph.node:
        try:
            results = alone(node, model.opset_import[0].version, values)
        except Exception:  # the evaluator has no exception type
            yield node, False
            continue
        yield node, all(difference(np.asarray(result), values[name]) <= EXACT for name, result in zip(filter(None, node.output), results))


@pytest.mark.parametrize("name", [name for name in meant() if name.startswith(("layers/", "forks/")) and "/Net-" not in name])
def test_the_reference_is_right_or_no_judge(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
    monkeypatch.syspath_prepend(str(GOLDEN / "layers"))
    for node, right in nodes(name):
        assert right or (node.op_type in UNJUDGED and UNJUDGED[node.op_type](node)), node.op_type


@pytest.fixture
def without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # importing it fails


@pytest.fixture
def net(tmp_path: pathlib.Path) -> str:
    file = tmp_path / "net.prototxt"
    file.write_text(LRN)
    return str(file)


def of(net: str, *cut_at: str) -> Exported:
    return export(net, None, Options(fillers=True, cut_at=cut_at))


def test_a_net_with_lrn_converts(net: str, tmp_path: pathlib.Path, without_onnxruntime: None, device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    model, back = str(tmp_path / "m.onnx"), [str(tmp_path / name) for name in ("back.prototxt", "back.caffemodel")]
    assert main(["convert", net, model, "--fillers", "--device", str(device.number)]) == 0
    told = capsys.readouterr().out
    assert "NOT VERIFIED: layer 'norm' (LRN), layer 'up' (Deconvolution), which onnx.reference" in told and "pip install onnxruntime" in told
    assert main(["convert", model, *back, "--device", str(device.number)]) == 0
    assert "NOT VERIFIED: layer 'norm' (LRN), layer 'up' (Deconvolution), which" in capsys.readouterr().out


def test_the_other_layers_are_judged(net: str, without_onnxruntime: None, device: Any) -> None:
    made = of(net)
    found = verify(made, [random_inputs(made.graph)], device)
    assert not found.differences and 0 < found.share <= 1
    (tensor,) = (tensor for tensor in made.model.graph.initializer if tensor.name == "fc/0")
    tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * np.float32(1.01), "fc/0"))
    with pytest.raises(Error, match="the first blob that differs is 'fc'"):
        verify(made, [random_inputs(made.graph)], device)


def test_outputs_before_it_are_judged(net: str, without_onnxruntime: None, device: Any) -> None:
    made = of(net, "conv", "norm")
    found = verify(made, [random_inputs(made.graph)], device)
    assert list(found.differences) == ["conv"] and found.unjudged == ("layer 'norm' (LRN)",)


def test_onnxruntime_judges_all(net: str, device: Any) -> None:
    made = of(net)
    found = verify(made, [random_inputs(made.graph)], device)
    assert not found.unjudged and list(found.differences) == ["prob"]


def test_only_groups_and_lrn_are_left_out(net: str) -> None:
    assert unjudged(of(net, "conv").model) == {}
    values = unjudged(of(net, "up").model)
    assert set(values.values()) == {"LRN", "ConvTranspose"} and {"norm", "up"} <= set(values)
    assert set(unjudged(of(net, "norm").model).values()) == {"LRN"}
    pathlib.Path(net).write_text(LRN.replace('"LRN"', '"ReLU"').replace("lrn_param { local_size: 5 alpha: 0.5 beta: 0.75 }", ""))
    assert set(unjudged(of(net).model).values()) == {"ConvTranspose"}
    pathlib.Path(net).write_text(LRN.replace('"LRN"', '"ReLU"').replace("lrn_param { local_size: 5 alpha: 0.5 beta: 0.75 }", "").replace("group: 2", ""))
    assert unjudged(of(net).model) == {}


def test_verify_in_the_reference(net: str, device: Any) -> None:
    made = of(net)
    with pytest.raises(Error, match="onnx's reference does not compute ConvTranspose and LRN right") as caught:
        consumers.verify_in("reference", made, [random_inputs(made.graph)], device)
    assert "pip install onnxruntime" in str(caught.value.fix)


POOLS = {  # nodes on x, 2 x 3 x 11 x 8
    "plain": "kernel_shape=[3, 2]", "strides": "kernel_shape=[3, 3], strides=[2, 3]", "pads": "kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 1, 2]",
    "ceil": "kernel_shape=[3, 3], strides=[2, 3], ceil_mode=1", "ceil and pads": "kernel_shape=[2, 2], strides=[3, 3], pads=[1, 1, 1, 1], ceil_mode=1",
    "dilations": "kernel_shape=[3, 2], dilations=[2, 3], strides=[1, 2]", "automatic": 'kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"',
}  # fmt: skip


@pytest.mark.parametrize("pads", ["", ", count_include_pad=1"])
@pytest.mark.parametrize("form", POOLS)
def test_pools(form: str, pads: str) -> None:
    """The own pooling of the judge computes as onnxruntime does, and tells each node."""
    nodes = f"y = AveragePool<{POOLS[form]}{pads}>(x) z = MaxPool<{POOLS[form]}>(x)"
    sides = "(float[2, 3, 11, 8] x) => (float[a, b, c, d] y, float[a, b, c, d] z)"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 22]> net {sides} {{ {nodes} }}')
    x, told = np.random.default_rng(0).standard_normal((2, 3, 11, 8)).astype(np.float32), list[str]()
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    found = evaluator(model, ["y", "z"], told.append)(None, {"x": x})
    assert all(difference(*pair) < 1e-6 for pair in zip(found, expected))
    assert told == ["node 1 of 2, AveragePool", "node 2 of 2, MaxPool"]


def test_a_heartbeat_names_the_step(capsys: pytest.CaptureFixture[str]) -> None:
    with heartbeat("comparing", 0.01) as tell:
        tell("the net in ocaffe")
        time.sleep(0.1)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 1 and lines[-1] == "comparing (0 s): the net in ocaffe"
    time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_a_missing_runtime_is_named_first(tmp_path: pathlib.Path, device: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each step is told."""
    steps = list[str]()

    @contextlib.contextmanager
    def all_steps(what: str) -> Iterator[Any]:
        yield steps.append

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setattr("ocaffe.cli.convert.heartbeat", all_steps)
    (tmp_path / "net.prototxt").write_text(LRN)
    assert main(["convert", str(tmp_path / "net.prototxt"), str(tmp_path / "m.onnx"), "--fillers", "--device", str(device.number)]) == 0
    assert "onnxruntime is missing" in capsys.readouterr().err
    runtime = f"onnx.reference {onnx.__version__}"
    assert steps[0] == "the net in ocaffe" and f"the model, in {runtime}" in steps and f"each layer by itself, node 1 of 4, Conv, in {runtime}" in steps
    assert any(step.startswith("each layer with rounding errors, sample 3 of 3, node 4 of 4") for step in steps)
