"""Imported nets take any batch if their model does: outputs compared with onnxruntime at several batches, gradients, and notes about nets that do not."""
from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import ocaffe
from ocaffe import log
from ocaffe.cli import main
from ocaffe.convert.import_model import convert, to_caffe
from tests.convert.exporters import gradients_of_both
from tests.tiers import rest_is_long

pytestmark = pytest.mark.unoptimised

OPEN = "n = Shape<start=0, end=1>(x)"  # in a model with a fixed batch, n is a constant


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32) / 2


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


WEIGHTS: dict[str, np.ndarray] = {
    "w": draw(8, 24), "w2": draw(8, 8), "w3": draw(6, 4), "token": draw(1, 1, 8), "pos": draw(1, 5, 8), "zeros": np.zeros((1, 1, 6), np.float32),
    "state": draw(1, 1, 6), "state2": np.repeat(draw(1, 1, 6), 2, 1),
    "W": draw(1, 24, 8), "R": draw(1, 24, 6), "B": draw(1, 48), "i0": np.array(0), "i1": np.array(1), "i2": np.array(2), "a0": ints(0),
    "a3": ints(3), "n1": ints(1), "n2": ints(2), "n3": ints(3), "n4": ints(4), "n5": ints(5), "n6": ints(6), "n8": ints(8), "n40": ints(40),
    "low": draw(1, 5, 8), "a12": ints(1, 2), "rows": ints(1, 2).reshape(1, 2, 1), "pair": np.float32([-1, 0.5]), "each": draw(64, 5, 8),
}  # fmt: skip
HEADS = "b = MatMul(q, k) m = Softmax<axis=-1>(b) o = MatMul(m, v)"
MODELS = {  # x is n x 5 x 8
    "encoder": f"""
        t = Transpose<perm=[1, 0, 2]>(x) p = MatMul(t, w) {OPEN} d1 = Concat<axis=0>(n5, n, n3, n8) r = Reshape(p, d1) u = Unsqueeze(r, a0)
        e = Transpose<perm=[3, 1, 2, 0, 4]>(u) s = Squeeze(e, a3) q0 = Gather<axis=0>(s, i0) k0 = Gather<axis=0>(s, i1) v0 = Gather<axis=0>(s, i2)
        h = Mul(n, n2) d2 = Concat<axis=0>(n5, h, n4) q1 = Reshape(q0, d2) k1 = Reshape(k0, d2) v1 = Reshape(v0, d2) q = Transpose<perm=[1, 0, 2]>(q1)
        k = Transpose<perm=[1, 2, 0]>(k1) v = Transpose<perm=[1, 0, 2]>(v1) {HEADS} o1 = Transpose<perm=[1, 0, 2]>(o) l = Mul(n, n5)
        d3 = Concat<axis=0>(l, n8) o2 = Reshape(o1, d3) g = Gemm(o2, w2) d4 = Concat<axis=0>(n5, n, n8) f = Reshape(g, d4)
        y = Transpose<perm=[1, 0, 2]>(f)""",
    "unbound": f"""
        p = MatMul(x, w) {OPEN} d1 = Concat<axis=0>(n, n5, n3, n2, n4) r = Reshape(p, d1) t = Transpose<perm=[2, 0, 3, 1, 4]>(r)
        q0, k0, v0 = Split<axis=0>(t) q = Squeeze(q0, a0) k1 = Squeeze(k0, a0) v = Squeeze(v0, a0) k = Transpose<perm=[0, 1, 3, 2]>(k1) {HEADS}
        o1 = Transpose<perm=[0, 2, 1, 3]>(o) d2 = Concat<axis=0>(n, n5, n8) y = Reshape(o1, d2)""",
    "state": f"""
        t = Transpose<perm=[1, 0, 2]>(x) {OPEN} d = Concat<axis=0>(n1, n, n6) z = Expand(zeros, d) all, h, c = LSTM<hidden_size=6>(t, W, R, B, , z, z)
        g = Gather<axis=0>(h, i0) y = Gemm(g, w3)""",
    "first state": f"""
        t = Transpose<perm=[1, 0, 2]>(x) {OPEN} d = Concat<axis=0>(n1, n, n6) z = Expand(state, d) all, h, c = LSTM<hidden_size=6>(t, W, R, B, , z, z)
        y = Squeeze(h, a0)""",
    "token": f"{OPEN} d = Concat<axis=0>(n, n1, n1) e = Expand(token, d) y = Concat<axis=1>(e, x)",
    "positions": f"{OPEN} d = Concat<axis=0>(n, n1, n1) e = Expand(pos, d) y = Add(x, e)",
    "summed": """
        t = Transpose<perm=[1, 0, 2]>(x) u = Unsqueeze(t, a0) r = Relu(u) s = ReduceSum<keepdims=0>(r, a0) z = Transpose<perm=[1, 0, 2]>(s) y = Flatten(z)""",
    "bounded": "y = Max(x, low)",
    "assigned": f"""
        {OPEN} s = Squeeze(n, a0) r = Range(i0, s, i1) b = Unsqueeze(r, a12) d = Concat<axis=0>(n, n2, n1) e = Expand(b, d) f = Expand(rows, d)
        g = Concat<axis=2>(e, f) u = Slice(x, n3, n5, n1) v = Sigmoid(u) y = ScatterND(x, g, v)""",
    "assigned constants": f"""
        {OPEN} s = Squeeze(n, a0) r = Range(i0, s, i1) b = Unsqueeze(r, a12) d = Concat<axis=0>(n, n2, n1) e = Expand(b, d) f = Expand(rows, d)
        g = Concat<axis=2>(e, f) h = Concat<axis=0>(n, n2, n8) v = Expand(token, h) y = ScatterND(x, g, v)""",
    "assigned elements": f"{OPEN} d = Concat<axis=0>(n, n2, n8) i = Expand(rows, d) u = Slice(x, n3, n5, n1) y = ScatterElements<axis=1>(x, i, u)",
    "one hot": "i = ArgMax<axis=2, keepdims=0>(x) y = OneHot(i, i2, pair)",
    "logarithm of sums": "y = ReduceLogSumExp<axes=[1]>(x)",
    "products": "y = ReduceProd<axes=[1], keepdims=0>(x)",
    "running sums": "y = CumSum(x, i1)",
    "row of pools": "p = MaxPool<kernel_shape=[3], strides=[2]>(x) a = AveragePool<kernel_shape=[2], auto_pad=\"SAME_UPPER\">(p) y = GlobalAveragePool(a)",
    "row": f"{OPEN} d = Concat<axis=0>(n, n40) r = Reshape(x, d) u = Unsqueeze(r, a0) y = Squeeze(u, a0)",
}  # fmt: skip
FIXED = f"{OPEN} d = Concat<axis=0>(n, n1, n1) e = Expand(token, d) c = Concat<axis=1>(e, x) y = CumSum(c, i0)"  # sums over the batch
SEQUENCES = "all, h, c = LSTM<hidden_size=6>(x, W, R, B, , state2, state2) y = Squeeze(all, n1)"
OPENED = [  # also from a model with a fixed batch
    "encoder", "unbound", "state", "first state", "token", "positions", "summed", "row", "assigned", "assigned constants", "assigned elements",
]  # fmt: skip


