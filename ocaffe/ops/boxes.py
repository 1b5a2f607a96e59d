"""Launches over the boxes of images: kernels/detection.cl, kernels/multibox.cl."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref

GROUP = 64


def over(rec: Recorder, kernel: str, size: tuple[int, ...], reads: Sequence[Ref], writes: Sequence[Ref], *args: Any, **more: Any) -> None:
    """Record a launch with one work-item per element of `size`. CPU runtimes loop over the work-items of a group."""
    rec.launch(
        kernel, reads=reads, writes=writes, args=[size[0], *args], size=size, local=(rec.target.group(GROUP), *[1] * (len(size) - 1)), **more
    )
