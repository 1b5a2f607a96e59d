"""`Blob`: one blob or parameter of a net as numpy arrays with write-through (CAFFE.md §4).

Arrays are copies of what lies on the device. What a script writes into one is on the device before the next run, and an array that a script still holds
after a run, or a part of it, shows the new values.
"""
from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ocaffe.compiler.network import node_shape
from ocaffe.errors import Error, shape_text
from ocaffe.ir.graph import Parameter
from ocaffe.ir.tensor import Ref, Role, Shape

if TYPE_CHECKING:
    from ocaffe.api.engine import Engine
    from ocaffe.api.names import What


class Mirror:
    """A numpy copy of one blob that is written through before a run and refreshed after it while somebody holds it.

    `refs` tells where values are read and where they are written; for the name of blobs that layers work on in place that changes from run to run.
    """

    def __init__(self, engine: Engine, shape: Shape, refs: Callable[[Engine], tuple[Ref | None, Ref | None]]) -> None:
        self.shape, self.refs = shape, refs
        self.engine = weakref.ref(engine)  # weak: a net that nobody holds is freed at once, though its session still lists what was touched
        self._strong: np.ndarray | None = None  # from access to the next run: a script may have dropped its own reference
        self._weak: weakref.ref[np.ndarray] | None = None
        self._seen: np.ndarray | None = None  # the values at access or after the last run, to tell whether the script changed them; None: it did
        self._listed = False  # to be flushed

    def array(self) -> np.ndarray:
        """What a script gets; it may write into it as long as it holds it."""
        if self._strong is None:
            held = self._held()
            if held is None:
                held = self._read()
                self._weak, self._listed = weakref.ref(held), False
            if not self._listed:
                self._list(held.copy())
            self._strong = held
        return self._strong

    def assign(self, values: np.ndarray) -> None:
        """Set all values, without a look at what they are now."""
        held = self._strong if self._strong is not None else self._held()
        if held is None and self._send(values):
            return
        if held is None:
            held = np.empty(self.shape, np.float32)
            self._weak = weakref.ref(held)
        held[...] = values
        self._strong = held
        self._list(None)

    def _send(self, values: Any) -> bool:
        """Values of an input of which nobody has an array go to the device at once, without a copy on the host; whether they could."""
        engine = self.engine()
        if engine is None or not isinstance(values, np.ndarray) or values.dtype != np.float32 or values.shape != self.shape:
            return False
        source, target = self.refs(engine)
        # Inputs alone have one memory in all recordings of a net. Of one that layers work on in place, what is read is another value: it must show these.
        if target is None or source is not target or target.role is not Role.INPUT or target.dtype != np.float32:
            return False
        engine.write(target, values)
        return True

    def flush(self) -> None:
        """Before a run: send what the script wrote."""
        engine, held = self.engine(), self._strong if self._strong is not None else self._held()
        if engine is not None and held is not None and (self._seen is None or not np.array_equal(held.view(np.int32), self._seen.view(np.int32))):
            target = self.refs(engine)[1]
            assert target is not None
            engine.write(target, held)
        self._strong, self._seen, self._listed = None, None, False
        del held
        if engine is not None and self._held() is not None:
            engine.session.watched.append(self)

    def refresh(self) -> None:
        """After a run: an array that is still held shows the new values."""
        held = self._held()
        if held is not None and self.engine() is not None:
            held[...] = self._read()
            self._list(held.copy())

    def _held(self) -> np.ndarray | None:
        return self._weak() if self._weak is not None else None

    def _read(self) -> np.ndarray:
        """The values in an array that owns its memory: parts of it that a script takes keep it, and with it the write-through, alive."""
        engine = self.engine()
        assert engine is not None
        source = self.refs(engine)[0]
        assert source is not None
        values = engine.read(source)
        return values if values.shape == self.shape and values.base is None else values.reshape(self.shape).copy()

    def _list(self, seen: np.ndarray | None) -> None:
        self._seen = seen
        engine = self.engine()
        if engine is not None and not self._listed:
            self._listed = True
            engine.session.touched.append(self)


