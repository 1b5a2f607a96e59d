"""The form of a Caffe net that the rewrites work on: layers whose values have names of their own, with their shapes and the arrays of the weights.

    message, arrays ─net_of─▶ Net ─pass─▶ Net ─pass─▶ .. ─Net.message─▶ message, with Net.weights

A layer that works in place replaces a value. Here it makes a new one, so a pass may move and remove layers and need not know who overwrites what. The
last value of a blob has the name of the blob, an earlier one is called blob.layer, as in an exported ONNX model. `Net.message` lets layers work in place
again where they did so in the source and it is still possible.
"""
from __future__ import annotations

import collections
import itertools
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.errors import Place
from ocaffe.graph.build import build
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import Layer, registry


@dataclass(eq=False)
class Net:
    """A net in its TEST phase. A pass changes it by the methods, and may change fields of layers other than name, bottom and top.

    `layers`: LayerParameters, in an order in which every value is made before it is read. Their names differ, and none is empty. `arrays`: the blobs of
    each layer that has some, float32 or float64. A blob that layers share is in the list of each. `outputs`: values that keep their names and numbers.
    `shapes`: of all values. `blobs`: the source's blob in which each value was. `in_place`: layers that replaced their first bottom by their first top.
    `source`: the values that the source has. Where the net has one of them, it has the same numbers.
    """

    layers: list[Any]
    arrays: dict[str, list[np.ndarray]]
    outputs: list[str]
    shapes: dict[str, Shape]
    blobs: dict[str, str] = field(default_factory=dict)
    in_place: set[str] = field(default_factory=set)
    name: str = ""
    source_file: str = ""
    source: frozenset[str] = frozenset()
    _producers: dict[str, Any] = field(default_factory=dict, init=False, repr=False)
    _readers: dict[str, list[Any]] = field(default_factory=dict, init=False, repr=False)

    # -- look --------------------------------------------------------------------------------------------------------

    def producer(self, value: str) -> Any:
        """Return the layer that makes a value. Raises KeyError for the name of no value."""
        self._index()
        return self._producers[value]

    def readers(self, value: str) -> list[Any]:
        """Return the layers that read a value, in order. One that reads it twice is there once."""
        self._index()
        return self._readers.get(value, [])

    def is_free(self, value: str) -> bool:
        """Whether a pass may change the numbers of a value together with its only reader: it is no output, and one layer reads it, once."""
        readers = self.readers(value)
        return value not in self.outputs and len(readers) == 1 and list(readers[0].bottom).count(value) == 1

    def computed(self, layer: Any) -> Layer:
        """Return the object that computes a layer, after `infer`: it knows what the fields mean for these bottoms."""
        made = self._object(layer)
        made.infer(*(self.shapes[name] for name in layer.bottom))
        return made

    def place(self, layer: Any) -> Place | None:
        """Return where the source has a layer, for errors. None for the layers of passes, and if there is no file."""
        return Place.of(self.source_file, layer.source_line) if self.source_file and layer.source_line else None

    def sharers(self, layer: Any) -> list[Any]:
        """Return all layers that share a blob with `layer` by the name of a param, directly or by others; `layer` alone if none does."""
        found, names = [layer], {spec.name for spec in layer.param if spec.name}
        while names:
            more = [each for each in self.layers if names.intersection(spec.name for spec in each.param) and not any(each is other for other in found)]
            if not more:
                break
            found += more
            names.update(spec.name for each in more for spec in each.param if spec.name)
        return found

    # -- change ------------------------------------------------------------------------------------------------------

    def fresh(self, wish: str) -> str:
        """Return `wish` if no value has this name, in the net or in its source, else `wish` with a number."""
        return _fresh(wish, self.source.union(self.shapes))

    def insert(self, layer: Any, arrays: Iterable[np.ndarray] = (), *, before: Any = None, after: Any = None) -> Any:
        """Insert a LayerParameter before or after a layer of the net, at the end without both, and infer the shapes of its tops. Return the layer.

        A name that another layer has gets a number. The bottoms must exist there, and the tops must be new (`fresh`).
        """
        layer.name = _fresh(layer.name or layer.type.lower(), {other.name for other in self.layers})
        at = len(self.layers) if before is None and after is None else self._position(before) if after is None else self._position(after) + 1
        repeated = [top for top in layer.top if top in self.shapes]
        assert not repeated, f"{repeated} are values of the net"
        self.layers.insert(at, layer)
        self._set(layer, arrays)
        return layer

    def replace(self, layer: Any, *new: tuple[Any, Iterable[np.ndarray]]) -> None:
        """Replace a layer by others, each with its arrays. They make the same tops, and may make more. The name of the old layer is free for one of them."""
        at = self._position(layer)
        del self.layers[at]
        self.arrays.pop(layer.name, None)
        if layer.name not in {each.name for each, _ in new}:
            self.in_place.discard(layer.name)
        for number, (each, arrays) in enumerate(new):
            each.name = _fresh(each.name or each.type.lower(), {other.name for other in self.layers})
            self.layers.insert(at + number, each)
            self._set(each, arrays)

    def remove(self, layer: Any, keep: str = "") -> None:
        """Remove a layer of one bottom and one top, and of two equal values keep one: `keep`, or by default the one whose name a user knows.

        With `keep` a pass says that the numbers of the other value change: the top remains where the layer before computes it now, the bottom where the
        layers after do. Raises ValueError where `can_remove` is False.
        """
        if not self.can_remove(layer, keep):
            raise ValueError(f"'{layer.name}' cannot be removed")
        (x,), (y,) = layer.bottom, layer.top
        top_stays = keep == y if keep else y in self.outputs or (self.blobs.get(x) == self.blobs.get(y) and self._may_rename(x))
        old, new = (x, y) if top_stays else (y, x)
        del self.layers[self._position(layer)]
        self.arrays.pop(layer.name, None)
        self.in_place.discard(layer.name)
        for each in self.layers:
            each.bottom[:] = [new if name == old else name for name in each.bottom]
            each.top[:] = [new if name == old else name for name in each.top]
        del self.shapes[old]
        self.blobs.pop(old, None)
        self._changed()

    def can_remove(self, layer: Any, keep: str = "") -> bool:
        """Whether `remove` can do it: outputs and inputs keep their names, and no layer begins to read an output."""
        if not len(layer.bottom) == len(layer.top) == 1:
            return False
        (x,), (y,) = layer.bottom, layer.top
        if y in self.outputs and not self.readers(y) and len(self.readers(x)) > 1:
            return False
        return (keep != y or self._may_rename(x)) if y not in self.outputs else keep != x and self._may_rename(x)

    def rewire(self, layer: Any, old: str, new: str) -> None:
        """Make a layer read the value `new` in place of `old`."""
        layer.bottom[:] = [new if name == old else name for name in layer.bottom]
        self._changed()

    def rename(self, old: str, new: str) -> None:
        """Give a value another name, one that no value has (`fresh`): it no longer has the numbers that the source has under the old one."""
        assert old not in self.outputs and new not in self.shapes, f"'{old}' cannot become '{new}'"
        for layer in self.layers:
            layer.bottom[:] = [new if name == old else name for name in layer.bottom]
            layer.top[:] = [new if name == old else name for name in layer.top]
        self.shapes[new] = self.shapes.pop(old)
        self.blobs.pop(old, None)
        self._changed()

    def sweep(self) -> int:
        """Remove the layers that no output needs. Return how many. Input layers keep the tops that are read, and disappear without any."""
        wanted, kept = set(self.outputs), []
        for layer in reversed(self.layers):
            if wanted.isdisjoint(layer.top):
                self.arrays.pop(layer.name, None)
                self.in_place.discard(layer.name)
                continue
            if layer.type == "Input":
                own = layer.input_param.shape
                shapes = [list(shape.dim) for top, shape in zip(layer.top, [*own] * (len(layer.top) if len(own) == 1 else 1)) if top in wanted]
                layer.top[:] = [top for top in layer.top if top in wanted]
                del own[:]
                for shape in shapes:
                    own.add(dim=shape)
            wanted.update(layer.bottom)
            kept.append(layer)
        count = len(self.layers) - len(kept)
        self.layers[:] = reversed(kept)
        there = {top for layer in kept for top in layer.top}
        for held in (self.shapes, self.blobs):
            for value in held.keys() - there:
                del held[value]
        self._changed()
        return count

    # -- write -------------------------------------------------------------------------------------------------------

    def message(self, in_place: bool = True) -> Any:
        """Return the NetParameter. With `in_place`, layers replace blobs where they did so in the source, and blobs have the source's names."""
        net = proto.NetParameter(source_file=self.source_file)
        if self.name:
            net.name = self.name
        names = self.names() if in_place else dict[str, str]()
        for layer in self.layers:
            copy = net.layer.add()
            copy.CopyFrom(layer)
            copy.bottom[:] = [names.get(name, name) for name in layer.bottom]
            copy.top[:] = [names.get(name, name) for name in layer.top]
        return net

    def names(self) -> dict[str, str]:
        """Return the blob of `message` in which each value is. Values share one where a layer replaces the first by the second."""
        follows = {layer.bottom[0]: layer.top[0] for layer in self.layers if layer.name in self.in_place and self._replaces(layer)}
        last = dict[str, str]()
        for layer in reversed(self.layers):
            for value in layer.top:
                last[value] = last[follows[value]] if value in follows else value
        names = {value: value for value in self.outputs}  # inputs keep their names too, then values that have them already
        for value in (value for layer in self.layers if not layer.bottom for value in layer.top):
            names.setdefault(last[value], _fresh(self.blobs.get(value, value), set(names.values())))
        for value in dict.fromkeys(last.values()):
            names.setdefault(value, _fresh(value, set(names.values())))
        return {value: names[end] for value, end in last.items()}

    def weights(self) -> dict[str, list[np.ndarray]]:
        """Return the arrays of all layers in 32 bits."""
        return {layer.name: [np.asarray(array, np.float32) for array in self.arrays[layer.name]] for layer in self.layers if layer.name in self.arrays}

    # -- help --------------------------------------------------------------------------------------------------------

    def _object(self, layer: Any) -> Layer:
        phase = layer.phase if layer.HasField("phase") else proto.TEST
        return registry()[layer.type].implementation(layer)(layer, phase, self.place(layer))

    def _changed(self) -> None:
        self._producers, self._readers = {}, {}

    def _may_rename(self, value: str) -> bool:
        return value not in self.outputs and bool(self.producer(value).bottom)

    def _position(self, layer: Any) -> int:
        return next(at for at, each in enumerate(self.layers) if each is layer)  # messages are compared by value, and two may be equal

    def _set(self, layer: Any, arrays: Iterable[np.ndarray]) -> None:
        held = list(arrays)
        if held:
            self.arrays[layer.name] = held
        made = self._object(layer)
        for top, shape in zip(layer.top, made.infer(*(self.shapes[name] for name in layer.bottom))):
            self.shapes[top] = tuple(shape)
        self._changed()

    def _index(self) -> None:
        if self._producers:
            return
        self._readers = collections.defaultdict(list)
        for layer in self.layers:
            for name in dict.fromkeys(layer.bottom):
                self._readers[name].append(layer)
            for name in layer.top:
                self._producers[name] = layer

    def _replaces(self, layer: Any) -> bool:
        """Whether a layer can work in place on its first bottom."""
        made = registry()[layer.type].implementation(layer)
        return bool(layer.bottom and layer.top) and made.inplace_top and self.is_free(layer.bottom[0])


