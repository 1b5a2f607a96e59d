"""Pooling: MAX, AVE or STOCHASTIC over windows in H x W or D x H x W."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe import proto
from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.pooling.pooling import Pool
from ocaffe.layers.base import TEST_PHASE, Layer, register
from ocaffe.layers.window import Window, axes_text, bounded
from ocaffe.onnx.graph import OnnxGraph
from ocaffe.onnx.pooling import pooled
from ocaffe.support import log


@register("Pooling")
class Pooling(Layer):
    """MAX, AVE or STOCHASTIC (a random pixel) of each window of N x C x H x W; output sizes are rounded up, and AVE counts padding, as in Caffe.

    MAX saves the position of the maximum in its window, so that backward reads no data. The position takes a byte for windows up to 15 x 17.
    A second top of MAX is Caffe's mask: the position in the plane as a float, or -1 if there is none. STOCHASTIC draws a pixel in TRAIN and
    computes the expectation in TEST.

    Fields of forks: N x C x D x H x W bottoms with kernel_size_3d, stride_3d and pad_3d (Intel), avg_include_pad (Intel), `axis` of the
    channels (Intel, OpenCL), dilation of MAX and STOCHASTIC (OpenCL), ceil_mode (a pull request).
    """

    tops = (1, 2)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        param, x = self.own(), bottoms[0]
        method = param.PoolMethod.Name(param.pool)
        axis = self.axis(param.axis, x)
        image = x[axis + 1 :]
        self.check(
            len(image) in (2, 3),
            f"bottom 0 is {shape_text(x)} with channels in axis {axis}, it must be N x C x H x W or N x C x D x H x W",
            "set axis to that of the channels, 1 if they follow the batch" if len(x) in (4, 5) else "add a Reshape layer that makes 4 or 5 axes",
        )
        window = Window.read(self, param, image)
        kernel, pad, picture = axes_text(window.kernel), axes_text(window.pad), " x ".join(map(str, image))
        dilated = max(window.dilation) > 1
        self.check(
            param.pool != param.AVE or not dilated,
            f"AVE pooling with dilation {axes_text(window.dilation)} is not supported",
            "remove dilation, or write pool: MAX",
        )
        self.check(
            all(p < extent for p, extent in zip(window.pad, window.extent)),
            f"pad {pad} is not smaller than kernel {kernel}" + f" with dilation {axes_text(window.dilation)}" * dilated,
            f"set pad below {min(window.extent)}",
        )
        ceil = param.round_mode == param.CEIL and param.ceil_mode
        outputs = window.outputs(image, ceil)
        fitting = min((n + 2 * p - 1) // d + 1 for n, p, d in zip(image, window.pad, window.dilation))
        self.check(
            min(outputs) > 0,
            f"a window of {axes_text(window.extent)} does not fit into the {picture} image with pad {pad}",
            f"set kernel_size to {max(1, fitting)} or less, or give a larger image",
        )
        empty = window.empty(image, outputs)
        settings = f"kernel {kernel}, stride {axes_text(window.stride)}, pad {pad}, " + (f"dilation {axes_text(window.dilation)}, " * dilated)
        covers = f"the {method} window at the {empty} covers no pixel of the {picture} image ({settings}{'CEIL' if ceil else 'FLOOR'})"
        remedy = "set pad to 0, or dilation to 1" if dilated else "set round_mode: FLOOR or stride <= kernel_size"
        self.check(param.pool == param.MAX or empty is None, covers, remedy)
        if empty is not None:
            log.warn_once("pooling_layer.cpp:120", f"layer {self.title}: {covers}; it gives -3.4e38, as in Caffe; {remedy}")
        unpadded = param.pool != param.STOCHASTIC or not any(window.pad)
        self.check(unpadded, f"STOCHASTIC pooling takes no padding, pad is {pad}", "remove pad, or write pool: MAX or pool: AVE")
        tops = max(1, len(self.param.top))
        self.check(tops == 1 or param.pool == param.MAX, f"{method} pooling has no mask as second top", "remove the second top")
        self.planes = (x[0], math.prod(x[1 : axis + 1]))
        stride = bounded(window.stride, image, window.pad)
        self.pool = Pool(param.pool, window.kernel, stride, window.pad, image, outputs, window.dilation, param.avg_include_pad)
        return [(*x[: axis + 1], *outputs)] * tops

    @property
    def by_sample(self) -> bool:
        return self.own().pool != proto.PoolingParameter.STOCHASTIC and self.own().axis != 0

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        method = proto.PoolingParameter
        draws = self.own().pool == method.STOCHASTIC and self.phase == proto.TRAIN
        y = self.images(tops[0].data, self.pool.outputs)
        self.index: Ref | None = None
        if draws or (self.own().pool == method.MAX and (rec.train or len(tops) > 1)):
            self.index = (rec.saved if rec.train else rec.scratch)("index", y.shape, self.pool.index_dtype)
        self.pool.forward(rec, self.images(bottoms[0].data, self.pool.image), y, self.index)
        if len(tops) > 1 and self.index is not None:
            self.pool.mask(rec, self.index, self.images(tops[1].data, self.pool.outputs))

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.own().pool == proto.PoolingParameter.STOCHASTIC and self.phase == proto.TRAIN:
            raise graph.refused("it draws pixels at random in the TRAIN phase", TEST_PHASE)
        mask = tops[1] if len(tops) > 1 else None
        shape = (-1, math.prod(self.planes[1:]), *self.pool.image)
        if bottoms[0].shape[1:] == shape[1:]:
            pooled(graph, self.pool, bottoms[0], tops[0], mask)
        elif mask is None:
            graph.reshape(pooled(graph, self.pool, graph.reshape(bottoms[0], shape)), to=tops[0])
        else:
            raise graph.refused(f"its mask is of pooling after axis {self.own().axis}, and ONNX pools after axis 1 only", "remove the second top")

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.check(
            self.own().pool != proto.PoolingParameter.STOCHASTIC or self.phase == proto.TRAIN,
            "STOCHASTIC pooling has no gradient in the TEST phase",
            "train in the TRAIN phase: Net(file, caffe.TRAIN), and no phase: TEST in this layer",
        )
        assert tops[0].diff is not None and bottoms[0].diff is not None
        self.pool.backward(rec, self.images(tops[0].diff, self.pool.outputs), self.index, self.images(bottoms[0].diff, self.pool.image))

    def images(self, ref: Ref, size: tuple[int, ...]) -> Ref:
        """Return the Ref with the axes from 1 to the channel axis merged."""
        shape = (*self.planes, *size)
        return ref if ref.shape == shape else ref.view(shape)
