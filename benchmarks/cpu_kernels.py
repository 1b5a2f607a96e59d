#!/usr/bin/env python3
"""Rates of the CPU class kernels, compared with PyTorch's (oneDNN, MKL): matrix products, and every convolution of the zoo's nets in its three directions.

    benchmarks/cpu_kernels.py [--device SPEC] [--nets NET ...] [--only TEXT ...] [--threads N] [--no-torch] [--patience S] [--json FILE]

GFLOP/s of the direct algorithm, the least time of many runs on one set of buffers; `of peak`: the share of the rate of
multiply-adds in registers in this process. PyTorch's figure is the better of both memory formats. The last line is
about all convolutions: each layer's time counts as often as the nets have it; `median`: half of that time is spent in
layers that reach less of the peak. --json adds its rows to those of the file. `--threads 1` compares single cores:
limit the runtime too, with DPCPP_CPU_NUM_CUS=1 (Intel) or POCL_MAX_PTHREAD_COUNT=1 (PoCL).
"""
from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from resident import BATCHES, ROOT, resident  # first: it makes ocaffe importable

import numpy as np  # isort: skip
from gpu_kernels import Runner, backward_data, backward_filter, forward, operands, recorded  # isort: skip

from ocaffe import log, proto
from ocaffe.cl.device import select_device
from ocaffe.cl.program import ProgramKey
from ocaffe.graph.build import build
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.convolution import convolution
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.matmul.gemm import gemm

clock = time.perf_counter
SIZES = (128, 256, 512, 1024, 2048, 4096)

PEAK = """
#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
typedef PASTE(float, WIDTH) vec;
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(vec))) void peak(global float* out, float a, float b, int steps) {
  vec s[12];
  _Pragma("unroll") for (int i = 0; i < 12; i++) s[i] = (vec)(a * i);
  const vec x = (vec)(a), y = (vec)(b);
  for (int k = 0; k < steps; k++) _Pragma("unroll") for (int i = 0; i < 12; i++) s[i] = s[i] * x + y;
  vec total = s[0];
  _Pragma("unroll") for (int i = 1; i < 12; i++) total += s[i];
  float lanes[WIDTH];
  PASTE(vstore, WIDTH)(total, 0, lanes);
  for (int i = 1; i < WIDTH; i++) lanes[0] += lanes[i];
  out[get_global_id(0)] = lanes[0];
}
"""


@dataclass
class Row:
    name: str
    gflop: float
    count: int
    ms: float = 0.0
    torch_ms: float = 0.0
    peak: float = 0.0  # GFLOP/s of multiply-adds in registers

    @property
    def share(self) -> float:
        """The share of the peak."""
        return 1e3 * self.gflop / self.ms / self.peak


patience = 0.4  # seconds for which a measurement is repeated


def median_share(rows: list[Row]) -> float:
    """The share of the peak below which half of the time of all layers is spent."""
    half, spent = sum(row.ms * row.count for row in rows) / 2, 0.0
    for row in sorted(rows, key=lambda row: row.share):
        spent += row.ms * row.count
        if spent >= half:
            return row.share
    return 0.0


def least(work: Callable[[], Any]) -> float:
    """The least time of several runs of `work`, in seconds."""
    work()
    times: list[float] = []
    end = time.perf_counter() + patience
    while time.perf_counter() < end or len(times) < 4:
        begin = clock()
        work()
        times.append(clock() - begin)
    return min(times)


class CpuRunner(Runner):
    def repeated(self, run: Callable[[], float]) -> float:
        return least(run)

    def peak(self) -> float:
        """GFLOP/s of multiply-adds in registers, on all of the runtime's threads."""
        cl, width, items, steps = self.cl, self.device.target.vector_width, 4 * self.device.target.compute_units, 1 << 18
        key, out = ProgramKey(PEAK, (("WIDTH", str(width)),)), cl.Buffer(self.device.context, cl.mem_flags.READ_WRITE, 4 * items)
        kernel = cl.Kernel(self.programs.build_all([key])[key], "peak")
        kernel.set_args(out, np.float32(0.999), np.float32(0.001), np.int32(steps))

        def run() -> None:
            cl.enqueue_nd_range_kernel(self.queue, kernel, (items,), (1,))
            self.queue.finish()

        return 2e-9 * items * 12 * width * steps / least(run)


def distinct(nets: list[str], batch: int = 0) -> Iterator[tuple[str, ConvGeometry, int, int]]:
    """(name, geometry, how often the nets have it, how often with a gradient of its input) of every convolution; batch 0: the default of each net."""
    found: dict[ConvGeometry, list[str]] = {}
    backward: Counter[ConvGeometry] = Counter()
    for net in nets:
        for node in build(resident(net, batch or BATCHES[net], proto.TRAIN), proto.TRAIN).nodes:
            if node.type == "Convolution":
                found.setdefault(node.layer.geometry, []).append(net)
                backward[node.layer.geometry] += any(node.propagate)
    for g, where in found.items():
        group = f" g{g.group}" if g.group > 1 else ""
        stride = f"/{g.stride[2]}" if g.stride[2] > 1 else ""
        name = f"{'+'.join(dict.fromkeys(where))} {g.kernel[1]}x{g.kernel[2]}{stride} {g.channels}-{g.num_output}@{g.size[1]}{group}"
        yield name, g, len(where), backward[g]


