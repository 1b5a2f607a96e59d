"""Convolutions, poolings, pads and resizing in the forms that targets read."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.convert.targets.rewriter import MOST_ONES, Item, Rewriter, rule
from ocaffe.convert.targets.rules.activations import power
from ocaffe.convert.targets.rules.joins import again
from ocaffe.convert.targets.rules.linear import along
from ocaffe.convert.targets.view import View
from ocaffe.layers.base import registry
from ocaffe.layers.window import Window

Pair = tuple[int, int]
SIZES = (("kernel", "kernel_size"), ("stride", "stride"), ("pad", "pad"))


def set_windows(own: Any, kernel: Sequence[int], stride: Sequence[int], pad: Sequence[int], dilation: Sequence[int]) -> None:
    """Write the sizes for rows and columns: once if they are equal, else as kernel_h and kernel_w."""
    for (name, field), pair, default in zip(SIZES, (kernel, stride, pad), (0, 1, 0)):
        for form in (field, f"{name}_h", f"{name}_w"):
            own.ClearField(form)
        if len(set(pair)) == 1:
            if pair[0] != default:
                _put(own, field, [pair[0]])
        else:
            setattr(own, f"{name}_h", pair[0])
            setattr(own, f"{name}_w", pair[1])
    own.ClearField("dilation")
    if set(dilation) != {1}:
        own.dilation.extend(dilation[:1] if len(set(dilation)) == 1 else dilation)


def _put(own: Any, field: str, values: list[int]) -> None:
    if own.DESCRIPTOR.fields_by_name[field].is_repeated:
        getattr(own, field).extend(values)
    else:
        setattr(own, field, values[0])


def windows_of(param: Any, image: Sequence[int]) -> Window:
    """Return the windows of a Pooling layer."""
    layer = registry()[param.type].implementation(param)(param, proto.TEST)
    return Window.read(layer, layer.own(), tuple(image))


@dataclass(frozen=True)
class Taps:
    """The sizes of a convolution for rows and columns."""

    kernel: Pair
    stride: Pair
    pad: Pair
    dilation: Pair

    @classmethod
    def read(cls, own: Any) -> Taps:
        """Read a ConvolutionParameter of an image."""
        kernel, stride, pads = (_pair(own, name, field, default) for (name, field), default in zip(SIZES, (0, 1, 0)))
        return cls(kernel, stride, pads, _both(list(own.dilation) or [1]))


def _pair(own: Any, name: str, field: str, default: int) -> Pair:
    high, wide = _both(list(getattr(own, field)) or [default])
    rows, columns = f"{name}_h", f"{name}_w"
    return (getattr(own, rows) if own.HasField(rows) else high, getattr(own, columns) if own.HasField(columns) else wide)


def _both(values: list[int]) -> Pair:
    return (values[0], values[-1])


# -- pads --------------------------------------------------------------------------------------------------------------


@rule("Pad")
def pad(net: Rewriter, item: Item) -> View | None:
    """Zeros around the image: part of the convolutions that read it, else a convolution of each channel that has more pad on one side."""
    x, own = item.bottoms[0], item.own
    begin, end = [0] * len(x.shape), [0] * len(x.shape)
    for number, (before, after) in enumerate(zip(own.begin, own.end)):
        begin[own.axis % len(x.shape) + number], end[own.axis % len(x.shape) + number] = before, after
    if own.mode != own.CONSTANT or own.value or len(x.shape) != 4 or any(begin[:2]) or any(end[:2]):
        return None
    whole = net.now is not None and net.now.type == "Pad" and not net.now.pad_param.value
    if whole and _merged(net, x.shape, begin[2:], end[2:]):
        return x
    sides = list(zip(begin[2:], end[2:]))
    channels, kernel, pads = x.shape[1], tuple(1 + abs(b - e) for b, e in sides), tuple(max(side) for side in sides)
    ones = np.zeros((channels, 1, *kernel), np.float32)
    ones[:, 0, max(0, sides[0][1] - sides[0][0]), max(0, sides[1][1] - sides[1][0])] = 1
    fields: dict[str, Any] = {"num_output": channels, "group": channels, "bias_term": False}
    param = proto.ConvolutionParameter(**fields)
    set_windows(param, kernel, (1, 1), pads, (1, 1))
    settings = {each.name: list(value) if each.is_repeated else value for each, value in param.ListFields()}
    return net.add("Convolution", [x], settings, part="pad", wish=item.wishes[0], arrays=[ones])


@rule("Pad")
def padded_by_matrix(net: Rewriter, item: Item) -> View | None:
    """Pads of any kind as a product with a matrix along each axis. For pads other than zeros, the pixels are moved by the value before and after."""
    x, own = item.bottoms[0], item.own
    matrices = {}
    for number, (before, after) in enumerate(zip(own.begin, own.end)):
        axis = own.axis % len(x.shape) + number
        size = x.shape[axis]
        if (before or after) and size + before + after <= MOST_ONES:
            mode = {own.CONSTANT: "constant", own.REFLECT: "reflect", own.EDGE: "edge"}[own.mode]
            places = np.pad(np.arange(1, size + 1), (before, after), mode)  # type: ignore[call-overload]
            matrices[axis] = np.eye(size + 1)[places][:, 1:]
        elif before or after:
            return None
    if not own.value or own.mode != own.CONSTANT:
        return along(net, item, matrices)
    moved = power(net, x, shift=-own.value, part="move")
    param = proto.LayerParameter()
    param.CopyFrom(item.param)
    param.pad_param.ClearField("value")
    top = net.place(Item(param, [moved], [f"{item.wishes[0]}_moved"]))[0]
    return power(net, top, shift=own.value, part="back", wish=item.wishes[0])


def _merged(net: Rewriter, shape: Sequence[int], begin: Sequence[int], end: Sequence[int]) -> bool:
    """Make the pads part of all layers that read the value, if they are convolutions. Return whether that is possible."""
    name = net.now.top[0]
    if name in net.source.outputs:
        return False
    found = {}
    for reader in net.source.readers(name):
        if reader.type not in ("Convolution", "DepthwiseConvolution", "ConvolutionDepthwise") or list(reader.bottom) != [name]:
            return False
        windows = Taps.read(reader.convolution_param)
        grown = [_grown(size, b + p, e + p, k, s, d) for size, b, e, p, k, s, d in
                 zip(shape[2:], begin, end, windows.pad, windows.kernel, windows.stride, windows.dilation)]  # fmt: skip
        if any(each is None for each in grown):
            return False
        pads, fronts, backs = zip(*(each for each in grown if each is not None))
        arrays = list(net.source.arrays[reader.name])
        arrays[0] = np.pad(arrays[0], [(0, 0), (0, 0), *zip(fronts, backs)])
        param = proto.LayerParameter()
        param.CopyFrom(reader)
        del param.bottom[:], param.top[:]
        kernel = [k + f + b for k, f, b in zip(windows.kernel, fronts, backs)]
        set_windows(param.convolution_param, kernel, windows.stride, pads, windows.dilation)
        found[reader.name] = Item(param, [], list(reader.top), arrays)
    net.merged |= found
    return bool(found)


def _grown(size: int, begin: int, end: int, kernel: int, stride: int, dilation: int) -> tuple[int, int, int] | None:
    """Return the pad for both sides and the zeros before and after the kernel that make the same windows, or None."""
    extent = dilation * (kernel - 1) + 1
    wanted = (size + begin + end - extent) // stride + 1
    more = max(0, end - begin)
    for front in range(-(-more // dilation) + 1):  # zeros before the kernel move its windows to the front
        both = begin + front * dilation
        for back in range(max(0, both - end) // dilation + 1):
            whole = extent + (front + back) * dilation
            if (size + 2 * both - whole) // stride + 1 == wanted:
                return both, front, back
    return None


# -- convolutions ------------------------------------------------------------------------------------------------------


@rule("Convolution", "Deconvolution")
def listed(net: Rewriter, item: Item) -> list[View] | None:
    """Sizes that differ as kernel_h and kernel_w in place of a list."""
    own = item.own
    if len(item.shape) != 4 or not any(len(getattr(own, field)) > 1 for _, field in SIZES):
        return None
    new = proto.LayerParameter()
    new.CopyFrom(item.param)
    taps = Taps.read(own)
    set_windows(new.convolution_param, taps.kernel, taps.stride, taps.pad, taps.dilation)
    if new == item.param:
        return None
    return net.place(Item(new, item.bottoms, item.wishes, item.arrays))


@rule("Convolution")
def of_cells(net: Rewriter, item: Item) -> View | None:
    """A large kernel with a stride as a small one over cells of pixels: a convolution with ones makes each cell of pixels one pixel of more channels."""
    if len(item.shape) != 4:
        return None
    taps, shape = Taps.read(item.own), item.shape
    wanted = net.computed(item).infer(shape)[0][2:]
    for cell in range(min(taps.stride), 1, -1):
        small = [-(-kernel // cell) for kernel in taps.kernel]
        cells = [(size + 2 * pads - cell) // cell + 1 for size, pads in zip(shape[2:], taps.pad)]
        fits = [(count - kernel) // (stride // cell) + 1 for count, kernel, stride in zip(cells, small, taps.stride)]
        if cell >= max(taps.kernel) or any(stride % cell for stride in taps.stride) or tuple(fits) != tuple(wanted) or taps.dilation != (1, 1):
            continue
        channels = shape[1]
        ones = np.eye(cell * cell).reshape(1, cell * cell, 1, cell, cell).repeat(channels, 0).reshape(-1, 1, cell, cell)
        fields = {"num_output": len(ones), "group": channels, "bias_term": False, "kernel_size": [cell], "stride": [cell]}
        if any(taps.pad):
            fields |= {"pad": [taps.pad[0]]} if taps.pad[0] == taps.pad[1] else {"pad_h": taps.pad[0], "pad_w": taps.pad[1]}
        weights = np.pad(item.arrays[0], [(0, 0), (0, 0), *((0, count * cell - kernel) for count, kernel in zip(small, taps.kernel))])
        split = weights.reshape(*weights.shape[:2], small[0], cell, small[1], cell).transpose(0, 1, 3, 5, 2, 4)
        new = proto.LayerParameter()
        new.CopyFrom(item.param)
        set_windows(new.convolution_param, small, [stride // cell for stride in taps.stride], (0, 0), (1, 1))
        arrays = [np.ascontiguousarray(split).reshape(len(weights), -1, *small), *item.arrays[1:]]
        with net.attempt() as tried:
            x = net.add("Convolution", item.bottoms, fields, part="cells", arrays=[ones])
            return tried.done(net.place(Item(new, [x], item.wishes, arrays)))[0]
    return None


@rule("DepthwiseConvolution", "ConvolutionDepthwise")
def depthwise(net: Rewriter, item: Item) -> list[View]:
    """Convolution with a group for each channel."""
    new = proto.LayerParameter()
    new.CopyFrom(item.param)
    new.type = "Convolution"
    own = new.convolution_param
    if item.param.type == "ConvolutionDepthwise":
        own.num_output = own.group = item.shape[1]
    return net.place(Item(new, item.bottoms, item.wishes, item.arrays))


# -- poolings ----------------------------------------------------------------------------------------------------------


@rule("Pooling")
def counted(net: Rewriter, item: Item) -> View | None:
    """Means of the pixels without the pads, as means with them times a constant for each place."""
    own, shape = item.own, item.shape
    if own.avg_include_pad or own.pool != own.AVE or own.global_pooling or len(shape) != 4:
        return None
    windows = windows_of(item.param, shape[2:])
    top = net.computed(item).infer(shape)[0][2:]
    factors = []
    for size, kernel, stride, pads, count in zip(shape[2:], windows.kernel, windows.stride, windows.pad, top):
        start = np.arange(count) * stride - pads
        whole = np.minimum(start + kernel, size + pads) - start
        factors.append(whole / (np.minimum(start + kernel, size) - np.maximum(start, 0)))
    factor = np.outer(*factors)
    if np.all(factor == 1):
        return again_named(net, item, avg_include_pad=None)
    mean = again(net, item, item.bottoms, avg_include_pad=None)[0]
    return net.add("Scale", [mean], {"axis": 2, "num_axes": 2}, part="counted", wish=item.wishes[0], arrays=[factor])


def again_named(net: Rewriter, item: Item, **fields: Any) -> View:
    """Add the layer with other fields, under its names."""
    new = proto.LayerParameter()
    new.CopyFrom(item.param)
    changed = Item(new, item.bottoms, item.wishes, item.arrays)
    for name, value in fields.items():
        changed.own.ClearField(name)
        if value is not None:
            setattr(changed.own, name, value)
    return net.place(changed)[0]


@rule("Pooling")
def rounded_up(net: Rewriter, item: Item) -> View | None:
    """Windows that are rounded down: as many as rounded up, or one more, which a Slice cuts off."""
    own, shape = item.own, item.shape
    if own.round_mode != proto.PoolingParameter.FLOOR or len(shape) != 4 or len(item.wishes) > 1:
        return None
    windows = windows_of(item.param, shape[2:])
    wanted, made = (windows.outputs(shape[2:], ceil=ceil) for ceil in (False, True))
    if wanted == made:
        return again_named(net, item, round_mode=None)
    top = again(net, item, item.bottoms, round_mode=None)[0]
    cuts = [(axis, size) for axis, size, whole in zip((2, 3), wanted, made) if size != whole]
    for number, (axis, size) in enumerate(cuts, 1):
        wish = item.wishes[0] if number == len(cuts) else f"{item.wishes[0]}_rows"
        param = proto.LayerParameter(name=f"{item.param.name}_cut{axis}", type="Slice")
        param.slice_param.axis = axis
        param.slice_param.slice_point.append(size)
        top = net.place(Item(param, [top], [wish, f"{item.wishes[0]}_unused{axis}"]))[0]
    return top


@rule("Pooling")
def flat(net: Rewriter, item: Item) -> View | None:
    """Global pooling of more axes than two, as of an image with one column."""
    own, shape = item.own, item.shape
    if not own.global_pooling or len(shape) == 4 or len(shape) < 3:
        return None
    top = again(net, item, [net.as_shape(item.bottoms[0], (*shape[:2], math.prod(shape[2:]), 1))])[0]
    return net.as_shape(top, (*shape[:2], *[1] * (len(shape) - 2)))


@rule("Pooling")
def whole(net: Rewriter, item: Item) -> View | None:
    """Global pooling with a kernel of the size of the image."""
    own, shape = item.own, item.shape
    if not own.global_pooling or len(shape) != 4:
        return None
    new = proto.LayerParameter()
    new.CopyFrom(item.param)
    new.pooling_param.ClearField("global_pooling")
    set_windows_of_pooling(new.pooling_param, shape[2:])
    return net.place(Item(new, item.bottoms, item.wishes, item.arrays))[0]


def set_windows_of_pooling(own: Any, kernel: Sequence[int]) -> None:
    if kernel[0] == kernel[1]:
        own.kernel_size = kernel[0]
    else:
        own.kernel_h, own.kernel_w = kernel


@rule("Pooling")
def meant(net: Rewriter, item: Item) -> View | None:
    """Means as products with a matrix along rows and columns, which count the pixels of each window as Caffe does."""
    own, shape = item.own, item.shape
    if own.pool != own.AVE or own.global_pooling or len(shape) != 4:
        return None
    windows = windows_of(item.param, shape[2:])
    top = net.computed(item).infer(shape)[0][2:]
    matrices = {}
    for axis, kernel, stride, pads, count in zip((3, 2), windows.kernel[::-1], windows.stride[::-1], windows.pad[::-1], top[::-1]):
        size = shape[axis]
        matrix = np.zeros((count, size))
        for number in range(count):
            start = number * stride - pads
            end, low, high = min(start + kernel, size + pads), max(0, start), min(start + kernel, size)
            matrix[number, low:high] = 1 / (end - start if own.avg_include_pad else high - low)
        matrices[axis] = matrix
    return along(net, item, matrices)


# -- resizing ----------------------------------------------------------------------------------------------------------


@rule("Upsample", "Resample", "Interp")
def nearest(net: Rewriter, item: Item) -> View | None:
    """Repeat pixels a whole number of times: Upsample by one factor where there is one, else a deconvolution of each channel with ones."""
    kind, own, shape = item.param.type, item.own, item.shape
    if len(item.bottoms) != 1 or len(shape) != 4:
        return None
    repeats = kind == "Upsample" or (kind == "Interp" and own.mode == own.NEAREST) or (kind == "Resample" and own.type == own.NEAREST)
    top = net.computed(item).infer(shape)[0]
    factors = tuple(new // old for new, old in zip(top[2:], shape[2:]))
    if not repeats or any(new != old * factor for new, old, factor in zip(top[2:], shape[2:], factors)):
        return None
    if net.accepts("Upsample") and kind != "Upsample" and factors[0] == factors[1]:
        return net.add("Upsample", item.bottoms, {"scale": factors[0]}, wish=item.wishes[0])
    channels = shape[1]
    param = proto.ConvolutionParameter(num_output=channels, group=channels, bias_term=False)
    set_windows(param, factors, factors, (0, 0), (1, 1))
    settings = {each.name: list(value) if each.is_repeated else value for each, value in param.ListFields()}
    return net.add("Deconvolution", item.bottoms, settings, wish=item.wishes[0], arrays=[np.ones((channels, 1, *factors))])
