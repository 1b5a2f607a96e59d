"""Caffe's log on stderr: glog lines such as `I0210 13:39:22.381027 25210 solver.cpp:204] text`. parse_log.py and plot scripts parse them.

`GLOG_minloglevel` hides lower levels. With `GLOG_log_dir` lines also go to files, named as by glog: `DIR/caffe.HOST.USER.log.INFO.DATE-TIME.PID`, with
the link `DIR/caffe.INFO`. `GLOG_logtostderr=0` does the same in the folder for temporary files. There is one file for each level, with the lines of
that level and those above. `sink` writes a line to the terminal; a progress bar replaces it.
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
_chosen = False  # whether configure() has set the level
_files: dict[int, TextIO] = {}


def configure(program: str = "caffe") -> None:
    """Read the environment variables. The command line calls this. `program` is the first part of the names of log files."""
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
    """Be quiet unless init_log(), GLOG_minloglevel or the command line has set the level."""
    if _chosen or minimum:
        return
    if "GLOG_minloglevel" in os.environ:
        configure()
    else:
        quiet()


def init_log(level: int = 0, to_stderr: bool = True, program: str = "caffe") -> None:
    """Log lines of `level` and above (0: all, 1: warnings, 2: errors) to stderr as Caffe does. If not `to_stderr`, log only to files in $GLOG_log_dir."""
    global minimum, sink, _folder
    configure(program)
    minimum = level
    sink = _write if to_stderr else _nowhere
    if not to_stderr:
        _folder = _folder or os.environ.get("GLOG_log_dir") or tempfile.gettempdir()  # noqa: SIM112


def _nowhere(line: str) -> None:
    pass


def emit(level: int, source: str, text: str) -> None:
    """Write one record. `source` is Caffe's file and line, for example 'solver.cpp:239'. A text of several lines keeps its lines."""
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
    """Write a line to the log files. If that fails, log one error and stop using files; the log is on stderr too."""
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
        user = "invalid-user"  # as in glog
    name = f"{_program}.{host}.{user}.log.{NAMES[level]}.{time.strftime('%Y%m%d-%H%M%S')}.{os.getpid()}"
    stream = open(os.path.join(_folder, name), "a", encoding="utf-8")
    stream.write(
        f"Log file created at: {time.strftime('%Y/%m/%d %H:%M:%S')}\nRunning on machine: {host}\n"
        "Log line format: [IWEF]mmdd hh:mm:ss.uuuuuu threadid file:line] msg\n"
    )
    link = os.path.join(_folder, f"{_program}.{NAMES[level]}")
    with contextlib.suppress(OSError, NotImplementedError):  # the link is only a convenience, and Windows may not allow it
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
    """Log a warning, but each text only once in a process."""
    if text not in _once:
        _once.add(text)
        warning(source, text)


def number(value: SupportsFloat) -> str:
    """Format a float as C++ streams do: six significant digits."""
    return f"{float(value):g}"


class _Module(types.ModuleType):
    """Makes this module callable, because pycaffe has the function `caffe.log(text)`."""

    def __call__(self, text: object) -> None:
        info("_caffe.cpp:1", str(text))


sys.modules[__name__].__class__ = _Module
