"""Rules over prior boxes and anchors: their number, their places, and the objects that they match."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ocaffe import proto
from ocaffe.data.changes.boxes import area, overlaps
from ocaffe.data.sources.roi_samples import overlaps as pixel_overlaps
from ocaffe.data.sources.rois import RoiSource, scaled
from ocaffe.errors import Error, Place
from ocaffe.layers.anchor_target import AnchorTarget
from ocaffe.layers.prior_box import PriorBox
from ocaffe.layers.roi_data import RoIData
from ocaffe.lint.box_sample import CORNERS, sample_of
from ocaffe.lint.boxes import EDGE
from ocaffe.lint.detectors import LOSSES
from ocaffe.lint.rules import Finding, Job, View, job_rule, net_rule, own_param

UNMATCHED = 0.6  # share of the objects; mobilenet_ssd leaves a third of the digits of `ocaffe dataset shapes`
OBJECTS = 500  # that are compared with priors
FEWEST = 100  # objects; with fewer, a map of priors that matches none says nothing
IMAGES = 50  # of which boxes are compared with anchors
DRAWS = 300  # images of which the transformed boxes are compared
SHIFT = 0.25  # of the image: SSD's own steps reach up to 7 % beyond it
TYPES = ("PriorBox", "PriorBoxClustered")
KEEP = ("Permute", "Flatten", "Reshape", "BatchNorm", "Scale", "ReLU")  # layers between a convolution and the loss


class Head(NamedTuple):
    """The predictions of one map: the layers of locations, of confidences and of priors. None: a layer that cannot be found."""

    loc: Any
    conf: Any
    prior: Any


class Map(NamedTuple):
    """A layer of priors, the height and width of its map and of the image, and its priors, n x 4."""

    layer: Any
    cells: tuple[int, ...]
    image: tuple[int, ...]
    priors: np.ndarray

    def sides(self) -> np.ndarray:
        """Return the sides of squares of the priors' areas, in pixels."""
        return np.asarray(np.sqrt(area(self.priors) * np.prod(self.image)))


def _heads(view: View, index: int) -> list[Head]:
    """Return the heads of layer number `index`, a loss or DetectionOutput. Return [] if its bottoms are not made of the same number of parts."""
    parts = [_parts(view, view.reads[index][bottom]) for bottom in range(3)] if len(view.reads[index]) > 2 else [[]]
    return [Head(*three) for three in zip(*parts)] if len(set(map(len, parts))) == 1 else []


def _parts(view: View, value: tuple[int, int] | None) -> list[Any]:
    """Return the Convolution or PriorBox layers of a value: those of the bottoms of a Concat, or one."""
    layer, index = _origin(view, value)
    if layer is not None and layer.type == "Concat":
        return [_origin(view, each)[0] for each in view.reads[index]]
    return [layer]


def _origin(view: View, value: tuple[int, int] | None) -> tuple[Any, int]:
    """Return the layer that computes a value, before layers that keep the number of values, and its index. Return None as the layer if there is none."""
    while value is not None:
        layer = view.layers[value[0]]
        if layer.type not in KEEP:
            return layer, value[0]
        value = view.reads[value[0]][0]
    return None, -1


@net_rule
def predictions_per_cell(view: View) -> Iterator[Finding]:
    """A layer of locations or confidences whose num_output is not the number of priors of a cell times 4, or times the number of classes."""
    for index, layer in enumerate(view.layers):
        if layer.type not in (*LOSSES, "DetectionOutput"):
            continue
        own = own_param(layer)
        for head in _heads(view, index):
            if head.prior is None or head.prior.type not in TYPES:
                continue
            place = Place.of(view.net.source_file, head.prior.source_line)
            boxes = len(PriorBox(head.prior, view.phase, place).sides())
            shared = layer.type == "AlignedBoxLoss" or own.share_location
            each = ((head.loc, 4 if shared else 4 * own.num_classes, "coordinates"), (head.conf, own.num_classes, "classes"))
            for predicted, values, what in each:
                if predicted is None or predicted.type != "Convolution" or predicted.convolution_param.num_output == boxes * values:
                    continue
                fact = f"num_output is {predicted.convolution_param.num_output}; '{head.prior.name}' has {boxes} priors in a cell, each with {values} {what}"
                fix = f"num_output: {boxes * values}, or change the priors (min_size, max_size, aspect_ratio, flip) or num_classes"
                yield view.finding("predictions-per-cell", predicted, fact, fix, "convolution_param.num_output")


