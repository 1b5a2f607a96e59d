"""Layer types of public prototxts: errors, and values that a Case cannot compare. Their cases are in public_cases.py."""
from __future__ import annotations

import pathlib

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cl.device import Device
from ocaffe.formats.text import parse
from ocaffe.io import array_to_blobproto
from ocaffe.selftest.case import layer
from ocaffe.selftest.layers import convolve
from tests.layers.public_cases import branch, detection_loss, detection_loss_case, discrepancies, downsampled, regions, volume_pooled, warped_places
from tests.layers.test_fork_layers import refusal

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("kind", "more", "shapes", "told"),
    [
        ("Convolution3D", "convolution3d_param { num_output: 2 kernel_size: 3 group: 2 }", ("1 2 5 5 5",), "group is 2, which C3D ignores"),
        ("Pooling3D", "pooling3d_param { kernel_size: 2 kernel_depth: 2 }", ("1 2 5 5",), "kernel_depth is given for 2 spatial axes"),
        ("UnPooling", "unpooling_param { kernel_size: 2 out_stride: 2 }", ("1 2 3 3",), "out_stride is given, and unpool is MAX"),
        ("UnPooling", "unpooling_param { unpool: REP kernel_size: 2 }", ("1 2 3 3",), "kernel_size is given, and unpool is REP"),
        ("UnPooling", "unpooling_param { unpool: REP out_kernel_size: 2 }", ("1 2 3 3", "1 2 3 3"), "unpool is REP, and bottom 1 is a mask"),
        ("UnPooling", "unpooling_param { unpool: MAX kernel_size: 2 pad: 1 }", ("1 2 3 3",), "pad is 1, which DeconvNet refuses too"),
        ("UnPooling", "unpooling_param { unpool: MAX stride: 2 }", ("1 2 3 3",), "kernel_size is 0"),
        ("UnPooling", "unpooling_param { unpool: AVE kernel_size: 2 stride: 2 unpool_size: 3 }", ("1 2 3 3",), "window starts at 4 x 4 of a top of 3 x 3"),
        ("UnPooling", "unpooling_param { unpool: AVE kernel_h: 2 }", ("1 2 3 3",), "kernel_h is given without kernel_w"),
        ("UnPooling", "unpooling_param { unpool: AVE kernel_size: 2 unpool_size: 4 unpool_h: 4 unpool_w: 4 }", ("1 2 3 3",), "unpool_h, unpool_w are given"),
        ("Upsample", "upsample_param { height_scale: 2 }", ("1 2 3 3",), "height_scale is given alone"),
        ("Upsample", "upsample_param { height_scale: 1.5 width_scale: 2 }", ("1 2 3 3",), "height_scale is 1.5"),
        ("Upsample", "upsample_param { height_scale: inf width_scale: 2 }", ("1 2 3 3",), "height_scale is inf"),
        ("Upsample", "upsample_param { scale: 2 stride: 2 }", ("1 2 3 3",), "scale given, which another fork's Upsample takes"),
        ("Resample", "", ("1 2 3 3",), "height is missing"),
        ("Resample", "resample_param { type: AREA height: 2 width: 2 }", ("1 2 3 3",), "type is AREA, which FlowNet refuses too"),
        ("Resample", "resample_param { height: 2 width: 2 }", ("2 3 3",), "bottom 0 is 2 x 3 x 3, it must be N x C x H x W"),
        ("Downsample", "downsample_param { top_height: 1 top_width: 2 }", ("1 2 3 3",), "the top would be 1 x 2, bottom 0 is 3 x 3"),
        ("Correlation", "correlation_param { kernel_size: 2 }", ("1 2 4 4", "1 2 4 4"), "kernel_size is 2"),
        ("Correlation", "correlation_param { kernel_size: 1 max_displacement: 2 }", ("1 2 4 4", "1 2 4 4"), "leave 0 x 0 of 4 x 4 pixels"),
        ("Correlation", "correlation_param { kernel_size: 1 single_direction: 1 }", ("1 2 4 4", "1 2 4 4"), "single_direction is 1"),
        ("Correlation", "correlation_param { kernel_size: 1 }", ("1 2 4 4", "1 2 4 5"), "bottom 0 is 1 x 2 x 4 x 4, bottom 1 is 1 x 2 x 4 x 5"),
        ("FlowWarp", "", ("1 3 4 4", "1 3 4 4"), "bottom 1 is 1 x 3 x 4 x 4, bottom 0 is 1 x 3 x 4 x 4"),
        ("ExpMax", "expmax_param { base: -2 }", ("1 3 4",), "base is -2"),
        ("Mean", "mean_param { operation: ADD }", ("1 3 4 4",), "mean_param has no value and no file"),
        ("Mean", "mean_param { operation: ADD value: 1 value: 2 }", ("1 3 4 4",), "bottom 0 is 1 x 3 x 4 x 4, 2 value are given"),
        ("Mean", 'mean_param { operation: ADD file: "none.binaryproto" }', ("1 3 4 4",), "none.binaryproto"),
        ("LpqLoss", "lpq_loss_param { p: 1 p: 2 q: 1 q: 1 pq_episode_starts_at_iter: 0 pq_episode_starts_at_iter: 9 }", ("1 3 4 4",), "has 2 p and 2 q"),
        ("LpqLoss", "lpq_loss_param { p: 0 q: 1 }", ("1 3 4 4",), "p is 0"),
        ("L1Loss", "l1_loss_param { epsilon: -1 }", ("1 3 4 4",), "epsilon is -1"),
        ("LabelSpecificAdd", "", ("3 4", "2"), "bottom 1 is 2, bottom 0 is 3 x 4"),
        ("ChannelScale", "", ("3 4", "3 4"), "bottom 1 is 3 x 4, bottom 0 is 3 x 4"),
        ("ChannelScale", "top: 'z'", ("3 4", "3"), "a second top is given without global_scale"),
        ("TripletLoss", "", ("3 4", "3 4", "3 5"), "bottom 2 is 3 x 5"),
        ("TripletLoss", "", ("3 4", "3 4", "3 4", "4"), "bottom 3 is 4"),
        ("LargeMarginInnerProduct", "top: 'z' largemargin_inner_product_param { num_output: 2 }", ("3 4", "3", "2 5"), "bottom 2 is 2 x 5"),
        ("DeformableConvolution", "deformable_convolution_param { num_output: 2 kernel_size: 3 }", ("1 4 5 5", "1 18 3 3"), "deformable_group is 4"),
        ("DeformableConvolution", "deformable_convolution_param { num_output: 2 kernel_size: 3 deformable_group: 3 }", ("1 4 5 5", "1 54 3 3"),
         "deformable_group 3 does not divide 4 channels"),
        ("SpatialTransformer", "", ("1 3 4 4", "1 5"), "bottom 1 is 1 x 5, bottom 0 is 1 x 3 x 4 x 4, and the layer sets 0 of the 6 numbers"),
        ("SpatialTransformer", 'st_param { sampler_type: "nearest" }', ("1 3 4 4", "1 6"), "sampler_type is 'nearest'"),
        ("MaskPooling", "", ("2 3 4 4", "2 3 4 4"), "bottom 1 is 2 x 3 x 4 x 4, bottom 0 is 2 x 3 x 4 x 4"),
        ("GuidedDropout", 'guided_dropout_param { type: "none" }', ("2 3 4", "2 3"), "type is 'none'"),
        ("GRN", "grn_param { bias: -1 }", ("2 3 4",), "bias is -1"),
        ("PointwiseSpatialAttention", "pointwise_spatial_attention_param { attention_mask_height: 3 }", ("1 3 4 4", "1 9 4 4"), "mask_height is given alone"),
        ("PointwiseSpatialAttention", "", ("1 3 4 4", "1 9 4 4"), "bottom 1 is 1 x 9 x 4 x 4, bottom 0 is 1 x 3 x 4 x 4"),
        ("DecodeBBox", "", ("9 4", "9 5"), "bottom 0 is 9 x 4, it must be R x 8"),
        ("DecodeBBox", "", ("9 8", "9 5", "9 5"), "bottom 2 is given in the TEST phase"),
        ("DecodeBBox", "bbox_reg_param { bbox_mean: 0 bbox_std: 1 }", ("9 8", "9 5"), "bbox_mean is given once"),
        ("BoxOutput", "", ("1 7 4 4",), "field_h is given 0 times for 1 bottoms"),
        ("BoxOutput", 'box_output_param { field_h: 9 field_w: 9 downsample_rate: 8 nms_type: "MAX" }', ("1 7 4 4",), "nms_type is 'MAX'"),
        ("ROIWarping", "roi_warping_param { pooled_h: 3 }", ("1 2 4 4", "3 5"), "pooled_w is missing"),
        ("ROIAlignment", "roi_alignment_param { pooled_h: 3 pooled_w: 3 }", ("1 2 4 4", "3 4"), "bottom 1 is 3 x 4, it must be R x 5"),
        ("ROIAlignment", "roi_alignment_param { pooled_h: 3 pooled_w: 3 sampling_ratio: 2 }", ("1 2 4 4", "3 5"), "sampling_ratio is 2"),
        ("MaskResize", "mask_resize_param { output_height: 3 }", ("1 2 4 4",), "output_width is missing"),
        ("DetectionLoss", "detection_loss_param { cls_num: 3 field_w: 24 downsample_rate: 8 }", ("1 7 4 4", "1 6 4 4"), "field_h is missing"),
        ("DetectionLoss", "detection_loss_param { cls_num: 3 field_w: 24 field_h: 24 downsample_rate: 8 }", ("1 6 4 4", "1 6 4 4"), "and cls_num is 3"),
        ("GlobalLSEMargin", "", ("3 4", "2"), "bottom 1 is 2, bottom 0 is 3 x 4"),
        ("GlobalLSEMargin", "scale_param { min_value: 3 max_value: 2 }", ("3 4", "3"), "min_value is 3, max_value is 2"),
        ("MMDLoss", "", ("3 4", "2 5"), "bottom 0 is 3 x 4, bottom 1 is 2 x 5: the numbers of features differ"),
        ("MMDLoss", "", ("3 4", "1 4"), "bottom 0 is 3 x 4, bottom 1 is 1 x 4: a bottom has one sample"),
        ("MMDLoss", "mmd_param { kernel_num: 0 }", ("3 4", "3 4"), "kernel_num is 0"),
        ("FrcnnProposal", 'frcnn_param { config: "none.json" }', ("1 18 4 4", "1 36 4 4", "1 3"), "the settings file none.json cannot be read: No such file"),
        ("FrcnnProposalTarget", "top: 'b' top: 'c' top: 'd' top: 'e'", ("3 5", "2 5"), "frcnn_param names no file"),
        ("FrcnnProposalTarget", "top: 'b' top: 'c' top: 'd' top: 'e' proposal_target_param { stage: 1 }", ("3 5", "2 5"), "stage: 1 } is not supported"),
        ("ConvLSTM", "", ("3 2 3 4 4", "3 2"), "lstm_conv_param is given 0 times"),
        ("ConvLSTM", "lstm_conv_param { num_output: 2 kernel_size: 3 }", ("3 2 3 4 4", "3 2"), "a convolution makes 2 x 2 of 4 x 4 pixels"),
        ("ConvLSTM", "lstm_conv_param { num_output: 2 kernel_size: 3 pad: 1 }", ("3 2 3 4 4", "3 2", "1 2 2 4 4"), "3 bottoms and 1 tops are given"),
        ("ConvLSTM", "lstm_debug_param { expose: 'c_t=1' } lstm_conv_param { num_output: 2 kernel_size: 1 }", ("3 2 3 4 4", "3 2"), "has expose: 'c_t=1'"),
        ("BReLU", "brelu_param { minval: 2 }", ("1 2",), "minval is 2, maxval is 1"),
    ],
)
def test_errors(kind: str, more: str, shapes: tuple[str, ...], told: str) -> None:
    text = refusal(kind, more, *shapes)
    assert told in text and "fix: " in text


