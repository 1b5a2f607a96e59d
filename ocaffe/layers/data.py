"""Data: images and labels of an LMDB (or LevelDB) of Datums."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe import proto
from ocaffe.data.images import ImageSource
from ocaffe.data.pictures import PictureSource
from ocaffe.data.source import key_of, upload
from ocaffe.data.transform import Transform
from ocaffe.errors import Error
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import Layer, register


def transform_of(layer: Layer, more: frozenset[str] = frozenset()) -> Transform:
    """What the transform_param of `layer` asks for; `more` fields than usual are used by the layer. Its errors are the layer's."""
    try:
        return Transform(layer.param.transform_param, layer.phase == proto.TRAIN, more)
    except Error as problem:
        problem.place, problem.layer = problem.place or layer.place, layer.title
        raise


@register("Data")
class Data(Layer):
    """Caffe's Data, with the extensions crop_h and crop_w (SSD), shuffle and parser_threads (NVCaffe). Tops: images, labels.

    The batch number is all that a run has to remember; `source` makes any batch (ocaffe/data/source.py).
    """

    bottoms, tops = 0, (1, 2)
    source: PictureSource | None = None

    def open(self, transform: Transform, labels: bool) -> PictureSource:
        """The source of the layer; `labels`: there is a top for them."""
        return ImageSource(self.own(), transform, labels, place=self.place, layer=self.title)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        if self.source is None:
            self.source = self.open(transform_of(self), len(self.param.top) > 1)
            self.source.key = key_of(self.seed, self.param.name)
            self.notes = self.source.notes
        return self.source.shapes()

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        assert self.source is not None
        layout = self.source.layout(tops[0].shape)  # which may be that of a later batch, with images of another size
        staging = upload(rec, self.source, layout.nbytes)
        self.source.transform.record(rec, staging, layout, tops[0].data, tops[1].data if len(tops) > 1 else None)
