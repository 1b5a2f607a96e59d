"""Limit what a model's constants cost: a file of a few bytes can describe a tensor of any size."""
from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from ocaffe.errors import Error

ROOM, SHARE = 1 << 30, 8  # bytes that an import may make, and how many more for each byte of constants in the file
STEPS, PASSES = 1 << 28, 64  # values that it may read, write or multiply, and how many more for each value in the file


@dataclass
class Budget:
    """What is left. The constants of the file add to it, so the cost is in proportion to the file."""

    room: int = field(default_factory=lambda: ROOM)
    steps: int = field(default_factory=lambda: STEPS)

    def earn(self, constant: np.ndarray) -> None:
        """Add what a constant in the file allows."""
        self.room += SHARE * constant.nbytes
        self.steps += PASSES * constant.size

    def spend(self, size: int, steps: int = 0) -> None:
        """Pay for `size` bytes and for `steps` before they are made. Raises Error if too little is left; `graph.at` adds the remedy."""
        if size > self.room:
            raise Error(f"its constants have {_text(size)}; for a file of this size they may have {_text(self.room)}")
        if steps > self.steps:
            raise Error(f"its constants need {steps:.2g} steps; for a file of this size they may need {self.steps:.2g}")
        self.room -= size
        self.steps -= steps


def _text(size: int) -> str:
    return f"{size:,} bytes" if size < 1 << 20 else f"{size / 2**20:,.0f} MiB" if size < 1 << 40 else f"2^{math.log2(size):.0f} bytes"
