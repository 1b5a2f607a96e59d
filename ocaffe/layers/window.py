"""Windows in the H x W plane: kernel, stride and pad from the prototxt, and Caffe's rule for the output size of Pooling."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ocaffe.layers.base import Layer

Pair = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """Pairs are (height, width), in pixels."""

    kernel: Pair
    stride: Pair
    pad: Pair

    @classmethod
    def read(cls, layer: Layer, param: Any, image: Pair) -> Window:
        """From a PoolingParameter: kernel_size or kernel_h and kernel_w, stride and pad likewise; global_pooling takes the whole image."""
        if param.global_pooling:
            given = [name for name in ("kernel_size", "kernel_h", "kernel_w") if param.HasField(name)]
            layer.check(not given, f"global_pooling: true and {' and '.join(given)} exclude each other", f"remove {' and '.join(given)}")
            kernel = image
        else:
            kernel = _pair(layer, param, "kernel_size", "kernel_h", "kernel_w")
        window = cls(kernel, _pair(layer, param, "stride", "stride_h", "stride_w"), _pair(layer, param, "pad", "pad_h", "pad_w"))
        stride, pad = pair_text(window.stride), pair_text(window.pad)
        layer.check(min(window.kernel) > 0, f"the kernel is {pair_text(window.kernel)}", "a kernel of at least 1")
        layer.check(min(window.stride) > 0, f"the stride is {stride}", "a stride of at least 1")
        layer.check(
            not param.global_pooling or (window.stride, window.pad) == ((1, 1), (0, 0)),
            f"global_pooling: true takes stride 1 and pad 0, not stride {stride} and pad {pad}",
            "remove stride and pad",
        )
        return window

    def outputs(self, image: Pair, ceil: bool) -> Pair:
        """How many windows there are; rounding up drops a last window that would begin beyond the image, but only if there is padding."""
        counts = []
        for size, kernel, stride, pad in zip(image, self.kernel, self.stride, self.pad):
            room = size + 2 * pad - kernel
            count = (-(-room // stride) if ceil else room // stride) + 1
            if any(self.pad) and (count - 1) * stride >= size + pad:
                count -= 1
            counts.append(count)
        return counts[0], counts[1]

    def empty(self, image: Pair, outputs: Pair) -> str | None:
        """'row' or 'column' if the last window of a column or row holds no pixel."""
        for name, count, stride, pad, size in zip(("row", "column"), outputs, self.stride, self.pad, image):
            if (count - 1) * stride - pad >= size:
                return name
        return None


def pair_text(pair: Pair) -> str:
    """`2` for (2, 2), else `3 x 2`."""
    return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]} x {pair[1]}"


def _pair(layer: Layer, param: Any, both: str, high: str, wide: str) -> Pair:
    """One field for both axes, or one for each; a kernel must be given, the others have defaults."""
    single, pair = param.HasField(both), (param.HasField(high), param.HasField(wide))
    layer.check(not (single and any(pair)), f"{both} and {high} or {wide} are given", f"either {both}, or {high} and {wide}")
    if any(pair):
        layer.check(all(pair), f"only one of {high} and {wide} is given", f"give both, or {both}")
        return getattr(param, high), getattr(param, wide)
    layer.check(single or both != "kernel_size", f"there is neither {both} nor {high} and {wide}", f"give {both}")
    return getattr(param, both), getattr(param, both)
