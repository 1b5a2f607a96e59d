"""ONNX models with QuantizeLinear and DequantizeLinear become nets that round, equal to onnxruntime."""
from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser

from ocaffe.api.net import Net
from ocaffe.cli import main
from ocaffe.convert.importer.grids import rounding
from ocaffe.convert.model import save
from ocaffe.errors import Error
from ocaffe.formats.text import read_net
from ocaffe.ir.layer import WeightOutputs
from tests.quantize.test_quantized_onnx import PRODUCTS, WHOLE, exported, net, product

pytestmark = pytest.mark.unoptimised

FILES = ("net2.prototxt", "net2.caffemodel")


def model(path: pathlib.Path, text: str, opset: int = 17, **constants: Any) -> str:
    made = parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> net {text}')
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items())
    onnx.save(made, path)
    return str(path)


def imported(tmp_path: pathlib.Path, source: str, device: Any) -> list[Any]:
    """Convert a model, which compares each layer with onnxruntime. Return the layers."""
    assert main(["convert", source, *(str(tmp_path / name) for name in FILES), "--device", str(device.number)]) == 0
    return list(read_net(str(tmp_path / FILES[0])).layer)


def weights_of(tmp_path: pathlib.Path, layer: str, device: Any) -> np.ndarray:
    with Net(str(tmp_path / FILES[0]), 1, weights=str(tmp_path / FILES[1]), device=device) as made:
        return np.array(made.params[layer][0].data)


@pytest.mark.parametrize("form", PRODUCTS)
@pytest.mark.parametrize("param", ["bits: 8", "power_of_two: true", "per_channel: false", "bits: 4"])
def test_our_own_products_come_back(device: Any, tmp_path: pathlib.Path, form: str, param: str) -> None:
    made = exported(net(tmp_path, product(form, param)))
    save(made.model, tmp_path / "net.onnx")
    layers = imported(tmp_path, str(tmp_path / "net.onnx"), device)
    (layer,) = (each for each in layers if each.HasField("weight_quantization_param"))
    found = layer.weight_quantization_param
    assert found.bits == (4 if param == "bits: 4" else 8)
    assert found.per_channel == (param != "per_channel: false" and PRODUCTS[form][2] > 1) or PRODUCTS[form][2] == 1
    assert not found.power_of_two or param == "power_of_two: true"


@pytest.mark.parametrize("opset", [17, 21])
def test_a_net_comes_back(device: Any, tmp_path: pathlib.Path, opset: int) -> None:
    made = exported(net(tmp_path, WHOLE), opset=opset)
    save(made.model, tmp_path / "net.onnx")
    layers = imported(tmp_path, str(tmp_path / "net.onnx"), device)
    assert [layer.type for layer in layers if layer.type == "FakeQuantize"] == ["FakeQuantize"] * 3
    assert [layer.fake_quantize_param.most for layer in layers if layer.type == "FakeQuantize"] == [127, 255, 127]
    again = exported(str(tmp_path / FILES[0]))
    shapes = ("Flatten", "Reshape")
    kinds = [sorted(node.op_type for node in each.model.graph.node if node.op_type not in shapes) for each in (made, again)]
    assert kinds[0] == kinds[1]


