"""Discovery of OpenCL runtimes on simulated machines made of temporary folders.

Each test starts a separate process, because the loader reads its folder only once.
"""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ocaffe.cl import discovery
from ocaffe.cl.discovery import Runtime

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the loader of Linux")
ROOT = Path(__file__).resolve().parents[2]
PROLOGUE = """
import json, os, sys
from ocaffe.cl import discovery
folder, extra, seconds = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])
discovery._SYSTEM_FOLDER = folder
discovery._PROBE_SECONDS = seconds
discovery._without_icd_files = lambda: iter([discovery.Runtime(path, "found in a test") for path in extra])
"""
LIST = """
from ocaffe.cl.device import list_devices
names = [device.platform_name for device in list_devices()]
print(json.dumps({"devices": names, "runtimes": [[r.library, r.problem, r.devices] for r in discovery.discover().runtimes],
                  "vendors": os.environ.get("OCL_ICD_VENDORS"), "user": discovery.discover().chosen_by_user}))
"""
ABORT = """
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void start(void) { fprintf(stderr, "boom\\n"); abort(); }
"""
HANG = """
#include <unistd.h>
__attribute__((constructor)) static void start(void) { sleep(60); }
"""


class Machine:
    """A simulated machine: its vendors folder, its cache, its libraries."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.vendors = folder / "vendors"
        self.vendors.mkdir()
        self.cache = folder / "cache"
        self.pyopencl_has_runtime = list(Path(sys.prefix).glob("lib/python*/site-packages/pyopencl/.libs/*.icd"))

    def icd(self, name: str, text: str) -> None:
        (self.vendors / name).write_text(text)

    def library(self, name: str, source: str) -> str:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler")
        path = self.folder / name
        subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)], input=source.encode(), check=True)
        return str(path)

    def run(self, code: str = LIST, extra: list[str] | None = None, seconds: float = 60, **variables: str) -> tuple[dict, str]:
        """Return the JSON output of a new process, and its stderr."""
        command = [sys.executable, "-c", PROLOGUE + code, str(self.vendors), json.dumps(extra or []), str(seconds)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("OCL_ICD", "OPENCL_VENDOR", "OCAFFE"))}
        environment |= {"OCAFFE_CACHE": str(self.cache), "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), **variables}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=self.folder, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.split("\n")[-2]), done.stderr


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    if made.pyopencl_has_runtime:
        pytest.skip("pyopencl brings a runtime of its own here")
    return made


@pytest.fixture(scope="session")
def working_runtime() -> str:
    """Return the library of a working runtime of this machine."""
    found = [runtime for runtime in discovery.discover().runtimes if runtime.devices]
    if not found:
        pytest.skip("no OpenCL runtime, or the environment directs the loader")
    return min(found, key=lambda runtime: "pocl" in runtime.library).library  # PoCL takes seconds to build its first kernel


def test_no_runtime_at_all(machine: Machine) -> None:
    code = """
from ocaffe.cl.device import select_device
from ocaffe.errors import Error
try:
    select_device()
except Error as error:
    print(json.dumps({"error": str(error)}))
