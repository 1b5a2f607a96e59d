"""Python layers, and nets whose shapes change while they run."""
from __future__ import annotations

import pathlib
import sys
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.errors import Error
from ocaffe.graph.build import build
from ocaffe.solver.solver import Solver
from tests.harness import switch
from tests.layers.single import close

MODULE = '''
import numpy as np
import caffe


class Keep(caffe.Layer):
    """Keeps the rows whose first value is positive."""

    def setup(self, bottom, top):
        assert self.param_str == "x" and self.phase in (0, 1)

    def reshape(self, bottom, top):
        self.rows = np.flatnonzero(bottom[0].data.reshape(bottom[0].num, -1)[:, 0] > 0)
        top[0].reshape(len(self.rows), *bottom[0].shape[1:])

    def forward(self, bottom, top):
        top[0].data[...] = bottom[0].data[self.rows]

    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = 0
        bottom[0].diff[self.rows] = top[0].diff


class Gain(caffe.Layer):
    """Multiplies by a learned number."""

    def setup(self, bottom, top):
        self.blobs.add_blob(1)
        self.blobs[0].data[...] = 3

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        top[0].data[...] = bottom[0].data * self.blobs[0].data

    def backward(self, top, propagate_down, bottom):
        self.blobs[0].diff[...] += (top[0].diff * bottom[0].data).sum()
        if propagate_down[0]:
            bottom[0].diff[...] = top[0].diff * self.blobs[0].data


class Numbers(caffe.Layer):
    """A data layer: 1, 2, 3 rows, and so on."""

    count = 0

    def reshape(self, bottom, top):
        self.count += 1
        top[0].reshape(self.count, 2)

    def forward(self, bottom, top):
        top[0].data[...] = self.count


class Late(Numbers):
    """The same as py-faster-rcnn's data layer does it: shapes are known in forward."""

    def setup(self, bottom, top):
        top[0].reshape(7, 2)

    def reshape(self, bottom, top):
        pass

    def forward(self, bottom, top):
        self.count += 1
        top[0].reshape(self.count, 2)
        top[0].data[...] = self.count


class Broken(caffe.Layer):
    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        raise ValueError("no luck")
'''


@pytest.fixture
def module(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "some_layers.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    switch(monkeypatch, "poison")
    return "some_layers"


def net_of(text: str) -> Any:
    return text_format.Parse(text, proto.NetParameter())


def python(name: str, layer: str, bottom: str = "", top: str = "", extra: str = "") -> str:
    ends = (f'bottom: "{bottom}" ' if bottom else "") + f'top: "{top or name}"'
    return f'layer {{ name: "{name}" type: "Python" {ends} python_param {{ module: "some_layers" layer: "{layer}" param_str: "x" }} {extra} }}\n'


INPUT = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 5 dim: 3 } } }\n'
BEFORE = 'layer { name: "before" type: "Power" bottom: "x" top: "b" power_param { scale: 2 } }\n'
AFTER = """layer { name: "ip" type: "InnerProduct" bottom: "k" top: "y" inner_product_param { num_output: 2 weight_filler { type: "gaussian" } } }
layer { name: "r" type: "ReLU" bottom: "y" top: "z" }
"""


def test_rows_that_change(device: Any, module: str) -> None:
    net = Net(net_of("force_backward: true\n" + INPUT + BEFORE + python("k", "Keep", "b") + AFTER), proto.TRAIN, device=device)
    rng = np.random.default_rng(1)
    weight = net.params["ip"][0].data.copy()
    for count in (3, 3, 5, 0, 1, 3, 0, 2):
        x = np.abs(rng.standard_normal((5, 3)).astype(np.float32)) + 0.1
        x[rng.permutation(5)[count:], 0] *= -1
        rows = x[:, 0] > 0
        out = net.forward(x=x)["z"]
        y = 2 * x[rows] @ weight.T
        assert net.blobs["z"].shape == (count, 2)
        close(out, np.maximum(y, 0))
        dz = rng.standard_normal((count, 2)).astype(np.float32)
        net.clear_param_diffs()
        dx = net.backward(z=dz)["x"]
        dy = dz * (y > 0)
        expected = np.zeros_like(x)
        expected[rows] = 2 * dy @ weight
        close(dx, expected)
        close(net.params["ip"][0].diff, dy.T @ (2 * x[rows]))


@pytest.mark.parametrize("layer", ["Numbers", "Late"])
def test_data_layer_in_training(layer: str, device: Any, module: str, tmp_path: pathlib.Path) -> None:
    """Train with a Python data layer whose batch grows and whose gain is learned."""
    text = python("x", layer) + python("g", "Gain", "x", "g") + (
        'layer { name: "loss" type: "Power" bottom: "g" top: "loss" loss_weight: 1 power_param { scale: 0.5 } }'
    )  # fmt: skip
    param = proto.SolverParameter()
    text_format.Parse(f"net_param {{ {text} }} base_lr: 0.01 lr_policy: 'fixed' max_iter: 4 snapshot_after_train: false", param)
    solver = Solver(param, device)
    gain = next(node for node in solver.network.graph.nodes if node.name == "g").params[0]
    first = solver.network.graph.nodes[0].layer.inner.count
    value = 3.0
    for step in range(3):
        solver.step(1)
        rows = first + step + 1
        value -= 0.01 * 0.5 * 2 * rows * rows
        close(solver.session.read(gain.data), [value])
    solver.close()


def test_errors(device: Any, module: str) -> None:
    with pytest.raises(Error, match="no luck") as caught:
        Net(net_of(INPUT + python("p", "Broken", "x")), proto.TEST, device=device).forward()
    assert "some_layers.py" in str(caught.value)
    with pytest.raises(Error, match="no class 'Absent'"):
        Net(net_of(INPUT + python("p", "Absent", "x")), proto.TEST, device=device)
    with pytest.raises(Error, match="cannot be imported"):
        Net(net_of(INPUT + python("p", "Keep", "x").replace("some_layers", "some_lawyers")), proto.TEST, device=device)


@pytest.mark.parametrize(
    ("module", "layer", "fact"),
    [
        ("os", "getcwd", "the module 'os' has no class 'getcwd'"),
        ("os", "nothing", "the module 'os' has no class 'nothing'"),
        ("os", "PathLike", "os.PathLike has no method setup and no reshape and no forward"),
        ("", "X", "the module '' raised ValueError"),
        ("broken_layers", "X", "the module 'broken_layers' raised ZeroDivisionError"),
        ("some_layers", "Refuses", "some_layers.Refuses raised KeyError"),
    ],
)
def test_what_is_no_layer(module: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, layer: str, fact: str) -> None:
    (tmp_path / "broken_layers.py").write_text("1 / 0\n")
    (tmp_path / "some_layers.py").write_text(
        "import caffe\nclass Refuses(caffe.Layer):\n    def __init__(self, *args):\n        raise KeyError(1)\n    setup = reshape = forward = print\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "some_layers", raising=False)
    text = f'layer {{ name: "p" type: "Python" top: "x" python_param {{ module: "{module}" layer: "{layer}" }} }}'
    with pytest.raises(Error) as caught:
        build(net_of(text), proto.TEST)
    assert fact in caught.value.fact and caught.value.fix
    sys.modules.pop("some_layers", None)
