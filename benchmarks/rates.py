#!/usr/bin/env python3
"""The costs of kernels that predict the time of a launch (ocaffe/ir/rates.py): measure nets, fit, and compare predicted with measured steps.

    benchmarks/rates.py measure --json FILE [--device SPEC] [--math MATH] [--steps N] [--turns] NET:BATCH ...
    benchmarks/rates.py fit [--write ocaffe/kernels/rates_nvidia.json] FILE ...

`measure` trains nets of the zoo on random data that stay on the device. It writes every launch of a step: its kernel, its work and its time, and the time of
a whole step without profiling. --turns prepares the nets side by side (turns.py); the device must hold them all. `fit` reads such files, of one kind of
device. Of a net in several files, the shortest step counts. It prints the error of each net twice: with all nets in the fit, and without this net and its
other batch sizes. Costs of an arithmetic that no file has stay as they are.
"""
import argparse
import json
import pathlib
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import nnls

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from turns import in_turns, my_turn  # noqa: E402

import ocaffe  # noqa: E402
from ocaffe import log, proto  # noqa: E402
from ocaffe.cl.device import select_device  # noqa: E402
from ocaffe.cl.peaks import launch_seconds, measure_peaks  # noqa: E402
from ocaffe.compiler.network import phase_net  # noqa: E402
from ocaffe.formats.text import read_net  # noqa: E402
from ocaffe.ir.launch import HOST, Launch  # noqa: E402
from ocaffe.ir.rates import OTHER, PRODUCT, Cost, name_of, work_of  # noqa: E402

CLASSES, OBJECTS, ROUNDS = 10, 3, 3
SEGMENTED = (256, 256)  # height and width of images for segmentation
REPEATS = 6  # of a fit, with weights from the one before
PULL = 0.3  # of the usual costs on those of a kernel, in launches
LEAST = np.array([0.0, 0.0, 0.0, 0.05, 0.05])  # of Cost: more work must take longer, also where all measured launches are small
HOST_BOUND = 1.15  # a step this many times as long as its launches waits for the host
MANY = 100  # launches: in steps of few launches the work between steps takes part of the time


