#!/usr/bin/env python3
"""Step time and memory under memory limits, compared with the same net without a limit, on one device.

    benchmarks/limits.py [--device SPEC] [--math M] [--steps N] [--recompute R] [--turns] [--json FILE] NET:BATCH:MIB[,MIB...] ...

Whole training steps on constant data, in rounds that alternate between the limit and no limit; medians. `overhead` is the median of the rounds' own
overheads, since other work may slow some rounds; `quartiles` are theirs. `--recompute` is that of the net without a
limit. `predicted_ms` and `predicted_overhead` are the plan's, by the device's measured speeds. `bits` says whether
all parameters are equal after three steps. `driver_mib` is the growth of the driver's figure beyond the context (NVIDIA only), `host_mib` the memory of
the host that the plan uses. `start_s` is the time until the first step ran. --turns prepares the nets side by side (turns.py); the device must hold them
all, and `driver_mib` and `start_s` are left out.
"""
import argparse
import hashlib
import json
import pathlib
import statistics
import sys
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from recompute import MIB, solver_message, step_time
from turns import in_turns, my_turn

from ocaffe import log
from ocaffe.cl.device import Device, select_device
from ocaffe.cl.rates import rates_of
from ocaffe.errors import NoRoom
from ocaffe.memory.report import fixed_bytes
from ocaffe.solver.solver import Solver

Row = dict[str, Any]


def digest(solver: Solver) -> str:
    """Return a digest of all parameters."""
    found = hashlib.sha256()
    for arrays in solver.network.parameter_arrays().values():
        for array in arrays:
            found.update(array.tobytes())
    return found.hexdigest()


def prepared(net: str, batch: int, limit: int, device: Device, alone: bool) -> tuple[Row, Solver | None]:
    """Return the row of a limit, and its Solver after three steps, None if it is refused."""
    row: Row = {"net": net, "batch": batch, "math": device.target.math, "device": device.name, "limit_mib": limit}
    device.queue.finish()
    before, began = device.free() or 0, time.perf_counter()
    try:
        solver = Solver(solver_message(net, batch), device, memory_limit=limit * MIB)
    except NoRoom as problem:
        row["refused"] = str(problem)[:200]
        return row, None
    solver.step(1)
    device.queue.finish()
    if alone:
        row["start_s"] = round(time.perf_counter() - began, 1)
    solver.step(2)
    found = solver.train_nets()[0]
    if alone:
        row["driver_mib"] = round((before - (device.free() or 0)) / MIB)
    row["plan_mib"] = round((found.plan.total + fixed_bytes([found.recording.schedule])) / MIB)
    row["host_mib"] = round(sum(found.plan.host_slabs) / MIB)
    row["recomputed"] = sum(launch.recomputed for launch in found.recording.schedule)
    row["microbatches"] = 1 if found.microbatch is None else found.microbatch.count
    return row, solver


def measure(net: str, batch: int, limits: list[int], options: argparse.Namespace) -> list[Row]:
    device = select_device(options.device, math=options.math)
    kept = Solver(solver_message(net, batch), device, recompute=options.recompute)
    kept.step(3)
    bits, rates = digest(kept), rates_of(device)
    free = kept.train_nets()[0].predicted(rates)
    pairs = [prepared(net, batch, limit, device, not options.turns) for limit in limits]
    my_turn()
    for row, solver in pairs:
        if solver is not None:
            row["bits"] = digest(solver) == bits
            prediction = solver.train_nets()[0].predicted(rates)
            row["predicted_ms"], row["predicted_waits_ms"] = round(1e3 * prediction.seconds, 2), round(1e3 * prediction.waits, 2)
            row["predicted_overhead"] = round(prediction.seconds / free.seconds - 1, 4)
            times: dict[str, list[float]] = {"kept": [], "limited": []}
            for _ in range(options.rounds):
                times["kept"].append(step_time(kept, options.steps))
                times["limited"].append(step_time(solver, options.steps))
            row["rounds"] = options.rounds
            row["kept_ms"], row["limited_ms"] = (round(1e3 * statistics.median(each), 2) for each in times.values())
            ratios = [limited / without - 1 for without, limited in zip(times["kept"], times["limited"])]
            row["overhead"] = round(statistics.median(ratios), 4)
            if len(ratios) > 1:
                row["quartiles"] = [round(each, 4) for each in statistics.quantiles(ratios, n=4)[::2]]
            solver.close()
        print(json.dumps(row), flush=True)
    kept.close()
    device.close()
    return [row for row, _ in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="+")
    parser.add_argument("--device")
    parser.add_argument("--math", default="fp32")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--recompute", choices=("none", "cheap", "auto"), default="none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    log.quiet(2)
    if options.turns and len(options.nets) > 1:
        device = select_device(options.device, math=options.math)
        rates_of(device)  # measured while nothing else runs
        device.close()
        flags = [value for value in sys.argv[1:] if value not in options.nets]
        rows = in_turns([[sys.executable, __file__, *flags, net] for net in options.nets])
    else:
        rows = []
        for each in options.nets:
            net, batch, limits = each.split(":")
            rows += measure(net, int(batch), [int(limit) for limit in limits.split(",")], options)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
