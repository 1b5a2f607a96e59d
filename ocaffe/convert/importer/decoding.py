"""Write the part of a detector behind its last convolutions as formulas: `formulas` of the values of each output.

A tensor has one axis of values, such as the coordinates and scores of a box. The other axes are places. The formulas are in terms of letters, one for each
tensor of a level. A level is a map of the image, with a stride in pixels. Levels whose formulas are equal have one formula together.
"""
from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ocaffe.convert.importer.graph import Graph, Node
from ocaffe.errors import shape_text
from ocaffe.ir.tensor import Shape

INFIX = {"Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "Pow": "**"}
FUNCTIONS = {"Sigmoid": "sigmoid", "Exp": "exp", "Relu": "relu", "Tanh": "tanh", "Abs": "abs", "Sqrt": "sqrt", "Softplus": "softplus", "Neg": "-",
             "HardSigmoid": "hard_sigmoid", "Sin": "sin", "Cos": "cos"}  # fmt: skip
UNCHANGED = ("Identity", "Cast", "Expand")
SHORT, MANY = 24, 1 << 16  # numbers that a text lists, and those of a constant in which they are looked for
DEEPEST, LONGEST, MOST, LARGEST = 150, 2000, 64, 1 << 22  # nodes in a row, letters of a formula, formulas of an output, pixels of all levels


class Unknown(Exception):
    """The part has operators or shapes for which there is no formula."""


@dataclass(frozen=True)
class Level:
    """A map of `height` x `width` pixels, `stride` pixels of the image apart."""

    height: int
    width: int
    stride: float


@dataclass(frozen=True)
class Values:
    """A tensor: its axis of values (None for a single value), how many there are, and the text of a range of them.

    `parts` is the axis into which the values were split, for example by anchor, and `whole` the values before. `soft`: they are the result of a softmax.
    `cuts` are places where the text changes.
    """

    axis: int | None
    width: int
    text: Callable[[int, int], str]
    levels: tuple[Level, ...]
    cuts: frozenset[int] = frozenset()
    parts: int | None = None
    whole: Values | None = None
    soft: bool = False


@dataclass
class Reader:
    """Reads the formulas of tensors of a folded graph. `found` are the tensors that the program gets. `legends` explain the words in the formulas."""

    graph: Graph
    found: dict[str, Values]
    legends: dict[str, str] = field(default_factory=dict)
    listed: dict[tuple[str, tuple[Level, ...]], list[str]] = field(default_factory=dict)  # names of the constants that legends list

    def read(self) -> None:
        """Read all tensors that have a formula. Their depth is limited, because a file may have any number of nodes."""
        depths = dict.fromkeys(self.found, 0)
        for node in self.graph.nodes:
            depth = 1 + max((depths.get(name, 0) for name in node.inputs), default=0)
            for tensor in node.outputs:
                if tensor not in self.found and depth < DEEPEST:
                    with contextlib.suppress(Unknown):
                        self.found[tensor], depths[tensor] = self._computed(node, tensor), depth

    def values(self, tensor: str) -> Values:
        """Return what a tensor holds. Raises Unknown."""
        if tensor not in self.found:
            raise Unknown(tensor)
        return self.found[tensor]

    def _computed(self, node: Node, tensor: str) -> Values:
        if not any(name in self.found for name in node.inputs):
            raise Unknown(node.op)
        shapes = [self.graph.shape(name) for name in (node.inputs[0], tensor)]
        if node.op in INFIX:
            return self._infix(node, tensor)
        if node.op == "Concat":
            return self._joined(node, node.get("axis") % len(shapes[1]))
        if node.op == "ScatterND":
            return self._assigned(node)
        x = self.values(node.inputs[0])
        if node.op in UNCHANGED:
            return x
        if node.op in FUNCTIONS:
            return replace(x, text=lambda start, end: f"{FUNCTIONS[node.op]}({x.text(start, end)})", whole=None)
        if node.op in ("Reshape", "Flatten", "Squeeze", "Unsqueeze"):
            made = _reshaped(x, *shapes)
            if made.width != x.width:
                self.legends[f"0 {x.text(0, x.width)}"] = f"{x.text(0, x.width)} is {x.width // made.width} x {made.width} values, one anchor after the other"
            return made
        if node.op == "Transpose":
            order = list(node.get("perm", range(len(shapes[0]))[::-1]))
            return replace(x, axis=None if x.axis is None else order.index(x.axis), parts=None if x.parts is None else order.index(x.parts))
        if node.op in ("Slice", "Split", "Gather"):
            return self._part(node, tensor, x)
        if node.op == "Softmax" and node.get("axis", -1) % len(shapes[0]) == x.axis:
            return replace(x, text=lambda start, end: f"softmax({x.text(0, x.width)})" + (f"[{start}:{end}]" if end - start < x.width else ""), soft=True)
        if node.op in ("Conv", "MatMul"):
            return self._combined(node, x) if not x.soft else self._mean(node, x)
        if node.op in ("Clip", "Max", "Min"):
            return self._bounded(node, x)
        raise Unknown(node.op)

    def _infix(self, node: Node, tensor: str) -> Values:
        sides = [None if name in self.graph.constants else self.values(name) for name in node.inputs]
        own = [side for side in sides if side is not None]
        x = max(own, key=lambda side: side.width)
        if any(side.width not in (1, x.width) or side.axis not in (None, x.axis) for side in own):
            raise Unknown(node.op)
        shape = self.graph.shape(tensor)

        def word(side: Values | None, name: str, start: int, end: int) -> str:
            if side is None:
                return self._constant(name, x, shape, start, end)
            return side.text(0, 1) if side.width == 1 else side.text(start, end)

        def text(start: int, end: int) -> str:
            words = [word(side, name, start, end) for side, name in zip(sides, node.inputs)]
            if len("".join(words)) > LONGEST:
                raise Unknown(node.op)
            return f"({words[0]} {INFIX[node.op]} {words[1]})"

        levels = tuple(dict.fromkeys(level for side in own for level in side.levels))
        return Values(x.axis, x.width, text, levels, frozenset().union(*(side.cuts for side in own)), x.parts)

    def _joined(self, node: Node, axis: int) -> Values:
        known = [self.found[name] for name in node.inputs if name in self.found]
        if all(part.axis in (None, axis) for part in known):  # a part of the values may have no formula, or be a constant
            parts = [self.found[name] if name in self.found else self._other(name, axis) for name in node.inputs]
        else:
            parts = [self.values(name) for name in node.inputs]
        first = parts[0]
        levels = tuple(dict.fromkeys(level for part in parts for level in part.levels))
        if any(part.axis not in (None, axis) for part in parts):  # the places of several levels
            if any((part.axis, part.width) != (first.axis, first.width) for part in parts[1:]):
                raise Unknown(node.op)
            if all(level.stride for level in levels):
                self.legends["~"] = f"The boxes of stride {', then those of '.join(f'{level.stride:g}' for level in levels)} follow each other."
            return replace(first, text=_by_level(parts), levels=levels, cuts=frozenset().union(*(part.cuts for part in parts)), parts=None, whole=None)
        edges = [0, *itertools.accumulate(part.width for part in parts)]
        return _pieces(axis, [(edge, part, 0) for edge, part in zip(edges, parts)], edges[-1], levels)

    def _other(self, name: str, axis: int) -> Values:
        """Return the values of a constant, or of a tensor without a formula."""
        array = self.graph.constants.get(name)
        number = array is not None and array.size > 0 and bool((array == array.flat[0]).all())
        word = f"{float(array.flat[0]):.8g}" if number and array is not None else "..."
        if not number:
            self.legends["z"] = "...: values for which this note has no formula"
        return Values(axis, self.graph.shape(name)[axis], lambda start, end: word, ())

    def _assigned(self, node: Node) -> Values:
        x, y = self.values(node.inputs[0]), self.values(node.inputs[2])
        places = self.graph.constants.get(node.inputs[1])
        if places is None or x.axis is None or places.shape[-1] <= x.axis or node.get("reduction", "none") != "none":
            raise Unknown(node.op)
        shape = self.graph.shape(node.inputs[0])
        start, end = int(places[..., x.axis].min()), int(places[..., x.axis].max()) + 1
        count = math.prod(places.shape[:-1]) * math.prod(shape[places.shape[-1] :])
        if end - start != y.width or count * x.width != math.prod(shape) * y.width:
            raise Unknown(node.op)
        pieces = [(0, x, 0), (start, y, 0), (end, x, end)]
        return _pieces(x.axis, pieces, x.width, x.levels)

    def _part(self, node: Node, tensor: str, x: Values) -> Values:
        axes = self.graph.shape(node.inputs[0])
        if node.op == "Gather":
            index = self.graph.constants.get(node.inputs[1])
            if index is None or index.ndim or node.get("axis", 0) % len(axes) != x.axis:
                raise Unknown(node.op)
            first = int(index) % x.width
            return Values(None, 1, lambda start, end: x.text(first, first + 1), x.levels)
        if node.op == "Split":
            axis = node.get("axis", 0) % len(axes)
            start = sum(self.graph.shape(name)[axis] for name in itertools.takewhile(lambda name: name != tensor, node.outputs))
        else:
            bounds = [list(np.ravel(node.get(name, self.graph.constants.get(node.input(1 + at), default))))
                      for at, (name, default) in enumerate((("starts", None), ("ends", None), ("axes", [0]), ("steps", [1])))]  # fmt: skip
            if any(len(each) != 1 or each[0] is None for each in bounds) or bounds[3][0] != 1:
                raise Unknown(node.op)
            axis = int(bounds[2][0]) % len(axes)
            start = slice(int(bounds[0][0]), None).indices(axes[axis])[0]
        if axis != x.axis:
            raise Unknown(node.op)
        width = self.graph.shape(tensor)[axis]
        cuts = frozenset(cut - start for cut in x.cuts if start < cut < start + width)
        return Values(x.axis, width, lambda a, b: x.text(start + a, start + b), x.levels, cuts, x.parts)

    def _combined(self, node: Node, x: Values) -> Values:
        """Return the sums of a product with a small matrix, which changes the form of boxes."""
        matrix = self.graph.constants.get(node.inputs[1])
        if node.op != "MatMul" or matrix is None or matrix.ndim != 2 or x.axis != len(self.graph.shape(node.inputs[0])) - 1 or matrix.size > SHORT:
            raise Unknown(node.op)

        def text(start: int, end: int) -> str:
            sums = [" + ".join(f"{value:.8g} * {x.text(row, row + 1)}" for row, value in enumerate(matrix[:, column]) if value) for column in range(start, end)]
            if len("".join(sums)) > LONGEST:
                raise Unknown(node.op)
            return f"({sums[0]})" if len(sums) == 1 else f"[{', '.join(sums)}]"

        return Values(x.axis, matrix.shape[1], text, x.levels, frozenset(range(1, matrix.shape[1])))

    def _mean(self, node: Node, x: Values) -> Values:
        """Return the sum of the values times 0, 1, 2 ..: the mean of a distribution over as many bins."""
        weights = next((self.graph.constants[name] for name in node.inputs[1:2] if name in self.graph.constants), None)
        if not x.soft or weights is None or x.parts is None or x.whole is None or not is_count(weights, x.width):
            raise Unknown(node.op)
        whole, bins = x.whole, x.width
        self.legends.pop(f"0 {whole.text(0, whole.width)}", None)  # they are bins, not anchors
        self.legends["mean"] = f"softmax and mean are of each {bins} values; mean(p) is 0 p[0] + 1 p[1] + .. + {bins - 1} p[{bins - 1}]"
        return Values(x.parts, whole.width // bins, lambda start, end: f"mean(softmax({whole.text(start * bins, end * bins)}))", x.levels)

    def _bounded(self, node: Node, x: Values) -> Values:
        limits = [self.graph.constants.get(name) for name in node.inputs[1:] if name] if node.op != "Clip" else [
            np.asarray(node.get(name)) if name in node.attributes else self.graph.constants.get(node.input(at)) for at, name in ((1, "min"), (2, "max"))]
        if any(limit is not None and limit.size != 1 for limit in limits):
            raise Unknown(node.op)
        words = ", ".join("" if limit is None else f"{float(limit.reshape(())):.8g}" for limit in limits)
        return replace(x, text=lambda start, end: f"{node.op.lower()}({x.text(start, end)}, {words})", whole=None)

    def _constant(self, name: str, x: Values, shape: Shape, start: int, end: int) -> str:
        """Return the word for a constant beside the values x of a tensor of this shape: a number, grid, stride or anchors."""
        array = np.asarray(self.graph.constants[name], np.float64)
        array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
        if x.axis is not None and array.shape[x.axis] > 1:
            array = array.take(range(start, end), x.axis)
            array = np.moveaxis(array, x.axis, -1)
        else:
            array = array[..., None]
        return self._word(f"{name} {start}:{end}", array, x.levels) or f"constant '{name}' ({shape_text(array.shape)})"

    def _word(self, name: str, array: np.ndarray, levels: tuple[Level, ...]) -> str:
        if not levels or any(not level.stride for level in levels) or sum(level.height * level.width for level in levels) > LARGEST:
            return f"{array.flat[0]:.8g}" if (array == array.flat[0]).all() else ""
        places = np.concatenate([np.stack(np.meshgrid(np.arange(level.width), np.arange(level.height)), -1).reshape(-1, 2) for level in levels])
        strides = np.concatenate([np.full(level.height * level.width, level.stride) for level in levels])
        if (array == array.flat[0]).all():
            return "stride" if len(levels) == 1 and array.flat[0] == strides[0] else f"{array.flat[0]:.8g}"
        flat = _flat(array, len(places), [(level.height, level.width) for level in levels])
        if flat is not None:
            if (flat == strides[:, None]).all():
                return "stride"
            for scale, form in ((1.0, "{}"), (strides[:, None], "({} * stride)")):
                for columns, word in ((places, "grid"), (places[:, :1], "column"), (places[:, 1:], "row")):
                    rest = flat / scale - columns if flat.shape[-1] in (1, columns.shape[-1]) and flat.shape[-1] == columns.shape[-1] else None
                    if rest is not None and np.ptp(rest) < 1e-4:
                        self.legends[word] = f"{word}: {'column and row' if word == 'grid' else word} of the pixel in its map, from 0"
                        shift = round(float(rest.mean()), 4)
                        return form.format(f"({word} {'+' if shift > 0 else '-'} {abs(shift):.8g})" if shift else word)
        return self._listed(name, array, levels)

    def _listed(self, name: str, array: np.ndarray, levels: tuple[Level, ...]) -> str:
        """Return the word for a few numbers, such as anchors. They are in the legend."""
        if array.size > MANY:
            return ""
        rows = array.reshape(-1, array.shape[-1])
        order = np.sort(np.unique(rows, axis=0, return_index=True)[1])
        if order.size * rows.shape[1] > SHORT:
            return ""
        kind = "anchors" if rows.shape[1] == 2 else "factors"
        names = self.listed.setdefault((kind, levels), [])
        names += [] if name in names else [name]
        word = kind if names[0] == name else f"{kind}{names.index(name) + 1}"
        self.legends[f"{word} {levels[0].stride:06}"] = f"{word}{_of(levels)}: {', '.join(' x '.join(f'{value:.8g}' for value in row) for row in rows[order])}"
        return word


def _of(levels: Sequence[Level]) -> str:
    return f" of stride {levels[0].stride:g}" if len(levels) == 1 else ""


def _flat(array: np.ndarray, places: int, sizes: Sequence[tuple[int, int]]) -> np.ndarray | None:
    """Return a constant as places x values, without axes along which it is constant, or None if it does not vary with the places."""
    wanted = [(places,)] + ([sizes[0]] if len(sizes) == 1 else [])
    while array.ndim > 1:
        if array.shape[:-1] in wanted:
            return array.reshape(places, -1)
        axis = next((axis for axis in range(array.ndim - 1) if (array == array.take([0], axis)).all() and array.shape[:-1] != wanted[-1]), None)
        if axis is None:
            return None
        array = array.take(0, axis)
        if len(sizes) == 1 and array.ndim == 2 and array.shape[0] in sizes[0]:  # a column or a row alone
            height, width = sizes[0]
            along = array[None] if array.shape[0] == width else array[:, None]
            return np.broadcast_to(along, (height, width, array.shape[-1])).reshape(places, -1)
    return None


def is_count(weights: np.ndarray, size: int) -> bool:
    """Whether weights are 0, 1, 2 .., so that a product with a distribution over bins is its mean."""
    return weights.size == size > 1 and bool((weights.reshape(-1) == np.arange(size)).all())


def _pieces(axis: int | None, pieces: Sequence[tuple[int, Values, int]], width: int, levels: tuple[Level, ...]) -> Values:
    """Return the values that begin with each piece at a place. A piece is the place, other values, and the first of them."""
    ends = [*(place for place, _, _ in pieces[1:]), width]

    def text(start: int, end: int) -> str:
        found = []
        for (place, values, first), behind in zip(pieces, ends):
            low, high = max(start, place), min(end, behind)
            if low < high:
                found.append(values.text(low - place + first, high - place + first))
        if len("".join(found)) > LONGEST:
            raise Unknown("Concat")
        return found[0] if len(found) == 1 else f"[{', '.join(found)}]"

    cuts = {place for place, _, _ in pieces} | {cut - first + place for place, values, first in pieces for cut in values.cuts}
    if len(cuts) > MOST:
        raise Unknown("Concat")
    return Values(axis, width, text, levels, frozenset(cut for cut in cuts if 0 < cut < width))


def _by_level(parts: Sequence[Values]) -> Callable[[int, int], str]:
    """Return the text of values of several levels: that of one if all are equal, else those of all."""

    def text(start: int, end: int) -> str:
        texts = [part.text(start, end) for part in parts]
        if len("".join(texts)) > LONGEST:
            raise Unknown("Concat")
        each = (f"{part.levels[0].stride:g}: {text}" if part.levels else text for part, text in zip(parts, texts))
        return texts[0] if len(set(texts)) == 1 else f"{{by stride {'; '.join(each)}}}"

    return text


def _reshaped(x: Values, shape: Shape, wanted: Shape) -> Values:
    """Follow the axis of values by its distance in memory. If it is split, the last factor has the values, and the one before is the axis of parts."""
    if x.axis is None:
        return x

    def axis_of(distance: int, size: int) -> int:
        distances = [math.prod(wanted[axis + 1 :]) for axis in range(len(wanted))]
        found = [axis for axis, other in enumerate(distances) if other == distance and size % wanted[axis] == 0]
        exact = [axis for axis in found if wanted[axis] == size]
        if not found:
            raise Unknown("Reshape")
        return x.axis if x.axis in exact else exact[-1] if exact else max(found, key=lambda axis: wanted[axis])

    distance = math.prod(shape[x.axis + 1 :])
    axis = axis_of(distance, x.width)
    width = wanted[axis]
    if width != x.width:
        if x.cuts:
            raise Unknown("Reshape")
        return replace(x, axis=axis, width=width, parts=_or_none(axis_of, distance * width, x.width // width), whole=x)
    parts = None if x.parts is None else _or_none(axis_of, math.prod(shape[x.parts + 1 :]), shape[x.parts])
    return replace(x, axis=axis, parts=parts)


def _or_none(axis_of: Callable[[int, int], int], distance: int, size: int) -> int | None:
    with contextlib.suppress(Unknown):
        return axis_of(distance, size)
    return None


def formulas(graph: Graph, given: dict[str, Values], outputs: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the formulas of the values of each output, and the meanings of their words. Raises Unknown."""
    reader, lines = Reader(graph, dict(given)), []
    reader.read()
    for output in outputs:
        values = reader.values(output)
        edges = [0, *sorted(values.cuts), values.width]
        lines += [f"{output}[{start}:{end}] = {_bare(values.text(start, end))}" for start, end in itertools.pairwise(edges)]
    return lines, [reader.legends[key] for key in sorted(reader.legends)]


def _bare(text: str) -> str:
    """Remove brackets around the whole text."""
    depth = list(itertools.accumulate((letter == "(") - (letter == ")") for letter in text))
    return text[1:-1] if text.startswith("(") and text.endswith(")") and 0 not in depth[:-1] else text
