#!/usr/bin/env python3
"""Where the time of a training step goes: every launch of a zoo net's schedule with its time on the device, grouped by kernel.

    benchmarks/launches.py [--device SPEC] [--recompute cheap|none] [--top N] [--json FILE] NET:BATCH

Times are the profiling events of one queue, medians of the steps; bytes are those of all operands, once for each.
"""
import argparse
import json
import pathlib
import statistics
import sys
from collections import defaultdict

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.recompute import solver_of  # noqa: E402
from ocaffe import log  # noqa: E402
from ocaffe.cl.device import select_device  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("net")
    parser.add_argument("--device")
    parser.add_argument("--recompute", default="cheap", choices=("cheap", "none"))
    parser.add_argument("--top", type=int, default=30)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json")
    options = parser.parse_args()
    log.quiet(2)
    device = select_device(options.device)
    cl = device.cl
    net, batch = options.net.split(":")
    solver = solver_of(net, int(batch), device, options.recompute == "cheap")
    solver.step(2)
    device.queue.finish()
    device.queue = cl.CommandQueue(device.context, device.cl_device, properties=cl.command_queue_properties.PROFILING_ENABLE)
    tape = solver._train_variants()[0].tape
    times: list[list[float]] = [[] for _ in tape.schedule]
    for step in range(options.steps):
        events = []
        for index, action in enumerate(tape._actions):
            if type(action) is tuple:
                kernel, size, local = action
                kernel = kernel[step % len(kernel)] if type(kernel) is list else kernel
                events.append((index, cl.enqueue_nd_range_kernel(device.queue, kernel, size, local)))
            else:
                action(step)
        device.queue.finish()
        for index, event in events:
            times[index].append((event.profile.end - event.profile.start) * 1e-6)
    rows = []
    for launch, taken in zip(tape.schedule, times):
        if taken:
            moved = sum(op.ref.nbytes * (2 if op.access.value == "rw" else 1) for op in launch.operands)
            call = launch.final()
            rows.append({"phase": launch.phase, "layer": launch.layer, "kernel": launch.what if call.generated else f"{call.program}.{call.function}",
                         "ms": statistics.median(taken), "mb": moved / 1e6, "gflop": launch.flops / 1e9, "size": call.size,
                         "generated": call.generated})  # fmt: skip
    total = sum(row["ms"] for row in rows)
    print(f"{options.net} {options.recompute}: {len(rows)} launches, {total:.2f} ms on {device.name}")
    groups = defaultdict(lambda: [0.0, 0, 0.0])
    for row in rows:
        name = row["kernel"] if not row["generated"] else row["kernel"][:3] if row["kernel"].startswith(("sum", "max")) else "pointwise"
        group = groups[row["phase"], name]
        group[0] += row["ms"]
        group[1] += 1
        group[2] += row["mb"]
    for (phase, name), (ms, count, mb) in sorted(groups.items(), key=lambda item: -item[1][0]):
        print(f"  {phase:<9}{name:<40}{count:5d}{ms:9.3f} ms {100 * ms / total:5.1f} %{mb / ms if ms else 0:8.0f} GB/s")
    for row in sorted(rows, key=lambda row: -row["ms"])[: options.top]:
        print(f"  {row['ms']:8.3f} ms {row['mb'] / row['ms']:7.0f} GB/s {row['phase']:<9}{row['layer']:<24}{row['size']!s:<24}{row['kernel'][:100]}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=0) + "\n")


if __name__ == "__main__":
    main()
