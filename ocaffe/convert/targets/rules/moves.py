"""Permutations of axes: as views that no layer moves, and where a layer needs the order, by Permute or by convolutions with ones and zeros.

A convolution with ones and zeros gives the same numbers, except that an infinite value or NaN spreads to others as NaN.
"""
from __future__ import annotations

import itertools
import math

import numpy as np

from ocaffe.convert.targets.rewriter import MOST_ONES, Item, Refused, Rewriter, mover, rule, viewed
from ocaffe.convert.targets.view import Atom, View, size_of
from ocaffe.layers.permute import Permuted


@rule("Permute", "ShuffleChannel", "Reorg", "PassThrough", "Transpose")
@viewed("Permute", "ShuffleChannel", "Reorg", "PassThrough", "Transpose")
def permuted(net: Rewriter, item: Item) -> View | None:
    made = net.computed(item)
    top = tuple(made.infer(item.shape)[0])
    if not isinstance(made, Permuted):
        return None
    divided = item.bottoms[0].reshaped(tuple(made.split))
    if divided is None:
        return None
    turned = divided.permuted(made.order)
    joined = turned.reshaped(top)
    return View.of(net.shaped(net.plain(turned), top, item.wishes[0]), top) if joined is None else joined


@rule("Reshape", "Flatten")
@viewed("Reshape", "Flatten")
def reshaped(net: Rewriter, item: Item) -> View | None:
    return item.bottoms[0].reshaped(tuple(net.computed(item).infer(item.shape)[0]))


@mover
def move(net: Rewriter, view: View, wish: str) -> View:
    """Return the same values in the order of the axes. Raises Refused if the target has no layers for it."""
    for kind in ("Convolution", "Deconvolution"):
        with net.attempt() as tried:
            made = _cells(net, view, kind, wish)
            if made is not None:
                return tried.done([made])[0]
    sizes, order = view.runs()
    blob = view.blob
    place = list(range(len(sizes)))  # which run lies where
    for at, run in enumerate(order):
        now = place.index(run)
        if now == at:
            continue
        first, middle, last = (math.prod(sizes[each] for each in part) for part in (place[:at], place[at:now], place[now + 1 :]))
        place.insert(at, place.pop(now))
        end = place == order
        blob = _swap(net, blob, (first, middle, sizes[run], last), view, wish if end else "")
    return View.of(net.shaped(blob, view.shape, wish), view.shape)


def _swap(net: Rewriter, blob: str, shape: tuple[int, int, int, int], view: View, wish: str) -> str:
    """Return a blob whose axes 1 and 2 of 4 are exchanged."""
    first, one, two, last = shape
    x = View.of(blob, net.net.shapes[blob])
    named = wish if view.shape == (first, two, one, last) else ""
    if net.accepts("Permute"):
        with net.attempt() as tried:
            top = net.add("Permute", [net.as_shape(x, shape)], {"order": [0, 2, 1, 3]}, part="moved", wish=named)
            if top.blob not in (blob, net.shaped(blob, shape)):  # the target takes this order
                return tried.done([top])[0].blob
    if last > 1 and one * two <= MOST_ONES:
        ones = np.eye(one * two).reshape(one, two, one * two).swapaxes(0, 1).reshape(one * two, one * two, 1, 1)
        fields = {"num_output": one * two, "kernel_size": [1], "bias_term": False}
        top = net.add("Convolution", [net.as_shape(x, (first, one * two, last, 1))], fields, part="moved", arrays=[ones])
        return top.blob
    if min(one, two) > MOST_ONES:
        fact = f"it permutes axes of {one} and {two} values, and {net.table.title} has no Permute; a product with ones takes up to {MOST_ONES} values"
        raise Refused(fact)
    fields = {"kernel_h": 1, "kernel_w": min(one, two), "bias_term": False} | ({"dilation": [1, last]} if last > 1 else {})
    if two <= one:  # each of the channels takes one value of the second axis
        ones = np.eye(two).reshape(two, 1, 1, two)
        top = net.add("Convolution", [net.as_shape(x, (first, 1, one, two * last))], {"num_output": two, **fields}, part="moved", arrays=[ones])
    else:  # each of the channels puts its values at one value of the first axis
        ones = np.eye(one).reshape(one, 1, 1, one)
        top = net.add("Deconvolution", [net.as_shape(x, (first, one, two, last))], {"num_output": 1, **fields}, part="moved", arrays=[ones])
    return top.blob


def _image(net: Rewriter, view: View) -> tuple[list[list[Atom]], list[list[Atom]]] | None:
    """Return the atoms of the axes of the blob and of the view, both N x C x H x W with the same N, or None."""
    shape = net.net.shapes[view.blob]
    if len(shape) != 4 or len(view.shape) != 4 or shape[0] != view.shape[0]:
        return None
    memory, axes = list(view.memory), list[list[Atom]]()
    for size in shape:
        axis = list[Atom]()
        while size_of(axis) < size:
            axis.append(memory.pop(0))
        axes.append(axis)
    if [size_of(axis) for axis in axes] != list(shape) or list(map(id, axes[0])) != list(map(id, view.axes[0])):
        return None
    return axes, [list(axis) for axis in view.axes]


def _ids(atoms: list[Atom]) -> list[int]:
    return list(map(id, atoms))


def _inner(long: list[Atom], short: list[Atom]) -> list[Atom] | None:
    """Return the atoms of an axis after those of a shorter one, or None."""
    return long[len(short) :] if _ids(long[: len(short)]) == _ids(short) else None


def _cells(net: Rewriter, view: View, kind: str, wish: str) -> View | None:
    """Space to depth by a Convolution whose stride is its kernel, or depth to space by such a Deconvolution."""
    found = _image(net, view)
    if found is None:
        return None
    (_, channels, rows, columns), (_, deep, high, wide) = found if kind == "Convolution" else found[::-1]
    down, right = _inner(rows, high), _inner(columns, wide)
    if down is None or right is None or not (down or right) or sorted(_ids(channels + down + right)) != sorted(_ids(deep)):
        return None
    return _strided(net, view, kind, _one_hot(deep, [channels, down, right]), wish)


def _one_hot(outer: list[Atom], inner: list[list[Atom]]) -> np.ndarray:
    """Return ones that lead from each channel of `outer` to its channel, row and column in `inner`."""
    numbers = np.arange(size_of(outer)).reshape([atom.size for atom in outer])
    at = {id(atom): number for number, atom in enumerate(outer)}
    order = [at[id(atom)] for atom in itertools.chain(*inner)]
    shape = [size_of(atoms) for atoms in inner]
    ones = np.zeros((numbers.size, *shape), np.float32)
    for place, channel in enumerate(numbers.transpose(order).reshape(-1)):
        to, row, column = np.unravel_index(place, shape)
        ones[channel, to, row, column] = 1
    return ones


def _strided(net: Rewriter, view: View, kind: str, ones: np.ndarray, wish: str) -> View | None:
    if ones.size > MOST_ONES**2:
        return None
    x = View.of(view.blob, net.net.shapes[view.blob])
    high, wide = ones.shape[2:]
    fields = {"num_output": view.shape[1], "kernel_h": high, "kernel_w": wide, "stride_h": high, "stride_w": wide, "bias_term": False}
    return net.add(kind, [x], fields, part="moved", wish=wish, arrays=[ones])
