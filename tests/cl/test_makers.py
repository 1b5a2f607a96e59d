"""GPUs of the machine for which there is no OpenCL: who made them, and the packages of distributions."""
from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from ocaffe.cl.device import System, gpu_remedy
from ocaffe.cl.makers import PACKAGES, closed_nodes, commands_for, maker_of, makers_of_cards

pytestmark = pytest.mark.quick

ROOT = Path(__file__).resolve().parents[2]


def test_makers_of_cards(tmp_path: Path) -> None:
    for number, vendor in enumerate(("0x1002", "0x8086", "0x1002", "0x1a03", "0x10de")):  # 0x1a03: the screen of a server
        (tmp_path / f"card{number}" / "device").mkdir(parents=True)
        (tmp_path / f"card{number}" / "device" / "vendor").write_text(f"{vendor}\n")
    assert makers_of_cards(f"{tmp_path}/card[0-9]*/device/vendor") == ["AMD", "Intel", "NVIDIA"]
    assert makers_of_cards(f"{tmp_path}/none*/vendor") == []
    assert [maker_of(SimpleNamespace(vendor_id=number)) for number in (0x1002, 0x8086, 0x10DE, 0x13B5)] == ["AMD", "Intel", "NVIDIA", ""]


@pytest.mark.parametrize("tool", ["apt-get", "dnf", "pacman"])
def test_every_maker_has_a_command_for_every_distribution(tool: str) -> None:
    for maker in ("AMD", "Intel", "NVIDIA"):
        commands = [*commands_for(maker, lambda name: name == tool)]
        assert commands and all(tool in command for command in commands)
    assert not [*commands_for("AMD", lambda name: name == "zypper")]


def test_the_page_has_the_same_packages() -> None:
    page = (ROOT / "docs" / "platforms.md").read_text()
    for package in PACKAGES:
        assert all(command.split()[-1] in page for command in package.commands.values()), package


def test_remedy() -> None:
    system = System("linux", "x86_64", glibc=True, has=lambda name: name == "apt-get", cards=["AMD", "NVIDIA"], closed=["/dev/kfd"])
    remedy = gpu_remedy(system)
    assert "for the GPU of AMD: sudo apt-get install rocm-opencl-icd" in remedy and "mesa-opencl-icd" in remedy and "for the GPU of NVIDIA" in remedy
    assert "this user must not open /dev/kfd: sudo usermod -aG render,video" in remedy
    assert "AMD" not in gpu_remedy(system, {"AMD"}) and gpu_remedy(system, {"AMD", "NVIDIA"}) == ""
    assert "the package with OpenCL of your distribution" in gpu_remedy(system._replace(has=lambda name: False))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may open all files")
def test_closed_nodes(tmp_path: Path) -> None:
    (tmp_path / "renderD128").touch(mode=0)
    assert closed_nodes([f"{tmp_path}/renderD*"]) == [f"{tmp_path}/renderD128"]
