"""An installation from a wheel has all packages and all files that the code reads. The other tests run from a checkout."""
from __future__ import annotations

import fnmatch
import os
import pathlib
import runpy
import shutil
import subprocess
import sys
import zipfile
from typing import Any

import pytest

from tests.zoo.digits import write_folders

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


def test_commands_of_a_wheel_outside_of_the_tree(tmp_path: pathlib.Path) -> None:
    """The zoo is in the wheel: its nets are listed, and `ocaffe new` writes files for a folder of images. .ci/run installs the wheel by pip too."""
    pytest.importorskip("setuptools", "70.1", reason="it builds wheels without another package")
    source, site, elsewhere = tmp_path / "source", tmp_path / "site", tmp_path / "elsewhere"
    shutil.copytree(ROOT / "ocaffe", source / "ocaffe", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    subprocess.run([sys.executable, "setup.py", "-q", "bdist_wheel", "-d", tmp_path], cwd=source, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:  # as pip does with pure Python
        archive.extractall(site)
    shutil.rmtree(source)
    write_folders(elsewhere / "photos", 3, classes=2)
    run = (
        "import ocaffe, ocaffe.cli as cli; print(ocaffe.__file__)\n"
        "assert not cli.main(['zoo', '--batch', '1']) and not cli.main(['new', 'vgg16']) and not cli.main(['new', 'lenet', '--data', 'photos', '--out', 'net'])"
    )
    done = subprocess.run([sys.executable, "-c", run], cwd=elsewhere, env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(site)) and "resnet50" in done.stdout and "next: ocaffe train --solver net/solver.prototxt" in done.stdout
    assert (elsewhere / "vgg16" / "deploy.prototxt").exists() and (elsewhere / "net" / "train_val.prototxt").exists()
