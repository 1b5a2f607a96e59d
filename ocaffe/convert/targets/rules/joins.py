"""Layers on values whose memory has another order than their axes, and the forms that targets with fewer axes take."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.convert.targets.rewriter import Item, Rewriter, rule, viewed
from ocaffe.convert.targets.rules.activations import power, product
from ocaffe.convert.targets.rules.linear import apply, in_memory
from ocaffe.convert.targets.view import Atom, View, size_of
from ocaffe.errors import Error
from ocaffe.ir.tensor import Shape

POINTWISE = (
    "AbsVal", "BNLL", "BReLU", "Clip", "Dropout", "ELU", "Exp", "Gelu", "HardSigmoid", "HardSwish", "Log", "Mish", "Power", "ReLU", "ReLU6", "Sigmoid",
    "Split", "Swish", "TanH", "Threshold",
)  # fmt: skip
MARK = 1_000_003  # a size that no axis has: it marks an axis when layouts are compared


def again(net: Rewriter, item: Item, bottoms: Sequence[View], **fields: Any) -> list[View]:
    """Add the layer for other bottoms and with other fields of its own message. Its tops get names of their own."""
    new = Item(proto.LayerParameter(), list(bottoms), [f"{wish}_turned" for wish in item.wishes], item.arrays)
    new.param.CopyFrom(item.param)
    for name, value in fields.items():
        new.own.ClearField(name)
        if isinstance(value, list):
            getattr(new.own, name).extend(value)
        elif value is not None:
            setattr(new.own, name, value)
    return net.place(new)


@viewed(*POINTWISE)
def pointwise(net: Rewriter, item: Item) -> list[View]:
    x = item.bottoms[0]
    tops = again(net, item, [View.of(x.blob, net.net.shapes[x.blob])])
    return [View(net.plain(top), x.memory, x.axes) for top in tops]


@viewed("Eltwise")
def eltwise(net: Rewriter, item: Item) -> View | None:
    """Values that lie alike are added as they lie."""
    first = next(view for view in item.bottoms if not net.is_plain(view))
    if any(view.layout() != first.layout() for view in item.bottoms):
        return None
    shape = net.net.shapes[first.blob]
    top = again(net, item, [net.as_shape(view, shape) for view in item.bottoms])[0]
    return View(net.plain(top), first.memory, first.axes)


@rule("Eltwise")
def in_pairs(net: Rewriter, item: Item) -> View | None:
    """Factors by Power layers, and two values at a time."""
    own, coeff = item.own, list(item.own.coeff)
    bottoms = list(item.bottoms)
    if any(factor != 1 for factor in coeff):
        bottoms = [power(net, x, scale=factor, part=f"factor{number}") for number, (x, factor) in enumerate(zip(bottoms, coeff))]
    elif len(bottoms) == 2:
        return None
    total = bottoms[0]
    for number, x in enumerate(bottoms[1:], 1):
        last = number == len(bottoms) - 1
        total = net.add("Eltwise", [total, x], {"operation": own.operation}, part=f"pair{number}", wish=item.wishes[0] if last else "")
    return total


@rule("Eltwise")
def difference(net: Rewriter, item: Item) -> list[View] | None:
    """The sum of two values as a difference: one is negated."""
    if len(item.bottoms) != 2 or item.own.operation != item.own.SUM or any(factor != 1 for factor in item.own.coeff):
        return None
    with net.attempt() as tried:
        negative = power(net, item.bottoms[1], scale=-1, part="negative")
        new = Item(proto.LayerParameter(), [item.bottoms[0], negative], item.wishes)
        new.param.CopyFrom(item.param)
        new.own.coeff[:] = [1, -1]
        return None if net.faults(new) else tried.done(net.place(new))
    return None


def form(net: Rewriter, x: View, atoms: Sequence[Atom], axis: int) -> tuple[Shape, Sequence[Atom]] | None:
    """Return a shape of the blob in which axis 1 is these atoms, and the atoms in the order of the memory. None if they lie apart."""
    parts = x.place(atoms, axis)
    if parts is None:
        return None
    before, inside, after = parts
    first, count, last = size_of(before), size_of(inside), size_of(after)
    own = net.net.shapes[x.blob]
    if len(own) == 4 and own[:2] == (first, count):
        return own, inside
    return ((first, count) if last == 1 else (first, count, last, 1)), inside


@rule("Scale", "Bias")
@viewed("Scale", "Bias")
def scaled(net: Rewriter, item: Item) -> View | None:
    """Scale along axis 1 of the memory."""
    x, own = item.bottoms[0], item.own
    axis = own.axis % max(1, len(x.shape))
    if len(item.bottoms) == 2:
        return _scaled_by(net, item, axis)
    given = item.arrays[0]
    covered = len(given.shape) if given.shape != (1,) or own.num_axes else 0
    if own.num_axes == 0 or not covered:
        return None
    atoms = [atom for atoms in x.axes[axis : axis + given.ndim] for atom in atoms]
    found = form(net, x, atoms, axis)
    if found is None:
        return None
    shape, inside = found
    arrays = [in_memory(array.reshape(-1), 0, atoms, inside) if atoms else array.reshape(-1) for array in item.arrays]
    if net.is_plain(x) and shape == x.shape and axis == 1 and given.ndim == 1:
        return None
    new = Item(item.param, item.bottoms, item.wishes, arrays)
    top = again(net, new, [net.as_shape(x, shape)], axis=None, num_axes=None)[0]
    return View(net.plain(top), x.memory, x.axes)


def _scaled_by(net: Rewriter, item: Item, axis: int) -> View | None:
    """Scale by the second bottom, whose values are those of the axes from `axis` on."""
    x, by = item.bottoms
    axes = range(axis, axis + len(by.shape))
    atoms = [atom for at in axes for atom in x.axes[at]]
    found = x.place(atoms, axis)
    divided = by.reshaped(tuple(atom.size for atom in atoms))
    if found is None or divided is None or not atoms:
        return None
    before, inside, after = found
    at = {id(atom): number for number, atom in enumerate(atoms)}
    factors = divided.permuted([at[id(atom)] for atom in inside])
    first, count, last = size_of(before), size_of(inside), size_of(after)
    forms: list[tuple[Shape, Shape]] = [((first, count) if last == 1 else (first, count, last, 1), (count,))]
    if not before:  # the batch and the rest of the values are two axes where a target takes no second bottom of one axis
        forms = [((count, last), (count,)), ((by.shape[0], count // by.shape[0], last, 1), (by.shape[0], count // by.shape[0]))]
    problem: Error | None = None
    for shape, own in forms:
        if net.is_plain(x) and net.is_plain(by) and x.shape == shape and by.shape == own:
            continue
        with net.attempt() as tried:
            factor = View.of(net.shaped(net.plain(factors), own), own)
            top = again(net, item, [net.as_shape(x, shape), factor], axis=0 if not before else 1)[0]
            return tried.done([View(net.plain(top), x.memory, x.axes)])[0]
        problem = problem or tried.problem
    if problem is not None:
        raise problem
    return None


@viewed("PReLU", "BatchNorm")
def by_channel(net: Rewriter, item: Item) -> View | None:
    """Layers with values for each channel."""
    x = item.bottoms[0]
    if len(x.shape) < 2:
        return None
    found = form(net, x, x.axes[1], 1)
    if found is None:
        return None
    shape, inside = found
    arrays = [in_memory(array.reshape(-1), 0, x.axes[1], inside) if array.size == x.shape[1] > 1 else array for array in item.arrays]
    top = again(net, Item(item.param, item.bottoms, item.wishes, arrays), [net.as_shape(x, shape)])[0]
    return View(net.plain(top), x.memory, x.axes)


@rule("Softmax")
@viewed("Softmax")
def softmax(net: Rewriter, item: Item) -> View | None:
    x, axis = item.bottoms[0], item.own.axis % len(item.shape)
    found = form(net, x, x.axes[axis], axis)
    if found is None or (net.is_plain(x) and found[0] == x.shape and axis == 1):
        return None
    top = again(net, item, [net.as_shape(x, found[0])], axis=None)[0]
    return View(net.plain(top), x.memory, x.axes)


@rule("Softmax")
def softmax_of_last_axis(net: Rewriter, item: Item) -> View | None:
    """Move the axis to the end, and back."""
    x, axis = item.bottoms[0], item.own.axis % len(item.shape)
    last = len(x.shape) - 1
    if axis == last:
        return None
    order = [each for each in range(last + 1) if each != axis] + [axis]
    moved = x.permuted(order)
    blob = net.plain(moved)
    top = again(net, item, [View.of(blob, moved.shape)], axis=last)[0]
    return top.permuted([order.index(each) for each in range(last + 1)])


@rule("Reduction")
@viewed("Reduction")
def reduction(net: Rewriter, item: Item) -> View | None:
    """Sums over values that lie together: Reduction if they are the last in the memory, else a product with ones."""
    x, own = item.bottoms[0], item.own
    axes = range(own.axis % max(1, len(x.shape)), len(x.shape))
    atoms = [atom for axis in axes for atom in x.axes[axis]]
    parts = x.place(atoms, axes[0] if axes else -1)
    if parts is None or not axes:
        return None
    first, count, last = (size_of(part) for part in parts)
    if last == 1 and first > 1 and not (net.is_plain(x) and x.shape == (first, count) and axes[0] == 1):
        with net.attempt() as tried:
            top = again(net, item, [net.as_shape(x, (first, count))], axis=1)[0]
            return tried.done([x.replaced(net.plain(top), parts[1], 1, axes[0], axes)])[0]
    memory = View.of(x.blob, net.net.shapes[x.blob])
    kind = own.DESCRIPTOR.fields_by_name["operation"].enum_type.values_by_number[own.operation].name
    if kind in ("SUMSQ", "ASUM"):
        terms = product(net, memory, memory, "square") if kind == "SUMSQ" else net.add("AbsVal", [memory], part="abs")
        x = View(net.plain(terms), x.memory, x.axes)
    weights = np.full((1, count), own.coeff / (count if kind == "MEAN" else 1))
    made = apply(net, x, axes, weights, None, "sum")
    return None if made is None else View(made.blob, made.memory, made.axes[: axes[0]])


@rule("Concat")
@viewed("Concat")
def concat(net: Rewriter, item: Item) -> View | None:
    """Values that lie alike but for the axis are joined as they lie."""
    axis = item.own.concat_dim if item.own.HasField("concat_dim") else item.own.axis % len(item.shape)
    places = [(view, view.place(view.axes[axis], axis)) for view in item.bottoms]
    if any(parts is None or parts[1] != view.axes[axis] for view, parts in places):
        return None
    marked = [view.replaced(view.blob, view.axes[axis], MARK, axis).layout() for view in item.bottoms]
    if any(other != marked[0] for other in marked):
        return None
    bottoms, count = list[View](), 0
    for view, parts in places:
        assert parts is not None
        first, own, last = (size_of(part) for part in parts)
        bottoms.append(net.as_shape(view, (first, own) if last == 1 else (first, own, last, 1)))
        count += own
    if all(net.is_plain(view) and view.shape == bottom.shape for view, bottom in zip(item.bottoms, bottoms)):
        return None
    top = again(net, item, bottoms, axis=None, concat_dim=None)[0]
    x = next((view for view in item.bottoms if len(view.axes[axis])), item.bottoms[0])
    return x.replaced(net.plain(top), x.axes[axis], count, axis)


@rule("Slice")
@viewed("Slice")
def sliced(net: Rewriter, item: Item) -> list[View] | None:
    x = item.bottoms[0]
    axis = item.own.slice_dim if item.own.HasField("slice_dim") else item.own.axis % len(x.shape)
    parts = x.place(x.axes[axis], axis)
    if parts is None or parts[1] != x.axes[axis]:
        return None
    first, count, last = (size_of(part) for part in parts)
    shape = (first, count) if last == 1 else (first, count, last, 1)
    if net.is_plain(x) and x.shape == shape:
        return None
    tops = again(net, item, [net.as_shape(x, shape)], axis=None, slice_dim=None)
    return [x.replaced(net.plain(top), x.axes[axis], top.shape[1], axis) for top in tops]


@viewed("Convolution")
def convolution(net: Rewriter, item: Item) -> list[View] | None:
    """Channels in another order: the weights get that order."""
    x = item.bottoms[0]
    if item.own.group != 1 or item.own.axis != 1 or len(x.shape) < 3 or not x.axes[1]:
        return None
    parts = x.place(x.axes[1])
    others = tuple(atom for number, axis in enumerate(x.axes) if number != 1 for atom in axis)
    if parts is None or parts[0] != x.axes[0] or (*parts[0], *parts[2]) != others:
        return None
    new = Item(item.param, [net.as_shape(x, x.shape)], item.wishes, [in_memory(item.arrays[0], 1, x.axes[1], parts[1]), *item.arrays[1:]])
    return net.place(new)
