"""`ocaffe install-links`: links named like Caffe's programs run every command of golden/files/commands.txt; and all spellings of flags."""
from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from ocaffe.cli import COMMANDS, main
from ocaffe.cli.flags import Parser
from ocaffe.cli.install_links import LINKS
from ocaffe.errors import Error
from ocaffe.tools.training_logs.logs import read_log
from ocaffe.tools.training_logs.tables import CHARTS, points

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "files"


def test_commands_as_they_stand(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install-links", str(tmp_path / "bin")]) == 0
    assert f"{len(LINKS)} programs in {tmp_path / 'bin'}" in capsys.readouterr().out
    (tmp_path / "files").mkdir()
    shutil.copytree(GOLDEN / "images", tmp_path / "files" / "images")
    for path in GOLDEN.glob("images*.txt"):
        shutil.copy(path, tmp_path / "files")
    script = "set -e\n" + (GOLDEN / "commands.txt").read_text() + "caffe -version\nparse_log.py --help > help\n"
    if not shutil.which("sh"):
        pytest.skip("no shell")
    try:
        import plyvel  # noqa: F401
    except ImportError:
        script = "\n".join(line for line in script.splitlines() if "leveldb" not in line)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ocaffe version") and "delimiter" in (tmp_path / "help").read_text()
    made = {path.name for path in (tmp_path / "files").iterdir()}
    assert {"lmdb_raw", "lmdb_png", "lmdb_jpg", "lmdb_jpg_asis", "lmdb_odd_encoded", "lmdb_gray", "lmdb_resized", "mean.binaryproto"} <= made
    assert (tmp_path / "files" / "mean.binaryproto").read_bytes() == (GOLDEN / "mean.binaryproto").read_bytes()


def test_python_scripts_run_under_python(tmp_path: pathlib.Path) -> None:
    assert main(["install-links", str(tmp_path)]) == 0
    done = subprocess.run([sys.executable, str(tmp_path / "parse_log.py"), str(GOLDEN / "caffe_train.log"), str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "caffe_train.log.train").read_bytes() == (GOLDEN / "caffe_train.log.train").read_bytes()


def test_foreign_files_stay(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    real = tmp_path / "real_caffe"
    real.write_text("theirs")
    (tmp_path / "caffe").symlink_to(real)
    assert main(["install-links", str(tmp_path)]) == 1
    said = capfd.readouterr().err
    assert str(tmp_path / "caffe") in said and "--force" in said and not (tmp_path / "classify.py").exists()
    assert main(["install-links", str(tmp_path), "--force"]) == 0
    assert real.read_text() == "theirs" and "ocaffe" in (tmp_path / "caffe").read_text()
    assert main(["install-links", str(tmp_path)]) == 0  # its own links are overwritten
    (tmp_path / "file").write_text("")
    assert main(["install-links", str(tmp_path / "file")]) == 1
    assert "cannot be made" in capfd.readouterr().err


def test_every_link_leads_to_a_command() -> None:
    assert {command.split()[0] for command in LINKS.values() if command} <= set(COMMANDS)


def test_tables_of_parse_log_sh(tmp_path: pathlib.Path) -> None:
    """The old script's loss and rate are in columns 3 and 4, whatever speed the log has."""
    assert main(["install-links", str(tmp_path)]) == 0
    done = subprocess.run([sys.executable, str(tmp_path / "parse_log.sh"), str(GOLDEN / "caffe_train.log")], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    train, test = ((tmp_path / f"caffe_train.log.{kind}").read_text().splitlines() for kind in ("train", "test"))
    assert train[:2] == ["#Iters Seconds TrainingLoss LearningRate", "0   0.000993  1.34645      0.05"]
    assert train[-1].split() == ["16", "0.004807", "0.000414614"]
    assert test[0] == "#Iters Seconds TestAccuracy TestLoss" and test[-1].split()[::2] == ["15", "1"] and test[-1].split()[3] == "0.000212079"


def test_charts_of_plot_training_log(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = str(GOLDEN / "caffe_train.log")
    assert [chart.title for chart in CHARTS][::2] == ["Test accuracy vs. Iters", "Test loss vs. Iters", "Train learning rate vs. Iters", "Train loss vs. Iters"]
    assert points(read_log(log), CHARTS[0]) == ([0, 5, 10, 15], [0.166667, 1, 1, 1])
    assert points(read_log(log), CHARTS[6])[1][:2] == [1.34645, 0.816173] and points(read_log(log), CHARTS[5])[1] == [0.05] * 4 + [0.025] * 4
    for words in (["8", "x.png", log], ["6", "x.png"], ["6", "x.doc", log]):
        assert main(["plot", "--chart", *words]) == 1
    said = capfd.readouterr().err
    assert "--chart is 8" in said and "x.png is the only FILE" in said and "the output is x.doc" in said
    assert main(["parse_log", log]) == 1 and "fix: ocaffe parse_log" in capfd.readouterr().err
    pytest.importorskip("matplotlib")
    assert main(["plot", "--chart", "6", "x.svg", log]) == 0 and "Train loss vs. Iters" in (tmp_path / "x.svg").read_text()


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (["--size", "3"], 3), (["-size", "3"], 3), (["--size=3"], 3), (["-size=3"], 3), (["--big-size=4", "--size=3"], 3), (["-big_size", "4", "-size=3"], 3),
    ],
)  # fmt: skip
def test_values(given: list[str], value: int) -> None:
    parser = Parser("convert_imageset", "")
    parser.flag("size", 0)
    parser.flag("big_size", 0)
    assert parser.parse(given).size == value


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ([], False), (["--check_size"], True), (["-check_size"], True), (["--check-size"], True), (["--check_size=true"], True), (["-check_size=1"], True),
        (["--check_size=F"], False), (["--check_size", "--nocheck_size"], False), (["-nocheck_size"], False), (["--nocheck-size=false"], True),
        (["--check-size=no"], False),
    ],
)  # fmt: skip
def test_switches(given: list[str], value: bool) -> None:
    """A switch takes no argument after a space: the next word is positional, as in gflags."""
    parser = Parser("convert_imageset", "")
    parser.add_argument("folder")
    parser.flag("check_size", False)
    for arguments in ([*given, "true"], ["true", *given]):
        assert (parser.parse(arguments).check_size, parser.parse(arguments).folder) == (value, "true")


def test_flags_of_other_commands() -> None:
    """Actions of the program `caffe` share their flags. Caffe's tools were separate programs that do not accept these flags."""
    test, tool = Parser("test", ""), Parser("convert_imageset", "")
    test.parse(["--solver=x", "-weights", "y"])
    with pytest.raises(Error, match="solver"):
        tool.parse(["--solver=x"])


@pytest.mark.parametrize("command", [command for command in LINKS.values() if command and " " not in command])
def test_every_flag_is_in_the_docs(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    flags = set(re.findall(r"(?<![\w-])--([a-z_]+)(?![\w-])", capsys.readouterr().out)) - {"help"}
    page = (ROOT / "docs" / "tools.md").read_text()
    (section,) = [text for text in page.split("\n### ") if re.match(rf"(\w+, )*{command}\b", text)]
    if command == "detect":
        section += page.split("\n### classify")[1].split("\n### ")[0]
    assert not [flag for flag in flags if f"`--{flag}`" not in section and f"`--{flag}=`" not in section]


@pytest.fixture
def packages(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder for packages in place of the environment's."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(folder))
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    return folder


def python(code: str, packages: pathlib.Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    return subprocess.run([sys.executable, "-c", code], env=environment, cwd=packages, capture_output=True, text=True, check=False)


def test_a_package_for_scripts(packages: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install-links", "--python"]) == 0
    code = "import caffe; caffe.proto.caffe_pb2.BlobProto(); from caffe import layers as L; import caffe.io; print(caffe.__name__, caffe.Net.__module__)"
    done = python(code, packages)
    assert done.returncode == 0 and done.stdout == "ocaffe ocaffe.api.net\n", done.stderr
    assert main(["install-links", "--python"]) == 0  # again: the same
    assert main(["install-links", "--python", "--remove"]) == 0
    assert not (packages / "caffe").exists() and python("import caffe", packages).returncode == 1
    assert main(["install-links", "--python", "--remove"]) == 1
    assert main(["install-links"]) == 1 and "--python" in capsys.readouterr().err


def test_another_package_stays(packages: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (packages / "caffe").mkdir()
    other = packages / "caffe" / "__init__.py"
    other.write_text("theirs = True")
    for options in ([], ["--remove"]):
        assert main(["install-links", "--python", *options]) == 1
        assert str(other.parent) in capsys.readouterr().err and other.read_text() == "theirs = True"


def test_a_folder_that_is_no_package(packages: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python does not import a folder without __init__.py, such as a checkout of Caffe. Files of the user stay."""
    checkout = packages.parent / "caffe"
    for folder in (checkout, packages / "caffe"):
        folder.mkdir()
        (folder / "notes.txt").write_text("mine")
    monkeypatch.chdir(packages.parent)
    monkeypatch.setattr(sys, "path", [str(packages.parent), *sys.path])  # as `python -m` does
    assert main(["install-links", "--python"]) == 0
    assert "ocaffe" in python("import caffe; print(caffe)", packages).stdout
    assert main(["install-links", "--python", "--remove"]) == 0
    assert os.listdir(packages / "caffe") == os.listdir(checkout) == ["notes.txt"]


def test_no_right_to_write(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()  # no folder can be made in a file
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / "file"))
    assert main(["install-links", "--python"]) == 1
    assert "python -m venv" in capsys.readouterr().err


def test_programs_are_removed(tmp_path: pathlib.Path) -> None:
    (tmp_path / "other").touch()
    assert main(["install-links", str(tmp_path)]) == 0 and main(["install-links", str(tmp_path), "--remove"]) == 0
    assert os.listdir(tmp_path) == ["other"]
