"""Draws nets, with pycaffe's function names. Only get_pydot_graph and the text for graphviz need the package pydot, and nothing needs graphviz."""
from __future__ import annotations

import os
from typing import Any

from ocaffe import proto
from ocaffe.errors import Error, WrongValue, within
from ocaffe.formats.filter import filter_net
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.proto import caffe_pb2 as caffe_pb2
from ocaffe.support.files import atomic_write
from ocaffe.tools.datasets.encode import file_format
from ocaffe.tools.drawing.diagram import picture, pixels, svg
from ocaffe.tools.drawing.pydot_graph import BLOB_STYLE as BLOB_STYLE
from ocaffe.tools.drawing.pydot_graph import LAYER_STYLE_DEFAULT as LAYER_STYLE_DEFAULT
from ocaffe.tools.drawing.pydot_graph import NEURON_LAYER_STYLE as NEURON_LAYER_STYLE
from ocaffe.tools.drawing.pydot_graph import choose_color_by_layertype as choose_color_by_layertype
from ocaffe.tools.drawing.pydot_graph import get_edge_label as get_edge_label
from ocaffe.tools.drawing.pydot_graph import get_layer_label as get_layer_label
from ocaffe.tools.drawing.pydot_graph import get_layer_lr_mult as get_layer_lr_mult
from ocaffe.tools.drawing.pydot_graph import get_pooling_types_dict as get_pooling_types_dict
from ocaffe.tools.drawing.pydot_graph import get_pydot_graph as get_pydot_graph
from ocaffe.tools.drawing.pydot_graph import pydot_graph

DIRECTIONS = ("LR", "TB", "RL", "BT")
MAX_PIXELS = 1 << 28
GRAPH_TEXT = ("dot", "gv", "raw")  # formats that hold the text of the graph, for graphviz


def draw_net(caffe_net: Any, rankdir: str = "LR", ext: str = "png", phase: int | None = None, display_lrm: bool = False) -> bytes:
    """Return the content of a picture file of a NetParameter message. `ext` is its format: svg, png, pdf, jpg and others.

    With pydot installed it can be dot, gv or raw too: the text of the graph for graphviz.

    `rankdir`: direction of the data flow: LR, TB, RL or BT.
    `phase`: draw only the layers of this phase, TRAIN or TEST.
    `display_lrm`: show lr_mult and decay_mult.

    Raises Error for a net without layers, and for an unknown direction or format.
    """
    net = upgrade_net(caffe_net)
    if phase is not None:
        net = filter_net(net, proto.NetState(phase=phase))
    return draw(net, rankdir, ext, display_lrm)


def draw(net: Any, rankdir: str, ext: str, display_lrm: bool = False, name: str = "") -> bytes:
    """Like `draw_net`, for an upgraded and filtered net. `name` is the net's file, for messages."""
    if rankdir not in DIRECTIONS:
        raise WrongValue(f"rankdir is '{rankdir}'", fix=f"give rankdir one of {', '.join(DIRECTIONS)}")
    if not net.layer:
        raise Error("the net has no layers to draw", place=name or None, fix="give --phase TRAIN, --phase TEST or --phase ALL, one in which the net has layers")
    if ext.lower().lstrip(".") in GRAPH_TEXT:
        return str(pydot_graph(net, rankdir, True, display_lrm).to_string()).encode()
    with within(name or None):
        drawn = picture(net, rankdir, display_lrm)
    if ext.lower().lstrip(".") == "svg":
        return svg(drawn, net.name or name).encode()
    try:
        kind = file_format(ext)
    except Error as problem:
        raise Error(problem.fact, place=name or None, fix="give a name that ends in .svg, .png, .pdf or .jpg") from None
    if 4 * drawn.size[0] * drawn.size[1] > MAX_PIXELS:
        fact = f"a picture of {drawn.size[0]:.0f} x {drawn.size[1]:.0f} is too large for pixels"
        raise Error(fact, place=name or None, fix="give the picture a name that ends in .svg")
    with within(name or None):
        return pixels(drawn, kind)


def draw_net_to_file(caffe_net: Any, filename: str, rankdir: str = "LR", phase: int | None = None, display_lrm: bool = False) -> None:
    """Write the result of `draw_net` to a file. Its extension sets the format; without one it is png."""
    made = draw_net(caffe_net, rankdir, os.path.splitext(filename)[1] or ".png", phase, display_lrm)
    with atomic_write(filename) as out:
        out.write(made)
