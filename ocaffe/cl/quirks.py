"""Known defects of devices and runtimes, as one table with a reason per row.

A row applies if every pattern in it matches the device's facts. `limits` are upper bounds on fields of Target. `options`
are passed to the compiler. `avoid` ranks the device behind all others, and selecting it logs a warning.
"""
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ocaffe.ir.target import Target


@dataclass(frozen=True)
class Facts:
    """The strings that identify a device."""

    platform: str
    platform_version: str
    device: str = ""
    driver: str = ""
    kind: str = "cpu"  # 'cpu' or 'gpu'


@dataclass(frozen=True)
class Quirk:
    reason: str
    platform: str = ""  # regular expressions; upper and lower case are equal
    platform_version: str = ""
    device: str = ""
    driver: str = ""
    kind: str = ""
    limits: Mapping[str, int] = field(default_factory=dict)
    options: str = ""  # for the device's compiler
    avoid: bool = False
    fence: bool = True  # False: no work-group relies on the memory of others (Target.device_fence)

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
        "PoCL 3.1 miscompiles kernels that return early between two barriers",
        platform="portable computing language",
        platform_version=r"PoCL ([012]\.|3\.[01])",
        kind="gpu",
        fence=False,
    ),
    Quirk(
        "Oclgrind interprets kernels to find errors in them and is too slow for training; it does not support LLVM's prefetch",
        platform="oclgrind",
        options="-DNO_PREFETCH",
        avoid=True,
    ),
    Quirk("Mesa's rusticl ends the process at LLVM's prefetch", platform="^rusticl", kind="cpu", options="-DNO_PREFETCH"),
    Quirk("this device emulates an FPGA", device="fpga emulation", avoid=True),
    Quirk("OpenCL on Direct3D is slower than the GPU's own driver", platform="OpenCLOn12", avoid=True),
    Quirk("this is Direct3D's software renderer, not a GPU", device="microsoft basic render", avoid=True),
    Quirk("Mesa's Clover is unmaintained and replaced by Rusticl", platform="^clover", avoid=True),
    Quirk(
        "Apple's CPU runtime runs kernels with barriers in groups of one work-item only",
        platform="^apple",
        kind="cpu",
        limits={"max_work_group": 1},
    ),
)


def quirks_of(facts: Facts) -> tuple[Quirk, ...]:
    """Return the rows that apply to a device."""
    return tuple(quirk for quirk in QUIRKS if quirk.applies(facts))


def limited(target: Target, quirks: tuple[Quirk, ...]) -> Target:
    """Return the target with the limits of its quirks."""
    for quirk in quirks:
        target = replace(target, **{name: min(getattr(target, name), bound) for name, bound in quirk.limits.items()})
        target = target if quirk.fence else replace(target, device_fence="")
    return target
