"""Move a norm through the layers between it and the products that make its value: Concat, sums, poolings, ReLU, views.

    conv ─┐                         conv' ─┐
    conv ─┴▶ Concat ─▶ norm         conv' ─┴▶ Concat
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ocaffe.convert.caffe.affine import Affine, affine_of, along
from ocaffe.convert.caffe.net import Net
from ocaffe.convert.caffe.products import behind, give, is_product
from ocaffe.proto import EltwiseParameter, PoolingParameter

Taken = list[tuple[Any, list[np.ndarray]]]  # products with their new arrays


def fold_through(net: Net) -> bool:
    """Fold each norm that products can take through other layers. Return whether there was one."""
    done = False
    for norm in list(net.layers):
        affine = affine_of(net, norm)
        if affine is None or not net.can_remove(norm, keep=norm.top[0]):
            continue
        values, taken = list[str](), Taken()
        if _take(net, norm.bottom[0], affine, values, taken):
            for product, arrays in taken:
                give(net, product, arrays)
            net.remove(norm, keep=norm.top[0])
            for value in values[1:]:
                net.rename(value, net.fresh(f"{value}.folded"))
            done = True
    return done


def _take(net: Net, value: str, affine: Affine, values: list[str], taken: Taken) -> bool:
    """Whether the layers that make a value can give scale value + shift in its place. `values` and `taken` get what changes."""
    if not net.is_free(value):
        return False
    values.append(value)
    layer = net.producer(value)
    if is_product(net, layer) and len(layer.top) == 1 and len(net.sharers(layer)) == 1:
        arrays = behind(net, layer, affine)
        if arrays is None:
            return False
        taken.append((layer, arrays))
        return True
    parts = THROUGH[layer.type](net, layer, affine) if layer.type in THROUGH and len(layer.top) == 1 else None
    return parts is not None and all(_take(net, bottom, part, values, taken) for bottom, part in zip(layer.bottom, parts))


# -- what a layer needs of its bottoms to give scale y + shift -------------------------------------------------------


def _concat(net: Net, layer: Any, affine: Affine) -> list[Affine] | None:
    made: Any = net.computed(layer)
    shape, axis = net.shapes[layer.top[0]], made.copy_axis
    scale, shift = (along(part, shape, axis) for part in affine)
    if scale is None or shift is None:
        return None
    ends = np.cumsum([net.shapes[bottom][axis] for bottom in layer.bottom])[:-1]
    ones = (*[1] * axis, -1, *[1] * (len(shape) - axis - 1))
    return [(a.reshape(ones), b.reshape(ones)) for a, b in zip(np.split(scale, ends), np.split(shift, ends))]


def _sum(net: Net, layer: Any, affine: Affine) -> list[Affine] | None:
    """The shift goes to the first bottom whose coefficient is not 0."""
    p, (scale, shift) = layer.eltwise_param, affine
    factors = [float(factor) for factor in p.coeff] or [1.0] * len(layer.bottom)
    if p.operation != EltwiseParameter.SUM or p.coeff_blob or not any(factors):
        return None
    first = next(index for index, factor in enumerate(factors) if factor)
    return [(scale, shift / factor if index == first else np.zeros_like(shift)) for index, factor in enumerate(factors)]


def _pooling(net: Net, layer: Any, affine: Affine) -> list[Affine] | None:
    """MAX keeps the order of the pixels if the scale is positive. AVE counts zeros of the padding, which get no shift."""
    made: Any = net.computed(layer)
    shape, kind, pool = net.shapes[layer.top[0]], layer.pooling_param.pool, made.pool
    scale, shift = (along(part, shape, 1) for part in affine)
    if scale is None or shift is None or any(step > size for step, size in zip(pool.stride, pool.kernel)):  # windows may be empty
        return None
    fits = (scale > 0).all() if kind == PoolingParameter.MAX else kind == PoolingParameter.AVE and not (shift.any() and any(pool.pad))
    ones = (1, -1, *[1] * (len(shape) - 2))
    return [(scale.reshape(ones), shift.reshape(ones))] if fits else None


def _relu(net: Net, layer: Any, affine: Affine) -> list[Affine] | None:
    scale, shift = affine
    return [affine] if (scale > 0).all() and not shift.any() else None


def _view(net: Net, layer: Any, affine: Affine) -> list[Affine] | None:
    (x,), (y,) = layer.bottom, layer.top
    scale, shift = (np.broadcast_to(part, net.shapes[y]).reshape(net.shapes[x]) for part in affine)
    return [(scale, shift)]


THROUGH: dict[str, Callable[[Net, Any, Affine], list[Affine] | None]] = {
    "Concat": _concat, "Eltwise": _sum, "Flatten": _view, "Pooling": _pooling, "ReLU": _relu, "Reshape": _view,
}  # fmt: skip
