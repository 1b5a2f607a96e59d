"""`round_mode: FLOOR` of imported poolings is written only where Caffe's rounding up gives another size: random poolings, and those that follow the batch."""
from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ocaffe
from ocaffe.convert.import_model import to_caffe
from tests.convert.test_operators import assert_close, converted, draw, run

pytestmark = pytest.mark.unoptimised
POOLINGS = 40  # of a model


def bvlc_outputs(size: int, kernel: int, stride: int, pad: int, padded: bool) -> int:
    """Return the outputs of BVLC Caffe along an axis, which has no round_mode."""
    outputs = -(-(size + 2 * pad - kernel) // stride) + 1
    return outputs - (padded and (outputs - 1) * stride >= size + pad)


def drawn(seed: int) -> tuple[Any, dict[str, np.ndarray]]:
    """Return a model with random poolings, one for each input, and the inputs."""
    rng, nodes, feeds, outputs = random.Random(seed), [], {}, []
    for number in range(POOLINGS):
        size, kernel = [rng.randint(7, 16) for _ in range(2)], [rng.randint(1, 4) for _ in range(2)]
        if rng.random() < 0.6:
            kernel = kernel[:1] * 2
        stride = [rng.randint(1, 3)] * 2
        begin = [rng.randint(0, k - 1) for k in kernel] if rng.random() < 0.5 else [0, 0]
        end = begin if rng.random() < 0.8 else [rng.randint(0, k - 1) for k in kernel]
        attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": stride, "pads": [*begin, *end]}
        average = rng.random() < 0.5
        if average:
            attributes["count_include_pad"] = rng.randint(0, 1)
        elif rng.random() < 0.3:
            attributes["dilations"] = [rng.randint(1, 2)] * 2
        # onnxruntime counts padding beyond the last pixel otherwise, if it rounds up
        attributes["ceil_mode"] = 0 if average and attributes["count_include_pad"] else rng.randint(0, 1)
        nodes.append(onnx.helper.make_node("AveragePool" if average else "MaxPool", [f"x{number}"], [f"y{number}"], **attributes))
        feeds[f"x{number}"] = draw(2, 3, *size, seed=number)
    inputs = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, array.shape) for name, array in feeds.items()]
    outputs = [onnx.helper.make_tensor_value_info(f"y{number}", onnx.TensorProto.FLOAT, ["a", "b", "c", "d"]) for number in range(POOLINGS)]
    graph = onnx.helper.make_graph(nodes, "drawn", inputs, outputs)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), feeds


@pytest.mark.parametrize("seed", range(3))
def test_only_where_it_changes_the_size(device: Any, tmp_path: Path, seed: int) -> None:
    model, feeds = drawn(seed)
    outputs = [item.name for item in model.graph.output]
    message, (prototxt, weights) = converted(tmp_path, model)
    net = ocaffe.Net(prototxt, ocaffe.TEST, weights=weights, device=device)
    found, expected = net.forward(**feeds), dict(zip(outputs, run(model, outputs, feeds)))
    assert_close(found, expected)
    counts = {True: 0, False: 0}
    for layer in message.layer:
        if layer.type != "Pooling":
            continue
        param, image = layer.pooling_param, net.blobs[layer.bottom[0]].shape[2:]
        sizes = []
        for axis, letter in enumerate("hw"):
            kernel, stride, pad = (getattr(param, f"{name}_{letter}") or getattr(param, single) or default
                                   for name, single, default in (("kernel", "kernel_size", 0), ("stride", "stride", 1), ("pad", "pad", 0)))  # fmt: skip
            dilation = param.dilation[axis % len(param.dilation)] if param.dilation else 1
            padded = bool(param.pad or param.pad_h or param.pad_w)
            sizes.append(bvlc_outputs(image[axis], (kernel - 1) * dilation + 1, stride, pad, padded))
        needed = tuple(sizes) != tuple(net.blobs[layer.top[0]].shape[2:])
        assert param.HasField("round_mode") == needed, layer
        counts[needed] += 1
    assert min(counts.values()) > 3, "both kinds are drawn"


@pytest.mark.parametrize(("node", "needed"), [("MaxPool<kernel_shape=[1, 2], strides=[2, 1]>(t)", True), ("MaxPool<kernel_shape=[1, 2]>(t)", False),
                                              ("MaxPool<kernel_shape=[2, 2], strides=[2, 1], ceil_mode=1>(t)", False),
                                              ("MaxPool<kernel_shape=[1, 2], strides=[2, 1], ceil_mode=1>(t)", True)])  # fmt: skip
@pytest.mark.parametrize("batch", ["n", "4"])
def test_an_image_that_follows_the_batch(device: Any, tmp_path: Path, node: str, needed: bool, batch: str) -> None:
    """The rows of the image are the samples. The net is built for 43 and 47, where both roundings are equal; the net must pool any number rightly."""
    head = f'<ir_version: 8, opset_import: ["": 17]> net (float[{batch}, 3, 2, 5] x) => (float[a, b, c, d] y)'
    model = onnx.parser.parse_model(f"{head} {{ t = Transpose<perm=[2, 1, 0, 3]>(x) y = {node} }}")
    message, (prototxt, weights) = converted(tmp_path, model)
    assert message.layer[-1].pooling_param.HasField("round_mode") == needed
    net = ocaffe.Net(prototxt, ocaffe.TEST, weights=weights, device=device)
    for size in (4, 7) if batch == "n" else (4,):
        x = draw(size, 3, 2, 5)
        assert_close(_forward(net, x), {"y": run(model, ["y"], {"x": x})[0]})


def _forward(net: Any, x: np.ndarray) -> dict[str, np.ndarray]:
    net.blobs["x"].reshape(*x.shape)
    return dict(net.forward(x=x))


def test_a_window_of_one_pixel_has_no_dilation(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> net (float[1, 3, 6, 6] x) => (float[a, b, c, d] y) {
        t = MaxPool<kernel_shape=[1, 1], strides=[2, 2], dilations=[3, 3]>(x) y = Conv<dilations=[2, 2]>(t, w) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(draw(2, 3, 1, 1), "w"))
    message, _ = to_caffe(model, "net.onnx")
    assert not message.layer[1].pooling_param.dilation and not message.layer[2].convolution_param.dilation
