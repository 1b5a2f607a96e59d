"""Rates of the GPU class kernels by tile: matrix products and the three directions of convolution, in TFLOP/s of the direct algorithm.

    python benchmarks/gpu_kernels.py [--device 0:0] [--only TEXT ...] [--batch 64] [--math fp32] [--dry]

Per problem, each tile (of ocaffe/kernels/matmul/gemm_gpu.py, and a few that do not ship) with the splits of the depth that the
estimate gives it and its rate; `*` marks ocaffe's choice, `!` a result that differs from the first tile's. The last
line gives the loss of the choice against the best tile. Times are of events on the device, the median of several runs,
including second passes.

Then every 3x3 convolution of the zoo by the direct product and by Winograd (ocaffe/kernels/convolution/winograd/winograd_gpu.py), with the time
of its parts, and the loss of the choice between them; and the depthwise convolutions.
"""
from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from ocaffe.cl.device import Device, select_device
from ocaffe.cl.program import ProgramKey, Programs
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.convolution.dense_gpu import conv_gpu
from ocaffe.kernels.convolution.depthwise import conv_depthwise
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.convolution.geometry.conv_window import product_shape
from ocaffe.kernels.convolution.winograd import winograd_gpu
from ocaffe.kernels.matmul import gemm_gpu
from ocaffe.kernels.matmul.gemm_gpu import Choice, Tile, choose, tiles_for

EXPERIMENTS = (
    Tile(128, 128, 8, 8, 32, 8),
    Tile(128, 64, 16, 8, 64, 8),
    Tile(128, 64, 8, 8, 32, 8),
    Tile(64, 128, 8, 8, 32, 16),
    Tile(64, 64, 8, 8, 32, 8),
    Tile(64, 64, 8, 4, 32, 8),
)
RUNS = 7
CLOCK = 1.7e9  # Hz of an H100 under load, for --dry
TOLERANCE = {"fp32": 1e-4, "ieee": 1e-4, "tf32": 5e-3, "fp16": 5e-3, "bf16": 3e-2}  # of the largest magnitude, between tiles
COMPARED = 1 << 20  # elements of a result that are compared between tiles


@dataclass
class Problem:
    """`record` makes the launches of one choice; `shape` is rows, columns, depth, batches of the product; `shipped` are ocaffe's tiles."""

    name: str
    flop: float
    result: Ref
    shape: tuple[int, int, int, int]
    tiles: list[Tile]
    shipped: list[Tile]
    record: Callable[..., None]


def product(a: Ref, b: Ref, c: Ref, trans_a: bool, trans_b: bool, rec: Recorder, choice: Choice) -> None:
    gemm_gpu.record(rec, a, b, c, trans_a, trans_b, None, choice)


def products(target: Target) -> Iterator[Problem]:
    for m, n, k in ((512, 512, 512), (1024, 1024, 1024), (4096, 4096, 4096), (64, 500, 800), (64, 4096, 9216)):
        for trans_a, trans_b in ((False, False), (False, True), (True, False), (True, True)):
            a, b = Ref("a", (k, m) if trans_a else (m, k), Role.ACTIVATION), Ref("b", (n, k) if trans_b else (k, n), Role.ACTIVATION)
            c = Ref("c", (m, n), Role.ACTIVATION)

            record = partial(product, a, b, c, trans_a, trans_b)
            name = f"gemm {m}x{n}x{k} {'NT'[trans_a]}{'NT'[trans_b]}"
            yield Problem(name, 2.0 * m * n * k, c, (m, n, k, 1), [*tiles_for(target), *EXPERIMENTS], list(tiles_for(target)), record)


def geometry(batch: int, channels: int, size: int, outputs: int, kernel: int, stride: int, pad: int, group: int = 1) -> ConvGeometry:
    out = (size + 2 * pad - kernel) // stride + 1
    return ConvGeometry(
        batch, channels, outputs, group, (1, size, size), (1, out, out), (1, kernel, kernel), (1, stride, stride), (0, pad, pad), (1, 1, 1)
    )


