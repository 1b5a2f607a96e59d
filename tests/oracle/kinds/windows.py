"""Convolutions, pooling and other layers that read windows of images."""
from __future__ import annotations

from typing import Any

from tests.oracle.draft import Draft, kind


def divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def window(net: Draft, image: tuple[int, ...], dilated: bool) -> dict[str, Any]:
    """Kernel, stride, pad and dilation in one of the forms of the prototxt: one number, one for each axis, or _h and _w."""
    names = {"kernel_size": [1, 2, 3, 3, 4, 5], "stride": [1, 1, 1, 2, 3, 4], "pad": [0, 0, 1, 2, 3], "dilation": [1, 1, 2, 3] if dilated else [1]}
    equal = net.chance(0.5)
    sizes = {name: [net.pick(*options)] * len(image) if equal else [net.pick(*options) for _ in image] for name, options in names.items()}
    fields: dict[str, Any] = {}
    for name, axes in sizes.items():
        if name == "dilation" and max(axes) == 1:
            continue
        if len(image) == 2 and name != "dilation" and not equal:
            stem = name.removesuffix("_size")
            fields |= {f"{stem}_h": axes[0], f"{stem}_w": axes[1]}
        else:
            fields[name] = axes[:1] if equal and net.chance(0.7) else axes
    return fields


@kind("Convolution", "Deconvolution", weight=5)
def convolution(net: Draft, type: str) -> None:
    name = net.blob(net.pick(4, 4, 4, 4, 4, 3, 5))
    shape = net.shapes[name]
    group = net.pick(1, 1, *divisors(shape[1]))
    fields = window(net, shape[2:], dilated=True) | net.some(0.25, bias_term=[True, False, False], force_nd_im2col=[True], engine=["CAFFE"])
    fields |= {"num_output": group * net.pick(1, 2, 3), "group": group if net.chance(0.95) else group + 1}
    if net.chance(0.1):
        fields["axis"] = net.pick(1, 1 - len(shape), 2)
    second = [net.data(shape)] if net.chance(0.08) else []
    net.add(type, [name, *second], 1 + len(second), convolution_param=fields)


@kind("ConvolutionDepthwise")
def depthwise(net: Draft) -> None:
    name = net.blob(4)
    shape = net.shapes[name]
    fields = window(net, shape[2:], dilated=True) | net.some(0.25, bias_term=[False])
    net.add("ConvolutionDepthwise", [name], convolution_param=fields | {"num_output": shape[1]})


@kind("Im2col")
def im2col(net: Draft) -> None:
    name = net.blob(4)
    net.add("Im2col", [name], convolution_param=window(net, net.shapes[name][2:], dilated=True))


@kind("Pooling", weight=5)
def pooling(net: Draft) -> None:
    name = net.blob(4)
    image = net.shapes[name][2:]
    fields = {"global_pooling": True} | net.some(0.05, kernel_size=[2], pad=[1]) if net.chance(0.12) else window(net, image, dilated=False)
    fields = {key: value[0] if isinstance(value, list) else value for key, value in fields.items()}
    fields |= net.some(pool=["MAX", "MAX", "AVE"]) | net.some(0.1, round_mode=["FLOOR", "CEIL"], ceil_mode=[True, False])
    tops = net.add("Pooling", [name], 2 if net.chance(0.1) else 1, pooling_param=fields)
    if len(tops) == 2:
        net.read.update(tops)  # double precision has no rule for a mask


@kind("SPP")
def spp(net: Draft) -> None:
    net.add("SPP", [net.blob(4)], spp_param={"pyramid_height": net.pick(1, 2, 3)} | net.some(pool=["MAX", "AVE"]))


@kind("Interp")
def interp(net: Draft) -> None:
    sizes = {"height": net.random.randint(1, 9), "width": net.random.randint(1, 9)}
    fields = net.pick({"zoom_factor": 2}, {"shrink_factor": 2}, sizes, {"shrink_factor": 2, "zoom_factor": 3}, {"zoom_factor": 2, "pad_beg": 0, "pad_end": -1})
    net.add("Interp", [net.blob(4)], interp_param=fields)


@kind("Upsample")
def upsample(net: Draft) -> None:
    net.add("Upsample", [net.blob(4)], upsample_param={"scale": net.pick(2, 2, 3)})
