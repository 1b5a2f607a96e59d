"""Fold BatchNorm, Scale, Bias and Power into the products before or behind them, and chains of the others into one layer.

    product ─▶ norm             product, with other numbers for each output
    norm ─▶ product, product    product, product, with other numbers for each input
    norm ─▶ norm                Scale

`through` folds norms behind Concat, sums, poolings and ReLU.
All readers of a norm must be products. Flatten and Reshape may stand between. Products that share weights get one result or none. A value that others
read keeps its numbers.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from ocaffe.convert.caffe.affine import Affine, affine_of, scale_layer
from ocaffe.convert.caffe.net import Net
from ocaffe.convert.caffe.products import before, behind, give, is_product
from ocaffe.convert.caffe.through import fold_through

VIEWS = ("Flatten", "Reshape")  # the same numbers in the same order


def fold(net: Net) -> int:
    """Fold all that can be folded. Return the number of removed layers."""
    count = len(net.layers)
    while any([_fold_behind(net), fold_through(net), _fold_before(net)]):
        pass
    while _join(net):
        pass
    net.arrays = net.weights()
    return count - len(net.layers)


def norms(net: Net) -> list[str]:
    """Return the names of the layers that multiply and add constants."""
    return [layer.name for layer in net.layers if affine_of(net, layer) is not None]


# -- product, then norm ----------------------------------------------------------------------------------------------


def _fold_behind(net: Net) -> bool:
    done = False
    for layer in list(net.layers):
        while any(each is layer for each in net.layers) and is_product(net, layer) and _take_behind(net, layer):
            done = True
    return done


def _take_behind(net: Net, layer: Any) -> bool:
    """Fold the norms behind a product, and behind all that share its weights. Return whether it is done."""
    taken: list[tuple[Any, list[np.ndarray]]] = []
    norms: list[tuple[Any, list[str]]] = []
    for product in net.sharers(layer):
        if not is_product(net, product):
            return False
        results = []
        for top in product.top:
            found = _norm_behind(net, top)
            if found is None:
                return False
            norm, values, affine = found
            results.append(behind(net, product, affine))
            norms.append((norm, values))
        if any(result is None or not _equal(result, results[0]) for result in results):
            return False
        taken.append((product, results[0]))  # type: ignore[arg-type]
    if not _shared_alike(net, taken) or not all(net.can_remove(norm, keep=norm.top[0]) for norm, _ in norms):
        return False
    for product, arrays in taken:
        give(net, product, arrays)
    for norm, values in norms:
        net.remove(norm, keep=norm.top[0])
        for value in values:
            net.rename(value, net.fresh(f"{value}.folded"))
    return True


def _norm_behind(net: Net, value: str) -> tuple[Any, list[str], Affine] | None:
    """Return the norm that alone reads a value, the values before the last view between them, and its numbers for the value."""
    first, values = value, list[str]()
    while net.is_free(value):
        (reader,) = net.readers(value)
        affine = affine_of(net, reader)
        if affine is not None:
            return reader, values, affine if value == first else _viewed(net, affine, value, first)
        if not _is_view(net, reader):
            return None
        values.append(value)
        value = reader.top[0]
    return None


# -- norm, then products ---------------------------------------------------------------------------------------------


def _fold_before(net: Net) -> bool:
    done = False
    for norm in list(net.layers):
        if any(each is norm for each in net.layers) and affine_of(net, norm) is not None:
            done = _take_before(net, norm) or done
    return done


def _take_before(net: Net, first: Any) -> bool:
    """Fold a norm into all products that read it, with the other norms before products that share their weights. Return whether it is done."""
    norms, products, values = [first], list[Any](), list[str]()
    for norm in norms:  # it grows
        found = _products_behind(net, norm.top[0], values)
        if found is None or not net.can_remove(norm, keep=norm.bottom[0]):
            return False
        for product in found:
            for other in net.sharers(product):
                above = _norm_before(net, other)
                if above is None:
                    return False
                norms += [above] if not _there(above, norms) else []
                products += [other] if not _there(other, products) else []
    taken = []
    for product in products:
        norm = _norm_before(net, product)
        affine = affine_of(net, norm)
        if affine is None:
            return False
        (x,) = product.bottom
        arrays = before(net, product, affine if x == norm.top[0] else _viewed(net, affine, norm.top[0], x))
        if arrays is None:
            return False
        taken.append((product, arrays))
    if not _shared_alike(net, taken):
        return False
    for product, arrays in taken:
        give(net, product, arrays)
    for value in dict.fromkeys(values):
        net.rename(value, net.fresh(f"{value}.folded"))
    for norm in norms:
        net.remove(norm, keep=norm.bottom[0])
    return True


def _products_behind(net: Net, value: str, values: list[str]) -> list[Any] | None:
    """Return the products that read a value, None if something else reads it too. `values` gets those that views make of it."""
    if value in net.outputs or not net.readers(value):
        return None
    found = []
    for reader in net.readers(value):
        if is_product(net, reader) and len(reader.bottom) == 1:
            found.append(reader)
        elif _is_view(net, reader):
            values.append(reader.top[0])
            more = _products_behind(net, reader.top[0], values)
            if more is None:
                return None
            found += more
        else:
            return None
    return found


def _norm_before(net: Net, product: Any) -> Any:
    """Return the norm whose value a product of one bottom reads, or a view of it. None if there is none."""
    if not is_product(net, product) or len(product.bottom) != 1:
        return None
    layer = net.producer(product.bottom[0])
    while _is_view(net, layer):
        layer = net.producer(layer.bottom[0])
    return layer if affine_of(net, layer) is not None else None


# -- norm, then norm -------------------------------------------------------------------------------------------------


def _join(net: Net) -> bool:
    for layer in net.layers:
        one = affine_of(net, layer)
        if one is None or not net.is_free(layer.top[0]):
            continue
        (reader,) = net.readers(layer.top[0])
        two = affine_of(net, reader)
        if two is None or not net.can_remove(layer, keep=layer.bottom[0]):
            continue
        both = scale_layer(reader.name, layer.bottom[0], reader.top[0], (one[0] * two[0], one[1] * two[0] + two[1]))
        if both is not None:
            net.remove(layer, keep=layer.bottom[0])
            net.replace(reader, both)
            return True
    return False


# -- help ------------------------------------------------------------------------------------------------------------


def _is_view(net: Net, layer: Any) -> bool:
    return layer.type in VIEWS and len(layer.bottom) == len(layer.top) == 1


def _viewed(net: Net, affine: Affine, value: str, other: str) -> Affine:
    """Return numbers that are broadcast to one value as those for another, which is a view of the same memory."""
    scale, shift = (np.broadcast_to(part, net.shapes[value]).reshape(net.shapes[other]) for part in affine)
    return scale, shift


def _shared_alike(net: Net, taken: list[tuple[Any, list[np.ndarray]]]) -> bool:
    """Whether the products that share a blob get the same one. Each of these then has the same array."""
    owners: dict[str, np.ndarray] = {}
    for product, arrays in taken:
        for spec, array in zip(product.param, arrays):
            if spec.name and not _equal([owners.setdefault(spec.name, array)], [array]):
                return False
    for product, arrays in taken:
        for index, spec in enumerate(product.param[: len(arrays)]):
            if spec.name:
                arrays[index] = owners[spec.name]
    return True


def _equal(one: list[np.ndarray] | None, two: list[np.ndarray] | None) -> bool:
    return one is not None and two is not None and len(one) == len(two) and all(np.array_equal(a, b) for a, b in zip(one, two))


def _there(layer: Any, layers: list[Any]) -> bool:
    return any(each is layer for each in layers)
