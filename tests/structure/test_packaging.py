"""Installations have all packages and all files that the code reads. The other tests run from a checkout."""
from __future__ import annotations

import glob
import os
import pathlib
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from typing import Any

import pytest

from ocaffe.kernels.files import kernel_files
from tests.zoo.digits import write_folders

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = {"ocaffe": ROOT / "ocaffe", "ocaffe.zoo.nets": ROOT / "zoo"}  # folders whose files are package data


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
    assert arguments["package_dir"] == {"ocaffe.zoo.nets": "zoo"} and PACKAGES.keys() <= set(arguments["packages"])
    for package, folder in PACKAGES.items():
        found = {name for pattern in arguments["package_data"][package] for name in glob.glob(pattern, root_dir=folder, recursive=True)}
        names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
        assert names and not names - found


def test_kernel_files_have_different_names() -> None:
    """Programs and #include lines name a file without its folder."""
    names = [path.name for path in (ROOT / "ocaffe/kernels").rglob("*") if path.suffix in (".cl", ".h")]
    assert len(names) > 100 and sorted(names) == sorted(kernel_files())


@pytest.fixture
def checkout(tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of the files from which setuptools builds."""
    source = tmp_path / "checkout"
    for name in ("ocaffe", "zoo"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    return source


def build(kind: str, source: pathlib.Path, out: pathlib.Path) -> pathlib.Path:
    """Build a wheel, an editable one or an sdist, with the calls of pip and without its downloads. Return the folder in which it is unpacked."""
    pytest.importorskip("setuptools", "70.1", reason="it builds wheels without another package")
    call = "import sys, setuptools.build_meta as backend; getattr(backend, f'build_{sys.argv[1]}')(sys.argv[2])"
    out.mkdir()
    subprocess.run([sys.executable, "-c", call, kind, out], cwd=source, check=True, capture_output=True)
    [archive] = out.iterdir()
    site = out / "unpacked"
    if kind == "sdist":
        with tarfile.open(archive) as packed:
            packed.extractall(site)
        return next(site.iterdir())
    with zipfile.ZipFile(archive) as wheel:  # as pip does with pure Python
        wheel.extractall(site)
    return site


def python(code: str, site: pathlib.Path, elsewhere: pathlib.Path) -> str:
    """Run `code` in the folder `elsewhere`, with `site` as a folder of installed packages, and with none of the other folders that have ocaffe."""
    others = [path for path in sys.path if path and not pathlib.Path(path, "ocaffe").is_dir()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *others])}
    elsewhere.mkdir(exist_ok=True)
    command = [sys.executable, "-S", "-c", f"import site; site.addsitedir({str(site)!r})\n{code}"]  # -S: no file .pth of this environment is read
    done = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", ["checkout", "editable", "wheel", "sdist"])
def test_nets_of_the_zoo_are_found(kind: str, checkout: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """From an sdist pip builds a wheel. Unpacked it serves as a checkout too."""
    source = build("sdist", checkout, tmp_path / "source") if kind == "sdist" else checkout
    site = source if kind == "checkout" else build("editable" if kind == "editable" else "wheel", source, tmp_path / "built")
    code = "from ocaffe.zoo import FOLDER\nfrom ocaffe.zoo.templates import names\nprint(FOLDER, *names())"
    expected = sorted(path.name for path in (ROOT / "zoo").iterdir())
    folder = site / "ocaffe" / "zoo" / "nets" if kind in ("wheel", "sdist") else checkout / "zoo"
    assert python(code, site, tmp_path / "elsewhere").split() == [str(folder), *expected]
    assert {path.name for path in folder.glob("*/*")} == {"train_val.prototxt", "solver.prototxt", "deploy.prototxt", "README.md"}
    assert sorted(path.name for path in (source / "zoo").iterdir()) == expected


def test_a_leftover_folder_of_older_versions_hides_no_nets(checkout: pathlib.Path) -> None:
    """Untracked files, such as snapshots, keep `ocaffe/zoo/nets` in a checkout that was older."""
    (checkout / "ocaffe/zoo/nets/lenet").mkdir(parents=True)
    code, env = "from ocaffe.zoo import FOLDER\nprint(FOLDER)", {**os.environ, "PYTHONPATH": str(checkout)}
    found = subprocess.run([sys.executable, "-c", code], cwd=checkout, env=env, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(checkout / "zoo")


def test_commands_of_a_wheel_outside_of_the_tree(checkout: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The zoo is in the wheel: its nets are listed, and `ocaffe new` writes files for a folder of images. .ci/run installs the wheel by pip too."""
    site, elsewhere = build("wheel", checkout, tmp_path / "built"), tmp_path / "elsewhere"
    shutil.rmtree(checkout)
    write_folders(elsewhere / "photos", 3, classes=2)
    run = (
        "import ocaffe, ocaffe.cli as cli; print(ocaffe.__file__)\n"
        "assert not cli.main(['zoo', '--batch', '1']) and not cli.main(['new', 'vgg16']) and not cli.main(['new', 'lenet', '--data', 'photos', '--out', 'net'])"
    )
    out = python(run, site, elsewhere)
    assert out.startswith(str(site)) and "resnet50" in out and "next: ocaffe train --solver net/solver.prototxt" in out
    assert (elsewhere / "vgg16" / "deploy.prototxt").exists() and (elsewhere / "net" / "train_val.prototxt").exists()
