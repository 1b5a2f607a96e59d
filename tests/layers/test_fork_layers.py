"""Errors of layer types that text recognition, detection and face recognition forks define."""
from __future__ import annotations

import math
import pathlib

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.api.pysolver import Solver
from ocaffe.cl.device import Device
from ocaffe.data.databases.writer import LmdbWriter
from ocaffe.data.dice import Dice
from ocaffe.data.sources.video import RATIOS, RandomCrops
from ocaffe.errors import Error
from ocaffe.formats.text import parse
from ocaffe.graph.build import build
from ocaffe.selftest.case import Case, layer
from tests.layers import single
from tests.layers.fork_cases import frame, write_faces, write_videos

INPUT = 'layer { name: "x0" type: "Input" top: "x0" input_param { shape { dim: 2 dim: 3 } } }\n'


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
        ("RReLU", "rrelu_param { lb: 3 }", "2 3", "rrelu_param has no ub"),
        ("RReLU", "rrelu_param { lb: -1 ub: 2 }", "2 3", "lb is -1, ub is 2: a divisor could be 0"),
        ("ContinuationIndicator", "continuation_indicator_param { time_step: 2 batch_size: 3 }", "2 3", "the batch size is given twice"),
        ("Lstm", "lstm_param { num_output: 2 batch_size: 3 }", "4 2 5", "batch_size is 3, bottom 0 is 4 x 2 x 5"),
        ("Scale", "scale_param { min_value: 2 max_value: 1 }", "2 3", "min_value is 2, max_value is 1"),
        ("Resize", "", "1 3 4 4", "height is 0, width is 0"),
        ("Resize", "resize_param { height: 2 width: 2 }", "3 4", "bottom 0 is 3 x 4, it must be N x C x H x W"),
        ("Resize", "resize_param { is_pyramid_test: true out_height_scale: 0.1 out_width_scale: 1 }", "1 3 4 4", "make 0 x 4 of 4 x 4 pixels"),
        ("InnerDistance", "", "4 6", "num_output is missing"),
        ("InnerDistance", "inner_distance_param { num_output: 2 }", "4 6", "bias_term is missing"),
        ("InnerDistance", 'inner_distance_param { num_output: 2 bias_term: false distance_type: "L3" }', "4 6", "distance_type is 'L3'"),
        ("InnerDistance", "inner_distance_param { num_output: 2 bias_term: false normalize: true transpose: true }", "4 6", "normalize and transpose"),
        ("DenseBlock", "", "1 3 4 4", "numTransition is missing"),
        ("DenseBlock", "", "3 4", "bottom 0 is 3 x 4, it must be N x C x H x W"),
        ("DenseBlock", "denseblock_param { numTransition: 1 growthRate: 2 use_dropout: true }", "1 3 4 4", "use_dropout is set, which is not supported"),
        ("PassThrough", "", "1 3 4 4", "block_height is missing"),
        ("PassThrough", "pass_through_param { block_height: 2 block_width: 2 }", "1 3 4 5", "cells of 2 x 2 do not divide the 4 x 5 pixels"),
        ("PassThrough", "pass_through_param { block_height: 2 block_width: 2 num_output: 6 }", "1 3 4 4", "num_output is 6, 2 x 2 cells of 3 channels give"),
    ],
)
def test_errors(kind: str, more: str, shape: str, told: str) -> None:
    assert told in refusal(kind, more, shape)


def test_indicator_of_learned_values(device: Device) -> None:
    """The bottom of ContinuationIndicator may need a gradient; the indicators need none, so that LSTM accepts them."""
    text = layer("InnerProduct", "x0", "p", "inner_product_param { num_output: 3 axis: 2 }")
    text += layer("ContinuationIndicator", "p", "c", "continuation_indicator_param { time_step: 4 axis: 1 }")
    text += layer("LSTM", "p c", "h", 'recurrent_param { num_output: 2 weight_filler { type: "constant" value: 0.1 } }')
    text += layer("Reduction", "h", "loss", "loss_weight: 1")
    net = run(device, text, {"x0": np.ones((4, 2, 5), np.float32)})
    assert np.abs(net.params["p"][1].diff).min() > 0


