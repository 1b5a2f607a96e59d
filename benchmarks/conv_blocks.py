#!/usr/bin/env python3
"""Convolutions by wgmma on channels in blocks, beside ocaffe's mma.sync kernels and cuDNN: ms and TFLOP/s of each layer and direction.

    OCAFFE_WGMMA=1 benchmarks/conv_blocks.py [--device nvidia] [--batch 64] [--only TEXT ...] [--without mma.sync] [--torch] [--json FILE]

Operands are bfloat16 in memory. Times are of events on the device, the median of several runs, with packed filters and second passes. cuDNN is PyTorch's
convolution in channels last and bfloat16, without the conversion of float filters. `error`: the largest difference of some results from float64, as a share
of their largest magnitude.
"""
from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gpu_kernels import Runner, backward_data, backward_filter, forward, geometry, recorded

from ocaffe.cl.device import Device, select_device
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import BFLOAT, Ref, Role, widened
from ocaffe.ops import conv_blocks, conv_gpu
from ocaffe.ops.conv_geometry import ConvGeometry
from tests.harness import blocks, narrowed, planes

LAYERS = {  # channels, size, outputs, kernel
    "resnet 64-64@56": (64, 56, 64, 3), "resnet 128-128@28": (128, 28, 128, 3), "resnet 256-256@14": (256, 14, 256, 3), "resnet 512-512@7": (512, 7, 512, 3),
    "resnet 64-256@56": (64, 56, 256, 1), "resnet 256-64@56": (256, 56, 64, 1), "resnet 128-512@28": (128, 28, 512, 1), "resnet 512-128@28": (512, 28, 128, 1),
    "resnet 256-1024@14": (256, 14, 1024, 1), "resnet 1024-256@14": (1024, 14, 256, 1), "resnet 512-2048@7": (512, 7, 2048, 1),
    "resnet 2048-512@7": (2048, 7, 512, 1), "vgg 64-64@224": (64, 224, 64, 3), "vgg 64-128@112": (64, 112, 128, 3), "vgg 128-128@112": (128, 112, 128, 3),
    "vgg 256-256@56": (256, 56, 256, 3), "vgg 512-512@28": (512, 28, 512, 3), "vgg 512-512@14": (512, 14, 512, 3),
}  # fmt: skip
KERNELS = {"blocks": True, "mma.sync": False}  # and whether operands are in blocks
SAMPLES = 200
FILTER_SAMPLES = 12


