"""Data: images and labels of an LMDB (or LevelDB) of Datums."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe import proto
from ocaffe.data.images import ImageSource
from ocaffe.data.source import key_of, upload
from ocaffe.data.transform import Transform
from ocaffe.errors import Error
from ocaffe.graph.ir import Blob, Shape
from ocaffe.graph.recorder import Recorder
from ocaffe.layers.base import Layer, register


@register("Data")
class Data(Layer):
    """Caffe's Data, with the extensions crop_h and crop_w (SSD), shuffle and parser_threads (NVCaffe). Tops: images, labels.

    The batch number is all that a run has to remember; `source` makes any batch (ocaffe/data/source.py).
    """

    bottoms, tops = 0, (1, 2)
    source: ImageSource | None = None

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        if self.source is None:
            try:
                transform = Transform(self.param.transform_param, self.phase == proto.TRAIN)
            except Error as problem:
                problem.place, problem.layer = problem.place or self.place, self.title
                raise
            self.source = ImageSource(self.own(), transform, len(self.param.top) > 1, place=self.place, layer=self.title)
            self.source.key = key_of(self.seed, self.param.name)
            self.notes = self.source.notes
        return self.source.shapes()

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        assert self.source is not None
        layout = self.source.layout(tops[0].shape)  # which may be that of a later batch, with images of another size
        staging = upload(rec, self.source, layout.nbytes)
        self.source.transform.record(rec, staging, layout, tops[0].data, tops[1].data if len(tops) > 1 else None)