def test_no_batch_size() -> None:
    assert "batch_size is missing" in refusal("ContinuationIndicator", "continuation_indicator_param { time_step: 2 }")


@pytest.mark.parametrize(
    ("more", "shapes", "told"),
    [
        ("", ("4 2", "2 3"), "bottom 0 is 4 x 2, it must be T x N x C"),
        ("", ("4 2 3", "3 3"), "bottom 0 is 4 x 2 x 3, bottom 1 is 3 x 3"),
        ("", ("4 2 3", "4 2", "3 2"), "bottom 1 is 4 x 2, bottom 2 is 3 x 2"),
        ("", ("4 2 3", "2", "3", "5 2"), "bottom 1 is 2, bottom 2 is 3, bottom 3 is 5 x 2"),
        ("ctc_loss_param { alphabet_size: 4 }", ("4 2 3", "2 3"), "alphabet_size is 4, bottom 0 has 3 classes"),
        ("ctc_loss_param { time_step: 5 }", ("4 2 3", "2 3"), "time_step is 5, bottom 0 has 4 time steps"),
        ("ctc_loss_param { blank_label: 3 }", ("4 2 3", "2 3"), "blank_label is 3, bottom 0 has 3 classes"),
    ],
)
def test_errors_of_ctc(more: str, shapes: tuple[str, ...], told: str) -> None:
    assert told in refusal("WarpCTCLoss", more, *shapes)


@pytest.mark.parametrize(
    ("more", "shapes", "told"),
    [
        ("", ("4 2",), "bottom 0 is 4 x 2, it must be T x N x C"),
        ("", ("4 2 3", "3 2"), "bottoms are 4 x 2 x 3, 3 x 2"),
        ('top: "z"', ("4 2 3",), "2 tops are given for 1 bottoms"),
        ("ctc_decoder_param { blank_index: 3 }", ("4 2 3",), "blank_index is 3, bottom 0 has 3 classes"),
        ("ctc_decoder_param { blank_index: -2 }", ("4 2 3",), "blank_index is -2, bottom 0 has 3 classes"),
    ],
)
def test_errors_of_the_decoder(more: str, shapes: tuple[str, ...], told: str) -> None:
    assert told in refusal("CTCGreedyDecoder", more, *shapes)


@pytest.mark.parametrize("kind", single.KINDS)
@pytest.mark.parametrize("label", [4, 5, 1e9, math.nan])
@pytest.mark.parametrize("bottoms", [1, 2, 3])
def test_labels_outside_the_classes(device: Device, bottoms: int, label: float, kind: str) -> None:
    """The kernels read and write no memory outside the scores. The sample has no gradient, and the other one has its own."""
    scores = np.random.default_rng(1).standard_normal((5, 2, 4))

    def result(last: float) -> single.Result:
        labels = np.array([[1, last], [2, 1]])
        indicated = np.full((5, 2), -1.0)
        indicated[:2] = labels.T - 1  # labels that are given with indicators do not count the blank
        given = {1: [labels], 2: [np.arange(5)[:, None] > [0, 0], indicated], 3: [[5, 5], [2, 2], labels.T]}[bottoms]
        names = " ".join(f'bottom: "x{i}"' for i in range(1 + bottoms))
        return single.run(device, kind, f'name: "y" type: "WarpCTCLoss" {names} top: "y"', [scores, *given], [1], propagate=[True] + [False] * bottoms)

    wrong, right = result(label), result(2)
    assert np.isnan(wrong.tops[0]) and np.isfinite(right.tops[0])
    assert wrong.diffs[0] is not None and right.diffs[0] is not None
    assert not wrong.diffs[0][:, 0].any() and np.array_equal(wrong.diffs[0][:, 1], right.diffs[0][:, 1])


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


