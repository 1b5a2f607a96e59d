"""SPP: spatial pyramid pooling."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe import proto
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.pooling.pooling import Pair, Pool
from ocaffe.layers.base import TEST_PHASE, Layer, register, stated
from ocaffe.layers.window import Window, pair_text
from ocaffe.onnx.graph import OnnxGraph
from ocaffe.onnx.pooling import pooled


@register("SPP")
class SPP(Layer):
    """Spatial pyramid pooling (MAX, AVE or STOCHASTIC) into 1, 4, 16 and more bins: N x C x H x W gives N x (C * all bins) for any H and W.

    Every level writes its part of the top, so no copy is needed.
    """

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, x = self.own(), bottoms[0]
        self.check_axes(x, "N x C x H x W")
        self.check(
            p.pyramid_height >= 1,
            stated(p, "pyramid_height"),
            f"{self.written('pyramid_height: N')}, where N is the number of levels: 3 pools into 1, 4 and 16 bins",
        )
        self.draws = p.pool == p.STOCHASTIC and self.phase == proto.TRAIN
        self.channels = x[1]
        self.levels = [self.level(1 << level, (x[2], x[3])) for level in range(p.pyramid_height)]
        if len(self.levels) == 1:
            return [(*x[:2], 1, 1)]
        return [(x[0], x[1] * sum(math.prod(pool.outputs) for pool in self.levels))]

    def level(self, bins: int, image: Pair) -> Pool:
        """Return the pooling with bins x bins adjacent windows of size ceil(image / bins). If the total padding is odd, more of it is before the image."""
        p = self.own()
        kernel = (-(-image[0] // bins), -(-image[1] // bins))
        pad = ((kernel[0] * bins - image[0] + 1) // 2, (kernel[1] * bins - image[1] + 1) // 2)
        what = f"the level of {bins} x {bins} bins needs windows of {pair_text(kernel)} with pad {pair_text(pad)} for the {image[0]} x {image[1]} image"
        self.check(
            pad[0] < kernel[0] and pad[1] < kernel[1],
            f"{what}; pad must be smaller",
            f"set pyramid_height to {bins.bit_length() - 1}, or give a larger image",
        )
        self.check(
            p.pool != p.STOCHASTIC or not any(pad),
            f"{what}, but STOCHASTIC pooling takes no padding",
            f"give an image whose height and width {bins} divides, or write pool: MAX or pool: AVE",
        )
        return Pool(p.pool, kernel, kernel, pad, image, Window(kernel, kernel, pad).outputs(image, ceil=True))

    def parts(self, top: Ref) -> list[Ref]:
        """Return views of each level's part of the top or its diff, as N x C x bins x bins."""
        views, start = list[Ref](), 0
        for pool in self.levels:
            views.append(top.view((top.shape[0], self.channels, *pool.outputs), start, top.batch_stride))
            start += self.channels * math.prod(pool.outputs)
        return views

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        self.indices: list[Ref | None] = []
        for number, (pool, part) in enumerate(zip(self.levels, self.parts(tops[0].data))):
            indexed = self.draws or (self.own().pool == proto.SPPParameter.MAX and rec.train)
            index = (rec.saved if rec.train else rec.scratch)(f"index{number}", part.shape, pool.index_dtype) if indexed else None
            pool.forward(rec, bottoms[0].data, part, index, stream=f"level{number}")
            self.indices.append(index)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.draws:
            raise graph.refused("it draws pixels at random in the TRAIN phase", TEST_PHASE)
        if len(self.levels) == 1:
            pooled(graph, self.levels[0], bottoms[0], tops[0])
        else:
            graph.op("Concat", *(graph.op("Flatten", pooled(graph, level, bottoms[0])) for level in self.levels), to=tops[0], axis=1)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        stochastic = self.own().pool == proto.SPPParameter.STOCHASTIC
        self.check(self.draws or not stochastic, "STOCHASTIC pooling has no gradient in the TEST phase",
                   "train in the TRAIN phase: Net(file, caffe.TRAIN), and no phase: TEST in this layer")  # fmt: skip
        assert tops[0].diff is not None and bottoms[0].diff is not None
        for pool, part, index in zip(self.levels, self.parts(tops[0].diff), self.indices):
            pool.backward(rec, part, index, bottoms[0].diff)
            rec.enter(rec.layer, rec.phase)  # a new node: the next level adds to the diff that this one wrote
