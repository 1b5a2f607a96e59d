"""Find the labels of the losses of a net, and make the data layers check them as they read them."""
from __future__ import annotations

from ocaffe.ir.graph import Blob, Graph, Node


def limit_labels(graph: Graph) -> list[tuple[Node, int]]:
    """Make data layers check the labels that losses read from them. Return the losses, each with a bottom, whose labels come from other layers.

    A loss without a weight is left out: its value is not used.
    """
    others = []
    for node in graph.nodes:
        if any(top.loss_weight for top in node.tops):
            for bottom, limit in node.layer.labels.items():
                blob = _origin(node.bottoms[bottom])
                producer = blob.producer
                read = producer is not None and producer.layer.limit_labels(producer.tops.index(blob), limit)
                if not read and limit.excluded is None:  # true boxes of a Python layer are not checked
                    others.append((node, bottom))
    return others


def _origin(blob: Blob) -> Blob:
    """Return the blob of which `blob` is a copy."""
    while blob.producer is not None and blob.producer.type == "Split":
        blob = blob.producer.bottoms[0]
    return blob
