#!/usr/bin/env python3
"""Where the time of a training step goes: the launches of a zoo net's schedule with their times on the device, grouped by kernel.

    benchmarks/launches.py [--device SPEC] [--math MATH] [--recompute auto|cheap|none] [--top N] [--json FILE] [--html FILE] NET:BATCH

`ocaffe time --solver --profile` for the zoo's nets on constant data.
"""
import argparse
import json
import pathlib
import sys
from collections import defaultdict

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.recompute import solver_of  # noqa: E402
from ocaffe import log  # noqa: E402
from ocaffe.cl.device import select_device  # noqa: E402
from ocaffe.profiling.profile import measure  # noqa: E402
from ocaffe.profiling.roofline import page  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("net")
    parser.add_argument("--device")
    parser.add_argument("--math")
    parser.add_argument("--recompute", default="auto", choices=("auto", "cheap", "none"))
    parser.add_argument("--top", type=int, default=30)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json")
    parser.add_argument("--html")
    options = parser.parse_args()
    log.quiet(2)
    net, batch = options.net.split(":")
    solver = solver_of(net, int(batch), select_device(options.device, math=options.math), options.recompute)
    profile = measure(solver.session, options.net, solver.network.graph.nodes, solver.step, options.steps)
    print("\n".join(profile.summary()))
    groups = defaultdict(lambda: [0.0, 0, 0, 0])
    for launch in profile.launches:
        name = launch.kernel if launch.kind != "generated" else launch.kernel[:3] if launch.kernel.startswith(("sum:", "max:")) else "pointwise"
        group = groups[launch.phase, name]
        for index, amount in enumerate((launch.ms, 1, launch.bytes, launch.flops)):
            group[index] += amount
    for (phase, name), (ms, count, moved, flops) in sorted(groups.items(), key=lambda item: -item[1][0]):
        rate = f"{1e-6 * flops / ms:9.0f} GFLOP/s" if flops else ""
        print(f"  {phase:<9}{name:<40}{count:5d}{ms:9.3f} ms {100 * ms / profile.device_ms:5.1f} %{1e-6 * moved / ms:8.0f} GB/s{rate}")
    print("\n".join([*profile.launch_table()][: options.top + 1]))
    for path, text in ((options.json, json.dumps(profile.record(), indent=1)), (options.html, page(profile))):
        if path:
            pathlib.Path(path).write_text(text + "\n")


if __name__ == "__main__":
    main()
