"""Write and restore snapshots: weights and solver state. Names and formats are Caffe's; ocaffe adds data positions and seeds."""
from __future__ import annotations

import contextlib
import json
import os
import re
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ocaffe import proto
from ocaffe.compiler.network import Network, node_shape
from ocaffe.errors import Error, shape_text
from ocaffe.formats.state import Cursor, SolverState, read_state, write_state
from ocaffe.formats.weights import Weights, fit, read_weights, write_weights
from ocaffe.ir.graph import Parameter
from ocaffe.solver.first_losses import DIVERGED
from ocaffe.support import log
from ocaffe.support.files import output, remove_leftovers, to_write
from ocaffe.support.lock import FileLock
from ocaffe.support.process_memory import pieces

if TYPE_CHECKING:
    from ocaffe.solver.solver import Solver


_FILES = r"_iter_(\d+)(\.ema)?\.(caffemodel|solverstate)(\.h5)?"  # of a snapshot, after its prefix


class DeviceBlobs(Mapping[str, Sequence[np.ndarray]]):
    """Parameter blobs by layer, read on access, so that the host holds one layer at a time.

    `finite`: raise Error for a trained parameter with NaN or infinite values.
    """

    def __init__(self, network: Network, diffs: bool = False, owners_only: bool = False, finite: bool = False) -> None:
        self.network, self.diffs, self.owners_only, self.finite = network, diffs, owners_only, finite
        self._nodes = {node.name: node for node in network.graph.nodes}

    def __getitem__(self, name: str) -> list[Any]:
        return [None if self.owners_only and parameter.layer != name else self._fetch(parameter, name) for parameter in self._nodes[name].params]

    def _fetch(self, parameter: Parameter, name: str) -> np.ndarray:
        ref, shape = self.network.group.held_gradient(parameter) if self.diffs else parameter.data, node_shape(parameter, name)
        if ref is None:
            return np.zeros(shape, np.float32)
        array = self.network.session.values(ref).reshape(shape)
        if self.finite and parameter.propagate and (wrong := not_finite(array)):  # constants may be infinite
            fact = f"{wrong:,} of the {array.size:,} values of parameter {parameter} are NaN or infinite: no snapshot is written, earlier ones are kept"
            raise Error(fact, place=parameter.place, fix=DIVERGED)
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)


def not_finite(array: np.ndarray) -> int:
    """Return how many values of a contiguous array are NaN or infinite."""
    flat = array.reshape(-1)
    return array.size - sum(int(np.count_nonzero(np.isfinite(flat[part]))) for part in pieces(flat))


def check_finite(network: Network) -> None:
    """Raise Error if a trained parameter has NaN or infinite values."""
    blobs = DeviceBlobs(network, owners_only=True, finite=True)
    for name in blobs:
        blobs[name]


def prefix_of(solver: Any, file: str | None) -> str:
    """Return snapshot_prefix, by default the solver's path without extension. If it is a folder, append the solver's name."""
    stem = os.path.splitext(file)[0] if file else "net"
    if not solver.HasField("snapshot_prefix"):
        return stem
    if os.path.isdir(solver.snapshot_prefix):
        return os.path.join(solver.snapshot_prefix, os.path.basename(stem))
    return str(solver.snapshot_prefix)


def probe(prefix: str, iteration: int) -> None:
    """Check before training that snapshots can be written: write and remove `<prefix>_iter_<n>.tempfile`."""
    path = f"{prefix}_iter_{iteration}.tempfile"
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb", opener=output):
            pass
        os.remove(path)
    except OSError as reason:
        raise _not_writable(prefix, reason) from reason


def _not_writable(prefix: str, reason: OSError) -> Error:
    fix = to_write(f"{prefix}.lock", reason, "set another snapshot_prefix in the solver")
    return Error(f"cannot write snapshots to '{prefix}*': {reason.strerror}", fix=fix)


