"""The task of finding the class of each pixel: images with masks, scored by the mean intersection over union (IoU)."""
from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ocaffe.cl.device import Device
from ocaffe.data.stores.text_list import Listing, read_listed
from ocaffe.errors import Error
from ocaffe.evaluation.tables import segmentation_table
from ocaffe.evaluation.whole_test import whole_test
from ocaffe.fit.conversion import converted, note_left_out
from ocaffe.fit.examples import EXAMPLES, drawn
from ocaffe.fit.mask_folders import MaskFolders, mask_folders
from ocaffe.fit.see import MADE, MASKS
from ocaffe.fit.task import Result, Task, Wanted
from ocaffe.formats.text import read_solver
from ocaffe.layers.seg_accuracy import figures
from ocaffe.shown import command, path_word
from ocaffe.tools.datasets.box_set import Fault
from ocaffe.tools.datasets.mask_set import Settings, make_masks
from ocaffe.zoo.masks import find_masks
from ocaffe.zoo.project import Choices, Project
from ocaffe.zoo.segmentation_project import is_segmenter, write_segmenter

NET = "unet"
THIN, CPU_BATCH, CPU_SIDE, CPU_EPOCHS = 4, 8, 128, 30  # on a CPU: the channels are divided, batches and images are small, and the training is short
LINE = "the file of an image and that of its mask"


class Masks(Task):
    """Images with a class for each pixel."""

    name = MASKS
    score = "mean IoU"
    predict_flags = ("--annotate", "drawn")
    test_flags = ("--per-class",)

    def project(self, wanted: Wanted) -> Project:
        self.check(wanted, is_segmenter, NET)
        choices, data, notes = wanted.choices, wanted.data, list[str]()
        if wanted.seen.form != MADE:
            self.check_parts(wanted)
            found = mask_folders(wanted.data)
            assert found is not None  # `see` has found them
            settings = Settings(mask_suffix=found.mask_suffix, lists=found.lists, share=choices.share, seed=choices.seed, skip_bad=True)
            tool = command("ocaffe", "dataset", "masks", path_word(found.images), path_word(found.masks), "DIR")
            data, notes = converted([wanted.data], settings, wanted.out, lambda out: _convert(wanted, found, out, settings), wanted.again, tool)
        if not wanted.net:
            choices, why = _chosen(wanted, data)
            notes = [*notes, why]
        project = write_segmenter(wanted.net or NET, data, wanted.out, choices, wanted.target, wanted.again)
        return replace(project, notes=(*project.notes, *notes))

    def test(self, project: Project, weights: str, device: Device) -> Result:
        net, solver = project.path("train_val.prototxt"), read_solver(project.path("solver.prototxt"))
        counts = whole_test(net, weights, device, solver.test_iter[0], solver.ap_version).segmentations[project.accuracy]
        return _Segmented(counts, project.images.classes, project.images.test.images, drawn(project, weights, device, _images(project)))


def _chosen(wanted: Wanted, data: str) -> tuple[Choices, str]:
    """Return the settings for U-Net, and the reason as a sentence."""
    choices = replace(wanted.choices, batch_norm=True)
    if not wanted.target.is_cpu:
        return choices, f"{NET} with BatchNorm learns from few images; --net segnet_basic is smaller"
    side = int(np.median(find_masks(data, choices.val).sizes.min(1)))
    batch = choices.batch or (0 if choices.auto_batch else CPU_BATCH)
    thin = replace(choices, thin=THIN, batch=batch, size=choices.size or (CPU_SIDE if side > CPU_SIDE else 0))
    if not (choices.epochs or choices.weights):
        thin = replace(thin, epochs=CPU_EPOCHS)
    small = f", and images of {CPU_SIDE} x {CPU_SIDE}" if thin.size != choices.size else ""
    return thin, f"{NET} with a quarter of its channels{small}, because the device is a CPU; --net {NET} takes all, and longer"


def _convert(wanted: Wanted, found: MaskFolders, out: str, settings: Settings) -> list[str]:
    """Convert the data set into the folder `out`. Return notes. Raise Error if half of the pairs cannot be used: then there is one mistake in all."""
    faults: list[Fault] = []
    make_masks(found.images, found.masks, out, settings, faults)
    parts = [name for name in ("train.txt", "trainval.txt", "val.txt", "test.txt") if os.path.isfile(os.path.join(out, name))]
    pairs = sum(len(Listing(os.path.join(out, name), LINE).lines) for name in parts)
    if len(faults) >= pairs:
        fact = f"{len(faults)} of {pairs + len(faults)} pairs of an image and a mask cannot be used; the first, {faults[0].place}: {faults[0].fact}"
        raise Error(fact, place=wanted.data, fix=faults[0].fix)
    return note_left_out(wanted.out, [f"{fault.place}: {fault.fact}" for fault in faults], "pairs of an image and a mask")


def _images(project: Project) -> Iterator[tuple[str, bytes]]:
    """Yield some images for testing, with names."""
    part = project.images.test
    for number, line in enumerate(Listing(part.source, LINE).lines[:EXAMPLES]):
        yield f"{number:02d}", read_listed(part.root + line.words[0])


class _Segmented(Result):
    """The pixels of a test by true and predicted class."""

    def __init__(self, counts: np.ndarray, names: Sequence[str], images: int, pictures: dict[str, bytes]) -> None:
        self.counts, self.names, self.images, self.drawn, self.figures = counts, names, images, pictures, figures(counts)

    def record(self) -> dict[str, Any]:
        shares = [None if np.isnan(iou) else float(iou) for iou in self.figures.iou]
        classes = [{"name": self.names[c] if c < len(self.names) else str(c), "iou": iou} for c, iou in enumerate(shares)]
        return {"images": self.images, "mean_iou": float(self.figures.mean_iou), "classes": classes, "confusion": self.counts.astype(int).tolist()}

    def lines(self) -> Iterator[str]:
        yield from segmentation_table(self.counts, self.names)

    def sentence(self) -> str:
        return f"mean IoU {100 * self.figures.mean_iou:.1f} % on {self.images} images"

    def pictures(self) -> dict[str, bytes]:
        return self.drawn