"""
    answer, _ = machine.run(code)
    assert "no OpenCL device on this machine" in answer["error"] and "fix: " in answer["error"]


def test_broken_icd_files_are_skipped(machine: Machine, working_runtime: str) -> None:
    machine.icd("1-placeholder.icd", "/opt/anaconda1anaconda2anaconda3/lib/libintelocl.so\n")
    machine.icd("2-empty.icd", "")
    machine.icd("3-unknown.icd", "libnosuchruntime.so.1\n")
    machine.icd("4-works.icd", f"  {working_runtime} \n\n")
    answer, said = machine.run()
    assert len(answer["devices"]) >= 1
    problems = [problem for _, problem, _ in answer["runtimes"]]
    assert [bool(problem) for problem in problems] == [True, True, True, False]
    assert "1-placeholder.icd names no file that exists" in problems[0]
    assert "left out" not in said, "leftovers of removed drivers are no reason to warn at each start"


def test_a_runtime_that_aborts_is_left_out_once_and_for_all(machine: Machine, working_runtime: str) -> None:
    bad = machine.library("libabort.so", ABORT)
    machine.icd("bad.icd", bad)
    machine.icd("works.icd", working_runtime)
    answer, said = machine.run()
    assert len(answer["devices"]) >= 1
    verdicts = {library: problem for library, problem, _ in answer["runtimes"]}
    assert "ended with SIGABRT: boom" in verdicts[bad] and not verdicts[working_runtime]
    assert f"OpenCL runtime {bad} is left out: " in said and "delete " in said
    assert bad not in "".join(path.read_text() for path in Path(answer["vendors"]).iterdir())

    forbid = "import subprocess\ndef refuse(*a, **k): raise AssertionError('a process was started')\nsubprocess.Popen = refuse\n"
    again, said = machine.run(forbid + LIST)
    assert again == answer and "SIGABRT" in said

    os.utime(bad, ns=(1, 1))  # the file was replaced, so it is tried again
    verdict_files = set((machine.cache / "runtimes").iterdir())
    machine.run()
    assert len(set((machine.cache / "runtimes").iterdir()) - verdict_files) == 1


@pytest.mark.parametrize("kills", [1, 2])
def test_a_trial_that_is_killed_from_outside_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int) -> None:
    """The first is repeated at once. After the second the runtime is left out, but only in this process."""
    monkeypatch.setenv("OCAFFE_CACHE", str(tmp_path))
    verdict = {"platforms": [["Some", "1.2"]], "devices": 1, "problem": ""}
    started: list[str] = []

    def start(*_: object, **__: object) -> subprocess.Popen[bytes]:
        started.append("kill" if len(started) < kills else "answer")
        code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)" if started[-1] == "kill" else f"print({json.dumps(verdict)!r})"
        return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    monkeypatch.setattr(discovery, "start_child", start)
    candidate = Runtime("/lib/libwhatever.so", "a test")
    (found,) = discovery._try_all([candidate])
    assert len(started) == 2
    assert found.devices == (kills == 1) and ("ended with SIGKILL" in found.problem) == (kills == 2) and "delete" not in found.problem
    (again,) = discovery._try_all([candidate])
    assert again.devices == 1 and not again.problem and len(started) == (2 if kills == 1 else 3)


def test_trials_may_start_early(machine: Machine, working_runtime: str) -> None:
    """`discover` then starts no other trial. With verdicts nothing starts."""
    code = """
count, start = [], discovery.start_child
discovery.start_child = lambda *given, **more: (count.append(1), start(*given, **more))[1]
discovery.start_trials()
early = len(count)
""" + LIST.replace('print(json.dumps({', 'print(json.dumps({"early": early, "all": len(count), ')
    answer, _ = machine.run(code, extra=[working_runtime])
    assert answer["early"] == answer["all"] == 1 and len(answer["devices"]) >= 1
    answer, _ = machine.run(code, extra=[working_runtime])
    assert answer["early"] == answer["all"] == 0 and len(answer["devices"]) >= 1


def test_damaged_files_of_the_cache_are_repaired(machine: Machine, working_runtime: str) -> None:
    answer, _ = machine.run(extra=[working_runtime])
    (verdict,) = (machine.cache / "runtimes").iterdir()
    (icd,) = Path(answer["vendors"]).iterdir()
    right, name = verdict.read_bytes(), icd.read_bytes()
    verdict.write_bytes(right.replace(b'"problem": ""', b'"problem": 7'))
    icd.write_bytes(name[: len(name) // 2])
    assert machine.run(extra=[working_runtime])[0] == answer
    assert verdict.read_bytes() == right and icd.read_bytes() == name


def test_a_runtime_that_hangs_is_left_out(machine: Machine) -> None:
    bad = machine.library("libhang.so", HANG)
    answer, _ = machine.run(extra=[bad], seconds=1.5)
    assert answer["devices"] == [] and "gave no answer to a trial for 1.5 seconds" in answer["runtimes"][0][1]


def test_what_is_no_opencl_library_does_no_harm(machine: Machine) -> None:
    text = machine.folder / "libtext.so"
    text.write_text("not a library")
    answer, said = machine.run(extra=[str(text), machine.library("libempty.so", "int nothing;")])
    assert [(problem, devices) for _, problem, devices in answer["runtimes"]] == [("", 0), ("", 0)]
    assert answer["devices"] == [] and "left out" not in said


def test_one_library_under_two_names_is_one_runtime(machine: Machine, working_runtime: str) -> None:
    link = machine.folder / "liblink.so"
    link.symlink_to(working_runtime)
    machine.icd("a.icd", working_runtime)
    machine.icd("b.icd", str(link))
    answer, _ = machine.run(extra=[working_runtime, str(link)])
    assert len(answer["runtimes"]) == 1 and len(answer["devices"]) == len(set(answer["devices"]))


@pytest.mark.parametrize("variable", discovery.USER_VARIABLES)
def test_the_users_own_setting_is_left_alone(machine: Machine, variable: str) -> None:
    elsewhere = machine.folder / "elsewhere"
    elsewhere.mkdir()
    code = """
