"""Other systems by imitation: their values of sys.platform, their folders, and the modules and functions that they lack (docs/platforms.md)."""
from __future__ import annotations

import errno
import os
import pathlib
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ocaffe.cl import child, discovery, free_memory
from ocaffe.cl.device import System, choose, cpu_runtime_command
from ocaffe.cl.discovery import Discovery, Runtime
from ocaffe.cli import device_query, ranks
from ocaffe.errors import Error
from ocaffe.parallel import mpiexec, own_processes
from ocaffe.support import cache, files
from ocaffe.support.lock import FileLock

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Python without the modules and functions that Windows lacks. Other packages are imported before, because theirs differ on Windows.
WINDOWS = """
import os, pkgutil, signal, socket, sys
import numpy, PIL.Image, google.protobuf.text_format, h5py, lmdb, onnx, pyopencl, tqdm, getpass, multiprocessing.util, simplejpeg
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for module, names in {
    os: ("fork", "getuid", "geteuid", "pread", "preadv", "sched_getaffinity", "getloadavg", "memfd_create", "register_at_fork", "pidfd_open", "O_CLOEXEC"),
    socket: ("AF_UNIX", "SOCK_SEQPACKET", "recv_fds", "send_fds"), signal: ("SIGHUP", "SIGKILL", "SIGPROF", "setitimer", "ITIMER_PROF"),
}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "win32"
import ocaffe
count = 0
for found in pkgutil.walk_packages(ocaffe.__path__, "ocaffe."):
    if not found.name.endswith("__main__") and "ocaffe.cl.child" != found.name:
        __import__(found.name)
        count += 1
from ocaffe.cli import main
assert count > 300, count
assert main(["plan", "--model", sys.argv[1]]) == 0
"""


