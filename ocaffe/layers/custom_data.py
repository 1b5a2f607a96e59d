"""CustomData: slices of the channels of a database, for pairs of images and their flow."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.data.source import key_of, upload
from ocaffe.data.sources.slices import FIELDS, SliceSource
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import Layer, register


@register("CustomData")
class CustomData(Layer):
    """Records of an LMDB or LevelDB of Datums, cut at each slice_point: a top N x c x H x W for each slice, and one more for the labels, N x 1 x 1 x 1.

    encoding says how each slice is stored: UINT8; UINT16FLOW: two bytes a value in steps of 1/32, and NaN where the flow is not known; BOOL1: bits.
    Values less mean_file, or less `subtract` of their channel, times scale. Records are those of preselection_label in preselection_file, in a range from
    range_start to range_end (included). rand_permute orders them at random, for a rand_permute_seed as the fork does; block_size limits the
    moves to blocks, permute_every_iter permutes again. Source: lmb-freiburg/flownet2, src/caffe/layers/custom_data_layer.cpp.
    """

    bottoms, tops = 0, (1, None)
    origin = "FlowNet 2"
    message = "data_param"
    own_fields = frozenset(f"DataParameter.{name}" for name in FIELDS)
    source: SliceSource | None = None

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        if self.source is None:
            self.source = SliceSource(self.own(), len(self.param.top), place=self.place, layer=self.title)
            self.source.key = key_of(self.seed, self.param.name)
            self.notes = self.source.notes
        return self.source.shapes()

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        assert self.source is not None
        self.source.layout.record(rec, upload(rec, self.source, self.source.nbytes), [top.data for top in tops])
