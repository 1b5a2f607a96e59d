"""Fuse neighbouring layers into one: BatchNorm, Scale and ReLU, if no script reads the blobs between them."""
from __future__ import annotations

from collections.abc import Callable

from ocaffe.ir.graph import Blob, Graph, Node

FOLLOWING = 2  # layers that a layer may be fused with: BatchNorm with Scale and an activation


def fused_nodes(graph: Graph, seen: Callable[[Blob], bool]) -> list[Node | None]:
    """The nodes to record, by index: a fused node replaces the last of its members, the other members are None.

    `seen`: whether a script reads a blob.
    """
    result: list[Node | None] = list(graph.nodes)
    number = {id(node): index for index, node in enumerate(graph.nodes)}
    for index, node in enumerate(graph.nodes):
        if result[index] is not node:
            continue
        chain = [node]
        while len(chain) <= FOLLOWING and _has_single_reader(chain[-1], seen):
            following = chain[-1].tops[0].consumer
            assert following is not None
            chain.append(following)
        layer, count = node.layer.fuse_with([other.layer for other in chain[1:]])
        if not count:
            continue
        members = chain[: count + 1]
        for member in members:
            result[number[id(member)]] = None
        params = [parameter for member in members for parameter in member.params]
        backward = any(member.backward for member in members)
        last = members[-1]
        result[number[id(last)]] = Node(node.name, node.type, layer, node.bottoms, last.tops, params, node.propagate, backward, node.place)
    return result


def _has_single_reader(node: Node, seen: Callable[[Blob], bool]) -> bool:
    """Whether one layer, and nothing else, reads the top of this one."""
    if len(node.tops) != 1 or len(node.bottoms) != 1:
        return False
    top = node.tops[0]
    return top.consumer is not None and len(top.consumer.bottoms) == 1 and not top.loss_weight and not seen(top)
