"""Compile the products on matrix units by their makers' compilers, and count the instructions: `python -m tests.portability.matrix_units [DEVICE ...]`.

No GPU is needed. PORTABILITY_TOOLS is a folder with the commands `clang-21` (with AMD's device libraries below root/) and `ocloc`. The result is
benchmarks/matrix_units.json, from which docs/make_matrix_units.py makes its tables. The exit status is 1 if a program has errors, scratch, spilled
registers, or another number of instructions than predicted.
"""
from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from ocaffe.cl.program import OPTIONS, ProgramKey, program_text
from ocaffe.ir import matrix_units
from ocaffe.ir.launch import Call
from ocaffe.ir.matrix_units import UNITS
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.convolution.dense_gpu import conv_gpu
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.matmul import gemm_gpu
from ocaffe.kernels.matmul.gemm_gpu import Choice, Tile

TOOLS = pathlib.Path(os.environ.get("PORTABILITY_TOOLS", "/tmp/portability-tools"))
RESULT = pathlib.Path(__file__).resolve().parents[2] / "benchmarks/matrix_units.json"
DEVICES = {
    "gfx908": "MFMA of CDNA", "gfx90a": "MFMA of CDNA 2", "gfx942": "MFMA of CDNA 3", "gfx1100": "WMMA of RDNA 3", "gfx1201": "WMMA of RDNA 4",
    "dg2": "DPAS of Xe-HPG", "pvc": "DPAS of Xe-HPC and Xe2", "bmg": "DPAS of Xe-HPC and Xe2",
}  # fmt: skip
# Intel's compiler puts DPAS without a sum before some loops for dg2. They are no products of the program.
INSTRUCTION = re.compile(r"^\s+(?:\([^)]*\)\s*)?(v_mfma_\w+|v_wmma_\w+|dpasw?\.\w+)\b(?!.*\bnull:f)", re.MULTILINE)
REMARK = re.compile(r"remark: +(Function Name|VGPRs|AGPRs|ScratchSize \[bytes/lane\]|Occupancy \[waves/SIMD\]|LDS Size \[bytes/block\]): (\S+)")


class Product(NamedTuple):
    """A product on one tile of a unit, as recorded."""

    math: str
    tile: Tile
    call: Call


class Built(NamedTuple):
    """instructions: names of the unit's instructions in the kernel. registers: of a work-item (AMD), or of a thread (Intel). spilled: bytes."""

    instructions: list[str]
    registers: int
    spilled: int
    occupancy: int  # waves of a SIMD unit; 0: not said


def products(unit: str) -> Iterator[Product]:
    """Yield a matrix product and the three directions of a convolution with a window of 3 x 3, on each tile in each mode."""
    g = ConvGeometry(8, 256, 256, 1, (1, 14, 14), (1, 14, 14), (1, 3, 3), (1, 1, 1), (0, 1, 1), (1, 1, 1))
    for math in UNITS[unit].depth:
        for tile in gemm_gpu.unit_tiles(unit, math):
            rec = Recorder(Target(kind="gpu", runtime="amd", compute_units=60, matrix_unit=unit, math=math), train=True)
            rec.enter("layer", "forward")
            a, b, c = (Ref(name, (512, 512), Role.ACTIVATION) for name in "abc")
            x, y, w = (Ref(name, shape, Role.ACTIVATION) for name, shape in (("x", g.input_shape), ("y", g.output_shape), ("w", g.weight_shape)))
            gemm_gpu.record(rec, a, b, c, False, True, None, Choice(tile))
            choice = Choice(conv_gpu.with_step(g, tile))
            conv_gpu.forward(rec, g, x, w, None, y, choice)
            conv_gpu.backward_data(rec, g, y, w, x, choice)
            if any((other.rows, other.columns) == (tile.rows, tile.columns) for other in conv_gpu.tiles(rec.target, g, "backward_filter") if other.unit):
                conv_gpu.backward_filter(rec, g, x, y, w, choice)
            yield from (Product(math, tile, launch.call) for launch in rec.launches if launch.call is not None and not launch.kernel.can.helper)