def test_downsample_of_unknown_flow(device: Device) -> None:
    """A pixel of the top is NaN where NaN has more than half as much weight as the rest."""
    text = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 1 dim: 7 dim: 9 } } }'
    text += layer("Downsample", "x", "y", "downsample_param { top_height: 3 top_width: 4 }")
    net = Net(parse(text, proto.NetParameter), proto.TEST, device=device)
    x = np.random.default_rng(0).standard_normal((1, 1, 7, 9)).astype(np.float32)
    x[0, 0, 3:, 5:] = np.nan
    np.testing.assert_allclose(np.array(net.forward(x=x)["y"]), wanted := downsampled(x, (3, 4)), atol=1e-5)
    assert 0 < np.isnan(wanted).sum() < 12


def test_gradient_of_exp_max(device: Device) -> None:
    """The maximum counts as a constant."""
    text = 'force_backward: true layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 4 } } }'
    net = Net(parse(text + layer("ExpMax", "x", "y", "expmax_param { scale: 2 }"), proto.NetParameter), proto.TRAIN, device=device)
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal((2, 3, 4)).astype(np.float32) for _ in range(2))
    y = np.array(net.forward(x=x)["y"])
    net.blobs["y"].diff[...] = dy
    net.backward()
    np.testing.assert_allclose(net.blobs["x"].diff, 2 * y * dy, rtol=1e-5)