def net_of(message: Any, arrays: Mapping[str, Sequence[np.ndarray]], outputs: Sequence[str]) -> Net:
    """Return the Net of a NetParameter whose phase is TEST (`phase_net`), with Input layers in place of data (`deploy`). The message stays as it is.

    `arrays`: the blobs by layer. `outputs`: blobs that the net computes. Names of layers that are empty or repeated get a number. Raises Error, with the
    line of the layer, for a net that ocaffe cannot build.
    """
    layers, names, in_place, owners = list[Any](), set[str](), set[str](), dict[str, list[np.ndarray]]()
    blobs, makers = dict[str, str](), dict[str, tuple[Any, int]]()  # the layer and the number of the top that makes the present value of a blob
    taken = {name for layer in message.layer for name in (*layer.bottom, *layer.top)}
    for source in message.layer:
        layer = proto.LayerParameter()
        layer.CopyFrom(source)
        for part in ("blobs", "include", "exclude"):
            layer.ClearField(part)
        if layer.type == "BatchNorm" and message.bn_stats_batch_size:  # Intel's field of the net sets that of each layer
            layer.batch_norm_param.stats_batch_size = message.bn_stats_batch_size
        layer.name = _fresh(source.name or source.type.lower(), names)
        names.add(layer.name)
        layers.append(layer)
        if arrays.get(source.name):
            owners[layer.name] = list(arrays[source.name])
        if source.bottom and source.top and source.bottom[0] == source.top[0]:
            in_place.add(layer.name)
        for index, name in enumerate(source.top):
            if name in makers:
                maker, at = makers[name]
                earlier = _fresh(f"{name}.{maker.name}", taken)
                taken.add(earlier)
                blobs[earlier] = name
                maker.top[at] = earlier
                for each in layers:
                    each.bottom[:] = [earlier if value == name else value for value in each.bottom]
            blobs[name] = name
            makers[name] = layer, index
    net = Net(layers, owners, list(outputs), {}, blobs, in_place, message.name, message.source_file)
    net.source = frozenset(blobs)
    net.shapes = {name: tuple(blob.shape) for name, blob in build(net.message(in_place=False), proto.TEST).blobs.items() if name in blobs}
    return net


def _fresh(wish: str, taken: Container[str]) -> str:
    """Return `wish`, or with the first number from 1 on that no other has."""
    return next(name for name in itertools.chain([wish], (f"{wish}_{number}" for number in itertools.count(1))) if name not in taken)