LAYERS = {
    "resnet 3x3 64@56": (64, 56, 64, 3, 1, 1),
    "resnet 3x3 128@28": (128, 28, 128, 3, 1, 1),
    "resnet 3x3 256@14": (256, 14, 256, 3, 1, 1),
    "resnet 3x3 512@7": (512, 7, 512, 3, 1, 1),
    "resnet 3x3/2 128@56": (128, 56, 128, 3, 2, 1),
    "resnet 1x1 256-64@56": (256, 56, 64, 1, 1, 0),
    "resnet 1x1 64-256@56": (64, 56, 256, 1, 1, 0),
    "resnet 1x1 1024-256@14": (1024, 14, 256, 1, 1, 0),
    "resnet 1x1 2048-512@7": (2048, 7, 512, 1, 1, 0),
    "resnet 1x1/2 256-512@56": (256, 56, 512, 1, 2, 0),
    "resnet 1x1 512-2048@7": (512, 7, 2048, 1, 1, 0),
    "resnet 7x7/2 3-64@224": (3, 224, 64, 7, 2, 3),
    "vgg 3x3 3-64@224": (3, 224, 64, 3, 1, 1),
    "vgg 3x3 128@112": (128, 112, 128, 3, 1, 1),
    "vgg 3x3 256@56": (256, 56, 256, 3, 1, 1),
    "vgg 3x3 512@28": (512, 28, 512, 3, 1, 1),
    "googlenet 1x1 480-192@14": (480, 14, 192, 1, 1, 0),
    "googlenet 3x3 96-208@14": (96, 14, 208, 3, 1, 1),
    "googlenet 5x5 16-48@14": (16, 14, 48, 5, 1, 2),
    "googlenet 1x1 832-384@7": (832, 7, 384, 1, 1, 0),
    "alexnet 11x11/4 3-96@227": (3, 227, 96, 11, 4, 0),
    "alexnet 5x5 96-256@27 g2": (96, 27, 256, 5, 1, 2, 2),
    "alexnet 3x3 384-384@13 g2": (384, 13, 384, 3, 1, 1, 2),
    "lenet 5x5 1-20@28": (1, 28, 20, 5, 1, 0),
    "lenet 5x5 20-50@12": (20, 12, 50, 5, 1, 0),
    "mobilenet 1x1 96-24@56": (96, 56, 24, 1, 1, 0),
}
WINOGRAD = {
    "vgg 3-64@224": (3, 224, 64, 3, 1, 1),
    "vgg 64-64@224": (64, 224, 64, 3, 1, 1),
    "vgg 64-128@112": (64, 112, 128, 3, 1, 1),
    "vgg 128-128@112": (128, 112, 128, 3, 1, 1),
    "vgg 128-256@56": (128, 56, 256, 3, 1, 1),
    "vgg 256-256@56": (256, 56, 256, 3, 1, 1),
    "vgg 256-512@28": (256, 28, 512, 3, 1, 1),
    "vgg 512-512@28": (512, 28, 512, 3, 1, 1),
    "vgg 512-512@14": (512, 14, 512, 3, 1, 1),
    "resnet 64-64@56": (64, 56, 64, 3, 1, 1),
    "resnet 128-128@28": (128, 28, 128, 3, 1, 1),
    "resnet 256-256@14": (256, 14, 256, 3, 1, 1),
    "resnet 512-512@7": (512, 7, 512, 3, 1, 1),
    "googlenet 64-192@56": (64, 56, 192, 3, 1, 1),
    "googlenet 96-128@28": (96, 28, 128, 3, 1, 1),
    "googlenet 128-192@28": (128, 28, 192, 3, 1, 1),
    "googlenet 96-208@14": (96, 14, 208, 3, 1, 1),
    "googlenet 112-224@14": (112, 14, 224, 3, 1, 1),
    "googlenet 128-256@14": (128, 14, 256, 3, 1, 1),
    "googlenet 144-288@14": (144, 14, 288, 3, 1, 1),
    "googlenet 160-320@14": (160, 14, 320, 3, 1, 1),
    "googlenet 160-320@7": (160, 7, 320, 3, 1, 1),
    "googlenet 192-384@7": (192, 7, 384, 3, 1, 1),
    "alexnet 256-384@13": (256, 13, 384, 3, 1, 1),
    "alexnet 384-384@13 g2": (384, 13, 384, 3, 1, 1, 2),
    "alexnet 384-256@13 g2": (384, 13, 256, 3, 1, 1, 2),
}
DEPTHWISE = {
    "mobilenet dw 96@112/2": (96, 112, 96, 3, 2, 1, 96),
    "mobilenet dw 144@56": (144, 56, 144, 3, 1, 1, 144),
    "mobilenet dw 960@7": (960, 7, 960, 3, 1, 1, 960),
}