def test_all_modules_work_without_those_of_posix() -> None:
    net = ROOT / "zoo" / "lenet" / "deploy.prototxt"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "USERNAME": "alice"}
    run = subprocess.run([sys.executable, "-c", WINDOWS, net], env=environment, capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr[-2000:]
    assert "total" in run.stdout


class Msvcrt:
    """Windows' locks of bytes: a second lock of the same file fails. `held` has the files."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        self.held: set[tuple[int, int]] = set()

    def locking(self, handle: int, mode: int, count: int) -> None:
        facts = os.fstat(handle)
        assert mode == self.LK_NBLCK and count == 1 and os.lseek(handle, 0, os.SEEK_CUR) > 1 << 20, "the text of the file stays readable"
        if (facts.st_dev, facts.st_ino) in self.held:
            raise OSError(errno.EACCES, "Permission denied")
        self.held.add((facts.st_dev, facts.st_ino))


def test_a_lock_on_windows(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msvcrt", Msvcrt())  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "fcntl", None)  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "platform", "win32")
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert first.acquire() is None
    assert str(os.getpid()) in str(second.acquire())
    first.release()


@pytest.mark.parametrize(
    ("system", "variables", "folder"),
    [
        ("linux", {"HOME": "/home/x"}, "/home/x/.cache/ocaffe"),
        ("linux", {"HOME": "/home/x", "XDG_CACHE_HOME": "/fast"}, "/fast/ocaffe"),
        ("android", {"HOME": "/data/data/com.termux/files/home"}, "/data/data/com.termux/files/home/.cache/ocaffe"),
        ("darwin", {"HOME": "/Users/x"}, "/Users/x/Library/Caches/ocaffe"),
        ("win32", {"LOCALAPPDATA": "/c/x/AppData/Local"}, "/c/x/AppData/Local/ocaffe/cache"),
    ],
)
def test_the_cache(system: str, variables: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(sys, "platform", system)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache._user_folder() == pathlib.Path(folder)


# -- drivers -------------------------------------------------------------------------------------------------------------


def library(path: pathlib.Path, other_bits: bool = False) -> str:
    """Write the head of a library for this processor, or for the same one with other bits."""
    header = bytearray(pathlib.Path(sys.executable).read_bytes()[:64])
    header[4] = 3 - header[4] if other_bits else header[4]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header)
    return str(path)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> pathlib.Path:
    """A system without drivers. The linker searches the folder `linker`."""
    monkeypatch.setattr(discovery, "_linker_folders", lambda setting: [str(tmp_path / "linker")])
    monkeypatch.setattr(discovery, "_intel_from_pip", lambda: None)
    monkeypatch.setattr(discovery, "_SYSTEM_FOLDER", str(tmp_path / "none"))
    return tmp_path


@pytest.mark.skipif(sys.platform != "linux", reason="reads the header of this Python")
@pytest.mark.parametrize("name", ["libmali.so", "libmali.so.1", "libOpenCL_adreno.so.1", "libPVROCL.so", "libnvidia-opencl.so.1"])
def test_a_driver_without_an_icd_file(name: str, bare: pathlib.Path) -> None:
    path = library(bare / "linker" / name)
    library(bare / "linker" / "libOpenCL.so")  # the loader
    [found] = discovery._candidates()
    assert found.library == path and "without an .icd file" in found.origin


@pytest.mark.skipif(sys.platform != "linux", reason="reads the header of this Python")
def test_two_names_of_a_driver_are_one(bare: pathlib.Path) -> None:
    path = library(bare / "linker" / "libmali-valhall-g610.so")
    for name in ("libmali.so", "libmali.so.1"):
        (bare / "linker" / name).symlink_to(path)
    assert len(list(discovery._candidates())) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads the header of this Python")
@pytest.mark.parametrize("system", ["linux", "android"])
def test_drivers_of_android(system: str, bare: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "getandroidapilevel", lambda: 30, raising=False)
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(discovery, "_ANDROID_FOLDERS", [f"{bare}{folder}" for folder in discovery._ANDROID_FOLDERS])
    mali, own = library(bare / "vendor/lib64/egl/libGLES_mali.so"), library(bare / "vendor/lib64/libOpenCL.so")
    library(bare / "vendor/lib/libOpenCL.so", other_bits=True)
    assert [found.library for found in discovery._candidates()] == [mali, own]
    monkeypatch.delattr(sys, "getandroidapilevel")
    assert not list(discovery._candidates())


@pytest.mark.skipif(sys.platform != "linux", reason="reads the header of this Python")
def test_icd_files_beside_the_python_below_a_virtual_environment(bare: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = library(bare / "conda/lib/libpocl.so.2")
    folder = bare / "conda/etc/OpenCL/vendors"
    folder.mkdir(parents=True)
    (folder / "pocl.icd").write_text(path + "\n")
    monkeypatch.setattr(sys, "base_prefix", str(bare / "conda"))
    assert path in [found.library for found in discovery._from_icd_files()]


def test_macos_and_windows_have_their_own_loaders(bare: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert discovery.discover.__wrapped__() == Discovery()
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(os, "pathsep", ";")
    for variable in (*discovery.USER_VARIABLES, "OCL_ICD_FILENAMES"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(discovery, "_intel_from_pip", lambda: r"C:\venv\Library\bin\intelocl64.dll")
    monkeypatch.setattr(discovery, "_try_all", iter)
    found = discovery.discover.__wrapped__()
    assert [runtime.library for runtime in found.runtimes] == [r"C:\venv\Library\bin\intelocl64.dll"] and not found.folder
    assert os.environ["OCL_ICD_FILENAMES"] == r"C:\venv\Library\bin\intelocl64.dll" and "OCL_ICD_VENDORS" not in os.environ


def test_rusticl_without_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_query, "discover", lambda: Discovery((Runtime("/usr/lib/libRusticlOpenCL.so.1", "rusticl.icd"),)))
    monkeypatch.delenv("RUSTICL_ENABLE", raising=False)
    assert "RUSTICL_ENABLE, such as radeonsi" in str(dict(device_query._left_out())["Runtime without devices"])
    monkeypatch.setenv("RUSTICL_ENABLE", "panfrost")
    assert "RUSTICL_ENABLE" not in str(dict(device_query._left_out())["Runtime without devices"])


@pytest.mark.parametrize(
    ("system", "machine", "android", "command"),
    [
        ("linux", "aarch64", True, "pkg install pocl"), ("android", "aarch64", True, "pkg install pocl"),
        ("win32", "ARM64", False, "driver of the GPU's maker"), ("darwin", "arm64", False, "nothing to install"),
    ],
)  # fmt: skip
def test_the_remedy_without_a_driver(system: str, machine: str, android: bool, command: str) -> None:
    assert command in cpu_runtime_command(System(system, machine, android=android, has=lambda name: True))


def test_the_python_of_android(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "getandroidapilevel", lambda: 30, raising=False)
    assert System.of_this_machine().android


def test_no_cpu_on_apples_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu: Any = SimpleNamespace(kind="gpu", number="0:0", name="Apple M1", platform_name="Apple")
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(Error) as raised:
        choose([gpu], "cpu")
    assert raised.value.fix == "--device 0:0"


# -- memory and processes ------------------------------------------------------------------------------------------------


def test_free_memory_of_gpus_that_share_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "_host", lambda: 123)
    assert free_memory.free_memory(SimpleNamespace(host_unified_memory=1), "gpu", frozenset()) == 123
    assert free_memory.free_memory(SimpleNamespace(host_unified_memory=0), "gpu", frozenset()) is None


def test_free_memory_without_the_files_of_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(pathlib.Path, "read_text", missing)
    assert free_memory._host() is None


def test_children_end_with_their_parent_only_where_the_system_can(monkeypatch: pytest.MonkeyPatch) -> None:
    for system in ("darwin", "win32"):
        monkeypatch.setattr(sys, "platform", system)
        child.end_with_parent(-1)  # would end this process on Linux, because its parent is another one
        assert mpiexec.ends_with(-1) is None


@pytest.mark.skipif(sys.platform != "linux", reason="a feature of Linux")
def test_children_end_with_their_parent_on_android() -> None:
    code = "import sys; sys.platform = 'android'; from ocaffe.cl.child import end_with_parent; end_with_parent(-1); print('alive')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert run.returncode == 1 and run.stdout == ""


def test_windows_passes_no_signal_to_a_rank(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda process, number: sent.append(number))
    (tmp_path / "rank 0").write_text("12345")
    found = ranks._Ranks(tmp_path, SimpleNamespace(pid=1))  # type: ignore[arg-type]
    found.send(signal.SIGINT)
    assert sent == [signal.SIGINT]
    monkeypatch.setattr(ranks.os, "name", "nt")
    found.send(signal.SIGINT)
    monkeypatch.undo()
    assert sent == [signal.SIGINT] and found.signalled


def test_ranks_of_a_script_need_sockets_of_unix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "AF_UNIX")
    with pytest.raises(Error, match="cannot become ranks on this system"):
        own_processes.become_rank(0, 2)


def test_windows_does_not_test_a_process_by_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """There os.kill ends the process for any number."""
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("os.kill was called"))
    monkeypatch.setattr(os, "name", "nt")
    answers = files._runs(os.getpid()), files._runs(os.getpid() + 1)
    monkeypatch.undo()
    assert answers == (True, False)
