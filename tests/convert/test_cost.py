"""`ocaffe convert` tells what the comparison of a net with its model takes, and refuses one that takes too much, before it draws an input."""
from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from ocaffe import proto
from ocaffe.cli import main
from ocaffe.convert import cost as limits
from ocaffe.convert import import_verify, verify
from ocaffe.convert.cost import cost
from ocaffe.formats.text import parse, read_net
from ocaffe.graph.build import build

pytestmark = pytest.mark.unoptimised

ZOO = Path(__file__).parents[2] / "zoo"
GIB = 1 << 30
HEAD = '<ir_version: 8, opset_import: ["": 17]> net '


def saved(tmp_path: Path, text: str, **weights: Any) -> str:
    model = onnx.parser.parse_model(HEAD + text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items())
    onnx.save(model, tmp_path / "m.onnx")
    return str(tmp_path / "m.onnx")


@pytest.fixture
def convert(tmp_path: Path, device: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Convert a file where 16 GiB are free."""
    monkeypatch.setattr(limits, "free_memory", lambda *_: 16 * GIB)
    files = [str(tmp_path / name) for name in ("n.prototxt", "n.caffemodel")]
    return lambda source, *flags: main(["convert", source, *files, *flags, "--device", device.number])


def recurrent(op: str, gates: int, steps: int) -> tuple[str, dict[str, Any]]:
    weights = {name: np.ones((1, gates, size), np.float32) for name, size in (("w", 8), ("r", 1))}
    return f"(float[{steps}, 1, 8] x) => (float[a, b, c, d] y) {{ y = {op}<hidden_size=1>(x, w, r) }}", weights


LARGE: dict[str, tuple[str, dict[str, Any], str]] = {
    "an image": ("(float[1, 3, 30000, 20000] x) => (float[a, b, c, d] y) { y = GlobalAveragePool(x) }", {}, r"blob 'x' is 1 x 3 x 30000 x 20000"),
    "Expand": ("(float[1, 3, 1, 1] x) => (float[a, b, c, d] y) { y = Expand(x, s) }", {"s": np.array([200, 3, 1000, 1000])}, r"is 200 x 3 x 1000 x 1000"),
    "Tile": ("(float[1, 3, 1, 1] x) => (float[a, b, c, d] y) { y = Tile(x, s) }", {"s": np.array([1, 200, 1000, 1000])}, r"is 1 x 600 x 1000 x 1000"),
    "Gather": ("(float[1, 3, 8, 8] x) => (float[a, b, c, d] y) { y = Gather<axis=2>(x, s) }", {"s": np.zeros(20_000_000, np.int64)},
               r"is 1 x 3 x 20000000 x 8"),
    "an inner blob": ("(float[1, 3, 1, 1] x) => (float[a, b, c, d] y) { z = Expand(x, s) y = GlobalAveragePool(z) }", {"s": np.array([1, 3, 20000, 20000])},
                      r"is 1 x 3 x 20000 x 20000"),
    "several inputs": ("(float[1, 3, 9000, 9000] x, float[1, 3, 9000, 9000] z) => (float[a, b, c, d] y) { y = Add(x, z) }", {}, r"is 1 x 3 x 9000 x 9000"),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_memory(name: str, tmp_path: Path, convert: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text, weights, blob = LARGE[name]
    for module in (verify, import_verify):
        monkeypatch.setattr(module, "random_inputs", lambda *_, **more: pytest.fail("an input is drawn"))
    source = saved(tmp_path, text, **weights)
    assert convert(source) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {source}: layer '") and re.search(blob, error)
    assert "and at most 12.0 GiB of the 16.0 GiB that are free are accepted" in error
    assert "fix: --noverify writes the file without comparing" in error and not (tmp_path / "n.prototxt").exists()
    assert convert(source, "--noverify") == 0


@pytest.mark.parametrize("text, weights, fact", [
    (*recurrent("GRU", 3, 200_000), "layer 'y_forward' (GRU)\n  the comparison with the model reads and writes 600,0"),
    (*recurrent("LSTM", 4, 200_000), "layer 'y_forward' (LSTM)\n  the comparison with the model reads and writes 600,0"),
    (f"(float[1, 3] x) => (float[a, b] y) {{ y = Concat<axis=1>({', '.join(['x'] * 70_000)}) }}", {}, "layer 'y' (Concat)\n  the comparison with"),
    ("(float[1, 1, 40000, 40000] x) => (float[a, b, c, d] y) { y = MaxPool<kernel_shape=[9000, 9000]>(x) }", {}, "operations for a pass, and at most"),
], ids=["GRU", "LSTM", "Concat", "windows"])  # fmt: skip
def test_work(text: str, weights: dict[str, Any], fact: str, tmp_path: Path, convert: Any, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(limits, "free_memory", lambda *_: 1 << 50)
    source = saved(tmp_path, text, **weights)
    assert convert(source) == 1
    error = capsys.readouterr().err
    assert fact in error and "fix: --noverify writes the file without comparing" in error
    assert convert(source, "--noverify") == 0


@pytest.mark.parametrize("form", ["open", "fixed"])
def test_the_remedy_of_a_smaller_batch(form: str, tmp_path: Path, convert: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It works as it stands."""
    monkeypatch.setattr(limits, "free_memory", lambda *_: 2 << 20)
    batch = "n" if form == "open" else "64"
    source = saved(tmp_path, f"(float[{batch}, 3, 32, 32] x) => (float[a, b, c, d] y) {{ y = Sigmoid(x) }}")
    assert convert(source, *(["--shape=x:64x3x32x32"] if form == "open" else [])) == 1
    fix = re.search(r"; (--shape=\S+) makes and compares a net for a batch of 1", capsys.readouterr().err)
    assert fix is not None and convert(source, *shlex.split(fix[1])) == 0
    assert "equal to ocaffe's outputs" in capsys.readouterr().out


def test_export(tmp_path: Path, device: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "free_memory", lambda *_: 64 << 20)
    command = ["convert", str(ZOO / "lenet/deploy.prototxt"), str(tmp_path / "m.onnx"), "--fillers", "--device", device.number]
    assert main([*command, "--shape=data:2000x1x28x28"]) == 1
    fix = re.search(r"; (--shape=\S+) makes and compares a net for a batch of 1", capsys.readouterr().err)
    assert fix is not None and main([*command, fix[1]]) == 0


def test_memory_that_is_missing_all_the_same(tmp_path: Path, convert: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError("Unable to allocate 9 GiB")

    monkeypatch.setattr(verify, "random_inputs", fail)
    source = saved(tmp_path, "(float[1, 3, 8, 8] x) => (float[a, b, c, d] y) { y = Relu(x) }")
    assert convert(source) == 1
    error = capsys.readouterr().err
    assert "needs more memory than there is: Unable to allocate 9 GiB" in error and "fix: --noverify" in error and convert(source, "--noverify") == 0


@pytest.mark.parametrize("name, batch, most", [
    ("vgg16", 64, 36), ("vgg19", 1, 6), ("resnet152", 8, 20), ("resnet50", 64, 80), ("densenet121", 1, 3), ("ssd300_vgg16", 1, 3), ("mobilenet_ssd", 64, 40),
    ("crnn", 1, 2), ("fcn8s", 1, 8),
])  # fmt: skip
def test_ordinary_nets(name: str, batch: int, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are compared if their memory is there, and need no more than `most` GiB."""
    net = read_net(str(ZOO / name / "deploy.prototxt"))
    for layer in net.layer:
        if layer.type == "Input":
            layer.input_param.shape[0].dim[0] = batch
    graph = build(net, proto.TEST)
    found = cost(SimpleNamespace(graph=graph, layers=net.layer, named=graph.blobs, weights={}), 1)
    monkeypatch.setattr(limits, "free_memory", lambda *_: 1 << 50)
    assert found.excess == ("", "") and found.memory < most * GIB


def test_blobs_that_only_the_net_has_share_memory() -> None:
    """A chain holds two of them at a time, however long it is."""
    held = []
    for count in (4, 40):
        text = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 1000 } } }'
        for number in range(count):
            text += f'layer {{ name: "y{number}" type: "ReLU" bottom: "{f"y{number - 1}" if number else "x"}" top: "y{number}" }}'
        graph = build(parse(text, proto.NetParameter), proto.TEST)
        held.append(limits._held(graph, set(graph.blobs.values()) - set(graph.inputs)))
    assert held == [2000, 2000]
