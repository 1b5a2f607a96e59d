"""Values of flags that the commands for made data share: `ocaffe dataset shapes` and `ocaffe dataset text`."""
from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from ocaffe.errors import Error


def wrong(command: str, flag: str, value: object, fix: str) -> Error:
    """Return the error for a value of --`flag`."""
    return Error(f"--{flag} is {value}", place=f"ocaffe {command}", fix=fix)


def at_least(command: str, flag: str, value: int, least: int) -> int:
    """Return a number of images. Raise Error if it is below `least`."""
    if value < least:
        raise wrong(command, flag, value, f"a number of images, {least} or more")
    return value


def least_and_most(command: str, flag: str, text: str, most: int, example: str) -> tuple[int, int]:
    """Return the two numbers of `text`, such as "1,6". Raise Error if they are not in order, or not from 1 to `most`."""
    match = re.fullmatch(r"(\d{1,3}),(\d{1,3})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]) <= most:
        raise wrong(command, flag, text, f"the least and the most, of 1 to {most}: --{flag} {example}")
    return int(match[1]), int(match[2])


def counts(command: str, images: int, splits: str, example: Sequence[int]) -> list[int]:
    """Return the numbers of images of the parts of a set by their shares, such as "80,10,10". Raise Error. `example` has a share for each part."""
    at_least(command, "images", images, 1)
    try:
        shares = np.array([float(word) for word in splits.split(",")])
    except ValueError:
        shares = np.array([math.nan])
    if len(shares) != len(example) or not np.isfinite(shares).all() or shares.min() < 0 or not shares.sum():
        number = {2: "two", 3: "three"}[len(example)]
        raise wrong(command, "splits", splits, f"{number} shares of 0 or more: --splits {','.join(map(str, example))}")
    ends = np.rint(images * np.cumsum(shares) / shares.sum()).astype(int)
    return [int(count) for count in np.diff(ends, prepend=0)]
