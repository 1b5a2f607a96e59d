"""SegData: images and label images of several sizes, of TSN's branch of Caffe."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe import proto
from ocaffe.data.changes.transform import PASTE, Transform
from ocaffe.data.source import key_of, upload
from ocaffe.data.sources.stride import StrideSource
from ocaffe.errors import Error
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import Layer, register

SIZES = frozenset({"scale_ratios", "stride", "upper_size", "upper_height", "upper_width"})


@register("SegData")
class SegData(Layer):
    """An image file of a list (1 x 3 x H x W) with its label image (1 x 1 x H x W); each batch has one pair, and a size of its own.

    Both are scaled by a number between the two scale_ratios (labels to the nearest pixel). The sample is a random crop, also in TEST: its sides are the
    largest multiples of stride that fit, at most upper_size, or upper_height and upper_width. mirror turns both. With balance a sample is drawn
    again, at most 10 times, while one label has more than 80 % of it. crop_size has no effect, as in the fork. Source: yjxiong/caffe,
    src/caffe/layers/seg_data_layer.cpp and data_transformer.cpp at 9831a2b. shuffle has another order than the fork, which always draws with the seed 17.
    """

    bottoms, tops = 0, 2
    origin = "TSN"
    own_fields = frozenset(f"TransformationParameter.{name}" for name in SIZES)
    source: StrideSource | None = None

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        if self.source is None:
            settings = proto.TransformationParameter()
            settings.CopyFrom(self.param.transform_param)
            settings.ClearField("crop_size")
            try:
                transform = Transform(settings, self.phase == proto.TRAIN, SIZES)
            except Error as problem:
                problem.place, problem.layer = problem.place or self.place, self.title
                raise
            self.source = StrideSource(self.own(), settings, transform, place=self.place, layer=self.title)
            self.source.key = key_of(self.seed, self.param.name)
            self.notes = self.source.notes
        return self.source.shapes()

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        assert self.source is not None
        transform = self.source.transform
        plain = transform.bare()
        plain.mirror = False
        layouts = self.source.layouts(tops[0].shape)
        staging = upload(rec, self.source, sum(layout.nbytes for layout in layouts))
        begin = 0
        for top, layout, part, kernel in zip(tops, layouts, (transform, plain), (PASTE, None)):
            part.record(rec, staging.view((layout.nbytes,), begin), layout, top.data, None, kernel)
            begin += layout.nbytes
