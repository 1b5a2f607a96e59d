#!/usr/bin/env python3
"""Time and memory of recomputation: the same net with `--recompute cheap` and `none`, alternating, on one device.

    benchmarks/recompute.py [--device SPEC] [--json FILE] [--steps N] NET:BATCH ...

Whole training steps (forward, backward, update) of the zoo's nets on constant data, medians of A B A B rounds. `device
MiB` is the driver's figure for the process above an empty context (NVIDIA only).
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ocaffe import log, proto  # noqa: E402
from ocaffe.cl.device import select_device  # noqa: E402
from ocaffe.compiler.network import phase_net  # noqa: E402
from ocaffe.formats.text import read_net  # noqa: E402
from ocaffe.formats.upgrade import upgrade_net  # noqa: E402
from ocaffe.memory.report import fixed_bytes  # noqa: E402
from ocaffe.solver.solver import Solver  # noqa: E402

MIB = 1 << 20
BOX = (0.0, 1.0, 0.0, 0.2, 0.3, 0.6, 0.7, 0.0)  # image, class, instance, corners, difficult


def constant(net, tops: list[str], shapes: Sequence[tuple[int, ...]], values: Sequence[float]) -> None:
    """Add a layer whose tops are constants."""
    layer = net.layer.add(name="_".join(tops), type="DummyData", top=tops)
    for dims, value in zip(shapes, values):
        layer.dummy_data_param.shape.add().dim.extend(dims)
        layer.dummy_data_param.data_filler.add(type="constant", value=value)


def solver_message(net: str, batch: int):
    """Return the SolverParameter of a zoo net on constant data."""
    message = phase_net(upgrade_net(read_net(str(ROOT / f"zoo/{net}/train_val.prototxt"))), proto.TRAIN)
    whole = proto.NetParameter(name=message.name)
    for layer in message.layer:
        if layer.type == "Data":
            crop = layer.transform_param.crop_size or 28
            channels = 3 if layer.transform_param.crop_size else 1
            constant(whole, list(layer.top), [(batch, channels, crop, crop), (batch,)], [0.5, 1.0])
        elif layer.type == "DenseImageData":
            constant(whole, list(layer.top), 2 * [(batch, 1, 512, 512)], [0.5, 1.0])
        elif layer.type == "AnnotatedData":
            size, (data, label) = layer.transform_param.resize_param[0].height, layer.top
            constant(whole, [data], [(batch, 3, size, size)], [0.5])
            columns = [f"{label}_{index}" for index in range(len(BOX))]
            constant(whole, columns, len(BOX) * [(1, 1, 4, 1)], BOX)
            joined = whole.layer.add(name=label, type="Concat", bottom=columns, top=[label])
            joined.concat_param.axis = 3
        else:
            whole.layer.add().CopyFrom(layer)
    param = proto.SolverParameter(base_lr=1e-4, lr_policy="fixed", momentum=0.9, weight_decay=5e-4, max_iter=1 << 30, random_seed=1, snapshot_after_train=False)
    param.net_param.CopyFrom(whole)
    return param


def solver_of(net: str, batch: int, device, recompute: str) -> Solver:
    return Solver(solver_message(net, batch), device, recompute=recompute)


def used_mib() -> float:
    """Memory that this process holds on an NVIDIA device, in MiB; NaN elsewhere."""
    try:
        text = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True, check=True).stdout
        return float(text.splitlines()[0])
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError):
        return float("nan")


def step_time(solver: Solver, steps: int) -> float:
    """Seconds per step; the queue is empty before and after."""
    queue = solver.session.device.queue
    queue.finish()
    started = time.perf_counter()
    solver.step(steps)
    queue.finish()
    return (time.perf_counter() - started) / steps


def measure(net: str, batch: int, spec: str | None, steps: int) -> dict[str, object]:
    device = select_device(spec)
    row: dict[str, object] = {"net": net, "batch": batch, "device": device.name}
    times: dict[str, list[float]] = {"cheap": [], "none": []}
    solvers = {}
    for kind in times:
        before = used_mib()
        solvers[kind] = solver_of(net, batch, device, kind)
        solvers[kind].step(2)
        device.queue.finish()
        variant = solvers[kind].train_nets()[0]
        row[f"plan_{kind}_mib"] = (variant.plan.total + fixed_bytes([variant.recording.schedule])) / MIB
        row[f"device_{kind}_mib"] = used_mib() - before
    for _ in range(5):
        for kind, solver in solvers.items():
            times[kind].append(step_time(solver, steps))
    for kind, solver in solvers.items():
        row[f"{kind}_ms"] = 1e3 * statistics.median(times[kind])
        solver.close()
    device.close()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="+")
    parser.add_argument("--device")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json")
    options = parser.parse_args()
    log.quiet(2)
    if len(options.nets) > 1:  # one process each, so that the memory of the one before is free
        rows = []
        for net in options.nets:
            command = [sys.executable, __file__, net, "--steps", str(options.steps), *(["--device", options.device] if options.device else [])]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
            rows.append(json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"net": net, "error": done.stderr[-500:]})
            print(json.dumps(rows[-1]), flush=True)
        if options.json:
            pathlib.Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
        return
    net, batch = options.nets[0].split(":")
    print(json.dumps(measure(net, int(batch), options.device, options.steps)))


if __name__ == "__main__":
    main()
