#!/usr/bin/env python3
"""Rates and errors of ocaffe's chosen kernels for matrix products and every convolution of the zoo's nets on a GPU, compared with PyTorch's (cuBLAS, cuDNN).

    benchmarks/gpu_rates.py [--device SPEC] [--math fp32] [--batch 64] [--nets NET ...] [--only TEXT ...] [--limit S] [--json FILE]

TFLOP/s of the direct algorithm, times of events on the device, the median of several runs. PyTorch's figure is the
better of both memory formats: `strict` (IEEE fp32) for fp32 and ieee, its defaults for the others. Errors are against
float64, relative to the largest magnitude: the largest one and the root of the mean square, of all three directions on
the same data. Inputs are outputs of a ReLU, filters have He's deviation. The last line counts each layer's time as
often as the nets have it. --limit ends the run after so many seconds and names the problems that were not measured.
"""
from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from resident import ROOT  # first: it makes ocaffe importable

import numpy as np  # isort: skip
import torch  # isort: skip
from cpu_kernels import distinct  # isort: skip
from gpu_kernels import RUNS, Runner, backward_data, backward_filter, forward, operands, recorded  # isort: skip

from ocaffe import log
from ocaffe.cl.device import select_device
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.convolution import convolution
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.matmul.gemm import gemm

NETS = ("alexnet", "googlenet", "resnet18", "resnet50", "vgg16", "mobilenet_v2")
SIZES = (256, 512, 1024, 2048, 4096, 8192)
WAYS = (forward, backward_data, backward_filter)
FORMATS = (torch.contiguous_format, torch.channels_last)


@dataclass
class Row:
    name: str
    gflop: float
    count: int
    ms: float
    torch_ms: float
    error: tuple[float, float] = (0.0, 0.0)
    torch_error: tuple[float, float] = (0.0, 0.0)


class FedRunner(Runner):
    """A Runner whose operands hold given values instead of noise, and whose results are read completely."""

    compared = sys.maxsize
    feeds: dict[Ref, np.ndarray]

    def filled(self, root: Ref) -> Any:
        if root not in self.feeds:
            return self.cl.Buffer(self.device.context, self.cl.mem_flags.READ_WRITE, root.nbytes)
        flags = self.cl.mem_flags.READ_WRITE | self.cl.mem_flags.COPY_HOST_PTR
        return self.cl.Buffer(self.device.context, flags, hostbuf=np.ascontiguousarray(self.feeds[root]))


