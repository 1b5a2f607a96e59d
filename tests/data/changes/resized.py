"""Images and sizes for which tests/data/changes/opencv_resized.json holds digests of the values of cv2.resize: `digest(resize(picture(case), ...))`.

`python -m tests.data.changes.resized` writes the file, and prints how many of ocaffe's values differ, without and with Intel's IPP. It needs the extra
`test-opencv4`. The digests are those without IPP, which OpenCV lacks in Linux distributions.
"""
from __future__ import annotations

import hashlib
import json
import pathlib
import random
from typing import NamedTuple

import numpy as np

from ocaffe.data.changes.resample import Interpolation, resize

DIGESTS = pathlib.Path(__file__).with_name("opencv_resized.json")
# OpenCV computes 8 or 16 values of a row at a time. Some rows here fill such groups, some do not, and some are shorter.
_SIZES = [
    ((64, 80), (32, 40)), ((60, 80), (30, 37)), ((128, 200), (64, 100)), ((21, 33), (42, 66)), ((31, 17), (16, 16)), ((9, 11), (24, 8)),
    ((90, 60), (30, 20)), ((48, 40), (12, 20)), ((50, 70), (37, 70)), ((70, 50), (70, 13)), ((33, 47), (20, 90)), ((47, 33), (90, 20)),
    ((12, 15), (5, 7)), ((5, 7), (12, 15)), ((1, 9), (4, 3)), ((9, 1), (3, 4)), ((1, 1), (3, 5)), ((2, 3), (1, 1)),
    ((150, 200), (400, 500)), ((152, 234), (258, 243)),
]  # fmt: skip


class Case(NamedTuple):
    """An image of random bytes, or of black and white only if `hard`, and its new size."""

    channels: int
    old: tuple[int, int]
    new: tuple[int, int]
    hard: bool

    @property
    def name(self) -> str:
        sizes = " to ".join("x".join(map(str, size)) for size in (self.old, self.new))
        return f"{self.channels} channels, {sizes}{', hard' * self.hard}"


CASES = [Case(channels, old, new, hard) for old, new in _SIZES for channels in (1, 2, 3, 4) for hard in (False, True) if channels % 2 or not hard]


def picture(case: Case) -> np.ndarray:
    """Return channels x height x width, uint8."""
    count = case.channels * case.old[0] * case.old[1]
    image = np.frombuffer(random.Random(case.name).randbytes(count), np.uint8).reshape(case.channels, *case.old)
    return np.where(image < 128, np.uint8(0), np.uint8(255)) if case.hard else image


def digest(image: np.ndarray) -> str:
    return hashlib.sha256(image.tobytes()).hexdigest()[:16]


def main() -> None:
    import cv2

    codes = {method: getattr(cv2, f"INTER_{method.name}") for method in Interpolation}
    found: dict[str, dict[str, str]] = {method.name: {} for method in Interpolation}
    for accelerated in (False, True):
        cv2.ipp.setUseIPP(accelerated)
        for method, code in codes.items():
            values = different = largest = 0
            for case in CASES:
                image = picture(case)
                theirs = cv2.resize(image.transpose(1, 2, 0), case.new[::-1], interpolation=code).reshape(*case.new, case.channels).transpose(2, 0, 1)
                if not accelerated:
                    found[method.name][case.name] = digest(theirs)
                distance = np.abs(resize(image, *case.new, method).astype(int) - theirs)
                values, different, largest = values + distance.size, different + int((distance > 0).sum()), max(largest, int(distance.max()))
            print(f"{method.name}{' with IPP' * accelerated}: {different} of {values} values differ, by at most {largest}")
    DIGESTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
