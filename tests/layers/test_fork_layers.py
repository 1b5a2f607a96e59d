"""Errors of layer types that text recognition, detection and face recognition forks define."""
from __future__ import annotations

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.check.case import Case, layer
from ocaffe.cl.device import Device
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
        ("Lstm", "lstm_param { num_output: 2 batch_size: 3 }", "4 2 5", "batch_size is 3, bottom 0 is 4 x 2 x 5"),
        ("PassThrough", "", "1 3 4 4", "block_height is 0, block_width 0"),
        ("PassThrough", "pass_through_param { block_height: 2 block_width: 2 }", "1 3 4 5", "blocks of 2 x 2 do not divide the 4 x 5 pixels"),
        ("PassThrough", "pass_through_param { block_height: 2 block_width: 2 num_output: 6 }", "1 3 4 4", "num_output is 6, 2 x 2 blocks of 3 channels give"),
    ],
)
def test_errors(kind: str, more: str, shape: str, told: str) -> None:
    assert told in refusal(kind, more, shape)


def test_no_batch_size() -> None:
    assert "time_step is 2, batch_size 0" in refusal("ContinuationIndicator", "continuation_indicator_param { time_step: 2 }")


@pytest.mark.parametrize(
    ("more", "shapes", "told"),
    [
        ("", ("4 2", "2 3"), "bottom 0 is 4 x 2, it must be T x N x C"),
        ("", ("4 2 3", "3 3"), "bottom 0 is 4 x 2 x 3, bottom 1 3 x 3"),
        ("", ("4 2 3", "4 2", "3 2"), "bottom 1 4 x 2, bottom 2 3 x 2"),
        ("", ("4 2 3", "2", "3", "5 2"), "bottom 1 2, bottom 2 3, bottom 3 5 x 2"),
        ("ctc_loss_param { alphabet_size: 4 }", ("4 2 3", "2 3"), "alphabet_size is 4, bottom 0 has 3 classes"),
        ("ctc_loss_param { time_step: 5 }", ("4 2 3", "2 3"), "time_step is 5, bottom 0 has 4 time steps"),
        ("ctc_loss_param { blank_label: 3 }", ("4 2 3", "2 3"), "blank_label is 3, there are 3 classes"),
    ],
)
def test_errors_of_ctc(more: str, shapes: tuple[str, ...], told: str) -> None:
    assert told in refusal("WarpCTCLoss", more, *shapes)


@pytest.mark.parametrize(
    ("more", "shapes", "told"),
    [
        ("", ("4 2",), "bottom 0 is 4 x 2, it must be T x N x C"),
        ("", ("4 2 3", "3 2"), "bottoms are 4 x 2 x 3, 3 x 2"),
        ('top: "z"', ("4 2 3",), "2 tops for 1 bottoms"),
        ("ctc_decoder_param { blank_index: 3 }", ("4 2 3",), "the blank is 3, there are 3 classes"),
    ],
)
def test_errors_of_the_decoder(more: str, shapes: tuple[str, ...], told: str) -> None:
    assert told in refusal("CTCGreedyDecoder", more, *shapes)


def test_gradient_of_a_batch_of_sequences(device: Device) -> None:
    """The gradient of each sample is that of the sample alone: it is not divided by the batch size. A sample without a path has no gradient."""
    rng = np.random.default_rng(1)
    scores, labels = rng.standard_normal((4, 3, 5)).astype(np.float32), np.array([[1, 2, 0], [3, 3, 3], [4, 0, 0]], np.float32)

    def gradient(chosen: list[int]) -> np.ndarray:
        inputs = {"x0": scores[:, chosen], "x1": labels[chosen]}
        case = Case("ctc", layer("WarpCTCLoss", "x0 x1", "loss", "loss_weight: 0.5"), lambda rng: inputs, lambda x, got: {}, ["x0"])
        net = Net(case.message(inputs, ""), proto.TRAIN, device=device, keep=["x0"])
        for name, values in inputs.items():
            net.blobs[name].data[...] = values
        net.forward()
        net.backward()
        return np.array(net.blobs["x0"].diff)

    together = gradient([0, 1, 2])
    for sample in (0, 2):
        np.testing.assert_allclose(together[:, [sample]], gradient([sample]), atol=1e-6)
    assert np.abs(together[:, 0]).max() > 0.01 and not together[:, 1].any()


def test_clipping_of_lstm(device: Device) -> None:
    """clipping_threshold limits the gradients of the gates' inputs. With one step, their sum over the samples is the gradient of the bias."""

    def gradient(more: str) -> np.ndarray:
        inputs = {"x0": np.random.default_rng(1).standard_normal((1, 1, 4)).astype(np.float32)}
        text = layer("Lstm", "x0", "y", f'lstm_param {{ num_output: 3 {more} weight_filler {{ type: "constant" value: 0.5 }} }}')
        case = Case("lstm", text + layer("Reduction", "y", "loss", "loss_weight: 1"), lambda rng: inputs, lambda x, got: {}, ["x0"])
        net = Net(case.message(inputs, ""), proto.TRAIN, device=device)
        net.blobs["x0"].data[...] = inputs["x0"]
        net.forward()
        net.backward()
        return np.array(net.params["y"][2].diff)

    free = gradient("")
    limit = float(np.sort(np.abs(free[free != 0]))[4])
    np.testing.assert_allclose(gradient(f"clipping_threshold: {limit}"), np.clip(free, -limit, limit), rtol=1e-6)
    assert np.abs(free).max() > limit * 1.01
