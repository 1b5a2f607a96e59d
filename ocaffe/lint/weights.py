"""Compares the layers of a net with a weights file: `ocaffe lint --weights`."""
from __future__ import annotations

from collections.abc import Iterator

from ocaffe.compiler.network import fitting
from ocaffe.data.databases.assumed import assumed_data
from ocaffe.errors import Error, Place, names_text
from ocaffe.formats.weights import Weights, read_weights
from ocaffe.graph.build import build
from ocaffe.lint.rules import Finding, Job

RULE = "weights"  # the name of the rule


def check_weights(job: Job, file: str) -> Iterator[Finding]:
    """Yield a finding for each layer without weights, for layers of the file that the net lacks, and for shapes that differ. Raises Error.

    The net of the first view counts: TRAIN if the file has both phases.
    """
    weights = read_weights(file)
    view = job.views[0]
    with assumed_data() as data:
        try:
            graph = build(data.complete(view.net), view.phase)
        except Error:  # the rule about nets that cannot be built says why
            return
    stored = {layer.name for layer in weights.layers if layer.blobs}
    layers = {layer.name: layer for layer in view.layers}
    for node in graph.nodes:
        if node.params and node.name not in stored and node.name in layers:
            fact = f"{file} has no weights for this layer: it keeps the values of its fillers"
            yield view.finding(RULE, layers[node.name], fact, "give the layer the name that it has in the file, if it is the same layer")
    built = {node.name for node in graph.nodes}
    missing = [layer.name for layer in weights.layers if layer.blobs and layer.name not in built]
    if missing:
        fact = f"the net has no layer {names_text(missing)}: these weights are not used"
        yield Finding(RULE, Place(file), "", fact, "give the layers of the net these names, if they are the same ones")
    for layer in weights.layers:  # one by one, because the first difference ends a comparison
        if layer.name not in layers:
            continue
        try:
            list(fitting(graph, Weights(weights.name, [layer], file)))
        except Error as problem:
            yield view.finding(RULE, layers[layer.name], f"{file}: {problem.fact}", problem.fix or "")
