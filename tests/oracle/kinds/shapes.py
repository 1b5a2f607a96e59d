"""Layers that move values."""
from __future__ import annotations

from typing import Any

from tests.oracle import values
from tests.oracle.case import count
from tests.oracle.draft import Draft, kind
from tests.oracle.kinds.windows import divisors


@kind("Concat", weight=3)
def concat(net: Draft) -> None:
    name = net.blob()
    shape = net.shapes[name]
    axis = net.random.randrange(len(shape))
    bottoms = [name]
    for _ in range(net.pick(0, 1, 1, 2)):
        if net.chance(0.3):
            bottoms.append(name)
        else:
            other = list(shape)
            other[axis] = net.pick(1, 2, 3)
            if net.chance(0.05):
                other[net.random.randrange(len(shape))] += 1
            bottoms.append(net.data(other))
    fields: dict[str, Any] = {"axis": axis - len(shape) if net.chance(0.3) else axis}
    if axis == 1 and net.chance(0.4):
        fields = net.some(concat_dim=[1])
    net.add("Concat", bottoms, concat_param=fields)


@kind("Slice", weight=3)
def cut(net: Draft) -> None:
    name = net.blob(suits=lambda shape: max(shape) > 1)
    shape = net.shapes[name]
    axis = net.pick(*(axis for axis, size in enumerate(shape) if size > 1))
    if net.chance(0.5):
        points = sorted(net.random.sample(range(1, shape[axis]), net.random.randint(1, shape[axis] - 1)))
        points = points[::-1] if net.chance(0.05) else points
        tops, fields = len(points) + 1, {"slice_point": points}
    else:
        tops, fields = net.pick(*divisors(shape[axis])) + net.chance(0.05), {}
    fields |= {"slice_dim": axis} if net.chance(0.1) else {"axis": net.pick(axis, axis - len(shape))}
    net.add("Slice", [name], tops, slice_param=fields)


@kind("Split")
def split(net: Draft) -> None:
    tops = net.add("Split", [net.blob()], net.pick(1, 2, 3))
    net.read.update(tops)  # a layer in place on one of them changes all of them in Caffe (docs/quirks.md, 27)


@kind("Silence")
def silence(net: Draft) -> None:
    net.add("Silence", [net.blob(), *([net.blob()] if net.chance(0.3) else [])], 0)


@kind("Flatten")
def flatten(net: Draft) -> None:
    name = net.blob()
    axes = len(net.shapes[name])
    net.add("Flatten", [name], in_place=0, flatten_param=net.some(0.6, axis=[net.axis(axes)], end_axis=[net.axis(axes)]))


@kind("Reshape", weight=3)
def reshape(net: Draft) -> None:
    name = net.blob()
    shape = net.shapes[name]
    first, last = (0, len(shape)) if net.chance(0.5) else sorted((net.random.randint(0, len(shape)), net.random.randint(0, len(shape))))
    rest, sizes = count(shape[first:last]), []
    for _ in range(net.pick(0, 1, 2, 3)):
        sizes.append(net.pick(*divisors(rest)))
        rest //= sizes[-1]
    sizes.append(rest)
    if net.chance(0.5):
        sizes[net.random.randrange(len(sizes))] = net.pick(-1, -1, -1, -1, -2)
    for axis, size in enumerate(sizes):
        if first + axis < len(shape) and size == shape[first + axis] and net.chance(0.5):
            sizes[axis] = 0
    fields: dict[str, Any] = {"shape": {"dim": sizes}}
    if first or net.chance(0.2):
        fields["axis"] = first - len(shape) - 1 if net.chance(0.3) else first
    if last < len(shape) or net.chance(0.2):
        fields["num_axes"] = last - first
    net.add("Reshape", [name], reshape_param=fields)


@kind("Permute")
def permute(net: Draft) -> None:
    name = net.blob()
    axes = len(net.shapes[name])
    net.add("Permute", [name], permute_param={"order": net.random.sample(range(axes), net.random.randint(1, axes))})


@kind("Tile")
def tile(net: Draft) -> None:
    name = net.blob(suits=lambda shape: count(shape) < 500)
    net.add("Tile", [name], tile_param={"tiles": net.pick(1, 2, 3)} | net.some(0.7, axis=[net.axis(len(net.shapes[name]))]))


