"""Instructions that NVIDIA's OpenCL compiler refuses: Hopper's wgmma, mbarriers and bulk copies. Programs with them are built in two steps.

The compiler's target is sm_90, and these instructions belong to sm_90a. A kernel therefore has each of them as a comment of inline assembly, on one line,
with its operands:

    asm volatile("//@mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(count) : "memory");

Step 1 builds the OpenCL C. The binary of NVIDIA's driver is PTX, a text. Its comments have registers in place of the operands. `opened` makes
instructions of them and renames the target. Step 2 builds the result as a binary. The cache keeps that PTX, so a warm start has one build, as of any
other program. Programs with the define WGMMA are built so, and no others.
"""
from __future__ import annotations

import re
from collections.abc import Iterable

DEFINE = "WGMMA"
FIRST, SECOND = "step 1 of 2: OpenCL C to PTX", "step 2 of 2: PTX with the instructions of sm_90a"
_MARK = b"//@"
_COMMENT = re.compile(rb"^([ \t]*)//@[ \t]*(?=\S)", re.MULTILINE)
_TARGET = re.compile(rb"^([ \t]*\.target[ \t]+)([^\s,]+)", re.MULTILINE)
_GROUP = re.compile(rb"^([ \t]*)(?=\.reqntid\b)", re.MULTILINE)


class PTXError(ValueError):
    """A binary that cannot be opened: it is no PTX, its target is another one, or it lacks the instructions."""


def opens(defines: Iterable[tuple[str, str]]) -> bool:
    """Whether a program with these defines is built in two steps."""
    return any(name == DEFINE for name, _ in defines)


def opened(binary: bytes) -> bytes:
    """Return the PTX for sm_90a, with the instructions of its comments. `binary`: of step 1. Raises PTXError."""
    targets = [match[2].decode(errors="replace") for match in _TARGET.finditer(binary)]
    if targets != ["sm_90"]:
        raise PTXError(f"the binary is not PTX for sm_90; its targets: {', '.join(targets) or 'none'}")
    ptx, count = _COMMENT.subn(rb"\1", binary)
    if not count:
        raise PTXError(f"the PTX has no instruction marked by {_MARK.decode()}: the compiler left the comments out")
    if _MARK in ptx:
        line = next(line for line in ptx.split(b"\n") if _MARK in line)
        raise PTXError(f"the PTX has a mark {_MARK.decode()} that does not begin an instruction on a line of its own: {line.decode(errors='replace').strip()}")
    # setmaxnreg moves registers between warps only if the compiler knows how many each has at the start.
    return _GROUP.sub(rb"\1.minnctapersm 1 ", _TARGET.sub(rb"\1sm_90a", ptx))