class Blob:
    """A blob or a parameter of a net: its shape, and `data` and `diff` as writable float32 arrays of that shape."""

    def __init__(self, engine: Engine, name: str, parameter: Parameter | None = None, layer: str = "") -> None:
        self._engine, self._name, self._parameter, self._layer = engine, name, parameter, layer

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes; () for a scalar, as most losses are."""
        if self._parameter is not None:
            return node_shape(self._parameter, self._layer)
        return self._engine.shapes.get(self._name) or self._engine.network.graph.blobs[self._name].shape

    @property
    def count(self) -> int:
        """How many values."""
        return math.prod(self.shape)

    @property
    def num(self) -> int:
        """Size of axis 0; 1 if there is none. Raises Error for more than 4 axes, as the three below."""
        return self._legacy(0)

    @property
    def channels(self) -> int:
        """Size of axis 1."""
        return self._legacy(1)

    @property
    def height(self) -> int:
        """Size of axis 2."""
        return self._legacy(2)

    @property
    def width(self) -> int:
        """Size of axis 3."""
        return self._legacy(3)

    def _legacy(self, axis: int) -> int:
        if len(self.shape) > 4:
            raise Error(f"blob '{self._name}' has {len(self.shape)} axes; num, channels, height and width exist for up to 4", fix="use shape")
        return self.shape[axis] if axis < len(self.shape) else 1

    @property
    def data(self) -> np.ndarray:
        """Writable values. Raises Error if the planner gave the blob's memory to others (name it in Net's keep)."""
        mirror = self._mirror("data")
        return np.zeros(self.shape, np.float32) if mirror is None else mirror.array()

    @data.setter
    def data(self, value: Any) -> None:
        self._assign("data", value)

    @property
    def diff(self) -> np.ndarray:
        """Writable gradient; zeros where the net computes none. Raises Error as `data` does."""
        mirror = self._mirror("diff")
        return np.zeros(self.shape, np.float32) if mirror is None else mirror.array()

    @diff.setter
    def diff(self, value: Any) -> None:
        self._assign("diff", value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """`np.asarray(blob)` is its data."""
        return np.array(self.data, dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.data.__dlpack_device__()

    def __repr__(self) -> str:
        return f"<Blob '{self._name}' {shape_text(self.shape)}>"

    def _assign(self, what: What, value: Any) -> None:
        mirror = self._mirror(what)
        if mirror is not None:
            mirror.assign(value)

    def _mirror(self, what: What) -> Mirror | None:
        engine, name, parameter = self._engine, self._name, self._parameter
        mirrors: dict[Any, Any]
        key: Any
        if parameter is None:
            if engine.refs(name, what)[0] is None:
                return None
            mirrors, key = engine.mirrors, (what, name)
        else:
            engine.check_open()
            ref = parameter.data if what == "data" else engine.gradient(parameter)
            if ref is None:
                return None
            mirrors, key = engine.session.mirrors, (ref, self.shape)
        mirror = cast("Mirror | None", mirrors.get(key))
        if mirror is None or mirror.engine() is None or mirror.shape != self.shape:
            refs = (lambda engine: engine.refs(name, what)) if parameter is None else (lambda engine: (ref, ref))
            mirror = mirrors[key] = Mirror(engine, self.shape, refs)
        return mirror

    def reshape(self, *shape: int) -> None:
        """Give an input blob a new shape; `net.reshape()` or the next forward carries it through the net. Raises Error for a parameter.

        Other blobs get their shapes from their layers, whatever is asked for here.
        """
        sizes = tuple(int(n) for n in shape)
        if any(n < 1 for n in sizes):
            raise Error(f"blob '{self._name}' cannot have the shape {shape_text(sizes)}", fix="every axis needs at least one element")
        if self._parameter is not None:
            if sizes != self.shape:
                fact = f"parameter '{self._name}' is {shape_text(self.shape)} and cannot become {shape_text(sizes)}"
                raise Error(fact, fix="change the layer in the prototxt")
            return
        if not self._engine.is_fed(self._name):
            return
        self._engine.shapes[self._name] = sizes
