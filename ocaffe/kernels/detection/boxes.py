"""Launches over the boxes of images: detection.cl, multibox.cl."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ocaffe.ir.kernel import Given
from ocaffe.ir.recorder import Recorder

GROUP = 64


def over(rec: Recorder, given: Given, size: tuple[int, ...], *args: Any, defines: Mapping[str, object] | None = None) -> None:
    """Record a launch with one work-item per element of `size`. CPU runtimes loop over the work-items of a group."""
    rec.launch(given, args=[size[0], *args], size=size, local=(rec.target.group(GROUP), *[1] * (len(size) - 1)), defines=defines)
