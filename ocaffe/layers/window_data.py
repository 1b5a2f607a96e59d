"""WindowData: windows of images for training R-CNN."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.data.changes.transform import PASTE
from ocaffe.data.source import key_of, upload
from ocaffe.data.sources.windows import WindowSource
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import Layer, register
from ocaffe.layers.data import transform_of


@register("WindowData")
class WindowData(Layer):
    """Windows of images from a window file, drawn at random from objects and background and resized to crop_size with context_pad pixels of context.

    As in Caffe, the scale of window_data_param applies, not that of transform_param.
    """

    bottoms, tops = 0, (1, 2)
    source: WindowSource | None = None

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        if self.source is None:
            transform = transform_of(self)
            ignored = transform.scale
            transform.scale = float(self.own().scale)
            self.source = WindowSource(self.own(), transform, len(self.param.top) > 1, place=self.place, layer=self.title)
            self.source.key = key_of(self.seed, self.param.name)
            self.notes = self.source.notes
            if ignored not in (1.0, transform.scale):
                self.notes += (("window_data_layer.cpp:268", f"scale {ignored:g} of transform_param has no effect, as in Caffe; set it in window_data_param"),)
        return self.source.shapes()

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        assert self.source is not None
        staging = upload(rec, self.source, self.source.nbytes)
        label = tops[1].data if len(tops) > 1 else None
        self.source.transform.record(rec, staging, self.source.layout, tops[0].data, label, PASTE)
