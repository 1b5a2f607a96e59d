"""Find the OpenCL runtimes of the machine, and import pyopencl so that its loader sees them. ocaffe imports pyopencl only here.

The loader in pyopencl's wheel (ocl-icd) opens the libraries that .icd files name. It reads these files from
/etc/OpenCL/vendors or the folder OCL_ICD_VENDORS, and from $PYOPENCL_HOME/.libs, once, at the first OpenCL call.
Therefore it does not see a runtime installed by pip (intel-opencl-rt), or by a container toolkit without an .icd file (NVIDIA).

ocaffe writes a separate folder with one .icd file per working runtime and points the loader to it. Each runtime is first
tested in another process, because a broken runtime can abort the process that opens it.

If the user sets OCL_ICD_VENDORS or OPENCL_VENDOR_PATH, ocaffe changes nothing. Libraries in OCL_ICD_FILENAMES are included;
Khronos' loader supports that variable, pyopencl's does not.

On macOS OpenCL is part of the system, and pyopencl's wheel is linked to it, so there is nothing to do. On Windows the loader reads the registry, where
installers enter their drivers; OCL_ICD_FILENAMES adds the runtimes found here.
"""
from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ocaffe.support import log, parent
from ocaffe.support.cache import Entries, digest, part, write_atomically
from ocaffe.support.files import open_plain, read_plain
from ocaffe.support.whole import whole

CHILD = Path(__file__).with_name("child.py")
USER_VARIABLES = ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH")  # set by the user: the location of all runtimes
_SYSTEM_FOLDER = "/etc/OpenCL/vendors"
_PROBE_FORMAT = "2"  # part of a verdict's key: increase it when the test changes
_PROBE_SECONDS = 60  # a test takes 0.5 to 3 s
NO_PYOPENCL = 77  # exit status of child.py
_FROM_OUTSIDE = ("SIGHUP", "SIGINT", "SIGKILL", "SIGTERM")  # sent by users and by the system when memory is short; a crash has other signals
# Drivers that some systems have without an .icd file, each with its maker. A library of another name than its .icd file's is the same one by its real path.
_DRIVERS = (
    ("libnvidia-opencl.so.1", "NVIDIA"), ("libmali.so.1", "Arm"), ("libmali.so", "Arm"), ("libOpenCL_adreno.so.1", "Qualcomm"),
    ("libPVROCL.so.1", "Imagination"), ("libPVROCL.so", "Imagination"),
)  # fmt: skip
# On Android, below these folders. Elsewhere libOpenCL.so is a loader, which must not load itself.
_ANDROID_FOLDERS = ("/vendor/lib64", "/system/vendor/lib64", "/vendor/lib", "/system/vendor/lib")
_ANDROID_DRIVERS = (("egl/libGLES_mali.so", "Arm"), ("libPVROCL.so", "Imagination"), ("libOpenCL.so", "the phone"))
_PROGRAM = "/proc/self/exe"  # sys.executable may be a script that starts Python, or empty in a program that contains Python
_LIBRARY_FOLDERS = (  # searched after LD_LIBRARY_PATH and ld.so.cache; musl has no cache, WSL and NixOS use other folders
    "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib", "/run/opengl-driver/lib",
    "/usr/lib64", "/usr/lib", "/usr/local/lib", "/lib64", "/lib",
)  # fmt: skip


@dataclass(frozen=True)
class Runtime:
    """An OpenCL driver, as a line of an .icd file names it."""

    library: str  # the path for the loader: absolute, or the .icd file's text if that names no file
    origin: str  # the .icd file that names it, or the package that contains it
    problem: str = ""  # why it is not used; empty if it is used
    platforms: tuple[tuple[str, str], ...] = ()  # (name, version) of its platforms in the test
    devices: int = 0  # number of devices on which the test kernel ran


@dataclass(frozen=True)
class Discovery:
    """The runtimes found, and the settings for the loader."""

    runtimes: tuple[Runtime, ...] = ()
    folder: str = ""  # our vendors folder; empty if the loader's settings are unchanged
    chosen_by_user: str = ""  # 'OCL_ICD_VENDORS=...' if the user sets it

    def runtime_of(self, platform_name: str, platform_version: str) -> Runtime | None:
        """Return the runtime that provides a platform, or None if no test found it."""
        return next((runtime for runtime in self.runtimes if (platform_name, platform_version) in runtime.platforms), None)


