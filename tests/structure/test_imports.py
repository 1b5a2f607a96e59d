"""Data flows one way: no package imports back, and only two cycles between files are allowed."""
from __future__ import annotations

import pathlib

import pytest

from tests.structure.imports import cycles, file_graph, package_graph

ROOT = pathlib.Path(__file__).resolve().parents[2] / "ocaffe"
ALLOWED = [
    # A Blob names the Node that produces it, a Node its layer, a layer its Blobs, and a layer records on a Recorder: one recursive type.
    ["ocaffe.ir.graph", "ocaffe.ir.layer", "ocaffe.ir.recorder"],
    # `snapshot` and `restore` are two halves of Solver, in a file of their own because of their size.
    ["ocaffe.solver.snapshot", "ocaffe.solver.solver"],
]


def test_packages_import_one_way() -> None:
    assert cycles(package_graph(ROOT)) == []


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
