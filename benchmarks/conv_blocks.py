#!/usr/bin/env python3
"""Convolutions by wgmma on channels in blocks, beside ocaffe's mma.sync kernels and cuDNN: ms and TFLOP/s of each layer and direction.

    benchmarks/conv_blocks.py [--device nvidia] [--math bf16|tf32] [--batch 64] [--only TEXT ...] [--without mma.sync] [--torch] [--json FILE]

Operands are bfloat16 in memory, and the images of first layers floats. With tf32 all operands are floats. The values are those that bfloat16 represents.
Times are of events on the device, the median of several runs, with packed filters and second passes. GB/s counts both images once, in the type of the
operands. cuDNN is PyTorch's convolution in channels last and bfloat16 or TF32, without the conversion of float filters. `error`: the largest difference of
some results from float64, as a share of their largest magnitude.
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
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import BFLOAT, BLOCK, BLOCKS_GPU, FLOAT, PLANES, Ref, Role, widened
from ocaffe.kernels.convolution import choose
from ocaffe.kernels.convolution.blocks_gpu import conv_blocks, conv_blocks_first, conv_depthwise_blocks
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from tests.harness import blocks, narrowed

LAYERS: dict[str, tuple[int, ...]] = {  # channels, size, outputs, kernel, stride, groups, padding unless it is half of the kernel
    "resnet 64-64@56": (64, 56, 64, 3, 1, 1), "resnet 128-128@28": (128, 28, 128, 3, 1, 1), "resnet 256-256@14": (256, 14, 256, 3, 1, 1),
    "resnet 512-512@7": (512, 7, 512, 3, 1, 1), "resnet 64-128@56/2": (64, 56, 128, 3, 2, 1), "resnet 256-512@14/2": (256, 14, 512, 3, 2, 1),
    "resnet 64-256@56": (64, 56, 256, 1, 1, 1), "resnet 256-64@56": (256, 56, 64, 1, 1, 1), "resnet 128-512@28": (128, 28, 512, 1, 1, 1),
    "resnet 512-128@28": (512, 28, 128, 1, 1, 1), "resnet 256-1024@14": (256, 14, 1024, 1, 1, 1), "resnet 1024-256@14": (1024, 14, 256, 1, 1, 1),
    "resnet 512-2048@7": (512, 7, 2048, 1, 1, 1), "resnet 2048-512@7": (2048, 7, 512, 1, 1, 1), "vgg 64-64@224": (64, 224, 64, 3, 1, 1),
    "vgg 64-128@112": (64, 112, 128, 3, 1, 1), "vgg 128-128@112": (128, 112, 128, 3, 1, 1), "vgg 256-256@56": (256, 56, 256, 3, 1, 1),
    "vgg 512-512@28": (512, 28, 512, 3, 1, 1), "vgg 512-512@14": (512, 14, 512, 3, 1, 1), "mobilenet 24-144@56": (24, 56, 144, 1, 1, 1),
    "mobilenet 144-24@56": (144, 56, 24, 1, 1, 1), "mobilenet 32@112": (32, 112, 32, 3, 1, 32), "mobilenet 96@112/2": (96, 112, 96, 3, 2, 96),
    "mobilenet 144@56": (144, 56, 144, 3, 1, 144), "mobilenet 384@14": (384, 14, 384, 3, 1, 384), "mobilenet 960@7": (960, 7, 960, 3, 1, 960),
    "googlenet 32-96@28": (32, 28, 96, 5, 1, 1), "googlenet 16-48@14": (16, 14, 48, 5, 1, 1),
    "first resnet 3-64@224/2": (3, 224, 64, 7, 2, 1), "first vgg 3-64@224": (3, 224, 64, 3, 1, 1), "first mobilenet 3-32@224/2": (3, 224, 32, 3, 2, 1),
    "first alexnet 3-96@227/4": (3, 227, 96, 11, 4, 1, 0), "first squeezenet 3-96@227/2": (3, 227, 96, 7, 2, 1, 0),
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


def is_first(g: ConvGeometry) -> bool:
    """Whether it has the channels of a first layer, whose image is in Caffe's order and has no gradient."""
    return g.channels < BLOCK


