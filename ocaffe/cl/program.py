"""Build OpenCL programs from kernel text and defines. All programs of a net are built together; binaries are cached on disk."""
from __future__ import annotations

import collections
import contextlib
import itertools
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ocaffe.cl import fences, open_ptx
from ocaffe.cl.device import Device
from ocaffe.cl.first_launches import FirstLaunch, start_launches
from ocaffe.cl.marks import unmarked
from ocaffe.cl.quirks import Quirk
from ocaffe.cl.workers import IN_RUNTIME, BuildFailure, BuildRequest, Refusal, Team, build_in_steps, caches_programs, worker_count
from ocaffe.ir import matrix_units
from ocaffe.ir.target import Target
from ocaffe.kernels.files import kernel_text
from ocaffe.support.cache import Entries, digest
from ocaffe.support.log import tell

OPTIONS = "-cl-std=CL1.2 -cl-mad-enable"
NVIDIA_VERBOSE = " -cl-nv-verbose"  # its compiler then reports registers and spills
_CACHE_FORMAT = "2"  # part of every key: increase it when the same source and options give another binary, as after a change of open_ptx.py
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+(?:"([^"\n]+)"|(\w+)).*$', re.MULTILINE)  # a file, or a define that names one
# The formats of Clang, of PoCL ('error: file.cl:6:70: ...'), of older front ends ('line 6: error') and of NVIDIA's ptxas ('line 6; error   : ...').
_LOG_LINE = re.compile(r":(\d+):\d+: (?:fatal )?error|error: \S*?:(\d+):\d+:|line (\d+)[:;] error", re.IGNORECASE)


class ProgramKey(NamedTuple):
    """Identifies a program. `source` is a kernel family (a file `<family>.cl` of ocaffe/kernels) or OpenCL C text, to which common.h is added.

    `defines` are (name, value) pairs. They become #define lines before the text, so a value may be any text without newlines.
    """

    source: str
    defines: tuple[tuple[str, str], ...] = ()

    @classmethod
    def generated(cls, texts: Sequence[str]) -> ProgramKey:
        """Return the key of one program with several generated texts, whose functions have different names."""
        return cls("\n".join(texts) + "\n")

    @property
    def family(self) -> str:
        """The kernel family, or 'generated'."""
        return "generated" if "\n" in self.source else self.source


def generated_programs(texts: Iterable[str], size: int) -> dict[str, ProgramKey]:
    """Divide generated kernels among programs of about `size` characters, so that several compilers build them. Return the program of each text."""
    parts: list[list[str]] = []
    room = 0
    for text in sorted(texts):
        if room < len(text):
            parts.append([])
            room = size
        parts[-1].append(text)
        room -= len(text)
    keys = [(ProgramKey.generated(part), part) for part in parts]  # one key per program: it holds all of its text
    return {text: key for key, part in keys for text in part}


class BuildError(RuntimeError):
    """The device's compiler rejected a program: a bug in ocaffe or in the driver, not a mistake of the user."""

    def __init__(self, key: ProgramKey, device: str, text: str, log: str, step: str = "") -> None:
        """`text` is the text that the compiler read, `log` its output. `step`: the step that failed, of a program with two (open_ptx.py)."""
        self.key, self.device, self.text, self.log = key, device, text, log.strip("\0 \n")
        defines = " ".join(f"-D{name}={value}" for name, value in key.defines) or "no defines"
        place = f"{device}, {step}" if step else device
        parts = [f"kernel family '{key.family}' does not build on {place} ({defines})", self.log or "the compiler said nothing"]
        super().__init__("\n".join(parts + _excerpts(text, self.log)))


def _excerpts(text: str, log: str, most: int = 5, around: int = 2) -> list[str]:
    """Return the source lines that the first errors of a build log name, each with its neighbouring lines."""
    lines = text.split("\n")
    wrong = sorted({int("".join(numbers)) for numbers in _LOG_LINE.findall(log)} & set(range(1, len(lines) + 1)))[:most]
    shown = sorted({n for line in wrong for n in range(max(1, line - around), min(len(lines), line + around) + 1)})
    return [f"{'>' if n in wrong else ' '}{n:5} | {lines[n - 1]}" for n in shown]


def _inline(text: str, defines: Mapping[str, str], fence: str) -> str:
    """Replace #include lines by the files, because the device's compiler has no include path. The file `fence`, if any, follows common.h.

    A line stays if it includes a define that the program does not have. It is in a part of the text that the preprocessor skips.
    """

    def file(match: re.Match[str]) -> str:
        name = match[1] or defines.get(match[2], "").strip('"')
        if not name:
            return match[0]
        return _inline(kernel_text(name), defines, fence) + (kernel_text(fence) if fence and name == "common.h" else "")

    return _INCLUDE.sub(file, text)


def program_text(key: ProgramKey, fence: str = "") -> str:
    """Return the text for the compiler: the defines, then the source with its includes inlined. `fence`: Target.device_fence."""
    return unmarked(marked_text(key, fence))


