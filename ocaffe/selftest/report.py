"""The report of `ocaffe report`: device facts, self-test, a benchmark of six nets and the compiler's findings, each section in a process of its own.

A driver may crash, hang or refuse anything: the section is then in the report with the message, and the next section runs.
"""
from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from ocaffe import __version__
from ocaffe.errors import Error
from ocaffe.selftest.privacy import Scrubber
from ocaffe.selftest.section import PHASES, RATES
from ocaffe.selftest.selftest import ROOT, all_cases, ending, selftest
from ocaffe.shown import Lines
from ocaffe.support import parent

FORMAT = 2
PACKAGES = ("pyopencl", "numpy", "protobuf", "lmdb", "pillow", "simplejpeg", "onnx", "h5py")
# Variables that change which devices there are, or how they work. Others may hold secrets.
VARIABLES = (
    "OCL_ICD_VENDORS", "OCL_ICD_FILENAMES", "OPENCL_VENDOR_PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "RUSTICL_ENABLE", "RUSTICL_DEVICE_TYPE",
    "RUSTICL_FEATURES", "LIBGL_ALWAYS_SOFTWARE", "MESA_LOADER_DRIVER_OVERRIDE", "POCL_DEVICES", "POCL_MAX_PTHREAD_COUNT", "CL_CONFIG_CPU_TARGET_ARCH",
    "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION", "GPU_DEVICE_ORDINAL", "GPU_MAX_ALLOC_PERCENT",
    "GPU_MAX_HEAP_SIZE", "ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR",
)  # fmt: skip
LINES, WIDTH = 15, 400  # of a message: the first and the last lines, and the first characters of each
TICK = 0.2  # seconds between two looks at a process
HANGS = 2  # families of the self-test that may hang before the rest is left out

Answer = dict[str, Any]