@functools.cache
def import_pyopencl() -> ModuleType:
    """Import pyopencl with a loader that sees every working runtime. Call this instead of importing pyopencl.

    Measured on two 2.5 GHz cores with known verdicts: discovery 3 to 5 ms, numpy 0.10 to 0.15 s, pyopencl 0.08 to 0.12 s.
    """
    found = discover()
    cache_setting = os.environ.get("PYOPENCL_NO_CACHE")
    os.environ["PYOPENCL_NO_CACHE"] = "1"  # read at import; ocaffe.support.cache replaces pyopencl's cache
    try:
        import pyopencl
    finally:
        if cache_setting is None:
            del os.environ["PYOPENCL_NO_CACHE"]
        else:
            os.environ["PYOPENCL_NO_CACHE"] = cache_setting
    _share_invokers(pyopencl)
    own = str(os.getpid())
    if parent.told("affinity") not in ("", own):  # set by a process that has started this one, which may have other cores
        os.environ.pop("POCL_AFFINITY", None)
    if may_pin() and "POCL_AFFINITY" not in os.environ:
        os.environ["POCL_AFFINITY"] = "1"
        parent.tell(affinity=own)
    if found.folder in _cached:
        vendors_folder(_cached[found.folder])  # the cache may have been emptied since; the loader reads the folder at the next call
    if found.folder:
        os.environ["PYOPENCL_HOME"] = found.folder  # the loader would add untested runtimes of $PYOPENCL_HOME/.libs; our folder has the working ones
    return pyopencl


def may_pin() -> bool:
    """Return whether PoCL may bind each of its threads to a core of its own.

    Otherwise Linux may put two threads that it wakes together on one core, and leaves them there for some milliseconds, the time of a small net. PoCL
    takes the cores from number 0 on, whichever the process may use. So all cores must be allowed, and no limit on threads be set.
    """
    allowed: set[int] = getattr(os, "sched_getaffinity", lambda _: set())(0)
    return allowed == set(range(os.cpu_count() or 0)) and int_or(os.environ.get("POCL_MAX_PTHREAD_COUNT"), len(allowed)) >= len(allowed)


def int_or(text: str | None, default: int) -> int:
    """Return the number in a text, or `default` if there is none."""
    return whole(text or "", default)


def _share_invokers(pyopencl: ModuleType) -> None:
    """Share the Python code that pyopencl generates per kernel object between kernels with the same argument types.

    Generating it takes 1 ms for every launch of a net.
    """
    invoker = importlib.import_module(f"{pyopencl.__name__}.invoker")
    generate = getattr(invoker, "generate_enqueue_and_set_args", None)
    if generate is None or hasattr(generate, "__wrapped__"):
        return
    known: dict[Any, Any] = {}

    @functools.wraps(generate)
    def shared(function: str, *args: Any, **settings: Any) -> Any:
        key = (*args, *(settings[name] for name in sorted(settings) if name != "devs"))  # devices and the function's name are used only in a warning
        try:
            if key not in known:
                known[key] = generate("kernel", *args, **settings)
            return known[key]
        except TypeError:  # another version of pyopencl, with arguments that cannot be a key
            return generate(function, *args, **settings)

    invoker.generate_enqueue_and_set_args = shared  # type: ignore[attr-defined]


def start_trials() -> None:
    """Start the tests of new runtimes, without waiting. The process then imports what it needs before it calls `discover`."""
    if sys.platform == "darwin" or _chosen_by_user():
        return
    verdicts = Entries("runtimes")
    for runtime in _candidates():
        key = _verdict_key(runtime)
        if not runtime.problem and verdicts.load(key) is None and key not in _started and (trial := _start_trial(runtime)) is not None:
            _started[key] = trial


def _chosen_by_user() -> str:
    """Return the user's setting of the loader, or ''."""
    for variable in USER_VARIABLES:
        value = os.environ.get(variable)
        if value and value != parent.told("vendors"):
            return f"{variable}={value}"
    return ""