found = discovery.discover()
print(json.dumps({"user": found.chosen_by_user, "runtimes": len(found.runtimes), "vendors": os.environ.get("OCL_ICD_VENDORS")}))
"""
    answer, _ = machine.run(code, extra=["/not/looked/at.so"], **{variable: str(elsewhere)})
    vendors = str(elsewhere) if variable == "OCL_ICD_VENDORS" else None
    assert answer == {"user": f"{variable}={elsewhere}", "runtimes": 0, "vendors": vendors}


def test_icd_filenames_are_taken_in(machine: Machine, working_runtime: str) -> None:
    answer, _ = machine.run(OCL_ICD_FILENAMES=f"{working_runtime}:libnosuchruntime.so.1")
    assert [library for library, _, _ in answer["runtimes"]] == [working_runtime, "libnosuchruntime.so.1"]
    assert len(answer["devices"]) >= 1 and "OCL_ICD_FILENAMES names no file" in answer["runtimes"][1][1]


def test_a_trial_without_pyopencl_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCAFFE_CACHE", str(tmp_path))
    without = [folder for folder in sys.path if not os.path.isdir(os.path.join(folder, "pyopencl"))]
    monkeypatch.setattr(sys, "path", without)  # the path of a child process
    candidate = Runtime("/lib/libwhatever.so", "a test")
    assert list(discovery._try_all([candidate])) == [candidate]
    assert not list((tmp_path / "runtimes").iterdir())


def test_a_child_process_does_not_take_our_setting_for_the_users(machine: Machine) -> None:
    code = """
