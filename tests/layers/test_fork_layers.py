"""Errors of layer types that text recognition, detection and face recognition forks define."""
from __future__ import annotations

import pytest

from ocaffe import proto
from ocaffe.check.case import layer
from ocaffe.errors import Error
from ocaffe.graph.build import build
from ocaffe.model.text import parse


def refusal(kind: str, more: str, *shapes: str, phase: int = proto.TEST) -> str:
    """Return the text of the Error for a layer with bottoms of these shapes."""
    names = [f"x{i}" for i in range(len(shapes))]
    inputs = "".join(
        f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {" ".join(f"dim: {n}" for n in shape.split())} }} }} }}\n'
        for name, shape in zip(names, shapes)
    )
    with pytest.raises(Error) as caught:
        build(parse(inputs + layer(kind, " ".join(names), "y", more), proto.NetParameter, "net"), phase)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "more", "shape", "told"),
    [
        ("CropCenter", "crop_center_param { crop_size: 1 }", "1 3 5 5", "1 crop_size for the 4 axes of bottom 1 x 3 x 5 x 5"),
        ("CropCenter", "crop_center_param { crop_size: 0 crop_size: 2 }", "5 4", "crop_size 0, 2 leaves nothing of bottom 5 x 4"),
        ("Transpose", "", "2 3", "dim is empty does not name each of the 2 axes of bottom 2 x 3 once"),
        ("Transpose", "transpose_param { dim: 0 dim: 0 }", "2 3", "dim 0, 0 does not name each of the 2 axes"),
        ("Reverse", "reverse_param { axis: 1 axis: -1 }", "2 3", "axis 1, -1 names an axis of bottom 2 x 3 twice"),
        ("Reverse", "reverse_param { axis: 2 }", "2 3", "axis 2 is outside the 2 axes of bottom 2 x 3"),
        ("Flip", "", "2 3", "bottom 0 is 2 x 3, it must be N x C x H x W"),
        ("CReLU", "crelu_param { concat_axis: 2 }", "2 3", "concat_axis 2 is outside the 2 axes"),
        ("RReLU", "rrelu_param { lb: 3 }", "2 3", "rrelu_param has no lb or no ub"),
        ("RReLU", "rrelu_param { lb: -1 ub: 2 }", "2 3", "lb is -1, ub 2"),
        ("ContinuationIndicator", "continuation_indicator_param { time_step: 2 batch_size: 3 }", "2 3", "the batch size is given twice"),
        ("PassThrough", "", "1 3 4 4", "block_height is 0, block_width 0"),
        ("PassThrough", "pass_through_param { block_height: 2 block_width: 2 }", "1 3 4 5", "blocks of 2 x 2 do not divide the 4 x 5 pixels"),
        ("PassThrough", "pass_through_param { block_height: 2 block_width: 2 num_output: 6 }", "1 3 4 4", "num_output is 6, 2 x 2 blocks of 3 channels give"),
    ],
)
def test_errors(kind: str, more: str, shape: str, told: str) -> None:
    assert told in refusal(kind, more, shape)


def test_no_batch_size() -> None:
    assert "time_step is 2, batch_size 0" in refusal("ContinuationIndicator", "continuation_indicator_param { time_step: 2 }")
