#!/usr/bin/env python3
"""Errors of 3x3 convolutions against float64, ours (direct and Winograd) and cuDNN's in IEEE fp32, on the same data, in three directions.

    benchmarks/conv_errors.py [--device SPEC] [--math fp32] [--batch 8] [--only TEXT ...]

Inputs are what a ReLU leaves of normal numbers, filters have He's deviation. Errors are of the largest magnitude: the largest one, and the root
of the mean square.
"""
from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from gpu_kernels import WINOGRAD, geometry, operands, recorded

from ocaffe.cl.device import select_device
from ocaffe.ops import conv_gpu, gemm_gpu, winograd_gpu
from tests.harness import execute


def peer(x: Any, w: Any, dy: Any, pad: int, groups: int) -> list[Any]:
    """y, dx, dw."""
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    y = torch.nn.functional.conv2d(x, w, padding=pad, groups=groups)
    y.backward(dy)
    return [y.detach(), x.grad, w.grad]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device")
    parser.add_argument("--math", default="fp32")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--only", nargs="*", default=[""])
    options = parser.parse_args()
    device = select_device(options.device, math=options.math)
    target = replace(device.target, kind="gpu")
    where = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    print("| layer | direction | direct, max, rms | Winograd | PyTorch strict |")
    print("|---|---|---|---|---|")
    for name in (name for name in WINOGRAD if any(text in name for text in options.only)):
        g = geometry(options.batch, *WINOGRAD[name])
        x = torch.randn(g.batch, g.channels, *g.size[1:], device=where).relu()
        w = torch.randn(g.num_output, g.group_channels, 3, 3, device=where) * (2 / g.depth) ** 0.5
        dy = torch.randn(g.batch, g.num_output, *g.out[1:], device=where)
        exact = peer(x.double(), w.double(), dy.double(), g.pad[1], g.group)
        strict = peer(x, w, dy, g.pad[1], g.group)
        rx, rw, ry = operands(g)
        feeds = {rx: x.cpu().numpy(), rw: w.cpu().numpy()}
        back = winograd_gpu.turned(g)
        for index, (direction, result, direct, winograd) in enumerate((
            ("forward", ry, partial(conv_gpu.forward, g=g, x=rx, w=rw, bias=None, y=ry), partial(winograd_gpu.forward, g=g, x=rx, w=rw, bias=None, y=ry)),
            ("backward_data", rx, partial(conv_gpu.backward_data, g=g, dy=ry, w=rw, dx=rx),
             partial(winograd_gpu.forward, g=back, x=ry, w=rw, bias=None, y=rx, back=True)),
            ("backward_filter", rw, partial(conv_gpu.backward_filter, g=g, x=rx, dy=ry, dw=rw),
             partial(winograd_gpu.backward_filter, g=g, x=rx, dy=ry, dw=rw)),
        )):  # fmt: skip
            tiles = conv_gpu.tiles(target, g, direction)
            choice = next((tile for tile in tiles if tile.mma and tile.item_rows * tile.item_columns <= 64), tiles[1])
            given = {ref: array for ref, array in {**feeds, ry: dy.cpu().numpy()}.items() if ref is not result}
            found = [strict[index].cpu().numpy()]
            for record in (winograd, partial(direct, choice=gemm_gpu.Choice(choice))):
                rec = recorded(target, record)
                found.insert(0, execute(rec, device.context, given, [result])[0])
            want = exact[index].cpu().numpy()
            cells = []
            for got in found:
                error = np.abs(got.reshape(want.shape) - want) / np.abs(want).max()
                cells.append(f"{error.max():.1e}, {np.sqrt((error**2).mean()):.1e}")
            print(f"| {name} | {direction} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