@contextlib.contextmanager
def owned(prefix: str) -> Iterator[None]:
    """Context of a training that writes snapshots with `prefix`. No other process is in it, which the file `<prefix>.lock` ensures.

    Remove temporary files of killed trainings. Raises Error if another training has the prefix, or if no file can be written there.
    """
    lock = FileLock(Path(f"{prefix}.lock"))
    try:
        Path(prefix).parent.mkdir(parents=True, exist_ok=True)
        owner = lock.acquire()
    except OSError as reason:
        raise _not_writable(prefix, reason) from reason
    if owner is not None:
        fix = "wait for its end or stop it, or set another snapshot_prefix"
        raise Error(f"another training writes snapshots with the prefix '{prefix}': {owner}", place=str(lock.path), fix=fix)
    try:
        base = re.escape(os.path.basename(prefix))
        removed = remove_leftovers(Path(prefix).parent, f"{base}(_best)?{_FILES}")
        if removed:
            log.info("solver.cpp:464", f"Removed the unfinished snapshots of killed trainings: {', '.join(path.name for path in removed)}")
        yield
    finally:
        lock.release()


def newest(prefix: str) -> str | None:
    """Return the state of the newest complete snapshot with `prefix`, best ones included. Warn of those that cannot be read. None if there is none."""
    name = re.compile(re.escape(os.path.basename(prefix)) + r"(_best)?_iter_(\d+)\.solverstate(\.h5)?")
    found = [(int(match[2]), path.lstat().st_mtime_ns, str(path)) for path in Path(prefix).parent.glob("*") if (match := name.fullmatch(path.name))]
    for _, _, path in sorted(found, reverse=True):
        try:
            state = load_state(path)
            if not state.learned_net:
                raise Error("the state names no weights", place=path, fix="give the .caffemodel of the same iteration to --weights")
            for weights in state.weights:
                read_weights(weights)
        except Error as problem:
            log.warning("caffe.cpp:235", f"--snapshot=auto passes over {path}: {' '.join(str(problem).split())}")
            continue
        return path
    return None


def snapshot(solver: Solver, best: bool = False) -> str:
    """Write weights, their moving average if there is one, and the state. Then remove old snapshots as snapshot_keep requires.

    Return the path of the state. `best`: write the snapshot of the best test so far, under a separate name; it replaces the
    previous best one.
    """
    prefix = prefix_of(solver.param, solver.file) + ("_best" if best else "")
    stem, ending = f"{prefix}_iter_{solver.iter}", ".h5" if solver.param.snapshot_format == proto.SolverParameter.HDF5 else ""
    weights, averaged, state = f"{stem}.caffemodel{ending}", f"{stem}.ema.caffemodel{ending}", f"{stem}.solverstate{ending}"
    kind = "HDF5" if ending else "binary proto"
    # If the training has diverged, writing the weights raises Error. So no good snapshot is removed below.
    boxes = solver.boxes
    with boxes.usable(False):  # a test may have them in use
        with solver.average.in_net(False) if solver.average else contextlib.nullcontext(), boxes.usable():
            log.info("solver.cpp:464", f"Snapshotting to {kind} file {weights}")
            _write_weights(solver.network, weights, boxes.trained, with_diffs=solver.param.snapshot_diff)
        if solver.average is not None:
            with solver.average.in_net(), boxes.usable():
                log.info("solver.cpp:464", f"Snapshotting the moving average to {kind} file {averaged}")
                _write_weights(solver.network, averaged, boxes.trained)
    log.info("sgd_solver.cpp:284", f"Snapshotting solver state to {kind} file {state}")
    write_state(state, _state_of(solver, weights, averaged if solver.average else ""), solver.history_arrays(shared=True), hdf5=bool(ending))
    keep = 1 if best else solver.param.snapshot_keep
    if keep:
        _remove_old(prefix, keep, solver.iter, solver.precious)
    return state


