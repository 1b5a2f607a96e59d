"""Caffe's HDF5 files: weights `/data/<layer>/<i>` (gradients `/diff/...`), solver state `iter`, `learned_net`, `history/<i>`."""
from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ocaffe.errors import Error, shape_text
from ocaffe.formats.hdf5_files import Hdf5Files
from ocaffe.formats.json_file import misfit, parse_json
from ocaffe.formats.records import Cursor, LayerWeights, SolverState, Weights
from ocaffe.shown import command, path_word
from ocaffe.support.files import atomic_write
from ocaffe.support.parsing import reason
from ocaffe.support.whole import whole

try:
    import h5py
except ImportError:
    raise Error("HDF5 files need the package h5py", fix="pip install h5py") from None

_EXTRAS = "ocaffe"  # a separate group that Caffe does not read
HELD = "another name: in HDF5 it is a path, whose parts are not empty and not '.'; or a .caffemodel"
MAX_BLOBS = 1000  # of a layer; an LSTM has 4, a Python layer may have more


def read_weights_hdf5(path: str | Path) -> Weights:
    """Return the weights in an HDF5 file, with the arrays in memory. The layers are in the file's order, which is sorted by name."""
    with Hdf5Files() as files:
        root = files.members(path, keep=True)
        if "data" not in root or root["data"].kind != "group":
            state = "iter" in root and "history" in root
            fix = "give a .caffemodel.h5, whose weights are in the group 'data'"
            if state:
                fix = f"give the .caffemodel.h5 beside it; to continue its training: `{command('ocaffe', 'train', '--snapshot', path_word(path))}`"
            raise Error(
                f"has no group 'data'{': it is a solver state' if state else ''}, so it is not a weights file", place=str(path), fix=fix
            )
        return Weights("", list(_layers(files, path)), str(path))


def _layers(files: Hdf5Files, path: str | Path) -> Iterator[LayerWeights]:
    """Yield the layers in `/data`. A group is a layer if it has datasets or is empty. A name with slashes is a path of groups."""
    seen: set[str] = set()  # links can make a group its own member
    waiting = [""]
    while waiting:
        layer = waiting.pop()
        members = files.members(path, f"/data/{layer}", keep=True)
        groups = [f"{layer}/{name}" if layer else name for name, member in members.items() if member.kind == "group" and member.id not in seen]
        seen |= {member.id for member in members.values()}
        waiting += reversed(groups)
        for member in members.values():
            if member.problem:
                raise Error(member.problem, place=str(path), fix=member.fix)
        datasets = {number for name, member in members.items() if member.kind == "dataset" and (number := whole(name)) >= 0}
        if layer and (datasets or not members):
            count = max(datasets, default=-1) + 1
            if count > MAX_BLOBS:
                fact = f"layer '{layer}' has a blob of number {count - 1}, at most {MAX_BLOBS} blobs are possible"
                raise Error(fact, place=str(path), fix="number the datasets of each layer from 0")
            yield LayerWeights(layer, "", [files.read(path, f"/data/{layer}/{i}") if i in datasets else None for i in range(count)])


def write_weights_hdf5(
    path: str | Path,
    net: Any,
    blobs: Mapping[str, Sequence[np.ndarray | None]],
    diffs: Mapping[str, Sequence[np.ndarray | None]] | None = None,
) -> None:
    """Write weights as HDF5: one group per layer of `net`, with `blobs[name]` by index.

    A blob that another layer owns is None and is omitted, as in Caffe. `blobs` is read once per layer and in order,
    as in `write_weights`. Raises Error if a layer with blobs has a name that is no path.
    """
    with _created(path) as file:
        for key, arrays in (("data", blobs), ("diff", diffs)):
            if arrays is None:
                continue
            root = file.create_group(key)
            for layer in net.layer:
                if not {"", "."}.isdisjoint(layer.name.split("/")):
                    if any(array is not None for array in arrays.get(layer.name, ())):
                        raise Error(f"an HDF5 file cannot hold the weights of layer '{layer.name}'", place=str(path), fix=HELD)
                    continue
                group = root.require_group(layer.name)
                for index, array in enumerate(arrays.get(layer.name, ())):
                    if array is not None and str(index) not in group:
                        group.create_dataset(str(index), data=array if array.dtype == np.float64 else np.asarray(array, np.float32))


