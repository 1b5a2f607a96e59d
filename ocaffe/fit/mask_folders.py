"""Finds the folders of images and of masks in a data set for segmentation."""
from __future__ import annotations

import os
from typing import NamedTuple

from ocaffe.data.stores.folder import is_image_name

IMAGES = ("images", "image", "imgs", "img", "jpegimages", "photos", "inputs")  # names of folders, in any case
MASKS = ("masks", "mask", "segmentationclass", "labels", "annotations", "gt", "groundtruth", "targets", "segmentation")
LISTS = os.path.join("ImageSets", "Segmentation")  # of VOC


class MaskFolders(NamedTuple):
    """`mask_suffix`: the end of names of masks that the names of their images lack. `lists`: the folder with the lists of parts, '' for none."""

    images: str
    masks: str
    mask_suffix: str
    lists: str


def mask_folders(data: str) -> MaskFolders | None:
    """Return the folders in `data`; None unless it has one of images and one of masks with common names."""
    found = {name.lower(): os.path.join(data, name) for name in (sorted(os.listdir(data)) if os.path.isdir(data) else ())}
    lists = os.path.join(data, LISTS)
    for images in (found[name] for name in IMAGES if name in found):
        stems = _stems(images)
        for masks in (found[name] for name in MASKS if name in found):
            others = _stems(masks)
            suffix = "" if stems & others else _suffix(stems, others)
            if stems & others or suffix:
                return MaskFolders(images, masks, suffix, lists if os.path.isdir(lists) else "")
    return None


def _stems(folder: str) -> set[str]:
    """Return the names of the images in a folder and its folders, without suffixes."""
    found = set()
    for path, _, files in os.walk(folder):
        found |= {os.path.normpath(os.path.join(os.path.relpath(path, folder), os.path.splitext(name)[0])) for name in files if is_image_name(name)}
    return found


def _suffix(images: set[str], masks: set[str]) -> str:
    """Return the end that the names of most masks have and those of their images lack, '' if there is none."""
    for mask in sorted(masks)[:1]:
        for length in range(1, len(mask)):
            suffix = mask[-length:]
            if mask[:-length] in images and sum(name.endswith(suffix) and name.removesuffix(suffix) in images for name in masks) * 2 > len(masks):
                return suffix
    return ""
