"""Rules of operators that compute places or read values at them: GridSample, RoiAlign, MaxRoiPool, ArgMax, TopK."""
from __future__ import annotations

from ocaffe.convert.importer.builder import Builder
from ocaffe.convert.importer.graph import Node
from ocaffe.convert.importer.rules import operator
from ocaffe.convert.importer.rules.shape import flatten_to
from ocaffe.errors import shape_text

SAMPLES = {"bilinear": "BILINEAR", "linear": "BILINEAR", "nearest": "NEAREST"}  # "bilinear" before opset 20
HALF_PIXEL_SINCE = 16  # since this opset RoiAlign shifts by half a pixel unless it says otherwise


@operator("GridSample")
def grid_sample(net: Builder, node: Node) -> None:
    x, grid = net.bottom(node, 0), net.bottom(node, 1)
    mode, padding = node.get("mode", "linear"), node.get("padding_mode", "zeros")
    net.check(node, len(net.shape(x)) == 4, f"its input is {shape_text(net.shape(x))}, a GridSample layer takes N x C x H x W")
    net.check(node, mode in SAMPLES, f"mode is '{mode}'", "export with mode 'bilinear' or 'nearest'")
    net.check(node, padding in ("zeros", "border"), f"padding_mode is '{padding}'", "export with padding_mode 'zeros' or 'border'")
    fields = {"mode": SAMPLES[mode], "padding": padding.upper(), "align_corners": bool(node.get("align_corners", 0))}
    net.layer(node, "GridSample", [x, grid], fields)


@operator("RoiAlign")
def roi_align(net: Builder, node: Node) -> None:
    """Join the images of the regions and their corners for an ROIAlign layer."""
    x, corners, images = (net.bottom(node, index) for index in range(3))
    net.check(node, node.get("mode", "avg") == "avg", f"mode is '{node.get('mode')}'", "export with mode 'avg'")
    form = node.get("coordinate_transformation_mode", "half_pixel" if net.graph.opset >= HALF_PIXEL_SINCE else "output_half_pixel")
    images = flatten_to(net, node, images, (*net.shape(images), 1), "images")
    regions = net.layer(node, "Concat", [images, corners], {"axis": 1}, part="regions")
    fields = {
        "pooled_h": node.get("output_height", 1), "pooled_w": node.get("output_width", 1), "spatial_scale": node.get("spatial_scale", 1.0),
        "sampling_ratio": node.get("sampling_ratio", 0), "half_pixel": form == "half_pixel",
    }  # fmt: skip
    net.layer(node, "ROIAlign", [x, regions], fields, propagate=[True, False])


@operator("MaxRoiPool")
def roi_pool(net: Builder, node: Node) -> None:
    height, width = node.get("pooled_shape", ())
    fields = {"pooled_h": height, "pooled_w": width, "spatial_scale": node.get("spatial_scale", 1.0)}
    net.layer(node, "ROIPooling", [net.bottom(node), net.bottom(node, 1)], fields, propagate=[True, False])


@operator("ArgMax")
def argmax(net: Builder, node: Node) -> None:
    x, kept, last = net.bottom(node), node.get("keepdims", 1), node.get("select_last_index")
    axis, part = node.get("axis", 0) % len(net.shape(x)), "" if kept else "index"
    top = net.layer(node, "ArgMax", [x], {"axis": axis}, part=part) if last else _first_largest(net, node, x, axis, 1, part)
    if not kept:
        flatten_to(net, node, top, net.output_shape(node))


@operator("TopK")
def top_k(net: Builder, node: Node) -> None:
    """Add an ArgMax for the indices, and a GatherElements for the values, which have a gradient."""
    x, k = net.bottom(node), int(net.number(node, "k", 1))
    axis = node.get("axis", -1) % len(net.shape(x))
    chosen = x if node.get("largest", 1) else net.layer(node, "Power", [x], {"scale": -1.0}, part="negative")
    chosen = _first_largest(net, node, chosen, axis, k, "indices")
    if node.outputs[0] in net.wanted and node.outputs[0]:
        net.layer(node, "GatherElements", [x, chosen], {"axis": axis})
    net.alias(node, chosen, 1)


def _first_largest(net: Builder, node: Node, x: str, axis: int, k: int, part: str) -> str:
    """Return the indices of the k largest values. Of equal values ONNX takes the first and ArgMax the last, so the axis is reversed before."""
    top = net.layer(node, "Reverse", [x], {"axis": [axis]}, part="reversed")
    top = net.layer(node, "ArgMax", [top], {"axis": axis, "top_k": k}, part="argmax")
    return net.layer(node, "Power", [top], {"scale": -1.0, "shift": net.shape(x)[axis] - 1}, part=part)
