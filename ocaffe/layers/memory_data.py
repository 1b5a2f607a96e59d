"""MemoryData: arrays that a script sets."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.data.source import upload
from ocaffe.data.sources.memory import MemorySource
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import Layer, register


@register("MemoryData")
class MemoryData(Layer):
    """Batches of the arrays given to Net.set_input_arrays, without transformation; after the last batch it starts again at the first.

    `dim` (the OpenCL branch) gives the shape of the top instead of batch_size, channels, height and width. The labels have as many axes.
    """

    bottoms, tops = 0, (1, 2)
    source: MemorySource | None = None

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        if self.source is None:
            self.source = MemorySource(self.own(), len(self.param.top) > 1, place=self.place, layer=self.title)
            if self.param.HasField("transform_param"):
                self.notes = [("memory_data_layer.cpp:65", "MemoryData does not transform array data on Reset()")]
        return self.source.shapes()

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        assert self.source is not None
        self.source.layout.record(rec, upload(rec, self.source, self.source.nbytes), [top.data for top in tops])
