"""An installation from a wheel has all packages and all files that the code reads. The other tests run from a checkout."""
from __future__ import annotations

import fnmatch
import pathlib
import runpy
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the arguments of `setup` in setup.py."""
    setuptools = pytest.importorskip("setuptools")
    found: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **arguments: found.update(arguments))
    monkeypatch.chdir(ROOT)
    runpy.run_path("setup.py")
    return found


def test_every_folder_with_code_is_a_package(arguments: dict[str, Any]) -> None:
    folders = {path.parent for path in (ROOT / "ocaffe").rglob("*.py")}
    assert {".".join(folder.relative_to(ROOT).parts) for folder in folders} <= set(arguments["packages"])


def test_every_other_file_is_package_data(arguments: dict[str, Any]) -> None:
    patterns = arguments["package_data"]["ocaffe"]
    names = [str(path.relative_to(ROOT / "ocaffe").as_posix()) for path in (ROOT / "ocaffe").rglob("*") if path.is_file()]
    missing = [name for name in names if not name.endswith((".py", ".pyc")) and not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
    assert missing == []
