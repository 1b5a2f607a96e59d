"""Remedies of refusals are computed from the numbers of the user's net, and the net works with them."""
from __future__ import annotations

import pytest

from ocaffe import proto
from ocaffe.formats.text import parse
from ocaffe.graph.build import build
from ocaffe.selftest.case import layer
from tests.layers.test_fork_layers import refusal

YOLOV3 = """yolov3_detection_output_param { num_classes: 1 num_box: 1 mask_group_num: 2 biases: 10 biases: 14 biases: 23 biases: 27 mask: 0 mask: 1
            anchors_scale: 32 anchors_scale: 0 }"""


@pytest.mark.parametrize(
    ("kind", "more", "shapes", "fix"),
    [
        ("Interp", "interp_param { height: 2 width: 2 }", ("3 8 9",),
         "add a Reshape layer before it: reshape_param { shape { dim: 1 dim: 3 dim: 8 dim: 9 } } if it is C x H x W, "
         "or reshape_param { shape { dim: 3 dim: 1 dim: 8 dim: 9 } } if it is N x H x W"),
        ("MVN", "", ("1 3 4 8 8",),
         "add a Reshape layer before it: reshape_param { shape { dim: 1 dim: 3 dim: 32 dim: 8 } }, "
         "and one after it: reshape_param { shape { dim: 1 dim: 3 dim: 4 dim: 8 dim: 8 } }"),
        ("PReLU", "", ("5",),
         "add a Reshape layer before it: reshape_param { shape { dim: 5 dim: 1 } } for 5 samples, or reshape_param { shape { dim: 1 dim: 5 } } for 5 channels"),
        ("Concat", "", ("1 3 4 4", "1 2 4 5"), "give bottom 1 the shape 1 x 2 x 4 x 4, by equal strides and pads before it"),
        ("Concat", "", ("1 3 4 4", "1 3 4 5"), "give bottom 1 the shape 1 x 3 x 4 x 4, by equal strides and pads before it, or write axis: 3"),
        ("Eltwise", "", ("1 3 4 4", "1 2 4 4"), "set num_output of the layer before bottom 1 to 3"),
        ("Bias", "", ("1 3 4 5", "4 5"), "write axis: 2"),
        ("Crop", "crop_param { axis: 3 offset: 3 }", ("1 3 4 5", "1 3 4 4"), "set the offset of axis 3 to 1 or less"),
        ("MatMul", "", ("2 3", "4 3"), "write transpose_b: true, which exchanges the last axes of bottom 1"),
        ("Convolution", "convolution_param { num_output: 2 kernel_size: 7 }", ("1 3 4 5",),
         "give an image of at least 7 x 7 pixels, a smaller kernel_size, or pad: 2"),
        ("SpatialTransformer", "", ("1 3 4 4", "1 5"), "give bottom 1 the shape 1 x 6: num_output: 6 in the layer before"),
        ("UnPooling", "unpooling_param { out_stride: 2 out_stride_h: 2 out_stride_w: 2 }", ("1 2 3 3",), "remove out_stride, or out_stride_h and out_stride_w"),
        ("UnPooling", "unpooling_param { out_stride: 2 out_stride_h: 2 }", ("1 2 3 3",),
         "remove out_stride_h, or write out_stride_h and out_stride_w in place of out_stride"),
        ("Yolov3DetectionOutput", YOLOV3, ("1 6 13 13", "1 6 26 26"),
         "write anchors_scale: 16 in its place: bottom 0 gives an image of 416 rows, bottom 1 has 26 rows of cells"),
        ("Yolov3DetectionOutput", YOLOV3.replace("anchors_scale: 32", "anchors_scale: 0"), ("1 6 13 13", "1 6 26 26"),
         "write the pixels of a cell: the height of the image divided by 13"),
    ],
)  # fmt: skip
def test_numbers_of_the_net(kind: str, more: str, shapes: tuple[str, ...], fix: str) -> None:
    assert refusal(kind, more, *shapes).splitlines()[-1] == f"  fix: {fix}"


def test_a_volume_as_images() -> None:
    """The remedy for five axes makes a net that runs."""
    fix = refusal("Interp", "interp_param { height: 2 width: 2 }", "2 3 4 8 9").splitlines()[-1]
    order, shape = "order: 0 order: 2 order: 1 order: 3 order: 4", "shape { dim: 8 dim: 3 dim: 8 dim: 9 }"
    assert order in fix and shape in fix
    text = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 4 dim: 8 dim: 9 } } }\n'
    text += layer("Permute", "x", "p", f"permute_param {{ {order} }}") + layer("Reshape", "p", "r", f"reshape_param {{ {shape} }}")
    net = build(parse(text + layer("Interp", "r", "y", "interp_param { height: 2 width: 2 }"), proto.NetParameter, "net"), proto.TEST)
    assert net.nodes[-1].tops[0].shape == (8, 3, 2, 2)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("multibox_loss_param { num_classes: 3 share_location: false }", "mining_type is MAX_NEGATIVE, the default, but"),
        ("multibox_loss_param { num_classes: 3 share_location: false mining_type: MAX_NEGATIVE }", "mining_type is MAX_NEGATIVE, but"),
        ("", "num_classes is missing"),
        ("multibox_loss_param { num_classes: 0 }", "num_classes is 0"),
    ],
)
def test_fields_that_are_not_written(more: str, told: str) -> None:
    """A refusal tells a default value, a missing field and a written 0 apart."""
    assert told in refusal("MultiBoxLoss", more, "1 120", "1 30", "1 2 40", "1 1 3 8")