def possible(target: Target, g: ConvGeometry, way: str) -> bool:
    if g.depthwise:
        return conv_depthwise_blocks.possible(target, g)
    return conv_blocks.possible(target, g, way) or conv_blocks_first.possible(target, g, way)


def in_memory(ref: Ref, bits: np.ndarray) -> np.ndarray:
    """Return bfloat16 values in Caffe's order as the type and order of the Ref."""
    values = widened(bits) if ref.dtype == FLOAT else bits
    return blocks(values) if ref.blocked else values


def operands(g: ConvGeometry, dtype: np.dtype, blocked: bool) -> tuple[Ref, Ref, Ref]:
    shapes = {"x": (g.batch, g.channels, *g.size[1:]), "y": (g.batch, g.num_output, *g.out[1:])}
    x, y = (Ref(name, shape, Role.ACTIVATION, dtype, layout=BLOCKS_GPU if blocked else PLANES) for name, shape in shapes.items())
    if is_first(g):
        x = Ref("x", shapes["x"], Role.ACTIVATION)
    return x, Ref("w", g.weight_shape, Role.PARAMETER), y


def error_of(g: ConvGeometry, way: str, got: np.ndarray, x: np.ndarray, w: np.ndarray, dy: np.ndarray) -> float:
    """Compare some results with float64. x, w, dy: floats in Caffe's order, as rounded."""
    rng, pad, stride, taps = np.random.default_rng(1), g.pad[1], g.stride[1], range(g.kernel[1])
    side, out, depth = g.size[1], g.out[1], g.group_channels
    w = w.reshape(g.num_output, depth, *g.kernel[1:])
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad))) if way != "backward_data" else x
    worst, largest = 0.0, 1e-30
    for i in range(FILTER_SAMPLES if way == "backward_filter" else SAMPLES):
        n, k, c, ty, tx = (int(rng.integers(count)) for count in (g.batch, g.num_output, depth, *g.kernel[1:]))
        first = k // g.group_outputs * depth  # channel of the group
        place = side if way == "backward_data" else out
        py, px = (int(rng.integers(place)) for _ in range(2)) if i % 4 else (i // 4 % 2 * (place - 1), i // 8 % 2 * (place - 1))
        if way == "backward_filter":
            pixels = padded[:, first + c, ty : ty + (out - 1) * stride + 1 : stride, tx : tx + (out - 1) * stride + 1 : stride]
            expected, found = float((dy[:, k].astype(np.float64) * pixels).sum()), float(got.reshape(w.shape)[k, c, ty, tx])
        elif way == "forward":
            window = padded[n, first : first + depth, py * stride : py * stride + len(taps), px * stride : px * stride + len(taps)]
            expected, found = float((window.astype(np.float64) * w[k]).sum()), float(got[n, k, py, px])
        else:
            own = slice(k // g.group_outputs * g.group_outputs, (k // g.group_outputs + 1) * g.group_outputs)  # outputs of the group
            rows = [(tap, (py + pad - tap) // stride) for tap in taps if (py + pad - tap) % stride == 0 and 0 <= py + pad - tap < out * stride]
            columns = [(tap, (px + pad - tap) // stride) for tap in taps if (px + pad - tap) % stride == 0 and 0 <= px + pad - tap < out * stride]
            expected = sum(float((dy[n, own, y, x].astype(np.float64) * w[own, c, a, b]).sum()) for a, y in rows for b, x in columns)
            found = float(got[n, first + c, py, px])
        worst, largest = max(worst, abs(found - expected) if math.isfinite(found) else math.inf), max(largest, abs(expected))
    return worst / largest


def peer(g: ConvGeometry, math: str) -> dict[str, float]:
    """Return cuDNN's ms by direction."""
    import torch

    torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = True
    dtype = torch.float32 if math == "tf32" else torch.bfloat16
    layout: dict[str, Any] = {"memory_format": torch.channels_last}
    x = torch.randn(g.batch, g.channels, *g.size[1:], device="cuda", dtype=dtype).to(**layout)
    w = torch.randn(g.num_output, g.group_channels, *g.kernel[1:], device="cuda", dtype=dtype).to(**layout)
    pad, stride = list(g.pad[1:]), list(g.stride[1:])
    convolved = partial(torch.nn.functional.conv2d, x, w, None, stride, pad, 1, g.group)
    dy = convolved()
    back = partial(torch.ops.aten.convolution_backward, dy, x, w, None, stride, pad, [1, 1], False, [0, 0], g.group)
    calls: dict[str, Callable[[], Any]] = {
        "forward": convolved, "backward_data": lambda: back([True, False, False]),
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
    values["w"] = narrowed(rng.standard_normal(g.weight_shape, np.float32) / math.sqrt(g.depth))
    wide = {name: widened(bits) for name, bits in values.items()}
    peers = peer(g, target.math) if with_torch else {}
    result: dict[str, Any] = {}
    work = 2e-9 * g.batch * g.num_output * g.positions * g.depth
    moved = 1e-6 * target.block_type.itemsize * sum(math.prod(shape) for shape in shapes.values())
    runner.compared = 1 << 40
    for direction, named in ((forward, "y"), (backward_data, "x"), (backward_filter, "w")):
        way, cells = direction.__name__, dict[str, Any]()
        if is_first(g) and direction is backward_data:
            continue
        for name, blocked in KERNELS.items():
            if name in left_out:
                continue
            refs = dict(zip("xwy", operands(g, target.block_type, blocked)))
            own = replace(target, wgmma=blocked)
            if blocked and not possible(own, g, way):
                continue
            x, w, y = refs.values()
            given = {"forward": (x, w, None, y), "backward_data": (y, w, x), "backward_filter": (x, y, w)}[way]
            rec: Recorder = recorded(own, choose.record, way, g, *given)
            for launch in rec.launches:  # as passes/bf16.py does
                slots = ((launch.slot(operand), operand.ref.dtype) for operand in launch.operands)
                types = {f"{slot.bf16}_T": "bfloat" for slot, dtype in slots if slot is not None and slot.bf16 and dtype == BFLOAT}
                if types:
                    launch.define(**types)
            runner.given = {ref: in_memory(ref, values[letter]) for letter, ref in refs.items() if letter != named}
            runner.programs.build_all(runner.keys(rec))
            times, got = runner.times(rec, refs[named])
            if refs[named].dtype == BFLOAT:
                got = widened(got.view(np.uint16)[: refs[named].count].reshape(refs[named].shape))
            got = BLOCKS_GPU.to_planes(got.reshape(refs[named].shape)) if refs[named].blocked else got
            ms = 1000 * sum(times.values())
            defines = next((dict(launch.call.defines) for launch in rec.launches if launch.call is not None and not launch.kernel.can.helper), {})
            kept = {key: value for key, value in defines.items() if key in ("NT", "MB", "CB", "PATCHES", "FILTERS", "GIVEN", "RUN", "BM", "BN", "BK")}
            parts = {key: 1000 * value for key, value in times.items()}
            error = error_of(g, way, got, wide["x"], wide["w"], wide["y"])
            cells[name] = {"ms": ms, "TFLOP/s": work / ms, "GB/s": moved / ms, "error": error, "parts": parts, "tile": kept}
        if peers:
            cells["cuDNN"] = {"ms": peers[way], "TFLOP/s": work / peers[way], "GB/s": moved / peers[way]}
        result[way] = cells
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="nvidia")
    parser.add_argument("--math", default="bf16", choices=("bf16", "tf32"))
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--only", nargs="*", default=[""], help="layers whose name contains one of these")
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--without", nargs="*", default=[], choices=KERNELS, help="kernels to leave out")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    runner, found = Blocks(select_device(options.device, math=options.math)), dict[str, Any]()
    for name, (channels, size, outputs, kernel, stride, groups, *pad) in LAYERS.items():
        if not any(text in name for text in options.only):
            continue
        g = geometry(options.batch, channels, size, outputs, kernel, stride, pad[0] if pad else kernel // 2, groups)
        found[name] = measure(runner, g, options.torch, options.without)
        for way, cells in found[name].items():
            texts = [
                f"{kind} {cell['ms']:.3f} ms {cell['TFLOP/s']:.0f} TF {cell['GB/s']:.0f} GB/s, error {cell.get('error', 0):.0e}"
                for kind, cell in cells.items()
            ]
            print(f"{name} {way}".ljust(36), "; ".join(texts), cells.get("blocks", {}).get("tile", ""), flush=True)
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
