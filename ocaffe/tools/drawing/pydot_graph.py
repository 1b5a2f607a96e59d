"""A net as a graph of the package pydot, with the function names of pycaffe's `draw`. Labels, colors and styles are Caffe's."""
from __future__ import annotations

import importlib
from typing import Any

from ocaffe import proto
from ocaffe.errors import Error, WrongValue
from ocaffe.formats.filter import filter_net
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.shown import visible

LAYER_STYLE_DEFAULT = {"shape": "record", "fillcolor": "#6495ED", "style": "filled"}
NEURON_LAYER_STYLE = {"shape": "record", "fillcolor": "#90EE90", "style": "filled"}  # of layers that work in place
BLOB_STYLE = {"shape": "octagon", "fillcolor": "#E0E0E0", "style": "filled"}
_COLORS = {"Convolution": "#FF5050", "Deconvolution": "#FF5050", "Pooling": "#FF9900", "InnerProduct": "#CC33FF"}
_LEARNING = ("Convolution", "Deconvolution", "InnerProduct")
_WINDOWS = {"Convolution": "convolution_param", "Deconvolution": "convolution_param", "Pooling": "pooling_param"}
_SIZES = {"kernel_size": 1, "stride": 1, "pad": 0}  # and their defaults
_KEYWORDS = {"node", "edge", "graph", "digraph", "subgraph", "strict"}  # of graphviz


class NoPydot(Error, ImportError):
    """A graph needs pydot, which is not installed."""


def get_pooling_types_dict() -> dict[int, str]:
    """Return {number: name} of the methods of Pooling: {0: 'MAX', 1: 'AVE', 2: 'STOCHASTIC'}."""
    return {value.number: value.name for value in proto.PoolingParameter.PoolMethod.DESCRIPTOR.values}


def get_edge_label(layer: Any) -> str:
    """Return the label of the edges from a layer to its tops: the batch of a Data layer, num_output, or a quoted empty text."""
    if layer.type == "Data":
        return f"Batch {layer.data_param.batch_size}"
    if layer.type in _LEARNING:
        return str((layer.inner_product_param if layer.type == "InnerProduct" else layer.convolution_param).num_output)
    return '""'


def get_layer_lr_mult(layer: Any) -> tuple[float, float]:
    """Return lr_mult of the weights and of the bias. Raises Error for a layer that is no Convolution, Deconvolution or InnerProduct."""
    if layer.type not in _LEARNING:
        raise WrongValue(f"a {layer.type} layer has no learning rates", layer=f"'{layer.name}'", fix=f"ask only for layers of type {', '.join(_LEARNING)}")
    if len(layer.param) > 2:
        title = f"'{layer.name}' ({layer.type})"
        raise WrongValue(f"the layer has {len(layer.param)} param fields", layer=title, fix="give it at most two: one for the weights, one for the bias")
    weights, bias = [*(param.lr_mult for param in layer.param), 1.0, 1.0][:2]
    return weights, bias


def get_layer_label(layer: Any, rankdir: str, display_lrm: bool = False) -> str:
    """Return the quoted label of a layer: name, type, window, and with `display_lrm` lr_mult. `rankdir` LR and RL put them below each other."""
    kind = f"{layer.type} {get_pooling_types_dict()[layer.pooling_param.pool]}" if layer.type == "Pooling" else layer.type
    lines = [layer.name, f"({kind})"]
    if layer.type in _WINDOWS:
        param = getattr(layer, _WINDOWS[layer.type])
        lines += [f"{name.replace('_', ' ')}: {_size(param, name, default)}" for name, default in _SIZES.items()]
    if display_lrm and layer.type in _LEARNING and any(get_layer_lr_mult(layer)):
        lines.append("lr mult: {:.1f}, {:.1f}".format(*get_layer_lr_mult(layer)))
    return _quoted(*lines, between=" " if rankdir in ("TB", "BT") else r"\n")


def _size(param: Any, name: str, default: int) -> str:
    """Return a size of a window, as `3`, or as `3 x 5` if it differs per axis."""
    sides = [f"{name.removesuffix('_size')}_{side}" for side in "hw"]
    if any(param.HasField(side) for side in sides):
        sizes = [getattr(param, side) for side in sides]
    else:
        value = getattr(param, name)
        sizes = [value] if isinstance(value, int) else list(value) or [default]
    return " x ".join(map(str, sizes if len(set(sizes)) > 1 else sizes[:1]))


def choose_color_by_layertype(layertype: str) -> str:
    """Return the fill color of a layer of this type, such as '#FF5050'."""
    return _COLORS.get(layertype, LAYER_STYLE_DEFAULT["fillcolor"])


def get_pydot_graph(caffe_net: Any, rankdir: str, label_edges: bool = True, phase: int | None = None, display_lrm: bool = False) -> Any:
    """Return a pydot.Dot of a NetParameter message, with a node for each layer and each blob. Its `create` and `write` need graphviz.

    `label_edges`: show batches and num_output. `phase`: only its layers. Raises Error, which is an ImportError too, if pydot is not installed.
    """
    net = upgrade_net(caffe_net)
    return pydot_graph(net if phase is None else filter_net(net, proto.NetState(phase=phase)), rankdir, label_edges, display_lrm)


def pydot_graph(net: Any, rankdir: str, label_edges: bool, display_lrm: bool) -> Any:
    """Like `get_pydot_graph`, for an upgraded and filtered net."""
    try:
        pydot = importlib.import_module("pydot")
    except ImportError as problem:
        raise NoPydot(f"a graph needs the package pydot: {problem}", fix="pip install pydot, or write a picture such as .svg") from None
    graph = pydot.Dot(_quoted(net.name or "Net"), graph_type="digraph", rankdir=rankdir)
    nodes: dict[str, Any] = {}
    edges: list[tuple[str, str, str]] = []
    for layer in net.layer:
        in_place = len(layer.bottom) == 1 and list(layer.bottom) == list(layer.top)
        style = NEURON_LAYER_STYLE if in_place else LAYER_STYLE_DEFAULT | {"fillcolor": choose_color_by_layertype(layer.type)}
        name = get_layer_label(layer, rankdir, display_lrm)
        nodes[name] = pydot.Node(name, **style)
        for blob in (*layer.bottom, *layer.top):
            nodes[_quoted(blob)] = pydot.Node(_quoted(blob), **BLOB_STYLE)
        edges += [(_quoted(blob), name, '""') for blob in layer.bottom]
        edges += [(name, _quoted(blob), get_edge_label(layer) if label_edges else '""') for blob in layer.top]
    for node in nodes.values():
        graph.add_node(node)
    for source, target, label in edges:
        graph.add_edge(pydot.Edge(nodes[source], nodes[target], label=label))
    return graph


def _quoted(*names: str, between: str = "") -> str:
    """Return names as one that graphviz reads: its keywords, colons and other characters are allowed in quotes only. A backslash would escape a mark."""
    text = between.join(visible(name).replace("\\", r"\\").replace('"', r"\"") for name in names)
    return text if text.isidentifier() and text.isascii() and text.lower() not in _KEYWORDS else f'"{text}"'