@pytest.mark.parametrize(("kind", "computes"), [("Lstm", False), ("LSTM", True)])
def test_diff_of_an_input_of_recurrent_layers(device: Device, kind: str, computes: bool) -> None:
    """The inner net of Caffe's LSTM computes the diff of an input that needs none. The layer Lstm has no inner net."""
    inputs = {"x0": np.ones((3, 1, 4), np.float32), "x1": np.ones((3, 1), np.float32)}
    field = "lstm" if kind == "Lstm" else "recurrent"
    text = layer(kind, "x0 x1", "y", f'{field}_param {{ num_output: 2 weight_filler {{ type: "constant" value: 0.5 }} }}')
    case = Case("diff", text + layer("Reduction", "y", "loss", "loss_weight: 1"), lambda rng: inputs, lambda x, got: {}, [])
    message = case.message(inputs, "")
    message.force_backward = False
    net = Net(message, proto.TRAIN, device=device)
    net.blobs["x0"].data[...], net.blobs["x1"].data[...] = inputs["x0"], inputs["x1"]
    net.forward()
    net.backward()
    assert net.params["y"][0].diff.any() and net.blobs["x0"].diff.any() == computes


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


@pytest.mark.parametrize(
    ("kind", "more", "shapes", "told"),
    [
        ("CosinAddm", "cosin_add_m_param { m: inf }", ("4 3", "4"), "m is inf"),
        ("AdaCosAddmScale", "adacos_add_m_scale_param { num_classes: 3 m: -inf }", ("4 3", "4"), "m is -inf"),
        ("CosinAddm", "", ("4", "4"), "bottom 0 is 4, it must be N x C x .."),
        ("CosinAddm", "", ("4 3", "3"), "bottom 1 is 3, bottom 0 is 4 x 3"),
        ("AdaCosAddmScale", "adacos_add_m_scale_param { num_classes: 2 }", ("4 3", "4"), "num_classes is 2"),
        ("MTCNNEuclideanLoss", "", ("4 3", "4 3", "4"), "3 bottoms are given, and ignore_label is not set"),
        ("MTCNNEuclideanLoss", "loss_param { ignore_label: -1 }", ("4 3", "4 3"), "2 bottoms are given, and ignore_label is -1"),
        ("MTCNNEuclideanLoss", "loss_param { ignore_label: -1 }", ("4 3", "4 3", "3"), "bottom 2 is 3, bottom 0 is 4 x 3"),
        ("SoftmaxWithLoss", 'softmax_param { normalize_type: "L3" }', ("4 3", "4"), "normalize_type is 'L3'"),
        ("Scale", "scale_param { min_value: 0 }", ("4 3", "3"), "the scale is bottom 1"),
        ("PriorBoxClustered", "prior_box_param { width: 3 }", ("1 2 3 3", "1 3 9 9"), "1 width and 0 height are given"),
        ("DetectionOutput", "detection_output_param { num_classes: 2 input_width: 0 }", ("1 4", "1 2", "1 2 4"), "input_width is 0"),
        ("AssistedExcitation", "", ("1 3 4 4", "1 1 9 4", "1 1 4 4"), "bottom 1 is 1 x 1 x 9 x 4, bottom 0 is 1 x 3 x 4 x 4"),
        ("AssistedExcitation", "", ("1 3 4 4", "1 1 9 5", "1 3 4 4"), "bottom 2 is 1 x 3 x 4 x 4, bottom 0 is 1 x 3 x 4 x 4"),
        ("AnnotatedData", "annotated_data_param { single_class: true }", (), "no public source defines its effect on AnnotatedData"),
    ],
)
def test_errors_of_fields(kind: str, more: str, shapes: tuple[str, ...], told: str) -> None:
    assert told in refusal(kind, more, *shapes)


def run(device: Device, layers: str, inputs: dict[str, np.ndarray], phase: int = proto.TRAIN) -> Net:
    """Return a net that has run forward with these inputs, and backward in TRAIN."""
    case = Case("net", layers, lambda rng: inputs, lambda x, got: {}, list(inputs) if phase == proto.TRAIN else ())
    net = Net(case.message(inputs, ""), phase, device=device, keep=list(inputs))
    for name, values in inputs.items():
        net.blobs[name].data[...] = values
    net.forward()
    if phase == proto.TRAIN:
        net.backward()
    return net


