"""Folding in random Caffe nets: norms of all kinds behind and before products, in place, in branches, with shared weights, groups, dilation and padding."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.convert.test_caffe_net import layer
from tests.convert.test_caffe_rewrite import check, foldable, of, types
from tests.tiers import rest_is_long

pytestmark = pytest.mark.unoptimised

SIDE = 9


class Draw:
    """A random net. `values`: blobs of N x C x H x W that later layers may read, with the channels and the side of each."""

    def __init__(self, seed: int) -> None:
        self.rng, self.lines, self.count = np.random.default_rng(seed), list[str](), 0
        self.lines.append(f'layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ dim: 2 dim: 4 dim: {SIDE} dim: {SIDE} }} }} }}')
        self.values: list[tuple[str, int, int]] = [("data", 4, SIDE)]
        self.read = {"data"}  # blobs that a layer reads, and cannot be replaced, as Caffe wants it

    def net(self, steps: int) -> str:
        kinds = (self.convolution, self.convolution, self.convolution, self.deconvolution, self.norm, self.norm, self.activation, self.join, self.twins,
                 self.pooling)
        for _ in range(steps):
            kinds[self.rng.integers(len(kinds))]()
        self.ends()
        return "\n".join(self.lines)

    def add(self, kind: str, bottom: str, more: str = "", in_place: bool = False) -> str:
        self.count += 1
        name = f"{kind.lower()}{self.count}"
        top = bottom if in_place else name
        self.read.update([] if in_place else bottom.split())
        self.lines.append(layer(name, kind, bottom, top, more))
        return top

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def value(self) -> tuple[str, int, int]:
        return self.values[self.rng.integers(max(0, len(self.values) - 3), len(self.values))]

    def put(self, value: str, channels: int, side: int, in_place: bool = False) -> None:
        if in_place:
            self.values = [each for each in self.values if each[0] != value]
        self.values.append((value, channels, side))

    def convolution(self, params: str = "", of: tuple[str, int, int] | None = None) -> None:
        x, channels, side = of or self.value()
        kernel = int(self.rng.choice([1, 3] if side >= 5 else [1]))
        dilation = 2 if kernel == 3 and side >= 7 and self.chance(0.3) else 1
        pad = int(self.rng.integers(0, 2)) if kernel == 3 else 0
        stride = 2 if side >= 7 and dilation == 1 and self.chance(0.3) else 1
        group, outputs = int(self.rng.choice([each for each in (1, 2, 4) if channels % each == 0])), int(self.rng.choice([4, 8]))
        fields = f"num_output: {outputs} kernel_size: {kernel} pad: {pad} stride: {stride} dilation: {dilation} group: {group}"
        bias = "bias_term: false" * self.chance(0.4)
        y = self.add("Convolution", x, f"convolution_param {{ {fields} {bias} }} {params}")
        self.put(y, outputs, (side + 2 * pad - (dilation * (kernel - 1) + 1)) // stride + 1)
        self.maybe_norms()

    def deconvolution(self) -> None:
        x, channels, side = self.value()
        kernel, stride = (1, 1) if self.chance(0.4) or side > 6 else (2, 2)
        group = int(self.rng.choice([each for each in (1, 2, 4) if channels % each == 0]))
        y = self.add("Deconvolution", x, f"convolution_param {{ num_output: 4 kernel_size: {kernel} stride: {stride} group: {group} }}")
        self.put(y, 4, stride * (side - 1) + kernel)
        self.maybe_norms()

    def maybe_norms(self) -> None:
        for _ in range(self.rng.integers(0, 3)):
            self.norm(self.values[-1])

    def norm(self, of: tuple[str, int, int] | None = None) -> None:
        x, channels, side = of or self.value()
        kind, more = NORMS[self.rng.integers(len(NORMS))]
        in_place = x not in self.read and self.chance(0.5)
        self.put(self.add(kind, x, more, in_place), channels, side, in_place)

    def activation(self) -> None:
        x, channels, side = self.value()
        in_place = x not in self.read and self.chance(0.5)
        self.put(self.add(str(self.rng.choice(["ReLU", "TanH", "Dropout"])), x, "", in_place), channels, side, in_place)

    def pooling(self) -> None:
        x, channels, side = self.value()
        kernel = int(self.rng.integers(1, min(side, 3) + 1))
        pad = int(self.rng.integers(0, 2)) if kernel == 3 else 0
        fields = f"pool: {self.rng.choice(['MAX', 'AVE'])} kernel_size: {kernel} stride: {min(kernel, 2)} pad: {pad}"
        side = -(-(side + 2 * pad - kernel) // min(kernel, 2)) + 1
        y = self.add("Pooling", x, f"pooling_param {{ {fields} }}")
        self.put(y, channels, side - (pad > 0 and (side - 1) * min(kernel, 2) >= self.size(x) + pad))
        self.maybe_norms()

    def size(self, value: str) -> int:
        return next(side for name, _, side in self.values if name == value)

    def join(self) -> None:
        """A sum or a Concat of two values of one size."""
        pairs = [(a, b) for a in self.values for b in self.values if a[0] != b[0] and a[2] == b[2]]
        if pairs:
            (a, channels, side), (b, more, _) = pairs[self.rng.integers(len(pairs))]
            if channels == more and self.chance(0.5):
                coefficients = "eltwise_param { coeff: 0.5 coeff: -2 }" * self.chance(0.5)
                self.put(self.add("Eltwise", f"{a} {b}", coefficients), channels, side)
                self.maybe_norms()
            elif channels + more <= 16:
                self.put(self.add("Concat", f"{a} {b}"), channels + more, side)
                self.maybe_norms()

    def twins(self) -> None:
        """Two convolutions with the same weights, whose norms may share theirs too."""
        alike = [(a, b) for a in self.values for b in self.values if a[1:] == b[1:]]
        pair, self.count = alike[self.rng.integers(len(alike))], self.count + 1
        weights = f'param {{ name: "w{self.count}" }} param {{ name: "b{self.count}" }}'
        norm = " ".join(f'param {{ name: "n{self.count}.{index}" }}' for index in range(3)) if self.chance(0.7) else ""
        normed = self.chance(0.8)
        for x, _, side in pair:
            y = self.add("Convolution", x, f"convolution_param {{ num_output: 4 kernel_size: 1 }} {weights}")
            if normed:
                y = self.add("BatchNorm", y, norm, in_place=self.chance(0.5))
            self.put(y, 4, side)

    def ends(self) -> None:
        """Products of all that the last value has, with views between."""
        x, channels, side = self.values[-1]
        if self.chance(0.6):
            x = self.add("Scale", x, "scale_param { bias_term: true }")
        if self.chance(0.4):
            x = self.add("Reshape", x, f"reshape_param {{ shape {{ dim: 0 dim: {channels} dim: {side * side} }} }}")
        if self.chance(0.5):
            x = self.add("Flatten", x)
        y = self.add("InnerProduct", x, f"inner_product_param {{ num_output: 6 transpose: {'true' if self.chance(0.3) else 'false'} }}")
        y = self.add("BatchNorm", y) if self.chance(0.5) else y
        if self.chance(0.4):
            y = self.add("Reshape", y, "reshape_param { shape { dim: 0 dim: 3 dim: 2 } }")
            y = self.add("Scale", y, "scale_param { bias_term: true }")
        self.add("InnerProduct", y, "inner_product_param { num_output: 3 bias_term: false }")


NORMS = (
    ("BatchNorm", ""), ("BatchNorm", "batch_norm_param { scale_bias: true }"), ("BatchNorm", "batch_norm_param { use_weight_bias: true relu: true }"),
    ("BN", "bn_param { momentum: 0.9 }"), ("BN", "bn_param { bn_mode: INFERENCE }"), ("Bias", ""), ("Power", "power_param { scale: 0.7 shift: 0.2 }"),
    ("Scale", ""), ("Scale", "scale_param { bias_term: true }"), ("Scale", "scale_param { axis: 0 num_axes: 0 }"), ("Scale", "scale_param { num_axes: 2 }"),
    ("Dropout", "dropout_param { scale_train: false }"),
)  # fmt: skip


@pytest.mark.parametrize("seed", rest_is_long(range(60), 8))
def test_random_nets(seed: int, device: Any) -> None:
    made = of(Draw(seed).net(10), fold=True)
    assert foldable(made.net) == []
    check(made, device)


def test_random_nets_have_all_places() -> None:
    """The draws fold before and behind products, and leave norms that cannot be folded."""
    made = [of(Draw(seed).net(10), fold=True) for seed in range(20)]
    assert sum(each.folded for each in made) > 60 and sum(each.modern for each in made) > 20
    left = {each.type for one in made for each in one.net.layers}
    assert {"Scale", "Convolution", "Deconvolution", "InnerProduct"} <= left and "BN" not in left


INPUT = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 4 dim: 9 dim: 9 } } }\n'


def conv(name: str, more: str = "") -> str:
    return layer(name, "Convolution", "data", name, f"convolution_param {{ num_output: 4 kernel_size: 3 {more} }}")


def power(bottom: str, scale: float, shift: float) -> str:
    return layer("norm", "Power", bottom, "y", f"power_param {{ scale: {scale} shift: {shift} }}")


MAX, AVE, PADDED = ("pooling_param { pool: MAX kernel_size: 3 stride: 2 pad: 1 }", "pooling_param { pool: AVE kernel_size: 2 stride: 2 }",
                    "pooling_param { pool: AVE kernel_size: 3 pad: 1 }")  # fmt: skip
TWO = conv("a") + conv("b", "bias_term: false")
THROUGH = {  # layers between products and a norm, and whether the norm is folded
    "max": (conv("a") + layer("p", "Pooling", "a", "p", MAX) + power("p", 0.5, 2), True),
    "max of a negative": (conv("a") + layer("p", "Pooling", "a", "p", MAX) + power("p", -0.5, 2), False),
    "average": (conv("a") + layer("p", "Pooling", "a", "p", AVE) + power("p", -0.5, 2), True),
    "average with padding": (conv("a") + layer("p", "Pooling", "a", "p", PADDED) + power("p", -0.5, 0), True),
    "average with padding and a shift": (conv("a") + layer("p", "Pooling", "a", "p", PADDED) + power("p", -0.5, 1), False),
    "average of the image": (conv("a") + layer("p", "Pooling", "a", "p", "pooling_param { pool: AVE global_pooling: true }") + power("p", 3, 1), True),
    "batch norm": (conv("a") + layer("p", "Pooling", "a", "p", MAX) + layer("n", "BatchNorm", "p", "p") + layer("s", "ReLU", "p", "y"), True),
    "concat": (TWO + layer("c", "Concat", "a b", "c") + layer("n", "BatchNorm", "c", "c") + layer("s", "Scale", "c", "c"), True),
    "concat of one more reader": (TWO + layer("c", "Concat", "a b", "c") + layer("n", "BatchNorm", "c", "y") + layer("t", "TanH", "b", "t"), False),
    "concat of the input": (conv("a", "pad: 1") + layer("c", "Concat", "a data", "c") + layer("n", "BatchNorm", "c", "y"), False),
    "concat of rows": (TWO + layer("c", "Concat", "a b", "c", "concat_param { axis: 2 }") + power("c", 2, 1), True),
    "sum": (TWO + layer("c", "Eltwise", "a b", "c") + layer("n", "BatchNorm", "c", "y"), True),
    "sum with coefficients": (TWO + layer("c", "Eltwise", "a b", "c", "eltwise_param { coeff: 0 coeff: -2 }") + power("c", 2, 1), True),
    "product of two": (TWO + layer("c", "Eltwise", "a b", "c", "eltwise_param { operation: PROD }") + power("c", 2, 1), False),
    "relu": (conv("a") + layer("r", "ReLU", "a", "a") + power("a", 2, 0), True),
    "relu and a shift": (conv("a") + layer("r", "ReLU", "a", "a") + power("a", 2, 1), False),
    "all": (TWO + layer("c", "Concat", "a b", "c") + layer("p", "Pooling", "c", "p", MAX) + layer("f", "Flatten", "p", "f") + power("f", 2, 1), True),
}  # fmt: skip


@pytest.mark.parametrize("name", THROUGH)
def test_norms_go_through_other_layers(name: str, device: Any) -> None:
    text, folds = THROUGH[name]
    made = of(INPUT + text, fold=True)
    assert ("Power" in types(made) or "BatchNorm" in types(made)) is not folds and "Scale" not in types(made)
    check(made, device)
