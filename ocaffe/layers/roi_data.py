"""RoIData: images with true boxes for training Faster R-CNN."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ocaffe import proto
from ocaffe.data.floats import FloatLayout
from ocaffe.data.rois import RoiSource
from ocaffe.data.source import key_of, upload
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.layers.anchors import settings
from ocaffe.layers.base import Layer, register

DEFAULTS: dict[str, Any] = {
    "num_classes": 0,
    "source": "",
    "scales": [600],
    "max_size": 1000,
    "pixel_means": [102.9801, 115.9465, 122.7717],
    "use_flipped": True,
    "use_diff": False,
    "pad": 32,
}


@register("RoIData")
class RoIData(Layer):
    """An image of an annotated database with its true boxes, as the layer RoIDataLayer of py-faster-rcnn gives them.

    The shorter side is scaled to one of `scales`, and the longer one is at most max_size. In TRAIN the images come in random order, with their mirrored
    images. Height and width of the data are multiples of `pad`; the image is in the upper left corner. `'pad': 1` gives the shapes of py-faster-rcnn,
    and each shape compiles the net again. The settings are in python_param { param_str }, and `ocaffe train --imdb --cfg` sets them too.

    Tops: data 1 x 3 x H x W, im_info 1 x 3 (height, width, scale), gt_boxes G x 5 (x1, y1, x2, y2, label; rows of -1 are padding), and optionally
    1 x 1 x G x 8: the boxes for DetectionEvaluate.
    """

    bottoms, tops = 0, (3, 4)
    origin = "Faster R-CNN, R-FCN"
    message = ""
    source: RoiSource | None = None

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        if self.source is None:
            p = settings(self, DEFAULTS)
            self.check(p.num_classes >= 2, f"num_classes is {p.num_classes}", "param_str: \"'num_classes': 21\", the background among them")
            self.source = RoiSource(p, self.phase == proto.TRAIN, len(self.param.top) > 3, place=self.place, layer=self.title)
            self.source.key = key_of(self.seed, self.param.name)
            self.notes = self.source.notes
        return self.source.shapes()

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        assert self.source is not None
        layout = FloatLayout([top.shape for top in tops])
        layout.record(rec, upload(rec, self.source, layout.nbytes), [top.data for top in tops])
