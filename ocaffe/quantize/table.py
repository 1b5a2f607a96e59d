"""The table of a quantized net: the grid of each value, how it was chosen, and the products that round their weights."""
from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

from ocaffe.errors import Error, within
from ocaffe.formats.json_file import Each, read_json
from ocaffe.quantize.grid import Grid
from ocaffe.quantize.scheme import Scheme, read_scheme
from ocaffe.support.files import atomic_write

FILE = "quantization.json"
MOST = 2**16  # an integer of a grid is at most this
_FIX = f"give the {FILE} of `ocaffe quantize`"
_ENTRY = {"layer": str, "scale": float, "zero_point": int, "least": int, "most": int, "method": str, "low": float, "high": float, "error": float}
_KIND = {"scheme": str, "values": Each(_ENTRY), "products": [str], "wide": [str]}


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
        return 16 if layer in self.wide else self.scheme.weight_bits or self.scheme.bits

    def write(self, path: str) -> None:
        """Write the table as JSON."""
        values = {name: {"layer": e.layer, **e.grid.as_json(), "method": e.method, "low": e.low, "high": e.high, "error": e.error}
                  for name, e in self.values.items()}  # fmt: skip
        content = {"scheme": self.scheme.name, "values": values, "products": self.products, "wide": self.wide}
        with atomic_write(path) as stream:
            stream.write((json.dumps(content, indent=1) + "\n").encode())


def read_table(path: str) -> Table:
    """Return the table in a file. Raise Error for a file that is no such table."""
    content = read_json(path, _KIND, "the table of a quantized net", _FIX)
    with within(path):
        scheme = read_scheme(content["scheme"])
    table = Table(scheme, products=content["products"], wide=content["wide"])
    for name, entry in content["values"].items():
        on = Grid(*(entry[part] for part in ("scale", "zero_point", "least", "most")))
        if not (0 < on.scale < math.inf and -MOST <= on.least <= on.zero_point <= on.most <= MOST and on.least < on.most):
            fact = f"the value '{name}' has scale {on.scale:g}, zero_point {on.zero_point}, least {on.least}, most {on.most}"
            raise Error(fact, place=path, fix=_FIX)
        table.values[name] = Entry(entry["layer"], on, entry["method"], entry["low"], entry["high"], entry["error"])
    return table
