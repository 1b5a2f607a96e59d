#!/usr/bin/env python3
"""Hardware counters of the longest launches of a training step on an NVIDIA GPU: DRAM bytes and the share of the tensor cores, by Nsight Compute.

    benchmarks/counters.py [NET ...] [--batch 64] [--math bf16] [--launches 10] [--json FILE]

Nsight Compute cannot see OpenCL. So a step runs up to a launch, and the PTX of its program, its arguments and the contents of its operands are written to a
temporary folder. A second process launches the same PTX by CUDA's driver API, below `ncu`, and its results are compared with those of OpenCL. Operands of more
than 64 MiB in all are zeros there, and are not compared: the bytes that a launch moves do not depend on them, and copies would take most of the time.

`operands`: bytes of the operands, each moved once. `DRAM`: bytes that the memory read and wrote, with cold caches. `tensor`: share of the time in which the
tensor cores are active. `same`: the launch by CUDA wrote what OpenCL wrote; None: it was not compared. Needs `ncu` on the PATH.
"""
from __future__ import annotations

import argparse
import csv
import ctypes
import io
import json
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from recompute import solver_of  # first: it makes ocaffe importable
from resident import ROOT

from ocaffe import log
from ocaffe.cl.command_list import CommandList
from ocaffe.cl.device import select_device
from ocaffe.ir.launch import HOST
from ocaffe.profiling.profile import moved_bytes, shortened
from ocaffe.solver.solver import Solver

NETS = ("alexnet", "googlenet", "resnet18", "resnet50", "vgg16", "mobilenet_v2")
METRICS = {
    "read": "dram__bytes_read.sum", "written": "dram__bytes_write.sum", "ns": "gpu__time_duration.sum",
    "tensor": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
}  # fmt: skip
ALIGNMENT = 256  # bytes, which an operand keeps of its place
COMPARED = 64 << 20  # bytes of a launch's operands up to which their contents are kept
STATIC = 48 << 10  # bytes of local memory that CUDA allows without a request


@dataclass
class Region:
    """Bytes of a buffer, before the launch and after it, or zeros that are not compared."""

    size: int
    before: np.ndarray | None = None
    after: np.ndarray | None = None


@dataclass
class Recorded:
    """A launch for the second process. An argument is a scalar, or the number of a region."""

    ptx: bytes
    function: str
    groups: tuple[int, ...]
    local: tuple[int, ...]
    arguments: list[Any]
    regions: list[Region]


def spans(commands: CommandList, step: int, slot: int) -> list[tuple[Any, int, int]]:
    """Return buffer, first byte and end of each operand of a launch."""
    found = []
    for operand in commands.schedule[step].operands:
        buffer, offset = commands.locate(operand.ref, slot)
        ref, item = operand.ref, operand.ref.dtype.itemsize
        found.append((buffer, offset * item, (offset + ref.root_end - ref.root_offset) * item))
    return found