def predicted(unit: str, product: Product) -> int:
    """Return the instructions of one step: products of a wave's rows, columns and depth."""
    own, tile = UNITS[unit], product.tile
    return tile.item_rows * (tile.item_columns // own.columns) * (tile.depth // own.depth[product.math])


def build(device: str, product: Product) -> Built:
    text = program_text(ProgramKey(product.call.program, product.call.defines))
    options = f"{OPTIONS} {matrix_units.compiler_options(dict(product.call.defines))}".strip()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "x.cl").write_text(text, encoding="utf-8")
        return (_amd if device.startswith("gfx") else _intel)(folder, device, options, product.call.function)


def _run(command: list[Any]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def _amd(folder: pathlib.Path, device: str, options: str, function: str) -> Built:
    libraries = TOOLS / "root/usr/lib/llvm-21/lib/clang/21/amdgcn/bitcode"
    said = _run([TOOLS / "clang-21", "-x", "cl", "-O3", "-target", "amdgcn-amd-amdhsa", f"-mcpu={device}", f"--rocm-device-lib-path={libraries}",
                 "-Rpass-analysis=kernel-resource-usage", *options.split(), "-S", folder / "x.cl", "-o", folder / "x.s"])  # fmt: skip
    own = said.partition(f"Function Name: {function}")[2].partition("Function Name:")[0]
    facts = dict(REMARK.findall(own))
    registers = int(facts["VGPRs"]) + int(facts.get("AGPRs", 0))
    text = (folder / "x.s").read_text(encoding="utf-8")
    return Built(INSTRUCTION.findall(text), registers, int(facts["ScratchSize [bytes/lane]"]), int(facts["Occupancy [waves/SIMD]"]))


def _intel(folder: pathlib.Path, device: str, options: str, function: str) -> Built:
    output = ["-output", "x", "-output_no_suffix", "-out_dir", folder]
    _run([TOOLS / "ocloc", "compile", "-file", folder / "x.cl", "-device", device, "-options", options, *output])
    _run([TOOLS / "ocloc", "disasm", "-file", folder / "x.bin", "-device", device, "-dump", folder])
    info = (folder / ".ze_info").read_text(encoding="utf-8")
    entry = re.search(rf"^  - name: +{function}\n((?:    .*\n)+)", info, re.MULTILINE)
    assert entry, f"{device}: no kernel {function}"
    facts = dict(re.findall(r"^    +(\w+): +(\S+)$", entry[1], re.MULTILINE))
    text = (folder / f".text.{function}.asm").read_text(encoding="utf-8")
    return Built(INSTRUCTION.findall(text), int(facts["grf_count"]), int(facts.get("spill_size", 0)), 0)


def rows(device: str) -> Iterator[dict[str, Any]]:
    unit = DEVICES[device]
    for product in products(unit):
        built, each, tile = build(device, product), predicted(unit, product), product.tile
        yield {
            "device": device, "unit": unit, "math": product.math, "kernel": product.call.function, "tile": f"{tile.rows} x {tile.columns}",
            "instruction": ", ".join(sorted(set(built.instructions))), "predicted": each, "found": len(built.instructions), "registers": built.registers,
            "spilled": built.spilled, "occupancy": built.occupancy,
        }  # fmt: skip


def wrong(row: dict[str, Any]) -> bool:
    """Whether a program has scratch or spills, or another number of instructions than predicted. AMD's compiler makes two copies of the loop's body."""
    copies = 2 if row["device"].startswith("gfx") else 1
    return bool(row["spilled"]) or row["found"] != copies * row["predicted"]


def main() -> None:
    devices = sys.argv[1:] or list(DEVICES)
    old = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else []
    found = [row for row in old if row["device"] not in devices]
    for device in devices:
        own = list(rows(device))
        found += own
        print(f"{device}: {len(own)} programs, {sum(map(wrong, own))} wrong", flush=True)
        for row in filter(wrong, own):
            print(f"  {row}")
    order = list(DEVICES)
    RESULT.write_text("[\n" + ",\n".join(json.dumps(row) for row in sorted(found, key=lambda row: order.index(row["device"]))) + "\n]\n", encoding="utf-8")
    sys.exit(any(map(wrong, found)))


if __name__ == "__main__":
    main()
