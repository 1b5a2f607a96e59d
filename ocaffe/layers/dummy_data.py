"""DummyData: tops with filler values."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.data.source import upload
from ocaffe.data.sources.dummy import BatchNumber
from ocaffe.errors import shape_text
from ocaffe.formats.fillers import draw_of
from ocaffe.ir.graph import Blob
from ocaffe.ir.labels import LabelRange
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role, Shape
from ocaffe.kernels.inputs.filler import random_fill
from ocaffe.layers.base import Layer, once_or, register
from ocaffe.onnx.graph import OnnxGraph

_LEGACY = ("num", "channels", "height", "width")


@register("DummyData")
class DummyData(Layer):
    """Tops with values of `data_filler`. Constant tops are filled once; the device draws the others again in each forward pass."""

    bottoms, tops = 0, (1, None)
    moves_data = False  # the layer makes its tops' Refs: constants need no launch
    source: BatchNumber | None = None  # for the tops that are not constant

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        shapes = self._shapes()
        if self.source is None and (random := self._random()):
            self.source = BatchNumber([shapes[i] for i in random], place=self.place, layer=self.title)
            with self.source.located():
                for i in random:
                    draw_of(self._fillers()[i], shapes[i])  # raises Error
        return shapes

    def limit_labels(self, top: int, limit: LabelRange) -> bool:
        filler = self._fillers()[top]
        if filler.type != "constant":
            return False  # a kernel checks drawn labels
        if limit.first_wrong(np.array([filler.value], np.float32)) is not None:
            problem = limit.error(filler.value)
            raise self.error(problem.fact, problem.fix)
        return True

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        for top, filler in zip(tops, self._fillers()):
            constant = filler.type == "constant"
            top.data = Ref(top.name, top.shape, Role.CONSTANT if constant else Role.ACTIVATION, value=filler.value if constant else None)
        if self.source is not None:
            batch = upload(rec, self.source, self.source.nbytes)
            for i in self._random():
                with self.source.located():
                    random_fill(rec, self._fillers()[i], batch, tops[i].data, f"top{i}")

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        for top, filler in zip(tops, self._fillers()):
            if filler.type != "constant":
                raise graph.refused(
                    f"'{top.name}' is filled in each forward pass ({filler.type})",
                    f"replace the layer by Input, with input_param {{ shape {{ {' '.join(f'dim: {n}' for n in top.shape)} }} }} for this top",
                )
            graph.alias(top, np.full(top.shape, filler.value, np.float32))

    def _random(self) -> list[int]:
        """Return the indices of the tops that are not constant."""
        return [i for i, filler in enumerate(self._fillers()) if filler.type != "constant"]

    def _fillers(self) -> list[Any]:
        """Return one filler per top."""
        fillers = list(self.own().data_filler) or [proto.FillerParameter()]
        return self._per_top(fillers, "data_filler")

    def _shapes(self) -> list[Shape]:
        param = self.own()
        legacy = {name: list(getattr(param, name)) for name in _LEGACY}
        if not any(legacy.values()):
            self.check(
                param.shape,
                "dummy_data_param has no shape",
                f"{self.written('shape { dim: N dim: C }')}, with the sizes of a top, once for all tops or once for each",
            )
            shapes = [tuple(map(int, shape.dim)) for shape in self._per_top(list(param.shape), "shape")]
        else:
            given = ", ".join(name for name in _LEGACY if legacy[name])
            self.check(not param.shape, f"shape is set, and the older {given} too", f"remove {given}")
            self.check(
                all(legacy.values()),
                f"of the older fields only {given} is set",
                f"add {', '.join(name for name in _LEGACY if not legacy[name])}, or replace {given} by shape {{ dim: .. }}",
            )
            shapes = list(zip(*(self._per_top(sizes, name) for name, sizes in legacy.items())))
        for shape in shapes:
            self.check(min(shape, default=0) >= 0, f"shape {shape_text(shape)} has a negative dim", "set each dim to 0 or more")
        return shapes

    def _per_top(self, values: list[Any], what: str) -> list[Any]:
        """Return one value per top. `values` has one for each top or one for all."""
        count = len(self.param.top)
        self.check(
            len(values) in (1, count),
            f"{len(values)} {what} given for {count} top{'s' if count > 1 else ''}",
            f"write {what} {once_or(count)}",
        )
        return values if len(values) == count else values * count
