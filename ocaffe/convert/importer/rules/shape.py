"""Rules of operators that reshape, reorder or copy values: Reshape, Transpose, Concat, Split, Slice, Gather, Tile, Pad and similar."""
from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from ocaffe.convert.importer.builder import Builder
from ocaffe.convert.importer.graph import Node
from ocaffe.convert.importer.rules import operator
from ocaffe.ir.tensor import Shape

FARTHEST = 2**31 - 1  # a bound beyond every axis
FEW = 16  # constant indices that become slices

def flatten_to(net: Builder, node: Node, x: str, wanted: Shape, part: str = "") -> str:
    """Reshape x to `wanted`. Axes that x shares with `wanted` are copied (dim 0), so that the net takes any batch. `merge` corrects dims of another batch."""
    shape = net.shape(x)
    if shape[:1] == wanted[:1] and len(wanted) == 2 and len(shape) > 1:
        return net.layer(node, "Flatten", [x], part=part)
    dims = [0 if axis < len(shape) and shape[axis] == size else size for axis, size in enumerate(wanted)]
    if dims and dims[0] != 0:  # the batch is merged into the first axis, or split from it
        dims[0] = -1
    return net.layer(node, "Reshape", [x], {"shape": {"dim": dims}}, part=part)


def slice_axes(net: Builder, node: Node, x: str, parts: Mapping[int, tuple[int, int]], part: str, last: bool = True) -> str:
    """Slice x from start to end along some axes. The last top is the node's output if `last`."""
    cuts = [(axis, start, end) for axis, (start, end) in parts.items() if (start, end) != (0, net.shape(x)[axis])]
    for number, (axis, start, end) in enumerate(cuts):
        size, here = net.shape(x)[axis], f"{part}{axis}"
        points = [point for point in (start, end) if 0 < point < size]
        final = last and number == len(cuts) - 1
        top = node.outputs[0] if final else net.free(f"{node.outputs[0]}_{here}")
        tops = [*([net.free(f"{top}_before")] if start > 0 else []), top, *([net.free(f"{top}_behind")] if end < size else [])]
        net.layer(node, "Slice", [x], {"axis": axis, "slice_point": points}, part=here, tops=tops)
        net.layer(node, "Silence", [name for name in tops if name != top], part=f"{here}_rest", tops=[])
        x = top
    return x


