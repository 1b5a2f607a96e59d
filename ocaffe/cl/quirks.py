"""What devices do otherwise than they say: one table, a reason per row.

A row applies when every pattern it states is found in the device's facts. `limits` are upper bounds on fields of Target; `options` go to the compiler;
`avoid` ranks the device behind all others and warns when it is used all the same.
"""
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ocaffe.ir.target import Target


@dataclass(frozen=True)
class Facts:
    """The strings by which devices are told apart."""

    platform: str
    platform_version: str
    device: str = ""
    driver: str = ""
    kind: str = "cpu"  # 'cpu' or 'gpu'


@dataclass(frozen=True)
class Quirk:
    reason: str
    platform: str = ""  # regular expressions, searched without regard to case
    platform_version: str = ""
    device: str = ""
    driver: str = ""
    kind: str = ""
    limits: Mapping[str, int] = field(default_factory=dict)
    options: str = ""  # for its compiler
    avoid: bool = False

    def applies(self, facts: Facts) -> bool:
        patterns = ("platform", "platform_version", "device", "driver", "kind")
        return all(re.search(getattr(self, name), getattr(facts, name), re.IGNORECASE) for name in patterns)


QUIRKS = (
    Quirk(
        "PoCL before 3.1 is four times slower (fma() is a library call), and 16-wide vectors abort its compiler",
        platform="portable computing language",
        platform_version=r"PoCL ([012]\.|3\.0)",
        limits={"vector_width": 8},
        avoid=True,
    ),
    Quirk(
        "Oclgrind interprets kernels to find errors in them: far too slow to train with; it does not know LLVM's prefetch",
        platform="oclgrind",
        options="-DNO_PREFETCH",
        avoid=True,
    ),
    Quirk("this device emulates an FPGA", device="fpga emulation", avoid=True),
    Quirk("OpenCL on Direct3D is a second, slower way to a GPU that has a driver of its own", platform="OpenCLOn12", avoid=True),
    Quirk("this is no GPU: Direct3D's software renderer", device="microsoft basic render", avoid=True),
    Quirk("Mesa's Clover is unmaintained: Rusticl took its place", platform="^clover", avoid=True),
    Quirk(
        "Apple's CPU runtime runs kernels with barriers in groups of one work-item only",
        platform="^apple",
        kind="cpu",
        limits={"max_work_group": 1},
    ),
)


def quirks_of(facts: Facts) -> tuple[Quirk, ...]:
    """The rows that apply to a device."""
    return tuple(quirk for quirk in QUIRKS if quirk.applies(facts))


def limited(target: Target, quirks: tuple[Quirk, ...]) -> Target:
    """The target within the limits of its quirks."""
    for quirk in quirks:
        target = replace(target, **{name: min(getattr(target, name), bound) for name, bound in quirk.limits.items()})
    return target
