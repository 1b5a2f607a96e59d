"""Remove layers that change nothing: Dropout in TEST, Split, Reshape to the same shape, Concat of one, Crop of nothing, Scale by one, and their kind."""
from __future__ import annotations

from typing import Any

from ocaffe.convert.caffe.affine import affine_of
from ocaffe.convert.caffe.net import Net


def remove_idle(net: Net) -> int:
    """Remove all layers whose top is their first bottom, and those that no output needs. Return how many."""
    count = len(net.layers)
    for layer in list(net.layers):
        if layer.type == "Split":
            _join_tops(net, layer)
        if len(layer.top) == 1 and _is_idle(net, layer):
            layer.bottom[:] = layer.bottom[:1]  # others tell a shape only
            net.rewire(layer, "", "")
            if net.can_remove(layer):
                net.remove(layer)
    net.sweep()
    return count - len(net.layers)


def _is_idle(net: Net, layer: Any) -> bool:
    """Whether the top of a layer is its first bottom, for bottoms of these shapes."""
    if not layer.bottom or net.shapes[layer.bottom[0]] != net.shapes[layer.top[0]]:
        return False
    made: Any = net.computed(layer)
    if not made.moves_data:
        return True
    if layer.type == "Eltwise":
        return len(layer.bottom) == 1 and all(factor == 1 for factor in layer.eltwise_param.coeff)
    if layer.type == "Pooling":
        return bool(set(made.pool.kernel) | set(made.pool.stride) == {1} and not any(made.pool.pad))
    affine = affine_of(net, layer)
    return affine is not None and bool((affine[0] == 1).all() and (affine[1] == 0).all())


def _join_tops(net: Net, layer: Any) -> None:
    """Let the readers of a Split read its bottom. It keeps the tops that are outputs."""
    for top in [top for top in layer.top if top not in net.outputs]:
        for reader in list(net.readers(top)):
            net.rewire(reader, top, layer.bottom[0])
        layer.top.remove(top)
        net.shapes.pop(top)
