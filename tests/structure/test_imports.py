"""Data flows one way: a package imports lower ones alone, no folder imports back, and only two cycles between files are allowed."""
from __future__ import annotations

import pathlib

import pytest

from tests.structure.imports import cycles, file_graph, package_graph

ROOT = pathlib.Path(__file__).resolve().parents[2] / "ocaffe"
ORDER = [  # packages and public modules from the bottom: each imports only those of rows before its own (docs/adr/0010)
    "errors proto",
    "as_caffe pylayer support",
    "ir",
    "formats memory",
    "data kernels",
    "cl io onnx passes",
    "layers parallel",
    "graph net_spec",
    "compiler coord_map profiling",
    "solver",
    "api",
    "_caffe convert",
    "pycaffe tools",
    "classifier detector draw evaluation lint zoo",
    "selftest",
    "cli",
    "__main__",
]
ALLOWED = [
    # A Blob names the Node that produces it, a Node its layer, a layer its Blobs, and a layer records on a Recorder: one recursive type.
    ["ocaffe.ir.graph", "ocaffe.ir.layer", "ocaffe.ir.recorder"],
    # `snapshot` and `restore` are two halves of Solver, in a file of their own because of their size.
    ["ocaffe.solver.snapshot", "ocaffe.solver.solver"],
]


def test_packages_import_one_way() -> None:
    assert cycles(package_graph(ROOT)) == []


def test_packages_import_lower_ones() -> None:
    row = {name: number for number, names in enumerate(ORDER) for name in names.split()}
    graph = file_graph(ROOT)
    assert {name.split(".")[1] for name in graph} == row.keys()
    pairs = [(name, other, name.split(".")[1], other.split(".")[1]) for name, imported in graph.items() for other in imported]
    assert not [f"{name} imports {other}" for name, other, package, lower in pairs if package != lower and row[package] <= row[lower]]


def test_cycles_between_files_are_the_allowed_ones() -> None:
    assert sorted(cycles(file_graph(ROOT))) == ALLOWED


@pytest.mark.parametrize(
    "statement", ["from pack.b import f", "import pack.b", "def g():\n    from pack import b", "if TYPE_CHECKING:\n    from .b import f"]
)
def test_a_cycle_is_found_however_it_is_imported(tmp_path: pathlib.Path, statement: str) -> None:
    root = tmp_path / "pack"
    root.mkdir()
    (root / "__init__.py").touch()
    (root / "a.py").write_text(statement)
    (root / "b.py").write_text("from pack.a import g")
    assert cycles(file_graph(root)) == cycles(package_graph(root)) == [["pack.a", "pack.b"]]
