"""HDF5Data: rows of datasets in HDF5 files."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.data.source import key_of, upload
from ocaffe.data.sources.hdf5 import Hdf5Source
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import Layer, register


@register("HDF5Data")
class HDF5Data(Layer):
    """Rows of the HDF5 datasets named like the tops, from the files listed in `source`; after the last file it starts again at the first."""

    bottoms, tops = 0, (1, None)
    source: Hdf5Source | None = None

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        self.check(
            not self.param.HasField("transform_param"),
            "transform_param is set, and HDF5Data does not transform",
            "remove transform_param, and store scaled and cropped values in the files",
        )
        if self.source is None:
            self.source = Hdf5Source(self.own(), self.param.top, place=self.place, layer=self.title)
            self.source.key = key_of(self.seed, self.param.name)
            self.notes = self.source.notes
        return self.source.shapes()

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        assert self.source is not None
        self.source.layout.record(rec, upload(rec, self.source, self.source.nbytes), [top.data for top in tops])
