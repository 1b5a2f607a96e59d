"""Caffe's log on stderr: glog lines that parse_log.py and every plot script in the wild read (`I0210 13:39:22.381027 25210 solver.cpp:204] text`).

`GLOG_minloglevel` hides lower levels. With `GLOG_log_dir`, or `GLOG_logtostderr=0` (then in the folder for temporary files), lines also go to files as
glog names them, `DIR/caffe.HOST.USER.log.INFO.DATE-TIME.PID`, to which `DIR/caffe.INFO` leads; one file for each level, with that level and those
above. A progress bar may claim the terminal: `sink` is what writes a finished line to it.
"""
from __future__ import annotations

import contextlib
import getpass
import os
import socket
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable
from typing import SupportsFloat, TextIO

LEVELS = "IWEF"
NAMES = ("INFO", "WARNING", "ERROR", "FATAL")
_FALSE = ("0", "f", "false", "n", "no")


def _write(line: str) -> None:
    sys.stderr.write(line + "\n")


sink: Callable[[str], None] = _write
minimum = 0
_once: set[str] = set()
_folder: str | None = None  # of log files
_program = "caffe"
_chosen = False  # whether somebody said what is logged
_files: dict[int, TextIO] = {}


def configure(program: str = "caffe") -> None:
    """Read the environment; called by the command line. `program` is the name in the names of log files."""
    global minimum, _folder, _program, _chosen
    _chosen = True
    try:
        minimum = int(os.environ.get("GLOG_minloglevel", "0"))  # noqa: SIM112 (glog's spelling)
    except ValueError:
        minimum = 0
    folder, stderr_alone = os.environ.get("GLOG_log_dir"), os.environ.get("GLOG_logtostderr")  # noqa: SIM112
    files = stderr_alone.lower() in _FALSE if stderr_alone else bool(folder)
    for stream in _files.values():
        stream.close()
    _files.clear()
    _program, _folder = program, (folder or tempfile.gettempdir()) if files else None


def quiet(level: int = 1) -> None:
    """Hide everything below `level` (1 = warnings), as a library should."""
    global minimum
    minimum = level


def as_library() -> None:
    """Be quiet unless somebody said what is logged: init_log(), GLOG_minloglevel or the command line."""
    if _chosen or minimum:
        return
    if "GLOG_minloglevel" in os.environ:
        configure()
    else:
        quiet()


def init_log(level: int = 0, to_stderr: bool = True, program: str = "caffe") -> None:
    """Log from `level` on (0: all, 1: warnings, 2: errors) as Caffe does, on stderr or, if not `to_stderr`, in files in $GLOG_log_dir alone."""
    global minimum, sink, _folder
    configure(program)
    minimum = level
    sink = _write if to_stderr else _nowhere
    if not to_stderr:
        _folder = _folder or os.environ.get("GLOG_log_dir") or tempfile.gettempdir()  # noqa: SIM112


def _nowhere(line: str) -> None:
    pass


def emit(level: int, source: str, text: str) -> None:
    """One record; `source` is Caffe's file and line, for example 'solver.cpp:239'. A text of several lines keeps them."""
    if level < minimum:
        return
    now = time.time()
    stamp = time.strftime("%m%d %H:%M:%S", time.localtime(now))
    micros = int(now % 1 * 1e6)
    line = f"{LEVELS[level]}{stamp}.{micros:06d} {threading.get_native_id():5d} {source}] {text}"
    sink(line)
    if _folder is not None:
        _to_files(level, line)


def _to_files(level: int, line: str) -> None:
    """A log file that cannot be written is said once, and then done without: the log is on stderr too."""
    global _folder
    try:
        for each in range(level + 1):
            if each not in _files:
                _files[each] = _open(each)
            _files[each].write(line + "\n")
            _files[each].flush()
    except OSError as problem:
        folder, _folder = _folder, None
        error("logging.cc:1", f"no log files in {folder}: {problem.strerror} (GLOG_log_dir)")


def _open(level: int) -> TextIO:
    assert _folder is not None
    host = socket.gethostname()
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):
        user = "invalid-user"  # as glog says
    name = f"{_program}.{host}.{user}.log.{NAMES[level]}.{time.strftime('%Y%m%d-%H%M%S')}.{os.getpid()}"
    stream = open(os.path.join(_folder, name), "a", encoding="utf-8")
    stream.write(
        f"Log file created at: {time.strftime('%Y/%m/%d %H:%M:%S')}\nRunning on machine: {host}\n"
        "Log line format: [IWEF]mmdd hh:mm:ss.uuuuuu threadid file:line] msg\n"
    )
    link = os.path.join(_folder, f"{_program}.{NAMES[level]}")
    with contextlib.suppress(OSError, NotImplementedError):  # a convenience that Windows may refuse
        temporary = f"{link}.{os.getpid()}"
        os.symlink(name, temporary)
        os.replace(temporary, link)
    return stream


def info(source: str, text: str) -> None:
    emit(0, source, text)


def warning(source: str, text: str) -> None:
    emit(1, source, text)


def error(source: str, text: str) -> None:
    emit(2, source, text)


def warn_once(source: str, text: str) -> None:
    """A warning that is said once in a process."""
    if text not in _once:
        _once.add(text)
        warning(source, text)


def number(value: SupportsFloat) -> str:
    """A float as C++ streams print it: six significant digits."""
    return f"{float(value):g}"


class _Module(types.ModuleType):
    """`caffe.log(text)` is pycaffe's function; here it is this module."""

    def __call__(self, text: object) -> None:
        info("_caffe.cpp:1", str(text))


sys.modules[__name__].__class__ = _Module
