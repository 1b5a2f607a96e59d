"""MTCNNData: samples of faces with their label, box and points."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ocaffe.data.source import key_of, upload
from ocaffe.data.sources.mtcnn import BOX, POINTS, MtcnnSource
from ocaffe.ir.graph import Blob
from ocaffe.ir.labels import LabelRange
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.rearrange.copy import copy
from ocaffe.layers.base import Layer, register
from ocaffe.layers.data import transform_of

COLUMNS = (1, len(BOX), POINTS)  # of the tops after the first


@register("MTCNNData")
class MTCNNData(Layer):
    """Images, labels (N), boxes (N x 4) and points (N x 10) from a database of MTCNNDatum messages; the last tops may be left out.

    transform_param applies to the images only. Source: Aliang-SEU/MTCNN-on-caffe-window, src/caffe/layers/mtcnn_data_layer.cpp at bfc5724; the message
    is that of oftenliu/caffe. The MTCNNData of dlunion/CC4.0 cuts its samples from whole images, with mtcnn_data_param, which is not supported.
    """

    bottoms, tops = 0, (1, 4)
    origin = "MTCNN forks"
    message = "data_param"
    source: Any = None

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        count = len(self.param.top)
        if self.source is None:
            self.source = MtcnnSource(self.own(), transform_of(self), count, place=self.place, layer=self.title)
            self.source.key = key_of(self.seed, self.param.name)
            self.notes = self.source.notes
        shapes: list[Shape] = self.source.shapes()
        return shapes

    def limit_labels(self, top: int, limit: LabelRange) -> bool:
        return False  # the source sees labels and boxes as one array

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        layout = self.source.layout(tops[0].shape)
        staging = upload(rec, self.source, layout.nbytes)
        labels = rec.scratch("labels", (layout.batch, layout.label_count)) if len(tops) > 1 else None
        self.source.transform.record(rec, staging, layout, tops[0].data, labels)
        start = 0
        for top, columns in zip(tops[1:], COLUMNS):
            assert labels is not None
            copy(rec, labels, top.data.view((top.shape[0], columns)), 1, columns, x_start=start)
            start += columns
