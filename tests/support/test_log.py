"""glog's environment variables: GLOG_minloglevel, GLOG_log_dir, GLOG_logtostderr. Each test starts a separate process, like a shell script."""
from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

from ocaffe import log

pytestmark = pytest.mark.quick

ROOT = pathlib.Path(__file__).resolve().parents[2]
CODE = """
from ocaffe import log
log.configure({program!r})
log.info("a.cpp:1", "first"); log.warning("b.cpp:2", "second"); log.error("c.cpp:3", "third")
"""
LINE = re.compile(r"[IWE]\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ [abc]\.cpp:\d\] (\w+)")


def run(program: str = "caffe", **environment: str) -> list[str]:
    """Return the lines of stderr without prefixes."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GLOG_")}
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(program=program)], env={**clean, **environment, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    return [match[1] if (match := LINE.fullmatch(line)) else line.partition("] ")[2] for line in done.stderr.splitlines()]


def logged(folder: pathlib.Path, name: str) -> list[str]:
    lines = (folder / name).read_text().splitlines()
    assert lines[0].startswith("Log file created at: ") and lines[2].startswith("Log line format: [IWEF]mmdd")
    return [match[1] for line in lines[3:] if (match := LINE.fullmatch(line))]


@pytest.mark.parametrize(("level", "said"), [("", 3), ("1", 2), ("2", 1), ("3", 0), ("x", 3)])
def test_minloglevel(level: str, said: int) -> None:
    assert run(**{"GLOG_minloglevel": level} if level else {}) == ["first", "second", "third"][3 - said :]


@pytest.mark.parametrize("environment", [{}, {"GLOG_logtostderr": "0"}])
def test_log_dir(environment: dict[str, str], tmp_path: pathlib.Path) -> None:
    assert run(GLOG_log_dir=str(tmp_path), **environment) == ["first", "second", "third"]
    assert logged(tmp_path, "caffe.INFO") == ["first", "second", "third"]
    assert logged(tmp_path, "caffe.WARNING") == ["second", "third"] and logged(tmp_path, "caffe.ERROR") == ["third"]
    assert (tmp_path / "caffe.INFO").is_symlink()
    names = [path.name for path in tmp_path.iterdir() if not path.is_symlink()]
    assert len(names) == 3 and all(re.fullmatch(r"caffe\..+\.log\.(INFO|WARNING|ERROR)\.\d{8}-\d{6}\.\d+", name) for name in names), names


def test_link_leads_to_the_last_run(tmp_path: pathlib.Path) -> None:
    run(GLOG_log_dir=str(tmp_path), GLOG_minloglevel="2")
    assert not (tmp_path / "caffe.INFO").exists() or logged(tmp_path, "caffe.INFO") == ["third"]
    run("convert_imageset", GLOG_log_dir=str(tmp_path))
    run(GLOG_log_dir=str(tmp_path))
    assert logged(tmp_path, "caffe.INFO") == logged(tmp_path, "convert_imageset.INFO") == ["first", "second", "third"]


def test_logtostderr(tmp_path: pathlib.Path) -> None:
    for value in ("1", "true"):
        run(GLOG_log_dir=str(tmp_path), GLOG_logtostderr=value)
    assert not list(tmp_path.iterdir())
    assert run(GLOG_logtostderr="0", TMPDIR=str(tmp_path)) == ["first", "second", "third"]
    assert logged(tmp_path, "caffe.INFO") == ["first", "second", "third"]


def test_folder_that_cannot_be_written(tmp_path: pathlib.Path) -> None:
    said = run(GLOG_log_dir=str(tmp_path / "none"))
    fact = f"the log in {tmp_path / 'none'} (GLOG_log_dir) cannot be written: No such file or directory. The run continues without it"
    assert said == ["first", fact, "second", "third"]


LINES = """
from ocaffe import log
log.configure()
for number in range(300): log.info("a.cpp:1", f"line {number}")
"""
DEV_FULL = pathlib.Path("/dev/full")


@pytest.mark.skipif(not DEV_FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", ""], ids=["full disk", "closed", "broken pipe"])
def test_stderr_that_cannot_be_written(redirection: str, tmp_path: pathlib.Path) -> None:
    reader, broken = os.pipe()
    os.close(reader)
    command = ["bash", "-c", f'exec "$0" -c "$1" {redirection}', sys.executable, LINES]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOG_log_dir": str(tmp_path)}
    assert subprocess.run(command, env=environment, stderr=broken, timeout=60).returncode == 0
    os.close(broken)
    assert (tmp_path / "caffe.INFO").read_text().count("] line ") == 300
    warnings = (tmp_path / "caffe.WARNING").read_text().splitlines()[3:] if (tmp_path / "caffe.WARNING").exists() else []
    assert len(warnings) == (redirection != "2>&-") and all("stderr cannot be written: " in line for line in warnings)


@pytest.mark.skipif(sys.platform == "win32", reason="needs RLIMIT_FSIZE")
def test_log_files_on_a_full_disk(tmp_path: pathlib.Path) -> None:
    """RLIMIT_FSIZE imitates the full disk."""
    code = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)){LINES}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOG_log_dir": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr.count("] line ") == 300
    (warning,) = [line for line in done.stderr.splitlines() if line.startswith("W")]
    assert f"] the log in {tmp_path} (GLOG_log_dir) cannot be written: File too large." in warning


def test_one_warning_and_one_line_when_writing_works_again(capsys: pytest.CaptureFixture[str]) -> None:
    channel = log.Channel("x.json")
    for problem in (None, OSError(28, "No space left on device"), OSError(5, "Input/output error"), None, None, ValueError("closed")):
        with channel:
            if problem is not None:
                raise problem
    assert [line.partition("] ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "x.json cannot be written: No space left on device. The run continues without it",
        "x.json can be written again; earlier lines may be missing there",
        "x.json cannot be written: closed. The run continues without it",
    ]
    with pytest.raises(KeyError), channel:
        raise KeyError


def test_lines_that_are_no_text(tmp_path: pathlib.Path) -> None:
    """File names may have bytes that are not UTF-8."""
    code = 'from ocaffe import log; log.configure(); log.info("a.cpp:1", "\\udcff")'
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT), "GLOG_log_dir": str(tmp_path)}, check=True)
    assert (tmp_path / "caffe.INFO").read_text().endswith("a.cpp:1] \\xff\n")
