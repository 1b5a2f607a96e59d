"""ImageSegData: images and label images for training DeepLab and PSPNet."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe import proto
from ocaffe.data.changes.transform import PASTE, Transform
from ocaffe.data.source import key_of, upload
from ocaffe.data.sources.seg import SegSource
from ocaffe.errors import Error
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import Layer, register

FIELDS = frozenset({"scale_factors"})


@register("ImageSegData")
class ImageSegData(Layer):
    """Image files from a list, each with a label image (N x 1 x H x W), and the sizes of the images (N x 1 x 1 x 2: height, width, at most the crop's).

    In TRAIN and TEST one of scale_factors is drawn for each image, which is scaled by it (labels to the nearest pixel). An image smaller than the crop
    is padded at the bottom and the right: with 0 after the mean is subtracted, and with ignore_label in the labels. Both are mirrored alike. With
    label_type IMAGE a line of the list has one label for all pixels, with NONE all pixels have ignore_label.

    The crop is crop_size, or crop_height and crop_width. Source: DeepLab's ImageSegData, as in hszhao/PSPNet. DenseImageData reads such lists too, with
    other augmentation.
    """

    bottoms, tops = 0, (1, 3)
    origin = "DeepLab, PSPNet"
    message = "image_data_param"
    own_fields = frozenset(f"TransformationParameter.{name}" for name in ("scale_factors", "crop_width", "crop_height"))
    source: SegSource | None = None

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        if self.source is None:
            own = proto.TransformationParameter()
            own.CopyFrom(self.param.transform_param)
            for name, ours in (("crop_height", "crop_h"), ("crop_width", "crop_w")):
                if own.HasField(name):
                    setattr(own, ours, getattr(own, name))
                    own.ClearField(name)
            try:
                transform = Transform(own, self.phase == proto.TRAIN, FIELDS)
            except Error as problem:
                problem.place, problem.layer = problem.place or self.place, self.title
                raise
            factors, tops = tuple(own.scale_factors), len(self.param.top)
            self.source = SegSource(self.own(), transform, factors, tops, place=self.place, layer=self.title)
            self.source.key = key_of(self.seed, self.param.name)
            self.notes = self.source.notes
        return self.source.shapes()

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        assert self.source is not None
        transform = self.source.transform
        plain = transform.bare()
        plain.mirror, plain.crop = False, None
        layouts = self.source.layouts(tops[0].shape)
        staging = upload(rec, self.source, sum(layout.nbytes for layout in layouts))
        begin = 0
        for top, layout, part, kernel in zip(tops, layouts, (transform, plain, plain), (PASTE, None, None)):
            part.record(rec, staging.view((layout.nbytes,), begin), layout, top.data, None, kernel)
            begin += layout.nbytes
