"""Caffe's log on stderr: glog lines such as `I0210 13:39:22.381027 25210 solver.cpp:204] text`. parse_log.py and plot scripts parse them.

`GLOG_minloglevel` hides lower levels. With `GLOG_log_dir` lines also go to files, named as by glog: `DIR/caffe.HOST.USER.log.INFO.DATE-TIME.PID`, with
the link `DIR/caffe.INFO`. `GLOG_logtostderr=0` does the same in the folder for temporary files. There is one file for each level, with the lines of
that level and those above. `sink` writes a line to the terminal; a progress bar replaces it.

A log never ends a run: output that cannot be written is lost, with one warning to the other places (`Channel`).
"""
from __future__ import annotations

import atexit
import contextlib
import getpass
import os
import socket
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any, SupportsFloat, TextIO, cast

from ocaffe.shown import shown, write
from ocaffe.support.files import output, output_no_link

LEVELS = "IWEF"
NAMES = ("INFO", "WARNING", "ERROR", "FATAL")
_FALSE = ("0", "f", "false", "n", "no")


class Channel:
    """Context of each write to an output that a run can do without. It suppresses errors of the system.

    The first error is logged as a warning. Later writes are tried too, because a full disk may have space again.
    """

    def __init__(self, name: str) -> None:
        self.name, self.failed = name, False

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: types.TracebackType | None) -> bool:
        if isinstance(problem, (OSError, ValueError)):  # ValueError: the stream was closed
            before, self.failed = self.failed, True
            if not before:
                reason = getattr(problem, "strerror", None) or problem
                warning("logging.cc:1", f"{self.name} cannot be written: {reason}. The run continues without it")
            return True
        if kind is None and self.failed:
            self.failed = False
            warning("logging.cc:1", f"{self.name} can be written again; earlier lines may be missing there")
        return False


class _Stderr:
    """sys.stderr, for text that a run can do without. Text that cannot be written is lost."""

    def __init__(self) -> None:
        self._channel = Channel("stderr")
        self._at_exit = False

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)

    def isatty(self) -> bool:
        return sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()

    def write(self, text: str) -> int:
        if sys.stderr is not None:  # None: it was closed before Python started
            with self._channel:
                sys.stderr.write(text)
                sys.stderr.flush()
            if self._channel.failed and not self._at_exit:
                self._at_exit = True
                atexit.register(_drop_stderr)
        return len(text)

    def flush(self) -> None:
        """Do nothing: each write flushes."""


def _drop_stderr() -> None:
    """Discard the content of stderr's buffer if it still cannot be written. Otherwise the exit status of a whole run is 120, Python's for this case."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    except ValueError:  # closed
        pass


stderr = _Stderr()


def tell(*lines: str, mark: str = "") -> None:
    """Print lines to stderr as `say` does to stdout. `mark`, such as 'error:', comes first, red on a terminal. It is no record: levels do not hide it."""
    write(cast(TextIO, stderr), *lines, begin=f"{colored(mark, RED)} " if mark else "")


RED, BOLD = "31;1", "1"  # of `colored`


def colored(text: str, code: str) -> str:
    """Return `text` in a color of ANSI terminals, if stderr is one and NO_COLOR is not set (no-color.org)."""
    if not stderr.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{code}m{text}\x1b[0m"


def _write(line: str) -> None:
    stderr.write(line + "\n")


sink: Callable[[str], None] = _write
minimum = 0
records = 0  # written since `configure`
_once: set[str] = set()
_folder: str | None = None  # of log files
_program = "caffe"
_chosen = False  # whether configure() has set the level
_files: dict[int, TextIO] = {}
_file_channel = Channel("")


def configure(program: str = "caffe") -> None:
    """Read the environment variables. The command line calls this. `program` is the first part of the names of log files."""
    global minimum, records, _folder, _program, _chosen, _file_channel
    _chosen, records = True, 0
    try:
        minimum = int(os.environ.get("GLOG_minloglevel", "0"))  # noqa: SIM112 (glog's spelling)
    except ValueError:
        minimum = 0
    folder, stderr_alone = os.environ.get("GLOG_log_dir"), os.environ.get("GLOG_logtostderr")  # noqa: SIM112
    files = stderr_alone.lower() in _FALSE if stderr_alone else bool(folder)
    for stream in _files.values():
        with contextlib.suppress(OSError):
            stream.close()
    _files.clear()
    _program, _folder = program, (folder or tempfile.gettempdir()) if files else None
    _file_channel = Channel(f"the log in {_folder} (GLOG_log_dir)")


def quiet(level: int = 1) -> None:
    """Hide everything below `level` (1 = warnings), as a library should."""
    global minimum
    minimum = level


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """Context in which no line is written, for work that is done again outside of it."""
    global minimum
    before, minimum = minimum, len(LEVELS)
    try:
        yield
    finally:
        minimum = before


def on_terminal() -> bool:
    """Whether lines go to stderr."""
    return sink is _write


@contextlib.contextmanager
def into(path: str, mode: str = "w", echo: bool = False, links: bool = True, once: bool = False) -> Iterator[None]:
    """Context in which lines go to a file, opened with `mode`. Warnings and errors also go to the terminal, and with `echo` all lines.

    `once`: a warning that comes again goes to the file alone. `links`: follow a link. False for a name that the user has not given. Raises OSError.
    """
    global sink, minimum
    before = sink, minimum
    with open(path, mode, encoding="utf-8", errors="backslashreplace", opener=output if links else output_no_link) as file:
        channel, told = Channel(f"the log {path}"), set[str]()

        def write(line: str) -> None:
            with channel:
                file.write(line + "\n")
                file.flush()
            text = line.partition("] ")[2]
            if echo or (line[:1] in LEVELS[1:] and not (once and text in told)):
                told.add(text)
                before[0](line)

        sink, minimum = write, 0
        try:
            yield
        finally:
            sink, minimum = before


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
    """Write one record. `source` is Caffe's file and line, for example 'solver.cpp:239'. Lines keep their line breaks; in other texts they are escaped."""
    global records
    if level < minimum:
        return
    records += 1
    now = time.time()
    stamp = time.strftime("%m%d %H:%M:%S", time.localtime(now))
    micros = int(now % 1 * 1e6)
    line = f"{LEVELS[level]}{stamp}.{micros:06d} {threading.get_native_id():5d} {source}] {shown(text)}"
    sink(line)
    if _folder is not None:
        _to_files(level, line)


def _to_files(level: int, line: str) -> None:
    """Write a line to the log files."""
    with _file_channel:
        for each in range(level + 1):
            if each not in _files:
                _files[each] = _open(each)
            _files[each].write(line + "\n")
            _files[each].flush()


def _open(level: int) -> TextIO:
    assert _folder is not None
    host = socket.gethostname()
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):
        user = "invalid-user"  # as in glog
    name = f"{_program}.{host}.{user}.log.{NAMES[level]}.{time.strftime('%Y%m%d-%H%M%S')}.{os.getpid()}"
    stream = open(os.path.join(_folder, name), "a", encoding="utf-8", errors="backslashreplace", opener=output_no_link)
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