def test_mean_image(device: Device, tmp_path: pathlib.Path) -> None:
    image = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    (tmp_path / "mean.binaryproto").write_bytes(array_to_blobproto(image).SerializeToString())
    text = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 2 dim: 3 dim: 4 } } }'
    text += layer("Mean", "x", "y", f'mean_param {{ operation: ADD file: "{tmp_path}/mean.binaryproto" }}')
    net = Net(parse(text, proto.NetParameter), proto.TEST, device=device)
    assert (np.array(net.forward(x=np.ones((2, 2, 3, 4)))["y"]) == 1 + image).all()


def test_no_box(device: Device) -> None:
    """Without a box there is one region, and its scores are 0; a later pass with boxes has other shapes."""
    text = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 6 dim: 4 dim: 4 } } }'
    text += layer("BoxOutput", "x", "y z", "box_output_param { field_h: 20 field_w: 20 downsample_rate: 8 }")
    net = Net(parse(text, proto.NetParameter), proto.TEST, device=device)
    x = np.zeros((1, 6, 4, 4), np.float32)
    x[:, 0] = 1
    out = net.forward(x=x)
    assert np.array(out["y"]).ravel().tolist() == [0, 1, 1, 10, 10] and np.array(out["z"]).ravel().tolist() == [0] * 6
    x[:, 1, 1, 1] = x[:, 1, 2, 2] = 3
    out = net.forward(x=x)
    assert np.array(out["z"]).shape == (2, 6, 1, 1) and np.array(out["z"])[0].ravel().tolist() == [0, 10, 10, 30, 30, 2]