def marked_text(key: ProgramKey, fence: str = "") -> str:
    """Return the same text with the marks of its names (marks.py)."""
    defines = "".join(f"#define {name} {value}".rstrip() + "\n" for name, value in key.defines)
    text = '#include "common.h"\n' + key.source if key.family == "generated" else kernel_text(key.source + ".cl")
    return defines + _inline(text, dict(key.defines), fences.FILES[fence] if fences.uses(fence, key.source, key.defines) else "")


def options_of(key: ProgramKey, target: Target, quirks: Sequence[Quirk] = (), standard: str = "") -> str:
    """Return the compiler options of a program. `standard`: the OpenCL C version of programs with the fence SCOPE (`fences.standard`).

    Two defines are also options (kernels/matmul/tile_gpu.h): REGISTERS limits the registers of a work-item on NVIDIA's compiler, and GRF sets those of a thread
    on Intel's. Other compilers refuse these options. Matrix units have options of their own.
    """
    defines, options = dict(key.defines), [OPTIONS, *(quirk.options for quirk in quirks if quirk.options)]
    if "REGISTERS" in defines and "cl_nv_compiler_options" in target.extensions:
        options.append(f"-cl-nv-maxrregcount={defines['REGISTERS']}")
    if "GRF" in defines and target.runtime == "intel":
        options.append(f"-cl-intel-{defines['GRF']}-GRF-per-thread")
    options.append(matrix_units.compiler_options(defines))
    if target.device_fence == "SCOPE" and fences.uses("SCOPE", key.source, key.defines):
        options[0] = options[0].replace("-cl-std=CL1.2", f"-cl-std={standard}")
    return " ".join(filter(None, options))


