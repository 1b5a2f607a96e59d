"""A quantized net as ONNX: integers of weights and blobs, compared with onnxruntime."""
from __future__ import annotations

import pathlib
import sys
from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from ocaffe.api.net import Net
from ocaffe.convert.export import Exported, Options, export
from ocaffe.convert.verify import opened, random_inputs, run_net, verify
from ocaffe.errors import Error
from ocaffe.formats.weights import LayerWeights, Weights

pytestmark = pytest.mark.unoptimised

HEAD = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 4 dim: 9 dim: 9 } } }\n'
CONVOLUTION = 'num_output: 6 kernel_size: 3 weight_filler { type: "xavier" } bias_filler { type: "uniform" }'
PRODUCTS = {  # layer, axis of its scales, number of its scales
    "convolution": (f'type: \"Convolution\" convolution_param {{ {CONVOLUTION} }}', 0, 6),
    "groups": (f'type: \"Convolution\" convolution_param {{ group: 2 {CONVOLUTION} }}', 0, 6),
    "one output": ('type: "Convolution" convolution_param { num_output: 1 kernel_size: 3 weight_filler { type: "xavier" } }', None, 1),
    "deconvolution": (f'type: \"Deconvolution\" convolution_param {{ {CONVOLUTION} }}', 1, 6),
    "deconvolution in groups": (f'type: \"Deconvolution\" convolution_param {{ group: 2 {CONVOLUTION} }}', 0, 6),
    "deconvolution to groups": ('type: "Deconvolution" convolution_param { num_output: 2 group: 2 kernel_size: 2 weight_filler { type: "xavier" } }', 0, 2),
    "depthwise deconvolution": ('type: "Deconvolution" convolution_param { num_output: 4 group: 4 kernel_size: 2 weight_filler { type: "xavier" } }', 0, 4),
    "inner product": ('type: "InnerProduct" inner_product_param { num_output: 5 weight_filler { type: "xavier" } }', 0, 5),
    "transposed": ('type: "InnerProduct" inner_product_param { num_output: 5 transpose: true weight_filler { type: "xavier" } }', 0, 5),
    "rows": ('type: "InnerProduct" inner_product_param { num_output: 5 axis: 3 weight_filler { type: "xavier" } }', 0, 5),
}  # fmt: skip


def net(tmp_path: pathlib.Path, text: str) -> str:
    path = tmp_path / "net.prototxt"
    path.write_text(HEAD + text, encoding="utf-8")
    return str(path)


def grid(bottom: str, fields: str = "scale: 0.02", top: str = "") -> str:
    top = top or f"{bottom}_grid"
    return f'layer {{ name: "{top}" type: "FakeQuantize" bottom: "{bottom}" top: "{top}" fake_quantize_param {{ {fields} }} }}\n'


def product(form: str, rounding: str = "", bottom: str = "data") -> str:
    return f'layer {{ name: "p" bottom: "{bottom}" top: "p" {PRODUCTS[form][0]} weight_quantization_param {{ {rounding} }} }}\n'


def exported(path: str, **options: Any) -> Exported:
    return export(path, None, Options(fillers=True, **options))


def equal(made: Exported, device: Any, batch: int | None = None) -> None:
    assert verify(made, [random_inputs(made.graph, 0, batch)], device).share < 1


def tensors(made: Exported) -> dict[str, np.ndarray]:
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in made.model.graph.initializer}


@pytest.mark.parametrize("form", PRODUCTS)
@pytest.mark.parametrize("rounding", ["", "power_of_two: true", "per_channel: false", "bits: 4"])
def test_weights_are_integers(device: Any, tmp_path: pathlib.Path, form: str, rounding: str) -> None:
    made = exported(net(tmp_path, product(form, rounding)))
    equal(made, device)
    (node,) = (node for node in made.model.graph.node if node.op_type == "DequantizeLinear")
    whole, scale = (tensors(made)[name] for name in node.input[:2])
    assert whole.dtype == np.int8
    assert np.abs(whole).max() == (7 if "bits" in rounding else 127) or "power" in rounding
    count = 1 if "per_channel" in rounding else PRODUCTS[form][2]
    assert scale.size == count
    axis = [item.i for item in node.attribute if item.name == "axis"]
    assert axis == ([] if count == 1 else [PRODUCTS[form][1]])
    if "power" in rounding:
        assert (np.log2(scale) % 1 == 0).all()