def test_gradient_of_normalized_loss(device: Device) -> None:
    """As in the fork, the gradient is that of a softmax: (p - 1 for the label) / N."""
    inputs = {"x0": np.random.default_rng(1).uniform(0.5, 1, (3, 4)).astype(np.float32), "x1": np.array([1, 0, 3], np.float32)}
    text = layer("SoftmaxWithLoss", "x0 x1", "loss", 'propagate_down: true propagate_down: false softmax_param { normalize_type: "L2" }')
    p = inputs["x0"] / np.sqrt((inputs["x0"] ** 2).sum(1, keepdims=True) + 1e-6)
    p[range(3), [1, 0, 3]] -= 1
    np.testing.assert_allclose(run(device, text, inputs).blobs["x0"].diff, p / 3, atol=1e-6)


def test_scale_is_limited_in_place(device: Device) -> None:
    text = layer("Scale", "x0", "y", 'scale_param { min_value: 0 max_value: 1 filler { type: "constant" value: 3 } }')
    net = run(device, text, {"x0": np.ones((2, 3), np.float32)}, proto.TEST)
    assert (net.params["y"][0].data == 1).all() and (net.blobs["y"].data == 1).all()


def test_filler_of_parameter(device: Device) -> None:
    text = layer("Parameter", "", "y", 'parameter_param { shape { dim: 2 dim: 3 } blob_filler { type: "constant" value: 0.5 } }')
    assert (run(device, text, {}, proto.TEST).blobs["y"].data == 0.5).all()


def test_priors_in_pixels(device: Device) -> None:
    """Priors in pixels with the size of the image give the detections of relative priors."""
    rng = np.random.default_rng(1)
    corners = rng.uniform(0, 0.4, (5, 2))
    relative = np.stack([np.concatenate([corners, corners + 0.3], 1).ravel(), np.full(20, 0.1)])[None].astype(np.float32)
    pixels = relative.copy()
    pixels[0, 0] *= np.tile([40, 20], 10)
    inputs = {"x0": rng.standard_normal((1, 20)).astype(np.float32), "x1": rng.uniform(0, 1, (1, 10)).astype(np.float32)}
    found = []
    for priors, more in ((relative, ""), (pixels, "input_width: 40 input_height: 20")):
        param = f"detection_output_param {{ num_classes: 2 nms_param {{ nms_threshold: 0.45 }} code_type: CENTER_SIZE {more} }}"
        found.append(np.array(run(device, layer("DetectionOutput", "x0 x1 x2", "y", param), {**inputs, "x2": priors}, proto.TEST).blobs["y"].data))
    assert found[0].shape[2] > 1
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)


def test_running_statistics_of_dense_block(device: Device) -> None:
    """Each forward pass in TRAIN adds the batch's mean to the sums, and 1 to the weight of all transitions."""
    inputs = {"x0": np.random.default_rng(1).standard_normal((2, 3, 4, 5)).astype(np.float32)}
    net = run(device, layer("DenseBlock", "x0", "y", "denseblock_param { numTransition: 2 growthRate: 2 moving_average_fraction: 0.5 }"), inputs)
    net.forward()
    blobs = net.params["y"]
    np.testing.assert_allclose(blobs[6].data.ravel(), 1.5 * inputs["x0"].mean((0, 2, 3)), atol=1e-6)
    assert blobs[10].data == 1.5


VIDEO = 'source: "{folder}/list.txt" batch_size: 2 modality: RGB name_pattern: "img_%05d.png"'