@net_rule
def prior_steps(view: View) -> Iterator[Finding]:
    """Priors whose step or img_size belongs to another size of image. Their centres are not those of the cells."""
    for layer, cells, image, _ in _maps(view):
        own = layer.prior_box_param
        for axis, (step, size) in enumerate((("step_h", "img_h"), ("step_w", "img_w"))):
            distance, whole = getattr(own, step) or own.step, getattr(own, size) or own.img_size or image[axis]
            if abs(whole - image[axis]) > SHIFT * image[axis]:
                fact, field = f"img_size is {whole:g}, and the image has {image[0]} x {image[1]} pixels", "img_size"
            elif distance and abs(distance * cells[axis] - image[axis]) > SHIFT * image[axis]:
                fact, field = f"{cells[axis]} cells with a step of {distance:g} make {distance * cells[axis]:g} pixels, the image has {image[axis]}", "step"
            else:
                continue
            yield view.finding("prior-steps", layer, fact, f"remove {field}: it follows from the image and the map", f"prior_box_param.{field}")
            break


@job_rule
def objects_without_prior(job: Job) -> Iterator[Finding]:
    """Objects of which most overlap no prior by overlap_threshold. Each then trains one prior, and few of them are found."""
    for view, loss, data in _trainings(job):
        sample, maps = sample_of(job, view, data), list(_maps(view))
        warped = all(each.resize_mode == proto.ResizeParameter.WARP for each in data.transform_param.resize_param)
        if sample is None or not maps or not warped:  # padded images have other fractions
            continue
        objects, threshold = _some(_right(sample.stored[:, CORNERS])), loss.multibox_loss_param.overlap_threshold
        share = float((np.max([overlaps(each.priors, objects).max(0) for each in maps], 0) < threshold).mean()) if len(objects) else 0
        if share > UNMATCHED:
            low, middle, high = np.percentile(np.sqrt(area(objects) * np.prod(maps[0].image)), (25, 50, 75))
            sizes = np.concatenate([each.sides() for each in maps])
            fact = f"{100 * share:.0f} % of {len(objects)} boxes overlap no prior by {threshold:g} ({sample.text}). "
            fact += f"A quarter has sides up to {low:.0f} pixels, half up to {middle:.0f}, three quarters up to {high:.0f}; "
            fact += f"the priors have {sizes.min():.0f} to {sizes.max():.0f}"
            fix = "set min_size, max_size and aspect_ratio near the objects; for small objects use larger images, or priors on an earlier map"
            yield view.finding("objects-without-prior", maps[0].layer, fact, fix, "prior_box_param.min_size")


@job_rule
def priors_without_object(job: Job) -> Iterator[Finding]:
    """A map whose priors match no object of the transformed images. Its predictions learn the background alone."""
    for view, loss, data in _trainings(job):
        sample, threshold = sample_of(job, view, data), loss.multibox_loss_param.overlap_threshold
        if sample is None:
            continue
        left = _unmatched([*_maps(view)], _some(_right(sample.stored[:, CORNERS])), threshold)
        objects = _right(sample.drawn(DRAWS)[:, CORNERS]) if left else sample.stored[:0]  # draws cost more time
        if len(objects) < FEWEST:
            continue
        for each in _unmatched(left, _some(objects), threshold):
            sizes = each.sides()
            fact = f"its priors with sides of {sizes.min():.0f} to {sizes.max():.0f} pixels overlap no box by {threshold:g}"
            fact += f" ({len(_some(objects))} boxes of {DRAWS} transformed images)"
            fix = "set min_size and max_size to sizes of your objects, or remove the layers of this map"
            yield view.finding("priors-without-object", each.layer, fact, fix, "prior_box_param.min_size")


@job_rule
def objects_without_anchor(job: Job) -> Iterator[Finding]:
    """Objects of which most overlap no anchor inside the image. A region proposal network learns little from them, or its loss stays 0."""
    for view in job.views:
        graph = None
        with contextlib.suppress(Error):  # the rule `impossible` tells it
            graph = view.graph if view.train and any(layer.type == "AnchorTarget" for layer in view.layers) else None
        layers = [node.layer for node in graph.nodes] if graph is not None else []
        source = next((layer.source for layer in layers if isinstance(layer, RoIData)), None)
        for layer in layers:
            if isinstance(layer, AnchorTarget) and source is not None:
                yield from _without_anchor(view, layer, source)