def float_model(path: pathlib.Path) -> tuple[str, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((6, 3, 3, 3)), "b": rng.standard_normal(6), "v": rng.standard_normal((4, 150)), "d": rng.standard_normal(4)}
    text = """(float[N, 3, 12, 12] x) => (float[N, 4] y) {
        c = Conv<kernel_shape=[3, 3]>(x, w, b) r = Relu(c) p = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(r) f = Flatten(p) y = Gemm<transB=1>(f, v, d) }"""
    return model(path, text, **{name: array.astype(np.float32) for name, array in weights.items()}), weights


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("kinds", ["QInt8 QInt8", "QUInt8 QInt8", "QUInt8 QUInt8"])
def test_static_quantization_of_onnxruntime(device: Any, tmp_path: pathlib.Path, per_channel: bool, kinds: str) -> None:
    """Weights with a zero point are no weights that a layer rounds, but they are read too."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            rng = np.random.default_rng(1)
            self.given = iter([{"x": rng.standard_normal((2, 3, 12, 12)).astype(np.float32)} for _ in range(4)])

        def get_next(self) -> Any:
            return next(self.given, None)

    source, _ = float_model(tmp_path / "float.onnx")
    activation, weight = (getattr(QuantType, kind) for kind in kinds.split())
    target = str(tmp_path / "int8.onnx")
    quantize_static(source, target, Reader(), quant_format=QuantFormat.QDQ, per_channel=per_channel, activation_type=activation, weight_type=weight)
    layers = imported(tmp_path, target, device)
    assert sum(layer.type == "FakeQuantize" for layer in layers) >= 3
    products = [layer for layer in layers if layer.type in ("Convolution", "InnerProduct")]
    assert [layer.HasField("weight_quantization_param") for layer in products] == [not kinds.endswith("UInt8")] * 2
    feeds = np.random.default_rng(2).standard_normal((64, 3, 12, 12)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(target, providers=["CPUExecutionProvider"]).run(None, {"x": feeds})
    with Net(str(tmp_path / FILES[0]), 1, weights=str(tmp_path / FILES[1]), device=device) as made:
        made.blobs["x"].reshape(*feeds.shape)
        made.blobs["x"].data[...] = feeds
        actual = np.array(made.forward()["y"])
    assert (actual.argmax(1) == expected.argmax(1)).mean() >= 0.95
    assert np.abs(actual - expected).mean() < 0.01 * np.abs(expected).max()


def test_weights_that_a_training_rounds(device: Any, tmp_path: pathlib.Path) -> None:
    """Exporters of quantization-aware trainings write the weights in floats, with QuantizeLinear and DequantizeLinear behind them."""
    w = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    scale = np.abs(w).max(1) / np.float32(127)
    text = "(float[2, 3] x) => (float[2, 4] y) { q = QuantizeLinear<axis=0>(w, s, z) d = DequantizeLinear<axis=0>(q, s, z) y = Gemm<transB=1>(x, d) }"
    source = model(tmp_path / "net.onnx", text, w=w, s=scale, z=np.zeros(4, np.int8))
    (_, layer) = imported(tmp_path, source, device)
    assert layer.weight_quantization_param.bits == 8
    expected = np.rint(w / scale[:, None]) * scale[:, None]
    assert np.allclose(weights_of(tmp_path, layer.name, device), expected, rtol=1e-6)


def test_a_value_with_two_readers_is_rounded_once(device: Any, tmp_path: pathlib.Path) -> None:
    text = "(float[2, 3] x) => (float[2, 3] y) { q = QuantizeLinear(x, s) a = DequantizeLinear(q, s) b = DequantizeLinear(q, s) c = Relu(b) y = Add(a, c) }"
    layers = imported(tmp_path, model(tmp_path / "net.onnx", text, s=np.float32(0.1)), device)
    (layer,) = (each for each in layers if each.type == "FakeQuantize")
    assert (layer.fake_quantize_param.least, layer.fake_quantize_param.most) == (0, 255)


REFUSED = {
    "another scale": "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, t, z)",
    "scales by channel": "q = QuantizeLinear<axis=1>(x, r, o) y = DequantizeLinear<axis=1>(q, r, o)",
    "integers as an output of a layer": "q = QuantizeLinear(x, s, z) p = Transpose<perm=[1, 0]>(q) a = DequantizeLinear(p, s, z) y = Transpose<perm=[1, 0]>(a)",
    "a scale that is computed": "m = ReduceMax<keepdims=0>(x) q = QuantizeLinear(x, m, z) y = DequantizeLinear(q, m, z)",
    "a scale of 0": "q = QuantizeLinear(x, n, z) y = DequantizeLinear(q, n, z)",
    "no number": "q = QuantizeLinear(x, i, z) y = DequantizeLinear(q, i, z)",
}


@pytest.mark.parametrize("case", REFUSED)
def test_grids_that_no_layer_has(tmp_path: pathlib.Path, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    constants = {"s": np.float32(0.1), "t": np.float32(0.2), "z": np.int8(3), "r": np.full(3, 0.1, np.float32), "o": np.zeros(3, np.int8), "n": np.float32(0),
                 "i": np.float32(np.nan)}  # fmt: skip
    source = model(tmp_path / "net.onnx", f"(float[2, 3] x) => (float[2, 3] y) {{ {REFUSED[case]} }}", **constants)
    with pytest.raises(Error, match="the model is quantized: it has 1 DequantizeLinear, 1 QuantizeLinear") as caught:
        from ocaffe.convert.import_model import convert

        convert(source, *(str(tmp_path / name) for name in FILES))
    assert "of the same constant scale and zero point" in str(caught.value)


def test_rounding_is_found_only_where_it_changes_nothing() -> None:
    form = WeightOutputs((2, 3), (0,))
    whole = np.array([[127, 5, -3], [1, -127, 9]], np.float32)
    assert rounding(whole * np.float32([[0.1], [0.3]]), form, 127, True).per_channel
    assert not rounding(np.array([[100, 5, -3], [1, -127, 9]], np.float32) * np.float32(0.1), form, 127, True).per_channel
    assert rounding(np.array([[100, 5, -3], [1, -100, 9]], np.float32) * np.float32(0.25), form, 100, True).power_of_two
    assert rounding(np.array([[100, 5, -3], [1, -100, 9]], np.float32) * np.float32(0.1), form, 100, True) is None
    assert rounding(whole * np.float32(0.1), form, 127, True).per_channel
    assert not rounding(whole * np.float32(0.1), form, 127, False).per_channel
    assert rounding(whole * np.float32([[0.1], [0.3]]) + np.float32(0.01), form, 127, True) is None
