"""Writes scenes in the layout of PASCAL VOC: images, an XML file with the boxes of each, masks as PNG files with a palette, and lists of the parts.

Boxes count edges from 0, as SSD's converter reads them: the first pixel of a row has xmin 0 and xmax 1. VOC's own boxes count pixels from 1.
"""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from ocaffe.data.stores.labels_txt import LABELS, labels_bytes
from ocaffe.shown import markup
from ocaffe.tools.datasets.encode import encoded
from ocaffe.tools.drawing.palette import palette
from ocaffe.tools.synthetic.scenes import Scene

IMAGES, ANNOTATIONS, CLASS_MASKS, OBJECT_MASKS = "JPEGImages", "Annotations", "SegmentationClass", "SegmentationObject"
BOX_LISTS, MASK_LISTS = "ImageSets/Main", "ImageSets/Segmentation"
BACKGROUND = "background"


class VocWriter:
    """Writes the files below the folder `root`, which exists and is empty. `suffix` is that of the images, such as 'jpg'."""

    def __init__(self, root: Path, classes: Sequence[str], suffix: str) -> None:
        self._root, self._classes, self._suffix = root, classes, suffix
        for folder in (IMAGES, ANNOTATIONS, CLASS_MASKS, OBJECT_MASKS, BOX_LISTS, MASK_LISTS):
            (root / folder).mkdir(parents=True)
        (root / LABELS).write_bytes(labels_bytes(classes))
        (root / CLASS_MASKS / LABELS).write_bytes(labels_bytes([BACKGROUND, *classes]))

    def write(self, name: str, scene: Scene) -> None:
        """Write the image, the XML file and the two masks of a scene. Several threads may do this."""
        file = f"{name}.{self._suffix}"
        (self._root / IMAGES / file).write_bytes(image_bytes(scene, self._suffix))
        (self._root / ANNOTATIONS / f"{name}.xml").write_text(self._xml(file, scene), encoding="utf-8")
        for folder, mask in ((CLASS_MASKS, scene.classes()), (OBJECT_MASKS, scene.instances)):
            with_palette(mask).save(self._root / folder / f"{name}.png", "PNG", compress_level=3)

    def write_list(self, part: str, names: Sequence[str]) -> None:
        """Write the lists of a part such as 'train'."""
        for folder in (BOX_LISTS, MASK_LISTS):
            (self._root / folder / f"{part}.txt").write_bytes(labels_bytes(names))

    def _xml(self, file: str, scene: Scene) -> str:
        height, width, depth = scene.pixels.shape
        objects = "".join(
            f"""  <object>
    <name>{markup(self._classes[thing.label])}</name>
    <pose>Unspecified</pose>
    <truncated>0</truncated>
    <difficult>{int(thing.difficult)}</difficult>
    <bndbox><xmin>{thing.xmin}</xmin><ymin>{thing.ymin}</ymin><xmax>{thing.xmax}</xmax><ymax>{thing.ymax}</ymax></bndbox>
  </object>
"""
            for thing in scene.things
        )
        return f"""<annotation>
  <folder>{IMAGES}</folder>
  <filename>{markup(file)}</filename>
  <size><width>{width}</width><height>{height}</height><depth>{depth}</depth></size>
  <segmented>1</segmented>
{objects}</annotation>
"""


def image_bytes(scene: Scene, suffix: str) -> bytes:
    """Return the image file of a scene in the format of the suffix."""
    return encoded(scene.pixels[..., ::-1].transpose(2, 0, 1), suffix)


def with_palette(mask: np.ndarray) -> Image.Image:
    """Return the image of a mask (height x width, uint8) with VOC's palette."""
    image = Image.fromarray(mask)
    image.putpalette(palette().tobytes())
    return image
