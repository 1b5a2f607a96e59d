"""Damage for trees: JSON with values of any type at any place, and XML with elements that are missing, repeated or renamed."""
from __future__ import annotations

import copy
import json
import random
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from typing import Any

from tests.abuse.mutate import TEXTS, WORDS, rewrite, times

DIGITS = "9" * 5000  # more than Python reads as a number
HALF = "\ud800"  # half of a character
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 1.5, -0.0, 255, 2**31, 2**63, -(2**63) - 1, 10**400, 1e308, -1e308, float("nan"), float("inf"), "", "x", "1", "cat", " ",
    "..", "/dev/zero", "../secret.npy", "secret.npy", "pipe.npy", "a\0b", HALF, "\udcff", "x" * 5000, [], [[]], [None], {}, {"x": 1}, [1, 2], [[1, 2], [3, 4]],
    [1.5] * 500, {"label": "cat"},
)  # fmt: skip


def of_json(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """JSON: one in four has damaged text, the others have odd values at some places."""
    if rng.random() < 0.25:
        return rewrite(rng, rng.choice(seeds), rng.choice(seeds))
    tree = {"": json.loads(rng.choice(seeds))}  # a parent for the whole file
    for _ in range(times(rng)):
        if places := _places(tree):
            _change(rng, tree, *rng.choice(places))
    text = json.dumps(tree.get("", rng.choice(ODD)))
    if rng.random() < 0.05:
        text = text.replace(rng.choice([char for char in text if char.isdigit()] or ["0"]), DIGITS, 1)
    if rng.random() < 0.02:
        text = "[" * 100_000 + text
    return text.encode()


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """All containers with the key of each of their parts."""
    found = []
    pending = [tree]
    for value in pending:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        for key in keys:
            found.append((value, key))
            if isinstance(value[key], (dict, list)):
                pending.append(value[key])
    return found


def _change(rng: random.Random, tree: Any, parent: Any, key: Any) -> None:
    """Replace, remove, wrap, repeat or exchange the part `key` of a container."""
    choice = rng.randrange(10)
    if choice < 5:
        parent[key] = copy.deepcopy(rng.choice(ODD))
    elif choice == 5:
        del parent[key]
    elif choice == 6:
        parent[key] = rng.choice(([parent[key]], {"x": parent[key]}, str(parent[key]), [parent[key]] * 3))
    elif choice == 7 and isinstance(parent, list):
        parent.insert(rng.randrange(len(parent) + 1), copy.deepcopy(parent[key]))
    elif choice == 8 and isinstance(parent, dict):
        parent[rng.choice(("", "x", "shapes", "bbox", "mean", key.upper()))] = parent.pop(key)
    else:
        other, name = rng.choice(_places(tree))
        parent[key] = copy.deepcopy(other[name])


def of_xml(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """XML: one in three has damaged text, the others have odd elements."""
    if rng.random() < 1 / 3:
        return rewrite(rng, rng.choice(seeds), rng.choice(seeds))
    root = ElementTree.fromstring(rng.choice(seeds))
    for _ in range(times(rng)):
        parent = rng.choice([each for each in root.iter() if len(each)] or [root])
        element = rng.choice(list(parent) or [parent])
        choice = rng.randrange(6)
        if choice == 0:
            element.text = rng.choice([word for word in (*WORDS, *TEXTS) if word.isprintable()])
        elif choice == 1 and element is not parent:
            parent.remove(element)
        elif choice == 2:
            parent.append(copy.deepcopy(element))
        elif choice == 3:
            element.tag = rng.choice([each.tag for each in root.iter()])
        elif choice == 4:
            rng.choice(list(root.iter())).append(copy.deepcopy(element))
        else:
            element.text, element.tail = element.tail, element.text
    return ElementTree.tostring(root)