def saved(folder: Path, text: str, batch: int | None = None, rest: str = "5, 8") -> str:
    """Write a model with an open or a fixed batch and the sizes `rest` behind it."""
    weights = WEIGHTS | ({} if batch is None else {"n": ints(batch)})
    text = text if batch is None else text.replace(OPEN, "")
    size = "N" if batch is None else batch
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> net (float[{size}, {rest}] x) => (float[a] y) {{ {text} }}')
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items() if name in used)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model.graph.output[0].CopyFrom(onnx.shape_inference.infer_shapes(model).graph.output[0])
    onnx.save(model, folder / "m.onnx")
    return str(folder / "m.onnx")


def imported(folder: Path, source: str, device: Any, **options: Any) -> Any:
    """Return the net, whose prototxt says the batch of the model, or 1."""
    files = [str(folder / name) for name in ("n.prototxt", "n.caffemodel")]
    convert(source, *files, **options)
    return ocaffe.Net(files[0], ocaffe.TEST, weights=files[1], device=device)


def run(net: Any, x: np.ndarray) -> np.ndarray:
    net.blobs["x"].reshape(*x.shape)
    return np.array(net.forward(x=x)["y"])


def near(values: np.ndarray, expected: np.ndarray, tolerance: float = 1e-5) -> None:
    assert values.shape == expected.shape
    assert np.abs(values - expected).max() <= tolerance * np.abs(expected).max()


