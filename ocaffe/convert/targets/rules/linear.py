"""Products with constant matrices along axes: InnerProduct along any axis, resizing, slices with steps, repetition."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ocaffe import proto
from ocaffe.convert.targets.rewriter import MOST_ONES, Item, Refused, Rewriter, rule, viewed
from ocaffe.convert.targets.rules.activations import power
from ocaffe.convert.targets.view import Atom, View, size_of


def apply(net: Rewriter, x: View, axes: Sequence[int], matrix: np.ndarray, bias: np.ndarray | None, part: str, wish: str = "") -> View | None:
    """Return x with the axes (joined to K values) replaced by one of N = matrix x values + bias; the matrix is N x K. None if they lie apart.

    Where the axes are the last of the memory this is an InnerProduct, if the target takes it, else a convolution with kernel 1.
    """
    atoms = [atom for axis in axes for atom in x.axes[axis]]
    parts = x.place(atoms, axes[0])
    if parts is None:
        return None
    before, inside, after = parts
    columns = in_memory(np.asarray(matrix, np.float32), 1, atoms, inside)
    first, middle, last = size_of(before), matrix.shape[1], size_of(after)
    arrays = [columns] if bias is None else [columns, bias]
    result = x.replaced(x.blob, inside, len(matrix), axes[0], axes[1:])
    named = wish if result.in_order else ""
    fields = {"num_output": len(matrix)} | ({} if bias is not None else {"bias_term": False})
    flat = Item(proto.LayerParameter(type="InnerProduct", inner_product_param=fields), [View.of(x.blob, (first, middle))], [""])
    if last == 1 and not net.faults(flat):
        top = net.add("InnerProduct", [net.as_shape(x, (first, middle))], fields, part=part, arrays=arrays, wish=named if len(result.shape) == 2 else "")
    else:
        own = net.net.shapes[x.blob]
        shape = own if len(own) == 4 and own[:2] == (first, middle) else (first, middle, last, 1)
        arrays[0] = columns.reshape(*columns.shape, 1, 1)
        plain = named if result.shape == (first, len(matrix), *shape[2:]) else ""
        top = net.add("Convolution", [net.as_shape(x, shape)], {**fields, "kernel_size": [1]}, part=part, arrays=arrays, wish=plain)
    return x.replaced(top.blob, inside, len(matrix), axes[0], axes[1:])


def in_memory(array: np.ndarray, axis: int, atoms: Sequence[Atom], inside: Sequence[Atom]) -> np.ndarray:
    """Return an array whose `axis` has the order of the axes (`atoms`) with that of the memory (`inside`)."""
    at = {id(atom): number for number, atom in enumerate(atom for atom in atoms)}
    shape = array.shape
    split = array.reshape(*shape[:axis], *(atom.size for atom in atoms), *shape[axis + 1 :])
    order = [*range(axis), *(axis + at[id(atom)] for atom in inside), *range(axis + len(atoms), split.ndim)]
    return np.ascontiguousarray(split.transpose(order)).reshape(shape)


def along(net: Rewriter, item: Item, matrices: dict[int, np.ndarray]) -> View | None:
    """Return the first bottom with a matrix applied to each of these axes, under the name of the first top."""
    x: View | None = item.bottoms[0]
    for number, (axis, matrix) in enumerate(matrices.items(), 1):
        assert x is not None
        x = apply(net, x, [axis], matrix, None, f"axis{axis}", item.wishes[0] if number == len(matrices) else "")
        if x is None:
            return None
    return x


@rule("InnerProduct")
@viewed("InnerProduct")
def inner_product(net: Rewriter, item: Item) -> View | None:
    x, own = item.bottoms[0], item.own
    axis = own.axis + len(x.shape) if own.axis < 0 else own.axis
    matrix = item.arrays[0].reshape(-1, own.num_output).T if own.transpose else item.arrays[0].reshape(own.num_output, -1)
    bias = item.arrays[1].reshape(-1) if own.bias_term else None
    return apply(net, x, range(axis, len(x.shape)), matrix, bias, "product", item.wishes[0])


@rule("Embed")
def embed(net: Rewriter, item: Item) -> View | None:
    """The product of the table and max(0, 1 - |x - i|) for each row i of it: 1 for the row that x names, else 0. Of other numbers than rows it is the bias."""
    own, shape = item.own, item.shape
    if own.input_dim > MOST_ONES:
        raise Refused(f"it chooses from {own.input_dim} rows, and a product with ones takes up to {MOST_ONES}")
    numbers = net.as_shape(item.bottoms[0], (math.prod(shape), 1))
    rows = {"num_output": own.input_dim}
    apart = net.add("InnerProduct", [numbers], rows, part="distances", arrays=[np.ones((own.input_dim, 1)), -np.arange(own.input_dim)])
    near = power(net, net.add("AbsVal", [apart], part="apart"), scale=-1, shift=1, part="near")
    fields = {"num_output": own.num_output, "bias_term": own.bias_term}
    table = [item.arrays[0].reshape(own.input_dim, own.num_output).T, *item.arrays[1:]]
    return net.add("InnerProduct", [net.add("ReLU", [near], part="ones")], fields, part="rows", arrays=table).reshaped((*shape, own.num_output))


@rule("Tile")
def tile(net: Rewriter, item: Item) -> View | None:
    axis, size = item.own.axis % len(item.shape), item.shape[item.own.axis]
    if size * size * item.own.tiles > MOST_ONES**2:
        return None
    return along(net, item, {axis: np.tile(np.eye(size), (item.own.tiles, 1))})


@rule("StridedSlice", "Reverse")
def selected(net: Rewriter, item: Item) -> View | None:
    """Choose values along each axis by a matrix of ones and zeros."""
    shape, matrices = item.shape, {}
    if item.param.type == "Reverse":
        places = {axis % len(shape): np.arange(shape[axis])[::-1] for axis in list(item.own.axis) or [0]}
    else:
        made = net.computed(item)
        made.infer(shape)
        places = {axis: np.arange(shape[axis])[part] for axis, part in enumerate(_slices(item, shape))}
    for axis, chosen in places.items():
        if len(chosen) != shape[axis] or not np.array_equal(chosen, np.arange(shape[axis])):
            if shape[axis] > MOST_ONES:
                return None
            matrices[axis] = np.eye(shape[axis])[chosen]
    return along(net, item, matrices) if matrices else item.bottoms[0]


def _slices(item: Item, shape: Sequence[int]) -> list[slice]:
    parts, own = [slice(None)] * len(shape), item.own
    for number, axis in enumerate(list(own.axis) or range(len(own.start))):
        step = own.step[number] if number < len(own.step) else 1
        parts[axis] = slice(own.start[number] if own.start else None, own.end[number] if number < len(own.end) else None, step)
    return parts


@rule("Interp")
def interp(net: Rewriter, item: Item) -> View | None:
    """Bilinear resampling with aligned corners: a matrix for each of rows and columns."""
    own, shape = item.own, item.shape
    made = net.computed(item)
    top = made.infer(shape)[0]
    if own.pad_beg or own.pad_end or own.mode != own.LINEAR:
        return None
    return along(net, item, {axis: corners(shape[axis], top[axis]) for axis in (3, 2) if shape[axis] != top[axis]})


def corners(ins: int, outs: int) -> np.ndarray:
    """Return the outs x ins weights of linear interpolation whose first and last places are those of the input."""
    places = np.arange(outs) * ((ins - 1) / max(1, outs - 1))
    low = np.clip(np.floor(places).astype(int), 0, max(0, ins - 2))
    matrix = np.zeros((outs, ins))
    np.add.at(matrix, (np.arange(outs), low), 1 - (places - low))
    np.add.at(matrix, (np.arange(outs), np.minimum(low + 1, ins - 1)), places - low)
    return matrix