def torch_times(g: ConvGeometry, directions: list[str]) -> list[float]:
    """Seconds of each direction in PyTorch, in the better memory format."""
    import torch

    shape, rest = (g.batch, g.channels, *g.size[1:]), (None, g.stride[1:], g.pad[1:], g.dilation[1:])
    x, w, dy = torch.randn(shape), torch.randn(g.num_output, g.group_channels, *g.kernel[1:]), torch.randn(g.batch, g.num_output, *g.out[1:])
    times = []
    for layout in (torch.contiguous_format, torch.channels_last):
        a, b, c = (t.contiguous(memory_format=layout) for t in (x, w, dy))
        back = partial(torch.ops.aten.convolution_backward, c, a, b, None, *rest[1:], False, [0, 0], g.group)
        runs = {
            "forward": lambda a=a, b=b: torch.nn.functional.conv2d(a, b, *rest, g.group),
            "backward_data": lambda back=back: back([True, False, False]),
            "backward_filter": lambda back=back: back([False, True, False]),
        }
        with torch.no_grad():
            times.append([least(runs[direction]) for direction in directions])
    return [min(pair) for pair in zip(*times)]


def convolutions(runner: CpuRunner, options: argparse.Namespace) -> Iterator[Row]:
    for name, g, count, backward in distinct(options.nets):
        x, w, y = operands(g)
        ways = [(way, result, n) for way, result, n in ((forward, y, count), (backward_data, x, backward), (backward_filter, w, count))
                if n and any(text in f"{name} {way.__name__}" for text in options.only)]  # fmt: skip
        recs = [recorded(runner.device.target, partial(way, convolution, g, x, w, y)) for way, _, _ in ways]
        runner.programs.build_all(key for rec in recs for key in runner.keys(rec))
        peers = torch_times(g, [way.__name__ for way, _, _ in ways]) if options.torch and ways else [0.0] * len(ways)
        for (way, result, n), rec, peer in zip(ways, recs, peers):
            seconds, _ = runner.seconds(rec, result)
            gflop = 2e-9 * g.batch * g.num_output * g.positions * g.depth
            yield Row(f"{name} {way.__name__}", gflop, n, 1e3 * seconds, 1e3 * peer)


def products(runner: CpuRunner, options: argparse.Namespace) -> Iterator[Row]:
    for n in SIZES:
        name = f"gemm {n}"
        if not any(text in name for text in options.only):
            continue
        a, b, c = (Ref(letter, (n, n), Role.ACTIVATION) for letter in "abc")
        rec = recorded(runner.device.target, lambda rec, a=a, b=b, c=c: gemm(rec, a, b, c))
        runner.programs.build_all(runner.keys(rec))
        row = Row(name, 2e-9 * n**3, 0, 1e3 * runner.seconds(rec, c)[0])
        if options.torch:
            import torch

            p, q = torch.randn(n, n), torch.randn(n, n)
            row.torch_ms = 1e3 * least(lambda p=p, q=q: p @ q)
        yield row


def main() -> None:
    global clock, patience
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--nets", nargs="*", default=list(BATCHES))
    parser.add_argument("--only", nargs="*", default=[""], help="problems whose name contains one of these")
    parser.add_argument("--threads", type=int, help="of PyTorch")
    parser.add_argument("--no-torch", dest="torch", action="store_false")
    parser.add_argument("--busy", action="store_true", help="count processor time, for a machine in use by others; one thread only")
    parser.add_argument("--patience", type=float, default=patience, help="seconds per measurement")
    parser.add_argument("--json")
    options = parser.parse_args()
    patience = options.patience
    clock = time.process_time if options.busy else clock
    log.quiet(2)
    if options.torch and options.threads:
        import torch

        torch.set_num_threads(options.threads)
    runner = CpuRunner(select_device(options.device))
    peak = runner.peak()
    print(f"{runner.device.name} ({runner.device.platform_name} {runner.device.driver_version}); multiply-adds in registers {peak:.0f} GFLOP/s\n")
    print("| problem | times | ms | GFLOP/s | of peak | PyTorch's GFLOP/s | ratio of times |\n|---|---|---|---|---|---|---|")
    rows = [*products(runner, options), *convolutions(runner, options)]
    for row in rows:
        row.peak = peak
    for row in sorted(rows, key=lambda row: row.ms * row.count, reverse=True):
        rate, peer = 1e3 * row.gflop / row.ms, row.gflop / row.torch_ms * 1e3 if row.torch_ms else 0.0
        ratio = f"{row.ms / row.torch_ms:.2f}" if row.torch_ms else ""
        print(f"| {row.name} | {row.count} | {row.ms:.2f} | {rate:.0f} | {row.share:.0%} | {peer:.0f} | {ratio} |")
    total, torch_total, work = (sum(getattr(row, field) * row.count for row in rows) for field in ("ms", "torch_ms", "gflop"))
    if total:
        print(f"\nall convolutions: {total:.0f} ms, PyTorch's {torch_total:.0f}; {work / total * 1e3:.0f} GFLOP/s, {work / total * 1e3 / peak:.0%} of the peak"
              f"; median {median_share(rows):.0%}")  # fmt: skip
    if options.json:
        file = Path(ROOT / options.json)
        known = {row["name"]: Row(**row) for row in json.loads(file.read_text())["rows"]} if file.exists() else {}
        known |= {row.name: row for row in rows}
        best = max(row.peak for row in known.values())  # the peak of a disturbed run would make its layers look better
        for row in known.values():
            row.peak = best
        table = {"device": runner.device.name, "platform": runner.device.platform_name, "median_of_peak": median_share([*known.values()]),
                 "rows": [vars(row) for row in known.values()]}  # fmt: skip
        file.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