def operands(g: ConvGeometry) -> tuple[Ref, Ref, Ref]:
    x, y = Ref("x", (g.batch, g.channels, *g.size), Role.ACTIVATION), Ref("y", (g.batch, g.num_output, *g.out), Role.ACTIVATION)
    return x, Ref("w", g.weight_shape, Role.PARAMETER), y


def forward(engine: Any, g: ConvGeometry, x: Ref, w: Ref, y: Ref, rec: Recorder, *choice: Choice) -> None:
    engine.forward(rec, g, x, w, None, y, *choice)


def backward_data(engine: Any, g: ConvGeometry, x: Ref, w: Ref, y: Ref, rec: Recorder, *choice: Choice) -> None:
    engine.backward_data(rec, g, y, w, x, *choice)


def backward_filter(engine: Any, g: ConvGeometry, x: Ref, w: Ref, y: Ref, rec: Recorder, *choice: Choice) -> None:
    engine.backward_filter(rec, g, x, y, w, *choice)


def convolutions(target: Target, batch: int) -> Iterator[Problem]:
    for name, numbers in LAYERS.items():
        g = geometry(batch, *numbers)
        x, w, y = operands(g)
        flop = 2.0 * g.batch * g.num_output * g.positions * g.depth
        for direction, result in ((forward, y), (backward_data, x), (backward_filter, w)):
            way = direction.__name__
            shipped = conv_gpu.tiles(target, g, way)
            tiles = list(dict.fromkeys([*shipped, *(conv_gpu.with_step(g, tile, way) for tile in EXPERIMENTS)]))
            yield Problem(f"{name} {way}", flop, result, product_shape(g, way), tiles, shipped, partial(direction, conv_gpu, g, x, w, y))