@pytest.mark.parametrize(
    ("param", "more", "told"),
    [
        ('video_type: VIDEO video_file: "a.mp4"', "", "a.mp4 is to be read (SSD's VideoData), and ocaffe has no decoder of videos"),
        ("video_type: WEBCAM", "", "a camera is to be read"),
        (VIDEO.replace("img_%05d.png", "img.png"), "", "name_pattern is 'img.png', and modality RGB needs %d"),
        (VIDEO.replace("modality: RGB", ""), "", "name_pattern is 'img_%05d.png', and modality FLOW needs %c"),
        *((VIDEO, f"transform_param {{ crop_size: 8 multi_scale: true scale_ratios: {ratio} }}", f"scale_ratios are {ratio}") for ratio in (0, -1, 1.5, "nan")),
        (f"{VIDEO} new_length: 9", "", "line 1: the video has 8 frames, new_length is 9"),
        (f"{VIDEO} num_segments: 0", "", "num_segments is 0"),
        (f"{VIDEO} step: 2", "", "step is 2, and length_first is false: TSN takes every so many frames"),
        (f"{VIDEO} scale: 2", "", "video_data_param field 'scale'"),
        (VIDEO.replace("img_%05d", "image_%05d"), "", "image_00005.png"),
        (VIDEO, "transform_param { multi_scale: true }", "multi_scale is set, and crop_size is not"),
    ],
)
def test_errors_of_videos(param: str, more: str, told: str, tmp_path: pathlib.Path) -> None:
    write_videos(str(tmp_path))
    phase = proto.TRAIN if "crop" in told or "ratios" in told else proto.TEST
    assert told in refusal("VideoData", f"video_data_param {{ {param.replace('{folder}', str(tmp_path))} }} {more}", phase=phase)


def test_videos_in_train(device: Device, tmp_path: pathlib.Path) -> None:
    """In TRAIN each sample has consecutive frames of its video from a random one on, and batches repeat with the seed."""
    write_videos(str(tmp_path))
    text = layer("VideoData", "", "data", f"video_data_param {{ {VIDEO.replace('{folder}', str(tmp_path))} new_length: 2 }}")
    firsts = []
    for _ in range(2):
        net = Net(Case("videos", text, lambda rng: {}, lambda x, got: {}).message({}, ""), proto.TRAIN, device=device, seed=1)
        for _ in range(6):
            data = net.forward()["data"]
            for video, frames in enumerate((8, 9)):
                found = [n for n in range(1, frames) if np.array_equal(data[video], planes(video, n))]
                assert len(found) == 1
                firsts.append(found[0])
        net.close()
    assert firsts[:12] == firsts[12:] and len(set(firsts)) > 3


def video_batches(device: Device, param: str, transform: str, count: int, phase: int = proto.TRAIN) -> np.ndarray:
    """Return the samples of `count` batches of two videos as count x 2 x channels x height x width."""
    text = layer("VideoData", "", "data", f"video_data_param {{ batch_size: 2 {param} }} transform_param {{ {transform} }}")
    net = Net(Case("videos", text, lambda rng: {}, lambda x, got: {}).message({}, ""), phase, device=device, seed=1)
    data = np.stack([net.forward()["data"].copy() for _ in range(count)])
    net.close()
    return data


@pytest.mark.parametrize("modality", ["FLOW", "RGB"])
def test_mirrored_flow(device: Device, tmp_path: pathlib.Path, modality: str) -> None:
    """TSN: in mirrored samples the columns are reversed, and channels with even numbers are 255 - value before mean and scale."""
    write_videos(str(tmp_path))
    pattern, length = ("flow_%c_%05d.png", 8) if modality == "FLOW" else ("img_%05d.png", 8)
    param = f'source: "{tmp_path}/list.txt" new_length: {length} modality: {modality} name_pattern: "{pattern}"'
    found = video_batches(device, param, "mirror: true is_flow: true mean_value: 128 scale: 0.5", 8)[:, 0]
    planes_of = [frame(0, n, kind) for n in range(1, 9) for kind in "xy"] if modality == "FLOW" else [
        plane for n in range(1, 9) for plane in frame(0, n)[:, :, ::-1].transpose(2, 0, 1)]  # fmt: skip
    plain = np.array(planes_of, np.float32)
    flipped = plain[:, :, ::-1].copy()
    flipped[::2] = 255 - flipped[::2]
    kinds = [next((kind for kind, wanted in enumerate((plain, flipped)) if np.array_equal(sample, (wanted - 128) / 2)), 2) for sample in found]
    assert set(kinds) == {0, 1}


