"""Compile a program for an Intel GPU by ocloc, and read what its kernels need. tests/portability/tools.sh fetches ocloc; no GPU is needed."""
from __future__ import annotations

import pathlib
import re
import subprocess
import tempfile

from tests.portability.compiler import TOOLS, Built, Kernel

REGISTER_BYTES = {"pvc": 64, "bmg": 64}  # else 32
KERNELS = re.compile(r"^kernels:\n((?: .*\n)+)", re.MULTILINE)  # in the binary's section .ze_info, which is YAML
ENTRY = re.compile(r"^  - name: +(\w+)\n((?:    .*\n)+)", re.MULTILINE)


def version() -> str:
    """Return the name and version of ocloc."""
    return "ocloc " + next((TOOLS / "root/usr/bin").glob("ocloc-*")).name.removeprefix("ocloc-")


def build(source: pathlib.Path, device: str, options: str) -> Built:
    """Compile one file. `device` is ocloc's name: tgl, dg2, pvc, bmg."""
    with tempfile.TemporaryDirectory() as folder:
        command = [TOOLS / "ocloc", "compile", "-file", source, "-device", device, "-options", options, "-output", "x", "-output_no_suffix", "-out_dir", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        if done.returncode:
            return Built(re.findall(r"error: (.*)", said) or [said.strip()[-300:]], {})
        text = pathlib.Path(folder, "x.bin").read_bytes().decode("latin-1")
    section = KERNELS.search(text)
    assert section, f"{source}: the binary has no list of kernels"
    kernels: dict[str, Kernel] = {}
    for name, entry in ENTRY.findall(section[1]):
        if name.startswith("Intel_"):  # of the runtime
            continue
        facts = dict(re.findall(r"^    +(\w+): +(\S+)$", entry, re.MULTILINE))
        kernels[name] = {
            "registers": int(facts["grf_count"]), "simd": int(facts["simd_size"]), "local": int(facts.get("slm_size", 0)),
            "spilled": int(facts.get("spill_size", 0)) // REGISTER_BYTES.get(device, 32),
        }  # fmt: skip
    return Built([], kernels)
