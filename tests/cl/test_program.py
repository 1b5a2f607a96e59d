"""Programs: their source text, the cache of binaries, builds in worker processes, and the message of a failed build."""
from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ocaffe.cl import program as module
from ocaffe.cl import workers
from ocaffe.cl.device import Device
from ocaffe.cl.program import BuildError, ProgramKey, Programs, generated_programs, options_of, program_text
from ocaffe.cl.workers import Cores, running_threads
from ocaffe.support.cache import Entries

pytestmark = pytest.mark.quick

SOURCE = """
#ifndef FACTOR
#define FACTOR 1
#endif
kernel void scale(global float* x) { x[get_global_id(0)] *= FACTOR; }
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OCAFFE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("OCAFFE_CL_LOG", raising=False)
    return tmp_path / "cache" / "programs"


def key(factor: float | str, source: str = SOURCE) -> ProgramKey:
    return ProgramKey(source, (("FACTOR", str(factor)),))


def scaled(device: Device, program, name: str = "scale") -> float:
    """Run the program's kernel on 3 and return the result."""
    cl = device.cl
    buffer = cl.Buffer(device.context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=np.array([3], np.float32))
    kernel = cl.Kernel(program, name)
    kernel.set_args(buffer)
    cl.enqueue_nd_range_kernel(device.queue, kernel, (1,), None)
    result = np.empty(1, np.float32)
    cl.enqueue_copy(device.queue, result, buffer)
    return float(result[0])


def forbid_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Programs, requests: list, room: int) -> None:
        raise AssertionError(f"compiles {len(requests)} programs")

    monkeypatch.setattr(Programs, "_compile", refuse)


# Text


def test_text_is_defines_then_common_then_source() -> None:
    text = program_text(ProgramKey(SOURCE, (("FACTOR", "(1 + 2) * 3"), ("EMPTY", ""))))
    assert text.startswith("#define FACTOR (1 + 2) * 3\n#define EMPTY\n")
    assert "#include" not in text and text.index("define OPERAND(") < text.index("kernel void scale")


def test_a_family_is_read_from_its_file_with_its_includes(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "pool.cl": '// pool\n#include "common.h"\n  #  include "window.h"  // why\nkernel_text\n',
        "window.h": '#include "common.h"\nwindow_text\n',
        "common.h": "common_text\n",
    }
    monkeypatch.setattr(module, "kernel_text", files.__getitem__)
    assert program_text(ProgramKey("pool", (("K", "3"),))) == "#define K 3\n// pool\ncommon_text\n\ncommon_text\n\nwindow_text\n\nkernel_text\n"


def test_generated_texts_make_one_program(device: Device) -> None:
    other = "kernel void shift(global float* x) { x[get_global_id(0)] += 2; }"
    both = ProgramKey.generated([SOURCE, other])
    assert both.family == "generated"
    program = Programs(device).build_all([both])[both]
    assert scaled(device, program) == 3 and scaled(device, program, "shift") == 5


def test_generated_texts_are_divided_by_their_size() -> None:
    texts = {letter * 30 for letter in "abcde"}
    programs = generated_programs(texts, 70)
    assert set(programs) == texts and all(text in key.source for text, key in programs.items())
    assert [sum(text in key.source for text in texts) for key in sorted(set(programs.values()))] == [2, 2, 1]
    assert len(set(generated_programs(texts, 10).values())) == 5 and len(set(generated_programs(texts, 1000).values())) == 1


# Builds and the cache