def _without_anchor(view: View, layer: AnchorTarget, source: RoiSource) -> Iterator[Finding]:
    own, (best, sides) = layer.settings, _anchored(source, layer)
    share = float((best < own.negative_overlap).mean())
    if share > UNMATCHED:
        low, middle, high = np.percentile(sides, (25, 50, 75))
        lengths = [own.base_size * scale for scale in own.scales]
        fact = f"{100 * share:.0f} % of {len(best)} boxes overlap no anchor inside their image by {own.negative_overlap:g}"
        if not best.any():
            fact = f"no anchor lies inside one of the images with {len(best)} boxes, so the loss stays 0"
        fact += f". With 'scales': {source.settings.scales} a quarter has sides up to {low:.0f} pixels, half up to {middle:.0f}, "
        fact += f"three quarters up to {high:.0f}; the anchors have about {min(lengths):g} to {max(lengths):g}"
        fix = "change 'scales' of the anchors in all layers that have them, or use larger images by 'scales' and 'max_size' of RoIData"
        yield view.finding("objects-without-anchor", layer.param, fact, fix, "python_param.param_str")


def _anchored(source: RoiSource, layer: AnchorTarget) -> tuple[np.ndarray, np.ndarray]:
    """Return of each box the largest overlap with an anchor inside the image, and the side of a square of its area. IMAGES images at most count."""
    own, best, sides = layer.settings, [np.zeros(0)], [np.zeros(0)]
    for number in np.linspace(0, len(source.used) - 1, min(len(source.used), IMAGES)).astype(int):
        entry = source.entries[source.used[number]]
        scale, (height, width) = scaled(entry.size, source.settings.scales[0], source.settings.max_size)
        boxes = entry.boxes[source.kept(entry)] * scale
        y, x = np.mgrid[: -(-height // own.feat_stride), : -(-width // own.feat_stride)].reshape(2, -1, 1) * own.feat_stride
        anchors = (np.concatenate([x, y, x, y], 1)[:, None] + layer.anchors).reshape(-1, 4)
        border = own.allowed_border
        inside = anchors[(anchors[:, :2] >= -border).all(1) & (anchors[:, 2] < width + border) & (anchors[:, 3] < height + border)]
        best.append(pixel_overlaps(inside, boxes).max(0, initial=0))
        sides.append(np.sqrt((boxes[:, 2:] - boxes[:, :2] + 1).prod(1)))
    return np.concatenate(best), np.concatenate(sides)


def _trainings(job: Job) -> Iterator[tuple[View, Any, Any]]:
    """Yield the TRAIN nets with one MultiBoxLoss that reads the boxes of a data layer, with both layers."""
    for view in job.views:
        losses = [index for index, layer in enumerate(view.layers) if layer.type == "MultiBoxLoss"]
        if view.train and len(losses) == 1 and view.source(losses[0], 3) is not None:
            yield view, view.layers[losses[0]], view.source(losses[0], 3)


def _maps(view: View) -> Iterator[Map]:
    """Yield the maps with priors. Yield none if the net cannot be built."""
    graph = None
    with contextlib.suppress(Error):  # the rule `impossible` tells it
        graph = view.graph if any(layer.type in TYPES for layer in view.layers) else None
    for node in graph.nodes if graph is not None else ():
        if isinstance(node.layer, PriorBox):
            cells, image = (bottom.shape[2:] for bottom in node.bottoms)
            yield Map(node.layer.param, cells, image, node.layer.boxes[0].reshape(-1, 4))


def _unmatched(maps: list[Map], objects: np.ndarray, threshold: float) -> list[Map]:
    """Return the maps of which no prior overlaps an object by `threshold`."""
    return [each for each in maps if not len(objects) or overlaps(each.priors, objects).max() < threshold]


def _right(corners: np.ndarray) -> np.ndarray:
    """Return the boxes that are not wrong."""
    return corners[(corners >= -EDGE).all(1) & (corners <= 1 + EDGE).all(1) & (area(corners) > 0)]


def _some(boxes: np.ndarray) -> np.ndarray:
    """Return OBJECTS of the boxes at most, evenly distributed."""
    return boxes[np.linspace(0, len(boxes) - 1, min(len(boxes), OBJECTS)).astype(int)]
