"""Each ONNX operator with a rule, in every form that the rules distinguish: ocaffe's net compared with onnxruntime."""
from __future__ import annotations

import collections
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import ocaffe
from ocaffe import log
from ocaffe.convert.import_model import convert
from ocaffe.convert.importer.rules import rules

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

pytestmark = pytest.mark.unoptimised


class Family(NamedTuple):
    """Statements in ONNX's text form on x and z (2 x 4 x 6 x 6), v (2 x 5), L (2 x 4 x 10) and weights.

    Every y is an output. `layers` are the types that the net must have.
    """

    text: str
    opset: int = 17
    weights: dict[str, Any] = {}
    layers: list[str] | None = None
    shapes: dict[str, tuple[int, ...]] = {}


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def grid(shape: tuple[int, ...]) -> np.ndarray:
    """Return the place of each value of an array of this shape, along all its axes."""
    return np.moveaxis(np.indices(shape), 0, -1)


NUMBERS = {f"c{value}".replace(".", "_").replace("-", "m"): np.float32(value)
           for value in (0, 0.5, 1, 2, 3, 6, -1, 1.41421, 0.70710678, 0.044715, 0.7978845, 0.16666667, 20)}  # fmt: skip
FAMILIES = {
    "activations": Family("""
        y1 = Relu(x) y2 = LeakyRelu<alpha=0.2>(x) y3 = Elu(x) y4 = Sigmoid(x) y5 = Tanh(x) y6 = Abs(x) y7 = Softplus(x) y8 = Exp(x) a = Abs(x)
        b = Add(a, c1) y9 = Log(b) y10 = HardSigmoid(x) y11 = HardSwish(x) y12 = Mish(x) y13 = Neg(x) y14 = Sqrt(b) y15 = Reciprocal(b) y16 = Selu(x)
        y17 = PRelu(x, slope) y18 = PRelu(x, slopes) y19 = Clip(x, c0, c6) y20 = Clip(x, , c0_5) y21 = Clip(x, c0) y22 = Clip(x, c0, c2)
        y23 = Max(x, c0) y24 = Min(x, c0_5) y25 = Identity(x) y26 = Dropout(x, c0_5) y27 = Pow(b, c0_5) y28 = Celu<alpha=2.0>(x) o = Mul(x, c1) y29 = Relu(o)
        """, 18, NUMBERS | {"slope": np.full(1, 0.3, np.float32), "slopes": np.abs(draw(4, 1, 1))}),
    "patterns": Family("""
        a1 = Add(x, c3) a2 = Clip(a1, c0, c6) a3 = Mul(x, a2) y1 = Div(a3, c6)
        b1 = Add(c3, x) b2 = Clip(b1, c0, c6) b3 = Div(b2, c6) y2 = Mul(b3, x)
        d1 = Add(x, c3) d2 = Clip(d1, c0, c6) y3 = Mul(d2, c0_16666667)
        y4 = HardSigmoid<alpha=0.16666667, beta=0.5>(z) e1 = HardSigmoid<alpha=0.16666667, beta=0.5>(x) y5 = Mul(x, e1)
        f1 = Sigmoid(x) y6 = Mul(x, f1)
        g1 = Softplus(x) g2 = Tanh(g1) y7 = Mul(x, g2)
        h1 = Div(x, c1_41421) h2 = Erf(h1) h3 = Add(h2, c1) h4 = Mul(x, h3) y8 = Mul(h4, c0_5)
        i1 = Mul(x, c0_70710678) i2 = Erf(i1) i3 = Add(i2, c1) i4 = Mul(x, c0_5) y9 = Mul(i4, i3)
        j1 = Pow(x, c3) j2 = Mul(j1, c0_044715) j3 = Add(x, j2) j4 = Mul(j3, c0_7978845) j5 = Tanh(j4) j6 = Add(j5, c1) j7 = Mul(x, j6) y10 = Mul(j7, c0_5)
        k1 = Max(x, c0) y11 = Min(k1, c6)
        l1 = Reshape(x, split) l2 = Transpose<perm=[0, 2, 1, 3, 4]>(l1) y12 = Reshape(l2, join)
        o1 = Greater(x, c20) o2 = Softplus(x) y13 = Where(o1, x, o2)
        """, 17, NUMBERS | {"split": ints(2, 2, 2, 6, 6), "join": ints(2, 4, 6, 6)},
        ["HardSwish", "HardSwish", "HardSigmoid", "HardSigmoid", "HardSwish", "Swish", "Mish", "Gelu", "Gelu", "Gelu", "ReLU6", "ShuffleChannel",
         "BNLL"]),
    "arithmetic": Family("""
        y1 = Add(x, z) y2 = Sub(x, z) y3 = Mul(x, z) a = Abs(z) d = Add(a, c1) y4 = Div(x, d) y5 = Add(x, c2) y6 = Sub(c2, x) y7 = Sub(x, c2)
        y8 = Mul(c2, x)
        y9 = Div(x, c2) y10 = Div(c2, d) y11 = Mul(x, channels) y12 = Add(x, channels) y13 = Sub(x, channels) y14 = Sub(channels, x) y15 = Div(x, channels)
        y16 = Div(channels, d) y17 = Add(x, row) y18 = Mul(x, plane) m = GlobalAveragePool(z) y19 = Mul(x, m) y20 = Add(m, x) y21 = Sub(x, m)
        y22 = Sub(m, x)
        one = ReduceMean<axes=[1]>(z) y23 = Mul(x, one) y24 = Mul(x, x) y25 = Add(x, x) y26 = Max(x, z) y27 = Min(x, z, one) y28 = Sum(x, z, one)
        y29 = Mean(x, z) y30 = Pow(x, c2) n = ReduceMean<axes=[1, 2, 3]>(z) y31 = Mul(n, x) y32 = Add(m, one)
        """, 13, NUMBERS | {"channels": 1 + np.abs(draw(4, 1, 1)), "row": draw(6), "plane": draw(1, 1, 6, 6)}),
    "convolutions": Family("""
        y1 = Conv<pads=[1, 1, 1, 1]>(x, w3, bias) y2 = Conv<pads=[0, 0, 1, 1], strides=[2, 2]>(x, w3)
        y3 = Conv<auto_pad="SAME_UPPER", strides=[2, 2]>(x, w3)
        y4 = Conv<auto_pad="SAME_LOWER", strides=[2, 2]>(x, w3) y5 = Conv<dilations=[2, 1], pads=[2, 0, 2, 0], strides=[1, 2]>(x, w3)
        y6 = Conv<group=4>(x, depthwise) y7 = Conv<group=2, kernel_shape=[1, 1]>(x, grouped) p = Pad(x, pads, c0) y8 = Conv<strides=[2, 2]>(p, w3)
        q = Pad(x, even, c0) y9 = Conv(q, w3) t1 = Reshape(x, join) r = Identity(t1) y10 = Conv(r, w1)
        y11 = ConvTranspose<strides=[2, 2], pads=[1, 1, 1, 1]>(x, u3, bias)
        y12 = ConvTranspose<strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]>(x, u3, bias)
        y13 = ConvTranspose<strides=[2, 2], pads=[0, 1, 1, 0], group=1>(x, u3) y14 = ConvTranspose<strides=[3, 3], output_padding=[1, 2]>(x, u2)
        y15 = ConvTranspose<strides=[2, 2], auto_pad="SAME_UPPER">(x, u3) y16 = ConvTranspose<strides=[2, 2], output_shape=[12, 12]>(x, u3)
        """, 17, {
            "w3": draw(3, 4, 3, 3), "bias": draw(3), "depthwise": draw(4, 1, 3, 3), "grouped": draw(6, 2, 1, 1), "pads": ints(0, 0, 0, 1, 0, 0, 1, 0),
            "even": ints(0, 0, 1, 1, 0, 0, 1, 1), "c0": np.float32(0), "w1": draw(2, 4, 1), "join": ints(2, 4, 36),
            "u3": draw(4, 3, 3, 3), "u2": draw(4, 2, 2, 2),
        }),
    "products": Family("""
        y1 = Gemm<transB=1>(v, w, bias) y2 = Gemm<alpha=0.5, beta=2.0>(v, wt, bias) y3 = MatMul(v, wt) m = MatMul(v, wt) y4 = Add(m, bias)
        y5 = MatMul(x, columns) n = MatMul(x, columns) y6 = Add(n, short) y7 = Gemm(v, wt, one) o = MatMul(v, wt) y8 = Add(o, more)
        """, 13, {"more": draw(1, 1, 3), "w": draw(3, 5), "wt": draw(5, 3), "bias": draw(3), "columns": draw(6, 2), "short": draw(2), "one": draw(1)}),
    "computed products": Family("""
        t = Transpose<perm=[0, 1, 3, 2]>(z) y1 = MatMul(x, t) y2 = MatMul(x, z) y3 = MatMul(left, x) y4 = MatMul(x, shared) y5 = MatMul(x, vector)
        y6 = MatMul(vector, x) s = Mul(y1, c0_5) p = Softmax(s) y7 = MatMul(p, z) y8 = Einsum<equation="bchw,bcwv->bchv">(x, z)
        y9 = Einsum<equation="b c h w, b c v w -> b c h v">(x, z) y10 = Einsum<equation="bchw,bcvw->bhvc">(x, z) y11 = Einsum<equation="bchw,bdhw->bcd">(x, z)
        y12 = Einsum<equation="bchw,dv->vbchwd">(x, v) y13 = Einsum<equation="bchw,wo->bcho">(x, shared)
        """, 17, NUMBERS | {"left": draw(3, 6), "shared": draw(6, 5), "vector": draw(6)}),
    "poolings": Family("""
        y1 = MaxPool<kernel_shape=[3, 3], strides=[2, 2]>(x) y2 = MaxPool<kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1>(x)
        y3 = MaxPool<kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]>(x) y4 = MaxPool<kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER">(x)
        y5 = MaxPool<kernel_shape=[2, 2], auto_pad="SAME_UPPER">(x) y6 = MaxPool<kernel_shape=[2, 3], strides=[1, 2], pads=[1, 0, 0, 1]>(x)
        y7 = AveragePool<kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]>(x)
        y8 = AveragePool<kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1>(x)
        y9 = AveragePool<kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1>(x)
        y10 = AveragePool<kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER">(x)
        y11 = AveragePool<kernel_shape=[2, 2], pads=[0, 0, 1, 1], count_include_pad=1>(x) y12 = AveragePool<kernel_shape=[1, 1]>(x)
        y13 = GlobalAveragePool(x) y14 = GlobalMaxPool(x) y15 = ReduceMean<axes=[2, 3]>(x) y16 = ReduceMean<axes=[-1, -2], keepdims=0>(x)
        y17 = ReduceMean<axes=[1]>(x) y18 = ReduceMean<axes=[3], keepdims=0>(x) y19 = ReduceMax<axes=[2, 3]>(x) y20 = ReduceL1<axes=[2]>(x)
        y21 = ReduceSumSquare<axes=[1, 2, 3]>(x) y22 = MaxPool<kernel_shape=[2, 2], dilations=[2, 2]>(x)
        y23 = MaxPool<kernel_shape=[2, 2], strides=[3, 3]>(x)
        """),
    "normalizations": Family("""
        y1 = BatchNormalization<epsilon=0.001, momentum=0.9>(x, s, b, m, s) y2 = LRN<size=3, alpha=0.1, beta=0.5, bias=2.0>(x) y3 = Softmax<axis=1>(x)
        y4 = Softmax(x) y5 = LogSoftmax<axis=1>(v) y6 = LpNormalization<axis=1>(x) i = ArgMax<axis=1>(x) y7 = Cast<to=1>(i)
        i1 = ArgMax<axis=2>(x) i2 = Cast<to=1>(i1) y13 = Add(i2, c2)
        y8 = BatchNormalization(v, t, t, t, t)
        y9 = InstanceNormalization<epsilon=0.1>(x, s, b) y10 = LayerNormalization<axis=-1>(x, row, line) y11 = LayerNormalization<axis=2>(x, plane)
        m1 = ReduceMean<axes=[-1]>(x) m2 = Sub(x, m1) m3 = Pow(m2, c2) m4 = ReduceMean<axes=[-1]>(m3) m5 = Add(m4, c1) m6 = Sqrt(m5) y12 = Div(m2, m6)
        """, 17, {"s": np.abs(draw(4)) + 1, "b": draw(4), "m": draw(4, seed=1), "t": np.abs(draw(5)) + 1,
            "row": draw(6), "line": draw(6, seed=1), "plane": draw(6, 6), "c1": np.float32(0.1), "c2": np.float32(2)}),
    "new": Family("y1 = GroupNormalization<num_groups=2>(x, s, b)", 21, {"s": draw(4), "b": draw(4, seed=1)}),
    "root mean squares": Family("""
        a1 = Pow(x, c2) a2 = ReduceMean(a1, last) a3 = Add(a2, c0_1) a4 = Sqrt(a3) a5 = Reciprocal(a4) a6 = Mul(x, a5) y1 = Mul(s, a6)
        b1 = Mul(x, x) b2 = ReduceMean(b1, image) b3 = Add(b2, c0_1) b4 = Sqrt(b3) y2 = Div(x, b4) y4 = Div(z, b4)
        d1 = Pow(x, c2) d2 = ReduceMean(d1, middle) d3 = Add(d2, c0_1) d4 = Sqrt(d3) y3 = Div(x, d4)
        e1 = Mul(z, z) e2 = ReduceMean(e1, last) e3 = Add(c0_1, e2) e4 = Sqrt(e3) e5 = Div(c1, e4) y5 = Mul(e5, z)
        """, 18, NUMBERS | {"c0_1": np.float32(0.1), "last": ints(-1), "image": ints(2, 3), "middle": ints(2), "s": draw(6)}),
    "opset 23": Family("y1 = RMSNormalization<axis=2>(x, s) y2 = RMSNormalization<epsilon=0.1>(z, t)", 23, {"s": draw(6, 6), "t": draw(6)}),
    "old softmax": Family("y1 = Softmax<axis=1>(x) y2 = LogSoftmax<axis=2>(x) y3 = Softmax(v)", 11),
    "shapes": Family("""
        y1 = Flatten(x) y2 = Reshape(x, halves) y3 = Reshape(x, open) g = GlobalAveragePool(x) y4 = Squeeze(g, two) y5 = Unsqueeze(v, two)
        y6 = Transpose<perm=[0, 2, 3, 1]>(x)
        y7 = Concat<axis=1>(x, z) y8 = Concat<axis=-1>(x, z) y9, y10 = Split<axis=1>(x, sizes) y11, y12 = Split<axis=3>(x) y13 = Slice(x, s1, s3, a1)
        y14 = Slice(x, s1, s6, a3, step) s = Shape(x) n = Gather(s, i0) y15 = Gather<axis=1>(x, i1) y16 = Gather<axis=1>(x, i210) y17 = Tile(x, tiles)
        one = ReduceMean<axes=[1]>(x) y18 = Expand(one, s) y19 = DepthToSpace<blocksize=2>(x) y20 = DepthToSpace<blocksize=2, mode="CRD">(x)
        y21 = SpaceToDepth<blocksize=2>(x)
        y22 = Pad(x, pads, c) y23 = Pad<mode="reflect">(x, pads) y24 = Pad<mode="edge">(x, pads) y25 = Pad(x, cut, c) y26 = Slice(x, sm2, s6, a3)
        h1 = Slice(x, s0, s1, a1) h2 = Slice(x, s1, s6, a1) y27 = Add(h1, z) y28 = Add(h1, one) y29 = Concat<axis=1>(h2, h1) n1 = Unsqueeze(n, i0v)
        t = Concat<axis=0>(n1, m1) y30 = Reshape(x, t) y31 = Transpose(v) y32 = CastLike(x, z)
        f1 = Greater(n, i0) y35 = If (f1) <then_branch = g1 () => (float[2, 4, 6, 6] f2) { f2 = Relu(x) },
        else_branch = g2 () => (float[2, 4, 6, 6] f3) { f3 = Neg(x) }>
        q = SplitToSequence<axis=1>(x, i3) y33 = SequenceAt(q, i0) y34 = SequenceAt(q, one1)
        """, 17, {
            "halves": ints(2, 2, 2, 36), "open": ints(0, -1, 6), "two": ints(2), "sizes": ints(1, 3), "s1": ints(1), "s3": ints(3), "a1": ints(1),
            "s0": ints(0), "s6": ints(100), "a3": ints(3), "step": ints(2), "i0": np.int64(0), "i1": np.int64(-1), "i3": np.int64(3),
            "one1": np.int64(1), "i210": ints(3, 1, 0),
            "tiles": ints(1, 2, 1, 3), "pads": ints(0, 0, 1, 0, 0, 0, 0, 2), "c": np.float32(1.5), "cut": ints(0, 0, -1, 2, 0, 0, 0, -1), "sm2": ints(-2),
            "i0v": ints(0), "m1": ints(-1),
        }),
    "resizing": Family("""
        y1 = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(x, , twice) y2 = Resize<mode="nearest">(x, , thrice)
        y3 = Resize<mode="linear", coordinate_transformation_mode="align_corners">(x, , , size) y4 = Resize<mode="linear">(x, , twice)
        y5 = Resize<mode="linear", coordinate_transformation_mode="pytorch_half_pixel">(x, , , size) y6 = Resize<mode="linear">(x, , , less)
        y7 = Resize<mode="cubic">(x, , , size) y8 = Resize<mode="nearest">(x, , , less) y9 = Resize<mode="nearest">(x, , , same)
        y10 = Resize<mode="linear", coordinate_transformation_mode="asymmetric">(x, , twice)
        """, 17, {"twice": np.array([1, 1, 2, 2], np.float32), "thrice": np.array([1, 1, 3, 2], np.float32), "size": ints(2, 4, 13, 11),
                  "less": ints(2, 4, 4, 5), "same": ints(2, 4, 6, 6)}),
    "windows that begin behind the image": Family("""
        y1 = MaxPool<kernel_shape=[2, 1], strides=[2, 3], pads=[1, 0, 1, 0], ceil_mode=1>(x)
        y2 = AveragePool<kernel_shape=[2, 2], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1>(x)
        y3 = AveragePool<kernel_shape=[1, 3], strides=[3, 3], pads=[0, 2, 0, 1], ceil_mode=1, count_include_pad=1>(x)
        """, 17),
    "means that Caffe does not count so": Family("""
        y1 = AveragePool<kernel_shape=[2, 2], auto_pad="SAME_UPPER">(x) y2 = AveragePool<kernel_shape=[4, 2], strides=[2, 1], pads=[3, 1, 0, 1]>(x)
        y3 = AveragePool<kernel_shape=[3, 3], strides=[2, 2], pads=[2, 2, 0, 1]>(x)
        """, 17, {}, ["Pad", "Pooling", "Scale"] * 3),
    "one axis": Family("""
        y1 = MaxPool<kernel_shape=[3], strides=[2]>(L) y2 = MaxPool<kernel_shape=[3], strides=[2], ceil_mode=1>(L)
        y3 = MaxPool<kernel_shape=[3], dilations=[2], pads=[1, 2]>(L) y4 = MaxPool<kernel_shape=[3], auto_pad="SAME_UPPER", strides=[2]>(L)
        y5 = AveragePool<kernel_shape=[3], strides=[2], ceil_mode=1>(L) y6 = AveragePool<kernel_shape=[3], strides=[2], pads=[1, 1]>(L)
        y7 = AveragePool<kernel_shape=[3], strides=[2], pads=[1, 1], count_include_pad=1>(L)
        y8 = AveragePool<kernel_shape=[4], strides=[3], pads=[2, 0]>(L) y9 = AveragePool<kernel_shape=[4], strides=[3], pads=[0, 2], count_include_pad=1>(L)
        y10 = AveragePool<kernel_shape=[2], auto_pad="SAME_LOWER">(L) y11 = AveragePool<kernel_shape=[1]>(L) y12 = MaxPool<kernel_shape=[1], strides=[2]>(L)
        y13 = GlobalMaxPool(L) y14 = GlobalAveragePool(L) y15 = ReduceMean<axes=[2]>(L) y16 = ReduceMax<axes=[-1], keepdims=0>(L)
        y17 = Conv<pads=[1, 0], strides=[2]>(L, w) y18 = ConvTranspose<strides=[2], pads=[1, 0], output_padding=[1]>(L, u)
        y19 = Resize<mode="nearest">(L, , twice) y20 = Resize<mode="linear", coordinate_transformation_mode="align_corners">(L, , , size)
        y21 = Resize<mode="nearest">(L, , same) y22 = MaxPool<kernel_shape=[1, 3], strides=[1, 2]>(x) y23 = AveragePool<kernel_shape=[2, 1]>(x)
        y24 = AveragePool<kernel_shape=[1, 3], pads=[0, 1, 0, 1]>(x) y25 = MaxPool<kernel_shape=[5, 1], auto_pad="SAME_UPPER">(x)
        """, 17, {
            "w": draw(3, 4, 3), "u": draw(4, 3, 3), "twice": np.array([1, 1, 2], np.float32), "size": ints(2, 4, 23), "same": np.ones(3, np.float32),
        }),
    "reductions": Family("""
        y1 = ReduceMax(x, a1) y2 = ReduceMax<keepdims=0>(x, a3) y3 = ReduceMin(x, a23) y4 = ReduceMin<keepdims=0>(x, a13) y5 = ReduceL2(x, a1)
        y6 = ReduceL2<keepdims=0>(x, a1) y7 = ReduceMax(x, a0) y8 = ReduceMean(x, a023) y9 = ReduceMean<noop_with_empty_axes=1>(x) y10 = ReduceMax(x)
        """, 18, {"a0": ints(0), "a1": ints(1), "a3": ints(-1), "a23": ints(2, 3), "a13": ints(1, 3), "a023": ints(0, 2, 3)}),
    "products and logarithms of sums": Family("""
        a = Abs(x) y1 = ReduceProd(x, a1) y2 = ReduceProd<keepdims=0>(x, am12) y3 = ReduceProd(L) y4 = ReduceProd<keepdims=0>(L, none)
        y5 = ReduceProd<noop_with_empty_axes=1>(x) y6 = ReduceProd(x, a02) y7 = ReduceLogSum(a, a1) y8 = ReduceLogSum<keepdims=0>(a, am12)
        y9 = ReduceLogSumExp(x, a1) y10 = ReduceLogSumExp<keepdims=0>(x, am12) y11 = ReduceLogSumExp(L) b = Mul(x, c1000)
        y12 = ReduceLogSumExp<keepdims=0>(b, a02) y13 = ReduceLogSumExp<noop_with_empty_axes=1>(x) m = Where(mask, x, low)
        y14 = ReduceLogSumExp(m, am1) y15 = ReduceL1<keepdims=0>(L) y16 = ReduceSumSquare<keepdims=0>(L, am1) y17 = ReduceLogSum<keepdims=0>(a)
        """, 18, {
            "a1": ints(1), "am12": ints(-1, 2), "none": ints(), "a02": ints(0, 2), "am1": ints(-1), "c1000": np.float32(1000),
            "mask": np.tril(np.ones((6, 6), bool)), "low": np.float32(-np.inf),
        }),
    "products and logarithms of sums before opset 18": Family("""
        y1 = ReduceProd<axes=[1]>(x) y2 = ReduceProd<axes=[-1, -2], keepdims=0>(x) y3 = ReduceLogSumExp<axes=[2, 3]>(x)
        y4 = ReduceLogSumExp<axes=[-1], keepdims=0>(x) a = Abs(x) y5 = ReduceLogSum<axes=[1]>(a)
        """, 11),
    "running sums": Family("""
        y1 = CumSum(x, a1) y2 = CumSum<exclusive=1>(x, am1) y3 = CumSum<reverse=1>(L, am2) y4 = CumSum<exclusive=1, reverse=1>(x, a3)
        y5 = CumSum<exclusive=0>(v, a1v) y6 = CumSum<reverse=1>(v, a0) i = ArgMax<axis=1>(x) j = CumSum(i, a3) y7 = Cast<to=1>(j)
        """, 14, {"a0": np.int64(0), "a1": np.int64(1), "a3": np.int32(3), "am1": np.int64(-1), "am2": np.int32(-2), "a1v": ints(1)}),
    "whole numbers": Family("""
        s = Mul(x, c3) y1 = Floor(s) y2 = Ceil(s) y3 = Round(s) y4 = Sign(x) g = Round(s) h = Mul(g, c0_5) y5 = Round(h) r = Relu(x) y6 = Sign(r)
        y7 = Mod<fmod=1>(s, c0_7) y8 = Mod<fmod=1>(x, row) y9 = Mod<fmod=1>(x, z) i = ArgMax<axis=3>(x) j = Sub(i, n3) k1 = Mod(j, n3) y10 = Cast<to=1>(k1)
        k2 = Mod(j, nm3) y11 = Cast<to=1>(k2) k3 = Mod<fmod=1>(j, nm3) y12 = Cast<to=1>(k3) k4 = Mod(j, many) y13 = Cast<to=1>(k4) o = Add(i, n1)
        k5 = Mod(j, o) y14 = Cast<to=1>(k5) k6 = Mod(n3, o) y15 = Cast<to=1>(k6) y16 = Mod<fmod=1>(c3, x)
        """, 13, NUMBERS | {
            "c0_7": np.float32(0.7), "row": np.array([1, -0.5, 2, 0.1, -3, 7], np.float32), "n1": np.int64(1), "n3": np.int64(3), "nm3": np.int64(-3),
            "many": ints(2, -3, 1, 5, -7, 4),
        }),
    "quotients": Family("""
        i = ArgMax<axis=3>(x) j = Sub(i, n3) k1 = Div(i, n2) y1 = Cast<to=1>(k1) k2 = Div(j, nm2) y2 = Cast<to=1>(k2) k3 = Div(j, many) y3 = Cast<to=1>(k3)
        o = Add(i, n1) k4 = Div(j, o) y4 = Cast<to=1>(k4) k5 = Div(n7, o) y5 = Cast<to=1>(k5) k6 = Cast<to=7>(x) y6 = Cast<to=1>(k6)
        f = Div(x, c0_3) y7 = Floor(f) y8 = Ceil(f) k7 = Cast<to=6>(f) y9 = Cast<to=1>(k7) h = Div(x, cm0_3) y10 = Floor(h) y11 = Ceil(h)
        q = Div(x, z) y12 = Floor(q) y13 = Ceil(q) k8 = Cast<to=7>(q) y14 = Cast<to=1>(k8) w = Div(x, x) y15 = Floor(w) r = Div(x, row) y16 = Floor(r)
        g = Cast<to=1>(o) s = Mul(g, fortyone) t = Div(s, fortyone) y17 = Floor(t) e = Floor(f) k9 = Cast<to=7>(e) y18 = Cast<to=1>(k9)
        u = Div(c0_3, x) y19 = Floor(u) y20 = Neg(u) k10 = Cast<to=5>(z) y21 = Cast<to=1>(k10)
        """, 17, {
            "n1": np.int64(1), "n2": np.int64(2), "n3": np.int64(3), "nm2": np.int64(-2), "n7": np.int64(7), "many": ints(2, -3, 1, 5, -7, 4),
            "c0_3": np.float32(0.3), "cm0_3": np.float32(-0.3), "row": np.array([1, -0.5, 2, 0.1, -3, 7], np.float32), "fortyone": np.float32(41),
        }),
    "one hot": Family("""
        i = ArgMax<axis=3, keepdims=0>(x) y1 = OneHot(i, n6, values) y2 = OneHot<axis=1>(i, n6v, flags) y3 = OneHot<axis=0>(i, n3, values)
        j = Sub(i, n3) k = Sub(j, n1) y4 = OneHot<axis=-2>(k, n3, values) h = OneHot(i, n6, whole) y5 = Cast<to=1>(h) p, q = TopK<axis=1>(v, n2v)
        y6 = OneHot<axis=-1>(q, n5, flags)
        """, 11, {
            "n1": np.int64(1), "n2v": ints(2), "n3": np.int64(3), "n5": np.int32(5), "n6": np.int64(6), "n6v": ints(6), "whole": ints(3, -2),
            "values": np.array([-1.5, 0.1], np.float32), "flags": np.array([0, 1], np.float32),
        }),
    "parts that are replaced": Family("""
        a = Slice(x, n0, n2, n3) y1 = ScatterND(z, columns, a) b = Slice(x, n1, n3, n1) y2 = ScatterND(z, channels, b) c = Slice(x, n0, n2, n0)
        y3 = ScatterND(z, whole, c) d = Relu(b) y4 = ScatterElements<axis=1>(z, rows, d) y5 = ScatterND(z, none, nothing) y6 = ScatterND(buffer, columns, a)
        """, 16, {
            "n0": ints(0), "n1": ints(1), "n2": ints(2), "n3": ints(3), "columns": grid((2, 4, 6, 2)), "channels": grid((2, 2)) + [0, 2],
            "whole": grid((2, 4, 6, 6)), "rows": np.broadcast_to(ints(2, 3)[:, None, None], (2, 2, 6, 6)).copy(), "none": np.zeros((0, 1), np.int64),
            "nothing": np.zeros((0, 4, 6, 6), np.float32), "buffer": draw(2, 4, 6, 6, seed=2),
        }, ["Slice", "Silence", "Slice", "Silence", "Concat", "Slice", "Silence", "Slice", "Silence", "Concat", "ReLU", "Slice", "Silence", "Concat",
            "Parameter", "Slice", "Silence", "Concat", "Split", "Split"]),
    "places that are written": Family("""
        a = Slice(x, n1, n3, n1) b = Slice(a, n2, n5, n3) y1 = ScatterND(z, box, b) y2 = ScatterND(z, pairs, values) c = Slice(x, n0, n2, n2)
        y3 = ScatterElements<axis=-2>(z, rows, c) y4 = ScatterElements<axis=3>(z, mixed, x) y5 = ScatterND(z, last, one) t = Transpose<perm=[1, 0, 2, 3]>(z)
        d = Slice(t, n0, n2, n0) s = ScatterND(t, swapped, d) y6 = Transpose<perm=[1, 0, 2, 3]>(s) y7 = ScatterElements<axis=1>(v, first, w)
        """, 16, {
            "n0": ints(0), "n1": ints(1), "n2": ints(2), "n3": ints(3), "n5": ints(5), "box": grid((2, 2, 6, 3)) + [0, 1, 0, 2],
            "pairs": np.array([[0, 3], [1, -1]]), "values": draw(2, 6, 6), "rows": np.broadcast_to(ints(4, -6)[:, None], (2, 4, 2, 6)).copy(),
            "mixed": np.random.default_rng(0).permuted(np.tile(np.arange(6), (2, 4, 6, 1)), axis=-1), "last": ints(-1, -1, -1, -1), "one": np.float32(7),
            "swapped": ints(2, 0)[:, None], "first": np.array([[-1], [2]]), "w": draw(2, 1),
        }),
    "places that are combined": Family("\n".join(f"""
        y{n} = ScatterND<reduction="{way}">(x, pairs, values) y{n + 1} = ScatterElements<axis=1, reduction="{way}">(x, rows, more)
        y{n + 2} = ScatterND<reduction="{way}">(x, whole, z)
        """ for n, way in ((1, "none"), (4, "add"), (7, "mul"), (10, "max"), (13, "min"))), 18, {
            "pairs": np.array([[0, 3], [1, -1]]), "values": draw(2, 6, 6), "rows": np.broadcast_to(ints(2, 0)[:, None, None], (2, 2, 6, 6)).copy(),
            "more": draw(2, 2, 6, 6), "whole": grid((2, 4, 6, 6)),
        }),
    "scatter before opset 11": Family("y1 = Scatter<axis=2>(x, rows, more)", 10, {
        "rows": np.broadcast_to(ints(5, 2)[:, None], (2, 4, 2, 6)).copy(), "more": draw(2, 4, 2, 6),
    }),
    "corners": Family("""
        a = HardSigmoid<alpha=0.16666667, beta=0.4>(x) y1 = Mul(x, a) b = HardSigmoid<alpha=0.16666667>(x) y2 = Mul(b, x)
        y3 = ConvTranspose<strides=[2, 2], output_padding=[1, 0]>(x, u2, bias) y4 = LayerNormalization<axis=-1>(x, one)
        y5 = Flatten<axis=2>(x) y6 = Reshape(x, whole) y7, unread = Split<axis=1>(x, sizes)
        y8 = Resize<mode="nearest">(x, , fraction) t = Transpose<perm=[1, 0, 2, 3]>(x) g = GatherND(t, turned) y9 = Transpose<perm=[1, 0, 2, 3]>(g)
        """, 17, {"u2": draw(4, 3, 2, 2), "bias": draw(3), "one": draw(1), "whole": ints(-1, 36), "sizes": ints(1, 3), "turned": ints(2, 1, 0)[:, None],
                  "fraction": np.array([1, 1, 0.7, 2.6], np.float32)}),
    "constants among tensors": Family("""
        y1 = Concat<axis=1>(x, more) y2 = Max(x, channels) y3 = Min(x, z, c1) y4 = Mean(x, channels) y5 = Concat<axis=1>(more, x) y6 = Sum(x, channels, z)
        y7 = Concat<axis=0>(none, x, z) y8 = Concat<axis=0>(x, none)
        """, 17, NUMBERS | {"none": np.zeros((0, 4, 6, 6), np.float32), "more": draw(2, 1, 6, 6), "channels": draw(4, 1, 1)}),
    "steps and computed places": Family("""
        y1 = Slice(x, s0, s6, a2, two) y2 = Slice(x, m1, back, a2, m1) y3 = Slice(x, first, last, axes, steps) y4 = Slice(v, m1, back, a0, m1)
        y5 = Sin(x) y6 = Cos(x) p = ArgMax<axis=2, keepdims=0>(x) y7 = Gather(table, p) y8 = Gather(cube, p) q = ArgMax<axis=1, keepdims=1>(z)
        y9 = GatherElements<axis=1>(x, q) r = ArgMax<axis=1, keepdims=0>(v) y10 = Gather<axis=1>(x, r) y11 = Gather<axis=1>(x, many)
        t = Unsqueeze(r, a1) y12 = GatherND<batch_dims=1>(z, t) y13 = GatherElements<axis=3>(x, mixed) y14 = Gather<axis=1>(table, p)
        k = Cast<to=6>(p) y15 = Gather(table, k) y16 = GatherND(x, pairs) y17 = Gather<axis=3>(x, grid)
        """, 17, {
            "s0": ints(0), "s6": ints(6), "a2": ints(2), "two": ints(2), "m1": ints(-1), "back": ints(-100), "first": ints(-1, 5, 0), "last": ints(-9, 0, 2),
            "axes": ints(0, 3, 1), "steps": ints(-1, -2, 1), "a0": ints(0), "a1": ints(1), "table": draw(6, 7), "cube": draw(6, 2, 3),
            "many": np.arange(20) % 4, "mixed": np.array([[[[1, -2]] * 3] * 4] * 2), "pairs": np.array([[0, 3], [1, -1]]), "grid": np.array([[0, 5], [-1, 2]]),
        }),
    "choices": Family("""
        p = Greater(x, z) y1 = Where(p, x, z) q = Less(x, one) y2 = Where(q, x, low) y3 = Where(mask, x, low) y4 = Where(mask, row, x) i = IsNaN(x)
        y5 = Where(i, zero, x) r = GreaterOrEqual(x, row) s = And(p, r) t = Or(q, s) u = Not(t) y6 = Cast<to=1>(u) v1 = Equal(x, x) y7 = Where(v1, x, z)
        w = LessOrEqual(zero, x) y8 = Cast<to=1>(w) a = Xor(p, w) y9 = Cast<to=1>(a) y10 = Trilu(x, k) y11 = Trilu<upper=0>(x)
        b = Add(x, holes) c = Softmax(b) d = IsNaN(c) y12 = Where(d, zero, c)
        """, 17, {
            "one": np.float32(1), "zero": np.float32(0), "low": np.float32(-1e30), "mask": np.tril(np.ones((6, 6), bool)), "row": draw(6), "k": np.int64(1),
            "holes": np.where(np.tril(np.ones((6, 6))) > 0, 0, -np.inf).astype(np.float32),
        }),
    "equal values and truth values": Family("""
        s = Greater(x, z) f = Cast<to=1>(s) i1 = ArgMax<axis=1>(f) y1 = Cast<to=1>(i1) i2 = ArgMax<axis=3, keepdims=0, select_last_index=1>(f)
        y2 = Cast<to=1>(i2) i3 = ArgMax<axis=2, keepdims=0>(f) y3 = Cast<to=1>(i3) b = Cast<to=9>(i3) y4 = Cast<to=1>(b) n = Not(b) y5 = Cast<to=1>(n)
        r = Relu(x) c = Cast<to=9>(r) y6 = Cast<to=1>(c) d = CastLike(r, s) y7 = Where(d, x, z)
        """),
    "values at places": Family("""
        g = Reshape(z, points) y1 = GridSample(x, g) h = Tanh(g) y2 = GridSample<mode="nearest", padding_mode="border">(x, h)
        y3 = GridSample<align_corners=1, mode="bilinear">(x, h) y4 = RoiAlign<output_height=2, output_width=3, spatial_scale=0.5>(x, rois, images)
        a = Abs(v) b = Slice(a, c0, c2, c1) c = Concat<axis=1>(b, more)
        y5 = RoiAlign<output_height=2, output_width=2, sampling_ratio=2, coordinate_transformation_mode="output_half_pixel">(x, c, images)
        y6, i = TopK<axis=1>(x, three) y7 = Cast<to=1>(i) y8, unread = TopK<largest=0>(x, two) unread2, j = TopK<axis=2>(z, two) y9 = Cast<to=1>(j)
        d = Relu(x) y10, l = TopK<axis=3>(d, three) y11 = Cast<to=1>(l) y12 = MaxRoiPool<pooled_shape=[2, 3], spatial_scale=0.5>(x, regions)
        """, 17, {
            "points": ints(2, 12, 6, 2), "rois": np.array([[1, 2, 9, 8], [0, -3, 11, 7.5]], np.float32), "images": ints(1, 0), "three": ints(3), "two": ints(2),
            "regions": np.array([[1, 1, 2, 9, 8], [0, 0, 3, 11, 7]], np.float32),
            "c0": ints(0), "c1": ints(1), "c2": ints(2), "more": np.array([[4, 5], [6, 3.5]], np.float32),
        }),
    "recurrent": Family("""
        s = Reshape(x, seq) a1 = LSTM<hidden_size=3>(s, w1, r1, b1) y1 = Squeeze(a1, a1_)
        a2, h2, y2 = LSTM<hidden_size=3, direction="bidirectional">(s, w2, r2, b2) a3 = Transpose<perm=[0, 2, 1, 3]>(a2) y3 = Reshape(a3, join)
        h = ReduceMean<axes=[0]>(s) i = Slice(h, a0, a3_, a2_) y4, y5, y6 = LSTM<hidden_size=3, direction="reverse">(s, w1, r1, b1, , i, c)
        y7, y8 = LSTM<hidden_size=3, direction="bidirectional">(s, w2, r2) y9 = Relu(h2) y10, y11 = GRU<hidden_size=3>(s, gw, gr, gb, , i)
        a4 = GRU<hidden_size=3, linear_before_reset=1>(s, gw, gr, gb) y12 = Squeeze(a4, a1_)
        y13, y14 = GRU<hidden_size=3, linear_before_reset=1, direction="reverse">(s, gw, gr, gb, , zero) y15 = GRU<hidden_size=3>(s, gw, gr)
        , y16 = LSTM<hidden_size=3>(s, w1, r1) a5 = LSTM<hidden_size=3, direction="bidirectional">(s, w2, r2) a6 = Transpose(a5) y17 = Reshape(a6, other)
        """, 17, {
            "other": ints(12, 4, 6),
            "seq": ints(12, 4, 6), "a1_": ints(1), "a0": ints(0), "a3_": ints(3), "a2_": ints(2), "join": ints(0, 0, -1),
            "w1": draw(1, 12, 6), "r1": draw(1, 12, 3), "b1": draw(1, 24), "w2": draw(2, 12, 6), "r2": draw(2, 12, 3), "b2": draw(2, 24),
            "c": draw(1, 4, 3), "gw": draw(1, 9, 6), "gr": draw(1, 9, 3), "gb": draw(1, 18), "zero": np.zeros((1, 4, 3), np.float32),
        }),
    "outputs that are read": Family("""
        y1 = Relu(x) y2 = Identity(y1) y3 = Neg(y1) a = Identity(y3) y4 = Identity(a) y5 = Abs(y4)
        """),
    "half precision": Family("""
        h = Cast<to=10>(x) a = Conv(h, w) b = Clip(a, low) y1 = Cast<to=1>(b) d = Cast<to=11>(z) e = Mul(d, double) y2 = Cast<to=1>(e)
        """, 17, {"w": draw(3, 4, 1, 1).astype(np.float16), "low": np.float16(0.25), "double": np.float64(0.1)}),
    "old": Family("""
        y1 = Clip<min=0.0, max=6.0>(x) y2 = Upsample<mode="nearest">(x, twice) g = GlobalMaxPool(x) y3 = Squeeze<axes=[2, 3]>(g)
        y4 = Slice<starts=[1], ends=[3], axes=[2]>(x)
        y5 = Pad<pads=[0, 0, 1, 0, 0, 0, 0, 1]>(x) y6 = Dropout<ratio=0.3>(x) y7 = ReduceSum<axes=[2, 3]>(x) y8, y9 = Split<axis=1, split=[1, 3]>(x)
        y10 = Unsqueeze<axes=[0]>(v) y11 = Upsample<mode="linear">(x, twice)
        """, 9, {"twice": np.array([1, 1, 2, 2], np.float32)}),
}  # fmt: skip
HALF = "half precision"
SHAPES = {"x": (2, 4, 6, 6), "z": (2, 4, 6, 6), "v": (2, 5), "L": (2, 4, 10)}


