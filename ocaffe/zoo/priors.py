"""Sizes of an SSD's prior boxes that suit the objects of a data set.

An object whose overlap with every prior box is below 0.5 trains a single prior, its best one, and few such objects are found. The published sizes are
those for PASCAL VOC, whose objects are large. The sizes are changed one after another as long as more objects get a prior.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ocaffe import proto
from ocaffe.data.changes.boxes import overlaps
from ocaffe.layers.prior_box import PriorBox

ENOUGH = 0.9  # share of the objects with a prior: published sizes stay
OVERLAP = 0.5  # of MultiBoxLoss
OBJECTS = 500  # that are compared, evenly distributed
FACTORS = (1.4, 1.2, 1.1, 1.05)  # of a size that is changed
SWEEPS = 3  # over all sizes with one factor
GAIN = 1e-4  # a smaller one is not worth a change
SMALLEST = 8  # pixels of a prior
FEWEST = 50  # objects; the sizes of fewer say little


class Map(NamedTuple):
    """A PriorBox layer, and the height and width of its map and of the image."""

    layer: Any
    cells: tuple[int, ...]
    image: tuple[int, ...]


class Sizes(NamedTuple):
    """min_size and max_size of a PriorBox layer, in pixels."""

    low: list[float]
    high: list[float]


class Fitted(NamedTuple):
    """The sizes of each PriorBox layer by its name. `before`, `after`: shares of the objects with a prior."""

    sizes: dict[str, Sizes]
    before: float
    after: float


def prior_maps(graph: Any) -> list[Map]:
    """Return the maps with priors of a net."""
    return [Map(node.layer.param, *(bottom.shape[2:] for bottom in node.bottoms)) for node in graph.nodes if isinstance(node.layer, PriorBox)]


def fitted(maps: Sequence[Map], corners: np.ndarray) -> Fitted | None:
    """Return sizes that suit objects (n x 4, fractions of the image). Return None if the present ones suit them, or if no better ones are found.

    Aspect ratios and the number of boxes of a cell stay, so weights fit.
    """
    objects = corners[np.linspace(0, len(corners) - 1, min(len(corners), OBJECTS)).astype(int)]
    sizes = [Sizes([*each.layer.prior_box_param.min_size], [*each.layer.prior_box_param.max_size]) for each in maps]
    if len(objects) < FEWEST or not all(own.low for own in sizes):  # PriorBoxClustered has widths and heights
        return None
    best = [_best(each, own, objects) for each, own in zip(maps, sizes)]
    before = _share(best)
    if before >= ENOUGH:
        return None
    score = _score(best)
    for factor in FACTORS:
        for _ in range(SWEEPS):
            start = score
            for number, each in enumerate(maps):
                for kind, index in [(kind, index) for kind, part in enumerate(sizes[number]) for index in range(len(part))]:
                    for step in (factor, 1 / factor):
                        changed = Sizes(*(list(part) for part in sizes[number]))
                        changed[kind][index] = float(round(changed[kind][index] * step))
                        if not _possible(each, changed):
                            continue
                        tried = [*best[:number], _best(each, changed, objects), *best[number + 1 :]]
                        if _score(tried) > score + GAIN:
                            best, sizes[number], score = tried, changed, _score(tried)
            if score <= start:
                break
    after = _share(best)
    return Fitted({each.layer.name: own for each, own in zip(maps, sizes)}, before, after) if after > before else None


def _possible(given: Map, sizes: Sizes) -> bool:
    """Whether PriorBox accepts the sizes, and they are not larger than the image."""
    rising = all(low < high for low, high in zip(sizes.low, sizes.high))
    return rising and min(sizes.low) >= SMALLEST and max([*sizes.low, *sizes.high]) <= max(given.image)


def _best(given: Map, sizes: Sizes, objects: np.ndarray) -> np.ndarray:
    """Return the largest overlap of each object with a prior of one map."""
    layer = proto.LayerParameter()
    layer.CopyFrom(given.layer)
    layer.prior_box_param.min_size[:], layer.prior_box_param.max_size[:] = sizes
    made = PriorBox(layer, proto.TEST)
    made.infer((1, 1, *given.cells), (1, 3, *given.image))
    return np.asarray(overlaps(made.boxes[0].reshape(-1, 4), objects).max(0))


def _share(best: list[np.ndarray]) -> float:
    return float((np.max(best, 0) >= OVERLAP).mean())


def _score(best: list[np.ndarray]) -> float:
    """Return the share of objects with a prior plus their mean overlap, which also grows by small steps."""
    return _share(best) + float(np.max(best, 0).mean())