def test_frames_of_tsns_branches(device: Device, tmp_path: pathlib.Path) -> None:
    """grayscale, the default patterns, length_first with step and rand_step, and segments that are shorter than new_length."""
    write_videos(str(tmp_path))
    for path in (tmp_path / "video 0").iterdir():
        path.rename(path.with_name(path.name.replace("img_0", "image_").replace("_x_0", "_x_").replace("_y_0", "_y_")).with_suffix(".jpg"))
    (tmp_path / "one.txt").write_text(f"{tmp_path}/video 0 8 3\n")
    bgr = np.stack([frame(0, n)[:, :, ::-1].transpose(2, 0, 1) for n in range(1, 9)]).astype(np.float32)  # frames x channels
    flow = np.stack([[frame(0, n, kind) for kind in "xy"] for n in range(1, 9)]).astype(np.float32)

    def first(param: str, phase: int = proto.TEST) -> np.ndarray:
        return video_batches(device, f'source: "{tmp_path}/one.txt" {param}', "", 1, phase)[0, 0]

    np.testing.assert_array_equal(first("modality: RGB new_length: 8"), bgr.reshape(-1, 6, 8))
    np.testing.assert_array_equal(first("new_length: 8"), flow.reshape(-1, 6, 8))
    np.testing.assert_array_equal(first("modality: RGB new_length: 8 length_first: true"), bgr.swapaxes(0, 1).reshape(-1, 6, 8))
    np.testing.assert_array_equal(first("new_length: 8 length_first: true"), flow.swapaxes(0, 1).reshape(-1, 6, 8))
    halves = np.concatenate([bgr[1:3].swapaxes(0, 1), bgr[5:7].swapaxes(0, 1)])
    np.testing.assert_array_equal(first("modality: RGB new_length: 2 num_segments: 2 length_first: true").reshape(halves.shape), halves)
    np.testing.assert_array_equal(first("modality: RGB new_length: 8 length_first: true step: 3"), bgr[::3].swapaxes(0, 1).reshape(-1, 6, 8))
    np.testing.assert_array_equal(first("modality: RGB new_length: 5 num_segments: 2"), np.concatenate([bgr[:5], bgr[:5]]).reshape(-1, 6, 8))
    gray = first("modality: RGB new_length: 8 grayscale: true")
    assert gray.shape == (8, 6, 8) and np.abs(gray - (bgr * [[[[0.114]], [[0.587]], [[0.299]]]]).sum(1)).max() < 1.1
    later = video_batches(device, f'source: "{tmp_path}/one.txt" modality: RGB new_length: 8 length_first: true step: 4 rand_step: true', "", 12)[:, 0]
    numbers = {tuple(int(np.flatnonzero((bgr[:, 0] == sample[i]).all((1, 2)))[0]) for i in (0, 1)) for sample in later}
    assert len(numbers) > 3 and all(0 <= a < 4 <= b < 8 for a, b in numbers)


def test_crops_of_videos(device: Device, tmp_path: pathlib.Path) -> None:
    """With fix_crop, a crop of the net's size is one of the five of a frame. With multi_scale it is resized, and so other crops occur."""
    write_videos(str(tmp_path))
    five = [planes(0, 1)[:3, y : y + 3, x : x + 3] for y, x in ((0, 0), (0, 4), (0, 4), (0, 2))]
    found = []
    for more in ("fix_crop: true", "fix_crop: true more_fix_crop: true multi_scale: true max_distort: 1 scale_ratios: [1, 0.5]"):
        param = VIDEO.replace("{folder}", str(tmp_path)).replace("batch_size: 2", "batch_size: 8")
        text = layer("VideoData", "", "data", f"video_data_param {{ {param} new_length: 8 }} transform_param {{ crop_size: 3 {more} }}")
        net = Net(Case("videos", text, lambda rng: {}, lambda x, got: {}).message({}, ""), proto.TRAIN, device=device, seed=1)
        crops = [crop[:3] for _ in range(4) for crop in net.forward()["data"][::2]]
        found.append(sum(any(np.array_equal(crop, other) for other in five) for crop in crops) / len(crops))
        net.close()
    assert found[0] == 1 and found[1] < 1


