"""Data flows one way: a package imports lower ones alone, no folder imports back, and only two cycles between files are allowed."""
from __future__ import annotations

import pathlib
import re

import pytest

from tests.structure.imports import cycles, file_graph, package_graph

TOP = pathlib.Path(__file__).resolve().parents[2]
ROOT = TOP / "ocaffe"
ORDER = [  # packages and public modules from the bottom: each imports only those of rows before its own (docs/adr/0010)
    "shown",
    "errors proto",
    "pylayer support",
    "as_caffe ir",
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
    "classifier detector draw evaluation lint quantize zoo",
    "fit selftest",
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


def test_imports_in_texts_name_modules() -> None:
    """Pages, and programs that tests run from a string, import what is there. No checker of types reads them."""
    texts = [*TOP.glob("*.md"), *(path for name in ("docs", "tests", "benchmarks") for kind in ("md", "py") for path in (TOP / name).rglob(f"*.{kind}"))]
    found = {(path, *names) for path in texts for names in re.findall(r"from ((?:ocaffe|tests)(?:\.\w+)*) import (\w+)", path.read_text(encoding="utf-8"))}
    assert len(found) > 1000
    assert not [f"{path.relative_to(TOP)}: {module}.{name}" for path, module, name in found if not _is_there(TOP.joinpath(*module.split(".")), name)]


def test_comments_name_files_that_are_there() -> None:
    """A comment that names a file by its path, `ocaffe/...` or `kernels/...`, is right. No compiler reads those of OpenCL files."""
    texts = [path for kind in ("py", "cl", "h") for path in ROOT.rglob(f"*.{kind}")]
    named = re.compile(r"(?<![\w/.])(?:ocaffe|kernels)/[\w/]+\.(?:py|cl|h)\b")
    found = {(path, name) for path in texts for name in named.findall(path.read_text(encoding="utf-8"))}
    assert len(found) > 100
    assert not [f"{path.relative_to(TOP)}: {name}" for path, name in found if not (TOP / name).exists() and not (ROOT / name).exists()]


def _is_there(module: pathlib.Path, name: str) -> bool:
    """Whether a module has a file, or is a folder with a module or a name in its __init__.py. Names in files are not looked up."""
    begin = module / "__init__.py"
    named = begin.exists() and name in re.findall(r"\w+", begin.read_text(encoding="utf-8"))
    return module.with_suffix(".py").exists() or (module / f"{name}.py").exists() or (module / name).is_dir() or named


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
