"""DisparityData: disparities of .pfm files."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.data.source import key_of, upload
from ocaffe.data.sources.disparity import DisparitySource
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import Layer, register


@register("DisparityData")
class DisparityData(Layer):
    """Disparities of the .pfm files in a list (N x 3 x H x W; N x 1 x H x W with is_color: false), with the other sign, and labels (N).

    new_height and new_width, if given, must be those of the files. transform_param has no effect. Source: lmb-freiburg/flownet2,
    src/caffe/layers/disparity_data_layer.cpp. The fork fills the first channel alone.
    """

    bottoms, tops = 0, 2
    origin = "FlowNet 2"
    message = "image_data_param"
    source: DisparitySource | None = None

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        if self.source is None:
            self.source = DisparitySource(self.own(), place=self.place, layer=self.title)
            self.source.key = key_of(self.seed, self.param.name)
            self.notes = self.source.notes
        return self.source.shapes()

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        assert self.source is not None
        self.source.layout.record(rec, upload(rec, self.source, self.source.nbytes), [top.data for top in tops])