import subprocess
found = discovery.discover()
code = "from ocaffe.cl import discovery; print(repr(discovery.discover().chosen_by_user))"
said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
print(json.dumps({"said": said.strip(), "vendors": os.environ["OCL_ICD_VENDORS"]}))
"""
    answer, _ = machine.run(code)
    assert answer["said"] == "''" and answer["vendors"]


def test_with_the_cache_off_the_folder_goes_with_the_process(machine: Machine, working_runtime: str) -> None:
    answer, _ = machine.run(extra=[working_runtime], OCAFFE_CACHE="off")
    assert len(answer["devices"]) >= 1
    assert not Path(answer["vendors"]).exists() and not machine.cache.exists()


def test_parallel_processes_share_one_vendors_folder(machine: Machine) -> None:
    code = "print(json.dumps(discovery.vendors_folder([f'/lib/lib{i}.so' for i in range(200)])))"
    command = [sys.executable, "-c", PROLOGUE + code, str(machine.vendors), "[]", "1"]
    environment = {**os.environ, "OCAFFE_CACHE": str(machine.cache), "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) for _ in range(6)]
    answers = {process.communicate()[0] for process in processes}
    assert len(answers) == 1
    folder = Path(json.loads(answers.pop()))
    files = sorted(folder.iterdir(), key=lambda path: int(path.name.split("-")[0]))
    assert [path.read_text() for path in files] == [f"/lib/lib{i}.so\n" for i in range(200)]
    assert len(list(folder.parent.iterdir())) == 1


def test_importing_leaves_the_environment_of_pyopencl_users_alone(machine: Machine, working_runtime: str) -> None:
    code = "discovery.import_pyopencl()\nprint(json.dumps([os.environ.get('PYOPENCL_NO_CACHE'), 'pyopencl' in sys.modules]))\n"
    answer, _ = machine.run(code, extra=[working_runtime])
    assert answer == [None, True]  # type: ignore[comparison-overlap]
    answer, _ = machine.run(code, extra=[working_runtime], PYOPENCL_NO_CACHE="0")
    assert answer == ["0", True]  # type: ignore[comparison-overlap]


def test_our_modules_do_not_import_pyopencl_by_themselves(machine: Machine) -> None:
    code = "import ocaffe.cl.device, ocaffe.cl.program, ocaffe.cli.device_query\nprint(json.dumps('pyopencl' in sys.modules))\n"
    answer, _ = machine.run(code)
    assert answer is False


# The search for libraries


def test_find_library_takes_the_right_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other, same = tmp_path / "i386", tmp_path / "here"
    header = bytearray(Path(sys.executable).read_bytes()[:64])
    for folder in (other, same):
        folder.mkdir()
    (same / "libtest.so.1").write_bytes(header)
    header[4] = 3 - header[4]  # 32 instead of 64 bits
    (other / "libtest.so.1").write_bytes(header)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{other}::{same}")
    assert discovery.find_library("libtest.so.1") == str(same / "libtest.so.1")
    assert discovery.find_library("libtest.so.2") is None
    monkeypatch.setattr(sys, "executable", __file__)  # a script that starts Python
    assert discovery.find_library("libtest.so.1") == str(same / "libtest.so.1")


def test_find_library_knows_what_the_linker_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    if not os.path.isfile("/etc/ld.so.cache"):
        pytest.skip("no ld.so.cache on this system")
    found = discovery.find_library("libc.so.6")
    assert found is not None and os.path.isfile(found)


@pytest.mark.parametrize("where", ["environment", "user", "record", "nowhere"])
def test_intel_runtime_from_pip(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, user, third = tmp_path / "base", tmp_path / "user", tmp_path / "third"
    package = third / "site" / "intel_opencl_rt-1.0.dist-info"
    package.mkdir(parents=True)
    if where != "nowhere":
        (package / "METADATA").write_text("Name: intel-opencl-rt\nVersion: 1.0\n")
        (package / "RECORD").write_text("../../lib/libintelocl.so.1,,\n../lib/libintelocl.so,,\n")
    library = {"environment": base, "user": user, "record": third, "nowhere": tmp_path / "other"}[where] / "lib" / "libintelocl.so"
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.setattr(sys, "prefix", str(base))
    monkeypatch.setattr("site.getuserbase", lambda: str(user))
    monkeypatch.setattr(sys, "path", [str(third / "site")])
    assert discovery._intel_from_pip() == (str(library) if where != "nowhere" else None)


def test_pocl_beside_the_loader_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "pyopencl"
    (package / ".libs").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / ".libs" / "pocl.icd").write_text("libpocl-1234.so")
    (package / ".libs" / "libpocl-1234.so").touch()
    monkeypatch.setattr(discovery, "_SYSTEM_FOLDER", str(tmp_path / "none"))
    spec = type("Spec", (), {"origin": str(package / "__init__.py")})
    monkeypatch.setattr(discovery.importlib.util, "find_spec", lambda name: spec)
    assert list(discovery._from_icd_files()) == [Runtime(str(package / ".libs" / "libpocl-1234.so"), str(package / ".libs" / "pocl.icd"))]


def test_where_no_process_can_be_started_runtimes_are_used_untried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OCAFFE_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    candidate = Runtime(sys.executable, "a test")
    began = time.monotonic()
    assert list(discovery._try_all([candidate])) == [candidate] and time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("allowed", "cores", "limit", "pins"), [({0, 1}, 2, None, True), ({0, 1}, 2, "2", True), ({0, 1}, 2, "1", False), ({0, 2}, 4, None, False)]
)
def test_threads_of_pocl_are_bound_to_cores(allowed: set[int], cores: int, limit: str | None, pins: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only if the process may use all cores: PoCL takes the first ones, whichever the process may use."""
    monkeypatch.setattr(discovery.os, "sched_getaffinity", lambda _: allowed, raising=False)
    monkeypatch.setattr(discovery.os, "cpu_count", lambda: cores)
    monkeypatch.delenv("POCL_MAX_PTHREAD_COUNT", raising=False)
    if limit:
        monkeypatch.setenv("POCL_MAX_PTHREAD_COUNT", limit)
    assert discovery.may_pin() == pins


@pytest.mark.skipif(os.name == "nt", reason="no pipes")
def test_a_pipe_in_the_folder_of_drivers_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCAFFE_CACHE", str(tmp_path))
    (path,) = Path(discovery.vendors_folder(["/lib/a.so"])).iterdir()
    path.unlink()
    os.mkfifo(path)
    assert discovery.vendors_folder(["/lib/a.so"]) == str(path.parent) and path.read_text() == "/lib/a.so\n"
