"""`draw`: pictures of nets, with pycaffe's names. tests/tools tests the drawing."""
from __future__ import annotations

import io
import pathlib
import sys
import types
from typing import Any

import pytest
from PIL import Image

from ocaffe import TEST, TRAIN, draw
from ocaffe.errors import Error
from ocaffe.formats.text import read_net
from tests.api.nets import message

pytestmark = pytest.mark.quick


def size(file: Any) -> tuple[int, int]:
    with Image.open(file) as image:
        return image.size


def test_file_by_its_extension(tmp_path: pathlib.Path) -> None:
    for name in ("net.png", "net.svg", "net"):
        draw.draw_net_to_file(message(), str(tmp_path / name), "TB")
    assert (tmp_path / "net.svg").read_text().count("conv") >= 1
    sizes = [size(tmp_path / name) for name in ("net.png", "net")]
    assert sizes[0] == sizes[1] and sizes[0][1] > sizes[0][0], "TB is taller than wide"


def test_bytes_directions_phases() -> None:
    wide = size(io.BytesIO(draw.draw_net(message(), "LR", "png")))
    assert wide[0] > wide[1]
    text = 'layer { name: "only" type: "Input" top: "x" include { phase: TRAIN } } layer { name: "y" type: "Input" top: "y" }'
    assert b"only" in draw.draw_net(message(text), "LR", "svg") and b"only" not in draw.draw_net(message(text), "LR", "svg", phase=TEST)


@pytest.mark.parametrize(("args", "told"), [(("XX", "png"), "rankdir is 'XX'"), (("LR", "docx"), "docx")])
def test_refused(args: tuple[str, str], told: str) -> None:
    with pytest.raises(Error, match=told):
        draw.draw_net(message(), *args)
    with pytest.raises(Error, match="no layers"):
        draw.draw_net(message(""))


LAYERS = """
layer { name: "data" type: "Data" top: "data" top: "label" data_param { batch_size: 64 source: "x" } include { phase: TRAIN } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" param { lr_mult: 1 } param { lr_mult: 2 }
        convolution_param { num_output: 20 kernel_size: 5 stride: 2 pad: 1 } }
layer { name: "wide" type: "Convolution" bottom: "conv" top: "wide" convolution_param { num_output: 8 kernel_h: 3 kernel_w: 5 pad: 1 pad: 2 } }
layer { name: "relu" type: "ReLU" bottom: "wide" top: "wide" }
layer { name: "pool" type: "Pooling" bottom: "wide" top: "a/b:c" pooling_param { pool: AVE kernel_size: 3 stride: 2 } }
layer { name: "up" type: "Deconvolution" bottom: "a/b:c" top: "node" param { lr_mult: 0 } param { lr_mult: 0 } convolution_param { num_output: 3 } }
layer { name: "ip" type: "InnerProduct" bottom: "node" top: "ip" param { lr_mult: 0.5 } inner_product_param { num_output: 10 } }
"""
THREE_PARAMS = 'layer { name: "three" type: "InnerProduct" bottom: "ip" top: "three" param {} param {} param {} }'


def layer(name: str) -> Any:
    return next(each for each in message(LAYERS + THREE_PARAMS).layer if each.name == name)


@pytest.mark.parametrize(
    ("name", "direction", "rates", "label"),
    [
        ("data", "LR", False, r'"data\n(Data)"'),
        ("conv", "LR", False, r'"conv\n(Convolution)\nkernel size: 5\nstride: 2\npad: 1"'),
        ("conv", "TB", True, '"conv (Convolution) kernel size: 5 stride: 2 pad: 1 lr mult: 1.0, 2.0"'),
        ("wide", "BT", False, '"wide (Convolution) kernel size: 3 x 5 stride: 1 pad: 1 x 2"'),
        ("pool", "RL", False, r'"pool\n(Pooling AVE)\nkernel size: 3\nstride: 2\npad: 0"'),
        ("relu", "TB", True, '"relu (ReLU)"'),
        ("up", "TB", True, '"up (Deconvolution) kernel size: 1 stride: 1 pad: 0"'),
        ("ip", "TB", True, '"ip (InnerProduct) lr mult: 0.5, 1.0"'),
    ],
)
def test_labels_of_layers(name: str, direction: str, rates: bool, label: str) -> None:
    assert draw.get_layer_label(layer(name), direction, rates) == label


@pytest.mark.parametrize(("name", "label"), [("data", "Batch 64"), ("conv", "20"), ("up", "3"), ("ip", "10"), ("pool", '""'), ("relu", '""')])
def test_labels_of_edges(name: str, label: str) -> None:
    assert draw.get_edge_label(layer(name)) == label


