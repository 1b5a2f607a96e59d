"""Solver state files (.solverstate): iteration and history. Fields that Caffe ignores hold the data for an exact resume."""
from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ocaffe.errors import Error
from ocaffe.formats import wire
from ocaffe.formats.blob import decode_blob, encode_blob, malformed
from ocaffe.formats.records import Cursor as Cursor
from ocaffe.formats.records import SolverState as SolverState
from ocaffe.formats.sniff import is_hdf5, is_text, open_head, wrong_kind
from ocaffe.support.files import atomic_write
from ocaffe.support.kinds import kind_of

# field numbers of SolverState and DataCursor
_GIVE = "give --snapshot a .solverstate; to start from weights alone: `ocaffe train --weights FILE`"
_ITER, _LEARNED_NET, _HISTORY, _STEP, _CURSOR, _SEED, _CHOICES = 1, 2, 3, 4, 50000, 50001, 50002
_AVERAGED_NET, _BEST_VALUE, _BEST_ITER, _RANKS = 50003, 50004, 50005, 50006
_DOUBLE = struct.Struct("<d")
_CURSOR_LAYER, _CURSOR_NET, _CURSOR_BATCH, _CURSOR_RECORDS = 1, 2, 3, 4


def read_state(path: str | Path) -> SolverState:
    """Return the solver state in `path`, in any format. Raises Error for a missing, truncated, damaged or wrong file."""
    head = open_head(path, "a solver state")
    if is_hdf5(head):
        from ocaffe.formats.hdf5 import read_state_hdf5

        return read_state_hdf5(path)
    kind = kind_of(head, str(path))
    if kind is not None:
        raise wrong_kind(kind, "a solver state", str(path), _GIVE)
    if is_text(head):
        raise Error("is a text file, not a solver state", place=str(path), fix="give a .solverstate or .solverstate.h5")
    span = wire.map_file(path)
    state = SolverState(iter=-1)
    try:
        for item in span.fields():
            _read_field(state, span, item, path)
    except wire.Malformed as problem:
        raise malformed(path, problem, span.end, "a solver state") from None
    if state.iter < 0:
        raise Error("has no iteration: it is not a solver state", place=str(path), fix=_GIVE)
    return state


def _read_field(state: SolverState, span: wire.Span, item: wire.Field, path: str | Path) -> None:
    number, is_bytes = item.number, item.kind == wire.BYTES
    if is_bytes and number in (1, 100):
        raise Error(
            "is a caffemodel, not a solver state",
            place=str(path),
            fix=_GIVE,
        )
    if number == _LEARNED_NET and is_bytes:
        state.learned_net = span.text(item)
    elif number == _HISTORY and is_bytes:
        state.history.append(decode_blob(span.inner(item)))
    elif number == _CURSOR and is_bytes:
        state.cursors.append(_read_cursor(span.inner(item)))
    elif number == _AVERAGED_NET and is_bytes:
        state.averaged_net = span.text(item)
    elif number == _BEST_VALUE and item.kind == wire.FIXED64:
        (state.best_value,) = _DOUBLE.unpack_from(span.data, item.start)
    elif number == _CHOICES and is_bytes:
        state.choices = span.text(item)
    elif item.kind == wire.VARINT:
        name = {_ITER: "iter", _STEP: "current_step", _SEED: "random_seed", _BEST_ITER: "best_iter", _RANKS: "ranks"}.get(number)
        if name:
            setattr(state, name, wire.signed(item.value))


def _read_cursor(span: wire.Span) -> Cursor:
    values: dict[int, str | int] = {}
    for item in span.fields():
        values[item.number] = span.text(item) if item.kind == wire.BYTES else item.value
    layer, net = (str(values.get(number, "")) for number in (_CURSOR_LAYER, _CURSOR_NET))
    return Cursor(layer, net, *(int(values.get(number, 0)) for number in (_CURSOR_BATCH, _CURSOR_RECORDS)))


def write_state(path: str | Path, state: SolverState, history: Iterable[np.ndarray] | None = None, hdf5: bool = False) -> None:
    """Write `state` in Caffe's binary format or as HDF5.

    `history` (default `state.history`) is iterated once, and one array is held at a time. Raises Error when the disk is full.
    """
    arrays = state.history if history is None else history
    if hdf5:
        from ocaffe.formats.hdf5 import write_state_hdf5

        write_state_hdf5(path, state, arrays)
        return
    with atomic_write(path) as stream:
        stream.write(wire.integer(_ITER, state.iter) + wire.string(_LEARNED_NET, state.learned_net))
        for array in arrays:
            for piece in encode_blob(_HISTORY, array):
                stream.write(piece)
        stream.write(wire.integer(_STEP, state.current_step))
        for cursor in state.cursors:
            body = (
                wire.string(_CURSOR_LAYER, cursor.layer) + wire.string(_CURSOR_NET, cursor.net) + wire.integer(_CURSOR_BATCH, cursor.batch)
            )
            if cursor.records:
                body += wire.integer(_CURSOR_RECORDS, cursor.records)
            stream.write(wire.header(_CURSOR, len(body)) + body)
        if state.random_seed is not None:
            stream.write(wire.integer(_SEED, state.random_seed))
        for number, text in ((_CHOICES, state.choices), (_AVERAGED_NET, state.averaged_net)):
            if text:
                stream.write(wire.string(number, text))
        if state.best_value is not None:
            stream.write(wire.tag(_BEST_VALUE, wire.FIXED64) + _DOUBLE.pack(state.best_value))
        if state.best_iter is not None:
            stream.write(wire.integer(_BEST_ITER, state.best_iter))
        if state.ranks != 1:
            stream.write(wire.integer(_RANKS, state.ranks))
