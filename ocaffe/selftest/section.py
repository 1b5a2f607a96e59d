"""`python -m ocaffe.selftest.section JSON`: the process that measures one section of a report (report.py).

JSON is [section, device, gpu, class of kernels, limit, process number of the parent]. Each line of the output is a JSON object: the result of a phase, with
`phase`, or `problem` with its `word`, or the progress of the compilers, `built`.
"""
from __future__ import annotations

import contextlib
import json
import math
import os
import re
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ocaffe import proto
from ocaffe.cl.child import end_with_parent
from ocaffe.cl.device import Device, select_device
from ocaffe.cl.failure import device_failure
from ocaffe.cl.kernel_facts import kernel_facts, logged_spill, messages_about
from ocaffe.cl.peaks import launch_seconds, measure_peaks
from ocaffe.cl.session import Session
from ocaffe.compiler.compile import CompiledNet
from ocaffe.compiler.network import Network, phase_net
from ocaffe.data.databases.assumed import assumed_data
from ocaffe.errors import Error, NoRoom
from ocaffe.formats.batch import batched
from ocaffe.formats.text import read_net
from ocaffe.graph.options import NetOptions
from ocaffe.memory.report import fixed_bytes
from ocaffe.support import log
from ocaffe.zoo import FOLDER, templates

RATES = "rates"  # the section without a net
# The nets of a report, the most telling ones first, with a batch that also small devices have memory for.
BATCHES = {"lenet": 64, "resnet18": 8, "mobilenet_v2": 8, "alexnet": 16, "googlenet": 8, "vgg16": 2}
PHASES = ("TEST", "TRAIN")
SHARE = 0.95  # of the free memory, without a limit; drivers need the rest for programs and queues
SECONDS, PASSES = 2.0, 30  # passes of a net are measured until either is reached
TOLD = re.compile(r"warn|error|fail|spill|scratch|stack frame|registers", re.IGNORECASE)  # lines of a compiler's messages that a report keeps
NO_MEMORY = (-4, -5, -6)  # CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_OUT_OF_RESOURCES, CL_OUT_OF_HOST_MEMORY
Progress = Callable[[int, int], None]


def measured(section: str, device: Device, limit: int, built: Progress = lambda done, wanted: None) -> Iterator[dict[str, Any]]:
    """Yield the results of a section: RATES, a net of BATCHES, or one phase of it as in 'lenet TRAIN'.

    `limit`: bytes for a net; 0: nearly the free memory. `built` gets the number of compiled programs, and of those to compile.
    """
    session = Session(device, None if section == RATES else math.inf)
    session.programs.progress = built
    if section == RATES:
        yield rates(session)
        return
    net, *phases = section.split()
    with contextlib.ExitStack() as stack:
        yield from Times(stack, net, session, limit or int(SHARE * device.target.available_memory)).all(phases or PHASES)


def rates(session: Session) -> dict[str, Any]:
    """Return the rates of float multiply-adds and of a copy, and the microseconds of a launch."""
    peaks = measure_peaks(session.device, session.programs)
    return {"gflops": peaks.gflops, "copy_gbytes": peaks.gbytes, "launch_us": 1e6 * launch_seconds(session.device, session.programs)}