def read_state_hdf5(path: str | Path) -> SolverState:
    """Return the solver state in an HDF5 file."""
    with Hdf5Files() as files:
        root = files.members(path, keep=True)
        if "iter" not in root or "history" not in root:
            beside = " beside it to --snapshot; to start from weights alone: `ocaffe train --weights FILE`" if "data" in root else " to --snapshot"
            fix = f"give the .solverstate.h5{beside}"
            raise Error("has no iter and history, so it is not a solver state", place=str(path), fix=fix)
        indices = sorted(number for key in files.members(path, "/history", keep=True) if (number := whole(key)) >= 0)
        if indices != list(range(len(indices))):
            missing = next(number for number, index in enumerate([*indices, None]) if index != number)
            fact = f"the group 'history' has the datasets {', '.join(map(str, indices))}, and {missing} is missing"
            raise Error(fact, place=str(path), fix="give --snapshot an earlier .solverstate.h5, or start from weights alone: `ocaffe train --weights FILE`")
        state = SolverState(
            iter=_scalar(files, path, "iter"),
            learned_net=files.text(path, "learned_net") if "learned_net" in root else "",
            history=[files.read(path, f"history/{index}") for index in indices],
            current_step=_scalar(files, path, "current_step") if "current_step" in root else 0,
        )
        if _EXTRAS in root:
            try:
                _read_extras(state, files.attributes(path, _EXTRAS))
            except Exception as problem:  # of numpy, which converts the values
                fact = f"is damaged: the attributes of its group '{_EXTRAS}' are invalid: {reason(problem)}"
                raise Error(fact, place=str(path), fix="copy it again, or resume with an earlier .solverstate.h5") from None
        return state


def _read_extras(state: SolverState, extras: Mapping[str, Any]) -> None:
    cursors = parse_json(str(extras.get("data_cursor", "[]")).encode(), "")
    if wrong := misfit(cursors, [[(str, int)]], "data_cursor"):
        raise ValueError(wrong)
    state.cursors = [_cursor(*item) for item in cursors]
    state.random_seed = int(extras["random_seed"]) if "random_seed" in extras else None
    state.choices = str(extras.get("choices", ""))
    state.averaged_net = str(extras.get("averaged_net", ""))
    state.best_value = float(extras["best_value"]) if "best_value" in extras else None
    state.best_iter = int(extras["best_iter"]) if "best_iter" in extras else None
    state.ranks = int(extras.get("ranks", 1))


def _cursor(layer: Any, net: Any, batch: Any, records: Any = 0) -> Cursor:
    if misfit([layer, net], [str]) or misfit([batch, records], [int]) or min(batch, records) < 0:
        raise ValueError(f"data_cursor has {[layer, net, batch, records]!r:.100}, not the names of a layer and a net, and numbers of batches and records")
    return Cursor(layer, net, batch, records)


def write_state_hdf5(path: str | Path, state: SolverState, history: Iterable[np.ndarray]) -> None:
    """Write `state` as HDF5. The arrays of `history` are written one at a time."""
    with _created(path) as file:
        file.create_dataset("iter", data=np.array([state.iter], np.int32))
        file.create_dataset("learned_net", data=np.bytes_(state.learned_net.encode() + b"\0"))
        file.create_dataset("current_step", data=np.array([state.current_step], np.int32))
        group = file.create_group("history")
        for index, array in enumerate(history):
            group.create_dataset(str(index), data=array if array.dtype == np.float64 else np.asarray(array, np.float32))
        extras = file.create_group(_EXTRAS).attrs
        extras["data_cursor"] = json.dumps(state.cursors)
        extras["choices"], extras["averaged_net"] = state.choices, state.averaged_net
        for name in ("random_seed", "best_value", "best_iter", "ranks"):
            if getattr(state, name) is not None:
                extras[name] = getattr(state, name)


def _scalar(files: Hdf5Files, path: str | Path, dataset: str) -> int:
    values = files.read(path, dataset)
    if values.size != 1 or values.dtype.kind not in "iu":
        fact = f"dataset '{dataset}' is {shape_text(values.shape)} of {values.dtype}, not one integer"
        raise Error(fact, place=str(path), fix="give a .solverstate.h5 that Caffe or ocaffe has written")
    return int(values.reshape(-1)[0])


@contextlib.contextmanager
def _created(path: str | Path) -> Iterator[Any]:
    with atomic_write(path) as stream:
        try:
            with h5py.File(stream.name, "w") as file:
                yield file
        except Error:
            raise
        except RuntimeError as problem:  # h5py raises this for a failed write
            raise OSError(_first_line(problem)) from problem


def _first_line(problem: Exception) -> str:
    return str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