def test_gradient_of_warped_regions(device: Device) -> None:
    """MNC's gradient of the corners: the slopes at each value, times the part of the region before or after it."""
    text = "force_backward: true " + "".join(
        f'layer {{ name: "x{k}" type: "Input" top: "x{k}" input_param {{ shape {{ {shape} }} }} }} '
        for k, shape in enumerate(("dim: 2 dim: 3 dim: 6 dim: 7", "dim: 4 dim: 5"))
    )
    text += layer("ROIWarping", "x0 x1", "y", "roi_warping_param { pooled_h: 3 pooled_w: 4 spatial_scale: 0.5 }")
    net = Net(parse(text, proto.NetParameter), proto.TRAIN, device=device)
    rng = np.random.default_rng(0)
    x, dy = regions(rng), rng.standard_normal((4, 3, 3, 4)).astype(np.float32)
    net.forward(**x)
    net.blobs["y"].diff[...] = dy
    net.backward()
    wanted = np.zeros((4, 5))
    for r, i, j in np.ndindex(4, 3, 4):
        image = x["x0"][int(x["x1"][r, 0])]
        places = warped_places(x["x1"][r], (i, j), (3, 4))
        if not all(-0.5 <= place <= n - 0.5 for place, n in zip(places, image.shape[1:])):
            continue
        places = [min(max(place, 0), n - 1) for place, n in zip(places, image.shape[1:])]
        h, w = (int(place) for place in places)
        if h + 1 >= image.shape[1] or w + 1 >= image.shape[2]:
            continue
        b, a = places[0] - h, places[1] - w
        corners = image[:, h : h + 2, w : w + 2]
        slopes = ((corners[:, 1] - corners[:, 0]) @ [1 - a, a], (corners[:, :, 1] - corners[:, :, 0]) @ [1 - b, b])
        for k in (0, 1):
            low, high = (np.copysign(np.floor(abs(0.5 * c) + 0.5), c) for c in x["x1"][r, [2 - k, 4 - k]])
            part = (places[k] - low) / max(high - low + 1, 1)
            wanted[r, [2 - k, 4 - k]] += 0.5 * (slopes[k] @ dy[r, :, i, j]) * np.array([1 - part, part])
    assert np.abs(wanted).max(0)[1:].min() > 0.1
    np.testing.assert_allclose(net.blobs["x1"].diff, wanted, atol=1e-4)


