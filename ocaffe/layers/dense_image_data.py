"""DenseImageData: images and label images for training SegNet."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.data.changes.transform import Transform
from ocaffe.data.source import key_of, upload
from ocaffe.data.sources.dense import DenseImageSource
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import Layer, register
from ocaffe.layers.data import image_transform


@register("DenseImageData")
class DenseImageData(Layer):
    """Image files from a list, each with a label image (N x 1 x H x W) whose gray levels are the labels of the pixels.

    Both are resized (label images by nearest neighbour), cropped and mirrored alike; SegNet itself refuses crop and mirror. The augmentation of
    Data moves both alike too, labels to the nearest pixel. Mean, scale, colors and erasing apply to the images only.
    """

    bottoms, tops = 0, (1, 2)
    origin = "SegNet"
    source: DenseImageSource | None = None

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        if self.source is None:
            self.source = self.opened()
            self.source.key = key_of(self.seed, self.param.name)
            self.notes = self.source.notes
        return self.source.shapes()

    def opened(self) -> DenseImageSource:
        """Return the source of the layer."""
        return DenseImageSource(self.own(), image_transform(self), len(self.param.top) > 1, place=self.place, layer=self.title)

    def label_transform(self, transform: Transform) -> Transform:
        """Return the transform of the labels, for that of the images."""
        return transform.bare()

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        assert self.source is not None
        transform = self.source.transform
        layouts = self.source.layouts(tops[0].shape)
        staging = upload(rec, self.source, sum(layout.nbytes for layout in layouts))
        begin = 0
        for top, layout, part in zip(tops, layouts, (transform, self.label_transform(transform))):
            part.record(rec, staging.view((layout.nbytes,), begin), layout, top.data, None)
            begin += layout.nbytes
