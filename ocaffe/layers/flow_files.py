"""FlowNet 2's layers that read one file, and those that write files."""
from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ocaffe.data.decoding.decode import Color, planes
from ocaffe.data.source import key_of
from ocaffe.data.stores.text_list import read_image
from ocaffe.errors import Error, shape_text
from ocaffe.formats import flow_files
from ocaffe.formats.nearby import MissingPath
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import pointwise
from ocaffe.layers.base import Layer, register
from ocaffe.layers.data import transform_of
from ocaffe.onnx.graph import OnnxGraph
from ocaffe.support.files import to_write


class Reader(Layer):
    """Base: the values of a file, num times. The file is read when the net is made."""

    bottoms = 0
    message = "reader_param"
    origin = "FlowNet 2"
    _values: np.ndarray | None = None

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        own = self.own()
        self.check(own.file, "file is missing", self.written('file: "PATH"') + ", the file to read")
        self.check(own.num > 0, f"num is {own.num}", "set num to the batch size, 1 or more")
        if self._values is None:
            if not os.path.exists(own.file):
                raise MissingPath(f"file {own.file} does not exist", own.file, "file", "correct its name", place=self.place, layer=self.title)
            try:
                self._values = np.ascontiguousarray(self.read(own.file))
            except Error as problem:
                problem.place, problem.layer = problem.place or self.place, self.title
                raise
        return [(own.num, *self._values.shape)]

    def read(self, path: str) -> np.ndarray:
        """Return the values: C x H x W. Raise Error."""
        raise NotImplementedError

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        assert self._values is not None
        pointwise(rec, "y0 = x0", reads=[(rec.constant("values", self._values), 1)], writes=[tops[0].data])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        assert self._values is not None
        graph.op("Expand", self._values[None], [tops[0].shape[0], *self._values.shape], to=tops[0])


@register("ImgReader")
class ImgReader(Reader):
    """An image file, num times: num x 3 x H x W, with transform_param applied once. Source: lmb-freiburg/flownet2, src/caffe/layers/imgreader_layer.cpp."""

    def read(self, path: str) -> np.ndarray:
        transform = transform_of(self)
        transform.refuse_skipping()
        try:
            pixels = planes(read_image(path, transform.max_pixels), Color.GRAY if transform.color is Color.GRAY else Color.COLOR)
        except Error as problem:
            raise Error(f"{path}: {problem.fact}", fix=problem.fix) from None
        channels, height, width = pixels.shape
        transform.check(channels, height, width)
        samples = transform.samples(key_of(self.seed, self.param.name), range(1))
        (y, x), flip = samples.corners(np.array([[height, width]]))[0], bool(samples.mirror[0])
        rows, columns = transform.crop or (height, width)
        values = pixels[:, y : y + rows, x : x + columns].astype(np.float32)
        if transform.mean is not None:
            values -= transform.mean[:, y : y + rows, x : x + columns] if transform.mean.ndim == 3 else transform.mean[:, None, None]
        return (values[:, :, ::-1] if flip else values) * np.float32(transform.scale)


@register("FloatReader")
class FloatReader(Reader):
    """The values of a .float3 file, num times: num x Z x Y x X. Source: lmb-freiburg/flownet2, src/caffe/layers/floatreader_layer.cpp."""

    def read(self, path: str) -> np.ndarray:
        return flow_files.read_float3(path)