class Runner:
    """Times launches on one device; a buffer of random numbers per Ref."""

    compared = COMPARED  # elements of a result that are read back

    def __init__(self, device: Device) -> None:
        self.device, self.cl = device, device.cl
        self.queue = self.cl.CommandQueue(device.context, properties=self.cl.command_queue_properties.PROFILING_ENABLE)
        self.programs = Programs(device)
        noise = np.random.default_rng(0).standard_normal(1 << 22).astype(np.float32)
        self.noise = self.cl.Buffer(device.context, self.cl.mem_flags.READ_ONLY | self.cl.mem_flags.COPY_HOST_PTR, hostbuf=noise)

    def keys(self, rec: Recorder) -> list[ProgramKey]:
        return [ProgramKey(call.program, call.defines) for call in (launch.final() for launch in rec.launches)]

    def filled(self, root: Ref) -> Any:
        """A buffer of noise."""
        buffer = self.cl.Buffer(self.device.context, self.cl.mem_flags.READ_WRITE, root.nbytes)
        for offset in range(0, root.nbytes, self.noise.size):
            self.cl.enqueue_copy(self.queue, buffer, self.noise, byte_count=min(self.noise.size, root.nbytes - offset), dst_offset=offset)
        return buffer

    def seconds(self, rec: Recorder, result: Ref) -> tuple[float, np.ndarray]:
        """Time on the device of all launches together, and the beginning of the result."""
        times, values = self.times(rec, result)
        return sum(times.values()), values

    def times(self, rec: Recorder, result: Ref) -> tuple[dict[str, float], np.ndarray]:
        """Time on the device by kernel function, and the beginning of the result."""
        cl = self.cl
        roots = dict.fromkeys(operand.ref.root for launch in rec.launches for operand in launch.operands)
        buffers = {root: self.filled(root) for root in roots}
        ready = []
        for launch in rec.launches:
            call = launch.final()
            kernel = cl.Kernel(self.programs[ProgramKey(call.program, call.defines)], call.function)
            args: list[Any] = []
            for operand in launch.operands:
                args += [buffers[operand.ref.root], np.uint64(operand.ref.root_offset), np.uint64(operand.ref.batch_stride)]
            kernel.set_args(*args, *call.scalars)
            size = call.size if call.local is None else tuple(-(-n // m) * m for n, m in zip(call.size, call.local))
            ready.append((call.function, kernel, size, call.local))
        runs: list[dict[str, float]] = []
        for _ in range(RUNS + 1):
            events = [(name, cl.enqueue_nd_range_kernel(self.queue, *one)) for name, *one in ready]
            self.queue.finish()
            run = dict.fromkeys((name for name, _ in events), 0.0)
            for name, event in events:
                run[name] += (event.profile.end - event.profile.start) * 1e-9
            runs.append(run)
        values = np.empty(min(self.compared, result.root.nbytes // 4), np.float32)  # words
        cl.enqueue_copy(self.queue, values, buffers[result.root])
        self.queue.finish()
        for buffer in buffers.values():
            buffer.release()
        return sorted(runs[1:], key=lambda run: sum(run.values()))[RUNS // 2], values


def recorded(target: Target, record: Callable[..., None], *arguments: Any) -> Recorder:
    rec = Recorder(target, train=True)
    rec.enter("benchmark", "backward")
    record(rec, *arguments)
    return rec


def candidates(target: Target, problem: Problem) -> Iterator[Choice]:
    """The best split of each tile, by the estimate."""
    generous = replace(target, runtime="nvidia")  # allows tiles that the target's register limit would refuse
    for tile in problem.tiles:
        yield choose(generous, [tile], *problem.shape)


def table(runner: Runner | None, target: Target, problems: list[Problem]) -> None:
    """Print the rates; without a runner, the estimates."""
    if runner:
        recs = (recorded(target, problem.record, choice) for problem in problems for choice in candidates(target, problem))
        runner.programs.build_all(key for rec in recs for key in runner.keys(rec))
    lost: list[float] = []
    for problem in problems:
        chosen = choose(target, problem.shipped, *problem.shape)
        rates: dict[Choice, float] = {}
        cells, first = [], None
        for choice in candidates(target, problem):
            if runner is None:
                rates[choice] = problem.flop / gemm_gpu.cost(target, choice, *problem.shape) * CLOCK / 1e12
                text = f"{rates[choice]:.2f}"
            else:
                seconds, values = runner.seconds(recorded(target, problem.record, choice), problem.result)
                rates[choice] = problem.flop / seconds / 1e12
                first = values if first is None else first
                wrong = not np.abs(values - first).max() <= TOLERANCE[target.math] * np.abs(first).max()
                text = f"{rates[choice]:.2f}{'!' if wrong else ''}"
            cells.append(f"{choice.tile} /{choice.splits}: {text}{'*' if choice == chosen else ''}")
        best = max(rates, key=lambda choice: rates[choice])
        reached = rates.get(chosen, float("nan"))
        lost.append(1 - reached / rates[best])
        print(f"{problem.name:42} best {rates[best]:6.2f} with {best.tile} /{best.splits}, chosen {reached:6.2f}")
        print("    " + "; ".join(cells), flush=True)
    print(f"\nthe choice loses {statistics.mean(lost):.1%} on average, {max(lost):.1%} at most, against the best tile tried")


def winograd(runner: Runner | None, target: Target, batch: int, names: list[str]) -> None:
    """Print ms of direct and Winograd; without a runner, the estimates."""
    lost: list[float] = []
    for name in names:
        g = geometry(batch, *WINOGRAD[name])
        x, w, y = operands(g)
        for direction, result, record in (
            (forward, y, partial(winograd_gpu.forward, g=g, x=x, w=w, bias=None, y=y)),
            (backward_data, x, partial(winograd_gpu.backward_data, g=g, dy=y, w=w, dx=x)),
            (backward_filter, w, partial(winograd_gpu.backward_filter, g=g, x=x, dy=y, dw=w)),
        ):
            estimate = winograd_gpu.cost(target, g, direction.__name__)
            shape = product_shape(g, direction.__name__)
            choice = choose(target, conv_gpu.tiles(target, g, direction.__name__), *shape)
            expected = [cycles / CLOCK * 1e3 for cycles in (gemm_gpu.cost(target, choice, *shape), estimate)]
            parts, ms = "", expected
            if runner:
                times = []
                for rec in (recorded(target, partial(direction, conv_gpu, g, x, w, y), choice), recorded(target, record)):
                    runner.programs.build_all(runner.keys(rec))
                    times.append(runner.times(rec, result))
                ms = [1e3 * sum(time.values()) for time, _ in times]
                (_, first), (by_kernel, second) = times
                parts = ", ".join(f"{kernel} {1e3 * time:.3f}" for kernel, time in by_kernel.items())
                parts = f" ({parts}; {len(recorded(target, record).launches)} launches) differ by {np.abs(second - first).max() / np.abs(first).max():.0e}"
            chosen = expected[1] < expected[0]
            lost.append(ms[chosen] / min(ms) - 1)
            text = f"direct {ms[0]:6.3f}, expected {expected[0]:6.3f}{' ' if chosen else '*'}; Winograd {ms[1]:6.3f}, expected {expected[1]:6.3f}"
            print(f"{name + ' ' + direction.__name__:38} {text}{'*' if chosen else ' '} {ms[0] / ms[1]:4.2f}{parts}", flush=True)
    print(f"\nthe choice between direct and Winograd loses {statistics.mean(lost):.1%} on average, {max(lost):.1%} at most\n")


def depthwise(runner: Runner, target: Target, batch: int, names: list[str]) -> None:
    """Depthwise is bound by memory: print GB/s, with every operand read or written once."""
    for name in names:
        g = geometry(batch, *DEPTHWISE[name])
        x, w, y = operands(g)
        for direction, result in ((forward, y), (backward_data, x), (backward_filter, w)):
            rec = recorded(target, partial(direction, conv_depthwise, g, x, w, y))
            runner.programs.build_all(runner.keys(rec))
            seconds, _ = runner.seconds(rec, result)
            rate = (x.nbytes + y.nbytes) / seconds / 1e9
            print(f"{name} {direction.__name__}".ljust(42), f"{seconds * 1e6:8.1f} us {rate:8.1f} GB/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", help="PLATFORM:INDEX or a part of a name")
    parser.add_argument("--math", help="one of ocaffe.ir.target.MATHS")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--only", nargs="*", default=[""], help="problems whose name contains one of these")
    parser.add_argument("--mma", action="store_true", help="only tiles on tensor cores")
    parser.add_argument("--dry", action="store_true", help="print the estimates for an H100 instead of measuring")
    options = parser.parse_args()
    device = None if options.dry else select_device(options.device, math=options.math)
    h100 = Target(kind="gpu", runtime="nvidia", compute_units=132, tensor_cores=True, math=options.math or "fp32")
    target = h100 if device is None else replace(device.target, kind="gpu")
    wanted = [p for p in (*products(target), *convolutions(target, options.batch)) if any(text in p.name for text in options.only)]
    if options.mma:
        for problem in wanted:
            problem.tiles = [tile for tile in problem.tiles if tile.mma] or problem.tiles
    threes = [name for name in WINOGRAD if any(text in name for text in options.only)]
    runner = None
    if device:
        print(f"{device.name} ({device.platform_name} {device.driver_version}), {target.compute_units} compute units, batch {options.batch}\n")
        runner = Runner(device)
    if wanted:
        table(runner, target, wanted)
    if threes:
        winograd(runner, target, options.batch, threes)
    names = [name for name in DEPTHWISE if any(text in name for text in options.only)]
    if runner and names:
        depthwise(runner, target, options.batch, names)


if __name__ == "__main__":
    main()
