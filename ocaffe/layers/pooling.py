"""Pooling: MAX, AVE or STOCHASTIC over windows in H x W."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe import proto
from ocaffe.errors import shape_text
from ocaffe.graph.ir import Blob, Ref, Shape
from ocaffe.graph.recorder import Recorder
from ocaffe.layers.base import Layer, register
from ocaffe.layers.window import Window, pair_text
from ocaffe.ops.pooling import Pool

FORKS = ("pad_3d", "kernel_size_3d", "stride_3d", "dilation", "bin_size", "bin_h", "bin_w", "torch_pooling")


@register("Pooling")
class Pooling(Layer):
    """Caffe's Pooling of N x C x H x W, with its rounding (CEIL) and its AVE, which counts padding.

    MAX saves the place of the maximum in its window, a byte for windows up to 15 x 17, so that backward reads no data. A second top of MAX
    is Caffe's mask: the place in the plane, as a float, -1 if there is none. STOCHASTIC draws in the TRAIN phase and gives the expectation
    in the TEST phase.
    """

    tops = (1, 2)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        param, x = self.own(), bottoms[0]
        method = param.PoolMethod.Name(param.pool)
        for name in FORKS:
            self.check(not getattr(param, name), f"pooling_param {{ {name} }} (a fork's) is not supported", f"remove {name}")
        self.check(param.avg_include_pad, "pooling_param { avg_include_pad: false } (Intel's) is not supported", "remove avg_include_pad")
        self.check(len(x) == 4, f"bottom 0 is {shape_text(x)}, it must be N x C x H x W", "add a Reshape layer before it")
        image = x[2], x[3]
        window = Window.read(self, param, image)
        kernel, pad, picture = pair_text(window.kernel), pair_text(window.pad), f"{image[0]} x {image[1]}"
        self.check(
            window.pad[0] < window.kernel[0] and window.pad[1] < window.kernel[1],
            f"pad {pad} is not smaller than kernel {kernel}",
            "a smaller pad",
        )
        outputs = window.outputs(image, ceil=param.round_mode == param.CEIL and param.ceil_mode)
        self.check(min(outputs) > 0, f"a window of {kernel} does not fit into the {picture} image with pad {pad}", "a smaller kernel")
        empty = window.empty(image, outputs)
        self.check(
            param.pool == param.MAX or empty is None,
            f"the {method} window at the last {empty} covers no pixel of the {picture} image "
            f"(kernel {kernel}, stride {pair_text(window.stride)}, pad {pad}, CEIL)",
            "set round_mode: FLOOR or stride <= kernel_size",
        )
        unpadded = param.pool != param.STOCHASTIC or not any(window.pad)
        self.check(unpadded, f"STOCHASTIC pooling takes no padding, pad is {pad}", "remove pad")
        tops = max(1, len(self.param.top))
        self.check(tops == 1 or param.pool == param.MAX, f"{method} pooling has no mask as second top", "remove the second top")
        self.pool = Pool(param.pool, window.kernel, window.stride, window.pad, image, outputs)
        return [(*x[:2], *outputs)] * tops

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        method = proto.PoolingParameter
        draws = self.own().pool == method.STOCHASTIC and self.phase == proto.TRAIN
        self.index: Ref | None = None
        if draws or (self.own().pool == method.MAX and (rec.train or len(tops) > 1)):
            self.index = (rec.saved if rec.train else rec.scratch)("index", tops[0].shape, self.pool.index_dtype)
        self.pool.forward(rec, bottoms[0].data, tops[0].data, self.index)
        if len(tops) > 1 and self.index is not None:
            self.pool.mask(rec, self.index, tops[1].data)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.check(
            self.own().pool != proto.PoolingParameter.STOCHASTIC or self.phase == proto.TRAIN,
            "STOCHASTIC pooling has no gradient in the TEST phase",
            "build the net with phase: TRAIN",
        )
        assert tops[0].diff is not None and bottoms[0].diff is not None
        self.pool.backward(rec, tops[0].diff, self.index, bottoms[0].diff)