def test_sizes_and_places_of_crops() -> None:
    with pytest.raises(Error, match="fix_crop and mean_file are both set"):
        RandomCrops.of(proto.TransformationParameter(fix_crop=True, mean_file="mean"), (4, 4))
    crops = RandomCrops((224, 224), RATIOS, 1, fixed=True, more=False)
    windows = {crops.draw(Dice((1, 2), n), 256, 340) for n in range(2000)}
    assert {(w.height, w.width) for w in windows} == {(256, 256), (256, 224), (224, 256), (224, 224), (224, 192), (192, 224), (192, 192), (192, 168),
                                                      (168, 192), (168, 168)}
    assert {(w.y, w.x) for w in windows if (w.height, w.width) == (224, 224)} == {(0, 0), (0, 116), (32, 0), (32, 116), (16, 58)}


def planes(video: int, first: int) -> np.ndarray:
    return np.concatenate([frame(video, n)[:, :, ::-1].transpose(2, 0, 1) for n in (first, first + 1)])


@pytest.mark.parametrize(
    ("value", "tops", "told"),
    [
        (b"\xff\xff", "", "it is not an MTCNNDatum"),
        (proto.Datum(channels=1, height=1, width=1, data=b"a").SerializeToString(), "", "the MTCNNDatum has no datum"),
        (proto.MTCNNDatum(pts=[1]).SerializeToString(), "", "the MTCNNDatum has no datum"),
        (proto.MTCNNDatum(datum=proto.Datum(channels=1), pts=[1, 2]).SerializeToString(), 'top: "b" top: "c" top: "d"', "it has 2 pts"),
    ],
)
def test_errors_of_faces(value: bytes, tops: str, told: str, tmp_path: pathlib.Path) -> None:
    with LmdbWriter(str(tmp_path / "db")) as writer:
        writer.put(b"0", value)
    assert told in refusal("MTCNNData", f'{tops} data_param {{ source: "{tmp_path}/db" backend: LMDB batch_size: 1 }}')


def test_faces_without_points(device: Device, tmp_path: pathlib.Path) -> None:
    """Three tops need no points."""
    write_faces(str(tmp_path))
    text = layer("MTCNNData", "", "data label roi", f'data_param {{ source: "{tmp_path}/faces" backend: LMDB batch_size: 1 }}')
    net = run(device, text, {}, proto.TEST)
    assert [net.blobs[name].data.shape for name in ("data", "label", "roi")] == [(1, 3, 4, 5), (1,), (1, 4)]
    assert net.blobs["label"].data == -1


def test_excitation_ends_with_the_training(device: Device, tmp_path: pathlib.Path) -> None:
    """The solver tells its max_iter, and the excitation falls with the cosine of the iteration."""
    assert "the TRAIN net has no solver that gives max_iter" in refusal("AssistedExcitation", "", "1 1 2 2", "1 1 1 5", "1 1 2 2", phase=proto.TRAIN)
    fills = {"x": 0, "b": 0.5, "m": 1}
    text = ""
    for name, rows, columns in (("x", 2, 2), ("b", 1, 5), ("m", 2, 2)):
        shape = f"shape {{ dim: 1 dim: 1 dim: {rows} dim: {columns} }}"
        text += layer("DummyData", "", name, f"dummy_data_param {{ {shape} data_filler {{ value: {fills[name]} }} }}")
    text += layer("AssistedExcitation", "x b m", "y") + layer("Scale", "y", "z") + layer("Reduction", "z", "loss", "loss_weight: 1")
    (tmp_path / "net.prototxt").write_text(text)
    settings = f'net: "{tmp_path}/net.prototxt" base_lr: 0 lr_policy: "fixed" max_iter: 4 snapshot_prefix: "{tmp_path}/s"'
    solver = Solver(parse(settings, proto.SolverParameter, ""), device=device)
    values = []
    for _ in range(4):
        solver.step(1)
        values.append(float(solver.net.blobs["y"].data.max()))
    np.testing.assert_allclose(values, np.cos(np.pi / 2 * np.arange(4) / 4), atol=1e-6)


def test_a_crop_of_a_small_share() -> None:
    """A side has a pixel at least."""
    crops = RandomCrops((8, 8), (0.01,), 1, fixed=False, more=False)
    window = crops.draw(Dice((1, 2), 0), 16, 20)
    assert (window.height, window.width) == (1, 1)
