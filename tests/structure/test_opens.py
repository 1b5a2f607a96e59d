"""Files of users are opened by ocaffe.support.files alone (`open_plain`, `read_plain`, `text_lines`), which refuses pipes and devices.

A library that opens a file by its name stands in ALLOWED, with the reason why no pipe and no file of a stranger gets there.
"""
from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

import pytest

pytestmark = pytest.mark.quick

TOP = pathlib.Path(__file__).resolve().parents[2]
METHODS = {"read_text", "read_bytes", "fromfile", "loadtxt", "genfromtxt", "memmap", "imread", "VideoCapture", "DB", "urlopen"}  # of any object
LOADERS = {"h5py.File", "gzip.open", "np.load", "onnx.load", "numpy.load", "pickle.load", "json.load", "tarfile.open", "lmdb.open", "Image.open", "os.open"}
SYSTEM, OWN, CHILD, CHECKED = "a file of the system", "a file of the package", "a file or pipe of a process of ocaffe", "`check_plain` precedes it"
ALLOWED: dict[str, dict[str, str]] = {  # file: call, reason
    "as_caffe.py": {"open": "a script that Python has run before"},
    "cl/child.py": {"pickle.load": CHILD},
    "cl/conflicts.py": {"read_text": SYSTEM},
    "cl/discovery.py": {"read_bytes": SYSTEM},
    "cl/free_memory.py": {"read_text": SYSTEM},
    "cl/makers.py": {"read_text": SYSTEM},
    "cl/rates.py": {"read_text": OWN},
    "cl/tuned_tables.py": {"read_text": OWN},
    "cl/workers.py": {"read_text": SYSTEM, "pickle.load": CHILD},
    "cli/__init__.py": {"os.open": "/dev/null"},
    "cli/detect.py": {"h5py.File": "a new file"},
    "cli/ranks.py": {"read_text": CHILD},
    "convert/consumer_process.py": {"read_text": CHILD, "open": CHILD, "np.load": CHILD, "json.load": CHILD},
    "convert/consumers.py": {"np.load": CHILD},
    "convert/importer/read.py": {"onnx.load": "`open_head` precedes it"},
    "convert/targets/table.py": {"read_text": OWN},
    "data/changes/distort.py": {"Image.open": "bytes in memory that it has encoded"},
    "data/databases/assumed.py": {"h5py.File": "a new file"},
    "data/databases/database.py": {"DB": CHECKED},
    "data/databases/leveldb_child.py": {"DB": CHECKED},
    "data/databases/lmdb_file.py": {"os.open": CHECKED},
    "data/databases/slot.py": {"os.open": "a new file"},
    "data/databases/slot_child.py": {"lmdb.open": CHECKED},
    "data/databases/writer.py": {"lmdb.open": "a new database", "DB": "a new database"},
    "data/stagers/crew_child.py": {"pickle.load": CHILD},
    "data/stores/shards.py": {"tarfile.open": "an open file"},
    "formats/hdf5.py": {"h5py.File": "a new file"},
    "formats/hdf5_child.py": {"h5py.File": CHECKED},
    "kernels/files.py": {"read_text": OWN},
    "layers/hdf5_output.py": {"h5py.File": "a file that it has made"},
    "parallel/own_processes.py": {"read_text": CHILD},
    "proto/__init__.py": {"read_bytes": OWN},
    "support/cache.py": {"os.open": CHECKED, "open": CHECKED},
    "support/files.py": {"os.open": "the function itself, and folders", "open": OWN, "read_text": SYSTEM},
    "support/process_memory.py": {"read_text": SYSTEM},
    "support/lock.py": {"os.open": "a lock in the cache, or beside a file that ocaffe writes"},
    "support/log.py": {"os.open": "/dev/null", "open": "a log to write"},
    "tools/datasets/originals.py": {"gzip.open": "bytes in memory", "tarfile.open": "bytes in memory"},
    "zoo/detection_project.py": {"read_text": OWN},
    "zoo/project.py": {"read_text": OWN},
    "quantize/scheme.py": {"read_text": OWN},
    "zoo/text_project.py": {"read_text": OWN},
}


def calls(tree: ast.AST) -> Iterator[str]:
    """Yield the name of each call that may read a file by its name. A literal mode of writing is none."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name):
            modes = [each.value for each in node.args[1:2] if isinstance(each, ast.Constant)]
            if node.func.id == "open" and not any(str(mode)[:1] in "wax" for mode in modes):
                yield "open"
        elif isinstance(node.func, ast.Attribute):
            owner = node.func.value.attr if isinstance(node.func.value, ast.Attribute) else getattr(node.func.value, "id", "")
            if f"{owner}.{node.func.attr}" in LOADERS:
                yield f"{owner}.{node.func.attr}"
            elif node.func.attr in METHODS:
                yield node.func.attr


def test_every_opening_is_known() -> None:
    found: dict[str, set[str]] = {}
    for path in sorted((TOP / "ocaffe").rglob("*.py")):
        if names := set(calls(ast.parse(path.read_text(encoding="utf-8")))):
            found[path.relative_to(TOP / "ocaffe").as_posix()] = names
    assert found == {file: set(names) for file, names in ALLOWED.items()}


@pytest.mark.parametrize("text", ["open(path)", "open(path, 'rb')", "Path(path).read_text()", "np.load(path)", "Image.open(path)", "h5py.File(path)"])
def test_a_new_opening_is_found(text: str) -> None:
    assert list(calls(ast.parse(text)))


@pytest.mark.parametrize("text", ["open(path, 'wb')", "carrier.open(size)", "open_plain(path)", "self.open(names)"])
def test_other_calls_are_not(text: str) -> None:
    assert not list(calls(ast.parse(text)))