class Blocks(Runner):
    """Times launches on operands in bfloat16; `given` holds their values."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.given: dict[Ref, np.ndarray] = {}

    def filled(self, root: Ref) -> Any:
        """Return a buffer of the given values, of zeros where they are constant, else of noise."""
        if root.role is Role.CONSTANT:
            values: np.ndarray = np.zeros(root.shape, root.dtype)
        elif root in self.given:
            values = self.given[root]
        elif root.dtype == BFLOAT:
            values = np.full(root.shape, 0x7FC0, BFLOAT)  # NaN: every element must be written
        else:
            return super().filled(root)
        return self.cl.Buffer(self.device.context, self.cl.mem_flags.READ_WRITE | self.cl.mem_flags.COPY_HOST_PTR, hostbuf=values)


def operands(g: ConvGeometry, blocked: bool) -> tuple[Ref, Ref, Ref]:
    shapes = {"x": (g.batch, g.channels, *g.size[1:]), "y": (g.batch, g.num_output, *g.out[1:])}
    x, y = (Ref(name, shape, Role.ACTIVATION, BFLOAT, blocked=blocked) for name, shape in shapes.items())
    return x, Ref("w", g.weight_shape, Role.PARAMETER), y


def error_of(g: ConvGeometry, way: str, got: np.ndarray, x: np.ndarray, w: np.ndarray, dy: np.ndarray) -> float:
    """Compare some results with float64. x, w, dy: floats in Caffe's order, as rounded."""
    rng, pad, side, w = np.random.default_rng(1), g.kernel[1] // 2, g.size[1], w.reshape(g.num_output, g.channels, *g.kernel[1:])
    worst, largest = 0.0, 1e-30
    for i in range(FILTER_SAMPLES if way == "backward_filter" else SAMPLES):
        k, c, ty, tx = (int(rng.integers(n)) for n in (g.num_output, g.channels, *g.kernel[1:]))
        if way == "backward_filter":
            sy, sx = ty - pad, tx - pad
            ys, xs = (slice(max(0, -s), side - max(0, s)) for s in (sy, sx))
            ys_x, xs_x = (slice(max(0, s), side - max(0, -s)) for s in (sy, sx))
            expected = float((dy[:, k, ys, xs].astype(np.float64) * x[:, c, ys_x, xs_x]).sum())
            found = float(got.reshape(g.num_output, g.channels, *g.kernel[1:])[k, c, ty, tx])
        else:
            source, channel = (x, k) if way == "forward" else (dy, c)
            filters = w[k] if way == "forward" else w[:, c, ::-1, ::-1]
            n = int(rng.integers(g.batch))
            py, px = (int(rng.integers(side)) for _ in range(2)) if i % 4 else (i // 4 % 2 * (side - 1), i // 8 % 2 * (side - 1))
            window = np.pad(source[n], ((0, 0), (pad, pad), (pad, pad)))[:, py : py + g.kernel[1], px : px + g.kernel[2]]
            expected, found = float((window.astype(np.float64) * filters).sum()), float(got[n, channel, py, px])
        worst, largest = max(worst, abs(found - expected) if math.isfinite(found) else math.inf), max(largest, abs(expected))
    return worst / largest


def peer(g: ConvGeometry) -> dict[str, float]:
    """Return cuDNN's ms by direction."""
    import torch

    torch.backends.cudnn.benchmark = True
    layout: dict[str, Any] = {"memory_format": torch.channels_last}
    x = torch.randn(g.batch, g.channels, *g.size[1:], device="cuda", dtype=torch.bfloat16).to(**layout)
    w = torch.randn(g.num_output, g.channels, *g.kernel[1:], device="cuda", dtype=torch.bfloat16).to(**layout)
    pad = [g.kernel[1] // 2] * 2
    dy = torch.nn.functional.conv2d(x, w, padding=pad[0])
    back = partial(torch.ops.aten.convolution_backward, dy, x, w, None, [1, 1], pad, [1, 1], False, [0, 0], 1)
    calls: dict[str, Callable[[], Any]] = {
        "forward": lambda: torch.nn.functional.conv2d(x, w, padding=pad[0]), "backward_data": lambda: back([True, False, False]),
        "backward_filter": lambda: back([False, True, False]),
    }  # fmt: skip
    result = {}
    for name, call in calls.items():
        times = []
        for _ in range(12):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        result[name] = statistics.median(times[5:])
    return result


def measure(runner: Blocks, g: ConvGeometry, with_torch: bool, left_out: Collection[str] = ()) -> dict[str, Any]:
    """Return ms, TFLOP/s and errors of a layer by direction."""
    rng, target = np.random.default_rng(0), runner.device.target
    shapes = {"x": (g.batch, g.channels, *g.size[1:]), "y": (g.batch, g.num_output, *g.out[1:])}
    values = {name: narrowed(rng.standard_normal(shape, np.float32)) for name, shape in shapes.items()}
    w = widened(narrowed(rng.standard_normal(g.weight_shape, np.float32) / math.sqrt(g.depth)))
    wide = {name: widened(bits) for name, bits in values.items()}
    peers = peer(g) if with_torch else {}
    result: dict[str, Any] = {}
    work = 2e-9 * g.batch * g.num_output * g.positions * g.depth
    runner.compared = 1 << 40
    for direction, named in ((forward, "y"), (backward_data, "x"), (backward_filter, "w")):
        way, cells = direction.__name__, dict[str, Any]()
        for name, blocked in KERNELS.items():
            if name in left_out:
                continue
            refs = dict(zip("xwy", operands(g, blocked)))
            own = replace(target, wgmma=blocked)
            if blocked and not conv_blocks.possible(own, g, way):
                continue
            rec: Recorder = recorded(own, partial(direction, conv_gpu, g, *refs.values()))
            for launch in rec.launches:  # as passes/bf16.py does
                types = {f"{kind}_T": "bfloat" for kind, operand in zip(launch.bf16_operands, launch.operands) if kind and operand.ref.dtype == BFLOAT}
                if types:
                    launch.define(**types)
            runner.given = {ref: w if letter == "w" else blocks(values[letter]) if blocked else values[letter]
                            for letter, ref in refs.items() if letter != named}  # fmt: skip
            runner.programs.build_all(runner.keys(rec))
            times, got = runner.times(rec, refs[named])
            if refs[named].dtype == BFLOAT:
                got = widened(got.view(np.uint16)[: refs[named].count].reshape(refs[named].shape))
                got = planes(got) if blocked else got
            ms = 1000 * sum(times.values())
            defines = next(dict(launch.call.defines) for launch in rec.launches if launch.call is not None and launch.call.is_product)
            kept = {key: value for key, value in defines.items() if key in ("NT", "MB", "CB", "PATCHES", "FILTERS", "GIVEN", "RUN", "BM", "BN", "BK")}
            parts = {key: 1000 * value for key, value in times.items()}
            cells[name] = {"ms": ms, "TFLOP/s": work / ms, "error": error_of(g, way, got, wide["x"], w, wide["y"]), "parts": parts, "tile": kept}
        if peers:
            cells["cuDNN"] = {"ms": peers[way], "TFLOP/s": work / peers[way]}
        result[way] = cells
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="nvidia")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--only", nargs="*", default=[""], help="layers whose name contains one of these")
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--without", nargs="*", default=[], choices=KERNELS, help="kernels to leave out")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    runner, found = Blocks(select_device(options.device, math="bf16")), dict[str, Any]()
    for name, (channels, size, outputs, kernel) in LAYERS.items():
        if not any(text in name for text in options.only):
            continue
        found[name] = measure(runner, geometry(options.batch, channels, size, outputs, kernel, 1, kernel // 2), options.torch, options.without)
        for way, cells in found[name].items():
            texts = [f"{kind} {cell['ms']:.3f} ms {cell['TFLOP/s']:.0f} TF, error {cell.get('error', 0):.0e}" for kind, cell in cells.items()]
            print(f"{name} {way}".ljust(36), "; ".join(texts), cells.get("blocks", {}).get("tile", ""), flush=True)
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
