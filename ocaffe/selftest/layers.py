"""Cases for the kernels of ordinary layers, with numpy references: convolution, products, pooling, normalisation, pointwise, reductions, copies."""
from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ocaffe.data.databases.datum import encode_datum
from ocaffe.data.databases.writer import LmdbWriter
from ocaffe.selftest.case import Arrays, Case, layer, normal

Rng = np.random.Generator


def convolve(
    x: np.ndarray, w: np.ndarray, b: np.ndarray, stride: int = 1, pad: int = 0, dilation: int = 1, group: int = 1
) -> np.ndarray:
    """Convolution over any number of axes, with the same stride, pad and dilation for all axes."""
    axes = tuple(range(2, x.ndim))
    x = np.pad(x, [(0, 0), (0, 0), *[(pad, pad)] * len(axes)])
    extent = [dilation * (w.shape[axis] - 1) + 1 for axis in axes]
    views = sliding_window_view(x, extent, axis=axes)
    views = views[tuple([slice(None)] * 2 + [slice(None, None, stride)] * len(axes) + [slice(None, None, dilation)] * len(axes))]
    parts = []
    for images, filters in zip(np.split(views, group, 1), np.split(w, group)):
        taps = tuple(range(2 + len(axes), 2 + 2 * len(axes)))
        parts.append(np.tensordot(images, filters, ((1, *taps), tuple(range(1, 2 + len(axes))))))
    return np.moveaxis(np.concatenate(parts, -1) + b, -1, 1)


def ctc_cost(scores: np.ndarray, labels: Sequence[int], blank: int) -> float:
    """-log of the sum of the probabilities of all paths (T x C scores): every path is tried."""
    log_p = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    total = 0.0
    for path in itertools.product(range(scores.shape[1]), repeat=len(scores)):
        merged = [label for label, _ in itertools.groupby(path) if label != blank]
        if merged == list(labels):
            total += math.exp(sum(log_p[t, label] for t, label in enumerate(path)))
    return -math.log(total) if total else 0.0


def greedy(scores: np.ndarray) -> np.ndarray:
    """The classes of the best path (T x C scores) without 0 and repetitions, as 1 x T x 1 x 1 with -1 after the end."""
    found = [label for label, _ in itertools.groupby(scores.argmax(1)) if label]
    return np.array(found + [-1] * (len(scores) - len(found)))[None, :, None, None]


def conv_case(name: str, shape: Sequence[int], outputs: int, kernel: int, text: str = "", **how: int) -> Case:
    axes = len(shape) - 2
    channels = shape[1] // how.get("group", 1)
    numbers = " ".join(f"{key}: {value}" for key, value in how.items())
    param = f"convolution_param {{ num_output: {outputs} kernel_size: {kernel} {numbers} }}"
    return Case(
        name, layer("Convolution", "x0", "y", param), normal(x0=shape, y_0=(outputs, channels, *[kernel] * axes), y_1=(outputs,)),
        lambda x, got: {"y": convolve(x["x0"], x["y/0"], x["y/1"], **how)}, ("x0", "y/0", "y/1"),
    )  # fmt: skip


def deconvolve(x: np.ndarray, w: np.ndarray, b: np.ndarray, stride: int) -> np.ndarray:
    kernel = w.shape[2]
    y = np.zeros((len(x), w.shape[1], *[(n - 1) * stride + kernel for n in x.shape[2:]]))
    for i in range(kernel):
        for j in range(kernel):
            rows, columns = (slice(at, at + (n - 1) * stride + 1, stride) for at, n in ((i, x.shape[2]), (j, x.shape[3])))
            y[:, :, rows, columns] += np.einsum("nchw,cd->ndhw", x, w[:, :, i, j])
    return y + b[:, None, None]