def recorded(commands: CommandList, step: int) -> Recorded:
    """Run the schedule up to a launch, and then this launch. Return it."""
    session, slot = commands.session, commands.runs + 1
    device, launch = session.device, commands.schedule[step]
    call = launch.final()
    assert call.local is not None
    places = spans(commands, step, slot)
    merged: list[list[Any]] = []  # overlapping operands are one region
    for buffer, start, end in sorted(places, key=lambda place: (place[0].int_ptr, place[1])):
        start = start // ALIGNMENT * ALIGNMENT
        if merged and merged[-1][0] is buffer and start < merged[-1][2]:
            merged[-1][2] = max(end, merged[-1][2])
        else:
            merged.append([buffer, start, end])

    def contents() -> list[np.ndarray]:
        arrays = [np.empty(end - start, np.uint8) for _, start, end in merged]
        for array, (buffer, start, _) in zip(arrays, merged):
            device.cl.enqueue_copy(device.queue, array, buffer, src_offset=start, is_blocking=True)
        return arrays

    regions = [Region(end - start) for _, start, end in merged]
    if sum(region.size for region in regions) <= COMPARED:
        commands.run(0, step)
        for region, array in zip(regions, contents()):
            region.before = array
        commands.run(step, step + 1)
        for region, array in zip(regions, contents()):
            region.after = array
        commands.run(step + 1)
    arguments: list[Any] = []
    for operand, (buffer, first, _) in zip(launch.operands, places):
        number, start = next((number, start) for number, (other, start, end) in enumerate(merged) if other is buffer and start <= first < max(end, start + 1))
        arguments += [number, np.uint64((first - start) // operand.ref.dtype.itemsize), np.uint64(operand.ref.batch_stride)]
    groups = tuple(-(-size // local) for size, local in zip(call.size, call.local))
    binary = session.programs[commands._key(call)].binaries[0]
    return Recorded(binary, call.function, groups, call.local, [*arguments, *call.scalars], regions)


def for_cuda(ptx: bytes, function: str, groups: Sequence[int]) -> tuple[bytes, int]:
    """Return PTX that CUDA takes, and the bytes of local memory that a launch must request.

    OpenCL's registers of the environment hold offsets, which are 0, and from %envreg6 on the number of work-groups. CUDA refuses more than 48 KiB of static
    local memory, so the function's array becomes the launch's.
    """
    counts = {f"%envreg{6 + axis}": str(count) for axis, count in enumerate((*groups, 1, 1)[:3])}
    text = re.sub(r"%envreg\d+", lambda match: counts.get(match[0], "0"), ptx.decode().rstrip("\0").replace(", texmode_independent", ""))
    size = 0
    for match in re.finditer(r"^[ \t]*\.shared (\.align \d+ \.b8) (\w+)\[(\d+)\];", text, re.MULTILINE):
        if int(match[3]) > STATIC // 2:
            size = max(size, int(match[3])) if function in match[2] or not size else size
            text = text.replace(match[0], "", 1)
            text = re.sub(r"^(\.address_size \d+)$", rf"\1\n.extern .shared {match[1]} {match[2]}[];", text, count=1, flags=re.MULTILINE)
    return text.encode() + b"\0", size


# -- the second process ----------------------------------------------------------------------------------------------


class Cuda:
    """CUDA's driver API."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDeviceGet", ctypes.byref(device), 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("cuCtxSetCurrent", context)

    def __call__(self, name: str, *arguments: Any) -> None:
        if status := getattr(self._library, name)(*arguments):
            raise SystemExit(f"{name}: status {status}")

    def array(self, region: Region) -> ctypes.c_uint64:
        pointer, values = ctypes.c_uint64(), region.before
        self("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(region.size, ALIGNMENT)))
        if values is None:
            self("cuMemsetD8_v2", pointer, 0, ctypes.c_size_t(region.size))
        else:
            self("cuMemcpyHtoD_v2", pointer, values.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(values.nbytes))
        return pointer


def replay(cuda: Cuda, launch: Recorded) -> bool | None:
    """Launch once. Return whether the results are those of OpenCL. None: it was not compared."""
    ptx, memory = for_cuda(launch.ptx, launch.function, launch.groups)
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    cuda("cuModuleLoadData", ctypes.byref(module), ptx)
    cuda("cuModuleGetFunction", ctypes.byref(function), module, launch.function.encode())
    if memory:
        cuda("cuFuncSetAttribute", function, 8, memory)  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    pointers = list(map(cuda.array, launch.regions))
    values = [pointers[value] if isinstance(value, int) else np.ctypeslib.as_ctypes_type(value.dtype)(value.item()) for value in launch.arguments]
    array = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    sizes = [(*size, 1, 1)[:3] for size in (launch.groups, launch.local)]
    cuda("cuLaunchKernel", function, *sizes[0], *sizes[1], memory, None, array, None)
    cuda("cuCtxSynchronize")
    same = None if any(region.after is None for region in launch.regions) else True
    for pointer, region in zip(pointers, launch.regions):
        if region.after is not None:
            found = np.empty_like(region.after)
            cuda("cuMemcpyDtoH_v2", found.ctypes.data_as(ctypes.c_void_p), pointer, ctypes.c_size_t(found.nbytes))
            same = same and np.array_equal(found, region.after)
        cuda("cuMemFree_v2", pointer)
    cuda("cuModuleUnload", module)
    return same


def replay_all(folder: Path) -> None:
    cuda = Cuda()
    for path in sorted(folder.glob("*.pickle")):
        print("same", path.stem, replay(cuda, pickle.loads(path.read_bytes())), flush=True)


# -- the first process -----------------------------------------------------------------------------------------------


def longest(solver: Solver, most: int) -> Iterator[tuple[int, float, int]]:
    """Yield step, seconds and bytes of the operands of the longest launches."""
    (commands,) = solver.session.command_lists
    with solver.session.timed() as timeline:
        for _ in range(3):
            solver.step(1)
            solver.session.device.queue.finish()
            timeline.collect()
    seconds = {launch: taken for launch, taken in timeline.seconds().items() if not isinstance(launch, HOST)}
    wanted = {ref.root for launch in seconds for ref in launch.reads}
    for launch in sorted(seconds, key=lambda launch: -seconds[launch])[:most]:
        yield commands.schedule.index(launch), seconds[launch], moved_bytes(launch, wanted)


def counters(folder: Path) -> tuple[list[dict[str, float]], list[bool | None]]:
    """Run the second process below ncu. Return the counters of each launch, and whether its results are the same."""
    command = ["ncu", "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--metrics", ",".join(METRICS.values()),
               sys.executable, str(Path(__file__).resolve()), "--replay", str(folder)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    said = {"True": True, "False": False, "None": None}
    same = [said[line.split()[-1]] for line in done.stdout.splitlines() if line.startswith("same ")]
    rows = list(csv.DictReader(io.StringIO("\n".join(line for line in done.stdout.splitlines() if line.startswith('"')))))
    if done.returncode or len(rows) != len(same) + 1:
        raise SystemExit(f"ncu: status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return [{name: float(row[metric].replace(",", "")) for name, metric in METRICS.items()} for row in rows[1:]], same  # the first row has the units


def measured(net: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    solver = solver_of(net, options.batch, select_device(options.device, math=options.math), "auto")
    solver.step(3)
    (commands,) = solver.session.command_lists
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        for step, seconds, moved in longest(solver, options.launches):
            launch = commands.schedule[step]
            call = launch.final()
            kernel = launch.what if call.generated else call.function
            (Path(name) / f"{len(rows):02}.pickle").write_bytes(pickle.dumps(recorded(commands, step), protocol=5))
            rows.append({"layer": launch.layer, "phase": launch.phase, "kernel": kernel, "ms": 1e3 * seconds, "operands": moved})
        solver.close()
        for row, values, same in zip(rows, *counters(Path(name))):
            row.update(values, same=same)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", default=list(NETS), metavar="NET")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--math", default="bf16")
    parser.add_argument("--device", default="nvidia")
    parser.add_argument("--launches", type=int, default=10)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--replay", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.replay:
        replay_all(options.replay)
        return
    log.quiet(2)
    table: dict[str, Any] = {"batch": options.batch, "math": options.math, "nets": {}}
    print("| net | layer | phase | kernel | ms | ms by CUDA | operands, MB | DRAM, MB | ratio | TB/s | tensor, % | same |\n|" + "---|" * 12)
    for net in options.nets:
        table["nets"][net] = rows = measured(net, options)
        for row in rows:
            moved = row["read"] + row["written"]
            print(f"| {net} | {row['layer']} | {row['phase']} | {shortened(row['kernel'], 40)} | {row['ms']:.3f} | {1e-6 * row['ns']:.3f} | "
                  f"{1e-6 * row['operands']:.0f} | {1e-6 * moved:.0f} | {moved / row['operands']:.2f} | {moved / row['ns'] / 1000:.2f} | "
                  f"{row['tensor']:.0f} | {row['same']} |", flush=True)  # fmt: skip
        operands, moved = (sum(sum(row[name] for name in names) for row in rows) for names in (("operands",), ("read", "written")))
        print(f"| {net} | together | | | {sum(row['ms'] for row in rows):.3f} | | {1e-6 * operands:.0f} | {1e-6 * moved:.0f} | {moved / operands:.2f} | | | |")
        if options.json:
            (ROOT / options.json).write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
