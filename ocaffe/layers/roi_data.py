"""RoIData: images with true boxes for training Faster R-CNN, or with a sample of proposals for training Fast R-CNN."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.data.source import key_of, upload
from ocaffe.data.sources.floats import FloatLayout
from ocaffe.data.sources.roi_samples import SampledRois
from ocaffe.data.sources.rois import RoiSource, TrueBoxes
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
SAMPLE: dict[str, Any] = DEFAULTS | {  # of Fast R-CNN
    "proposals": "",
    "ims_per_batch": 2,
    "aspect_grouping": True,
    "batch_size": 128,
    "fg_fraction": 0.25,
    "fg_thresh": 0.5,
    "bg_thresh_hi": 0.5,
    "bg_thresh_lo": 0.1,
    "bbox_thresh": 0.5,
    "bbox_normalize_targets": True,
    "bbox_normalize_targets_precomputed": False,
    "bbox_normalize_means": [0.0, 0.0, 0.0, 0.0],
    "bbox_normalize_stds": [0.1, 0.1, 0.2, 0.2],
    "bbox_inside_weights": [1.0, 1.0, 1.0, 1.0],
}


@register("RoIData")
class RoIData(Layer):
    """Images of an annotated database with true boxes or sampled proposals, as the layer RoIDataLayer of py-faster-rcnn gives them.

    The shorter side is scaled to one of `scales`, and the longer one is at most max_size. In TRAIN the images come in random order, with their mirrored
    images. Height and width of the data are multiples of `pad`; the image is in the upper left corner. `'pad': 1` gives the shapes of py-faster-rcnn,
    and each shape compiles the net again. The settings are in python_param { param_str }, and `ocaffe train --imdb --cfg` sets them too.

    Tops: data 1 x 3 x H x W, im_info 1 x 3 (height, width, scale), gt_boxes G x 5 (x1, y1, x2, y2, label; rows of -1 are padding), and optionally
    1 x 1 x G x 8: the boxes for DetectionEvaluate.

    Six tops, for Fast R-CNN: data of ims_per_batch images, rois n x 5 (image, x1, y1, x2, y2), labels n, and bbox_targets, inside weights and outside
    weights with 4 num_classes columns. n is batch_size, or less if there are too few candidates. They are the true boxes and those of `proposals`, a file
    of `ocaffe dataset proposals`. Images of similar aspect come together. Five tops are those of Fast R-CNN of 2015, without the outside weights.
    """

    bottoms, tops = 0, (3, 6)
    origin = "Faster R-CNN, R-FCN"
    message = ""
    source: RoiSource | None = None

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        if self.source is None:
            count = len(self.param.top)
            samples = count > 4
            p = settings(self, SAMPLE if samples else DEFAULTS)
            self.check(
                p.num_classes >= 2,
                f"num_classes is {p.num_classes}",
                "write 'num_classes': N in param_str, the number of classes, with the background among them",
            )
            if samples:
                self.check(
                    self.phase == proto.TRAIN,
                    f"the layer has {count} tops, which sample proposals for training, and is in the TEST phase",
                    "add include { phase: TRAIN } to this layer",
                )
                self.source = sampled = SampledRois(p, self.place, self.title, count)
                self.box_normal = tuple(np.float32(each.ravel()) for each in sampled.normal)  # type: ignore[assignment]
            else:
                self.source = TrueBoxes(p, self.phase == proto.TRAIN, count > 3, self.place, self.title)
            self.source.key = key_of(self.seed, self.param.name)
            self.notes = self.source.notes
        return self.source.shapes()

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        assert self.source is not None
        layout = FloatLayout([top.shape for top in tops])
        layout.record(rec, upload(rec, self.source, layout.nbytes), [top.data for top in tops])
