"""PriorBox."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import Layer, register, stated, times
from ocaffe.onnx.graph import OnnxGraph

MOST_BOXES = 1 << 24  # they are computed on the host, in about 200 bytes each; SSD512 has 24,564
SAME = 1e-6  # ratios whose difference is smaller count as equal


@register("PriorBox", "PriorBoxClustered")
class PriorBox(Layer):
    """Prior boxes of several sizes and aspect ratios, centred in every cell of a feature map and relative to the image, and their variances.

    Bottoms: the feature map and the image; only their shapes are used. Top 1 x 2 x 4P with P = height * width * boxes per cell: first xmin, ymin,
    xmax, ymax of each box, then its four variances. The top is a constant, computed on the host. Sizes are truncated to whole pixels, as in SSD.

    With denser_prior_boxes, each box is followed by the same box half a cell below (TextBoxes++).

    With `fixed_size` and `density` (FaceBoxes), a cell has density x density boxes of each fixed_size, which are evenly spread over a square of that
    size, for the ratio 1 and each aspect_ratio, or for each fixed_ratio instead. They come first, and are clipped to the image. The fork counts these boxes
    wrongly if there are several fixed_ratio, or min_size too; that is mended here.

    With `width` and `height`, which PriorBoxClustered needs, box i has the size width[i] x height[i], and min_size, max_size, aspect_ratio and flip
    are not used. Source: openvinotoolkit/training_toolbox_caffe, src/caffe/layers/prior_box_clustered_layer.cpp at 2c1f3de.
    """

    origin = "SSD, OpenVINO, TextBoxes++, FaceBoxes"
    message = "prior_box_param"
    bottoms = 2
    inplace_top = False
    moves_data = False
    has_backward = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        for i, shape in enumerate(bottoms):
            self.check(len(shape) == 4, f"bottom {i} is {shape_text(shape)}, it must be N x C x H x W", f"give the {('feature map', 'image')[i]} as bottom {i}")
            if 0 in shape[2:]:
                self.check_filled(shape, i)
        for field, value in self.own().ListFields():
            for number in value if field.is_repeated else [value]:
                self.check(math.isfinite(number), f"{field.name} is {number:g}", f"set {field.name} to a finite number")
        cells, boxes = math.prod(bottoms[0][2:]), len(self.sides()) * (1 + self.own().denser_prior_boxes)
        fact = f"a feature map of {shape_text(bottoms[0])} has {cells:,} cells of {boxes} boxes; at most {MOST_BOXES:,} boxes are computed"
        self.check(cells * boxes <= MOST_BOXES, fact, "give a smaller feature map as bottom 0")
        self.boxes = self._boxes(*(shape[2:] for shape in bottoms))
        return [(1, 2, self.boxes.shape[1])]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        tops[0].data = rec.constant("boxes", self.boxes[None])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        for bottom in bottoms:
            for axis in (2, 3):
                graph.fixed(bottom, axis)
        graph.alias(tops[0], graph.constant(self.boxes[None]))

    def _boxes(self, cells: Shape, image: Shape) -> np.ndarray:
        """Return boxes and variances, 2 x 4P. Every step uses the types of SSD's code, so that the last bits agree."""
        p = self.own()
        size = np.array(self._pair("img_size", "img_h", "img_w") or image, np.int64)
        step = np.array(self._pair("step", "step_h", "step_w") or size / np.array(cells), np.float32)
        sides = self.sides()
        rows, columns = ((np.arange(n, dtype=np.float32) + np.float32(p.offset)) * own for n, own in zip(cells, step))
        centres = np.stack(np.broadcast_arrays(columns[None, :, None], rows[:, None, None]), -1).astype(np.float64)
        if p.denser_prior_boxes:
            below = np.stack(np.broadcast_arrays(columns[None, :, None], (np.arange(1, cells[0] + 1, dtype=np.float32) * step[0])[:, None, None]), -1)
            centres, sides = np.concatenate([centres, below] * len(sides), 2), np.repeat(sides, 2, 0)
        shifts = self.shifts()
        if len(shifts):
            centres = np.repeat(centres, len(sides), 2)
            centres[..., : len(shifts), :] += shifts
            centres = centres.astype(np.float32).astype(np.float64)
        corners = np.concatenate([centres - sides / 2.0, centres + sides / 2.0], -1) / np.tile(size[::-1], 2)
        corners[..., : len(shifts), :] = corners[..., : len(shifts), :].clip(0, 1)
        boxes = corners.astype(np.float32).reshape(-1)
        if p.clip:
            boxes = boxes.clip(0, 1)
        variance = np.array(self._variance(p), np.float32)
        return np.stack([boxes, np.resize(variance, boxes.size)])

    def sides(self) -> np.ndarray:
        """Return the width and height of each box of a cell, n x 2 in pixels. Raise the layer's error for wrong settings."""
        p = self.own()
        widths, heights = list(p.width), list(p.height)
        if widths or heights or self.param.type == "PriorBoxClustered":
            fix = "write width and height equally often: once for each box of a cell, in pixels"
            self.check(widths and len(widths) == len(heights), f"{len(widths)} width and {len(heights)} height are given", fix)
            self.check(min(*widths, *heights) > 0, f"a width or height is {min(*widths, *heights):g}", "set each width and height above 0")
            return np.array([*zip(widths, heights)], np.float32)
        least, most, fixed = list(p.min_size), list(p.max_size), self._fixed_sides()
        self.check(
            (least or fixed) and min(least, default=1) > 0,
            f"min_size is {', '.join(f'{size:g}' for size in least) or 'missing'}",
            "set each min_size above 0: the side of a box in pixels" if least else f"{self.written('min_size: N')}, where N is the side of a box in pixels",
        )
        self.check(
            len(most) in (0, len(least)),
            f"{len(most)} max_size given for {len(least)} min_size",
            f"write max_size {times(len(least))}, one for each min_size, or not at all",
        )
        for low, high in zip(least, most):
            self.check(high > low, f"max_size {high:g} is not above min_size {low:g}", f"set this max_size above {low:g}; both fields have one order")
        ratios, result = self._ratios(p), fixed
        for i, low in enumerate(int(size) for size in least):
            result.append((low, low))
            if most:
                result.append((np.sqrt(low * int(most[i])),) * 2)
            result += [(low * np.sqrt(ratio), low / np.sqrt(ratio)) for ratio in ratios[1:]]
        return np.array(result, np.float32)

    def _fixed(self) -> list[tuple[float, int]]:
        """Return (size, density) of each fixed_size. Raise the layer's error for wrong settings."""
        p = self.own()
        sizes, densities = list(p.fixed_size), [int(density) for density in p.density]
        fits = len(sizes) == len(densities) and min([*sizes, *densities], default=1) > 0
        self.check(fits, f"fixed_size is {sizes}, density {densities}", "write one density for each fixed_size, and set each of both above 0")
        fact = f"density {max(densities, default=0):,} makes {max(densities, default=0) ** 2:,} boxes in a cell; at most {MOST_BOXES:,} boxes are computed"
        self.check(max(densities, default=0) ** 2 <= MOST_BOXES, fact, "give a smaller density")
        self.check(not (p.fixed_ratio and p.aspect_ratio), "fixed_ratio and aspect_ratio are given", "remove fixed_ratio, or aspect_ratio")
        fact = "fixed_size and denser_prior_boxes are given, which are of different forks"
        self.check(not (sizes and p.denser_prior_boxes), fact, "remove denser_prior_boxes")
        return list(zip(sizes, densities))

    def _fixed_ratios(self) -> list[np.float32]:
        """Return the ratios of the boxes of a fixed_size."""
        p = self.own()
        return [np.float32(ratio) for ratio in p.fixed_ratio] or self._ratios(p)

    def _fixed_sides(self) -> list[tuple[Any, Any]]:
        """Return the width and height of each box of the fixed sizes."""
        result: list[tuple[Any, Any]] = []
        for size, density in self._fixed():
            for ratio in self._fixed_ratios():
                plain = ratio == 1 and not self.own().fixed_ratio  # such a box has whole pixels in the fork
                sides = (int(size),) * 2 if plain else (np.float32(size) * np.sqrt(ratio), np.float32(size) / np.sqrt(ratio))
                result += [sides] * density**2
        return result

    def shifts(self) -> np.ndarray:
        """Return the distances of the first boxes of a cell from its centre, n x 2 (x, y) in pixels: those of the fixed sizes."""
        result = []
        for size, density in self._fixed():
            step = int(np.float32(size) / density)
            places = [step / 2 + i * step - int(size) // 2 for i in range(density)]
            result += [(x, y) for y in places for x in places] * len(self._fixed_ratios())
        return np.array(result, np.float64).reshape(-1, 2)

    def _ratios(self, p: Any) -> list[np.float32]:
        """Return 1, then the given ratios, each followed by its inverse if `flip` is set. Duplicate ratios are dropped, duplicate inverses are not."""
        result = [np.float32(1)]
        for ratio in map(np.float32, p.aspect_ratio):
            self.check(ratio > 0, f"aspect_ratio is {ratio:g}", "set each aspect_ratio above 0: width divided by height")
            if all(abs(ratio - other) >= SAME for other in result):
                result += [ratio, np.float32(1) / ratio] if p.flip else [ratio]
        return result

    def _variance(self, p: Any) -> Sequence[float]:
        given = list(p.variance) or [0.1]
        self.check(len(given) in (1, 4), f"variance is given {times(len(given))}", "write variance once, or 4 times: for x, y, width and height")
        self.check(min(given) > 0, f"a variance is {min(given):g}", "set each variance above 0")
        return given * (4 // len(given))

    def _pair(self, both: str, height: str, width: str) -> tuple[float, float] | None:
        """Return (height, width), which are given as one value or as two. Return None if they are not given."""
        p = self.own()
        own = p.HasField(height) or p.HasField(width)
        self.check(
            not (p.HasField(both) and own),
            f"{both} and {height if p.HasField(height) else width} are both given",
            f"remove {both}, or {height} and {width}",
        )
        values = (getattr(p, height), getattr(p, width)) if own else (getattr(p, both),) * 2
        given = own or p.HasField(both)
        for name, value in zip((height, width) if own else (both,), values):
            self.check(not given or value > 0, stated(p, name), f"set {name} above 0")
        return values if given else None
