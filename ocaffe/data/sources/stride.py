"""The source of TSN's SegData layer: images with label images, one for each batch, scaled at random and cut to a multiple of a stride."""
from __future__ import annotations

from typing import Any

from ocaffe import proto
from ocaffe.data.changes.transform import Layout, Transform, as_values
from ocaffe.data.decoding.decode import Color
from ocaffe.data.source import BatchInfo
from ocaffe.data.sources.dense import Batch, DenseImageSource, PairFiles
from ocaffe.data.stagers.dense_stager import Frame, Shape3
from ocaffe.data.stagers.staged import StagedSource
from ocaffe.data.stagers.stride_stager import StrideStager
from ocaffe.errors import Error, Place, shape_text
from ocaffe.ir.tensor import Shape


class StrideSource(DenseImageSource):
    """Batches of one image with its labels. Its size is drawn anew for each batch."""

    _stager: StrideStager

    def __init__(self, param: Any, settings: Any, transform: Transform, *, workers: int | None = None, place: Place | None = None, layer: str | None = None):
        """`param` is the SegDataParameter, `settings` the TransformationParameter with the fields of the size. `workers`: as of DenseImageSource."""
        self.place, self.layer = place, layer
        with self.located():
            transform.refuse_skipping()
            if transform.mean_file:
                raise Error("mean_file is set, and images have several sizes", fix=as_values(transform.mean_file))
            self._balance = bool(param.balance)
            listed = proto.ImageDataParameter(batch_size=1, shuffle=param.shuffle)
            StagedSource.__init__(self, PairFiles(param.source, param.root_dir), listed, workers, place, layer)
            self.transform, self.labels, self.resized = transform, True, None
            scales, upper = _scales(settings), _upper(settings)
            if settings.stride < 1:
                raise Error(f"stride is {settings.stride}", fix="set stride to 1 or more; with 1 samples have any size")
            self._stager = StrideStager(transform, Color.COLOR, None, 1, True, scales=scales, stride=int(settings.stride), upper=upper)
            self._first = self._shape(0)
        size = ",".join(map(str, self.shapes()[0]))
        self.notes = (
            ("seg_data_layer.cpp:35", f"Opening file: {param.source}"),
            ("seg_data_layer.cpp:49", f"A total of {self.order.entries} images."),
            ("seg_data_layer.cpp:79", f"output data size: {size}"),
        )

    def _shape(self, record: int) -> Shape3:
        """Return the shape of the sample of a record that is not scaled."""
        (found,) = self._find([record])
        try:
            channels, *sides = self._stager.open(found).shape
            return self._checked(found[0], channels, self._stager.shown(*sides), tuple(sides))
        except Error as problem:
            raise self.store.fault(problem, record, found) from None

    def _checked(self, name: str, channels: int, shown: tuple[int, int], sides: tuple[int, ...]) -> Shape3:
        if 0 in shown:
            fact = f"{name}: the image is {shape_text(sides)} after scaling, and nothing is left of it with stride {self._stager.stride}"
            raise Error(fact, fix="set a smaller stride or larger scale_ratios in transform_param, or use larger images")
        return channels, *shown

    def layouts(self, top: Shape) -> list[Layout]:
        return self._stager.layouts((top[1], top[2], top[3]))

    def _plan(self, index: int) -> Batch:
        positions = self.share.positions(index, 1)
        with self._finding:
            (record,) = self.order.records(self.key, positions)
            (found,) = self.store.find([record])
        try:
            draws = self._stager.balanced(self.key, positions[0], found) if self._balance else 0
            full = self._stager.open(found).shape
            cut, shown = self._stager.drawn(self.key, positions[0], full, draws)
            shape = self._checked(found[0], full[0], shown, cut.size)
        except Error as problem:
            raise self.store.fault(problem, record, found) from None
        nbytes = sum(layout.nbytes for layout in self._stager.layouts(shape))
        return Batch([record], [found], Frame(self.key, positions, shape, draws), BatchInfo(tuple(self._tops(shape)), nbytes))


def _scales(settings: Any) -> tuple[float, float]:
    """Return the smallest and the largest scale. Raise Error without a place."""
    scales = tuple(settings.scale_ratios) or (1.0, 1.0)
    if len(scales) != 2 or not 0 < scales[0] <= scales[1]:
        fix = "give two scale_ratios above 0: the smallest scale, then the largest one"
        raise Error(f"scale_ratios are {', '.join(f'{scale:g}' for scale in scales)}", fix=fix)
    return scales[0], scales[1]


def _upper(settings: Any) -> tuple[int, int] | None:
    """Return the largest height and width of samples, or None. Raise Error without a place."""
    given = [name for name in ("upper_height", "upper_width") if settings.HasField(name)]
    if len(given) == 1:
        raise Error(f"only {given[0]} of upper_height and upper_width is given", fix="give both upper_height and upper_width, or upper_size alone")
    if settings.HasField("upper_size"):
        upper = int(settings.upper_size), int(settings.upper_size)
    elif given:
        upper = int(settings.upper_height), int(settings.upper_width)
    else:
        return None
    if min(upper) < 1:
        raise Error(f"the largest sample is {shape_text(upper)}", fix="set upper_size, or upper_height and upper_width, to 1 or more")
    return upper