@pytest.mark.parametrize("mode", ["all", "bootstrap"])
def test_gradient_of_detection_loss(device: Device, mode: str) -> None:
    """The gradient of the first number by central differences; no output of the branch is at its limits."""
    case = detection_loss_case(mode, "iou_weighted: true pos_neg_weighted: true", True, True)
    x = {name: array.astype(np.float32) for name, array in branch(np.random.default_rng(0)).items()}
    message = case.message(x, "")
    message.force_backward = True
    net = Net(message, proto.TRAIN, device=device)
    net.forward(**x)
    net.backward()
    wanted, h = np.zeros(x["x0"].shape), 1e-5
    for place in np.ndindex(*wanted.shape):
        values = []
        for sign in (1, -1):
            moved = x["x0"].astype(float)
            moved[place] += sign * h
            values.append(detection_loss({**x, "x0": moved}, mode, True, True)[0])
        wanted[place] = (values[0] - values[1]) / (2 * h)
    np.testing.assert_allclose(net.blobs["x0"].diff, wanted, atol=1e-4)
    assert np.abs(wanted).max() > 0.01


@pytest.mark.parametrize("mode", ["random", "mixture"])
def test_random_cells_of_detection_loss(device: Device, mode: str) -> None:
    """Background cells are drawn anew in each pass; none has an overlap above the threshold, and cells with a class always count."""
    text = "".join(
        f'layer {{ name: "x{k}" type: "Input" top: "x{k}" input_param {{ shape {{ dim: 2 dim: {channels} dim: 16 dim: 16 }} }} }} '
        for k, channels in enumerate((7, 6))
    )
    text += layer("DetectionLoss", "x0 x1", "y", f'detection_loss_param {{ sample_mode: "{mode}" cls_num: 3 field_w: 24 field_h: 24 downsample_rate: 8 }}')
    net = Net(parse("force_backward: true " + text, proto.NetParameter), proto.TRAIN, device=device)
    rng = np.random.default_rng(0)
    x = {"x0": rng.standard_normal((2, 7, 16, 16)), "x1": rng.uniform(0, 1, (2, 6, 16, 16))}
    x["x1"][:, 0] = rng.choice([0] * 18 + [1, 2], (2, 16, 16))
    positive, free = x["x1"][:, 0] > 0, (x["x1"][:, 0] == 0) & (x["x1"][:, 5] < 0.5)
    seen = []
    for _ in range(2):
        net.forward(**x)
        net.backward()
        seen.append(np.abs(net.blobs["x0"].diff[:, :3]).sum(1) > 0)
        kept = seen[-1] & ~positive
        assert seen[-1][positive].all() and not (kept & ~free).any()
        assert 0.15 < kept.sum() / (4 * positive.sum()) < 1
    assert (seen[0] != seen[1]).any()