def test_a_repeated_constant_of_a_fixed_batch(tmp_path: Path, device: Any) -> None:
    """The attempt for any batch leaves the constants of the model as they are."""
    log.quiet()
    source = saved(tmp_path, FIXED)
    near(run(imported(tmp_path, source, device), draw(1, 5, 8)), onnxruntime.InferenceSession(source).run(None, {"x": draw(1, 5, 8)})[0])


@pytest.mark.parametrize("name", MODELS)
def test_open_batch(tmp_path: Path, device: Any, name: str) -> None:
    log.quiet()
    source = saved(tmp_path, MODELS[name])
    net, session = imported(tmp_path, source, device), onnxruntime.InferenceSession(source)
    assert net.blobs["x"].shape == (1, 5, 8)
    for batch in (1, 3, 5):
        near(run(net, draw(batch, 5, 8)), session.run(None, {"x": draw(batch, 5, 8)})[0])


@pytest.mark.parametrize("name", OPENED)
@pytest.mark.parametrize("own", [1, 2, 64])
def test_fixed_batch_is_opened(tmp_path: Path, device: Any, name: str, own: int) -> None:
    log.quiet()
    source = saved(tmp_path, MODELS[name], own)
    net, session = imported(tmp_path, source, device), onnxruntime.InferenceSession(source)
    assert net.blobs["x"].shape == (own, 5, 8)
    for batch in (1, 3, 5):
        x = draw(batch, 5, 8)
        padded = np.resize(x, (-(-batch // own) * own, 5, 8))
        expected = np.concatenate([session.run(None, {"x": part})[0] for part in np.split(padded, len(padded) // own)])
        near(run(net, x), expected[:batch])


@pytest.mark.parametrize("batch", [2, 47])
def test_shape_says_the_batch(tmp_path: Path, device: Any, batch: int) -> None:
    """Also a batch that is one of those for the comparison of shapes."""
    log.quiet()
    source = saved(tmp_path, MODELS["encoder"])
    net, session = imported(tmp_path, source, device, shapes={"x": (batch, 5, 8)}), onnxruntime.InferenceSession(source)
    assert net.blobs["x"].shape == (batch, 5, 8)
    near(run(net, draw(3, 5, 8)), session.run(None, {"x": draw(3, 5, 8)})[0])


def test_number_of_sequences(tmp_path: Path, device: Any) -> None:
    """Time is the first axis of a recurrent net, and the batch the second one, here with a model of 2 sequences."""
    log.quiet()
    source = saved(tmp_path, SEQUENCES, 5, "2, 8")
    net, session = imported(tmp_path, source, device), onnxruntime.InferenceSession(source)
    assert net.blobs["x"].shape == (5, 2, 8)
    x = draw(5, 4, 8)
    expected = np.concatenate([session.run(None, {"x": part})[0] for part in np.split(x, 2, axis=1)], 1)
    for count in (1, 3, 4):
        near(run(net, x[:, :count]), expected[:, :count])


def test_layers_stay() -> None:
    """A constant that is added to each sample is a Bias, also if the model repeats it for the batch."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> net (float[N, 5, 8] x) => (float[N, 5, 8] y) {{ {MODELS["positions"]} }}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(WEIGHTS[name], name) for name in ("n1", "pos"))
    net, blobs = to_caffe(model, "model")
    assert [layer.type for layer in net.layer] == ["Input", "Bias"] and [blob.shape for blob in blobs[net.layer[1].name]] == [(5, 8)]
    assert not net.layer[1].param  # it is learned


def test_token_beside_values_that_are_no_numbers(tmp_path: Path, device: Any) -> None:
    log.quiet()
    net, x = imported(tmp_path, saved(tmp_path, MODELS["token"]), device), draw(3, 5, 8)
    x[0, 0, 0], x[1, 2, 3] = np.nan, np.inf
    assert np.array_equal(run(net, x)[:, 0], np.repeat(WEIGHTS["token"][0], 3, 0))


def gradients(folder: Path, device: Any, name: str, x: np.ndarray) -> tuple[Any, np.ndarray]:
    """Return the net after a backward pass, and the gradient of its output."""
    imported(folder, saved(folder, MODELS[name]), device)
    (folder / "n.prototxt").write_text("force_backward: true\n" + (folder / "n.prototxt").read_text())
    net = ocaffe.Net(str(folder / "n.prototxt"), ocaffe.TRAIN, weights=str(folder / "n.caffemodel"), device=device)
    upstream = draw(*run(net, x).shape)
    net.blobs["y"].diff[...] = upstream
    net.backward()
    return net, upstream


@pytest.mark.parametrize("name", ["encoder", "unbound"])
def test_gradient_of_attention(tmp_path: Path, device: Any, name: str) -> None:
    """The gradient along a direction is the difference quotient of the model."""
    log.quiet()
    x, direction, step = draw(3, 5, 8), draw(5, 3, 8).reshape(3, 5, 8), 1e-2
    net, upstream = gradients(tmp_path, device, name, x)
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    ahead, behind = (session.run(None, {"x": x + np.float32(sign * step) * direction})[0].astype(np.float64) for sign in (1, -1))
    for sample in range(3):
        expected = ((ahead - behind) * upstream)[sample].sum() / (2 * step)
        assert math.isclose((net.blobs["x"].diff * direction)[sample].sum(), expected, rel_tol=2e-3, abs_tol=1e-4)


def test_gradient_of_a_token(tmp_path: Path, device: Any) -> None:
    log.quiet()
    net, upstream = gradients(tmp_path, device, "token", draw(3, 5, 8))
    (token,) = (blobs[0].diff for name, blobs in net.params.items())
    near(token, upstream[:, :1].sum(0, keepdims=True))
    near(net.blobs["x"].diff, upstream[:, 1:])


# -- the command -----------------------------------------------------------------------------------------------------

SUMMED = f"{OPEN} s = ReduceSum<keepdims=1>(x, a0) c = Cast<to=1>(n) y = Div(s, c)"


@pytest.mark.parametrize("text, batch, flags, said", [
    (MODELS["encoder"], None, [], ""),
    (MODELS["encoder"], None, ["--shape=x:2x5x8"], ""),
    (MODELS["encoder"], 64, [], ""),
    (SUMMED, None, [], "note: the net takes only the batch of 1: 'y' (Power), a field has another value with another batch\n"),
    (SUMMED, None, ["--shape=x:2x5x8"], "note: the net takes only the batch of 2: 'y' (Power), a field has another value with another batch\n"),
    (SEQUENCES.replace("state2", ""), None, [], "note: the net takes only the batch of 1: 'y_cont' (Bias), its constants have other values"),
    (SEQUENCES.replace("state2", ""), 5, [], ""),
    ("y = Add(x, each)", 64, [], "note: the net takes only the batch of 64: 'y' (Add), its inputs do not fit together"),
    ("m = ReduceMean<axes=[0]>(x) y = Sub(x, m)", 4, [], "note: the net takes only the batch of 4: output 'y' of a sample depends on the rest of the batch; "
     "for other batches torch.onnx.export(net.eval(), (x,), 'model.onnx', dynamic_axes={'x': {0: 'batch'}}), or dynamic_shapes with dynamo=True\n"),
    ("y = ReduceMean<axes=[0], keepdims=0>(x)", 4, [], "note: the net takes only the batch of 4: output 'y' of a sample depends on the rest of the batch"),
])  # fmt: skip
def test_notes(tmp_path: Path, device: Any, text: str, batch: int | None, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    files = [saved(tmp_path, text, batch), str(tmp_path / "n.prototxt"), str(tmp_path / "n.caffemodel")]
    assert main(["convert", *files, *flags, "--device", device.number]) == 0
    printed = capsys.readouterr().out
    assert "equal to ocaffe's outputs" in printed and said in printed and ("note:" in printed) == bool(said)


def test_open_models_are_compared_at_a_second_batch(tmp_path: Path, device: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """This Reshape is right for a batch of 1. The layer after it then sums over the batch."""
    monkeypatch.setattr("ocaffe.convert.importer.batch._dims", lambda bottoms, tops: [-1, 1, 5, 8])
    files = [saved(tmp_path, "u = Unsqueeze(x, a0) s = ReduceSum<keepdims=0>(u, a0) y = Relu(s)"), str(tmp_path / "n.prototxt"), str(tmp_path / "n.caffemodel")]
    assert main(["convert", *files, "--device", device.number]) == 1
    assert "the first blob that differs is 'u'" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_python_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert(saved(tmp_path, SUMMED), tmp_path / "n.prototxt", tmp_path / "n.caffemodel")
    assert "takes only the batch of the prototxt: 'y' (Power)" in capsys.readouterr().err


# -- nets of PyTorch -------------------------------------------------------------------------------------------------


def nets() -> dict[str, Any]:
    """Return nets for a batch of gray images of 28 x 28 pixels."""
    torch = pytest.importorskip("torch", reason="PyTorch makes the nets")
    from torch import nn

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.positions = nn.Conv2d(1, 16, 7, stride=7), nn.Parameter(torch.randn(1, 16, 16))
            layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True, activation="gelu")
            self.encoder, self.classes = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(16, 5)

        def forward(self, x: Any) -> Any:
            return self.classes(self.encoder(self.patches(x).flatten(2).transpose(1, 2) + self.positions).mean(1))

    class Unbound(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.classes = nn.Linear(28, 48), nn.Linear(16, 5)

        def forward(self, x: Any) -> Any:
            q, k, v = self.qkv(x[:, 0]).reshape(x.shape[0], 28, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v)
            return self.classes(mixed.transpose(1, 2).reshape(x.shape[0], 28, 16).mean(1))

    class Token(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.token, self.classes = nn.Linear(28, 16), nn.Parameter(torch.randn(1, 1, 16)), nn.Linear(16, 5)
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x: Any) -> Any:
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), self.rows(x[:, 0])], 1)
            return self.classes((x + self.attention(x, x, x, need_weights=False)[0])[:, 0])

    class State(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.classes = nn.LSTM(28, 8, 2, batch_first=True), nn.Linear(8, 5)

        def forward(self, x: Any) -> Any:
            return self.classes(self.rows(x[:, 0])[1][0][-1])

    return {"transformer": Transformer, "unbound": Unbound, "token": Token, "state": State}


@pytest.mark.filterwarnings("ignore")  # PyTorch warns of its older exporter
@pytest.mark.parametrize("dynamo", rest_is_long([True, False], 1), ids=["dynamo", "script"])
@pytest.mark.parametrize("name", ["transformer", "unbound", "token", "state"])
def test_exported_nets(tmp_path: Path, device: Any, name: str, dynamo: bool) -> None:
    """Outputs and gradients at a batch of 3 equal PyTorch's, and outputs at other batches those at 3."""
    log.quiet()
    made, torch = nets()[name], pytest.importorskip("torch")
    torch.manual_seed(0)
    x = torch.randn(3, 1, 28, 28)
    net, _, pairs = gradients_of_both(device, tmp_path, made(), x, dynamo, open_batch=True)
    for values, expected in pairs:
        near(np.array(values), expected.numpy(), 1e-4)
    for batch in (1, 5):
        samples = np.resize(x.numpy(), (batch, 1, 28, 28))
        net.blobs["input"].reshape(*samples.shape)
        near(net.forward(input=samples)["output"], np.resize(pairs[0][1].numpy(), (batch, 5)), 1e-4)
