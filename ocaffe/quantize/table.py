"""The table of a quantized net: the grid of each value, how it was chosen, and the products that round their weights."""
from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ocaffe.errors import Error
from ocaffe.quantize.grid import Grid
from ocaffe.quantize.scheme import Scheme, read_scheme
from ocaffe.support.files import atomic_write

FILE = "quantization.json"


@dataclass(frozen=True)
class Entry:
    """The grid of a value. `low`, `high`: the smallest and the largest value of the calibration. `error`: that of the output, as a share of its power."""

    layer: str
    grid: Grid
    method: str = ""
    low: float = 0.0
    high: float = 0.0
    error: float = 0.0


@dataclass
class Table:
    """`values`: by blob. `products`: the layers that round their weights. `wide`: those of them with 16 bits (--mixed)."""

    scheme: Scheme
    values: dict[str, Entry] = field(default_factory=dict)
    products: list[str] = field(default_factory=list)
    wide: list[str] = field(default_factory=list)

    def bits(self, layer: str) -> int:
        """Return the bits of a product's weights."""
        return 16 if layer in self.wide else self.scheme.bits

    def write(self, path: str) -> None:
        """Write the table as JSON."""
        values = {name: {"layer": e.layer, **e.grid.as_json(), "method": e.method, "low": e.low, "high": e.high, "error": e.error}
                  for name, e in self.values.items()}  # fmt: skip
        content = {"scheme": self.scheme.name, "values": values, "products": self.products, "wide": self.wide}
        with atomic_write(path) as stream:
            stream.write((json.dumps(content, indent=1) + "\n").encode())


def read_table(path: str) -> Table:
    """Return the table in a file. Raise Error for a file that is no such table."""
    fix = f"give the {FILE} of `ocaffe quantize`"
    try:
        with open(path, encoding="utf-8") as stream:
            content = json.load(stream)
    except OSError as problem:
        raise Error(f"cannot be read: {problem.strerror}", place=path, fix=fix) from None
    except ValueError as problem:
        raise Error(f"is no JSON: {problem}", place=path, fix=fix) from None
    if not isinstance(content, Mapping) or not isinstance(content.get("values"), Mapping) or not isinstance(content.get("scheme"), str):
        raise Error("has no 'scheme' and no 'values'", place=path, fix=fix)
    table = Table(read_scheme(content["scheme"]), products=_names(content, "products", path), wide=_names(content, "wide", path))
    for name, entry in content["values"].items():
        table.values[name] = _entry(entry, f"{path}: '{name}'", fix)
    return table


def _names(content: Mapping[str, Any], key: str, path: str) -> list[str]:
    names = content.get(key, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Error(f"'{key}' is no list of names", place=path, fix=f"give the {FILE} of `ocaffe quantize`")
    return names


def _entry(entry: Any, place: str, fix: str) -> Entry:
    if not isinstance(entry, Mapping):
        raise Error("is no object", place=place, fix=fix)
    try:
        scale = float(entry["scale"])
        zero, least, most = (int(entry[name]) for name in ("zero_point", "least", "most"))
        low, high, error = (float(entry.get(name, 0)) for name in ("low", "high", "error"))
    except (KeyError, TypeError, ValueError, OverflowError) as problem:
        raise Error(f"has no scale, zero_point, least and most as numbers: {problem}", place=place, fix=fix) from None
    if not (0 < scale < math.inf and -(2**16) <= least <= zero <= most <= 2**16 and least < most):
        raise Error(f"has scale {scale:g}, zero_point {zero}, least {least}, most {most}", place=place, fix=fix)
    return Entry(str(entry.get("layer", "")), Grid(scale, zero, least, most), str(entry.get("method", "")), low, high, error)
