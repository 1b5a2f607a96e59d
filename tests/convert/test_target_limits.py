"""Limits of compilers that random nets showed (benchmarks/lint_targets.py): `lint --target` tells them, and `convert --target` avoids them."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ocaffe import proto
from ocaffe.convert.targets.table import read_table
from ocaffe.formats.text import parse
from ocaffe.lint import lint
from tests.convert.test_targets import check, layer

pytestmark = pytest.mark.unoptimised

CONV = layer("Convolution", "convolution_param { num_output: 4 kernel_size: 3 pad: 1 }", "x0", "a", "a")
NORM = layer("BatchNorm", "", "a", "a", "b")
SCALE = layer("Scale", "scale_param { bias_term: true }", "a", "a", "c")
POINT = layer("Convolution", "convolution_param { num_output: 2 kernel_size: 1 }", "a", "y", "e")
FLAT = layer("InnerProduct", "inner_product_param { num_output: 5 }", "x0", "f", "f")
IMAGES = layer("Reshape", "reshape_param { shape { dim: [0, 5, 1, 1] } }", "f", "z", "z")
LAST = layer("InnerProduct", "inner_product_param { num_output: 500 axis: 3 }", "x0", "z", "z")
LIMITS: dict[str, tuple[str, str, str]] = {  # target, layers, what lint says; '' if the target takes it
    "output made in place": ("tpu-mlir", CONV + layer("ReLU", "", "a", "a", "r"), "the output that a layer makes in place is a"),
    "output of its own": ("tpu-mlir", CONV + layer("ReLU", "", "a", "y", "r"), ""),
    "blob made in place": ("tpu-mlir", CONV + layer("ReLU", "", "a", "a", "r") + POINT, ""),
    "norm and ReLU in place": ("rknn", CONV + NORM + SCALE + layer("ReLU", "", "a", "a", "r"), "the output that several layers make in place is a"),
    "norm in place": ("rknn", CONV + NORM + SCALE, ""),
    "ReLU in place": ("rknn", CONV + layer("ReLU", "", "a", "a", "r"), ""),
    "scale without bias": ("rknn", CONV + NORM.replace('top: "a"', 'top: "n"') + layer("Scale", "", "n", "y", "c"), "bias_term behind a BatchNorm is false"),
    "scale alone": ("rknn", CONV + layer("Scale", "", "a", "y", "c"), ""),
    "slice_dim": ("tpu-mlir", layer("Slice", "slice_param { slice_dim: 2 }", "x0", "y z"), "slice_dim is 2; tpu-mlir reads only axis"),
    "concat_dim": ("tpu-mlir", layer("Concat", "concat_param { concat_dim: 2 }", "x0 x0", "y"), "concat_dim is 2; tpu-mlir reads only axis"),
    "axis of Reverse": ("tpu-mlir", layer("Reverse", "reverse_param { axis: -1 }", "x0", "y"), "axis is -1; tpu-mlir takes at least 0"),
    "short order": ("tpu-mlir", layer("Permute", "permute_param { order: [0, 2] }", "x0", "y"), "the number of axes that order leaves out is 2"),
    "padded whole image": ("tpu-mlir", layer("Pooling", "pooling_param { kernel_size: 6 pad: 1 }", "x0", "y"),
                           "the pad around an image of the window's size is 1"),
    "whole image": ("tpu-mlir", layer("Pooling", "pooling_param { kernel_size: 6 }", "x0", "y"), ""),
    "maximum of three": ("tpu-mlir", layer("Eltwise", "eltwise_param { operation: MAX }", "x0 x0 x0", "y"), "factors or maxima is 3"),
    "reader of ArgMax": ("rknn", layer("ArgMax", "argmax_param { axis: 1 }", "x0", "a", "a") + layer("ReLU", "", "a", "y", "r"), "of an ArgMax's result is 4"),
    "scale of the batch": ("rknn", layer("Scale", "scale_param { axis: 0 }", "x0", "y"), "batch is 2; rknn-toolkit2 takes at most 1"),
    "scale of the batch with a bias": ("rknn", layer("Scale", "scale_param { axis: 0 bias_term: true }", "x0", "y"), ""),
    "scale of rows": ("rknn", layer("Scale", "scale_param { axis: 2 }", "x0", "y"), "axis is 2; rknn-toolkit2 takes 0 or 1"),
    "scale of images": ("rknn", layer("Scale", "scale_param { num_axes: -1 }", "x0", "y"), "factors for each index of their first axis is 36"),
    "scale of images with a bias": ("rknn", layer("Scale", "scale_param { num_axes: -1 bias_term: true }", "x0", "y"), ""),
    "scale of two axes": ("rknn", layer("Scale", "scale_param { num_axes: 2 bias_term: true }", "x0", "y"), "axes behind several axes of factors is 1"),
    "norm and scale of rows": ("rknn", CONV + NORM + layer("Scale", "scale_param { axis: 2 bias_term: true }", "a", "y", "c"), "axis behind a BatchNorm is 2"),
    "factors of rows": ("tpu-mlir", layer("Scale", "scale_param { axis: 2 }", "x0", "y"), "the order of the factors is those of axes 2; tpu-mlir"),
    "factors of channels": ("tpu-mlir", FLAT + layer("Scale", "scale_param { num_axes: -1 }", "f", "y"), ""),
    "output beside another top": ("rknn", layer("Slice", "", "x0", "z a") + POINT, "tops that no layer reads beside others is 1; rknn-toolkit2 drops such"),
    "outputs that no layer reads": ("rknn", layer("Slice", "", "x0", "z y"), ""),
    "top that is read": ("rknn", layer("Slice", "", "x0", "z a") + POINT + layer("ReLU", "", "z", "z", "r"), ""),
    "weights of one value": ("tpu-mlir", FLAT.replace(": 5", ": 1") + layer("InnerProduct", "inner_product_param { num_output: 5 }", "f", "y"),
                             "the number of values that each output weighs is 1"),
    "joined behind the last axis": ("rknn", LAST + layer("ReLU", "", "z", "a", "r") + layer("Flatten", "", "a", "y"), "that are joined is 24000"),
    "joined in part": ("rknn", LAST + layer("Flatten", "flatten_param { axis: 2 }", "z", "y"), ""),
    "end pad": ("rknn", layer("Pooling", "pooling_param { kernel_size: 3 stride: 3 pad: 1 }", "x0", "y"), "behind the image is 3 for a kernel of 3"),
    "smaller end pad": ("rknn", layer("Pooling", "pooling_param { kernel_size: 4 stride: 3 }", "x0", "y"), ""),
    "softmax of the batch": ("rknn", layer("InnerProduct", "inner_product_param { num_output: 5 }", "x0", "f", "f") + IMAGES
                             + layer("Softmax", "softmax_param { axis: 0 }", "z", "y"), "of a Softmax along axis 0 is 1; rknn-toolkit2 computes it"),
    "softmax of the batch of images": ("rknn", layer("Softmax", "softmax_param { axis: 0 }", "x0", "y"), ""),
    "few are joined": ("rknn", LAST.replace("500", "5") + layer("Flatten", "", "z", "y"), ""),
    "product of all axes": ("rknn", layer("InnerProduct", "inner_product_param { num_output: 5 axis: 0 }", "x0", "y"),
                            "axis is 0; rknn-toolkit2 takes at least 1"),
    "dropped windows": ("rknn", layer("Pooling", "pooling_param { kernel_size: 3 stride: 2 pad: 2 }", "x0", "y"), "in the pad behind the image is 1"),
    "floor has none": ("rknn", layer("Pooling", "pooling_param { kernel_size: 3 stride: 2 pad: 2 round_mode: FLOOR }", "x0", "y"), ""),
    "leaky ReLU6": ("tpu-mlir", layer("ReLU6", "relu6_param { negative_slope: 0.1 }", "x0", "y"), "negative_slope is 0.1; tpu-mlir ignores it"),
}  # fmt: skip
WITHOUT_FORM = ("padded whole image", "dropped windows", "reader of ArgMax", "end pad")


INPUT = 'layer { name: "x0" type: "Input" top: "x0" input_param { shape { dim: [2, 4, 6, 6] } } }\n'


@pytest.mark.quick
@pytest.mark.parametrize("name", LIMITS)
def test_lint_tells_the_limit(tmp_path: Path, name: str) -> None:
    target, text, fact = LIMITS[name]
    (tmp_path / "net.prototxt").write_text(INPUT + text)
    found = [each for each in lint(str(tmp_path / "net.prototxt"), target=read_table(target)) if each.rule == "target"]
    assert len(found) == bool(fact)
    remedy = "--cut-at" if name in WITHOUT_FORM else f"--target={target}"
    assert not fact or (fact in found[0].fact and remedy in found[0].fix)


@pytest.mark.parametrize("name", [name for name, (_, _, fact) in LIMITS.items() if fact and name not in WITHOUT_FORM])
def test_convert_avoids_the_limit(tmp_path: Path, device: Any, name: str) -> None:
    target, text, _ = LIMITS[name]
    check(tmp_path, parse(INPUT + text, proto.NetParameter), target, device)
