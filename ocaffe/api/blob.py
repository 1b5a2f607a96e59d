"""`Blob`: one blob or parameter of a net as numpy arrays with write-through.

An array is a copy of the blob's values on the device. Values that a script writes into it reach the device before the
next run. After a run, arrays and slices that the script still holds show the new values.
"""
from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ocaffe.compiler.network import node_shape
from ocaffe.errors import Error, WrongType, WrongValue, shape_text
from ocaffe.ir.graph import Parameter
from ocaffe.ir.tensor import Ref, Role, Shape

if TYPE_CHECKING:
    from ocaffe.api.engine import Engine
    from ocaffe.api.names import What


class Mirror:
    """A numpy copy of one blob. A run writes it through before, and refreshes it after if a script still holds it.

    `refs` returns the Refs to read from and to write to. For blobs of in-place layers these change from run to run.
    """

    def __init__(self, engine: Engine, shape: Shape, refs: Callable[[Engine], tuple[Ref | None, Ref | None]], name: str = "") -> None:
        """`name` is that of the blob, if these are its data."""
        self.shape, self.refs, self.name = shape, refs, name
        self.engine = weakref.ref(engine)  # weak: a dropped net is freed at once, though its session still lists touched mirrors
        self._strong: np.ndarray | None = None  # held from access to the next run: a script may drop its own reference
        self._weak: weakref.ref[np.ndarray] | None = None
        self._seen: bytes | None = None  # values at access or after the last run, to detect changes; None: changed
        self._listed = False  # whether the session will flush this mirror

    def array(self) -> np.ndarray:
        """Return the array for a script. The script may write into it as long as it holds it."""
        if self._strong is None:
            held = self._held()
            if held is None:
                held = self._read()
                self._weak, self._listed = weakref.ref(held), False
            if not self._listed:
                self._list(held.tobytes())
            self._strong = held
        return self._strong

    def assign(self, values: np.ndarray) -> None:
        """Set all values, without reading the present ones."""
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
        """Send the values of an input at once, without a copy on the host. Return False if that is not possible."""
        engine = self.engine()
        if engine is None or not isinstance(values, np.ndarray) or values.dtype != np.float32 or values.shape != self.shape:
            return False
        source, target = self.refs(engine)
        # Only inputs have the same memory in all recordings of a net. If a layer works on the input in place, `source` is
        # another Ref than `target`; then an array must hold the values, so that reading the blob returns them.
        if target is None or source is not target or target.role is not Role.INPUT or target.dtype != np.float32:
            return False
        engine.write(target, values)
        return True

    def flush(self) -> None:
        """Send the values that the script wrote. The engine calls this before a run."""
        engine, held = self.engine(), self._strong if self._strong is not None else self._held()
        if engine is not None and held is not None and held.tobytes() != self._seen:
            target = self.refs(engine)[1]
            assert target is not None
            engine.write(target, held)
            if self.name:
                engine.given(self.name, held)
        self._strong, self._seen, self._listed = None, None, False
        del held
        if engine is not None and self._held() is not None:
            engine.session.watched.append(self)

    def refresh(self) -> None:
        """Read the new values into the array if the script still holds it. The engine calls this after a run."""
        held = self._held()
        if held is not None and self.engine() is not None:
            held[...] = self._read()
            self._list(held.tobytes())

    def _held(self) -> np.ndarray | None:
        return self._weak() if self._weak is not None else None

    def _read(self) -> np.ndarray:
        """Return the values in an array that owns its memory.

        A slice that a script keeps then keeps this array, and with it the write-through, alive.
        """
        engine = self.engine()
        assert engine is not None
        source = self.refs(engine)[0]
        assert source is not None
        values = engine.read(source)
        return values if values.shape == self.shape and values.base is None else values.reshape(self.shape).copy()

    def _list(self, seen: bytes | None) -> None:
        self._seen = seen
        engine = self.engine()
        if engine is not None and not self._listed:
            self._listed = True
            engine.session.touched.append(self)


class Blob:
    """A blob or a parameter of a net. `data` and `diff` are writable float32 arrays of its `shape`."""

    def __init__(self, engine: Engine, name: str, parameter: Parameter | None = None, layer: str = "") -> None:
        self._engine, self._name, self._parameter, self._layer = engine, name, parameter, layer

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes; () for a scalar, such as most losses."""
        if self._parameter is not None:
            return node_shape(self._parameter, self._layer)
        return self._engine.shapes.get(self._name) or self._engine.network.graph.blobs[self._name].shape

    @property
    def count(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def num(self) -> int:
        """Size of axis 0; 1 if there is none. Raises Error for more than 4 axes, as `channels`, `height` and `width` do."""
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
            raise Error(f"blob '{self._name}' has {len(self.shape)} axes; num, channels, height and width exist for up to 4", fix="use shape in place of them")
        return self.shape[axis] if axis < len(self.shape) else 1

    @property
    def data(self) -> np.ndarray:
        """Writable values. Raises Error if the blob has no memory of its own; then name it in `keep` of the Net."""
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
            mirror = mirrors[key] = Mirror(engine, self.shape, refs, name if parameter is None and what == "data" else "")
        return mirror

    def reshape(self, *shape: int) -> None:
        """Set the shape of an input blob. `net.reshape()` or the next forward pass infers the other shapes from it.

        A call for another blob has no effect, because its layer determines the shape.
        Raises Error if a parameter's shape would change.
        """
        try:
            sizes = tuple(int(n) for n in shape)
            whole = sizes == shape  # scripts of Python 2 divide integers, so 4.0 is a size and 2.5 is none
        except (TypeError, ValueError):
            whole = False
        if not whole:
            fact = f"blob '{self._name}' cannot have the shape ({', '.join(map(repr, shape))})"
            raise WrongType(fact, fix="give one whole number per axis: reshape(2, 3) or reshape(*sizes)")
        if any(n < 1 for n in sizes):
            raise WrongValue(f"blob '{self._name}' cannot have the shape {shape_text(sizes)}", fix="give each axis a size of 1 or more")
        if self._parameter is not None:
            if sizes != self.shape:
                fact = f"parameter '{self._name}' is {shape_text(self.shape)} and cannot become {shape_text(sizes)}"
                raise Error(fact, fix="change the shape by the fields of its layer in the prototxt")
            return
        if not self._engine.is_fed(self._name):
            return
        self._engine.shapes[self._name] = sizes
