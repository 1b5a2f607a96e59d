"""Windows over the spatial axes: kernel, stride, pad and dilation from the prototxt, and Caffe's rule for the output size of Pooling."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ocaffe.layers.base import Layer, once_or, times

Axes = tuple[int, ...]  # one number per axis: (height, width) or (depth, height, width)
MOST_DILATION = 1 << 16
NAMES = ("plane", "row", "column")
FORKS = {  # field for all axes -> C3D's field for the depth, its default, video-caffe's field
    "kernel_size": ("kernel_depth", None, "kernel_shape"),
    "stride": ("temporal_stride", 1, "stride_shape"),
    "pad": ("temporal_pad", 0, "pad_shape"),
}


@dataclass(frozen=True)
class Window:
    """Sizes in pixels. An empty dilation means 1."""

    kernel: Axes
    stride: Axes
    pad: Axes
    dilation: Axes = ()

    @classmethod
    def read(cls, layer: Layer, param: Any, image: Axes) -> Window:
        """Read a PoolingParameter: kernel_size once or once per axis, or kernel_h and kernel_w for two axes, or a form of `forked`.

        The reader stores a list of kernel_size in Intel's kernel_size_3d. Stride and pad have the same forms. With global_pooling, the kernel is the
        whole image.
        """
        if param.global_pooling:
            given = [name for name in ("kernel_size", "kernel_h", "kernel_w") if param.HasField(name)] + ["kernel_size_3d"] * bool(param.kernel_size_3d)
            given += [name for name in ("kernel_depth", "kernel_shape") if param.HasField(name)]
            layer.check(not given, f"global_pooling: true and {' and '.join(given)} exclude each other", f"remove {' and '.join(given)}")
            kernel = image
        else:
            kernel = _read(layer, param, image, "kernel_size", "kernel_h", "kernel_w")
        stride, pad = _read(layer, param, image, "stride", "stride_h", "stride_w"), _read(layer, param, image, "pad", "pad_h", "pad_w")
        dilation = spread(layer, "dilation", list(param.dilation) or [1], len(image))
        window = cls(kernel, stride, pad, dilation)
        layer.check(
            min(kernel) > 0,
            f"the kernel is {axes_text(kernel)}",
            "set each kernel size to 1 or more" if not param.global_pooling else "give an image with pixels",
        )
        layer.check(min(stride) > 0, f"the stride is {axes_text(stride)}", "set each stride to 1 or more")
        layer.check(
            min(dilation) > 0 and max(dilation) <= MOST_DILATION,
            f"the dilation is {axes_text(dilation)}",
            f"set each dilation to a number from 1 to {MOST_DILATION}",
        )
        layer.check(
            not param.global_pooling or (max(stride), max(pad), max(dilation)) == (1, 0, 1),
            f"global_pooling: true takes stride 1, pad 0 and dilation 1, not stride {axes_text(stride)}, pad {axes_text(pad)} "
            f"and dilation {axes_text(dilation)}",
            "remove stride, pad and dilation",
        )
        return window

    @property
    def extent(self) -> Axes:
        """The number of pixels that a window spans, per axis."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation)) if self.dilation else self.kernel

    def outputs(self, image: Axes, ceil: bool) -> Axes:
        """Return the number of windows per axis. With padding, a last window that would start after the image is dropped."""
        counts = []
        for size, extent, stride, pad in zip(image, self.extent, self.stride, self.pad):
            room = size + 2 * pad - extent
            count = (-(-room // stride) if ceil else room // stride) + 1
            if any(self.pad) and (count - 1) * stride >= size + pad:
                count -= 1
            counts.append(count)
        return tuple(counts)

    def empty(self, image: Axes, outputs: Axes) -> str | None:
        """Return 'row', 'column' or 'plane', with 'last' before it if that applies, if a window covers no pixel, else None."""
        step = self.dilation or (1,) * len(image)
        for name, count, extent, stride, pad, size, dilation in zip(NAMES[-len(image) :], outputs, self.extent, self.stride, self.pad, image, step):
            output = _first_empty(count, extent, stride, pad, size, dilation)
            if output is not None:
                return f"{'last ' * (output == count - 1)}{name}"
        return None


def _first_empty(count: int, extent: int, stride: int, pad: int, size: int, dilation: int) -> int | None:
    """Return the first of `count` windows along an axis that covers no pixel. The windows are not counted, for there may be 2^31."""
    if pad >= extent:
        return 0
    if dilation > size:  # a window that starts in the padding may step over the image; the remainders repeat after `dilation` windows
        for output in range(min(count, -(-pad // stride), dilation)):
            if (output * stride - pad) % dilation >= size:
                return output
    after = -(-(size + pad) // stride)  # the first window that starts behind the image
    return after if after < count else None


def bounded(stride: Axes, image: Axes, pad: Axes) -> Axes:
    """Return strides of the same windows of which none exceeds the padded image. OpenCL compilers may take minutes for larger constants."""
    return tuple(min(step, size + 2 * border) for step, size, border in zip(stride, image, pad))


def axes_text(values: Axes) -> str:
    """Return "2" for (2, 2), and "3 x 2" for (3, 2)."""
    return str(values[0]) if len(set(values)) == 1 else " x ".join(map(str, values))


pair_text = axes_text


def spread(layer: Layer, field: str, values: list[int], axes: int) -> Axes:
    """Return one value per axis of a repeated field, which has one value for all axes or one for each."""
    layer.check(len(values) in (1, axes), f"{field} is given {times(len(values))} for {axes} spatial axes", f"write {field} {once_or(axes)}")
    return tuple(values * axes if len(values) == 1 else values)


def forked(layer: Layer, param: Any, axes: int, field: str, plain: list[int]) -> Axes | None:
    """Return one value per axis from a fork's form of `field` (a key of FORKS), or None if there is none. `plain` has the values of `field` itself.

    C3D: kernel_depth is the kernel along the first axis, and kernel_size that along the other two. temporal_stride and temporal_pad are the stride and
    the pad of the first axis, by default 1 and 0. video-caffe: kernel_shape { dim .. } has one size per axis, and so have stride_shape and pad_shape.
    """
    temporal, default, shape = FORKS[field]
    if param.HasField(shape):
        layer.check(not plain, f"{field} and {shape} are given, two names for the same setting", f"remove {field}")
        layer.check(not param.HasField("kernel_depth"), f"kernel_depth and {shape} are given, the forms of two forks", "remove kernel_depth")
        values = list(getattr(param, shape).dim)
        layer.check(len(values) == axes, f"{shape} has {len(values)} numbers for {axes} spatial axes", f"write dim {times(axes)} in {shape}")
        layer.check(min(values, default=0) >= 0, f"{shape} is {axes_text(tuple(values))}", f"set each dim of {shape} to 0 or more")
        return tuple(values)
    if not param.HasField("kernel_depth"):
        layer.check(
            not param.HasField(temporal),
            f"{temporal} is given without kernel_depth",
            f"add kernel_depth, or replace {temporal} by {field} {times(axes)}, one for each axis",
        )
        return None
    layer.check(axes == 3, f"kernel_depth is given for {axes} spatial axes", "remove kernel_depth, or give bottoms N x C x D x H x W")
    layer.check(len(plain) <= 1, f"kernel_depth is given, and {field} {times(len(plain))}", f"write {field} once, for rows and columns")
    layer.check(bool(plain) or default is not None, f"kernel_depth is given without {field}", f"add {field}, for rows and columns")
    return (getattr(param, temporal), *(plain or [default or 0]) * 2)


def _read(layer: Layer, param: Any, image: Axes, both: str, high: str, wide: str) -> Axes:
    """Return one value per axis, from one field for all axes, one field for each, or a fork's form. Only the kernel has no default."""
    single, pair, several = param.HasField(both), (param.HasField(high), param.HasField(wide)), list(getattr(param, f"{both}_3d"))
    layer.check(
        not (single and any(pair)),
        f"{both} and {high if pair[0] else wide} are both given",
        f"remove {both}, or {' and '.join(name for name, has in zip((high, wide), pair) if has)}",
    )
    layer.check(not (single and several), f"{both} and {both}_3d are both given", f"remove {both}, or {both}_3d")
    fork = forked(layer, param, len(image), both, [getattr(param, both)] if single else several)
    if fork is not None:
        layer.check(
            not any(pair),
            f"{high if pair[0] else wide} is given beside {'kernel_depth' if param.HasField('kernel_depth') else FORKS[both][2]}",
            f"remove {' and '.join(name for name, has in zip((high, wide), pair) if has)}",
        )
        return fork
    if several:
        return spread(layer, both, several, len(image))
    if any(pair):
        layer.check(
            all(pair),
            f"{high if pair[0] else wide} is given without {wide if pair[0] else high}",
            f"add {wide if pair[0] else high}, or replace it by {both}",
        )
        layer.check(len(image) == 2, f"{high} and {wide} are given for {len(image)} spatial axes", f"replace both by {both}, once or {times(len(image))}")
        return getattr(param, high), getattr(param, wide)
    whole = "; or global_pooling: true for the whole image" if "global_pooling" in param.DESCRIPTOR.fields_by_name else ""
    fix = f"{layer.written(f'{both}: N')}, where N is the side of the window in pixels{whole}"
    layer.check(single or both != "kernel_size", f"there is neither {both} nor {high} and {wide}", fix)
    return (getattr(param, both),) * len(image)
