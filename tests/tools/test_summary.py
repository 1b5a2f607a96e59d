"""`ocaffe summary`, compared with published numbers and manual arithmetic."""
from __future__ import annotations

import pathlib
import re

import pytest

from ocaffe import proto
from ocaffe.cli import main
from ocaffe.compiler.network import phase_net
from ocaffe.formats.text import parse
from ocaffe.graph.build import build
from ocaffe.tools.summary import count_text, lines

pytestmark = pytest.mark.quick

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("net", "parameters", "macs"),
    [("alexnet", 60_965_224, "7.24 G"), ("vgg16", 138_357_544, "154.70 G"), ("lenet", 431_080, "2.29 M"), ("mobilenet_v1", 4_253_891, "568.74 M")],
)
def test_zoo(net: str, parameters: int, macs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", str(ROOT / "zoo" / net / "deploy.prototxt")]) == 0
    said = capsys.readouterr().out
    assert f"parameters   {parameters:,} " in said and f"MACs         {macs} forward" in said
    assert re.search(r"^memory +[\d.]+ MiB: parameters [\d.]+ MiB, recycled .*; Caffe takes [\d.]+ [MG]iB$", said, re.M)


NET = """
layer { name: "x" type: "Input" top: "x" top: "y" input_param { shape { dim: 2 dim: 6 dim: 5 dim: 7 } shape { dim: 2 dim: 6 dim: 5 dim: 7 } } }
layer { name: "c" type: "Convolution" bottom: "x" top: "c" param { name: "w" } param { lr_mult: 0 }
        convolution_param { num_output: 4 kernel_size: 3 group: 2 } }
layer { name: "c2" type: "Convolution" bottom: "y" top: "c2" param { name: "w" }
        convolution_param { num_output: 4 kernel_size: 3 group: 2 bias_term: false } }
layer { name: "d" type: "Deconvolution" bottom: "c" top: "d" convolution_param { num_output: 5 kernel_size: 2 stride: 2 bias_term: false } }
layer { name: "r" type: "ReLU" bottom: "d" top: "d" }
layer { name: "i" type: "InnerProduct" bottom: "d" top: "i" inner_product_param { num_output: 3 } }
layer { name: "e" type: "Eltwise" bottom: "c" bottom: "c2" top: "e" }
"""


def test_by_hand() -> None:
    net = phase_net(parse(NET, proto.NetParameter), proto.TEST, 0, ())
    found = {line.name: line for line in lines(net, build(net, proto.TEST))}
    assert list(found) == ["x", "c", "c2", "d", "r", "i", "e"]
    assert found["c"].shapes == [(2, 4, 3, 5)] and found["c"].parameters == 4 * 3 * 9 + 4 and found["c"].macs == 2 * 4 * 3 * 5 * 3 * 9
    assert (found["c2"].parameters, found["c2"].shared, found["c"].shared) == (0, True, False)
    assert found["d"].macs == 2 * 4 * 3 * 5 * 5 * 4 and found["r"].bytes == 0 and found["d"].bytes == 4 * 2 * 5 * 6 * 10
    assert found["i"].macs == 2 * 3 * 300 and found["x"].bytes == 2 * 4 * 2 * 6 * 5 * 7


def test_phase_batch_and_text(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT / "tests" / "golden")
    assert main(["summary", "files/train_net.prototxt", "--phase=TRAIN", "--batch=3"]) == 0
    said = capsys.readouterr().out
    assert "3 x 3 x 24 x 28, 3" in said and "accuracy" not in said and "batch 3: 36.48 k for one" in said and "in place" in said
    (tmp_path / "net").write_text(NET)
    assert main(["summary", str(tmp_path / "net")]) == 0
    assert re.search(r"c2 .* shared ", said := capsys.readouterr().out) and "4 of them not learned" in said
    assert main(["summary", str(tmp_path / "none")]) == 1


@pytest.mark.parametrize(("number", "text"), [(0, ""), (999, "999"), (1000, "1.00 k"), (7.2441e9, "7.24 G"), (3.1e13, "31,000.00 G")])
def test_counts(number: float, text: str) -> None:
    assert count_text(number) == text
