"""The files of `ocaffe quantize`: nets, weights, the table, and the tables of chips' tools."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ocaffe.convert.caffe.net import Net
from ocaffe.formats.batch import with_batch
from ocaffe.formats.text import write_text
from ocaffe.formats.weights import write_weights
from ocaffe.quantize.graft import QUANTIZED_NET, QUANTIZED_WEIGHTS
from ocaffe.quantize.quantize import Quantized
from ocaffe.quantize.simulate import simulated
from ocaffe.quantize.table import FILE
from ocaffe.support.files import atomic_write

NET, WEIGHTS = "net.prototxt", "net.caffemodel"  # in floats, with weights on the grid: for chips' tools
Format = Callable[[Quantized], bytes | None]  # the content of a file, None where the scheme has none of this kind


def write_all(folder: Path, made: Quantized, formats: Mapping[str, Format], batch: int = 0) -> list[str]:
    """Write all files into a folder, in place of those of that name. Return their names. `batch`: that of the nets; 0: that of the calibration."""
    rounded = made.rounded()
    _write_net(folder / NET, folder / WEIGHTS, rounded, batch)
    _write_net(folder / QUANTIZED_NET, folder / QUANTIZED_WEIGHTS, simulated(rounded, made.table), batch)
    made.table.write(str(folder / FILE))
    names = [NET, WEIGHTS, QUANTIZED_NET, QUANTIZED_WEIGHTS, FILE]
    for name, content in formats.items():
        written = content(made)
        if written is not None:
            _put(folder / name, written)
            names.append(name)
    return names


def _write_net(prototxt: Path, weights: Path, net: Net, batch: int) -> None:
    message: Any = with_batch(net.message(), batch)
    _put(prototxt, f"# Written by `ocaffe quantize`.\n{write_text(message)}".encode())
    write_weights(weights, message, net.weights())


def _put(path: Path, content: bytes) -> None:
    with atomic_write(path) as stream:
        stream.write(content)