@functools.cache
def discover() -> Discovery:
    """Find and test the runtimes, and make the loader use those that work. Broken ones are left out with a warning."""
    if sys.platform == "darwin":
        return Discovery()
    chosen = _chosen_by_user()
    if chosen:
        return Discovery(chosen_by_user=chosen)
    runtimes = tuple(_try_all(list(_candidates())))
    usable = [runtime.library for runtime in runtimes if not runtime.problem]
    if sys.platform == "win32":
        if usable:
            os.environ["OCL_ICD_FILENAMES"] = os.pathsep.join(usable)
        return Discovery(runtimes)
    folder = vendors_folder(usable)
    os.environ["OCL_ICD_VENDORS"] = folder
    parent.tell(vendors=folder)  # so that child processes do not mistake the value for the user's
    return Discovery(runtimes, folder)


def vendors_folder(libraries: list[str]) -> str:
    """Return a folder with one .icd file per library. The hash of its contents is its name, so parallel processes share it."""
    contents = {f"{i:02}-{Path(library).name.split('.')[0]}.icd": library + "\n" for i, library in enumerate(libraries)}
    folder = part("vendors") and part(f"vendors/{digest(*contents.values())[:16]}")
    if folder is not None:
        with contextlib.suppress(OSError):
            for extra in {path.name for path in folder.glob("*.icd")} - {*contents}:
                os.unlink(folder / extra)  # the loader would load the library that it names
            for name, text in contents.items():
                if not _holds(folder / name, text.encode()):
                    write_atomically(folder / name, text.encode())
            _cached[str(folder)] = libraries
            return str(folder)
    temporary = tempfile.TemporaryDirectory(prefix="ocaffe-vendors-")
    _temporary_folders.append(temporary)  # removed when the process ends
    for name, text in contents.items():
        Path(temporary.name, name).write_text(text)
    return temporary.name


def _holds(path: Path, content: bytes) -> bool:
    """Return whether a file is there and sound."""
    try:
        return read_plain(path) == content
    except OSError:
        return False


_cached: dict[str, list[str]] = {}  # the libraries of vendors folders in the cache
_temporary_folders: list[tempfile.TemporaryDirectory[str]] = []
_started: dict[str, subprocess.Popen[bytes]] = {}  # trials that `start_trials` has started, by the keys of their verdicts


# Search for runtimes


def _candidates() -> Iterator[Runtime]:
    """Yield every runtime once, by its real path: those in OCL_ICD_FILENAMES, in .icd files, then those without an .icd file."""
    seen: set[str] = set()
    for runtime in (*_from_environment(), *_from_icd_files(), *_without_icd_files()):
        real = os.path.realpath(runtime.library) if os.path.isabs(runtime.library) else runtime.library
        if real not in seen:
            seen.add(real)
            yield runtime


def _from_environment() -> Iterator[Runtime]:
    for name in filter(None, os.environ.get("OCL_ICD_FILENAMES", "").split(os.pathsep)):
        library = name if sys.platform == "win32" else _locate(name, Path())
        yield Runtime(library or name, "OCL_ICD_FILENAMES", problem="" if library else "OCL_ICD_FILENAMES names no file that exists")


def _from_icd_files() -> Iterator[Runtime]:
    if sys.platform == "win32":
        return
    pyopencl = importlib.util.find_spec("pyopencl")
    beside_loader = Path(pyopencl.origin).parent / ".libs" if pyopencl and pyopencl.origin else None
    # Conda and Termux install drivers beside Python. A virtual environment on top of them has another prefix.
    environments = [Path(prefix, "etc/OpenCL/vendors") for prefix in dict.fromkeys((sys.prefix, sys.base_prefix))]
    for folder in (Path(_SYSTEM_FOLDER), *environments, beside_loader):
        if folder is None or not folder.is_dir():
            continue
        for icd in sorted(folder.glob("*.icd")):
            try:
                lines = read_plain(icd).decode(errors="replace").split("\n")
            except OSError:
                continue
            name = lines[0].strip()
            library = _locate(name, folder) if name else None
            if library:
                yield Runtime(library, str(icd))
            elif folder not in environments:  # there the Intel wheel leaves files with an unexpanded placeholder
                yield Runtime(name or str(icd), str(icd), problem=f"{icd} names no file that exists")


