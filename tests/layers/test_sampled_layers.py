"""Layer types and fields of a random sample of public prototxts: errors, and values that a Case cannot compare. Their cases are in sampled_cases.py."""
from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.compiler.network import phase_net
from ocaffe.errors import Error
from ocaffe.formats.text import parse
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.graph.build import build
from ocaffe.layers.base import registry
from ocaffe.selftest.case import layer
from tests.layers.sampled_cases import AUTO_CROP
from tests.layers.test_fork_layers import refusal

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("kind", "more", "shapes", "told"),
    [
        ("DiceCoefLoss", "", ("2 3 4", "2 3 5"), "bottom 0 is 2 x 3 x 4, bottom 1 is 2 x 3 x 5"),
        ("GroupNorm", "group_norm_param { group_num: 4 }", ("2 6 3 3",), "group_num is 4, bottom 0 has 6 channels"),
        ("GroupNorm", "group_norm_param { group_num: 0 }", ("2 6 3 3",), "group_num is 0"),
        ("GroupNorm", "", ("6",), "GroupNorm needs a channel axis"),
        ("LiftedStructSimilaritySoftmaxLoss", "", ("4 3 2 2", "4"), "bottom 0 is 4 x 3 x 2 x 2"),
        ("LiftedStructSimilaritySoftmaxLoss", "", ("4 3", "4 2"), "bottom 1 is 4 x 2, bottom 0 4 x 3"),
        ("K1_EuclideanLoss", "", ("4 3", "4 2"), "bottom 0 is 4 x 3, bottom 1 is 4 x 2"),
        ("MergeCrop", "", ("1 2 3 3", "1 2 2 4"), "bottom 0 is 1 x 2 x 3 x 3, bottom 1 is 1 x 2 x 2 x 4"),
        ("MergeCrop", "mergecrop_param { operation: ADD }", ("1 2 3 3", "1 3 5 5"), "and operation is ADD"),
        ("MergeCrop", "mergecrop_param { forward: true forward: true forward: true }", ("1 2 3 3", "1 2 5 5"), "3 forward and 0 backward are given"),
        ("Eltwise", "eltwise_param { coeff_blob: true operation: MAX }", ("2 3", "1 2"), "coeff_blob is true, and operation is not SUM"),
        ("Eltwise", "eltwise_param { coeff_blob: true }", ("2 3", "2 3", "1 2"), "with the coefficients, is 1 x 2, and bottom 0 is 2 x 3"),
        ("Eltwise", "eltwise_param { coeff_blob: true coeff: 1 }", ("2 3", "2 3", "2 2"), "1 coeff for 2 bottoms"),
        ("PriorBox", "prior_box_param { fixed_size: 4 }", ("1 2 3 3", "1 3 9 9"), "fixed_size is [4.0], density []"),
        ("PriorBox", "prior_box_param { fixed_size: 4 density: 1 fixed_ratio: 1 aspect_ratio: 2 }", ("1 2 3 3", "1 3 9 9"), "fixed_ratio and aspect_ratio"),
        ("PriorBox", "prior_box_param { fixed_size: 4 density: 1 min_size: 0 }", ("1 2 3 3", "1 3 9 9"), "min_size is 0"),
        ("SoftmaxWithLoss", "top: 'p' top: 'each'", ("2 3", "2 3"), "a third top is given, and bottom 1 is 2 x 3"),
        ("SmoothL1Loss", "top: 'each'", ("2 3 4 5 6", "2 3 4 5 6"), "bottom 0 is 2 x 3 x 4 x 5 x 6, and a second top is given"),
        ("AutoCrop", "", ("1 2 5 5", "1 2 3 3"), "'x0' and 'x1' come from different inputs"),
        ("Dropout", "dropout_param { dropout_ratio: 1 }", ("2 3",), "dropout_ratio 1 is outside [0, 1)"),
        ("Data", "top: 'a' top: 'b'", (), "3 given: 'y', 'a', 'b'. caffe-multilabel gives"),
    ],
)
def test_errors(kind: str, more: str, shapes: tuple[str, ...], told: str) -> None:
    assert told in refusal(kind, more, *shapes, phase=proto.TRAIN)