@operator("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(net: Builder, node: Node) -> None:
    x, wanted = net.bottom(node), net.output_shape(node)
    if net.shape(x) == wanted:
        net.alias(node, x)
    else:
        flatten_to(net, node, x, wanted)


@operator("Transpose")
def transpose(net: Builder, node: Node) -> None:
    x = net.bottom(node)
    order = list(node.get("perm", range(len(net.shape(x)))[::-1]))
    if order == sorted(order):
        net.alias(node, x)
    else:
        net.layer(node, "Permute", [x], {"order": order})


@operator("ChannelShuffle")  # made by `patterns`; not an ONNX operator
def channel_shuffle(net: Builder, node: Node) -> None:
    net.layer(node, "ShuffleChannel", [net.bottom(node)], {"group": node.get("group")})


@operator("Concat")
def concat(net: Builder, node: Node) -> None:
    """Leave out constants without values. Caffe has no blobs of size 0."""
    bottoms = [net.bottom(node, index) for index, name in enumerate(node.inputs) if 0 not in net.graph.shape(name)]
    axis = node.get("axis") % len(net.output_shape(node))
    if len(bottoms) == 1:
        net.alias(node, bottoms[0])
    else:
        net.layer(node, "Concat", bottoms, {"axis": axis} if axis != 1 else {})


@operator("Split")
def split(net: Builder, node: Node) -> None:
    x = net.bottom(node)
    axis = node.get("axis", 0) % len(net.shape(x))
    sizes = [net.output_shape(node, index)[axis] for index in range(len(node.outputs))]
    points = list(itertools.accumulate(sizes[:-1]))
    if points:
        parameters = {"axis": axis} | ({"slice_point": points} if len(set(sizes)) > 1 else {})
        tops = [name or net.free(f"{node.outputs[0]}_part{index}") for index, name in enumerate(node.outputs)]
        net.layer(node, "Slice", [x], parameters, tops=tops)
        unread = [name for name in tops if name not in net.wanted]
        if unread:
            net.layer(node, "Silence", unread, suffix="rest", tops=[])
    else:
        net.alias(node, x)


def slice_bounds(net: Builder, node: Node, shape: Shape) -> dict[int, tuple[int, int, int]]:
    """Return start, end and step along each axis of a Slice, with start and end clipped to the axis. End is -1 if a step goes back to the first value."""
    starts, ends = net.setting(node, "starts", 1), net.setting(node, "ends", 2)
    count = len(starts) if isinstance(starts, list) else 0
    axes, steps = net.setting(node, "axes", 3, list(range(count))), net.setting(node, "steps", 4, [1] * count)
    for name, values in (("starts", starts), ("ends", ends), ("axes", axes), ("steps", steps)):
        whole = isinstance(values, list) and all(isinstance(value, int) for value in values)
        net.check(node, whole, f"its {name} are {values}, not a list of whole numbers", f"export with a list of whole numbers as {name}")
    beyond = next((axis for axis in axes if not -len(shape) <= axis < len(shape)), None)
    net.check(node, beyond is None, f"it slices axis {beyond}, and its input has {len(shape)} axes", f"export with axes from 0 to {len(shape) - 1}")
    bounds = {}
    for axis, start, end, step in zip(axes, starts, ends, steps):
        first, behind, _ = slice(start, end, step).indices(shape[axis])
        bounds[axis % len(shape)] = first, behind, step
    return bounds


@operator("Slice")
def slice_(net: Builder, node: Node) -> None:
    """Add Slice layers. Steps over rows and columns are a MAX Pooling with a window of one pixel, other steps a StridedSlice."""
    x = net.bottom(node)
    shape = net.shape(x)
    bounds = slice_bounds(net, node, shape)
    steps = [bounds.get(axis, (0, 0, 1))[2] for axis in range(len(shape))]
    stepping = [axis for axis, step in enumerate(steps) if step != 1]
    if all((start, end, step) == (0, shape[axis], 1) for axis, (start, end, step) in bounds.items()):
        net.alias(node, x)
    elif min(steps) < 0 or (stepping and (len(shape) != 4 or min(stepping) < 2)):
        parts = [(axis, start, end if end >= 0 else -FARTHEST, step) for axis, (start, end, step) in bounds.items()]
        net.layer(node, "StridedSlice", [x], dict(zip(("axis", "start", "end", "step"), zip(*parts))))
    else:
        x = slice_axes(net, node, x, {axis: (start, end) for axis, (start, end, _) in bounds.items()}, "axis", last=not stepping)
        if stepping:
            parameters = {"pool": "MAX", "kernel_size": 1, "stride_h": steps[2], "stride_w": steps[3], "round_mode": "FLOOR"}
            net.layer(node, "Pooling", [x], parameters)


@operator("Gather")
def gather(net: Builder, node: Node) -> None:
    """Add an Embed if the values are a constant table, Slice layers if the indices are few constants, else a Gather layer."""
    if net.is_constant(node, 0) and node.get("axis", 0) == 0:
        _embed(net, node)
    elif net.is_constant(node, 1) and net.constant(node, 1).ndim < 2 and net.constant(node, 1).size <= FEW:
        _slices(net, node, node.get("axis", 0) % len(net.shape(net.bottom(node))), net.constant(node, 1))
    else:
        net.layer(node, "Gather", [net.bottom(node, 0), net.bottom(node, 1)], {"axis": node.get("axis", 0)})


def _embed(net: Builder, node: Node) -> None:
    """Add an Embed layer, whose rows have one axis."""
    table, ids = net.constant(node, 0), net.bottom(node, 1)
    rows = table.reshape(len(table), -1)
    single = not net.shape(ids)
    if single:
        ids = net.layer(node, "Reshape", [ids], {"shape": {"dim": [1]}}, part="row")
    exact = table.ndim == 2 and not single
    fields = {"num_output": rows.shape[1], "input_dim": len(rows), "bias_term": False}
    top = net.layer(node, "Embed", [ids], fields, part="" if exact else "rows", suffix="", blobs=[rows], learn=node.input(0) in net.graph.trained)
    if not exact:
        flatten_to(net, node, top, net.output_shape(node))


def _slices(net: Builder, node: Node, axis: int, indices: np.ndarray) -> None:
    """Convert constant indices to slices. A single scalar index also removes the axis."""
    x = net.bottom(node)
    shape = net.shape(x)
    net.check(node, indices.size, "its indices have no values", "export with one index or more")
    beyond = [int(index) for index in indices.reshape(-1) if not -shape[axis] <= index < shape[axis]]
    fact = f"its index {next(iter(beyond), 0)} is outside of axis {axis}, which has {shape[axis]} values"
    net.check(node, not beyond, fact, f"export with indices from {-shape[axis]} to {shape[axis] - 1}")
    chosen = [int(index) % shape[axis] for index in indices.reshape(-1)]
    if not indices.ndim:
        top = slice_axes(net, node, x, {axis: (chosen[0], chosen[0] + 1)}, "axis", last=False)
        flatten_to(net, node, top, net.output_shape(node))
        return
    tops = [slice_axes(net, node, x, {axis: (index, index + 1)}, f"{number}_", last=False) for number, index in enumerate(chosen)]
    net.layer(node, "Concat", tops, {"axis": axis})


@operator("GatherElements")
def gather_elements(net: Builder, node: Node) -> None:
    net.layer(node, "GatherElements", [net.bottom(node, 0), net.bottom(node, 1)], {"axis": node.get("axis", 0)})


@operator("GatherND")
def gather_nd(net: Builder, node: Node) -> None:
    """Add Slice layers for few constant indices of one axis, else a GatherND layer. PyTorch writes x[:, [2, 1, 0]] so, between two transpositions."""
    batch = node.get("batch_dims", 0)
    if net.is_constant(node, 1) and net.constant(node, 1).shape[1:] == (1,) and net.constant(node, 1).size <= FEW and not batch:
        _slices(net, node, 0, net.constant(node, 1)[:, 0])
    else:
        net.layer(node, "GatherND", [net.bottom(node, 0), net.bottom(node, 1)], {"batch_dims": batch})


def repeat(net: Builder, node: Node, x: str, wanted: Shape, part: str = "") -> str:
    """Tile x to the shape `wanted`, which has as many axes or more. The last top is the node's output unless `part` is given."""
    shape = net.shape(x)
    if len(shape) < len(wanted):
        shape = (1,) * (len(wanted) - len(shape)) + shape
        x = flatten_to(net, node, x, shape, f"{part}axes")
    axes = [axis for axis, (size, larger) in enumerate(zip(shape, wanted)) if size != larger]
    for axis in axes:
        name = "" if not part and axis == axes[-1] else f"{part}tile{axis}"
        if net.graph.batch and (shape[axis], wanted[axis]) == (1, net.graph.sizes[1]):
            x = net.repeated(node, x, axis, name)
        else:
            x = net.layer(node, "Tile", [x], {"axis": axis, "tiles": wanted[axis] // shape[axis]}, part=name)
    if not axes and not part:
        net.alias(node, x)
    return x


@operator("Tile", "Expand")
def tile(net: Builder, node: Node) -> None:
    repeat(net, node, net.bottom(node), net.output_shape(node))


@operator("DepthToSpace", "SpaceToDepth")
def depth_to_space(net: Builder, node: Node) -> None:
    """Reshape, Permute, Reshape: split the axes, reorder them, merge them."""
    x, side = net.bottom(node), node.get("blocksize")
    batch, channels, height, width = net.shape(x)
    if node.op == "SpaceToDepth":
        split_axes: tuple[int, ...] = (batch, channels, height // side, side, width // side, side)
        order = [0, 3, 5, 1, 2, 4]
    elif node.get("mode", "DCR") == "DCR":
        split_axes, order = (batch, side, side, channels // side**2, height, width), [0, 3, 4, 1, 5, 2]
    else:
        split_axes, order = (batch, channels // side**2, side, side, height, width), [0, 1, 4, 2, 5, 3]
    top = flatten_to(net, node, x, split_axes, "split")
    top = net.layer(node, "Permute", [top], {"order": order}, part="order")
    flatten_to(net, node, top, net.output_shape(node))


@operator("Pad")
def pad(net: Builder, node: Node) -> None:
    x, mode = net.bottom(node), node.get("mode", "constant")
    axes = len(net.shape(x))
    pads = net.setting(node, "pads", 1)
    named = net.setting(node, "axes", 3, list(range(axes)))
    begin, end = [0] * axes, [0] * axes
    for axis, before, behind in zip(named, pads[: len(named)], pads[len(named) :]):
        begin[axis], end[axis] = before, behind
    if not any((*begin, *end)):
        net.alias(node, x)
        return
    net.check(node, mode in ("constant", "reflect", "edge"), f"mode is '{mode}'", "export with mode constant, reflect or edge")
    cut = {axis: (max(0, -before), net.shape(x)[axis] + min(0, behind)) for axis, (before, behind) in enumerate(zip(begin, end))}
    begin, end = [max(0, size) for size in begin], [max(0, size) for size in end]
    grows = any((*begin, *end))
    x = slice_axes(net, node, x, cut, "cut", last=not grows)
    if not grows:
        return
    first = next(axis for axis in range(axes) if begin[axis] or end[axis])
    first = 2 if first > 2 else first
    value = net.number(node, "value", 2, 0.0)
    parameters: dict[str, Any] = {"begin": begin[first:], "end": end[first:]}
    if first != 2:
        parameters["axis"] = first
    if value and mode == "constant":
        parameters["value"] = value
    if mode != "constant":
        parameters["mode"] = mode.upper()
    net.layer(node, "Pad", [x], parameters)