def test_defines_reach_the_kernel_and_programs_are_kept(device: Device, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = Programs(device)
    keys = [key(2), key("(1 +  4)"), key(2)]
    built = programs.build_all(keys)
    assert [scaled(device, built[k]) for k in keys] == [6, 15, 6]
    assert len(list(cache.iterdir())) == 2
    forbid_compiling(monkeypatch)
    assert programs.build_all(keys)[key(2)] is built[key(2)] and programs[key(2)] is built[key(2)]
    fresh = Programs(device).build_all(keys)  # as in another process
    assert [scaled(device, fresh[k]) for k in keys] == [6, 15, 6]


@pytest.mark.parametrize("worker", [False, True])
def test_pocl_keeps_programs_in_its_own_cache(device: Device, cache: Path, monkeypatch: pytest.MonkeyPatch, worker: bool) -> None:
    """A binary would make PoCL compile all kernels for any size. The entry says that a program was built, so that no worker starts for it again."""
    if worker:
        only_workers_build(monkeypatch)
    own = device.info.target.runtime == "pocl"
    for switch, kept in (("1", own), ("0", False)):
        monkeypatch.setenv("POCL_KERNEL_CACHE", switch)
        one = key(f"{switch} + 3")
        before = set(cache.iterdir()) if cache.exists() else set()
        assert scaled(device, Programs(device, workers=lambda *_: int(worker)).build_all([one])[one]) == 3 * (int(switch) + 3)
        [path] = set(cache.iterdir()) - before
        assert (Entries("programs").load(path.name) == workers.IN_RUNTIME) == kept
        with monkeypatch.context() as warm:
            forbid_compiling(warm)
            assert scaled(device, Programs(device).build_all([one])[one]) == 3 * (int(switch) + 3)


@pytest.mark.parametrize("damage", ["removed", "truncated", "foreign"])
def test_a_useless_cache_entry_is_rebuilt_and_replaced(device: Device, cache: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    Programs(device).build_all([key(2)])
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    if damage == "removed":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    else:  # the entry is intact, but the driver does not accept the binary
        Entries("programs").store(path.name, b"no binary of any driver")
    assert scaled(device, Programs(device).build_all([key(2)])[key(2)]) == 6
    forbid_compiling(monkeypatch)
    assert scaled(device, Programs(device).build_all([key(2)])[key(2)]) == 6


def test_the_cache_key_covers_device_driver_and_text(device: Device) -> None:
    facts = {name: getattr(device, name) for name in ("cl", "name", "driver_version", "platform_name", "platform_version", "target", "info")}

    def entry(text: str = "x", **changed: str) -> str:
        return module.digest(*Programs(SimpleNamespace(**{**facts, **changed}))._identity, text)  # type: ignore[arg-type]

    others = {entry("y"), *(entry(**{name: "other"}) for name in facts if name not in ("cl", "target", "info"))}
    assert len(others | {entry()}) == 6


def test_a_program_may_limit_its_registers(device: Device) -> None:
    limited = ProgramKey(SOURCE, (("FACTOR", "2"), ("REGISTERS", "32")))
    programs = Programs(device)
    assert scaled(device, programs.build_all([limited])[limited]) == 6
    nvidia = replace(device.target, extensions=frozenset({"cl_khr_fp16", "cl_nv_compiler_options"}))
    assert options_of(limited, nvidia) == f"{options_of(key(2), nvidia)} -cl-nv-maxrregcount=32"
    other = replace(nvidia, extensions=frozenset({"cl_khr_fp16"}))
    assert options_of(limited, other) == options_of(key(2), other)


@pytest.mark.parametrize("by_worker", [False, True], ids=["here", "by a worker"])
def test_options_of_a_program_reach_the_compiler(device: Device, monkeypatch: pytest.MonkeyPatch, by_worker: bool) -> None:
    plain = ProgramKey(SOURCE)
    monkeypatch.setattr(module, "options_of", lambda *given: f"{options_of(*given)} -DFACTOR=5")
    with monkeypatch.context() as shy:
        if by_worker:
            only_workers_build(shy)
        assert scaled(device, Programs(device, workers=lambda *_: int(by_worker)).build_all([plain])[plain]) == 15
    forbid_compiling(monkeypatch)
    given: list[str] = []
    build = Programs._build
    monkeypatch.setattr(Programs, "_build", lambda self, program, options: given.append(options) or build(self, program, options))
    assert scaled(device, Programs(device).build_all([plain])[plain]) == 15
    assert [options.split()[-1] for options in given] == ["-DFACTOR=5"]  # NVIDIA compiles its binaries again


def test_with_the_cache_off_it_still_builds(device: Device, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setenv("OCAFFE_CACHE", "off")
    assert scaled(device, Programs(device).build_all([key(2)])[key(2)]) == 6
    assert not cache.exists()


# Worker processes


def with_a_worker(device: Device) -> Programs:
    """Return programs that a worker builds, too, however few they are."""
    return Programs(device, workers=lambda *_: 1)


def only_workers_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the queue look empty to this process, so that it waits for its workers."""
    finish = workers.Worker.finish

    def wait_first(self: workers.Worker) -> list:
        self._thread.join()
        return finish(self)

    class Shy(workers.collections.deque):  # type: ignore[name-defined]
        def __bool__(self) -> bool:
            return False

    monkeypatch.setattr(module.collections, "deque", Shy)
    monkeypatch.setattr(workers.Worker, "finish", wait_first)


def test_a_worker_builds_what_this_process_runs(device: Device, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    only_workers_build(monkeypatch)
    keys = [key(factor) for factor in (2, 5)]
    built = with_a_worker(device).build_all(keys)
    assert [scaled(device, built[k]) for k in keys] == [6, 15]
    assert len(list(cache.iterdir())) == 2


def test_a_worker_reports_what_does_not_build(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    only_workers_build(monkeypatch)
    with pytest.raises(BuildError) as raised:
        with_a_worker(device).build_all([key("no_such_name")])
    assert "no_such_name" in raised.value.log and ">" in str(raised.value)


GETS_A_REQUEST = "pickle.load(i); pickle.dump('ready', o); o.flush(); pickle.load(i)"


def start_instead(monkeypatch: pytest.MonkeyPatch, behaviour: str) -> None:
    """Start processes with another behaviour as workers."""
    code = f"import os, pickle, signal, sys; i, o = sys.stdin.buffer, sys.stdout.buffer; {behaviour}"

    def start(*_: object, **__: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    monkeypatch.setattr(workers, "start_child", start)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_this_process_builds_the_program_of_a_worker_that_is_killed(
    device: Device, monkeypatch: pytest.MonkeyPatch, cache: Path, capsys: pytest.CaptureFixture, name: str
) -> None:
    start_instead(monkeypatch, f"{GETS_A_REQUEST}; os.kill(os.getpid(), signal.{name})")
    compile_all, take, taken = Programs._compile_all, workers.Worker._next, threading.Event()
    monkeypatch.setattr(workers.Worker, "_next", lambda self: (take(self), taken.set())[0])
    monkeypatch.setattr(Programs, "_compile_all", lambda self, queue: (taken.wait(), compile_all(self, queue)))
    keys = [key(2), key(5)]
    built = with_a_worker(device).build_all(keys)
    assert [scaled(device, built[k]) for k in keys] == [6, 15] and len(list(cache.iterdir())) == 2
    assert f"a compiler process was killed by {name}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "behaviour, worker_alone",
    [("raise SystemExit", False), (f"{GETS_A_REQUEST}; os.abort()", True), (f"{GETS_A_REQUEST}; raise SystemExit(1)", True)],
    ids=["does-not-start", "crashes", "exits"],
)
def test_a_worker_that_dies(device: Device, monkeypatch: pytest.MonkeyPatch, behaviour: str, worker_alone: bool) -> None:
    start_instead(monkeypatch, behaviour)
    if worker_alone:
        only_workers_build(monkeypatch)
        with pytest.raises(BuildError, match="the compiler ended its process"):
            with_a_worker(device).build_all([key(2)])
    else:
        assert scaled(device, with_a_worker(device).build_all([key(2)])[key(2)]) == 6


def test_workers_start_before_the_programs_are_known(device: Device, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    only_workers_build(monkeypatch)
    programs, keys = with_a_worker(device), [key(2), key(5)]
    programs.expect(9, 0)
    team = programs._team
    assert team is not None
    (worker,) = team._workers
    built = programs.build_all(keys)
    assert [scaled(device, built[k]) for k in keys] == [6, 15] and len(list(cache.iterdir())) == 2
    assert team._workers == [worker] and worker._process.poll() is not None and programs._team is None
    for known in (programs, with_a_worker(device)):  # nothing is expected to be missing: built programs, or some in the cache
        known.expect(9, 0)
        assert known._team is None


@pytest.mark.parametrize("waits", [True, False])
def test_early_workers_without_a_request_end(device: Device, monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    monkeypatch.setattr(workers, "_WAIT", 60 if waits else 0)
    programs = with_a_worker(device)
    programs.expect(9, 0)
    assert programs._team is not None
    (worker,) = programs._team._workers
    if waits:
        programs.build_all([])
    worker._process.wait(30)
    worker._thread.join(30)
    assert not worker.runs()
    assert scaled(device, programs.build_all([key(2)])[key(2)]) == 6


@pytest.mark.parametrize(
    "programs, cores, affinity, load, running, count",
    [
        (4, 64, 64, 0.0, 1, 0), (5, 64, 64, 0.0, 1, 2), (8, 64, 64, 0.0, 1, 4), (16, 64, 64, 0.0, 1, 5), (36, 64, 64, 0.0, 1, 9), (90, 64, 64, 0.0, 1, 10),
        (40, 64, 3, 20.0, 9, 2), (40, 2, 2, 0.4, 3, 1), (40, 2, 2, 3.7, 3, 0), (40, 2, 2, 3.7, 1, 1), (40, 2, 2, 3.7, 0, 1),
        (40, 2, 2, 3.7, None, 0), (40, 1, 1, 0.0, 1, 0),
    ],
)  # fmt: skip
def test_workers_are_for_many_programs_and_idle_cores(
    tmp_path: Path, programs: int, cores: int, affinity: int, load: float, running: int | None, count: int
) -> None:
    if running is not None:
        (tmp_path / "loadavg").write_text(f"{load:.2f} 9.00 9.00 {running}/345 6789\n")
    machine = Cores(cores, affinity, load, running_threads(tmp_path / "loadavg"))
    assert workers.worker_count(programs, 0, 0, machine) == count


def test_cores_of_this_machine() -> None:
    cores = Cores.of_this_machine()
    assert 1 <= cores.ours <= cores.total == os.cpu_count() and cores.load >= 0
    if sys.platform == "linux":
        assert cores.running is not None and cores.running >= 1


@pytest.mark.parametrize("room, count", [(0, 0), (496, 0), (497, 1), (1799, 3), (3318, 6), (1 << 20, 9)])
def test_contexts_of_workers_fit_into_the_plan(room: int, count: int) -> None:
    assert workers.worker_count(36, room << 20, 529 << 20, Cores(16, 16)) == count


# Messages


def test_a_failed_build_names_family_defines_device_and_lines(device: Device, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(module, "kernel_text", lambda name: SOURCE.replace("*= FACTOR", "*= undeclared"))
    with pytest.raises(BuildError) as raised:
        Programs(device).build_all([ProgramKey("scale", (("FACTOR", "2"),))])
    text = str(raised.value)
    assert f"kernel family 'scale' does not build on {device.name} (-DFACTOR=2)" in text
    assert "undeclared" in raised.value.log
    assert ">    6 | kernel void scale(global float* x) { x[get_global_id(0)] *= undeclared; }" in text.split("\n")
    assert not cache.exists() or not list(cache.iterdir())


def test_warnings_are_silent_unless_asked_for(device: Device, monkeypatch: pytest.MonkeyPatch, capfd, recwarn) -> None:
    warned = ProgramKey("#warning mind the step\n" + SOURCE, ())
    Programs(device).build_all([warned])
    assert "mind the step" not in "".join(capfd.readouterr()) and not recwarn.list
    monkeypatch.setenv("OCAFFE_CL_LOG", "1")
    programs = Programs(device)
    assert scaled(device, programs.build_all([warned])[warned]) == 3
    said = capfd.readouterr().err
    assert programs.log(warned) in said and not programs.log(key(2))
    assert "mind the step" in said or device.target.runtime == "nvidia"  # its compiler prints no warnings
    forbid_compiling(monkeypatch)
    again = Programs(device)
    again.build_all([warned])
    assert again.log(warned) == programs.log(warned) and again.log(warned) in capfd.readouterr().err  # the messages are cached too


def test_messages_and_progress_of_a_worker(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    only_workers_build(monkeypatch)
    monkeypatch.setenv("OCAFFE_CL_LOG", "1")
    new = f"kernel void new_{time.time_ns()}(global float* x) {{ x[0] = 1; }}\n"  # PoCL has a cache of its own, and then no messages
    keys = [key(factor, "#warning mind the step\n" + SOURCE + new) for factor in (2, 5)]
    programs, counts = with_a_worker(device), list[tuple[int, int]]()
    programs.progress = lambda *each: counts.append(each)
    programs.build_all(keys)
    assert counts == [(1, 2), (2, 2)]
    assert all("mind the step" in programs.log(each) for each in keys) or device.target.runtime == "nvidia"


@pytest.mark.parametrize("verbose", ["0", "1"])
def test_nvidias_compiler_reports_registers_only_if_asked(device: Device, monkeypatch: pytest.MonkeyPatch, verbose: str) -> None:
    monkeypatch.setenv("OCAFFE_CL_LOG", verbose)
    monkeypatch.setattr(module, "NVIDIA_VERBOSE", " -DFACTOR=7")  # other compilers refuse the real one
    monkeypatch.setattr(Programs, "_is_nvidia", lambda self: True)
    asked = ProgramKey(SOURCE + f"// {verbose}\n")
    assert scaled(device, Programs(device).build_all([asked])[asked]) == (21 if verbose == "1" else 3)