@pytest.mark.parametrize("fixed", [False, True])
def test_mmd_loss(device: Device, fixed: bool) -> None:
    """Draws from two samples of each have three values, and the gradient belongs to the draws. fix_gamma keeps the kernels of the first pass."""
    text = "".join(f'layer {{ name: "x{k}" type: "Input" top: "x{k}" input_param {{ shape {{ dim: 2 dim: 3 }} }} }} ' for k in (0, 1))
    text += layer("MMDLoss", "x0 x1", "y", f"loss_weight: 0.5 mmd_param {{ fix_gamma: {str(fixed).lower()} }}")
    net = Net(parse("force_backward: true " + text, proto.NetParameter), proto.TRAIN, device=device)
    rng = np.random.default_rng(0)
    x = {name: rng.standard_normal((2, 3)) for name in ("x0", "x1")}
    known, seen = discrepancies(x, 5, 2), set()
    for _ in range(12):
        value = float(np.array(net.forward(**x)["y"]))
        net.backward()
        nearest = min(known, key=lambda each: abs(each - value))
        seen.add(nearest)
        assert abs(nearest - value) < 1e-4
        for name in x:
            np.testing.assert_allclose(net.blobs[name].diff, 0.5 * known[nearest][name], atol=1e-5)
    assert len(seen) > 1
    larger = {name: 3 * array for name, array in x.items()}
    value = float(np.array(net.forward(**larger)["y"]))
    same = any(abs(value - each) < 1e-4 for each in discrepancies(larger, 5, 2))
    assert same != fixed


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ('{"test_soft_nms": "1"}', "sets test_soft_nms: 1, which is not supported"),
        ('{"anchors": "1, 2, 3"}', "has 3 numbers in anchors"),
        ('{"feat_stride": "wide"}', "sets feat_stride: 'wide'"),
        ('{"feat_stride": "nan"}', "sets feat_stride: 'nan'"),
        ('{"feat_stride": ""}', "sets feat_stride: ''"),
        ('{"feat_stride": [16]}', "feat_stride is a list of 1, not a text or a number"),
        ('{"test_soft_nms": {"a": 1}}', "test_soft_nms is an object of 1, not a text"),
        ('{"test_soft_nms": "yes"}', "sets test_soft_nms: 'yes'"),
        ("[1]", "is JSON, but it is a list of 1, not an object"),
        ("", "is an empty file"),
        ("{", "is not valid JSON: it is JSON that ends too early"),
    ],
)
def test_settings_of_frcnn(tmp_path: pathlib.Path, settings: str, told: str) -> None:
    (tmp_path / "config.json").write_text(settings)
    assert told in refusal("FrcnnProposal", f'frcnn_param {{ config: "{tmp_path}/config.json" }}', "1 18 4 4", "1 36 4 4", "1 3")


def test_conv_lstm_carries_its_states(device: Device) -> None:
    """Two runs of one step each give the values of one run of two steps."""
    values = []
    for steps in (2, 1):
        text = "".join(
            f'layer {{ name: "x{k}" type: "Input" top: "x{k}" input_param {{ shape {{ dim: {steps} dim: 2 {more} }} }} }} '
            for k, more in enumerate(("dim: 3 dim: 4 dim: 5", ""))
        )
        conv = 'lstm_conv_param { num_output: 2 kernel_size: 3 pad: 1 weight_filler { type: "constant" value: 0.1 } }'
        net = Net(parse(text + layer("ConvLSTM", "x0 x1", "y", conv), proto.NetParameter), proto.TEST, device=device)
        x = np.random.default_rng(0).standard_normal((2, 2, 3, 4, 5))
        runs = [np.array(net.forward(x0=x[t : t + steps], x1=np.ones((steps, 2)))["y"]).copy() for t in range(0, 2, steps)]
        values.append(np.concatenate(runs))
    np.testing.assert_allclose(values[1], values[0], atol=1e-5)
    assert np.abs(values[0][1] - values[0][0]).max() > 0.01


def test_weights_of_c3d(device: Device, tmp_path: pathlib.Path) -> None:
    """The layers of C3D 1.0 in its old form; the bias has five axes in its weights."""
    text = '''input: "x" input_shape { dim: 1 dim: 2 dim: 4 dim: 6 dim: 6 }
        layers { name: "c" type: CONVOLUTION3D bottom: "x" top: "c" blobs_lr: 1 blobs_lr: 2
                 convolution_param { num_output: 3 kernel_size: 3 kernel_depth: 3 pad: 1 temporal_pad: 1 } }
        layers { name: "p" type: POOLING3D bottom: "c" top: "p" pooling_param { kernel_size: 2 kernel_depth: 1 stride: 2 temporal_stride: 1 } }'''
    (tmp_path / "net.prototxt").write_text(text)
    rng = np.random.default_rng(0)
    w, b, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 2, 3, 3, 3), (1, 1, 1, 1, 3), (1, 2, 4, 6, 6)))
    stored = proto.NetParameter()
    stored.layer.add(name="c", type="Convolution3D").blobs.extend(array_to_blobproto(each) for each in (w, b))
    (tmp_path / "c3d.caffemodel").write_bytes(stored.SerializeToString())
    net = Net(str(tmp_path / "net.prototxt"), str(tmp_path / "c3d.caffemodel"), proto.TEST, device=device)
    wanted = volume_pooled(convolve(np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1), (1, 1)]), w, b.ravel()), (1, 2, 2), (1, 2, 2), (0, 0, 0))
    np.testing.assert_allclose(np.array(net.forward(x=x)["p"]), wanted, atol=1e-4)
