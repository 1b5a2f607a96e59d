"""ConvGeometry: the sizes and window parameters of a convolution."""
from __future__ import annotations

import math
from dataclasses import dataclass, replace

Triple = tuple[int, int, int]  # depth, height, width; missing leading axes are 1 (pad: 0)
Axes = tuple[int, ...]  # a Triple, or one number per axis if there are more than three


@dataclass(frozen=True)
class ConvGeometry:
    """The geometry of a convolution from images of `size` with `channels` channels to images of `out` with `num_output` channels.

    `out` is given, not computed, because a deconvolution uses the same geometry in reverse. Every window ends inside the padded image.
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
        """Return all numbers, for the tuned tables: `n64 3@1x224x224 64@1x112x112 k1x7x7 s1x2x2 p0x3x3 d1x1x1 g1`."""
        size, out, *steps = ("x".join(map(str, axes)) for axes in (self.size, self.out, self.kernel, self.stride, self.pad, self.dilation))
        window = " ".join(f"{letter}{text}" for letter, text in zip("kspd", steps))
        return f"n{self.batch} {self.channels}@{size} {self.num_output}@{out} {window} g{self.group}"

    @property
    def group_channels(self) -> int:
        """Input channels per output channel."""
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
        """Length of the sum of one output: rows of the unrolled input of a group."""
        return self.group_channels * self.taps

    @property
    def pixels(self) -> int:
        return math.prod(self.size)

    @property
    def positions(self) -> int:
        """Output pixels per sample."""
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
    def turned(self) -> ConvGeometry:
        """backward_data of stride 1 as a convolution of the outputs' gradient with mirrored filters."""
        pad = tuple(d * (k - 1) - p for d, k, p in zip(self.dilation, self.kernel, self.pad, strict=True))
        return replace(self, channels=self.num_output, num_output=self.channels, size=self.out, out=self.size, pad=pad)

    @property
    def pointwise(self) -> bool:
        """Whether the window is 1 x 1 with stride 1 and no padding: a plain matrix product."""
        return self.taps == 1 and not any(self.pad) and self.out == self.size and max(self.stride) == 1

    @property
    def sparse(self) -> bool:
        """Whether the window is 1 x 1 and its stride skips pixels, in two dimensions."""
        flat = len(self.size) == 3 and self.size[0] == self.out[0] == self.stride[0] == 1
        return flat and self.taps == 1 and not any(self.pad) and max(self.stride) > 1

    @property
    def depthwise(self) -> bool:
        """Whether each channel is filtered separately, in two dimensions."""
        flat = len(self.size) == 3 and self.size[0] == self.out[0] == self.kernel[0] == 1 and self.pad[0] == 0
        return flat and self.group == self.channels > 1