def test_outputs_without_weights_have_a_scale(device: Any, tmp_path: pathlib.Path) -> None:
    made = exported(net(tmp_path, product("convolution").replace('type: "xavier"', 'type: "constant"')))
    equal(made, device)
    assert all((array > 0).all() for array in tensors(made).values() if array.dtype == np.float32 and array.shape == (6,) and array.any())


FIELDS = {
    "scale: 0.02": (np.int8, 0), "scale: 0.02 least: 0 most: 255": (np.uint8, 0), "scale: 0.02 least: -127": (np.int8, 1),
    "scale: 0.3 least: 0 most: 200": (np.uint8, 1),
    "scale: 0.02 least: 0 most: 255 zero_point: 100": (np.uint8, 0), "scale: 0.03 zero_point: -28": (np.int8, 0),
    "scale: 0.02 power_of_two: true": (np.int8, 0),
}  # fmt: skip


@pytest.mark.parametrize("fields", FIELDS)
def test_grids(device: Any, tmp_path: pathlib.Path, fields: str) -> None:
    made = exported(net(tmp_path, grid("data", fields)))
    equal(made, device)
    kinds = Counter(node.op_type for node in made.model.graph.node)
    assert kinds == {"QuantizeLinear": 1, "DequantizeLinear": 1} | ({"Clip": 1} if FIELDS[fields][1] else {})
    (node,) = (node for node in made.model.graph.node if node.op_type == "QuantizeLinear")
    assert tensors(made)[node.input[2]].dtype == FIELDS[fields][0]


def test_values_between_two_numbers_of_the_grid(device: Any, tmp_path: pathlib.Path) -> None:
    """Quotients of nearly a half may be rounded either way, by a whole step. No other difference of a step is accepted."""
    made = exported(net(tmp_path, grid("data", "scale: 0.1")))
    steps = np.linspace(-127.5, 127.5, 648).round() + 0.5
    halves = {"data": (steps * np.float32(0.1)).astype(np.float32).reshape(2, 4, 9, 9)}
    verify(made, [halves], device)
    made.weights[made.graph.params[0]][...] *= np.float32(1.004)  # the grid of the net in ocaffe: less than a step off
    with pytest.raises(Error, match="the first blob that differs is 'data_grid'"):
        verify(made, [random_inputs(made.graph)], device)


def test_a_grid_in_place(device: Any, tmp_path: pathlib.Path) -> None:
    equal(exported(net(tmp_path, product("convolution") + grid("p", top="p"))), device)


def test_sixteen_bits_need_opset_21(device: Any, tmp_path: pathlib.Path) -> None:
    path = net(tmp_path, grid("data", "scale: 0.0001 least: -32768 most: 32767") + product("convolution", "bits: 16", "data_grid"))
    with pytest.raises(Error, match=r"from -32768 to 32767, and QuantizeLinear has 16 bits since opset 21") as caught:
        exported(path, opset=17)
    assert "--opset=21" in str(caught.value)
    made = exported(path, opset=21)
    equal(made, device)
    assert sorted(str(array.dtype) for array in tensors(made).values() if array.dtype.kind == "i") == ["int16"] * 3
    with pytest.raises(Error, match="from -32767 to 32767"):
        exported(net(tmp_path, product("convolution", "bits: 16")), opset=17)


def test_more_than_16_bits_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(Error, match="QuantizeLinear has at most 16 bits"):
        exported(net(tmp_path, grid("data", "least: -100000 most: 5")), opset=21)


def test_halves_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(Error, match="--fp16 is given for a net that is quantized already") as caught:
        exported(net(tmp_path, grid("data")), fp16=True)
    assert "leave out --fp16" in str(caught.value)


def test_numbers_that_have_no_integers(tmp_path: pathlib.Path) -> None:
    path = net(tmp_path, product("convolution").replace('weight_filler { type: "xavier" }', 'weight_filler { value: inf }'))
    with pytest.raises(Error, match="its weights are not finite, and have no integers"):
        exported(path)
    weights = Weights("w.caffemodel", [LayerWeights("data_grid", blobs=[np.full(1, np.nan, np.float32)])], "x")
    with pytest.raises(Error, match="its scale is not finite"):
        export(net(tmp_path, grid("data")), weights, Options())


