"""The tables of chips' tools."""
from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from ocaffe.cli import main
from ocaffe.convert.caffe.net import Net
from ocaffe.ir.layer import WeightOutputs
from ocaffe.ir.weight_grid import weight_integers
from ocaffe.quantize.formats import FORMATS
from ocaffe.quantize.output import NET, WEIGHTS, write_all
from ocaffe.quantize.places import places, rounded_products
from ocaffe.quantize.quantize import Quantized
from ocaffe.quantize.scheme import read_scheme, schemes
from ocaffe.quantize.table import Entry, Table
from tests.quantize.nets import conv, data, fc, net_of, text

pytestmark = pytest.mark.quick

IN_PLACE = text("ReLU", "c", "c", name="r")
LAYERS = (
    data(2, 4, 9, 9), conv("data", "c", 6), IN_PLACE, text("Pooling", "c", "p", "pooling_param { kernel_size: 2 stride: 2 }"),
    conv("p", "d", 6, more="group: 6"), text("PReLU", "d", "e"), conv("e", "g", 6, 1, "group: 2"), fc("g", "f", 5), text("Softmax", "f", "prob"),
)  # fmt: skip


def quantized(scheme: str, *layers: str) -> Quantized:
    """Return a net with a table in which the grid of value number n has the scale (n + 1) / 100."""
    made = net_of(*(layers or LAYERS))
    own = read_scheme(scheme)
    at = places(made, own)
    table = Table(own, products=[layer.name for layer in rounded_products(made, own, at)])
    for number, place in enumerate(at):
        low = 0.0 if any(layer.type == "ReLU" for layer in [made.producer(place.value)]) else -1.0
        grid = dataclasses.replace(_grid(own, low), scale=(number + 1) / 100)
        table.values[place.value] = Entry(place.layer, grid)
    return Quantized(made, made, table, {})


def _grid(scheme: Any, low: float) -> Any:
    from ocaffe.quantize.grid import grid

    return grid(low, 1.0, scheme)


