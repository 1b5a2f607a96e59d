"""Caffe's HDF5 files: weights `/data/<layer>/<i>` (gradients `/diff/...`), solver state `iter`, `learned_net`, `history/<i>`."""
from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ocaffe.errors import Error
from ocaffe.files import atomic_write
from ocaffe.model.records import Cursor, LayerWeights, SolverState, Weights

try:
    import h5py
except ImportError:
    raise Error("HDF5 files need the package h5py", fix="pip install h5py") from None

_EXTRAS = "ocaffe"  # a separate group that Caffe does not read


def read_weights_hdf5(path: str | Path) -> Weights:
    """Return the weights in an HDF5 file, with the arrays in memory. The layers are in the file's order, which is sorted by name."""
    with _opened(path) as file:
        if "data" not in file or not isinstance(file["data"], h5py.Group):
            state = "iter" in file and "history" in file
            fix = "give the .caffemodel.h5 beside it, or resume with --snapshot" if state else None
            raise Error(
                f"has no group 'data'{': it is a solver state' if state else ''}, so it is not a weights file", place=str(path), fix=fix
            )
        return Weights("", list(_layers(file["data"], "")), str(path))


def _layers(group: Any, prefix: str) -> Iterator[LayerWeights]:
    """Yield the layers of `group`. A group is a layer if it has datasets or is empty. A name with slashes is a path of groups."""
    for name, item in group.items():
        if not isinstance(item, h5py.Group):
            continue
        datasets = {int(key): value for key, value in item.items() if isinstance(value, h5py.Dataset) and key.isdigit()}
        if datasets or not len(item):
            blobs = [datasets[i][()] if i in datasets else None for i in range(max(datasets, default=-1) + 1)]
            yield LayerWeights(prefix + name, "", blobs)
        yield from _layers(item, f"{prefix}{name}/")


def write_weights_hdf5(
    path: str | Path,
    net: Any,
    blobs: Mapping[str, Sequence[np.ndarray | None]],
    diffs: Mapping[str, Sequence[np.ndarray | None]] | None = None,
) -> None:
    """Write weights as HDF5: one group per layer of `net`, with `blobs[name]` by index.

    A blob that another layer owns is None and is omitted, as in Caffe. `blobs` is read once per layer and in order,
    as in `write_weights`.
    """
    with _created(path) as file:
        for key, arrays in (("data", blobs), ("diff", diffs)):
            if arrays is None:
                continue
            root = file.create_group(key)
            for layer in net.layer:
                group = root.require_group(layer.name)
                for index, array in enumerate(arrays.get(layer.name, ())):
                    if array is not None and str(index) not in group:
                        group.create_dataset(str(index), data=array if array.dtype == np.float64 else np.asarray(array, np.float32))


def read_state_hdf5(path: str | Path) -> SolverState:
    """Return the solver state in an HDF5 file."""
    with _opened(path) as file:
        if "iter" not in file or "history" not in file:
            fix = "give the .solverstate.h5 beside it to --snapshot; weights alone go to --weights" if "data" in file else None
            raise Error("has no iter and history, so it is not a solver state", place=str(path), fix=fix)
        history = file["history"]
        indices = sorted(int(key) for key in history if key.isdigit())
        if indices != list(range(len(indices))):
            raise Error(f"the history has blobs {indices}, some are missing", place=str(path))
        net = file["learned_net"][()] if "learned_net" in file else b""
        state = SolverState(
            iter=_scalar(file["iter"]),
            learned_net=net.decode("utf-8", "backslashreplace") if isinstance(net, bytes) else str(net),
            history=[history[str(index)][()] for index in indices],
            current_step=_scalar(file["current_step"]) if "current_step" in file else 0,
        )
        if _EXTRAS in file:
            extras = file[_EXTRAS].attrs
            state.cursors = [Cursor(*item) for item in json.loads(extras.get("data_cursor", "[]"))]
            state.random_seed = int(extras["random_seed"]) if "random_seed" in extras else None
            state.choices = str(extras.get("choices", ""))
            state.averaged_net = str(extras.get("averaged_net", ""))
            state.best_value = float(extras["best_value"]) if "best_value" in extras else None
            state.best_iter = int(extras["best_iter"]) if "best_iter" in extras else None
        return state


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
        extras["data_cursor"] = json.dumps([(cursor.layer, cursor.net, cursor.batch) for cursor in state.cursors])
        extras["choices"], extras["averaged_net"] = state.choices, state.averaged_net
        for name in ("random_seed", "best_value", "best_iter"):
            if getattr(state, name) is not None:
                extras[name] = getattr(state, name)


def _scalar(dataset: Any) -> int:
    return int(np.asarray(dataset[()]).reshape(-1)[0])


@contextlib.contextmanager
def _opened(path: str | Path) -> Iterator[Any]:
    try:
        with h5py.File(path, "r") as file:
            yield file
    except (OSError, RuntimeError, KeyError, ValueError) as problem:
        raise Error(f"cannot be read as HDF5, it may be truncated: {_first_line(problem)}", place=str(path)) from None


@contextlib.contextmanager
def _created(path: str | Path) -> Iterator[Any]:
    with atomic_write(path) as stream:
        try:
            with h5py.File(stream.name, "w") as file:
                yield file
        except RuntimeError as problem:  # h5py raises this for a failed write
            raise OSError(_first_line(problem)) from problem


def _first_line(problem: Exception) -> str:
    return str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
