"""Trainings on the ranks that run this module: `mpiexec -n 2 python -m tests.parallel.trainings FOLDER ITERATIONS CASE...`.

All ranks together have the same batch. Each rank writes its results to FOLDER. The named cases are repeated, and run with each carrier.
"""
from __future__ import annotations

import json
import pathlib
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.cl.device import Device, select_device
from ocaffe.errors import Error
from ocaffe.formats.blob import array_to_datum
from ocaffe.formats.text import parse
from ocaffe.parallel import carriers, host_exchange
from ocaffe.parallel.world import Agreement, World, join
from ocaffe.solver import solver as solvers
from ocaffe.solver.solver import Solver

BATCH = 12  # of all ranks together
ITERATIONS = 10
SAVED = 4  # iteration of a snapshot
RECORDS = 101
TESTS = 5  # batches
SMALL = 1 << 9  # floats of a round, so that a bucket takes several rounds

# Random crops, mirror, dropout, and two layers with the same weights.
NET = """
name: "ranks"
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN }
        transform_param { crop_size: 8 mirror: true scale: 0.0078125 mean_value: 112 } data_param { source: "db" batch_size: BATCH backend: LMDB } }
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TEST }
        transform_param { crop_size: 8 scale: 0.0078125 mean_value: 112 } data_param { source: "db" batch_size: 7 backend: LMDB } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 6 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "ip1" type: "InnerProduct" bottom: "conv" top: "ip1" inner_product_param { num_output: 24 weight_filler { type: "xavier" } } }
layer { name: "drop" type: "Dropout" bottom: "ip1" top: "ip1" }
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2" param { name: "w" } param { name: "b" }
        inner_product_param { num_output: 24 weight_filler { type: "xavier" } } }
layer { name: "tanh" type: "TanH" bottom: "ip2" top: "tanh" }
layer { name: "ip3" type: "InnerProduct" bottom: "tanh" top: "ip3" param { name: "w" } param { name: "b" }
        inner_product_param { num_output: 24 weight_filler { type: "xavier" } } }
layer { name: "score" type: "InnerProduct" bottom: "ip3" top: "score" inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "score" bottom: "label" top: "accuracy" include { phase: TEST } }
"""
SOLVER = 'lr_policy: "step" gamma: 0.5 stepsize: 40 weight_decay: 0.001 display: 2 max_iter: 1000000 random_seed: 5 snapshot_prefix: "x" '
SOLVER += f"test_iter: {TESTS} test_interval: {ITERATIONS - 2} "
SOLVERS = {
    "SGD": "base_lr: 0.02 momentum: 0.9",
    "Nesterov": "base_lr: 0.02 momentum: 0.9",
    "AdaGrad": "base_lr: 0.02 delta: 0.01",
    "RMSProp": "base_lr: 0.002 rms_decay: 0.9 delta: 1e-3",
    "AdaDelta": "base_lr: 0.05 momentum: 0.95 delta: 0.01",
    "Adam": "base_lr: 0.002 momentum: 0.9 momentum2: 0.999 delta: 1e-3",
}
CASES = {kind: f'type: "{kind}" {text}' for kind, text in SOLVERS.items()}
ONE = 'filler { type: "constant" value: 1 }'
NORMS = ("BatchNorm", f"Scale scale_param {{ {ONE} bias_term: true }}", f"BatchNorm batch_norm_param {{ scale_{ONE} }}",
         f"BN bn_param {{ momentum: 0.9 slope_{ONE} }}", f"BN bn_param {{ bn_mode: LEARN scale_{ONE} }}")  # fmt: skip
NORM = "".join(
    f'layer {{ name: "norm {n}" type: "{norm.split()[0]}" bottom: "conv" top: "conv" {norm.partition(" ")[2]} }}\n' for n, norm in enumerate(NORMS)
)
CASES["synchronized statistics"] = f"{CASES['SGD']} synchronize_statistics: true"
CASES["passes and clipping"] = f"{CASES['SGD']} iter_size: 2 clip_gradients: 0.5"


def write_records(folder: pathlib.Path, wrong: int = -1) -> None:
    """Write the records that the trainings read. Record `wrong` is none."""
    import lmdb

    rng = np.random.default_rng(1)
    environment = lmdb.open(str(folder / "db"), map_size=1 << 22, lock=False)
    with environment.begin(write=True) as transaction:
        for number in range(RECORDS):
            label = int(rng.integers(0, 4))
            image = rng.integers(0, 128, (3, 10, 10)) + 32 * label
            datum = array_to_datum(image.astype(np.uint8), label).SerializeToString()
            transaction.put(b"%08d" % number, datum if number != wrong else b"\xff\xff nothing")
    environment.close()


