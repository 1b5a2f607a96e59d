"""Rewrite a Caffe net for deployment: `rewrite(net.prototxt, net.caffemodel, options)`.

    prototxt, weights ─for_inference─▶ ─net_of─▶ Net ─bake─▶ ─modernize─▶ ─remove_idle─▶ ─fold─▶ ─expose─▶ ─strip─▶ Net
"""
from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ocaffe.compiler.network import node_shape
from ocaffe.convert.caffe.fold import fold
from ocaffe.convert.caffe.modern import modernize
from ocaffe.convert.caffe.net import Net, net_of
from ocaffe.convert.caffe.outputs import expose
from ocaffe.convert.caffe.prepare import bake
from ocaffe.convert.caffe.remove import remove_idle
from ocaffe.convert.caffe.strip import strip
from ocaffe.convert.deploy import Preprocessing
from ocaffe.convert.export import built, for_inference, parameter_values
from ocaffe.convert.options import Options
from ocaffe.formats.text import read_net
from ocaffe.formats.weights import Weights, read_weights
from ocaffe.ir.graph import Graph, Parameter
from ocaffe.support import log


@dataclass
class Rewritten:
    """The net after the passes, and before them, the graph of the source, and its weights.

    `how`: the preprocessing that is part of the net, by the input's blob. `pixels`: the values that take pixels, each with the value that the source's
    input had. `prepared`: how images are prepared for the net, if the file's data layers say so. `note`: that of `Deployed`. `modern`, `idle`, `folded`:
    the numbers of layers that were replaced, that changed nothing, and that were folded.
    """

    net: Net
    source: Net
    graph: Graph
    weights: dict[Parameter, np.ndarray]
    how: dict[str, Preprocessing] = field(default_factory=dict)
    pixels: dict[str, str] = field(default_factory=dict)
    prepared: str = ""
    note: str = ""
    modern: int = 0
    idle: int = 0
    folded: int = 0

    @property
    def layers(self) -> Sequence[Any]:
        """The layers of the source."""
        return self.graph.message.layer  # type: ignore[no-any-return]

    @property
    def named(self) -> Container[str]:
        """The blobs of the source, which are all compared."""
        return self.graph.blobs.keys()

    def __str__(self) -> str:
        told = ((self.modern, "of forks rewritten"), (self.idle, "without effect removed"), (self.folded, "folded"))
        parts = [f"{count} {what}" for count, what in told if count]
        return f"{len(self.net.layers)} layers" + (f" ({', '.join(parts)})" if parts else "")


def rewrite(net: str | Any, weights: str | Weights | None, options: Options) -> Rewritten:
    """Return the net for inference, with the layers of BVLC Caffe where they compute the same. `net` is a prototxt or its message.

    Raises Error where the net cannot be built, or a layer has no weights (except with `options.fillers`).
    """
    log.as_library()
    message = read_net(net, options.unknown_fields, lambda text: log.warning("upgrade_proto.cpp:1", text)) if isinstance(net, str) else net
    named = read_weights(weights) if isinstance(weights, str) else weights
    deployed = for_inference(message, named, options)
    graph = built(deployed.message, options)
    values = parameter_values(graph, named, options)
    arrays = {node.name: [values[parameter].reshape(node_shape(parameter, node.name)) for parameter in node.params] for node in graph.nodes}
    mine, source = (net_of(deployed.message, arrays, deployed.outputs) for _ in range(2))
    made = Rewritten(mine, source, graph, values, deployed.preprocessing, prepared=deployed.prepared, note=deployed.note)
    made.pixels = bake(made.net, made.how)
    made.modern = modernize(made.net)
    made.idle = remove_idle(made.net)
    if options.fold:
        made.folded = fold(made.net)
    expose(made.net)
    strip(made.net)
    return made


def folded(message: Any, arrays: Mapping[str, Sequence[np.ndarray]]) -> tuple[Any, dict[str, list[np.ndarray]]]:
    """Fold a net that was made from a model. Its outputs are the blobs that no layer reads. Return the message and the arrays by layer."""
    read = {name for layer in message.layer for name in layer.bottom}
    net = net_of(message, arrays, [top for layer in message.layer for top in layer.top if top not in read])
    fold(net)
    return net.message(), net.weights()
