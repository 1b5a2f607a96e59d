"""The attributes that are words, and the words that ONNX defines for them. onnx infers shapes and folds constants without a look at some of them.

Rules refuse the words of ONNX that no Caffe layer computes.
"""
from __future__ import annotations

from ocaffe.convert.importer.graph import Graph, Node
from ocaffe.errors import Error

# Attribute, or (operator, attribute) -> the words of all opsets
MODES: dict[str | tuple[str, str], tuple[str, ...]] = {
    "approximate": ("none", "tanh"),
    "auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"),
    "coordinate_transformation_mode": (
        "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn", "tf_crop_and_resize"),
    ("RoiAlign", "coordinate_transformation_mode"): ("half_pixel", "output_half_pixel"),
    "direction": ("forward", "reverse", "bidirectional"),
    ("BitShift", "direction"): ("LEFT", "RIGHT"),
    "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
    ("DepthToSpace", "mode"): ("DCR", "CRD"),
    ("GridSample", "mode"): ("linear", "nearest", "cubic", "bilinear", "bicubic"),
    ("Pad", "mode"): ("constant", "reflect", "edge", "wrap"),
    ("Resize", "mode"): ("nearest", "linear", "cubic"),
    ("RoiAlign", "mode"): ("avg", "max"),
    ("Upsample", "mode"): ("nearest", "linear", "bilinear"),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    "padding_mode": ("zeros", "border", "reflection"),
    "reduction": ("none", "add", "mul", "max", "min", "sum", "mean"),
    ("ScatterElements", "reduction"): ("none", "add", "mul", "max", "min"),
    ("ScatterND", "reduction"): ("none", "add", "mul", "max", "min"),
    "round_mode": ("up", "down", "nearest"),
}  # fmt: skip


def check_modes(graph: Graph, node: Node) -> None:
    """Raise Error with the layer, the word in the file and those of ONNX, if a node has a word that ONNX does not define."""
    for name, value in node.attributes.items():
        known = MODES.get((node.op, name), MODES.get(name))
        if known is not None and value not in known:
            fix = f"correct the node in the program that makes the model: {name} is one of {', '.join(known)}"
            raise Error(f"{name} is {value!r}, which ONNX does not define", place=graph.place, layer=node.title, fix=graph.remedy(node, fix))