def pool(x: np.ndarray, kernel: int, stride: int, pad: int, mean: bool) -> np.ndarray:
    """Pooling with Caffe's windows. Their number is rounded up (CEIL), and the divisor of AVE counts padding (docs/quirks.md, quirk 10)."""
    sizes = [-(-(n + 2 * pad - kernel) // stride) + 1 for n in x.shape[2:]]
    sizes = [count - (pad > 0 and (count - 1) * stride >= n + pad) for count, n in zip(sizes, x.shape[2:])]
    y = np.empty((*x.shape[:2], *sizes))
    for i in range(sizes[0]):
        for j in range(sizes[1]):
            begins = [i * stride - pad, j * stride - pad]
            ends = [min(begin + kernel, n + pad) for begin, n in zip(begins, x.shape[2:])]
            part = x[:, :, max(begins[0], 0) : ends[0], max(begins[1], 0) : ends[1]]
            area = (ends[0] - begins[0]) * (ends[1] - begins[1])
            y[:, :, i, j] = part.sum((2, 3)) / area if mean else part.max((2, 3))
    return y


def pool_case(name: str, shape: Sequence[int], kernel: int, stride: int, pad: int = 0) -> Case:
    param = f"pooling_param {{ pool: {{}} kernel_size: {kernel} stride: {stride} pad: {pad} }}"
    net = "".join(layer("Pooling", "x0", top, param.replace("{}", method)) for top, method in (("a", "MAX"), ("b", "AVE")))
    return Case(
        name, net, normal(x0=shape), lambda x, got: {"a": pool(x["x0"], kernel, stride, pad, False), "b": pool(x["x0"], kernel, stride, pad, True)}, ("x0",)
    )


def lrn(x: np.ndarray, size: int, alpha: float, beta: float, within: bool) -> np.ndarray:
    half = (size - 1) // 2
    if within:  # Caffe divides by the whole window also at the edges, because its AVE pooling counts padding
        padded = np.pad(x * x, [(0, 0), (0, 0), (half, half), (half, half)])
        squares = sliding_window_view(padded, (size, size), axis=(2, 3)).sum((4, 5)) / size**2
    else:
        squares = sliding_window_view(np.pad(x * x, [(0, 0), (half, half), (0, 0), (0, 0)]), size, axis=1).sum(-1) / size
    return x * (1 + alpha * squares) ** -beta


def lrn_case(name: str, size: int, region: str) -> Case:
    net = layer("LRN", "x0", "y", f"lrn_param {{ local_size: {size} alpha: 0.5 beta: 0.75 norm_region: {region} }}")
    within = region == "WITHIN_CHANNEL"
    return Case(name, net, normal(x0=(2, 13, 11, 17)), lambda x, got: {"y": lrn(x["x0"], size, 0.5, 0.75, within)}, ("x0",))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def cross_entropy(x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.asarray(-np.log(np.take_along_axis(softmax(x), labels[:, None].astype(int), 1)).mean())


def softmax_case(name: str, shape: Sequence[int]) -> Case:
    labels = (shape[0], *shape[2:])
    net = layer("Softmax", "x0", "p") + layer("SoftmaxWithLoss", "x0 x1", "loss") + layer("Accuracy", "x0 x1", "hits", "accuracy_param { top_k: 2 }")

    def values(x: Arrays, got: Arrays) -> Arrays:
        scores, wanted = x["x0"], x["x1"][:, None].astype(int)
        above = (scores > np.take_along_axis(scores, wanted, 1)).sum(1)
        return {"p": softmax(scores), "loss": cross_entropy(scores, x["x1"]), "hits": np.asarray((above < 2).mean())}

    return Case(name, net, lambda rng: {"x0": 2 * rng.standard_normal(shape), "x1": rng.integers(0, shape[1], labels)}, values, ("x0",))


POINTWISE: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "ReLU": ("relu_param { negative_slope: 0.1 }", lambda x: np.where(x > 0, x, 0.1 * x)),
    "Sigmoid": ("", lambda x: 1 / (1 + np.exp(-x))),
    "TanH": ("", np.tanh),
    "ELU": ("", lambda x: np.where(x > 0, x, np.expm1(x))),
    "BNLL": ("", lambda x: np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0)),
    "AbsVal": ("", np.abs),
    "Power": ("power_param { power: 3 scale: 0.5 shift: 0.2 }", lambda x: (0.2 + 0.5 * x) ** 3),
    "Exp": ("", np.exp),
    "Swish": ("", lambda x: x / (1 + np.exp(-x))),
}


def bilinear(x: np.ndarray, height: int, width: int) -> np.ndarray:
    """Bilinear resizing that maps corner pixels to corner pixels."""
    for axis, size in ((2, height), (3, width)):
        at = np.arange(size) * ((x.shape[axis] - 1) / (size - 1))
        low = np.minimum(at.astype(int), x.shape[axis] - 2)
        share = (at - low).reshape([-1 if a == axis else 1 for a in range(4)])
        x = np.take(x, low, axis) * (1 - share) + np.take(x, low + 1, axis) * share
    return x


def interpolated(x: np.ndarray, images: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Bilinear values of images (N x C x H x W) at places (.., row and column) within them, with the channels as axis 1."""
    low = np.minimum(np.floor(places).astype(int), np.array(x.shape[2:]) - 2)
    total: np.ndarray = np.zeros((*low.shape[:-1], x.shape[1]))
    for step in np.ndindex(2, 2):
        weight = np.prod(1 - np.abs(places - low - step), -1, keepdims=True)
        total += weight * x[images, :, low[..., 0] + step[0], low[..., 1] + step[1]]
    return np.moveaxis(total, -1, 1)


def aligned(x: Arrays, got: Arrays) -> Arrays:
    """The values at the centers of 2 x 3 bins."""
    images, *corners = (values[:, None, None] for values in x["x1"].T)
    rows, columns = np.meshgrid((np.arange(2) + 0.5) / 2, (np.arange(3) + 0.5) / 3, indexing="ij")
    places = np.stack([corners[1] + rows * (corners[3] - corners[1]), corners[0] + columns * (corners[2] - corners[0])], -1)
    return {"y": interpolated(x["x0"], images.astype(int), places)}


def region_middles(x: Arrays, got: Arrays) -> Arrays:
    """ROIAlignment with one value in the middle of each of 2 x 3 bins, for regions inside the image."""
    images, *corners = (values[:, None, None] for values in x["x1"].T)
    rows, columns = np.meshgrid((np.arange(2) + 0.5) / 2, (np.arange(3) + 0.5) / 3, indexing="ij")
    places = np.stack([corners[1] + rows * (corners[3] - corners[1] + 1), corners[0] + columns * (corners[2] - corners[0] + 1)], -1)
    return {"y": interpolated(x["x0"], images.astype(int), places)}


def correlated(x: Arrays, pad: int, reach: int, step: int, jump: int, kernel: int, columns: Sequence[int] | None = None, subtract: bool = False) -> np.ndarray:
    """FlowNet's Correlation by loops over displacements and pixels. `columns` are the displacements of Correlation1D."""
    a, b = x["x0"], x["x1"]
    rows_pad = 0 if columns is not None else pad
    n, _, height, width = a.shape
    border = reach + kernel  # more zeros, so that no window leaves the arrays
    a, b = (np.pad(each, [(0, 0), (0, 0), (rows_pad + border,) * 2, (pad + border,) * 2]) for each in (a, b))
    radius, steps = kernel // 2, reach // jump
    up = 0 if columns is not None else reach
    size = [-(-(extent + 2 * p - 2 * (far + radius)) // step) for extent, p, far in ((height, rows_pad, up), (width, pad, reach))]
    moves = [(p * jump, o * jump) for p in ([0] if columns is not None else range(-steps, steps + 1)) for o in (columns or range(-steps, steps + 1))]
    y = np.zeros((n, len(moves), *size))
    for d, (down, across) in enumerate(moves):
        for i, j in np.ndindex(*size):
            top, left = i * step + up + border, j * step + reach + border
            one = a[:, :, top : top + kernel, left : left + kernel]
            two = b[:, :, top + down : top + down + kernel, left + across : left + across + kernel]
            y[:, d, i, j] = (np.abs(one - two) if subtract else one * two).mean((1, 2, 3))
    return y


def attended(x: Arrays, size: tuple[int, int], collect: bool, normal: bool, factor: float) -> np.ndarray:
    """PSANet's attention by loops over pairs of pixels."""
    image, mask = x["x0"], x["x1"]
    n, _, height, width = image.shape
    matrix = np.zeros((n, height * width, height * width))
    for (h, w), (i, j) in itertools.product(np.ndindex(height, width), np.ndindex(*size)):
        r, c = h + i - size[0] // 2, w + j - size[1] // 2
        if 0 <= r < height and 0 <= c < width:
            own, other = h * width + w, r * width + c
            row, column = (other, own) if collect else (own, other)
            matrix[:, row, column] = mask[:, i * size[1] + j, h, w]
    if normal:
        matrix = np.exp(matrix) / np.exp(matrix).sum(1, keepdims=True)
    return (image.reshape(n, -1, height * width) @ matrix / factor).reshape(image.shape)


def batch_norm(x: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    axes = (0, *range(2, x.ndim))
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def standardised(x: np.ndarray) -> np.ndarray:
    """MVN."""
    return (x - x.mean((2, 3), keepdims=True)) / (x.std((2, 3), keepdims=True) + 1e-9)


def dropped(x: Arrays, got: Arrays) -> Arrays:
    """The reference drops the same values as the device. About half of the values must be dropped."""
    kept = got["y"] != 0
    share = float(kept.mean())
    return {"y": 2 * x["x0"] * kept if abs(share - 0.5) < 0.05 else np.full(x["x0"].shape, np.nan)}


def images(folder: str) -> None:
    with LmdbWriter(os.path.join(folder, "db")) as out:
        for n in range(5):
            out.put(b"%d" % n, encode_datum(np.random.default_rng(n).integers(0, 256, (3, 19, 23), np.uint8), n))


def transformed(x: Arrays, got: Arrays) -> Arrays:
    """Return the central crop of each image as (value - mean) * scale."""
    pixels = np.stack([np.random.default_rng(n).integers(0, 256, (3, 19, 23), np.uint8) for n in range(5)])[:, :, 3:16, 5:18]
    means = np.array([104, 117, 123.0])[:, None, None]
    return {"data": (pixels - means) * 0.0078125, "label": np.arange(5.0)}


def enlarged(x: Arrays, got: Arrays) -> Arrays:
    """Return the central crop of each image at twice its size, between its four neighbours, as (value - mean) * scale."""
    pixels = np.stack([np.random.default_rng(n).integers(0, 256, (3, 19, 23), np.uint8) for n in range(5)]).astype(float)
    for axis in (2, 3):
        size = pixels.shape[axis]
        at = (np.arange(2 * size) + 0.5) / 2 - 0.5
        before = np.clip(np.floor(at).astype(int), 0, size - 2)
        share = (at - before).reshape(-1, *[1] * (3 - axis))
        pixels = pixels.take(before, axis) * (1 - share) + pixels.take(before + 1, axis) * share
    means = np.array([104, 117, 123.0])[:, None, None]
    return {"data": (pixels[:, :, 12:25, 16:29] - means) * 0.0078125, "label": np.arange(5.0)}


def drawn(x: Arrays, got: Arrays) -> Arrays:
    """Accept the drawn values if their mean and standard deviation are right."""
    values = got["y"]
    sound = abs(float(values.mean()) - 2) < 0.1 and abs(float(values.std()) - 3) < 0.1
    return {"y": values if sound else np.full(values.shape, np.nan)}


def spread(x: np.ndarray, mask: np.ndarray, size: int) -> np.ndarray:
    """Unpooling: write each value to the position in its plane that the mask gives."""
    y = np.zeros((*x.shape[:2], size * size))
    np.put_along_axis(y, mask.reshape(*x.shape[:2], -1).astype(int), x.reshape(*x.shape[:2], -1), 2)
    return y.reshape(*x.shape[:2], size, size)


def masked_net(x: Arrays, got: Arrays) -> Arrays:
    inner = np.maximum(convolve(x["x0"], x["c/0"], x["c/1"], pad=1), 0)
    return {"y": convolve(np.maximum(inner + x["x0"], 0), x["y/0"], x["y/1"])}


def blocked_net(x: Arrays, got: Arrays) -> Arrays:
    a = convolve(x["x0"], x["a/0"], x["a/1"], pad=2)
    b = convolve(convolve(a, x["d/0"], x["d/1"], pad=1, group=32), x["b/0"], x["b/1"], pad=1)
    return {"y": convolve(lrn(pool(b, 2, 2, 0, False), 5, 0.5, 0.75, False), x["y/0"], x["y/1"])}


def own_classes(x: np.ndarray, top_k: int) -> np.ndarray:
    return np.argsort(-x, 1, kind="stable")[:, None, :top_k].astype(float)


def cases() -> list[Case]:
    conv = [
        conv_case("convolution 3x3", (2, 19, 17, 21), 23, 3, pad=1),
        conv_case("convolution 3x3, many channels", (2, 64, 30, 31), 64, 3, pad=1),
        conv_case("convolution 1x1", (3, 33, 9, 14), 20, 1),
        conv_case("convolution, strides, dilation", (2, 8, 25, 31), 12, 5, stride=2, pad=4, dilation=2),
        conv_case("convolution, groups", (2, 12, 13, 13), 18, 3, group=3),
        conv_case("convolution, depthwise", (2, 24, 20, 27), 24, 3, pad=1, group=24),
        conv_case("convolution, depthwise, narrow", (2, 40, 20, 7), 40, 3, pad=1, group=40),
        conv_case("convolution over 3 axes", (2, 4, 7, 9, 8), 6, 3, pad=1),
        conv_case("convolution over 4 axes", (2, 3, 5, 6, 5, 4), 4, 3, pad=1),
        Case(
            "deconvolution", layer("Deconvolution", "x0", "y", "convolution_param { num_output: 9 kernel_size: 4 stride: 2 }"),
            normal(x0=(2, 14, 9, 11), y_0=(14, 9, 4, 4), y_1=(9,)),
            lambda x, got: {"y": deconvolve(x["x0"], x["y/0"], x["y/1"], 2)}, ("x0", "y/0", "y/1"),
        ),
        Case(
            "conv, ReLU, sum", layer("Convolution", "x0", "c", "convolution_param { num_output: 8 kernel_size: 3 pad: 1 }") + layer("ReLU", "c", "c")
            + layer("Eltwise", "c x0", "s") + layer("ReLU", "s", "s") + layer("Convolution", "s", "y", "convolution_param { num_output: 5 kernel_size: 1 }"),
            normal(x0=(2, 8, 15, 18), c_0=(8, 8, 3, 3), c_1=(8,), y_0=(5, 8, 1, 1), y_1=(5,)), masked_net, ("x0", "c/0", "c/1", "y/0", "y/1"),
        ),
        Case(
            "channels in blocks", layer("Convolution", "x0", "a", "convolution_param { num_output: 32 kernel_size: 5 pad: 2 }")
            + layer("Convolution", "a", "d", "convolution_param { num_output: 32 kernel_size: 3 pad: 1 group: 32 }")
            + layer("Convolution", "d", "b", "convolution_param { num_output: 32 kernel_size: 3 pad: 1 }")
            + layer("Pooling", "b", "p", "pooling_param { kernel_size: 2 stride: 2 }") + layer("LRN", "p", "n", "lrn_param { local_size: 5 alpha: 0.5 }")
            + layer("Convolution", "n", "y", "convolution_param { num_output: 5 kernel_size: 1 }"),
            normal(x0=(1, 16, 24, 26), a_0=(32, 16, 5, 5), a_1=(32,), d_0=(32, 1, 3, 3), d_1=(32,), b_0=(32, 32, 3, 3), b_1=(32,), y_0=(5, 32, 1, 1), y_1=(5,)),
            blocked_net, phase="TEST",
        ),
        Case(
            "groups of channels in blocks", layer("Convolution", "x0", "a", "convolution_param { num_output: 64 kernel_size: 3 pad: 1 }")
            + layer("Convolution", "a", "y", "convolution_param { num_output: 64 kernel_size: 1 group: 2 }"),
            normal(x0=(2, 16, 9, 11), a_0=(64, 16, 3, 3), a_1=(64,), y_0=(64, 32, 1, 1), y_1=(64,)),
            lambda x, got: {"y": convolve(convolve(x["x0"], x["a/0"], x["a/1"], pad=1), x["y/0"], x["y/1"], group=2)}, ("x0", "a/0", "a/1", "y/0", "y/1"),
        ),
        Case(
            "signs as bits", layer("Eltwise", "x0 x1", "s") + layer("ReLU", "s", "s")
            + layer("Pooling", "s", "y", "pooling_param { kernel_size: 9 stride: 9 }"),
            normal(x0=(2, 8, 135, 129), x1=(2, 8, 135, 129)),  # above 1 MiB, a ReLU's output that no other launch reads in backward is kept as a sign mask
            lambda x, got: {"y": pool(np.maximum(x["x0"] + x["x1"], 0), 9, 9, 0, False)}, ("x0", "x1"),
        ),
    ]  # fmt: skip
    products = [
        Case(
            "matrix product", layer("InnerProduct", "x0", "y", "inner_product_param { num_output: 70 }"), normal(x0=(37, 131), y_0=(70, 131), y_1=(70,)),
            lambda x, got: {"y": x["x0"] @ x["y/0"].T + x["y/1"]}, ("x0", "y/0", "y/1"),
        ),
        Case(
            "matrix product, few rows", layer("InnerProduct", "x0", "y", "inner_product_param { num_output: 70 }"),
            normal(x0=(6, 131), y_0=(70, 131), y_1=(70,)), lambda x, got: {"y": x["x0"] @ x["y/0"].T + x["y/1"]}, ("x0", "y/0", "y/1"),
        ),
        Case(
            "rows", layer("Embed", "x0", "y", "embed_param { num_output: 19 input_dim: 11 }"),
            lambda rng: {"x0": rng.integers(0, 11, (40,)), "y/0": rng.standard_normal((11, 19)), "y/1": rng.standard_normal(19)},
            lambda x, got: {"y": x["y/0"][x["x0"].astype(int)] + x["y/1"]}, ("y/0", "y/1"),
        ),
        Case(
            "rows, chosen", layer("BatchReindex", "x0 x1", "y"), lambda rng: {"x0": rng.standard_normal((6, 5, 3)), "x1": rng.integers(0, 6, (9,))},
            lambda x, got: {"y": x["x0"][x["x1"].astype(int)]}, ("x0",),
        ),
        Case(
            "rows, filtered", layer("Filter", "x0 x1", "y"), lambda rng: {"x0": rng.standard_normal((9, 5)), "x1": np.arange(9) % 3 != 1},
            lambda x, got: {"y": x["x0"][x["x1"] != 0]}, ("x0",),
        ),
    ]  # fmt: skip
    windows = [
        pool_case("pooling 3x3", (2, 17, 22, 27), 3, 2),
        pool_case("pooling, padded", (3, 5, 13, 17), 5, 3, 2),
        Case(  # an input's diff is read outside, so a pooling of it works on planes: this one works on blocks (pooling_blocks.cl)
            "pooling between convolutions",
            layer("Convolution", "x0", "a", "convolution_param { num_output: 32 kernel_size: 3 pad: 1 }")
            + layer("Pooling", "a", "b", "pooling_param { pool: AVE kernel_size: 2 stride: 2 }")
            + layer("Convolution", "b", "y", "convolution_param { num_output: 32 kernel_size: 3 pad: 1 }"),
            normal(x0=(2, 16, 16, 12), a_0=(32, 16, 3, 3), a_1=(32,), y_0=(32, 32, 3, 3), y_1=(32,)),
            lambda x, got: {"y": convolve(pool(convolve(x["x0"], x["a/0"], x["a/1"], pad=1), 2, 2, 0, True), x["y/0"], x["y/1"], pad=1)},
            ("x0", "a/0", "a/1", "y/0", "y/1"),
        ),
        Case(  # the kernels of a net's first layers, between blocks
            "first layer, LRN",
            layer("Convolution", "x0", "a", "convolution_param { num_output: 32 kernel_size: 7 pad: 3 stride: 2 }")
            + layer("LRN", "a", "b", "lrn_param { local_size: 5 alpha: 0.5 beta: 0.75 }")
            + layer("Convolution", "b", "y", "convolution_param { num_output: 32 kernel_size: 3 pad: 1 }"),
            normal(x0=(2, 3, 31, 24), a_0=(32, 3, 7, 7), a_1=(32,), y_0=(32, 32, 3, 3), y_1=(32,)),
            lambda x, got: {"y": convolve(lrn(convolve(x["x0"], x["a/0"], x["a/1"], pad=3, stride=2), 5, 0.5, 0.75, False), x["y/0"], x["y/1"], pad=1)},
            ("x0", "a/0", "a/1", "y/0", "y/1"),
        ),
        pool_case("pooling of whole planes", (2, 9, 14, 14), 14, 1),
        lrn_case("LRN, across channels", 5, "ACROSS_CHANNELS"),
        lrn_case("LRN, within channels", 3, "WITHIN_CHANNEL"),
        softmax_case("softmax of rows", (70, 100)),
        softmax_case("softmax of maps", (2, 21, 23, 31)),
        Case(
            "argmax", layer("ArgMax", "x0", "y", "argmax_param { top_k: 3 }"), lambda rng: {"x0": rng.permutation(50 * 60).reshape(50, 60)},
            lambda x, got: {"y": own_classes(x["x0"], 3)},
        ),
        Case(
            "resize", layer("Interp", "x0", "y", "interp_param { height: 19 width: 30 }"), normal(x0=(2, 5, 7, 11)),
            lambda x, got: {"y": bilinear(x["x0"], 19, 30)}, ("x0",),
        ),
        Case(
            "border", layer("Pad", "x0", "y", "pad_param { begin: 1 begin: 0 end: 2 end: 1 mode: REFLECT }"), normal(x0=(2, 3, 6, 7)),
            lambda x, got: {"y": np.pad(x["x0"], [(0, 0), (0, 0), (1, 2), (0, 1)], "reflect")}, ("x0",),
        ),
        Case(
            "ctc", layer("WarpCTCLoss", "x0 x1", "loss") + layer("CTCGreedyDecoder", "x0", "y"),
            lambda rng: {"x0": rng.standard_normal((5, 1, 3)), "x1": np.array([[1, 1, 2]])},
            lambda x, got: {"loss": np.asarray(ctc_cost(x["x0"][:, 0], [1, 1, 2], 0)), "y": greedy(x["x0"][:, 0])}, ("x0",),
        ),
        Case(
            "YOLO, loss", layer("Yolov3", "x0 x1", "loss", "yolov3_param { num_class: 1 num: 1 mask: 0 anchors_scale: 1 biases: 2 biases: 1 }"),
            lambda rng: {"x0": rng.standard_normal((2, 6, 3, 4)), "x1": np.zeros((2, 1, 2, 5))},  # no true boxes: the objectness is trained to 0
            lambda x, got: {"loss": np.asarray((1 / (1 + np.exp(-x["x0"][:, 4])) ** 2).sum() / 2)},
        ),
        Case(
            "YOLO, boxes", layer("YoloDetectionOutput", "x0", "y", "yolo_detection_output_param { num_classes: 1 num_box: 1 confidence_threshold: 0.3 "
            "biases: 0.5 biases: 0.25 }"), lambda rng: {"x0": np.array([0, 0, 0, 0, 0, 0, 0, 0, 1, -3, 0, 0]).reshape(1, 6, 1, 2)},
            lambda x, got: {"y": np.array([0, 1, 1 / (1 + np.exp(-1)), 0.125, 0.375, 0.375, 0.625]).reshape(1, 1, 1, 7)}, phase="TEST",
        ),
        Case(
            "distance", layer("InnerDistance", "x0", "y", "inner_distance_param { num_output: 7 bias_term: false }"), normal(x0=(9, 33), y_0=(7, 33)),
            lambda x, got: {"y": ((x["x0"][:, None] - x["y/0"]) ** 2).sum(2)}, ("x0", "y/0"),
        ),
        Case(
            "excitation", layer("AssistedExcitation", "x0 x1 x2", "y", "assisted_excitation_param { max_iter: 9 }"),
            lambda rng: {**normal(x0=(1, 3, 4, 8), x2=(1, 1, 4, 8))(rng), "x1": np.array([[[[1, 0.5, 0.25, 0.5, 0.5]]]])},
            lambda x, got: {"y": x["x0"] + np.pad(x["x2"][:, :, :2, 2:6], [(0, 0), (0, 0), (0, 2), (2, 2)])}, ("x0",),
        ),
        Case(
            "reverse", layer("Reverse", "x0", "y", "reverse_param { axis: 0 axis: 2 }"), normal(x0=(3, 5, 7, 11)), lambda x, got: {"y": x["x0"][::-1, :, ::-1]},
            ("x0",),
        ),
        Case(
            "steps", layer("StridedSlice", "x0", "y", "strided_slice_param { axis: 0 axis: 2 axis: 3 step: -1 step: 2 step: -3 }"), normal(x0=(3, 2, 7, 9)),
            lambda x, got: {"y": x["x0"][::-1, :, ::2, ::-3]}, ("x0",),
        ),
        Case(
            "grid", layer("GridSample", "x0 x1", "y", "grid_sample_param { align_corners: true }"),
            lambda rng: {"x0": rng.standard_normal((2, 3, 6, 7)), "x1": rng.uniform(-1, 1, (2, 4, 5, 2))},
            lambda x, got: {"y": interpolated(x["x0"], np.arange(2)[:, None, None], (x["x1"][..., ::-1] + 1) / 2 * [5, 6])}, ("x0", "x1"),
        ),
        Case(
            "aligned regions", layer("ROIAlign", "x0 x1", "y", "propagate_down: true propagate_down: false "
            "roi_align_param { pooled_h: 2 pooled_w: 3 sampling_ratio: 1 }"),
            lambda rng: {"x0": rng.standard_normal((2, 3, 9, 10)), "x1": np.array([[1, 1, 0, 7, 6], [0, 2.5, 1, 8.5, 7.5]])}, aligned, ("x0",),
        ),
        Case(
            "values of regions", layer("ROIAlignment", "x0 x1", "y", "propagate_down: true propagate_down: false "
            "roi_alignment_param { pooled_h: 2 pooled_w: 3 sampling_ratio: 1 }"),
            lambda rng: {"x0": rng.standard_normal((2, 3, 9, 10)), "x1": np.array([[1, 1, 0, 7, 6], [0, 2.5, 1, 7.5, 6.5]])}, region_middles, ("x0",),
        ),
        Case(
            "correlation", layer("Correlation", "x0 x1", "y", "correlation_param { pad: 2 kernel_size: 1 max_displacement: 2 stride_1: 1 stride_2: 1 }"),
            normal(x0=(2, 3, 6, 7), x1=(2, 3, 6, 7)), lambda x, got: {"y": correlated(x, 2, 2, 1, 1, 1)}, ("x0", "x1"),
        ),
        Case(
            "attention", layer("PointwiseSpatialAttention", "x0 x1", "y", "pointwise_spatial_attention_param { psa_type: DISTRIBUTE "
            "is_softmax: true attention_mask_height: 3 attention_mask_width: 5 }"),
            normal(x0=(2, 3, 3, 4), x1=(2, 15, 3, 4)), lambda x, got: {"y": attended(x, (3, 5), False, True, 15)}, ("x0", "x1"),
        ),
        Case(
            "upsample", layer("Upsample", "x0", "y", "upsample_param { scale: 2 }"), normal(x0=(2, 5, 7, 9)),
            lambda x, got: {"y": x["x0"].repeat(2, 2).repeat(2, 3)}, ("x0",),
        ),
        Case(
            "unpool", layer("Upsample", "x0 x1", "y", "upsample_param { upsample_h: 12 upsample_w: 12 }"),
            lambda rng: {"x0": rng.standard_normal((2, 5, 6, 6)), "x1": np.stack([rng.permutation(144)[:36] for _ in range(10)]).reshape(2, 5, 6, 6)},
            lambda x, got: {"y": spread(x["x0"], x["x1"], 12)}, ("x0",),
        ),
    ]  # fmt: skip
    generated = [
        Case(
            "pointwise", "".join(layer(kind, "x0", kind, text) for kind, (text, _) in POINTWISE.items()), normal(x0=(3, 7, 5, 11)),
            lambda x, got: {kind: function(x["x0"]) for kind, (_, function) in POINTWISE.items()}, ("x0",),
        ),
        Case(
            "pointwise, several", layer("Eltwise", "x0 x1 x2", "a", "eltwise_param { operation: PROD }") + layer("Eltwise", "x0 x1", "b",
            "eltwise_param { operation: MAX }") + layer("Scale", "x2", "c", "scale_param { bias_term: true }") + layer("PReLU", "x1", "d"),
            normal(x0=(3, 6, 5, 7), x1=(3, 6, 5, 7), x2=(3, 6, 5, 7), c_0=(6,), c_1=(6,), d_0=(6,)),
            lambda x, got: {
                "a": x["x0"] * x["x1"] * x["x2"], "b": np.maximum(x["x0"], x["x1"]), "c": x["x2"] * x["c/0"][:, None, None] + x["c/1"][:, None, None],
                "d": np.where(x["x1"] > 0, x["x1"], x["x1"] * x["d/0"][:, None, None]),
            }, ("x0", "x1", "x2", "c/0", "c/1", "d/0"),
        ),
        Case("random numbers", layer("Dropout", "x0", "y"), normal(x0=(40, 300)), dropped, ("x0",)),
        Case(
            "sums", layer("Reduction", "x0", "a", "reduction_param { operation: SUMSQ axis: 1 coeff: 0.5 }") + layer("EuclideanLoss", "x0 x1", "b"),
            normal(x0=(9, 13, 17), x1=(9, 13, 17)),
            lambda x, got: {"a": 0.5 * (x["x0"] ** 2).sum((1, 2)), "b": np.asarray(((x["x0"] - x["x1"]) ** 2).sum() / 18)}, ("x0", "x1"),
        ),
        Case(
            "normalisation", layer("BatchNorm", "x0", "a") + layer("MVN", "x0", "b"), normal(x0=(5, 7, 9, 11)),
            lambda x, got: {"a": batch_norm(x["x0"]), "b": standardised(x["x0"])}, ("x0",),
        ),
        Case(
            "transpositions", layer("Permute", "x0", "a", "permute_param { order: 0 order: 2 order: 3 order: 1 }"), normal(x0=(3, 17, 13, 19)),
            lambda x, got: {"a": x["x0"].transpose(0, 2, 3, 1)}, ("x0",),
        ),
        Case(
            "copies", layer("Concat", "x0 x1", "a") + layer("Slice", "x0", "b c", "slice_param { slice_point: 2 }") + layer("Tile", "x1", "d",
            "tile_param { tiles: 3 }"), normal(x0=(3, 5, 6, 7), x1=(3, 4, 6, 7)),
            lambda x, got: {"a": np.concatenate([x["x0"], x["x1"]], 1), "b": x["x0"][:, :2], "c": x["x0"][:, 2:], "d": np.tile(x["x1"], (1, 3, 1, 1))},
            ("x0", "x1"),
        ),
        Case(
            "random fillers", layer("DummyData", "", "y", "dummy_data_param { shape { dim: 70 dim: 331 } data_filler { type: 'gaussian' mean: 2 std: 3 } }"),
            lambda rng: {}, drawn,
        ),
        Case(
            "image transformation", layer("Data", "", "data label", 'data_param { source: "{folder}/db" batch_size: 5 backend: LMDB } '
            "transform_param { crop_size: 13 scale: 0.0078125 mean_value: 104 mean_value: 117 mean_value: 123 }"), lambda rng: {}, transformed,
            phase="TEST", prepare=images,
        ),
        Case(
            "image augmentation", layer("Data", "", "data label", 'data_param { source: "{folder}/db" batch_size: 5 backend: LMDB } '
            "transform_param { crop_size: 13 scale: 0.0078125 mean_value: 104 mean_value: 117 mean_value: 123 "
            "resize_param { height: 38 width: 46 resize_mode: WARP } }"), lambda rng: {}, enlarged, phase="TEST", prepare=images,
        ),
    ]  # fmt: skip
    return [*conv, *products, *windows, *generated]

