"""Walks a net and builds the net of a target. A layer that the target refuses becomes the layers that a rule of `rules` makes of it."""
from __future__ import annotations

import collections
import contextlib
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.convert.caffe.net import Net
from ocaffe.convert.targets.table import Around, Fault, Table, factor_of, origin_of
from ocaffe.convert.targets.view import View
from ocaffe.errors import Error
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import Layer, param_field, registry
from ocaffe.shown import flag

MOST_ONES = 1024  # rows of a matrix that moves values: one multiplication for each row and value
BY_SHAPES = ("ContinuationIndicator", "PriorBox")  # types whose tops depend on the shapes of the bottoms alone
COPIES = ("Split", "Power", "Reshape")  # types that can copy a value


class Refused(Error):
    """The target has no layers for this one."""


@dataclass
class Item:
    """A layer that shall be in the net: the message without names of blobs, its bottoms, wishes for the names of its tops, its arrays."""

    param: Any
    bottoms: list[View]
    wishes: list[str]
    arrays: list[np.ndarray] = field(default_factory=list)

    @property
    def own(self) -> Any:
        return getattr(self.param, param_field(self.param.type))

    @property
    def shape(self) -> Shape:
        """The shape of the first bottom."""
        return self.bottoms[0].shape


Rule = Callable[["Rewriter", Item], "list[View] | View | None"]
Mover = Callable[["Rewriter", View, str], View]
MOVERS: list[Mover] = []
RULES: dict[str, list[Rule]] = collections.defaultdict(list)
VIEWED: dict[str, Rule] = {}


def rule(*kinds: str) -> Callable[[Rule], Rule]:
    """Register a function that makes simpler layers of these types. It returns the views of the tops, or None where it does not apply."""

    def add(function: Rule) -> Rule:
        for kind in kinds:
            RULES[kind].append(function)
        return function

    return add


def viewed(*kinds: str) -> Callable[[Rule], Rule]:
    """Register a function for layers of these types whose bottoms lie in another order than their axes. It may return None to have them moved."""

    def add(function: Rule) -> Rule:
        for kind in kinds:
            VIEWED[kind] = function
        return function

    return add


def mover(function: Mover) -> Mover:
    """Register the function that makes layers which move values: it returns a view in the order of the axes."""
    MOVERS.append(function)
    return function