class Report:
    """Makes the sections one after another. `content` is the report so far, without names of the user or of the machine.

    `changed` is called after each section, so that a file on disk survives even a crash of the whole machine. `tell` gets lines for the terminal, `busy` what
    runs now. `kind`: the class of kernels; None: the device's own. `limit`: bytes for each net; 0: nearly all that are free. `timeout`: seconds without an
    answer of a section, or of a family of the self-test. A compiled program is an answer too.
    """

    def __init__(
        self,
        spec: str | None,
        gpu: str | None,
        kind: str | None,
        limit: int,
        timeout: float,
        tell: Callable[[str], None],
        changed: Callable[[], None],
        busy: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.spec, self.gpu, self.kind, self.limit, self.timeout, self.tell, self.changed, self.busy = spec, gpu, kind, limit, timeout, tell, changed, busy
        self.command: Sequence[str] = (sys.executable, "-m")  # tests have another one
        self.content: Answer = {"format": FORMAT, "ocaffe": __version__, "kind": kind or "the device's own", "complete": False}
        self._scrubber = Scrubber()

    def make(self, nets: Sequence[str], families: Sequence[str] | None = None) -> None:
        """Make all sections. `nets`: keys of section.BATCHES. `families`: those of the self-test; None: all."""
        self._add("system", system())
        if not self._devices():
            return
        self._selftest([case.name for case in all_cases()] if families is None else families)
        self._add("rates", self._told(RATES, self._section(RATES)[-1]))
        rows: list[Answer] = []
        kernels: dict[str, Answer] = {}
        for net in nets:
            for answer in self._net(net):
                merge(kernels, f"{net} {answer['phase']}", answer.pop("kernels", []))
                rows.append({"net": net, **answer})
                self._told(f"{net} {answer['phase']}", answer)
                self._add("nets", rows)
                self._add("kernels", sorted(kernels.values(), key=lambda row: (not row["problem"], row["kernel"])))
        self._add("complete", True)

    def _net(self, net: str) -> Iterator[Answer]:
        """Yield the results of both phases. They share a process, and programs. If it crashes before the first result, each phase gets one of its own."""
        answers = self._section(net)[: len(PHASES)]
        if "phase" in answers[-1]:
            yield from answers
        elif len(answers) > 1:
            yield from [answers[0], {"phase": PHASES[1], **answers[1]}]
        elif answers[0].get("word") == "crashed":
            yield from ({"phase": phase, **self._section(f"{net} {phase}")[-1]} for phase in PHASES)
        else:
            yield from ({"phase": phase, **answers[0]} for phase in PHASES)

    def _add(self, name: str, value: Any) -> None:
        self.content[name] = self._scrubber.value(value)
        self.changed()

    def _devices(self) -> bool:
        """Add the facts of all devices. Return whether there are any: without them no other section can run."""
        said: list[str] = []
        status, errors = self._run("ocaffe", "device_query", said.append)
        if status == 0:
            paragraphs = [[line.partition(":") for line in paragraph.splitlines()] for paragraph in "".join(said).strip().split("\n\n")]
            self._add("devices", [{label: value.strip() for label, _, value in paragraph} for paragraph in paragraphs])
        else:
            self._add("devices", self._told("devices", {"word": word_of(status), "problem": shortened(errors or f"exit status {status}")}))
        return status == 0

    def _selftest(self, families: Sequence[str]) -> None:
        rows: list[Answer] = []
        found: Answer = {"device": "", "passed": 0, "families": len(families), "rows": rows}

        def on_device(device: str) -> None:
            found["device"] = device
            self.tell(f"{'device':<20}{device}")

        try:
            for row in selftest(families, self.spec, self.gpu, None, self.timeout, on_device, kind=self.kind, built=self._compiling("selftest")):
                error = {} if row.error is None else {"error": float(f"{row.error:.2g}")}
                detail = {"problem": shortened(row.detail)} if row.detail else {}
                rows.append({"family": row.name, "result": row.word, "seconds": round(row.seconds, 2), **error, **detail})
                found["passed"] += row.word == "passed"
                self.busy(f"selftest: {len(rows)} of {len(families)} families")
                self._add("selftest", found)
                if sum(each["result"] == "HANGS" for each in rows) == HANGS:
                    raise Error(f"{HANGS} families of kernels hang; the rest is left out", fix="send the report, so that the families can be mended")
        except Error as error:
            found |= {"word": "failed", "problem": shortened(str(error))}
        self._add("selftest", found)
        self.tell(Lines(f"{'selftest':<20}{found['passed']} of {len(families)} families passed", *(f"  {line}" for line in found.get("problem", ()))))

    def _section(self, section: str) -> list[Answer]:
        """Return the results of a section (section.py). The last one has the `word` for its failure and the `problem` if the process failed."""
        begin = time.perf_counter()
        self.busy(f"{section}: begins")
        compiling, answers = self._compiling(section), list[Answer]()

        def heard(line: str) -> None:
            nonlocal begin
            try:
                answer: Answer = json.loads(line)
            except ValueError:  # a driver's
                return
            if "built" in answer:
                compiling(*answer["built"])
                return
            if isinstance(answer.get("problem"), str):
                answer["problem"] = shortened(answer["problem"])
            answers.append({**{name: rounded(value) for name, value in answer.items()}, "seconds": round(time.perf_counter() - begin, 1)})
            begin = time.perf_counter()

        arguments = [section, self.spec, self.gpu, self.kind, self.limit, os.getpid()]
        status, errors = self._run("ocaffe.selftest.section", json.dumps(arguments), heard)
        if status != 0 or not answers:
            problem = shortened("\n".join([how(status, self.timeout), errors]))
            answers.append({"word": word_of(status), "problem": problem, "seconds": round(time.perf_counter() - begin, 1)})
        return answers

    def _compiling(self, section: str) -> Callable[[int, int], None]:
        return lambda done, wanted: self.busy(f"{section}: compiled {done} of {wanted} programs")

    def _told(self, section: str, answer: Answer) -> Answer:
        """Print a line for a section, and return the answer."""
        more: list[str] = []
        if "problem" in answer:
            first, *more = answer["problem"] or [""]
            text, more = f"{answer['word']}: {first}", [f"  {line}" for line in more]
        elif "ms" in answer:
            text = f"batch {answer['batch']:>3}  {answer['ms']:>9.4g} ms  {answer['mib']:>7.0f} MiB  {answer['launches']:>4} launches"
            text += f"  loss {answer['loss']}" if "loss" in answer else ""
        else:
            text = ", ".join(f"{name} {value}" for name, value in answer.items() if name != "seconds")
        self.tell(Lines(f"{section:<20}{text}", *more))
        return answer

    def _run(self, module: str, argument: str, heard: Callable[[str], None]) -> tuple[int | None, str]:
        """Run a module in a process. Return its status (None: it was killed after the timeout), and the text of stderr. `heard` gets each line of stdout.

        A process of a driver may live on and keep stdout open, so the end of the process counts. OCAFFE_CL_LOG: with the compilers' messages.
        """
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "OCAFFE_CL_LOG": "1"}
        with tempfile.TemporaryFile() as errors:
            command = [*self.command, module, argument]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=environment)
            lines: queue.Queue[bytes] = queue.Queue()
            listener = threading.Thread(target=_listen, args=(process.stdout, lines), daemon=True)
            listener.start()
            end = time.monotonic() + self.timeout
            try:
                while time.monotonic() < end:
                    ended = process.poll() is not None
                    if ended:
                        listener.join(TICK)
                    with contextlib.suppress(queue.Empty):
                        line = lines.get(timeout=0 if ended else TICK)
                        end = time.monotonic() + self.timeout
                        heard(line.decode(errors="replace"))
                        continue
                    if ended:
                        break
                status = process.poll()
            finally:
                process.kill()
                process.wait()
                listener.join(TICK)
            errors.seek(0)
            return status, errors.read().decode(errors="replace")


