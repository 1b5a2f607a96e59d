"""The source of an ImageSegData layer (DeepLab, PSPNet): images with label images, as a DenseImageData layer has them, with random scales and padding."""
from __future__ import annotations

from typing import Any

from ocaffe.data.changes.transform import Layout, Transform, as_values
from ocaffe.data.decoding.decode import Color
from ocaffe.data.source import check_fields
from ocaffe.data.sources.dense import DenseImageSource, PairFiles
from ocaffe.data.sources.file_images import new_size
from ocaffe.data.stagers.dense_stager import Names, Shape3
from ocaffe.data.stagers.seg_stager import IMAGE, NONE, PIXEL, SegStager
from ocaffe.data.stagers.staged import StagedSource
from ocaffe.data.stores.text_list import Line
from ocaffe.errors import Error, Place
from ocaffe.ir.tensor import Shape
from ocaffe.support.whole import whole

_FIELDS = {
    "source", "batch_size", "rand_skip", "shuffle", "new_height", "new_width", "is_color", "root_folder", "label_type", "ignore_label",
    "scale", "mean_file", "crop_size", "mirror",  # without effect, as in the forks
}  # fmt: skip
_LINES = {
    PIXEL: "the file of an image and that of its labels", IMAGE: "the file of an image and its label, 0 to 255", NONE: "the file of an image",
}  # fmt: skip


class SegFiles(PairFiles):
    """The images of a list, each with the file of its labels, with its label, or alone. A found record is both words."""

    def __init__(self, source: str, root: str, label_type: int) -> None:
        self._type = label_type
        super().__init__(source, root, _LINES[label_type])

    def _pair(self, line: Line) -> Names:
        words = line.words[: 1 if self._type == NONE else 2]
        if len(words) != (1 if self._type == NONE else 2):
            fix = f"write {self.each} into each line" + ("" if self._type == NONE else ", or set label_type: NONE in image_data_param")
            raise Error(f"{self._list.source}, line {line.number}: '{line.text}' has one word, and two are needed", fix=fix)
        if self._type == IMAGE and not 0 <= whole(words[1]) < 256:
            fix = "set label_type: PIXEL in image_data_param, which reads the second word as the file of the labels"
            if words[1].isdigit():
                fix = 'write type: "ImageData" in this layer, which reads larger labels, and remove label_type'
            elif words[1].lstrip("-").isdigit():
                fix = "number the classes from 0 to 255"
            raise Error(f"{self._list.source}, line {line.number}: the label '{words[1]}' is not a number from 0 to 255", fix=fix)
        return self._root + words[0], "" if self._type == NONE else words[1] if self._type == IMAGE else self._root + words[1]


class SegSource(DenseImageSource):
    """Batches of images, labels and the sizes of the images."""

    _stager: SegStager

    def __init__(
        self,
        param: Any,
        transform: Transform,
        factors: tuple[float, ...],
        tops: int,
        *,
        workers: int | None = None,
        place: Place | None = None,
        layer: str | None = None,
    ) -> None:
        """`param` is the ImageDataParameter. `factors`: scale_factors. `tops`: the number of the layer's tops. `workers`: as of DenseImageSource."""
        self.place, self.layer = place, layer
        with self.located():
            check_fields(param, _FIELDS, "image_data_param", "remove it")
            transform.refuse_skipping()
            if param.mean_file or transform.mean_file:
                raise Error("mean_file is set, and images have several sizes", fix=as_values(param.mean_file or transform.mean_file))
            if not all(factor > 0 for factor in factors):
                raise Error(f"scale_factors are {', '.join(f'{factor:g}' for factor in factors)}", fix="set each scale_factors to a number above 0")
            if factors and transform.crop is None:
                fix = "set crop_size in transform_param, or crop_height and crop_width"
                raise Error("scale_factors are set without crop_size: samples have different sizes", fix=fix)
            if not 0 <= param.ignore_label < 256:
                fix = "set ignore_label in image_data_param to a number from 0 to 255, because labels are bytes"
                raise Error(f"ignore_label is {param.ignore_label}", fix=fix)
            StagedSource.__init__(self, SegFiles(param.source, param.root_folder, param.label_type), param, workers, place, layer)
            self.transform, self.labels, self.resized = transform, tops > 1 and param.label_type == PIXEL, new_size(param)
            self._stager = SegStager(
                transform, Color.COLOR if param.is_color else Color.GRAY, self.resized, self.batch, tops > 1, factors=factors,
                label_type=param.label_type, ignored=int(param.ignore_label), tops=tops,
            )  # fmt: skip
            self._first = self._shape(0)
        size = ",".join(map(str, self.shapes()[0]))
        self.notes = (
            ("image_seg_data_layer.cpp:49", f"Opening file {param.source}"),
            *((("image_seg_data_layer.cpp:63", "Shuffling data"),) if self.order.shuffle else ()),
            ("image_seg_data_layer.cpp:68", f"A total of {self.order.entries} images."),
            ("image_seg_data_layer.cpp:138", f"output data size: {size}"),
        )

    def _tops(self, shape: Shape3) -> list[Shape]:
        tops: list[Shape] = [(self.batch, *shape), (self.batch, 1, *shape[1:]), (self.batch, 1, 1, 2)]
        return tops[: self._stager.tops]

    def layouts(self, top: Shape) -> list[Layout]:
        return self._stager.layouts((top[1], top[2], top[3]))