class Programs:
    """The programs of one device. `programs[key]` returns a program that `build_all` has built."""

    def __init__(self, device: Device, folder: str = "programs", workers: Callable[[int, int, int], int] = worker_count, apart: int = 0) -> None:
        """`folder`: of the cache. `workers`: returns how many processes build, from the arguments of `worker_count`.

        `apart`: from this number on, programs are built in other processes alone; 0: never. The memory of the compiler is gone afterwards, on a CPU
        130 to 170 MiB.
        """
        self._device = device
        self._worker_count, self._apart = workers, apart
        self._cl = device.cl
        self._built: dict[ProgramKey, Any] = {}
        self._uncompiled: set[ProgramKey] = set()  # programs since the last compile_ahead whose kernels the runtime compiles at their first launch
        self._logs: dict[ProgramKey, str] = {}
        self._entries = Entries(folder)
        self._lock = threading.Lock()
        # Part of the identity, because a virtual machine may hide vector units that the processor's name implies.
        target = device.info.target  # without a wait for the trial of wgmma
        vectors = str(target.vector_width)
        self._standard = fences.standard(device.cl_device) if target.device_fence == "SCOPE" else ""
        names = (device.name, device.driver_version, device.platform_name, device.platform_version)
        self._identity = (*names, vectors)
        self._verbose = os.environ.get("OCAFFE_CL_LOG") == "1"  # print the compiler's messages, which are cached with the binary
        self.progress: Callable[[int, int], None] = lambda done, wanted: None  # called after each compilation, in any thread
        self._done, self._wanted = itertools.count(1), 0
        self._team: Team | None = None  # workers that started before the programs were known

    def __getitem__(self, key: ProgramKey) -> Any:
        return self._built[key]

    def log(self, key: ProgramKey) -> str:
        """Return the compiler's messages about a built program. There are none without OCAFFE_CL_LOG=1."""
        return self._logs.get(key, "")

    def expect(self, count: int, room: int) -> None:
        """Start the workers for about `count` programs, which are not known yet. Does nothing if a program is built or in the cache already.

        `room` as in `build_all`. Their contexts exist until the next `build_all` ends, or until they have waited for it too long.
        """
        with self._lock:
            if self._team is None and not self._built and self._entries.empty():
                self._team = Team(self._device, self._more_options(), self._keep)
                self._team.grow(self._worker_count(count, room, self._device.context_bytes))

    def build_all(self, keys: Iterable[ProgramKey], room: int = 0) -> dict[ProgramKey, Any]:
        """Return every program, from memory, disk or the compiler. Raises BuildError.

        Missing ones are built in parallel, if the contexts of other processes fit into `room` bytes of device memory. These contexts are gone when the
        method returns.
        """
        with self._lock:  # nets of several threads share the programs
            try:
                return self._build_all(list(dict.fromkeys(keys)), room)
            finally:
                if self._team is not None:
                    self._team.close()
                    self._team = None

    def _build_all(self, wanted: list[ProgramKey], room: int) -> dict[ProgramKey, Any]:
        requests: list[BuildRequest] = []
        for key in wanted:
            if key not in self._built:
                request = self._request(key)
                said = self._entries.load(_messages(request)) if self._verbose else b""
                binary = None if said is None else self._entries.load(request.entry)
                program = None if binary is None else self._again(request, binary)
                if program is None or said is None:
                    requests.append(request)
                else:
                    self._built[key] = program
                    self._tell(key, said.decode())
        if requests:
            self._compile(requests, room)
            self._entries.trim()
        return {key: self._built[key] for key in wanted}

    def _request(self, key: ProgramKey) -> BuildRequest:
        text = program_text(key, self._device.target.device_fence)
        options = options_of(key, self._device.target, self._device.info.quirks, self._standard)
        return BuildRequest(key, text, options, digest(_CACHE_FORMAT, options, *self._identity, text), open_ptx.opens(key.defines))

    def compile_ahead(self, launches: Iterable[tuple[ProgramKey, FirstLaunch]]) -> None:
        """Let other processes compile kernels that the runtime compiles at their first launch (first_launches.py).

        The method does not wait for them, unless programs are built in other processes alone.
        """
        if self._uncompiled:
            requests = {key: self._request(key) for key in self._uncompiled}
            kernels = {(key, launch.function, launch.local): launch for key, launch in launches if key in requests}
            apart = 0 < self._apart <= len(requests)
            start_launches(self._device, [(requests[key].text, requests[key].options, launch) for (key, _, _), launch in kernels.items()], apart)
            self._uncompiled.clear()

    def _again(self, request: BuildRequest, binary: bytes) -> Any | None:
        """Return a program from its binary, or from the cache of the runtime. None: the driver rejects the binary.

        This happens if the driver was replaced by one with the same version.
        """
        context, device = self._device.context, self._device.cl_device
        with contextlib.suppress(self._cl.Error):
            program = self._cl.Program(context, request.text) if binary == IN_RUNTIME else self._cl.Program(context, [device], [binary])
            return self._build(program, request.options)
        return None

    def _build(self, program: Any, options: str) -> Any:
        with warnings.catch_warnings():  # pyopencl warns whenever a compiler prints anything
            warnings.simplefilter("ignore")
            return program.build(options)

    def _compile(self, requests: list[BuildRequest], room: int) -> None:
        """Build in this process and, for many programs, also in worker processes. Each takes the next request when it is free."""
        # The generated kernels take the longest. Begun last they would prolong the whole start.
        ordered = sorted(requests, key=lambda request: request.key.family != "generated")
        self._done, self._wanted = itertools.count(1), len(requests)
        self._team = team = self._team or Team(self._device, self._more_options(), self._keep)
        apart = 0 < self._apart <= len(requests)
        team.grow(self._worker_count(len(requests), room, self._device.context_bytes) + apart)
        team.begin(ordered)
        try:
            if apart:
                team.wait()
            self._compile_all(team.queue)
            for request, binary in team.finish():
                program = self._again(request, binary)
                if program is None:
                    self._compile_here(request)
                else:
                    self._built[request.key] = program
            self._compile_all(team.queue)  # requests of workers that were killed
        except BuildFailure as failure:
            raise BuildError(failure.request.key, self._device.name, failure.text, _compiler_log(failure.message), failure.step) from None

    def _compile_all(self, queue: collections.deque[BuildRequest]) -> None:
        while queue:
            try:
                request = queue.popleft()
            except IndexError:  # a worker took the last one in the meantime
                break
            self._compile_here(request)

    def _compile_here(self, request: BuildRequest) -> None:
        program, binary = build_in_steps(request, self._build_here)
        self._built[request.key] = program
        said = program.get_build_info(self._device.cl_device, self._cl.program_build_info.LOG) if self._verbose else ""
        self._keep(request, binary, said)

    def _build_here(self, source: str | bytes, options: str) -> tuple[Any, bytes]:
        context, device = self._device.context, self._device.cl_device
        try:
            program = self._cl.Program(context, source) if isinstance(source, str) else self._cl.Program(context, [device], [source])
            self._build(program, options + self._more_options())
        except self._cl.Error as error:
            raise Refusal(str(error)) from None
        return program, IN_RUNTIME if caches_programs(self._device) else program.binaries[0]

    def _is_nvidia(self) -> bool:
        return "cl_nv_compiler_options" in self._device.cl_device.extensions.split()

    def _more_options(self) -> str:
        """Return the compiler's options that change its messages, and not the binary."""
        return NVIDIA_VERBOSE if self._verbose and self._is_nvidia() else ""

    def _keep(self, request: BuildRequest, binary: bytes, said: str) -> None:
        """Store what a compiler has made, and count it."""
        if binary == IN_RUNTIME:
            self._uncompiled.add(request.key)
        if binary:  # some drivers return an empty binary
            self._entries.store(request.entry, binary)
        if self._verbose:
            said = said.strip("\0 \n")
            self._entries.store(_messages(request), said.encode(errors="replace"))
            self._tell(request.key, said)
        self.progress(next(self._done), self._wanted)

    def _tell(self, key: ProgramKey, said: str) -> None:
        """Remember and print a compiler's messages about a program."""
        if said:
            self._logs[key] = said
            tell(f"{key.family} {dict(key.defines)}:", *said.splitlines())


def _messages(request: BuildRequest) -> str:
    """Return the name of the cache's entry with the compiler's messages about a program."""
    return digest("messages", request.entry)


def _compiler_log(message: str) -> str:
    """Return the compiler's output from pyopencl's error message."""
    return message.split(":\n\n", 1)[-1].split("\n(options: ")[0]