def solver_of(case: str, device: Device, world: World, resume: str | None = None, bits: int = 32) -> Solver:
    param = parse(f"{SOLVER} {CASES[case]}", proto.SolverParameter, "solver.prototxt")
    net = NET.replace("BATCH", str(BATCH // world.size))
    if param.synchronize_statistics:
        net = net.replace('layer { name: "relu"', NORM + 'layer { name: "relu"')
    param.net_param.CopyFrom(parse(net, proto.NetParameter, "net.prototxt"))
    param.snapshot_prefix = f"{case} by {world.size}"
    return Solver(param, device, world=world, exchange="mpi", gradient_bits=bits, resume=resume)


def trained(case: str, device: Device, world: World, iterations: int, resume: str | None = None, bits: int = 32) -> dict[str, np.ndarray]:
    """Train up to an iteration, and return the parameters, the history, and the values of the log. Write a snapshot of iteration SAVED."""
    solver = solver_of(case, device, world, resume, bits)
    records: list[dict[str, Any]] = []
    solver.on_record = records.append
    try:
        if not resume:
            solver.step(SAVED)
            solver.snapshot()
        solver.step(iterations - solver.iter)
        result = {f"{name}/{i}": blob for name, blobs in solver.network.parameter_arrays().items() for i, blob in enumerate(blobs)}
        result |= {f"history/{i}": blob for i, blob in enumerate(solver.history_arrays())}
    finally:
        solver.close()
    result["train"] = np.array([record["loss"] for record in records if record["phase"] == "train"])
    result["test"] = np.array([value for record in records if record["phase"] == "test" for value in record["outputs"].values()])
    return result


def agreed(world: World) -> list[int]:
    """Return the results of an Agreement, in which the last rank has a request in call 1, and rank 0 in the last call."""
    agreement = Agreement(world)
    mine = [0, 1 if world.rank == world.size - 1 else 0, 0, 2 if world.first else 0]
    return [*map(agreement, mine), agreement.finish(), agreement.finish()]


def saved_by_clock(device: Device, world: World) -> list[int]:
    """Return the iterations of the snapshots that snapshot_interval_seconds gives, if each iteration takes a second and a snapshot is due after three."""
    solver = solver_of("SGD", device, world)
    solver.param.snapshot_interval_seconds, solver._saved = 3, 0.0
    real, solvers.time = solvers.time, types.SimpleNamespace(monotonic=lambda: solver.iter)  # type: ignore[assignment]
    saved = []
    write = solver.snapshot

    def snapshot() -> str:
        saved.append(solver.iter)
        return write()

    solver.snapshot = snapshot  # type: ignore[method-assign]
    try:
        solver.step(ITERATIONS)
    finally:
        solvers.time = real
        solver.close()
    return saved


def statistics(device: Device, world: World, average: bool) -> list[list[float]]:
    """Return the running means of a BatchNorm on all ranks, after some iterations and a test with or without average_statistics."""
    param = parse(f"{SOLVER} {CASES['SGD']}", proto.SolverParameter, "solver.prototxt")
    layer = 'layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }\nlayer { name: "relu"'
    param.net_param.CopyFrom(parse(NET.replace("BATCH", str(BATCH // world.size)).replace('layer { name: "relu"', layer), proto.NetParameter, "net.prototxt"))
    param.average_statistics = average
    solver = Solver(param, device, world=world, exchange="mpi")
    try:
        solver.step(3)
        solver.test_all()
        return world.gather(solver.network.parameter_arrays()["bn"][0].tolist())
    finally:
        solver.close()


def text_of(call: Callable[[], object]) -> str:
    try:
        call()
    except Error as problem:
        return str(problem)
    return ""


def main(folder: pathlib.Path, iterations: int, repeated: list[str]) -> None:
    world = join()
    device = select_device(None, None)
    with world.together():
        usual = host_exchange.carrier_of, carriers.ROUND
        ways = {"window": usual, "again": usual, "messages": (carriers.Messages, SMALL)} if world.several else {"window": usual}
        for way, (carrier, floats) in ways.items():
            host_exchange.carrier_of, host_exchange.ROUND, carriers.ROUND = carrier, floats, floats  # type: ignore[assignment, misc]
            for case in CASES if way == "window" else repeated:
                np.savez(folder / f"{case} {way} {world.size} {world.rank}.npz", **trained(case, device, world, iterations))
        if world.several:
            for case in ("SGD", "synchronized statistics"):
                np.savez(folder / f"{case} sixteen {world.size} {world.rank}.npz", **trained(case, device, world, iterations, bits=16))
        for ranks in (1, 2):
            if world.size > ranks:
                result = trained("SGD", device, world, iterations, resume=f"SGD by {ranks}_iter_{SAVED}.solverstate")
                np.savez(folder / f"SGD resumed from {ranks} {world.size} {world.rank}.npz", **result)
        facts = {
            "agreed": agreed(world),
            "saved": saved_by_clock(device, world),
            "statistics": [statistics(device, world, average) for average in (False, True)],
            "equal": text_of(lambda: world.check_equal({"first": 1, "second": [2.0]})),
            "unequal": text_of(lambda: world.check_equal({"first": 1, "second": world.rank == world.size - 1})),
            "interleaved": world.interleave([f"{world.rank}{n}" for n in range(2 if world.first else 1)]),
            "mean": world.mean(np.float32([world.rank, 0.1])).tolist(),
            "share": list(world.share.positions(1, 2)),
        }
        (folder / f"facts {world.size} {world.rank}.json").write_text(json.dumps(facts))
    device.close()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