@pytest.mark.parametrize(("name", "rates"), [("conv", (1.0, 2.0)), ("wide", (1.0, 1.0)), ("ip", (0.5, 1.0)), ("up", (0.0, 0.0))])
def test_learning_rates(name: str, rates: tuple[float, float]) -> None:
    assert draw.get_layer_lr_mult(layer(name)) == rates


@pytest.mark.parametrize(("name", "told"), [("relu", "a ReLU layer has no learning rates"), ("three", "has 3 param fields")])
def test_layers_without_learning_rates(name: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        draw.get_layer_lr_mult(layer(name))


def test_tables() -> None:
    assert draw.get_pooling_types_dict() == {0: "MAX", 1: "AVE", 2: "STOCHASTIC"}
    kinds = ("Convolution", "Deconvolution", "Pooling", "InnerProduct", "ReLU")
    assert [draw.choose_color_by_layertype(kind) for kind in kinds] == ["#FF5050", "#FF5050", "#FF9900", "#CC33FF", "#6495ED"]


class Drawn:
    """A node, an edge or a graph of a module with pydot's interface."""

    def __init__(self, *names: Any, **attributes: Any) -> None:
        self.names, self.attributes, self.nodes, self.edges = names, attributes, [], []  # type: ignore[var-annotated]
        self.add_node, self.add_edge = self.nodes.append, self.edges.append

    def to_string(self) -> str:
        return f"digraph {self.names[0]}"


@pytest.fixture
def pydot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydot", types.SimpleNamespace(Dot=Drawn, Node=Drawn, Edge=Drawn))


@pytest.mark.usefixtures("pydot")
def test_graph_for_pydot() -> None:
    graph = draw.get_pydot_graph(message(LAYERS), "TB")
    assert graph.attributes == {"graph_type": "digraph", "rankdir": "TB"}
    looks = {node.names[0]: node.attributes for node in graph.nodes}
    labels = [draw.get_layer_label(each, "TB") for each in message(LAYERS).layer]
    assert set(looks) == {*labels, "data", "label", "conv", "wide", '"a/b:c"', '"node"', "ip"}
    assert looks[labels[1]]["fillcolor"] == "#FF5050" and looks["conv"] == draw.BLOB_STYLE and looks[labels[3]] == draw.NEURON_LAYER_STYLE
    assert draw.LAYER_STYLE_DEFAULT["fillcolor"] == "#6495ED"
    edges = [(edge.names[0].names[0], edge.names[1].names[0], edge.attributes["label"]) for edge in graph.edges]
    assert edges[:4] == [(labels[0], "data", "Batch 64"), (labels[0], "label", "Batch 64"), ("data", labels[1], '""'), (labels[1], "conv", "20")]
    bare = draw.get_pydot_graph(message(LAYERS), "TB", label_edges=False)
    assert {edge.attributes["label"] for edge in bare.edges} == {'""'}


@pytest.mark.usefixtures("pydot")
def test_graph_of_a_phase() -> None:
    count = {phase: len(draw.get_pydot_graph(message(LAYERS), "LR", phase=phase).nodes) for phase in (None, TRAIN, TEST)}
    assert count[None] == count[TRAIN] == count[TEST] + 2  # the Data layer and the blob `label`
    rates = draw.get_pydot_graph(message(LAYERS), "LR", display_lrm=True)
    assert any("lr mult: 0.5, 1.0" in node.names[0] for node in rates.nodes if "ip" in node.names[0])


@pytest.mark.usefixtures("pydot")
@pytest.mark.parametrize("ext", ["dot", "gv", "raw"])
def test_text_for_graphviz(ext: str, tmp_path: pathlib.Path) -> None:
    draw.draw_net_to_file(message(), str(tmp_path / f"net.{ext}"))
    assert (tmp_path / f"net.{ext}").read_text() == "digraph small"


def test_graph_without_pydot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydot", None)
    for call in (lambda: draw.get_pydot_graph(message(), "LR"), lambda: draw.draw_net(message(), "LR", "dot")):
        with pytest.raises(ImportError, match="pip install pydot"):
            call()
    assert draw.draw_net(message(), "LR", "svg").startswith(b"<svg")


def test_graph_with_the_installed_pydot() -> None:
    """Every name survives the text form of the graph."""
    pydot = pytest.importorskip("pydot")
    for net in (message(LAYERS), read_net(pathlib.Path(__file__).resolve().parents[2] / "zoo/googlenet" / "train_val.prototxt")):
        graph = draw.get_pydot_graph(net, "LR", display_lrm=True)
        (back,) = pydot.graph_from_dot_data(graph.to_string())
        assert {node.get_name() for node in back.get_nodes()} == {node.get_name() for node in graph.get_nodes()}
        assert len(back.get_edges()) == len(graph.get_edges())
