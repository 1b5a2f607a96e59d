"""Random numbers of one record. Each record has its own stream, so it can draw any number without affecting other records."""
from __future__ import annotations

import math

import numpy as np

from ocaffe.data.source import AUGMENT, bit_generator

_AT_ONCE = 64


class Dice:
    """The random numbers of the record at `position` of the endless sequence of records."""

    def __init__(self, key: tuple[int, int], position: int) -> None:
        self._generator = bit_generator(key, AUGMENT, 0, position)
        self._words: list[int] = []

    def word(self) -> int:
        """32 random bits."""
        if not self._words:
            self._words = (self._generator.random_raw(_AT_ONCE) >> np.uint64(32)).tolist()
        return self._words.pop()

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """A float in [low, high)."""
        return low + (high - low) * self.word() / 2**32

    def below(self, bound: int) -> int:
        """An integer in [0, bound); bound < 2^32."""
        return self.word() * bound >> 32

    def uniforms(self, *shape: int) -> np.ndarray:
        """An array of floats in [0, 1)."""
        return (self.words(math.prod(shape)) >> np.uint64(11)).reshape(shape) * 2.0**-53

    def words(self, count: int) -> np.ndarray:
        """`count` words of 64 random bits, drawn from the generator without touching the buffered words of `word`."""
        return self._generator.random_raw(count)
