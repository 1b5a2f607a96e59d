"""ImageData: image files and their labels."""
from __future__ import annotations

from ocaffe.data.listed import ListSource
from ocaffe.data.pictures import PictureSource
from ocaffe.data.transform import Transform
from ocaffe.layers.base import register
from ocaffe.layers.data import Data


@register("ImageData")
class ImageData(Data):
    """Image files that a list names, and their labels: decoded, resized (new_height, new_width), cropped, mirrored, mean and scale applied."""

    def open(self, transform: Transform, labels: bool) -> PictureSource:
        return ListSource(self.own(), transform, labels, place=self.place, layer=self.title)