def _locate(name: str, beside: Path) -> str | None:
    """Return the file that the dynamic linker would open for a name in an .icd file."""
    if "/" in name:
        return name if os.path.isfile(name) else None
    if (beside / name).is_file() and beside.name == ".libs":  # the loader's run path includes its own folder
        return str(beside / name)
    return find_library(name)


def find_library(name: str) -> str | None:
    """Return the path where the dynamic linker would find a library.

    This reads files only, because ctypes.util starts other programs and dlopen may abort.
    """
    candidates = (os.path.join(folder, name) for folder in _linker_folders(os.environ.get("LD_LIBRARY_PATH", "")))
    return next((path for path in candidates if _fits(path)), None)


@functools.cache
def _linker_folders(setting: str) -> list[str]:
    """Return the folders that the linker searches, for a value of LD_LIBRARY_PATH."""
    folders = [folder for folder in setting.split(":") if folder]
    with contextlib.suppress(OSError):  # lists libraries by soname; a full name (libpocl.so.2.10.0) is in one of the same folders
        paths = re.findall(rb"(?<=\0)(/[^\0]*)/[^/\0]+(?=\0)", Path("/etc/ld.so.cache").read_bytes())
        folders += [os.fsdecode(folder) for folder in dict.fromkeys(paths)]
    return [*folders, *_LIBRARY_FOLDERS, os.path.join(sys.base_prefix, "lib")]


def _fits(path: str) -> bool:
    """Return whether a library is there and is for the processor of this Python."""
    return os.path.isfile(path) and _machine(path) == (_machine(_PROGRAM) or _machine(sys.executable))


def _machine(path: str) -> bytes | None:
    """Return word size and processor of an ELF file, because a 64-bit system also lists 32-bit libraries."""
    try:
        with open_plain(path) as file:
            header = file.read(20)
    except OSError:
        return None
    return header[4:5] + header[18:20] if header[:4] == b"\x7fELF" else None


def _without_icd_files() -> Iterator[Runtime]:
    intel = _intel_from_pip()
    if intel:
        yield Runtime(intel, "pip package intel-opencl-rt")
    if sys.platform == "win32":
        return
    for name, maker in _DRIVERS:
        library = find_library(name)
        if library:
            yield Runtime(library, f"the driver of {maker}, without an .icd file")
    if hasattr(sys, "getandroidapilevel"):  # sys.platform is 'linux' before Python 3.13, 'android' from then on
        for folder in _ANDROID_FOLDERS:
            yield from (Runtime(path, f"the driver of {maker}") for name, maker in _ANDROID_DRIVERS if _fits(path := os.path.join(folder, name)))


def _intel_from_pip() -> str | None:
    """Return the CPU runtime of the package intel-opencl-rt: in the environment, in the user's site, or by pip's records."""
    name = "Library/bin/intelocl64.dll" if sys.platform == "win32" else "lib/libintelocl.so"
    import site

    for base in (sys.prefix, site.getuserbase()):
        if os.path.isfile(os.path.join(base, name)):
            return os.path.join(base, name)
    import importlib.metadata

    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        package = importlib.metadata.distribution("intel-opencl-rt")
        for file in package.files or ():
            if file.name == os.path.basename(name):
                path = os.path.realpath(str(package.locate_file(file)))
                return path if os.path.isfile(path) else None
    return None


# Test of runtimes


