"""ImageLabelmapData: images and maps of labels for training nets that find edges or salient objects."""
from __future__ import annotations

from ocaffe.data.changes.transform import Transform
from ocaffe.data.sources.dense import DenseImageSource, LabelmapSource
from ocaffe.layers.base import register
from ocaffe.layers.data import image_transform
from ocaffe.layers.dense_image_data import DenseImageData

MOST = 255.0  # the gray level of label 1


@register("ImageLabelmapData")
class ImageLabelmapData(DenseImageData):
    """Image files from a list, each with a gray image (N x 1 x H x W) whose levels, divided by 255, are the labels of the pixels.

    With image_data_param { normalize: false } the labels are the gray levels. Both are resized, cropped and mirrored alike. The augmentation of Data moves
    both alike too. Mean, scale, colors and erasing apply to the images only. DeepSkeleton's layer of this name turns gray levels into classes instead:
    write the classes to the files, and set normalize: false. Source: s9xie/hed, src/caffe/layers/image_labelmap_data_layer.cpp.
    """

    origin = "HED"
    message = "image_data_param"

    def opened(self) -> DenseImageSource:
        source = LabelmapSource(self.own(), image_transform(self), len(self.param.top) > 1, place=self.place, layer=self.title)
        source.normalized = bool(self.own().normalize)
        return source

    def label_transform(self, transform: Transform) -> Transform:
        plain = transform.bare()
        plain.scale = 1 / MOST if self.own().normalize else 1.0
        return plain