def _listen(stream: IO[bytes], lines: queue.Queue[bytes]) -> None:
    with stream:
        for line in stream:
            lines.put(line)


def system() -> Answer:
    """Return facts of the system without its name."""
    packages = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()).strip(),
        "python": f"{platform.python_implementation()} {platform.python_version()} ({sys.platform})",
        "cores": os.cpu_count(),
        "packages": packages,
        "variables": {name: _folders(name, value) for name, value in sorted(os.environ.items()) if name in VARIABLES or _of_user(name)},
    }


def _folders(name: str, value: str) -> str:
    """Return a variable with `<folder>` in place of folders that have no slash, so that no pattern of paths would find them."""
    if not name.endswith(("PATH", "CACHE", "VENDORS", "DIR", "HOME")):
        return value
    kept = re.compile(r".*(?:[/\\]|%2f|%5c).*|off|0|none|", re.IGNORECASE | re.DOTALL)
    return os.pathsep.join(each if kept.fullmatch(each) else "<folder>" for each in value.split(os.pathsep))


def _of_user(variable: str) -> bool:
    """Whether it is one of ocaffe's variables that users set."""
    return variable.startswith("OCAFFE_") and variable != parent.VARIABLE


def how(status: int | None, timeout: float) -> str:
    """Return the sentence for a process that has sent no result."""
    return f"no result after {timeout:g} s" if status is None else f"its process ended with {ending(status)}"


def word_of(status: int | None) -> str:
    """Return the word for a section that has sent no result. A process that ends by itself has a small positive status, on Windows too."""
    return "timed out" if status is None else "failed" if 0 < status < 1 << 31 else "crashed"


def shortened(text: str) -> list[str]:
    """Return the first and the last lines of a message, as a list, which is easier to read in JSON than one text."""
    lines = [line[:WIDTH] for line in text.strip().splitlines()]
    return lines if len(lines) <= 2 * LINES else [*lines[:LINES], "...", *lines[-LINES:]]


def rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def merge(kernels: dict[str, Answer], section: str, rows: Sequence[Answer]) -> None:
    """Add the kernels of a section: one row for each kernel with equal defines and facts, with the launches in each section."""
    for row in rows:
        launches, row = row["launches"], {**row, "log": [line[:WIDTH] for line in row["log"]][:LINES]}
        known = kernels.setdefault(json.dumps({**row, "launches": 0}), {**row, "launches": {}})
        known["launches"][section] = known["launches"].get(section, 0) + launches


def text_of(content: Answer) -> str:
    """Return the JSON text of a report: readable, with one line for each row of a table."""
    return "{\n" + ",\n".join(f" {json.dumps(name)}: {_readable(value)}" for name, value in content.items()) + "\n}\n"


def _readable(value: Any) -> str:
    if isinstance(value, dict) and isinstance(value.get("rows"), list):
        head = json.dumps({name: each for name, each in value.items() if name != "rows"}, ensure_ascii=False)[:-1]
        return f'{head}, "rows": {_readable(value["rows"])}}}'
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in value) + "\n ]"
    return json.dumps(value, ensure_ascii=False)


def summary(content: Answer) -> Iterator[str]:
    """Yield lines with the sections that failed and the kernels that spill."""
    sections = {"devices": content.get("devices"), "selftest": content.get("selftest"), "rates": content.get("rates")}
    sections |= {f"{row['net']} {row['phase']}": row for row in content.get("nets", ())}
    wrong = [f"{name} ({section['word']})" for name, section in sections.items() if isinstance(section, dict) and "problem" in section]
    yield f"sections without a result: {', '.join(wrong) or 'none'}"
    kernels = content.get("kernels", ())
    bad = [row for row in kernels if row["problem"]]
    yield f"kernels with a problem: {len(bad)} of {len(kernels)}"
    for row in bad:
        yield f"  {row['kernel']} {row['problem']}"