def _try_all(candidates: list[Runtime]) -> Iterator[Runtime]:
    """Yield the candidates with their verdicts. Verdicts are cached by path, size and modification time.

    Candidates without a cached verdict are tested in parallel.
    """
    verdicts = Entries("runtimes")
    keys = [_verdict_key(runtime) for runtime in candidates]
    stored = [verdicts.load(key) for key in keys]
    known = [None if data is None else json.loads(data) for data in stored]
    if not all(verdict or runtime.problem for runtime, verdict in zip(candidates, known)):
        log.info("opencl:0", "Testing new OpenCL runtimes, each in a separate process")
    trials = [
        None if verdict or runtime.problem else _started.pop(key, None) or _start_trial(runtime) for runtime, key, verdict in zip(candidates, keys, known)
    ]
    for runtime, key, verdict, trial in zip(candidates, keys, known, trials):
        lasts = True
        if trial is not None:
            verdict, lasts = _finish_trial(trial)
            if not lasts and (again := _start_trial(runtime)) is not None:
                verdict, lasts = _finish_trial(again)
            if verdict is not None and lasts:
                verdicts.store(key, json.dumps({"library": runtime.library, **verdict}, indent=1).encode())
        if verdict is None:  # has a problem already, or cannot be tested here: use it untested
            yield runtime
            continue
        problem = verdict["problem"]
        if problem and lasts and verdicts.folder is not None:
            problem += f" (to try it again, delete {verdicts.folder / key})"
        if problem:
            log.warning("opencl:0", f"OpenCL runtime {runtime.library} is left out: {problem}")
        yield Runtime(
            runtime.library, runtime.origin, problem, tuple((name, version) for name, version in verdict["platforms"]), verdict["devices"]
        )


def _verdict_key(runtime: Runtime) -> str:
    # ldconfig changes the file that the linker finds for a bare name.
    facts = None
    with contextlib.suppress(OSError):
        facts = os.stat(runtime.library if os.path.isabs(runtime.library) else "/etc/ld.so.cache")
    stamp = f"{facts.st_size} {facts.st_mtime_ns}" if facts else ""
    return digest(_PROBE_FORMAT, os.path.realpath(runtime.library), stamp)[:32]


def start_child(purpose: str, environment: dict[str, str], home: str, stderr: int = subprocess.PIPE) -> subprocess.Popen[bytes] | None:
    """Start `python child.py PURPOSE` with pipes. Return None if that is not possible (frozen or embedded Python)."""
    if not sys.executable or getattr(sys, "frozen", False):
        return None
    if home in _cached:  # the cache may have been emptied since
        home = vendors_folder(_cached[home])
        environment = {**environment, "OCL_ICD_VENDORS": home}
    command = [sys.executable, str(CHILD), purpose, json.dumps(sys.path), home, str(os.getpid())]
    with contextlib.suppress(OSError):
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=environment)
    return None


def killed_from_outside(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a signal from outside ended a process that has ended. Windows does not tell that from other ends."""
    return process.returncode in {-getattr(signal, name) for name in _FROM_OUTSIDE if hasattr(signal, name)}


def _start_trial(runtime: Runtime) -> subprocess.Popen[bytes] | None:
    hidden = (*USER_VARIABLES, "OCL_ICD_FILENAMES", "LD_PRELOAD")  # Oclgrind uses LD_PRELOAD to replace every runtime
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    if sys.platform == "win32":
        return start_child("probe", {**environment, "OCL_ICD_FILENAMES": runtime.library}, "")
    folder = vendors_folder([runtime.library])
    return start_child("probe", {**environment, "OCL_ICD_VENDORS": folder}, folder)


def _finish_trial(trial: subprocess.Popen[bytes]) -> tuple[dict | None, bool]:
    """Return the verdict, and whether it is about the runtime. It is not if the process was killed from outside.

    The verdict is None if the process could not import pyopencl, which does not depend on the runtime.
    """
    verdict = {"platforms": [], "devices": 0, "problem": ""}
    try:
        answer, messages = trial.communicate(timeout=_PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        trial.kill()
        trial.communicate()
        return {**verdict, "problem": f"it gave no answer to a trial for {_PROBE_SECONDS} seconds"}, True
    try:
        return json.loads(answer), True
    except ValueError:
        code = trial.returncode
        if code == NO_PYOPENCL:
            return None, True
        how = f"exit status {code}"
        if code < 0:
            with contextlib.suppress(ValueError):
                how = signal.Signals(-code).name
        said = messages.decode(errors="replace").strip().split("\n")[-1]
        problem = f"a trial in another process ended with {how}" + (f": {said}" if said else "")
        return {**verdict, "problem": problem}, not killed_from_outside(trial)