def lines(made: Quantized, name: str) -> list[list[str]]:
    content = FORMATS[name](made)
    assert content is not None
    return [line.split(" ") for line in content.decode().splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("scheme", schemes())
def test_formats_belong_to_schemes(scheme: str) -> None:
    own = {"ncnn": ["ncnn.table"], "tpu-mlir": ["tpu-mlir.table"], "ascend": ["amct.txt"]}.get(scheme, [])
    made = quantized(scheme)
    assert [name for name, content in FORMATS.items() if content(made) is not None] == own


def test_files_are_written(tmp_path: pathlib.Path) -> None:
    assert "ncnn.table" in write_all(tmp_path, quantized("ncnn"), FORMATS)
    assert (tmp_path / "ncnn.table").stat().st_size > 100


def test_ncnn() -> None:
    """The weights of all layers come first. ncnn has a factor for each group, so a convolution in groups of several outputs stays in floats there."""
    made = quantized("ncnn")
    found = {name: [float(number) for number in numbers] for name, *numbers in lines(made, "ncnn.table")}
    assert list(found) == ["c_param_0", "d_param_0", "f_param_0", "c", "d", "f"]
    assert [len(numbers) for numbers in found.values()] == [6, 6, 5, 1, 1, 1]
    weights = made.net.arrays["c"][0]
    np.testing.assert_allclose(found["c_param_0"], 127 / np.abs(weights).max((1, 2, 3)), rtol=1e-6)
    scales = [entry.grid.scale for entry in made.table.values.values()]
    np.testing.assert_allclose([found["c"][0], found["d"][0]], [1 / scales[0], 1 / scales[1]], rtol=1e-6)  # d reads p, which has the grid of c
    made.table.wide[:] = ["c"]
    assert "c" not in {line[0] for line in lines(made, "ncnn.table")}


@pytest.mark.parametrize("name", ["a b", "a_param_b", "a\tb", "n" * 300])
def test_names_that_ncnn_cannot_read(name: str) -> None:
    made = quantized("ncnn", data(2, 4, 9, 9), conv("data", "c", 6), fc("c", "f", 5))
    layer = next(layer for layer in made.net.layers if layer.name == "c")
    made.net.arrays[name] = made.net.arrays.pop("c")
    layer.name, made.table.products = name, [name, "f"]
    assert [line[0] for line in lines(made, "ncnn.table")] == ["f_param_0", "f"]


def test_tpu_mlir() -> None:
    """Values that layers only move have the grid of their source. The name of a blob is that of its last writer; the k-th before it is called blob/k."""
    made = quantized("tpu-mlir")
    found = {name: [float(number) for number in numbers] for name, *numbers in lines(made, "tpu-mlir.table")}
    assert list(found) == ["data", "c/1", "c", "p", "d", "e", "g", "g_reshape", "f", "prob"]
    assert found["p"] == found["c"]
    assert found["c"][1] == 0
    assert found["c"][0] == found["c"][2] == pytest.approx(255 * made.table.values["c"].grid.scale)
    assert found["g_reshape"] == found["g"]
    assert found["prob"] == [1, 0, 1]
    for threshold, low, high in found.values():
        assert threshold == pytest.approx(high)
        assert low in (0, pytest.approx(-high * 128 / 127))
    entry = made.table.values["e"]  # 0.25 is the slope of a new PReLU, so its bottom reaches four times as far below 0
    made.table.values["e"] = dataclasses.replace(entry, low=-0.9 * entry.grid.high)
    (threshold,) = (float(line[1]) for line in lines(made, "tpu-mlir.table") if line[0] == "d")
    assert threshold == pytest.approx(3.6 * entry.grid.high, rel=1e-5)


class Records:
    """AMCT's messages, as Huawei's documentation has them."""

    def __init__(self) -> None:
        file = descriptor_pb2.FileDescriptorProto(name="records.proto", package="amct", syntax="proto2")
        single = file.message_type.add(name="SingleLayerRecord")
        kinds = descriptor_pb2.FieldDescriptorProto
        for number, (name, kind, label) in enumerate([("scale_d", kinds.TYPE_FLOAT, 1), ("offset_d", kinds.TYPE_INT32, 1), ("scale_w", kinds.TYPE_FLOAT, 3),
                                                      ("offset_w", kinds.TYPE_INT32, 3)], 1):  # fmt: skip
            single.field.add(name=name, number=number, type=kind, label=label)  # type: ignore[arg-type]
        entry = file.message_type.add(name="Entry")
        entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
        entry.field.add(name="value", number=2, type=kinds.TYPE_MESSAGE, label=kinds.LABEL_OPTIONAL, type_name=".amct.SingleLayerRecord")
        whole = file.message_type.add(name="ScaleOffsetRecord")
        whole.field.add(name="record", number=1, type=kinds.TYPE_MESSAGE, label=kinds.LABEL_REPEATED, type_name=".amct.Entry")
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        self.made = message_factory.GetMessageClass(pool.FindMessageTypeByName("amct.ScaleOffsetRecord"))


def test_amct() -> None:
    made = quantized("ascend")
    content = FORMATS["amct.txt"](made)
    assert content is not None
    found: Any = text_format.Parse(content.decode(), Records().made())
    assert [entry.key for entry in found.record] == ["c", "d", "g", "f"]
    assert [len(entry.value.scale_w) for entry in found.record] == [6, 6, 6, 1]  # it has one for an InnerProduct
    assert [list(entry.value.offset_w) for entry in found.record] == [[0] * 6, [0] * 6, [0] * 6, [0]]
    grid = made.table.values["data"].grid
    assert (found.record[0].value.scale_d, found.record[0].value.offset_d) == (pytest.approx(grid.scale), grid.zero_point)
    assert found.record[3].value.scale_w[0] == pytest.approx(np.abs(made.net.arrays["f"][0]).max() / 127)


def test_names_are_escaped_for_amct() -> None:
    made = quantized("ascend", data(2, 4, 9, 9), conv("data", 'c', 6), fc("c", "f", 5))
    name = 'a "b" \\ } record {'
    layer = next(layer for layer in made.net.layers if layer.name == "c")
    made.net.arrays[name] = made.net.arrays.pop("c")
    layer.name, made.table.products = name, [name, "f"]
    content = FORMATS["amct.txt"](made)
    assert content is not None
    found: Any = text_format.Parse(content.decode(), Records().made())
    assert [entry.key for entry in found.record] == [name, "f"]


def test_weights_of_zeros_have_factors() -> None:
    made = quantized("ncnn")
    made.net.arrays["c"][0][2] = 0
    factors = next(line for line in lines(made, "ncnn.table") if line[0] == "c_param_0")
    assert factors[3] == "1"


def test_targets_refuse_the_net_that_rounds(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    made: Net = quantized("tpu-mlir").net
    assert made
    write_all(tmp_path, quantized("tpu-mlir"), {})
    files = [str(tmp_path / name) for name in ("t.prototxt", "t.caffemodel")]
    assert main(["convert", str(tmp_path / "quantized.prototxt"), str(tmp_path / "quantized.caffemodel"), *files, "--target", "tpu-mlir", "--noverify"]) == 1
    said = capsys.readouterr().err
    assert "the net rounds values or weights, and tpu-mlir reads nets in floats" in said
    assert f"give the net in floats beside it: {tmp_path / NET} {tmp_path / WEIGHTS}" in said
    assert main(["convert", str(tmp_path / NET), str(tmp_path / WEIGHTS), *files, "--target", "tpu-mlir", "--noverify"]) == 0
    for name in (NET, WEIGHTS):
        (tmp_path / name).unlink()
    assert main(["convert", str(tmp_path / "quantized.prototxt"), str(tmp_path / "quantized.caffemodel"), *files, "--target", "rknn", "--noverify"]) == 1
    assert "net.prototxt and net.caffemodel of `ocaffe quantize`" in capsys.readouterr().err


def test_integers_of_weights() -> None:
    from ocaffe import proto

    param = proto.WeightQuantizationParameter(bits=8)
    whole, scales = weight_integers(np.array([[1.0, -2.0], [0.0, 0.0]]), WeightOutputs((2, 2), (0,)), param)
    assert whole.tolist() == [[64, -127], [0, 0]]
    assert scales.reshape(-1).tolist() == [np.float32(2) / np.float32(127), 0]
