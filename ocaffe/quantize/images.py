"""The calibration images: data layers of the net, or arrays."""
from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.api.net import Net as Running
from ocaffe.convert.caffe.net import Net
from ocaffe.errors import Error

RAW = ".float"  # ends the name of a value in floats, where another value has its name: the rounded one
Batches = Callable[[], Iterator[Mapping[str, np.ndarray]]]


@dataclass(frozen=True)
class Images:
    """`count` images in batches of `batch`, behind `skipped` batches.

    `layers`: the layers that feed the net, in place of its Input layers. Else `arrays` yields its inputs.
    """

    count: int
    batch: int
    layers: Sequence[Any] = ()
    arrays: Batches | None = None
    skipped: int = 0

    @property
    def batches(self) -> int:
        return max(1, math.ceil(self.count / self.batch))

    def first(self, count: int) -> Images:
        """Return the first images."""
        return replace(self, count=min(count, self.count))

    def behind(self, count: int) -> Images:
        """Return the images behind the first `count`. Return all if there are no more than twice as many, or if no whole batch remains."""
        batches = math.ceil(count / self.batch)
        left = self.count - batches * self.batch
        return self if self.count <= 2 * count or left < self.batch else replace(self, count=left, skipped=self.skipped + batches)

    def batches_of_arrays(self) -> Iterator[Mapping[str, np.ndarray]]:
        assert self.arrays is not None
        return itertools.islice(self.arrays(), self.skipped, None)

    def message(self, net: Net, more: Sequence[Any] = ()) -> Any:
        """Return the message of a net that reads these images, with more layers at its end. Each value has a blob of its own."""
        body = net.message(in_place=False)
        made = proto.NetParameter(name=body.name, source_file=body.source_file)
        inputs = {net.blobs.get(top, top): top for layer in net.layers if layer.type == "Input" for top in layer.top}
        for layer in self.layers:
            fed = made.layer.add()
            fed.CopyFrom(layer)
            fed.ClearField("include")
            fed.ClearField("exclude")
            fed.top[:] = [inputs.get(top, top) for top in layer.top]
        there = {top for layer in made.layer for top in layer.top}
        for layer in body.layer:
            if layer.type != "Input" or not self.layers:
                made.layer.add().CopyFrom(layer)
            elif not there.issuperset(layer.top):
                lacking = next(top for top in layer.top if top not in there)
                raise Error(f"no data layer gives the input '{lacking}'", place=net.source_file or None, fix="give images by --data FOLDER")
        made.layer.extend(more)
        return made

    def run(self, net: Running) -> Iterator[int]:
        """Run a net of `message` over all batches. Yield the number of images so far after each."""
        if self.arrays is None:
            for _ in range(self.skipped):
                net.forward()
            for number in range(self.batches):
                net.forward()
                yield min((number + 1) * self.batch, self.count)
            return
        done = 0
        for given in self.batches_of_arrays():
            for known, array in given.items():
                name = known if known in net.inputs else known + RAW
                if tuple(net.blobs[name].shape) != array.shape:
                    net.blobs[name].reshape(*array.shape)
                net.blobs[name].data[...] = array
            net.forward()
            done += len(next(iter(given.values())))
            yield min(done, self.count)
            if done >= self.count:
                return