def _write_weights(network: Network, path: str, more: Mapping[str, Sequence[np.ndarray]], with_diffs: bool = False) -> None:
    """`more`: arrays by the names of further layers."""
    hdf5, message = path.endswith(".h5"), network.graph.message
    data: Mapping[str, Sequence[np.ndarray]] = DeviceBlobs(network, owners_only=hdf5, finite=True)
    if more:
        message, data = type(message).FromString(message.SerializeToString()), ChainMap(dict(more), data)  # type: ignore[arg-type]
        message.layer.extend(proto.LayerParameter(name=name, type="Parameter") for name in more)
    diffs = DeviceBlobs(network, diffs=True, owners_only=hdf5) if with_diffs else None
    if hdf5:
        from ocaffe.formats.hdf5 import write_weights_hdf5  # h5py takes 0.1 s to import

        write_weights_hdf5(path, message, data, diffs)
    else:
        write_weights(path, message, data, diffs)


def _remove_old(prefix: str, keep: int, iteration: int, precious: Sequence[str]) -> None:
    """Remove the files of all but the last `keep` snapshots up to `iteration`. `precious` files stay.

    Files of later iterations belong to another run and stay too.
    """
    name = re.compile(re.escape(os.path.basename(prefix)) + _FILES)
    folder = Path(prefix).parent
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := name.fullmatch(path.name)) and int(match[1]) <= iteration]
    kept = sorted({number for number, _ in found})[-keep:]
    spared = {os.path.realpath(path) for path in precious}
    for number, path in sorted(found, key=lambda entry: ".solverstate" not in entry[1].name):  # states first: a kill leaves none without its weights
        if number not in kept and os.path.realpath(path) not in spared:
            try:
                path.unlink()
            except OSError as reason:
                log.warning("solver.cpp:464", f"an old snapshot cannot be removed: {path}: {reason.strerror}")


def _state_of(solver: Solver, weights: str, averaged: str) -> SolverState:
    """Return the solver state. During a test, the test's data position is its start, so a resumed run repeats the test."""
    best = solver.best
    tests = [(f"test {i}", solver.tested_from.get(i, net.inputs.cursor)) for i, net in enumerate(solver.test_networks)]
    sizes, ranks = _batch_sizes(solver.network), solver.world.size
    cursors = [Cursor(layer, "train", batch, batch * sizes[layer] * ranks) for layer, batch in solver.network.inputs.cursor.items()]
    cursors += [Cursor(layer, name, batch) for name, places in tests for layer, batch in places.items()]
    value, found = (best.value, best.iteration) if best is not None else (None, None)
    return SolverState(
        solver.iter, weights, [], solver.rate.current_step, cursors, solver.seed, _kernels(solver), averaged_net=averaged, best_value=value, best_iter=found,
        ranks=ranks,
    )  # fmt: skip


def _kernels(solver: Solver) -> str:
    """Return, as JSON, the settings that affect the last bits of results: device, arithmetic, tuned tables."""
    device = solver.session.device
    return json.dumps({"device": device.name, "math": device.target.math, "tuned": device.target.tuned.digest})


def load_state(path: str) -> SolverState:
    """Read the state in `path`. Its weights files may be beside the state or at their recorded path."""
    state = read_state(path)
    state.learned_net, state.averaged_net = (_found(name, path) for name in (state.learned_net, state.averaged_net))
    return state


def _found(weights: str, state: str) -> str:
    """Return the path of the weights file that `state` names, or '' if it names none.

    The file beside the state comes first: a state in a copied folder names the original folder, whose weights may be of a later run.
    """
    if not weights:
        return ""
    beside = os.path.join(os.path.dirname(state), os.path.basename(weights))
    for path in (beside, weights):
        if os.path.exists(path):
            return path
    fact = f"the state's weights '{weights}' are neither beside the state nor at this path"
    raise Error(fact, place=state, fix=f"put {os.path.basename(weights)} beside the .solverstate")


