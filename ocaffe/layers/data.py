"""Data: images and labels of an LMDB (or LevelDB) of Datums."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe import proto
from ocaffe.data.changes.augment import FIELDS as AUGMENTATIONS
from ocaffe.data.changes.augment import Augmentation, wants_augmentation
from ocaffe.data.changes.transform import Transform
from ocaffe.data.source import key_of, upload
from ocaffe.data.sources.database_images import ImageSource
from ocaffe.data.sources.image_batches import PictureSource
from ocaffe.errors import Error
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import Layer, register


def transform_of(layer: Layer, more: frozenset[str] = frozenset()) -> Transform:
    """Return the Transform of the layer's transform_param. `more` names further fields that the layer uses. Errors name the layer."""
    try:
        return Transform(layer.param.transform_param, layer.phase == proto.TRAIN, more)
    except Error as problem:
        problem.place, problem.layer = problem.place or layer.place, layer.title
        raise


def image_transform(layer: Layer) -> Transform:
    """Return the Transform of a layer of images: an Augmentation if a field needs one."""
    param, train = layer.param.transform_param, layer.phase == proto.TRAIN
    if not wants_augmentation(param, train):
        return transform_of(layer, AUGMENTATIONS)
    try:
        return Augmentation(param, train)
    except Error as problem:
        problem.place, problem.layer = problem.place or layer.place, layer.title
        raise


@register("Data")
class Data(Layer):
    """Images and labels from an LMDB or LevelDB of Datums, with the extensions crop_h and crop_w (SSD), shuffle and parser_threads (NVCaffe).

    `source` can make any batch, so the batch number is the only state (ocaffe/data/source.py).
    """

    bottoms, tops = 0, (1, 2)
    source: PictureSource | None = None

    def open(self, transform: Transform, labels: bool) -> PictureSource:
        """Return the source of the layer. `labels`: the layer has a top for labels."""
        return ImageSource(self.own(), transform, labels, place=self.place, layer=self.title)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        if self.source is None:
            self.source = self.open(image_transform(self), len(self.param.top) > 1)
            self.source.key = key_of(self.seed, self.param.name)
            self.notes = self.source.notes
        return self.source.shapes()

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        assert self.source is not None
        layout = self.source.layout(tops[0].shape)  # the top's shape tells the size of this batch's images, which may differ from the first batch
        staging = upload(rec, self.source, layout.nbytes)
        self.source.transform.record(rec, staging, layout, tops[0].data, tops[1].data if len(tops) > 1 else None)
