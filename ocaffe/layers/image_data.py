"""ImageData: image files and their labels."""
from __future__ import annotations

from ocaffe.data.changes.transform import Transform
from ocaffe.data.sources.file_images import ListSource
from ocaffe.data.sources.image_batches import PictureSource
from ocaffe.layers.base import register
from ocaffe.layers.data import Data


@register("ImageData")
class ImageData(Data):
    """Image files and labels from a list, class folders, a table (.csv) or tar shards, decoded, resized (new_height, new_width) and transformed.

    docs/data.md describes the forms of `source`.
    """

    def open(self, transform: Transform, labels: bool) -> PictureSource:
        return ListSource(self.own(), transform, labels, place=self.place, layer=self.title)