def model_of(family: Family) -> Any:
    """Return the ModelProto of a family."""
    names = list(dict.fromkeys(name for name in SHAPES if re.search(rf"[(, ]{name}[,)]", family.text)))
    inputs = ", ".join(f"float[{', '.join(map(str, SHAPES[name]))}] {name}" for name in names)
    outputs = re.findall(r"\b(y\d+)\b(?=[^(]*=)", family.text)
    model = onnx.parser.parse_model(f'<ir_version: 4, opset_import: ["": {family.opset}]> net ({inputs}) => ({", ".join(outputs)}) {{ {family.text} }}')
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in family.weights.items() if name in used)
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    for output in model.graph.output:
        if "ceil_mode" in family.text:  # before opset 22 onnx infers other shapes than all runtimes
            for size in output.type.tensor_type.shape.dim:
                size.Clear()
        if not output.type.HasField("tensor_type"):  # onnx infers no type for GroupNormalization
            output.type.CopyFrom(onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, SHAPES["x"]))
    return model


def run(model: Any, outputs: list[str], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(outputs, feeds)


def assert_close(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float = 1e-4) -> None:
    errors = {}
    for output, values in expected.items():
        assert found[output].shape == values.shape, output
        errors[output] = float(np.abs(found[output] - values).max() / max(np.abs(values).max(), 1e-30))
    assert max(errors.values()) <= tolerance, {output: error for output, error in errors.items() if error > tolerance}


def converted(tmp_path: Path, model: Any) -> tuple[Any, tuple[str, str]]:
    log.quiet()
    onnx.save(model, str(tmp_path / "net.onnx"))
    files = str(tmp_path / "net.prototxt"), str(tmp_path / "net.caffemodel")
    return convert(tmp_path / "net.onnx", *files), files


@pytest.mark.parametrize("name", FAMILIES)
def test_operators(device: Any, tmp_path: Path, name: str) -> None:
    model = model_of(FAMILIES[name])
    net, (prototxt, weights) = converted(tmp_path, model)
    if FAMILIES[name].layers is not None:
        assert [layer.type for layer in net.layer if layer.type != "Input"] == FAMILIES[name].layers
    feeds = {item.name: draw(*SHAPES[item.name], seed=ord(item.name)) for item in model.graph.input}
    outputs = [item.name for item in model.graph.output]
    found = ocaffe.Net(prototxt, ocaffe.TEST, weights=weights, device=device).forward(**feeds)
    assert_close(found, dict(zip(outputs, run(model, outputs, feeds))), 2e-3 if name == HALF else 1e-4)
    assert set(found) == set(outputs)


@pytest.mark.parametrize("name", FAMILIES)
def test_round_trip(tmp_path: Path, name: str) -> None:
    """The imported net, exported again, computes the same."""
    exporter = pytest.importorskip("ocaffe.convert.export", reason="there is no exporter yet")
    model = model_of(FAMILIES[name])
    _, files = converted(tmp_path, model)
    feeds = {item.name: draw(*SHAPES[item.name], seed=ord(item.name)) for item in model.graph.input}
    outputs = [item.name for item in model.graph.output]
    again = exporter.export(*files).model
    assert_close(dict(zip(outputs, run(again, outputs, feeds))), dict(zip(outputs, run(model, outputs, feeds))), 2e-3 if name == HALF else 1e-4)


def test_recurrent_operators_return(tmp_path: Path) -> None:
    """An imported LSTM or GRU is exported as that operator, not as a loop, and its indicator is not computed. The exported model can be imported again."""
    exporter = pytest.importorskip("ocaffe.convert.export", reason="there is no exporter yet")
    model = model_of(FAMILIES["recurrent"])
    _, files = converted(tmp_path, model)
    again = exporter.export(*files).model
    counts = [collections.Counter(node.op_type for node in one.graph.node) for one in (model, again)]
    assert counts[1]["LSTM"] == counts[0]["LSTM"] + 3 and counts[1]["GRU"] == counts[0]["GRU"]  # three of the LSTMs have two directions
    assert counts[1]["Scan"] == 0 and "ReduceSum" not in counts[1]
    (tmp_path / "again").mkdir()
    third, _ = converted(tmp_path / "again", again)
    assert [layer.type for layer in third.layer].count("LSTM") == counts[1]["LSTM"]


def test_every_rule_is_tested() -> None:
    tested = {operator for family in FAMILIES.values() for operator in re.findall(r"= ?(\w+)[<(]", family.text)}
    # FakeQuantize: tests/quantize/test_qdq_import.py
    assert sorted(set(rules()) - tested - {"ChannelShuffle", "FakeQuantize", "Quotient", "Swish", "Gelu"}) == []