class Times:
    """Times and memory of a net: forward in TEST, forward and backward in TRAIN, on one random image; and facts of each kernel.

    In TRAIN the loss of the first pass is added: it is the same on all devices but for rounding.
    """

    def __init__(self, stack: contextlib.ExitStack, net: str, session: Session, limit: int) -> None:
        self.batch, self.session, self.limit = BATCHES[net], session, limit
        data = stack.enter_context(assumed_data())
        shape = templates.image_shape(templates.upgraded(FOLDER / net / "deploy.prototxt"))
        message = data.complete(batched(read_net(str(FOLDER / net / "train_val.prototxt")), self.batch), shape)
        self.networks: dict[str, Network] = {}
        self.options = {phase: NetOptions(backward=phase == "TRAIN", limit=limit) for phase in PHASES}
        for phase in reversed(PHASES):  # TEST uses the parameters of TRAIN
            number = getattr(proto, phase)
            network = Network(phase_net(message, number), number, session, owner=self.networks.get("TRAIN"), quiet=True)
            stack.callback(network.close)
            self.networks[phase] = network

    def all(self, phases: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the result of each phase. Before, the programs of all phases are built, several at a time."""
        begin = time.perf_counter()
        lists, refused = [], {}
        for phase in phases:
            try:
                lists.append(self.networks[phase].nets.compiled(self.options[phase]).commands)
            except Exception as problem:
                refused[phase] = failure(problem)
        with contextlib.suppress(Exception):  # each phase builds what is missing, and has the error
            self.session.build(lists, self.limit // 2)
        build = time.perf_counter() - begin
        filled = False
        for phase in phases:
            network, answer = self.networks[phase], refused.get(phase)
            try:
                if answer is None and not filled:
                    self.networks["TRAIN"].fill_parameters()
                    filled = True
                answer = answer or {**self.measured(network, self.options[phase]), "build_s": build}
            except Exception as problem:
                answer = failure(problem)
            network.close()
            network.nets.forget(self.options[phase])
            yield {"phase": phase, **answer}

    def measured(self, network: Network, options: NetOptions) -> dict[str, Any]:
        device = self.session.device
        network.inputs.start()
        compiled = network.nets.bound(options)

        def timed() -> float:
            begin = time.perf_counter()
            network.begin(compiled)
            network.nets.run(compiled)
            device.queue.finish()
            return 1000 * (time.perf_counter() - begin)

        first = timed()
        loss = float(network.loss(compiled, compiled.commands.fetch()))
        passes: list[float] = []
        while len(passes) < PASSES and sum(passes) < 1000 * SECONDS:
            passes.append(timed())
        return {
            "batch": self.batch, "ms": statistics.median(passes), "fastest_ms": min(passes), "passes": len(passes), "first_ms": first,
            "mib": (fixed_bytes([compiled.recording.schedule]) + compiled.plan.total) / 2**20, "launches": len(compiled.recording.schedule),
            # Without a training BatchNorm has no statistics in TEST, and values overflow. JSON has no NaN.
            **({"loss": loss if math.isfinite(loss) else str(loss)} if network.phase == proto.TRAIN else {}),
            "kernels": kernels_of(self.session, compiled),
        }  # fmt: skip


def kernels_of(session: Session, compiled: CompiledNet) -> list[dict[str, Any]]:
    """Return a row for each kernel that the net launches: its program, the number of launches, and the driver's and the compiler's facts."""
    rows, on_cpu = [], bool(session.device.cl_device.type & session.device.cl.device_type.CPU)  # whichever kernels it runs
    for (key, function, local), launches in compiled.commands.kernels().items():
        program = session.programs[key]
        lines = [line for line in messages_about(session.programs.log(key), program, function) if TOLD.search(line)]
        facts = {**kernel_facts(session.device, program, function), "logged_spill": logged_spill(lines)}
        defines = " ".join(f"{name}={value}" for name, value in key.defines)
        row = {"kernel": f"{key.family}.{function}", "launches": launches, "problem": problem_of(facts, math.prod(local or (1,)), on_cpu)}
        rows.append({**row, "local": local, **facts, "defines": defines, "log": lines})
    return rows


def problem_of(facts: Mapping[str, int], items: int, is_cpu: bool) -> str:
    """Return why a kernel that is launched in work-groups of `items` may be slow or fail; '' for no reason. On a CPU private memory is the stack."""
    limit = facts.get("work_group_limit", items)
    reasons = {
        "spills registers": facts.get("spill_bytes") or facts["logged_spill"],
        "has private memory": not is_cpu and facts.get("private_bytes"),
        f"is launched with {items} work-items, and {limit} are allowed": items > limit,
    }
    return ", ".join(reason for reason, applies in reasons.items() if applies)


def failure(problem: Exception) -> dict[str, Any]:
    """Print an exception, and return its word and its message."""
    traceback.print_exception(problem)
    error = problem if isinstance(problem, Error) else device_failure(problem)
    if error is None:
        return {"word": "failed", "problem": f"{type(problem).__name__}: {problem}"}
    return {"word": "does not fit" if isinstance(error, NoRoom) or getattr(problem, "code", None) in NO_MEMORY else "failed", "problem": str(error)}


def main() -> None:
    section, spec, gpu, kind, limit, parent = json.loads(sys.argv[1])
    end_with_parent(parent)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # some OpenCL runtimes print to stdout; send that to stderr

    def say(answer: dict[str, Any]) -> None:  # in any thread
        out.write(json.dumps(answer) + "\n")
        out.flush()

    log.quiet()
    try:
        for answer in measured(section, select_device(spec, gpu, kind=kind), limit, lambda *counts: say({"built": counts})):
            say(answer)
    except Exception as problem:
        say(failure(problem))
    sys.stderr.flush()
    os._exit(0)  # some runtimes crash when they are unloaded


if __name__ == "__main__":
    main()