def inputs(layer: Any, batch: int) -> list[np.ndarray]:
    """Return random tops of a data layer: images, and classes, maps of classes or SSD's rows of boxes."""
    rng = np.random.default_rng(0)
    transform = layer.transform_param
    if layer.type == "AnnotatedData":
        height, width = transform.resize_param[0].height, transform.resize_param[0].width
        corner, size = rng.uniform(0, 0.5, (batch * OBJECTS, 2)), rng.uniform(0.08, 0.5, (batch * OBJECTS, 2))
        numbers = np.arange(batch * OBJECTS)
        rows = [numbers // OBJECTS, rng.integers(1, CLASSES, len(numbers)), numbers % OBJECTS, *corner.T, *(corner + size).T, 0 * numbers]
        return [rng.standard_normal((batch, 3, height, width), np.float32), np.stack(rows, 1)[None, None]]
    if layer.type == "DenseImageData":
        return [rng.standard_normal((batch, 3, *SEGMENTED), np.float32), np.ones((batch, 1, *SEGMENTED))]
    size = transform.crop_size or 28
    return [rng.standard_normal((batch, 3 if transform.crop_size else 1, size, size), np.float32), rng.integers(0, CLASSES, batch)]


def solver_of(net: str, batch: int, device: Any) -> Any:
    """Return a solver of a zoo net, whose data are on the device."""
    message = phase_net(read_net(str(ROOT / f"zoo/{net}/train_val.prototxt")), proto.TRAIN)
    given = proto.NetParameter(name=message.name)
    tops: dict[str, np.ndarray] = {}
    for layer in message.layer:
        if layer.type in ("Data", "AnnotatedData", "DenseImageData"):
            data = given.layer.add(name=layer.name, type="Input", top=layer.top)
            for top, array in zip(layer.top, inputs(layer, batch), strict=True):
                data.input_param.shape.add(dim=array.shape)
                tops[top] = array
        else:
            given.layer.add().CopyFrom(layer)
    param = proto.SolverParameter(base_lr=1e-5, lr_policy="fixed", momentum=0.9, weight_decay=5e-4, max_iter=1 << 30, snapshot_after_train=False)
    param.net_param.CopyFrom(given)
    solver = ocaffe.SGDSolver(param, keep=[], device=device)
    for top, array in tops.items():
        solver.net.blobs[top].data[...] = array
    return solver


def measure(net: str, batch: int, device: Any, steps: int, found: dict[str, Any]) -> None:
    """Add the launches of a step with their times, the seconds of a step, and the peaks of the device meanwhile."""
    with solver_of(net, batch, device) as solver:
        session, finish = solver._solver.session, device.queue.finish
        solver.step(2)
        finish()
        my_turn()
        if "launch" not in found:
            found["launch"] = launch_seconds(device, session.programs)
        best: dict[Launch, float] = {}
        before, taken = measure_peaks(device, session.programs), []
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            solver.step(steps)
            finish()
            taken.append((time.perf_counter() - begin) / steps)
            with session.timed() as timeline:
                solver.step(1)
                finish()
                timeline.collect()
            for launch, seconds in timeline.seconds().items():
                best[launch] = min(seconds, best.get(launch, seconds))
        after = measure_peaks(device, session.programs)
        launches = [described(launch, seconds) for launch, seconds in best.items() if not isinstance(launch, HOST)]
    flops, bandwidth = 5e8 * (before.gflops + after.gflops), 5e8 * (before.gbytes + after.gbytes)
    found["nets"].append({"net": net, "batch": batch, "flops": flops, "bandwidth": bandwidth, "step": min(taken), "launches": launches})
    total = sum(launch["seconds"] for launch in launches)
    print(f"{net}:{batch} {found['math']}: step {1e3 * min(taken):.3f} ms, launches {1e3 * total:.3f} ms ({len(launches)})", flush=True)


def described(launch: Launch, seconds: float) -> dict[str, Any]:
    """Return a measured launch as plain data."""
    work = work_of(launch)
    return {"kernel": name_of(launch, work), "work": work, "operands": len(launch.operands), "seconds": seconds}


class Sample(NamedTuple):
    """A measured launch: its costs for factors of 1 (Cost), in seconds, and its time."""

    kernel: str
    parts: np.ndarray
    seconds: float


def samples(found: dict[str, Any], net: dict[str, Any]) -> list[Sample]:
    """Return the launches of a measured net. On a CPU the host's work between them takes time of the same cores, and each gets an equal part of it."""
    between = net["step"] - sum(each["seconds"] for each in net["launches"]) if on_cpu(found) else 0.0
    part = max(0.0, between) / len(net["launches"])
    flops, bandwidth = found["flops"], found["bandwidth"]
    scale = np.array([flops, flops, bandwidth, bandwidth])
    return [Sample(each["kernel"], np.array([found["launch"], *(each["work"] / scale)]), each["seconds"] + part) for each in net["launches"]]


def fitted(all_samples: list[Sample]) -> dict[str, np.ndarray]:
    """Return the factors of Cost by kernel, and those of PRODUCT and OTHER. None is below LEAST.

    The squared error of a launch counts in proportion to 1 / (its expected time * (half of it + a start)). Kernels of few launches stay near PRODUCT or OTHER.
    """
    groups: dict[str, list[Sample]] = defaultdict(list)
    kernels: dict[str, list[Sample]] = defaultdict(list)
    for sample in all_samples:
        groups[PRODUCT if sample.parts[1] else OTHER].append(sample)
        kernels[sample.kernel].append(sample)
    usual = {name: _solved(group, np.zeros(len(Cost._fields)), 0.0) for name, group in groups.items()}
    return usual | {name: _solved(group, usual[PRODUCT if group[0].parts[1] else OTHER], PULL) for name, group in kernels.items()}


def _solved(group: list[Sample], usual: np.ndarray, pull: float) -> np.ndarray:
    matrix, seconds = np.array([sample.parts for sample in group]), np.array([sample.seconds for sample in group])
    expected, found = seconds, usual
    for _ in range(REPEATS):  # weights by measured times would favour launches that happened to be fast
        weights = 1 / np.sqrt(expected * (expected / 2 + matrix[:, 0]))
        weighted = matrix * weights[:, None]
        held = np.diag(pull * np.sqrt((weighted**2).sum(0) / len(group)))
        above = np.concatenate([(seconds - matrix @ LEAST) * weights, held @ (usual - LEAST)])
        found = LEAST + nnls(np.vstack([weighted, held]), above)[0]
        expected = np.maximum(matrix @ found, 0.1 * seconds)
    return np.asarray(found)


def predicted(costs: dict[str, np.ndarray], found: dict[str, Any], net: dict[str, Any], host: Sequence[float]) -> float:
    """Return the predicted seconds of a step."""
    each = [costs.get(sample.kernel, costs[PRODUCT if sample.parts[1] else OTHER]) @ sample.parts for sample in samples(found, net)]
    return float(max(sum(each), (host[0] * len(each) + host[1] * operands(net)) * found["launch"]))


def enqueued(files: list[dict[str, Any]], before: Sequence[float]) -> tuple[float, ...]:
    """Return the host's time per launch and per operand, as multiples of the time of a launch; `before` if no net waits for the host.

    They follow from steps that take much longer than their launches, and from steps that the result would make too long. On a CPU they are those of an
    empty launch: the times of launches have the host's part.
    """
    if on_cpu(files[0]):
        return 1.0, 0.0
    rows = np.array([(len(net["launches"]) * file["launch"], operands(net) * file["launch"], net["step"]) for file in files for net in file["nets"]])
    used = np.array([
        net["step"] > HOST_BOUND * sum(each["seconds"] for each in net["launches"]) and len(net["launches"]) >= MANY for file in files for net in file["nets"]
    ])  # fmt: skip
    if used.sum() < 2:
        return tuple(before)
    for _ in range(REPEATS):
        found = nnls(rows[used, :2] / rows[used, 2:], np.ones(used.sum()))[0]
        used |= rows[:, :2] @ found > rows[:, 2]
    return float(f"{found[0]:.2g}"), float(f"{found[1]:.2g}")


def on_cpu(found: dict[str, Any]) -> bool:
    """Return whether the measured device is a CPU."""
    return "CPU)" in found["device"]


def operands(net: dict[str, Any]) -> int:
    """Return the number of operands of all launches."""
    return sum(each["operands"] for each in net["launches"])


def merged(paths: list[str]) -> list[dict[str, Any]]:
    """Return the files, one per device and arithmetic, with medians of the peaks. Of a net that is in several, the shortest step counts."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for path in paths:
        file = json.loads(pathlib.Path(path).read_text())
        first = found.setdefault((file["device"], file["math"]), {**file, "nets": []})
        first["launch"] = min(first["launch"], file["launch"])
        best = {(net["net"], net["batch"]): net for net in first["nets"]}
        for net in file["nets"]:
            key = net["net"], net["batch"]
            best[key] = min(best.get(key, net), net, key=lambda each: each["step"])
        first["nets"] = list(best.values())
    for file in found.values():
        for name in ("flops", "bandwidth"):
            file[name] = statistics.median(net[name] for net in file["nets"])
    return list(found.values())


def fit(paths: list[str], write: str) -> None:
    """Fit each arithmetic, print the errors, and write the costs."""
    files = merged(paths)
    before: dict[str, Any] = json.loads(pathlib.Path(write).read_text()) if write and pathlib.Path(write).exists() else {"host": [0.0, 0.0], "costs": {}}
    host = enqueued(files, before["host"])
    print(f"host: {host[0]} launches per launch, and {host[1]} per operand")
    tables = {}
    for file in files:
        nets = file["nets"]
        print(f"{file['device']}, {file['math']}: {len(nets)} nets\n{'net':<20}{'step ms':>9}{'launches':>10}{'fitted':>9}{'held out':>9}")
        whole = fitted([sample for net in nets for sample in samples(file, net)])
        errors = []
        for net in nets:
            held = fitted([sample for other in nets if other["net"] != net["net"] for sample in samples(file, other)])
            errors.append([predicted(used, file, net, host) / net["step"] - 1 for used in (whole, held)])
            total = sum(each["seconds"] for each in net["launches"])
            name = f"{net['net']} {net['batch']}"
            print(f"{name:<20}{1e3 * net['step']:>9.2f}{1e3 * total:>10.2f}{errors[-1][0]:>+9.1%}{errors[-1][1]:>+9.1%}")
        middle = np.mean(np.abs(errors), 0)
        print(f"{'mean of absolutes':<39}{middle[0]:>9.1%}{middle[1]:>9.1%}")
        tables[file["math"]] = ",\n".join(rows_of(whole))
    if write:
        tables = {math: ",\n".join(rows_of(costs)) for math, costs in before["costs"].items()} | tables
        costs = ",\n".join(f'  "{math}": {{\n{rows}\n  }}' for math, rows in tables.items())
        names = json.dumps(sorted({file["device"].partition("  ")[2] for file in files}))
        pathlib.Path(write).write_text(f'{{\n "measured": {names},\n "host": {json.dumps(host)},\n "costs": {{\n{costs}\n }}\n}}\n')


def rows_of(costs: Mapping[str, Iterable[float]]) -> list[str]:
    return [f'   "{name}": {json.dumps([float(f"{value:.3g}") for value in values])}' for name, values in sorted(costs.items())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("nets", nargs="+")
    measuring.add_argument("--device", default="")
    measuring.add_argument("--math", default="fp32")
    measuring.add_argument("--steps", type=int, default=5)
    measuring.add_argument("--turns", action="store_true")
    measuring.add_argument("--json", required=True)
    fitting = commands.add_parser("fit")
    fitting.add_argument("files", nargs="+")
    fitting.add_argument("--write", default="")
    options = parser.parse_args()
    if options.command == "fit":
        fit(options.files, options.write)
        return
    log.quiet(2)
    if options.turns and len(options.nets) > 1:
        command = [sys.executable, __file__, "measure", "--device", options.device, "--math", options.math, "--steps", str(options.steps), "--json"]
        parts = [f"{options.json}.{index}" for index in range(len(options.nets))]
        in_turns([[*command, part, net] for part, net in zip(parts, options.nets)])
        found = merged(parts)[0]
    else:
        device = select_device(options.device or None, math=options.math)
        found = {"device": str(device.info), "math": options.math, "nets": []}
        for net in options.nets:
            name, batch = net.split(":")
            measure(name, int(batch), device, options.steps, found)
    pathlib.Path(options.json).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