WHOLE = (
    grid("data", "scale: 0.03") + product("convolution", bottom="data_grid")
    + 'layer { name: "relu" type: "ReLU" bottom: "p" top: "p" }\n' + grid("p", "scale: 0.01 least: 0 most: 255", "q")
    + 'layer { name: "pool" type: "Pooling" bottom: "q" top: "pool" pooling_param { kernel_size: 2 stride: 2 } }\n'
    + 'layer { name: "fc" type: "InnerProduct" bottom: "pool" top: "fc" weight_quantization_param { } '
      'inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }\n' + grid("fc", top="scores")
)  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"dynamic_batch": True}, {"fold": True}], ids=str)
def test_a_net_runs_as_integers(device: Any, tmp_path: pathlib.Path, options: dict[str, bool]) -> None:
    """The products are QLinearConv and QGemm in onnxruntime, and the scores those of the simulation."""
    made = exported(net(tmp_path, WHOLE), **options)
    equal(made, device)
    if "dynamic_batch" in options:
        equal(made, device, 3)
    settings = onnxruntime.SessionOptions()
    settings.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    settings.log_severity_level = 4
    session = onnxruntime.InferenceSession(made.model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    kinds = Counter(node.op_type for node in onnx.load(settings.optimized_model_filepath).graph.node)
    assert kinds["QLinearConv"] == kinds["QGemm"] == 1
    assert not kinds["Conv"] + kinds["Gemm"]
    feeds = random_inputs(made.graph)
    with opened(made, device, None) as ours:
        expected = run_net(ours, made, feeds, ["scores"])["scores"]
    (actual,) = session.run(None, feeds)
    step = 0.02
    assert np.abs(actual - expected).max() <= 1.01 * step  # biases are integers there
    assert (np.abs(actual - expected) < step / 2).mean() > 0.8


def test_a_net_of_opset_21(device: Any, tmp_path: pathlib.Path) -> None:
    """onnxruntime 1.32 makes a model that it refuses itself of a MaxPool behind a grid, but for its basic optimisations."""
    equal(exported(net(tmp_path, WHOLE), opset=21), device)


@pytest.mark.parametrize("opset", [13, 17, 21])
def test_a_net_without_onnxruntime(device: Any, tmp_path: pathlib.Path, opset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    made = exported(net(tmp_path, WHOLE), opset=opset)
    found = verify(made, [random_inputs(made.graph)], device)
    assert found.runtime.startswith("onnx.reference")
    assert found.share < 1
    assert not found.unjudged


def test_nodes_have_the_names_of_layers(tmp_path: pathlib.Path) -> None:
    names = [node.name for node in exported(net(tmp_path, WHOLE)).model.graph.node]
    assert [name for name in names if name.split("/")[0] in ("p", "fc")] == ["p/integers", "p", "fc", "fc/integers", "fc/2"]


def test_an_affine_layer_behind_integers_is_not_folded(device: Any, tmp_path: pathlib.Path) -> None:
    scale = 'layer { name: "s" type: "Scale" bottom: "p" top: "s" scale_param { filler { value: 2 } } }\n'
    made = exported(net(tmp_path, product("convolution") + scale), fold=True)
    equal(made, device)
    assert [node.op_type for node in made.model.graph.node] == ["DequantizeLinear", "Conv", "Mul"]


def test_shared_weights_with_and_without_integers(device: Any, tmp_path: pathlib.Path) -> None:
    layer = 'layer {{ name: "{0}" type: "Convolution" bottom: "data" top: "{0}" param {{ name: "w" }} convolution_param {{ num_output: 3 kernel_size: 3 ' \
            'bias_term: false weight_filler {{ type: "xavier" }} }} {1} }}\n'  # fmt: skip
    roundings = {"a": "", "b": "weight_quantization_param { }", "c": "weight_quantization_param { bits: 3 }"}
    text = "".join(layer.format(name, more) for name, more in roundings.items())
    equal(exported(net(tmp_path, text)), device)


def test_net_is_open(device: Any, tmp_path: pathlib.Path) -> None:
    """The layer's own scale is what the file says."""
    with Net(net(tmp_path, grid("data", "scale: 0.25 power_of_two: true")), 1, device=device) as made:
        made.blobs["data"].data[...] = 0.3
        made.forward()
        assert made.blobs["data_grid"].data.reshape(-1)[0] == 0.25
