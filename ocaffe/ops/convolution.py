"""Convolution in its three directions: the geometry, and the choice of the kernels that do it."""
from __future__ import annotations

import math
from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType

from ocaffe.graph.ir import Ref, Role
from ocaffe.graph.recorder import Recorder
from ocaffe.ops import conv_depthwise, conv_unroll
from ocaffe.ops.expression import pointwise
from ocaffe.ops.pooling import AVE, Pool

Triple = tuple[int, int, int]  # depth, height, width; fewer axes are padded in front with 1 (pad: 0)
Axes = tuple[int, ...]  # a Triple, or one number for each of more than three axes


@dataclass(frozen=True)
class ConvGeometry:
    """The numbers of a convolution of `size` images with `channels` to `out` images with `num_output` channels.

    `out` is given, not computed: a deconvolution is the same geometry walked backwards. Every window begins inside the padded image.
    """

    batch: int
    channels: int
    num_output: int
    group: int
    size: Axes
    out: Axes
    kernel: Axes
    stride: Axes
    pad: Axes
    dilation: Axes

    def __post_init__(self) -> None:
        assert self.channels % self.group == 0 and self.num_output % self.group == 0, self
        reach = zip(self.size, self.out, self.kernel, self.stride, self.pad, self.dilation, strict=True)
        assert all((o - 1) * s + (k - 1) * d < i + 2 * p for i, o, k, s, p, d in reach), f"a window ends outside the padded image: {self}"

    def __str__(self) -> str:
        """All numbers, for tables of tuned choices: `n64 3@1x224x224 64@1x112x112 k1x7x7 s1x2x2 p0x3x3 d1x1x1 g1`."""
        size, out, *steps = ("x".join(map(str, axes)) for axes in (self.size, self.out, self.kernel, self.stride, self.pad, self.dilation))
        window = " ".join(f"{letter}{text}" for letter, text in zip("kspd", steps))
        return f"n{self.batch} {self.channels}@{size} {self.num_output}@{out} {window} g{self.group}"

    @property
    def group_channels(self) -> int:
        """Input channels that one output channel sees."""
        return self.channels // self.group

    @property
    def group_outputs(self) -> int:
        return self.num_output // self.group

    @property
    def taps(self) -> int:
        """Elements of the window."""
        return math.prod(self.kernel)

    @property
    def depth(self) -> int:
        """Length of the sum that makes one output: rows of the unrolled input of a group."""
        return self.group_channels * self.taps

    @property
    def pixels(self) -> int:
        return math.prod(self.size)

    @property
    def positions(self) -> int:
        """Output pixels of one sample."""
        return math.prod(self.out)

    @property
    def flops(self) -> int:
        """Floating point operations of the direct algorithm, the same in all three directions."""
        return 2 * self.batch * self.num_output * self.positions * self.depth

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return (self.num_output, self.group_channels, *self.kernel)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.batch, self.channels, *self.size)

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (self.batch, self.num_output, *self.out)

    @property
    def pointwise(self) -> bool:
        """A 1 x 1 window that moves over every pixel: a plain matrix product."""
        return self.taps == 1 and not any(self.pad) and self.out == self.size and max(self.stride) == 1

    @property
    def sparse(self) -> bool:
        """A 1 x 1 window that leaves out pixels, in two dimensions."""
        flat = len(self.size) == 3 and self.size[0] == self.out[0] == self.stride[0] == 1
        return flat and self.taps == 1 and not any(self.pad) and max(self.stride) > 1

    @property
    def depthwise(self) -> bool:
        """Each channel is filtered by itself, in two dimensions."""
        flat = len(self.size) == 3 and self.size[0] == self.out[0] == self.kernel[0] == 1 and self.pad[0] == 0
        return flat and self.group == self.channels > 1


def forward(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref) -> None:
    """y = convolution of x with the filters w, plus bias[channel]. First axis of x and y: the batch, at their batch strides."""
    if not g.batch:
        rec.empty([x, w, *([bias] if bias else [])], [y], what="convolution")
        return
    if g.sparse and (not rec.train or not rec.target.is_cpu):
        g, x = _thinned(rec, g, x)
    with rec.counted(g.flops):
        _engine(rec, g, w, conv_depthwise.reads(rec, g)).forward(rec, g, x, w, bias, y)


def backward_data(rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, dx: Ref, bias: Ref | None = None) -> None:
    """dx from dy: every pixel gets what the windows that cover it send back; with `bias` per channel of dx it is a deconvolution's forward."""
    if not g.batch:
        rec.empty([dy, w, *([bias] if bias else [])], [dx], what="convolution")
        return
    if g.sparse and rec.phase == "backward" and not rec.target.is_cpu:  # as a deconvolution's forward it keeps what follows within one launch
        thin, seen = rec.scratch("thinned", (g.batch, g.channels, *g.out[1:])), _dense(g)
        with rec.counted(g.flops):
            _engine(rec, seen, w, True).backward_data(rec, seen, dy, w, thin)
        _seen(g).backward(rec, thin, None, dx)
        return
    with rec.counted(g.flops):
        _engine(rec, g, w, True).backward_data(rec, g, dy, w, dx, bias=bias)


def backward_filter(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref) -> None:
    """dw, summed over batch and positions."""
    if not g.batch:
        pointwise(rec, "y0 = 0", writes=[dw])
        return
    if g.sparse and not rec.target.is_cpu:
        g, x = _thinned(rec, g, x)
    with rec.counted(g.flops):
        _engine(rec, g, dw, conv_depthwise.sums(rec, g)).backward_filter(rec, g, x, dy, dw)


def backward_bias(rec: Recorder, g: ConvGeometry, dy: Ref, db: Ref) -> None:
    """db[channel] = sum of dy over batch and positions; of a deconvolution too, whose dy has the channels and pixels of g's input."""
    assert db.count in (g.num_output, g.channels)
    if not g.batch:
        pointwise(rec, "y0 = 0", writes=[db])
        return
    dense(rec).backward_bias(rec, conv_unroll.flat(g) if len(g.size) > 3 else g, dy, db)


def _seen(g: ConvGeometry) -> Pool:
    """Of a sparse convolution: the pixels that it sees, as a pooling."""
    return Pool(AVE, (1, 1), g.stride[1:], (0, 0), g.size[1:], g.out[1:])


def _dense(g: ConvGeometry) -> ConvGeometry:
    """Of a sparse convolution: the same over nothing but those pixels."""
    return replace(g, size=g.out, stride=(1, 1, 1))


def _thinned(rec: Recorder, g: ConvGeometry, x: Ref) -> tuple[ConvGeometry, Ref]:
    """A sparse convolution as a dense one of the pixels that it sees. Both branches of a residual block share them (memory/duplicates.py), and products over
    neighbours fetch vectors: that saves more than a pass over a quarter of the image costs."""
    thin = rec.scratch("thinned", (g.batch, g.channels, *g.out[1:]), role=Role.DIFF if x.role is Role.DIFF else Role.SCRATCH)
    _seen(g).forward(rec, x, thin)
    return _dense(g), thin


def dense(rec: Recorder) -> ModuleType:
    """The module of this machine class for filters over several channels."""
    return import_module(f"ocaffe.ops.conv_{rec.target.kind}")


def _engine(rec: Recorder, g: ConvGeometry, w: Ref, direct: bool) -> ModuleType:
    """The module that does this geometry on this machine class; `direct`: the depthwise kernels can do its window."""
    assert w.count == math.prod(g.weight_shape), f"{w.shape} for filters {g.weight_shape}"
    if len(g.size) > 3:
        return conv_unroll
    return conv_depthwise if g.depthwise and direct else dense(rec)
