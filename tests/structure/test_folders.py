"""Folders of many files have floors, so that a reader finds a file by the names of folders."""
from __future__ import annotations

import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2] / "ocaffe"
MOST = 25  # files


@pytest.mark.parametrize("name", ["kernels", "data", "tools"])
def test_folders_are_small(name: str) -> None:
    folders = [ROOT / name, *(path for path in (ROOT / name).rglob("*") if path.is_dir() and path.name != "__pycache__")]
    counts = {str(folder.relative_to(ROOT)): sum(path.is_file() for path in folder.iterdir()) for folder in folders}
    assert len(counts) > 5 and {folder: count for folder, count in counts.items() if count > MOST} == {}


def test_folders_say_what_is_in_them() -> None:
    packages = [path for path in ROOT.rglob("__init__.py") if path.parent.parent.name in ("kernels", "data", "tools", "convolution", "detection")]
    assert len(packages) > 25 and not [str(path) for path in packages if not path.read_text(encoding="utf-8").startswith('"""')]
