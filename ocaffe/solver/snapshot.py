"""Snapshots: the weights and the solver state on disk, and back. Names and formats are Caffe's; ours adds where data and seeds stand."""
from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ocaffe import log, proto
from ocaffe.errors import Error
from ocaffe.graph.ir import Ref
from ocaffe.model.state import Cursor, SolverState, read_state, write_state
from ocaffe.model.weights import fit, read_weights, write_weights
from ocaffe.network import Network, node_shape

if TYPE_CHECKING:
    from ocaffe.solver.solver import Solver


class DeviceBlobs(Mapping[str, Sequence[np.ndarray]]):
    """Parameter blobs by layer, fetched when asked, so that a snapshot holds one layer at a time."""

    def __init__(self, network: Network, diffs: bool = False, owners_only: bool = False) -> None:
        self.network, self.diffs, self.owners_only = network, diffs, owners_only
        self._nodes = {node.name: node for node in network.graph.nodes}

    def __getitem__(self, name: str) -> list[Any]:
        node = self._nodes[name]
        return [
            None if self.owners_only and parameter.layer != name else self._fetch(parameter.diff if self.diffs else parameter.data, node_shape(parameter, name))
            for parameter in node.params
        ]  # fmt: skip

    def _fetch(self, ref: Ref | None, shape: tuple[int, ...]) -> np.ndarray:
        return np.zeros(shape, np.float32) if ref is None else self.network.session.read(ref).reshape(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)


def prefix_of(solver: Any, file: str | None) -> str:
    """snapshot_prefix; absent: the solver's path without extension; a folder: the solver's name in it."""
    stem = os.path.splitext(file)[0] if file else "net"
    if not solver.HasField("snapshot_prefix"):
        return stem
    if os.path.isdir(solver.snapshot_prefix):
        return os.path.join(solver.snapshot_prefix, os.path.basename(stem))
    return str(solver.snapshot_prefix)


def probe(prefix: str, iteration: int) -> None:
    """Fail before training rather than at the first snapshot: write and remove `<prefix>_iter_<n>.tempfile`."""
    path = f"{prefix}_iter_{iteration}.tempfile"
    try:
        Path(path).write_bytes(b"")
        os.remove(path)
    except OSError as reason:
        raise Error(
            f"cannot write snapshots to '{prefix}*': {reason.strerror}", fix="create the folder, or set snapshot_prefix to a place that can be written"
        ) from reason


def snapshot(solver: Solver) -> str:
    """Write both files; returns the path of the state."""
    hdf5 = solver.param.snapshot_format == proto.SolverParameter.HDF5
    stem = f"{prefix_of(solver.param, solver.file)}_iter_{solver.iter}"
    weights, state = (f"{stem}.caffemodel.h5", f"{stem}.solverstate.h5") if hdf5 else (f"{stem}.caffemodel", f"{stem}.solverstate")
    kind = "HDF5" if hdf5 else "binary proto"
    log.info("solver.cpp:464", f"Snapshotting to {kind} file {weights}")
    network = solver.network
    data = DeviceBlobs(network, owners_only=hdf5)
    diffs = DeviceBlobs(network, diffs=True, owners_only=hdf5) if solver.param.snapshot_diff else None
    if hdf5:
        from ocaffe.model.hdf5 import write_weights_hdf5  # h5py takes 0.1 s to import

        write_weights_hdf5(weights, network.graph.message, data, diffs)
    else:
        write_weights(weights, network.graph.message, data, diffs)
    log.info("sgd_solver.cpp:284", f"Snapshotting solver state to {kind} file {state}")
    write_state(state, _state_of(solver, weights), solver.history_arrays(), hdf5=hdf5)
    return state


def _state_of(solver: Solver, weights: str) -> SolverState:
    """In the middle of a test its data count as unread: a resumed run begins that test anew."""
    tests = [(f"test {i}", solver.tested_from.get(i, net.cursor)) for i, net in enumerate(solver.test_networks)]
    cursors = [Cursor(layer, name, batch) for name, places in [("train", solver.network.cursor), *tests] for layer, batch in places.items()]
    return SolverState(solver.iter, weights, [], solver.rate.current_step, cursors, solver.seed)


def load_state(path: str) -> SolverState:
    """The state in `path`; its weights file is looked for as recorded, then beside the state (folders move)."""
    state = read_state(path)
    if state.learned_net and not os.path.exists(state.learned_net):
        beside = os.path.join(os.path.dirname(path), os.path.basename(state.learned_net))
        if not os.path.exists(beside):
            raise Error(
                f"the state's weights '{state.learned_net}' are neither there nor beside the state", place=path,
                fix="put the .caffemodel beside the .solverstate",
            )  # fmt: skip
        state.learned_net = beside
    return state


def restore(solver: Solver, path: str, state: SolverState | None = None) -> None:
    """Continue from a state. One that Caffe wrote has no data position: data restarts at its first record, as Caffe does."""
    state = state or load_state(path)
    if state.learned_net:
        solver.network.copy_weights(read_weights(state.learned_net), state.learned_net)
    blobs = solver.history_views()
    if len(state.history) != len(blobs):
        raise Error(
            f"the state has {len(state.history)} history blobs, a {solver.param.type} solver of this net has {len(blobs)}", place=path,
            fix="resume with the solver type and the net that wrote the state",
        )  # fmt: skip
    for array, (parameter, ref) in zip(state.history, blobs):
        values = fit(array, parameter.shape)
        if values is None:
            raise Error(
                f"a history blob is {array.shape} in the state, parameter {parameter} is {parameter.shape} in the net", place=path,
                fix="resume with the net that wrote the state",
            )  # fmt: skip
        if ref is not None:
            solver.network.session.write(ref, values)
    solver.iter = state.iter
    solver.rate.current_step = state.current_step
    positions: dict[str, dict[str, int]] = {}
    for cursor in state.cursors:
        positions.setdefault(cursor.net, {})[cursor.layer] = cursor.batch
    solver.network.seek(positions.get("train", {}))
    for index, network in enumerate(solver.test_networks):
        network.seek(positions.get(f"test {index}", {}))