def rounded(value: Any) -> Any:
    """The value with every float rounded to four digits."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, tuple) else value


def errors(got: Any, want: Any) -> tuple[float, float]:
    """The largest error and the root of the mean square, relative to the largest magnitude."""
    difference = got.double().flatten() - want.flatten()
    scale = float(want.abs().max())
    return float(difference.abs().max()) / scale, float(difference.square().mean().sqrt()) / scale


def torch_ms(work: Callable[[], Any]) -> float:
    """Median ms on the device."""
    times = []
    for _ in range(RUNS + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[2:])


def peer(g: ConvGeometry, x: Any, w: Any, dy: Any) -> dict[str, Callable[[], Any]]:
    """The three directions in PyTorch."""
    stride, pad, dilation = g.stride[1:], g.pad[1:], g.dilation[1:]

    def back(mask: list[bool], result: int) -> Any:
        return torch.ops.aten.convolution_backward(dy, x, w, None, stride, pad, dilation, False, [0, 0], g.group, mask)[result]

    return {
        "forward": lambda: torch.nn.functional.conv2d(x, w, None, stride, pad, dilation, g.group),
        "backward_data": lambda: back([True, False, False], 0),
        "backward_filter": lambda: back([False, True, False], 1),
    }


def in_time(name: str, options: argparse.Namespace) -> bool:
    """Whether --limit leaves time for a problem; print a line if it does not."""
    if time.monotonic() > options.end:
        print(f"not measured: {name}")
        return False
    return True


def convolutions(runner: FedRunner, options: argparse.Namespace) -> Iterator[Row]:
    found = sorted(distinct(options.nets, options.batch), key=lambda item: -item[1].num_output * item[1].positions * item[1].depth * item[2])
    wanted = [item for item in found if any(text in item[0] for text in options.only)]
    refs = {g: operands(g) for _, g, _, _ in wanted}
    launches: dict[ConvGeometry, dict[str, Recorder]] = {}
    for g, (x, w, y) in refs.items():
        launches[g] = {way.__name__: recorded(runner.device.target, partial(way, convolution, g, x, w, y)) for way in WAYS}
    runner.programs.build_all(key for recs in launches.values() for rec in recs.values() for key in runner.keys(rec))  # together: on all cores
    for name, g, count, backward in wanted:
        if not in_time(name, options):
            continue
        rx, rw, ry = refs[g]
        x = torch.randn(g.batch, g.channels, *g.size[1:], device="cuda").relu()
        w = torch.randn(g.num_output, g.group_channels, *g.kernel[1:], device="cuda") * (2 / g.depth) ** 0.5
        dy = torch.randn(g.batch, g.num_output, *g.out[1:], device="cuda")
        with torch.no_grad():
            exact, strict = peer(g, x.double(), w.double(), dy.double()), peer(g, x, w, dy)
            others = [peer(g, *(t.contiguous(memory_format=layout) for t in (x, w, dy))) for layout in FORMATS]
            runner.feeds = {ref: array.cpu().numpy() for ref, array in ((rx, x), (rw, w), (ry, dy))}
            for key, rec, result, n in zip(launches[g], launches[g].values(), (ry, rx, rw), (count, backward, count)):
                if not n:
                    continue
                want = exact[key]()
                seconds, values = runner.seconds(rec, result)
                ours, theirs = errors(torch.from_numpy(values).cuda(), want), errors(strict[key](), want)
                yield Row(f"{name} {key}", 1e-9 * g.flops, n, 1e3 * seconds, min(torch_ms(other[key]) for other in others), ours, theirs)
                del want


def products(runner: FedRunner, options: argparse.Namespace) -> Iterator[Row]:
    for n in SIZES:
        matrices = [torch.randn(n, n, device="cuda") for _ in range(2)]
        a, b, c = (Ref(letter, (n, n), Role.ACTIVATION) for letter in "abc")
        runner.feeds = {ref: matrix.cpu().numpy() for ref, matrix in zip((a, b), matrices)}
        for trans_a, trans_b in ((False, False), (False, True), (True, False), (True, True)):
            name = f"gemm {n} {'NT'[trans_a]}{'NT'[trans_b]}"
            if not any(text in name for text in options.only) or not in_time(name, options):
                continue
            rec = recorded(runner.device.target, lambda rec, a=a, b=b, c=c, ta=trans_a, tb=trans_b: gemm(rec, a, b, c, trans_a=ta, trans_b=tb))
            runner.programs.build_all(runner.keys(rec))
            seconds, values = runner.seconds(rec, c)
            p, q = (matrix.T if turned else matrix for matrix, turned in zip(matrices, (trans_a, trans_b)))
            want = p.double() @ q.double()
            found = (errors(got, want) for got in (torch.from_numpy(values).cuda(), p @ q))
            yield Row(name, 2e-9 * n**3, 0, 1e3 * seconds, torch_ms(lambda p=p, q=q: p @ q), *found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device")
    parser.add_argument("--math", default="fp32")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--nets", nargs="*", default=list(NETS))
    parser.add_argument("--only", nargs="*", default=[""], help="problems whose name contains one of these")
    parser.add_argument("--limit", type=float, default=3600.0)
    parser.add_argument("--json")
    options = parser.parse_args()
    options.end = time.monotonic() + options.limit
    log.quiet(2)
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = options.math not in ("fp32", "ieee")
    device = select_device(options.device, math=options.math)
    runner = FedRunner(device)
    print(f"{device.name}, driver {device.driver_version}, {options.math}, batch {options.batch}\n")
    print("| problem | times | ms | TFLOP/s | PyTorch's TFLOP/s | ratio of times | error | PyTorch's error |\n|---|---|---|---|---|---|---|---|")
    rows: list[Row] = []
    for kind in (products, convolutions):
        for row in kind(runner, options):
            rows.append(row)
            rates = f"{row.gflop / row.ms:.1f} | {row.gflop / row.torch_ms:.1f} | {row.ms / row.torch_ms:.2f}"
            ours, theirs = ("{:.1e}, {:.1e}".format(*error) for error in (row.error, row.torch_error))
            print(f"| {row.name} | {row.count} | {row.ms:.3f} | {rates} | {ours} | {theirs} |", flush=True)
            if options.json:
                facts = {"device": device.name, "driver": device.driver_version, "date": str(datetime.date.today())}
                table = facts | {"math": options.math, "batch": options.batch}
                lines = ",\n".join(f"  {json.dumps(rounded(asdict(row)))}" for row in rows)
                Path(ROOT / options.json).write_text(f'{json.dumps(table, indent=1)[:-2]},\n "rows": [\n{lines}\n ]\n}}\n')
    total, others = (sum(getattr(row, field) * row.count for row in rows) for field in ("ms", "torch_ms"))
    worse = [sum(not row.error[kind] <= row.torch_error[kind] for row in rows) for kind in range(2)]
    print(f"\nall convolutions {total:.1f} ms, PyTorch's {others:.1f}")
    print(f"of {len(rows)} rows the largest error is above PyTorch's in {worse[0]}, the mean one in {worse[1]}")


if __name__ == "__main__":
    main()
