"""A net as a graph of the package pydot, with the function names of pycaffe's `draw`. The labels and styles are Caffe's, so scripts can change them."""
from __future__ import annotations

from typing import Any

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.model.filter import filter_net
from ocaffe.model.upgrade import upgrade_net

LAYER_STYLE_DEFAULT = {"shape": "record", "fillcolor": "#6495ED", "style": "filled"}
NEURON_LAYER_STYLE = {"shape": "record", "fillcolor": "#90EE90", "style": "filled"}  # of layers that work in place
BLOB_STYLE = {"shape": "octagon", "fillcolor": "#E0E0E0", "style": "filled"}
COLORS = {"Convolution": "#FF5050", "Deconvolution": "#FF5050", "Pooling": "#FF9900", "InnerProduct": "#CC33FF"}
_LINES = {"LR": " ", "RL": " "}  # what separates the parts of a label; nets from top to bottom have a part a line


def get_pooling_types_dict() -> dict[int, str]:
    """Return {number: name} of the methods of Pooling: {0: 'MAX', 1: 'AVE', 2: 'STOCHASTIC'}."""
    return {value.number: value.name for value in proto.PoolingParameter.PoolMethod.DESCRIPTOR.values}


def get_edge_label(layer: Any) -> str:
    """Return the label of the edges from a layer to its tops: the batch of a Data layer, or num_output."""
    if layer.type == "Data":
        return f"Batch {layer.data_param.batch_size}"
    if layer.type in ("Convolution", "Deconvolution"):
        return str(layer.convolution_param.num_output)
    if layer.type == "InnerProduct":
        return str(layer.inner_product_param.num_output)
    return '""'


def get_layer_lr_mult(layer: Any) -> str:
    """Return the label of the learning rates of a layer with parameters: lr_mult and decay_mult of each blob. '' for other layers."""
    if layer.type not in ("Convolution", "Deconvolution", "InnerProduct"):
        return ""
    rates = [(blob.lr_mult, blob.decay_mult) for blob in layer.param] or [(1.0, 1.0)]
    return f"learning rate {', '.join(f'{rate:g}' for rate, _ in rates)}, decay {', '.join(f'{decay:g}' for _, decay in rates)}"


def get_layer_label(layer: Any, rankdir: str, display_lrm: bool = False) -> str:
    """Return the label of a layer: name, type and window. `rankdir` sets whether its parts are side by side (LR, RL) or below each other."""
    parts = [layer.name]
    if layer.type in ("Convolution", "Deconvolution"):
        p = layer.convolution_param
        window = ("kernel size", [*p.kernel_size, p.kernel_h]), ("stride", [*p.stride, p.stride_h or 1]), ("pad", [*p.pad, p.pad_h])
        parts += [f"({layer.type})", *(f"{word}: {values[0]}" for word, values in window)]
    elif layer.type == "Pooling":
        p = layer.pooling_param
        parts += [f"({get_pooling_types_dict()[p.pool]} {layer.type})", f"kernel size: {p.kernel_size}", f"stride: {p.stride}", f"pad: {p.pad}"]
    else:
        parts.append(f"({layer.type})")
    if display_lrm and get_layer_lr_mult(layer):
        parts.append(get_layer_lr_mult(layer))
    return '"' + _LINES.get(rankdir, "\\n").join(parts) + '"'


def choose_color_by_layertype(layertype: str) -> str:
    """Return the fill color of a layer of this type."""
    return COLORS.get(layertype, LAYER_STYLE_DEFAULT["fillcolor"])


def get_pydot_graph(caffe_net: Any, rankdir: str, label_edges: bool = True, phase: int | None = None, display_lrm: bool = False) -> Any:
    """Return a pydot.Dot of a NetParameter. Raises Error if the package pydot is not installed."""
    try:
        import pydot
    except ImportError:
        raise Error("the package pydot is not installed", fix="pip install pydot; draw_net and draw_net_to_file do not need it") from None
    net = upgrade_net(caffe_net)
    if phase is not None:
        net = filter_net(net, proto.NetState(phase=phase))
    graph = pydot.Dot(net.name or "Net", graph_type="digraph", rankdir=rankdir)
    nodes: dict[str, Any] = {}
    edges = []
    for layer in net.layer:
        here = f"{layer.name}_{layer.type}"
        in_place = len(layer.bottom) == 1 and list(layer.bottom) == list(layer.top)
        style = NEURON_LAYER_STYLE if in_place else {**LAYER_STYLE_DEFAULT, "fillcolor": choose_color_by_layertype(layer.type)}
        nodes[here] = pydot.Node(get_layer_label(layer, rankdir, display_lrm), **style)
        for name in (*layer.bottom, *layer.top):
            nodes[f"{name}_blob"] = pydot.Node(f'"{name}"', **BLOB_STYLE)
        edges += [(f"{name}_blob", here, '""') for name in layer.bottom]
        edges += [(here, f"{name}_blob", get_edge_label(layer) if label_edges else '""') for name in layer.top]
    for node in nodes.values():
        graph.add_node(node)
    for start, end, label in edges:
        graph.add_edge(pydot.Edge(nodes[start], nodes[end], label=label))
    return graph
