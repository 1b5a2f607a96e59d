"""FrcnnRoiData of makefile/frcnn: images of a list with their boxes, for training Faster R-CNN."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ocaffe import proto
from ocaffe.data.source import key_of, upload
from ocaffe.data.sources.floats import FloatLayout
from ocaffe.data.sources.frcnn_rois import ListedBoxes
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import register
from ocaffe.layers.frcnn import FromFile

DEFAULTS: dict[str, Any] = {
    "scales": [600.0], "max_size": 1000.0, "pixel_means": [102.9801, 115.9465, 122.7717], "use_flipped": 1.0, "n_classes": 21.0, "im_size_align": 1.0,
}  # fmt: skip
CHANGES = ("use_hist_equalize", "use_haze_free", "use_retinex")


@register("FrcnnRoiData")
class FrcnnRoiData(FromFile):
    """An image file of a list with its boxes, in random order, with the settings in a JSON file of makefile/frcnn. In TRAIN it is mirrored at random.

    window_data_param has the list in source, the file of settings in config, and root_folder, which is prepended to names; cache_images has no effect. The
    shorter side is scaled to one of `scales` (AREA if the image shrinks, else bilinear), and the longer one is at most max_size. Sides are
    multiples of im_size_align, with zeros at the right and below; 1 gives each image its shape, and each shape compiles the net again.

    Tops: data 1 x 3 x H x W less pixel_means, im_info 1 x 3 (H, W, scale), gt_boxes G x 5 (x1, y1, x2, y2, label; rows of -1 are padding). Difficult
    boxes count, as in the fork. data_jitter of at least 0 and the settings use_hist_equalize and use_haze_free change images in the fork, and are refused.
    Source: makefile/frcnn, src/caffe/FRCNN/frcnn_roi_data_layer.cpp.
    """

    bottoms, tops = 0, 3
    origin = "makefile/frcnn"
    message = "window_data_param"
    refused = CHANGES
    source: ListedBoxes | None = None

    def config(self) -> str:
        return str(self.own().config)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        if self.source is None:
            self.check(self.config(), "config is missing", 'name the JSON file of the settings of the training: window_data_param { config: "PATH" }')
            settings, own = self.read_settings(DEFAULTS), self.own()
            jitter = self._numbers("data_jitter")[0] if "data_jitter" in self.from_file else -1
            self.check(
                jitter < 0,
                f"{self.told} sets data_jitter: {jitter:g}, which is not supported",
                "set data_jitter to -1: images are then mirrored and scaled only",
            )
            self.source = ListedBoxes(settings, own.source, own.root_folder, self.phase == proto.TRAIN, place=self.place, layer=self.title)
            self.source.key = key_of(self.seed, self.param.name)
            self.notes = self.source.notes
        return self.source.shapes()

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        assert self.source is not None
        layout = FloatLayout([top.shape for top in tops])
        layout.record(rec, upload(rec, self.source, layout.nbytes), [top.data for top in tops])
