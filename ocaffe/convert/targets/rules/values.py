"""Products of two computed values, and constants that no layer computes."""
from __future__ import annotations

import math

import numpy as np

from ocaffe import proto
from ocaffe.convert.targets.rewriter import Item, Refused, Rewriter, rule
from ocaffe.convert.targets.rules.linear import apply
from ocaffe.convert.targets.view import View
from ocaffe.ir.tensor import Shape
from ocaffe.layers.matmul import MatMul

MOST_TERMS = 1 << 26  # terms of a product for each sample: 256 MiB


# -- products ----------------------------------------------------------------------------------------------------------


@rule("MatMul")
def product_of_matrices(net: Rewriter, item: Item) -> View | None:
    """The sum over k of a[m, k] b[k, n]: b is repeated for each m, a Scale layer multiplies it by a, and a convolution with ones adds the terms."""
    made = net.computed(item)
    top = tuple(made.infer(*(view.shape for view in item.bottoms))[0])
    assert isinstance(made, MatMul)
    shaped = [view if view.shape == shape else view.reshaped(shape) for view, shape in zip(item.bottoms, (made.a, made.b))]
    a, b = (None if view is None else _matrices(net, view, made.batch, turned) for view, turned in zip(shaped, (made.trans_a, made.trans_b)))
    if a is None or b is None:
        return None
    groups, (m, n, k) = a.shape[0] // net.batch, made.sizes
    if groups * m * k * n > MOST_TERMS:
        text = " x ".join(map(str, (groups, m, k, n)))
        raise Refused(f"it is the sum of {text} = {groups * m * k * n} products for each sample, and ocaffe writes at most {MOST_TERMS}")
    other = b.permuted([0, 2, 1]), a.permuted([0, 2, 1])  # the transposed product, with the transposed matrices
    if _moved(*other) < _moved(a, b):
        return _sums(net, *other).permuted([0, 2, 1]).reshaped(top)
    return _sums(net, a, b).reshaped(top)


def _matrices(net: Rewriter, view: View, batch: Shape, turned: bool) -> View | None:
    """Return a bottom of MatMul with three axes: all matrices, rows and columns. A bottom that has fewer matrices is repeated."""
    first = len(view.shape) - 2
    if turned:
        view = view.permuted([*range(first), first + 1, first])
    whole = (*(1,) * (len(batch) - first), *view.shape)
    if whole[:-2] != batch:
        view = View.of(net.shaped(net.plain(view), whole), whole)
        for axis, (size, wanted) in enumerate(zip(whole, batch)):
            if size != wanted:
                view = net.add("Tile", [view], {"axis": axis, "tiles": wanted}, part=f"repeated{axis}")
    return view.reshaped((math.prod(batch), *view.shape[-2:]))


def _moved(a: View, b: View) -> int:
    """Return how many values of the bottoms have to be moved for `_sums`."""
    return math.prod(a.shape) * (not a.in_order and not a.permuted([0, 2, 1]).in_order) + math.prod(b.shape) * (not b.in_order)


def _sums(net: Rewriter, a: View, b: View) -> View:
    """Return the products of G x M x K and G x K x N. Scale takes a as the first axes of the terms, so m and k have the order that they have in the memory."""
    (groups, m, k), n = a.shape, b.shape[2]
    axis = 1 if a.in_order else 2  # of m in the terms
    factors = a if a.in_order else a.permuted([0, 2, 1])
    shape = (groups, 1, k, n) if axis == 1 else (groups, k, 1, n)
    terms = net.as_shape(_in_order(net, b), shape)
    if m > 1:
        terms = net.add("Tile", [terms], {"axis": axis, "tiles": m}, part="repeated")
    terms = net.add("Scale", [terms, net.as_shape(_in_order(net, factors), factors.shape)], {"axis": 0}, part="terms")
    if k == 1:
        return net.as_shape(terms, (groups, m, n))
    made = apply(net, terms, [3 - axis], np.ones((1, k)), None, "sum")
    assert made is not None
    return net.as_shape(made, (groups, m, n))


def _in_order(net: Rewriter, view: View) -> View:
    """Return a view in the order of its axes."""
    return view if view.in_order else View.of(net.plain(view), view.shape)


# -- constants ---------------------------------------------------------------------------------------------------------


@rule("Parameter")
def constant(net: Rewriter, item: Item) -> View | None:
    """The bias of a product with zeros."""
    values = item.arrays[0]
    made = _biased(net, values, item.wishes[0], each=False)
    return made.reshaped(values.shape)


@rule("Where")
def repeated(net: Rewriter, item: Item) -> View | None:
    """A choice between equal values: they are repeated along the batch, as importers do it."""
    top = tuple(net.computed(item).infer(*(view.shape for view in item.bottoms))[0])
    _, name, other = net.now.bottom
    x, made = item.bottoms[1], net.source.producer(name)
    wider = [axis for axis, (size, wanted) in enumerate(zip((1,) * (len(top) - len(x.shape)) + x.shape, top)) if size != wanted]
    if name != other or len(wider) > 1:
        return None
    if not wider:
        return x.reshaped(top)
    axis = wider[0]
    if made.type != "Parameter" or top[axis] != net.inputs()[0].shape[0]:
        return None
    found = _biased(net, net.source.arrays[made.name][0], item.wishes[0] if axis == 0 else "", each=True)
    others = [*top[:axis], *top[axis + 1 :]]
    whole = found.reshaped((top[axis], *others))
    return None if whole is None else whole.permuted([*range(1, axis + 1), 0, *range(axis + 1, len(top))])


def _biased(net: Rewriter, values: np.ndarray, wish: str, *, each: bool) -> View:
    """Return these values for each sample of the batch, or once.

    They are the bias of a product of zeros and sigmoids of the input: an infinite input does not make it NaN, since its sigmoid is 0 or 1.
    """
    x = net.inputs()[0]
    if len(x.shape) != 4:
        x = net.as_shape(x, (*x.shape[:1], 1, math.prod(x.shape[1:]), 1))
    largest = {"pool": proto.PoolingParameter.MAX, "global_pooling": True}
    x = net.add("Pooling", [x], largest, part="largest")
    if not each:
        x = net.add("Reshape", [x], {"shape": {"dim": [1, 1, -1, 1]}}, part="all")
        x = net.add("Pooling", [x], largest, part="largest_of_all")
    gate = net.add("Sigmoid", [net.as_shape(x, x.shape[:2])], part="finite")
    arrays = [np.zeros((values.size, gate.shape[1])), values.reshape(-1)]
    return net.add("InnerProduct", [gate], {"num_output": values.size}, part="constant", arrays=arrays, wish=wish if values.ndim == 2 else "")