class Rewriter:
    """`source` is the net as it was, `net` the net of the target. `values`: the view in `net` of each value of `source`.

    `cuts`: the tensors that --cut-at can name, with those that the operators read which make them. Without it these are all values. `batch`: the samples.
    """

    def __init__(self, source: Net, table: Table, place: str, cuts: Mapping[str, Sequence[str]] | None = None, batch: int = 1) -> None:
        self.source, self.table, self.at, self.cuts, self.batch = source, table, place, cuts, batch
        self.net = Net([], {}, list(source.outputs), {}, name=source.name, source_file=source.source_file)
        self.values: dict[str, View] = {}
        self.changed: collections.Counter[str] = collections.Counter()
        self.now: Any = None  # the layer of the source that is rewritten
        self.merged: dict[str, Item] = {}  # layers that a rule has changed before they are reached, by name; their bottoms are not set
        self._shaped: dict[tuple[str, Shape], str] = {}
        self._reserved = set(source.shapes)
        self._open: list[tuple[Hashable, ...]] = []  # what rules are being tried for

    def run(self) -> Net:
        """Return the net of the target. Raises Refused with the first layer that cannot be expressed."""
        for layer in self.source.layers:
            self.now = layer
            param = proto.LayerParameter()
            param.CopyFrom(layer)
            del param.bottom[:], param.top[:]
            item = self.merged.get(layer.name) or Item(param, [], list(layer.top), list(self.source.arrays.get(layer.name, ())))
            item.bottoms = [self.values[name] for name in layer.bottom]
            before = len(self.net.layers)
            self._check_weights(item)
            views = self.place(item)
            self.values.update(zip(layer.top, views))
            new = self.net.layers[before:]
            if layer.top and not (len(new) == 1 and new[0].type == layer.type and str(_settings(new[0])) == str(_settings(layer))):
                self.changed[layer.type] += 1
        self.now = None
        for name in self.source.outputs:
            self._finish(name)
        self.net.sweep()
        self._silence()
        return self.net

    def _check_weights(self, item: Item) -> None:
        """Refuse a layer of the source whose weights have another size at this batch."""
        if item.arrays and item.bottoms:
            computed = self.computed(item)
            computed.infer(*(view.shape for view in item.bottoms))
            wanted = [math.prod(each.shape) for each in computed.parameters()]
            if wanted != [array.size for array in item.arrays]:
                raise self.refused(Fault("", "its weights have the size of one batch"))

    # -- placing layers ----------------------------------------------------------------------------------------------

    def place(self, item: Item) -> list[View]:
        """Add the layer, or the simpler ones that do the same. Return the views of its tops. Raises Refused."""
        kind = item.param.type
        state = str(_settings(item.param)), *((view.shape, *view.layout()) for view in item.bottoms)
        if state not in self._open and kind in VIEWED and not all(map(self.is_plain, item.bottoms)):
            with self._trying(state), self.attempt() as tried:
                made = VIEWED[kind](self, item)
                if made is not None:
                    return tried.done(_listed(made))
        if kind == "Silence":
            return []
        faults = self.faults(item)
        if not faults:
            blobs = [self.plain(view) for view in item.bottoms]
            faults = self.faults(item)
            if not faults:
                return self.emit(item, blobs)
        if state in self._open:  # a rule made what it began with
            raise self.refused(faults[0])
        inner: Error | None = None
        for function in RULES.get(kind, ()):
            with self._trying(state), self.attempt() as tried:
                made = function(self, item)
                if made is not None:
                    return tried.done(_listed(made))
            inner = inner or tried.problem
        if not all(view.in_order for view in item.bottoms):  # rules may need the order of the axes
            with self.attempt() as tried:
                item.bottoms = [View.of(self.plain(view), view.shape) for view in item.bottoms]
                return tried.done(self.place(item))
            inner = inner or tried.problem
        raise self.refused(faults[0], inner)

    @contextlib.contextmanager
    def _trying(self, state: tuple[Hashable, ...]) -> Iterator[None]:
        self._open.append(state)
        try:
            yield
        finally:
            self._open.pop()

    def add(
        self, kind: str, bottoms: Sequence[View], fields: Mapping[str, Any] | None = None, *, part: str = "", wish: str = "",
        arrays: Iterable[np.ndarray] = (),
    ) -> View:  # fmt: skip
        """Add a layer of a rule and return its top. `wish` is the name of the top. Without it, it is named after the layer and `part`."""
        own = {param_field(kind): dict(fields)} if fields else {}
        name = self.now.name if self.now is not None else wish
        param = proto.LayerParameter(name=f"{name}_{part}" if part else name, type=kind, **own)
        held = [np.asarray(array, np.float32) for array in arrays]
        for _ in held:
            param.param.add(lr_mult=0, decay_mult=0)
        return self.place(Item(param, list(bottoms), [wish or f"{name}_{part or kind.lower()}"], held))[0]

    def emit(self, item: Item, blobs: Sequence[str]) -> list[View]:
        """Add the layer as it is."""
        param = proto.LayerParameter()
        param.CopyFrom(item.param)
        param.bottom[:] = blobs
        free = self._reserved - set(self.net.shapes)  # a name of the source may be taken once
        for wish in item.wishes:
            param.top.append(wish if wish in free else self._fresh(wish))
        self.net.insert(param, item.arrays)
        return [View.of(top, self.net.shapes[top]) for top in param.top]

    def _fresh(self, wish: str) -> str:
        name, number = wish, 0
        while name in self.net.shapes or name in self._reserved:
            number += 1
            name = f"{wish}_{number}"
        return name

    def faults(self, item: Item) -> list[Fault]:
        """Return what the target refuses of a layer."""
        shapes = [view.shape for view in item.bottoms]
        self._strip(item)

        def factors() -> list[str | None]:
            return [factor_of(view.blob, self._made) for view in item.bottoms]

        def origin() -> tuple[Any, int] | None:
            found = origin_of(item.bottoms[0].blob, self._made) if item.bottoms else None
            return found and (found[0], len(self.net.shapes[found[1][0]]) if found[1] else 0)

        around = Around([self.net.producer(view.blob).type for view in item.bottoms], factors=factors, origin=origin)
        faults = self.table.faults(item.param, shapes, [], around)
        if faults:
            return faults
        return self.table.faults(item.param, shapes, self.computed(item).infer(*shapes), around)

    def _made(self, blob: str) -> tuple[Any, list[str]]:
        layer = self.net.producer(blob)
        return layer, list(layer.bottom)

    def computed(self, item: Item) -> Layer:
        """Return ocaffe's object for a layer. Some layers look at how many tops there are."""
        param = proto.LayerParameter()
        param.CopyFrom(item.param)
        param.top[:], param.bottom[:] = item.wishes, [view.blob for view in item.bottoms]
        return registry()[param.type].implementation(param)(param, proto.TEST)

    def _strip(self, item: Item) -> None:
        """Remove the fields that the target does not know and that have their default value."""
        kind = self.table.kinds.get(item.param.type)
        own = param_field(item.param.type)
        if kind is None or kind.fields is None or not own or not item.param.HasField(own):
            return
        for each, value in item.own.ListFields():
            if each.name not in kind.fields and not each.is_repeated and not each.message_type and value == each.default_value:
                item.own.ClearField(each.name)

    def accepts(self, kind: str) -> bool:
        return self.table.has(kind)

    @contextlib.contextmanager
    def attempt(self) -> Iterator[Attempt]:
        """Try to add layers. If that is refused, or if nothing is done (`Attempt.done`), the net is as before. A refusal is stored in the attempt."""
        tried, count, values, shaped = Attempt(), len(self.net.layers), dict(self.values), dict(self._shaped)
        try:
            yield tried
        except Error as problem:
            tried.problem = problem
        if not tried.kept:
            for layer in self.net.layers[count:]:
                self.net.arrays.pop(layer.name, None)
                for top in layer.top:
                    del self.net.shapes[top]
            del self.net.layers[count:]
            self.net._changed()
            self.values, self._shaped = values, shaped

    # -- values ------------------------------------------------------------------------------------------------------

    def inputs(self) -> list[View]:
        """Return the inputs of the net."""
        return [View.of(top, self.net.shapes[top]) for layer in self.net.layers if layer.type == "Input" for top in layer.top]

    def is_plain(self, view: View) -> bool:
        return view.in_order and self.net.shapes[view.blob] == view.shape

    def plain(self, view: View, wish: str = "") -> str:
        """Return a blob that has the values in the order of the view's axes. Layers that reshape and move are added if needed."""
        wish = wish or next((name for name, each in self.values.items() if each is view), "")
        if not view.in_order:
            moved = self.moved(view, wish)
            for name, each in self.values.items():
                if each is view:
                    self.values[name] = moved
            view = moved
        return self.shaped(view.blob, view.shape, wish)

    def shaped(self, blob: str, shape: Shape, wish: str = "") -> str:
        """Return a blob with the values of `blob` in the order of the memory, in this shape. It is made once."""
        if self.net.shapes[blob] == shape:
            return blob
        if (blob, shape) not in self._shaped:
            view, dims = View.of(blob, self.net.shapes[blob]), [0 if self.net.shapes[blob][:1] == shape[:1] else -1, *shape[1:]]
            fields = {"shape": {"dim": dims}}
            wish = wish or f"{blob}_reshaped"  # rknn-toolkit2 names values of its own after a blob and _shape, so no blob here has such a name
            top = self.add("Reshape", [view], fields, part="reshaped", wish=wish)
            if self.net.shapes[top.blob] != shape and len(view.shape) == 4:  # the target refuses it behind this layer, so a copy is reshaped
                channels = view.shape[1]
                each = {"num_output": channels, "group": channels, "kernel_size": [1], "bias_term": False}
                copied = self.add("Convolution", [view], each, part="copied", arrays=[np.ones((channels, 1, 1, 1))])
                top = self.add("Reshape", [copied], fields, part="reshaped", wish=wish)
            if self.net.shapes[top.blob] != shape:
                raise self.refused(self.faults(Item(proto.LayerParameter(type="Reshape", reshape_param=fields), [view], [""]))[0])
            self._shaped[blob, shape] = top.blob
        return self._shaped[blob, shape]

    def as_shape(self, view: View, shape: Shape) -> View:
        """Return the plain view of the blob of `view` in this shape."""
        return View.of(self.shaped(view.blob, shape), shape)

    def moved(self, view: View, wish: str) -> View:
        """Return a view of the same values in the order of the axes."""
        return MOVERS[0](self, view, wish)

    # -- the end -----------------------------------------------------------------------------------------------------

    def _finish(self, name: str) -> None:
        """Make `name` a blob that no layer reads."""
        blob = self.plain(self.values[name], name)
        if blob == name and not self.net.readers(blob) and not self._dropped(blob):
            return
        if blob in self.net.outputs or self.net.readers(blob) or not self.net.producer(blob).bottom or self._dropped(blob):
            if blob == name:  # its readers read another name
                inner = self._fresh(f"{name}_inner")
                self._rename(blob, inner)
                blob = inner
            for kind in COPIES:
                with self.attempt() as tried:
                    fields = {"shape": {"dim": [0] * len(self.net.shapes[blob])}} if kind == "Reshape" else None
                    top = self.add(kind, [View.of(blob, self.net.shapes[blob])], fields, wish=name)
                    if top.blob == name:
                        tried.done([top])
                        return
            raise Refused(f"output '{name}' is read by other layers, and {self.table.title} has no layer that copies it", place=self.at)
        self._rename(blob, name)

    def _dropped(self, blob: str) -> bool:
        """Whether the target drops an output because a layer reads another top of the layer that makes it."""
        layer = self.net.producer(blob)
        read = any(top != blob and self.net.readers(top) for top in layer.top)
        return read and bool(self.table.faults(layer, [self.net.shapes[name] for name in layer.bottom], [], Around(unread=1)))

    def _rename(self, old: str, new: str) -> None:
        for layer in self.net.layers:
            layer.top[:] = [new if value == old else value for value in layer.top]
            layer.bottom[:] = [new if value == old else value for value in layer.bottom]
        self.net.shapes[new] = self.net.shapes.pop(old)
        self.values = {name: replace(view, blob=new) if view.blob == old else view for name, view in self.values.items()}
        self._shaped = {(new if key[0] == old else key[0], key[1]): new if blob == old else blob for key, blob in self._shaped.items()}
        self.net._changed()

    def _silence(self) -> None:
        """Consume the tops that no layer reads and that are no outputs."""
        for layer in list(self.net.layers):
            for number, top in enumerate(layer.top):
                if len(layer.top) > 1 and not self.net.readers(top) and top not in self.net.outputs and self.table.has("Silence"):
                    self.net.insert(proto.LayerParameter(name=f"{layer.name}_silence_{number}", type="Silence", bottom=[top]))

    def refused(self, fault: Fault, inner: Error | None = None) -> Refused:
        """Return the error for the layer of the source, with the nearest tensors before it as remedy."""
        layer, fact = self.now, fault.fact
        if inner is not None and inner.fact and inner.fact not in fact:
            fact = f"{fact}; without it: {inner.fact}"
        title = f"'{layer.name}' ({layer.type})" if layer is not None else None
        aside = self._aside(layer) if layer is not None and layer.type in BY_SHAPES else []
        names = aside or (self._before(layer) if layer is not None else [])
        otherwise = "change the net so that it needs no such layer, or let the host compute it"
        part = "the part that does not need it; a host computes it from sizes alone" if aside else "the part before it"
        fix = f"{flag('cut-at', ','.join(names))} converts {part}" if names else otherwise
        place = self.source.place(layer) if layer is not None and self.source.place(layer) else self.at
        return Refused(fact, place=place, layer=title, fix=fix)

    def _aside(self, layer: Any) -> list[str]:
        """Return the last values that depend on no layer of this type, which reads shapes alone: the heads of a detector beside its PriorBox layers."""
        gone = set[str]()
        wanted = dict[str, None]()
        for each in self.source.layers:
            if each.type == layer.type or gone.intersection(each.bottom):
                gone.update(each.top)
                wanted |= {} if each.type == layer.type else dict.fromkeys(each.bottom)
        wanted |= dict.fromkeys(self.source.outputs)
        return [name for name in wanted if name not in gone and self.source.producer(name).bottom and (self.cuts is None or name in self.cuts)]

    def _before(self, layer: Any) -> list[str]:
        """Return the nearest values before a layer that --cut-at can name."""
        found, seen, pending = list[str](), set[str](), collections.deque(layer.bottom)
        while pending:
            name = pending.popleft()
            if name in seen or not self.source.producer(name).bottom:
                continue
            seen.add(name)
            if self.cuts is None or name in self.cuts:
                found.append(name)
            else:
                pending.extend(self.source.producer(name).bottom)
        if not found and self.cuts:  # the import has joined the operator with those before it
            found = [name for top in layer.top for name in self.cuts.get(top, ()) if name in self.cuts]
        return found


@dataclass
class Attempt:
    """A try to add layers: whether they stay, or why not."""

    kept: bool = False
    problem: Error | None = None

    def done(self, views: list[View]) -> list[View]:
        self.kept = True
        return views


def _settings(layer: Any) -> list[tuple[str, Any]]:
    return [(each.name, value) for each, value in layer.ListFields() if each.name not in ("name", "bottom", "top", "source_line", "param")]


def _listed(made: list[View] | View) -> list[View]:
    return [made] if isinstance(made, View) else made