@kind("Reduction", weight=3)
def reduction(net: Draft) -> None:
    name = net.blob()
    fields = net.some(0.8, operation=["SUM", "ASUM", "SUMSQ", "MEAN"], axis=[net.axis(len(net.shapes[name]))], coeff=[2, -1, 0, 0.5])
    net.add("Reduction", [name], reduction_param=fields)


@kind("ArgMax")
def argmax(net: Draft) -> None:
    name = net.blob()
    shape = net.shapes[name]
    fields = net.some(0.5, out_max_val=[True, False], axis=[net.axis(len(shape))])
    size = shape[fields["axis"]] if "axis" in fields else count(shape[1:])
    fields |= net.some(0.5, top_k=[net.random.randint(1, size + net.chance(0.1))])
    net.add("ArgMax", [name], open=False, argmax_param=fields)


@kind("Crop")
def crop(net: Draft) -> None:
    name = net.blob(suits=lambda shape: len(shape) > 2)
    shape = net.shapes[name]
    axis = net.random.randrange(len(shape))
    sizes = [net.pick(1, size) for size in shape[:axis]] + [net.random.randint(1, size) for size in shape[axis:]]
    offsets = [net.random.randint(0, size - cropped) for size, cropped in zip(shape[axis:], sizes[axis:])]
    if net.chance(0.05):
        offsets[-1] += 5
    fields: dict[str, Any] = {"axis": axis - len(shape) if net.chance(0.3) else axis}
    if any(offsets) or net.chance(0.5):
        fields["offset"] = offsets if net.chance(0.8) else [min(offsets)]
    net.add("Crop", [name, net.data(sizes)], crop_param=fields)


@kind("BatchReindex")
def batch_reindex(net: Draft) -> None:
    name = net.blob()
    index = net.input((net.random.randint(1, 5),), ("integers", 0, net.shapes[name][0]), "index")
    net.add("BatchReindex", [name, index])


@kind("Filter", weight=3)
def filter(net: Draft) -> None:
    """The tops have a size that depends on the values; others read them."""
    name = net.blob()
    samples = net.shapes[name][0]
    bottoms = [name, *([net.data((samples, net.pick(1, 2, 3)))] if net.chance(0.4) else [])]
    selector = net.input((samples,), ("selector",), "selector")
    tops = net.add("Filter", [*bottoms, selector], len(bottoms))
    kept = values.draw(("selector",), (samples,), net.seed, "input", selector, 0)
    for top in tops:
        net.shapes[top] = net.all_shapes[top] = (int((kept != 0).sum()), *net.shapes[top][1:])


@kind("ShuffleChannel")
def shuffle(net: Draft) -> None:
    name = net.blob(4)
    net.add("ShuffleChannel", [name], shuffle_channel_param={"group": net.pick(*divisors(net.shapes[name][1]))})


@kind("Reorg", weight=1)
def reorg(net: Draft) -> None:
    stride = net.pick(1, 2, 2)
    name = net.blob(4, lambda shape: shape[1] % stride**2 == shape[2] % stride == shape[3] % stride == 0)  # the package does not check it
    net.add("Reorg", [name], reorg_param={"stride": stride})


@kind("Reverse")
def reverse(net: Draft) -> None:
    name = net.blob()
    net.add("Reverse", [name], reverse_param=net.some(0.7, axis=[net.random.randrange(len(net.shapes[name]))]))


@kind("Parameter")
def parameter(net: Draft) -> None:
    tops = net.add("Parameter", [], parameter_param={"shape": {"dim": net.shape()}})
    net.read.update(tops)  # a layer in place on a parameter would change it


@kind("ContinuationIndicator", weight=1)
def continuation(net: Draft) -> None:
    net.add("ContinuationIndicator", [], open=False, continuation_indicator_param={"time_step": net.pick(1, 2, 4), "batch_size": net.pick(1, 2, 3)})


@kind("DummyData", weight=1)
def dummy(net: Draft) -> None:
    tops = net.pick(1, 1, 2)
    shapes = [{"dim": net.shape()} for _ in range(net.pick(1, tops))]
    fillers = [{"type": "constant"} for _ in range(net.pick(0, 1, tops))]  # the package fills zeros (tables.FORMS)
    net.add("DummyData", [], tops, dummy_data_param={"shape": shapes, "data_filler": fillers})