def graph_of(text: str, shape: tuple[int, ...] = (1, 1, 6, 8)) -> Any:
    dims = " ".join(f"dim: {size}" for size in shape)
    whole = f'layer {{ name: "x0" type: "Input" top: "x0" input_param {{ shape {{ {dims} }} }} }}\n{text}'
    return build(phase_net(parse(whole, proto.NetParameter, "net.prototxt"), proto.TRAIN), proto.TRAIN)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("kernel_size: 3 pad: 7", "kernel_size: 5 pad: 0", "'x0' begins -1 pixels after 'u'"),
        ("kernel_size: 4 stride: 2", "kernel_size: 4 stride: 3", "a pixel of 'u' spans 2/3 pixels of 'x0', one of 'x0' 1"),
        ("kernel_size: 4 stride: 2", "kernel_size: 3 stride: 2", "'x0' begins 6.5 pixels after 'u'"),
        ("pooling_param { pool: AVE kernel_size: 2 stride: 2 }", "pooling_param { pool: AVE global_pooling: true }", "the path goes through 'p' (Pooling)"),
    ],
)
def test_places_that_do_not_fit(old: str, new: str, told: str) -> None:
    assert old in AUTO_CROP
    text = AUTO_CROP.replace(old, new)
    with pytest.raises(Error) as caught:
        graph_of(text)
    assert told in str(caught.value) and "layer 'y' (AutoCrop)" in str(caught.value)


def test_dropout_of_all_values_in_test(device: Any) -> None:
    """Caffe copies the values in TEST, whatever the ratio."""
    text = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } } '
    net = Net(parse(text + layer("Dropout", "x", "y", "dropout_param { dropout_ratio: 1 }"), proto.NetParameter), proto.TEST, device=device)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(net.forward(x=x)["y"], x)
    net.close()


def test_old_unpooling() -> None:
    """The nets of DeconvNet are in the V1 form."""
    text = 'layers { name: "u" type: UNPOOLING bottom: "x" bottom: "mask" top: "u" unpooling_param { unpool: MAX kernel_size: 2 stride: 2 unpool_size: 14 } }'
    (new,) = upgrade_net(parse(text, proto.NetParameter)).layer
    assert new.type == "Unpooling" and new.type in registry() and new.unpooling_param.unpool_size == 14


def test_parallel_degree_has_no_effect() -> None:
    text = layer("Convolution", "x0", "y", "convolution_param { num_output: 2 kernel_size: 3 parallel_degree: 3 }")
    assert graph_of(text).blobs["y"].shape == (1, 2, 4, 6)


def test_memory_of_volumes(device: Any) -> None:
    """The OpenCL branch's MemoryData has a shape with any number of axes."""
    text = 'layer { name: "m" type: "MemoryData" top: "data" top: "label" memory_data_param { dim: 2 dim: 3 dim: 4 dim: 2 dim: 2 } }'
    net = Net(parse(text, proto.NetParameter), proto.TEST, device=device)
    assert net.blobs["data"].shape == (2, 3, 4, 2, 2) and net.blobs["label"].shape == (2, 1, 1, 1, 1)
    data = np.arange(4 * 48, dtype=np.float32).reshape(4, 3, 4, 2, 2)
    net.set_input_arrays(data, np.arange(4, dtype=np.float32))
    for first in (0, 2):
        net.forward()
        assert np.array_equal(net.blobs["data"].data, data[first : first + 2]) and net.blobs["label"].data.ravel().tolist() == [first, first + 1]
    net.close()


def test_a_class_with_other_bottoms_is_imported(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FPN has a rpn.proposal_layer of its own, with more bottoms than py-faster-rcnn's, which ocaffe replaces."""
    (tmp_path / "rpn").mkdir()
    (tmp_path / "rpn" / "__init__.py").write_text("")
    (tmp_path / "rpn" / "proposal_layer.py").write_text(
        "import caffe\nclass ProposalLayer(caffe.Layer):\n    def setup(self, bottom, top): pass\n"
        "    def reshape(self, bottom, top): top[0].reshape(7, 5)\n    def forward(self, bottom, top): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    text = "".join(layer("AbsVal", "x0", f"a{n}") for n in range(4)) + layer(
        "Python", "a0 a1 a2 a3", "rois", "python_param { module: 'rpn.proposal_layer' layer: 'ProposalLayer' }"
    )
    assert graph_of(text).blobs["rois"].shape == (7, 5)
