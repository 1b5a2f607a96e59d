"""GPUs that this machine has but OpenCL does not show, and the packages with their makers' OpenCL, by package manager of the distribution."""
from __future__ import annotations

import glob
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_PCI = {"0x1002": "AMD", "0x8086": "Intel", "0x10de": "NVIDIA"}  # numbers of vendors
_CARDS = "/sys/class/drm/card[0-9]*/device/vendor"
_NODES = "/dev/kfd", "/dev/dri/renderD*"  # ROCm opens the first, all drivers of AMD and Intel the others
GROUPS = "sudo usermod -aG render,video $USER, then log in again"


class Package(NamedTuple):
    """A driver with OpenCL: the commands of package managers, and a note."""

    maker: str
    commands: dict[str, str]
    note: str = ""


PACKAGES = (
    Package("AMD", {
        "apt-get": "sudo apt-get install rocm-opencl-icd", "dnf": "sudo dnf install rocm-opencl", "pacman": "sudo pacman -S rocm-opencl-runtime",
    }, "ROCm: recent cards; the package is in Debian 13 and Ubuntu 25.10 and later"),
    Package("AMD", {
        "apt-get": "sudo apt-get install mesa-opencl-icd", "dnf": "sudo dnf install mesa-libOpenCL", "pacman": "sudo pacman -S opencl-mesa",
    }, "Mesa's rusticl: also older cards; set RUSTICL_ENABLE=radeonsi"),
    Package("Intel", {
        "apt-get": "sudo apt-get install intel-opencl-icd", "dnf": "sudo dnf install intel-opencl", "pacman": "sudo pacman -S intel-compute-runtime",
    }),
    Package("NVIDIA", {
        "apt-get": "sudo apt-get install nvidia-opencl-icd", "dnf": "sudo dnf install xorg-x11-drv-nvidia-cuda", "pacman": "sudo pacman -S opencl-nvidia",
    }, "Ubuntu's driver packages already have OpenCL; Fedora's is in RPM Fusion"),
)  # fmt: skip


def makers_of_cards(pattern: str = _CARDS) -> list[str]:
    """Return the makers of the GPUs that Linux's kernel lists, each once; [] on other systems."""
    found = []
    for path in sorted(glob.glob(pattern)) if sys.platform == "linux" else ():
        try:
            found.append(_PCI.get(Path(path).read_text(encoding="ascii").strip(), ""))
        except OSError:
            continue
    return [maker for maker in dict.fromkeys(found) if maker]


def maker_of(device: Any) -> str:
    """Return the maker of a pyopencl.Device, '' if it is another one."""
    return _PCI.get(f"0x{getattr(device, 'vendor_id', 0):04x}", "")


def commands_for(maker: str, has: Callable[[str], object]) -> Iterator[str]:
    """Yield the commands that install OpenCL for the GPUs of `maker`. `has` tells whether a package manager is installed."""
    for package in PACKAGES:
        command = next((command for tool, command in package.commands.items() if package.maker == maker and has(tool)), None)
        if command:
            yield command + (f" ({package.note})" if package.note else "")


def closed_nodes(patterns: Sequence[str] = _NODES) -> list[str]:
    """Return the device files of GPUs that this user must not open. Drivers then find no device, and say nothing."""
    return [path for pattern in patterns for path in sorted(glob.glob(pattern)) if not os.access(path, os.R_OK | os.W_OK)]