def restore(solver: Solver, path: str, state: SolverState | None = None, learned: Sequence[Weights] = ()) -> None:
    """Continue from a state. `learned`: its weights, if they are read already.

    A state written by Caffe has no data position; data then restarts at the first record, as in Caffe.
    """
    state = state or load_state(path)
    if state.learned_net:
        weights = learned[0] if learned else read_weights(state.learned_net)
        copied = solver.network.copy_weights(weights)
        solver.boxes.restore(weights)
        if not copied and any(node.params for node in solver.network.graph.nodes):
            fact = f"no layer of the weights '{state.learned_net}' has the name of a layer of the net"
            raise Error(fact, place=path, fix="resume with the net that wrote the state")
    if solver.average is not None:
        solver.average.restart()
        if state.averaged_net:
            with solver.average.in_net():
                weights = read_weights(state.averaged_net)
                solver.network.copy_weights(weights)
                solver.boxes.restore(weights)
    if solver.best is not None:
        solver.best.value, solver.best.iteration = state.best_value, state.best_iter
    blobs = solver.history_views()
    if len(state.history) != len(blobs):
        raise Error(
            f"the state has the history of {len(state.history)} blobs, a {solver.param.type} solver of this net has {len(blobs)}", place=path,
            fix="resume with the solver type and the net that wrote the state",
        )  # fmt: skip
    for array, (parameter, ref) in zip(state.history, blobs):
        values = fit(array, parameter.shape)
        if values is None:
            raise Error(
                f"the history of parameter {parameter} is {shape_text(array.shape)} in the state, it is {shape_text(parameter.shape)} in the net", place=path,
                fix="resume with the net that wrote the state",
            )  # fmt: skip
        if ref is not None:
            solver.network.session.write(ref, values)
    if state.choices and state.choices != _kernels(solver):
        log.warning("sgd_solver.cpp:320", f"the snapshot was made with other kernels ({state.choices}, now {_kernels(solver)}): the last bits will differ")
    solver.iter = state.iter
    solver.rate.current_step = state.current_step
    positions: dict[str, dict[str, int]] = {}
    for cursor in state.cursors:
        positions.setdefault(cursor.net, {})[cursor.layer] = cursor.batch
    if state.ranks != solver.world.size:
        positions["train"] = _positions(solver, state)
    solver.network.inputs.seek(positions.get("train", {}))
    for index, network in enumerate(solver.test_networks):
        network.inputs.seek(positions.get(f"test {index}", {}))


def _positions(solver: Solver, state: SolverState) -> dict[str, int]:
    """Return the next batch of each data layer of the TRAIN net, from the records that another number of ranks has read.

    The sequence of records does not depend on the number of ranks.
    """
    ranks, result = solver.world.size, {}
    log.info("sgd_solver.cpp:320", f"The state was written by {state.ranks} rank{'s' * (state.ranks > 1)}, now there {'are' if ranks > 1 else 'is'} {ranks}")
    sizes = _batch_sizes(solver.network)
    for layer, net, batch, records in state.cursors:
        if net == "train" and layer in sizes:
            size = sizes[layer] * ranks  # of the batches of all ranks
            records = records or batch * sizes[layer] * state.ranks  # states of older versions do not have it
            result[layer] = -(-records // size)
            if result[layer] * size > records:
                fact = f"Layer '{layer}' has read {records} records, which is no multiple of {ranks} x {sizes[layer]}"
                log.warning("sgd_solver.cpp:320", f"{fact}: it skips {result[layer] * size - records}")
    return result


def _batch_sizes(network: Network) -> dict[str, int]:
    """Return the number of records in one batch of each data layer."""
    tops = {node.name: node.tops[0].shape for node in network.graph.nodes if node.name in network.inputs.sources}
    return {name: shape[0] if shape else 1 for name, shape in tops.items()}