class Writer(Layer):
    """Base: each forward pass writes a file for each sample of the bottom: `file`, or folder/prefix, the number of the pass, suffix and the ending.

    Of several samples the name has the number of the sample too. The first pass of a net has the number 0; FlowNet's tools set the iteration of the solver.
    The device waits during the write.
    """

    tops = 0
    message = "writer_param"
    origin = "FlowNet 2"
    channels: ClassVar[tuple[int, ...]] = ()  # that a bottom may have; (): any number
    _passes = 0

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        own, x = self.own(), bottoms[0]
        self.check_axes(x, "N x C x H x W", values=True)
        channels = " or ".join(map(str, self.channels))
        fits = not self.channels or x[1] in self.channels
        self.check(fits, f"bottom 0 is {shape_text(x)}, {self.param.type} writes {channels} channels", f"give a bottom of {channels} channels")
        self.check(own.file or own.folder, "neither file nor folder is given", 'name the folder to write to: writer_param { folder: "results" }')
        several = x[0] > 1 and own.file
        self.check(not several, f"file is {own.file}, and the batch has {x[0]} samples", "replace file by folder, or set the batch size to 1")
        return []

    def name(self, sample: int, samples: int, ending: str) -> str:
        """Return the path of the file of a sample."""
        own = self.own()
        number = f"{self._passes:07d}" + (f"({sample:03d})" if samples > 1 else "")
        return str(own.file) or f"{own.folder}/{own.prefix}{number}{own.suffix}.{ending}"

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        ref = bottoms[0].data

        def run(commands: Any) -> None:
            if self.repeats:
                return  # the files are written
            try:
                folder = os.path.dirname(self.name(0, 1, ""))
                os.makedirs(folder or ".", exist_ok=True)
                for sample, values in enumerate(batch := commands.read(ref)):
                    self.write(sample, len(batch), values)
            except OSError as problem:
                raise self.error(
                    f"{problem.filename or self.own().folder} cannot be written: {problem.strerror}",
                    to_write(problem.filename or self.own().folder, problem, "name another file or folder in writer_param"),
                ) from None
            self._passes += 1

        rec.host(run, reads=[ref], what=self.type)

    def write(self, sample: int, samples: int, values: np.ndarray) -> None:
        """Write the file of one sample, C x H x W."""
        raise NotImplementedError

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        if propagate[0]:
            pointwise(rec, "y0 = 0", writes=[rec.diff_of(bottoms[0])])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        raise graph.refused("it writes a file", "remove the layer, and write the output of the model")


@register("FLOWriter")
class FLOWriter(Writer):
    """Writes flow (N x 2 x H x W) as .flo files, one for each sample. Source: lmb-freiburg/flownet2, src/caffe/layers/flowriter_layer.cpp."""

    channels = (2,)

    def write(self, sample: int, samples: int, values: np.ndarray) -> None:
        flow_files.write_flo(self.name(sample, samples, "flo"), values)


@register("FloatWriter")
class FloatWriter(Writer):
    """Writes samples (N x C x H x W) as .float3 files, which FloatReader reads. Source: lmb-freiburg/flownet2, src/caffe/layers/floatwriter_layer.cpp."""

    def write(self, sample: int, samples: int, values: np.ndarray) -> None:
        flow_files.write_float3(self.name(sample, samples, "float3"), values)


@register("PFMWriter")
class PFMWriter(Writer):
    """Writes disparities (N x 1 or 3 x H x W) as .pfm files, with the other sign. Source: lmb-freiburg/flownet2, src/caffe/layers/pfmwriter_layer.cpp."""

    channels = (1, 3)

    def write(self, sample: int, samples: int, values: np.ndarray) -> None:
        flow_files.write_pfm(self.name(sample, samples, "pfm"), values)


@register("ImgWriter")
class ImgWriter(Writer):
    """Writes images (N x 1 or 3 x H x W: blue, green, red) as .pgm and .ppm files: values times scale, or with normalize from the least to the largest.

    Values outside of 0 to 255 are limited; the fork does so for 3 channels. Source: lmb-freiburg/flownet2, src/caffe/layers/imgwriter_layer.cpp.
    """

    channels = (1, 3)

    def write(self, sample: int, samples: int, values: np.ndarray) -> None:
        own, ending = self.own(), "ppm" if len(values) == 3 else "pgm"
        flow_files.write_pixels(self.name(sample, samples, ending), values, own.scale, bool(own.normalize))
