"""`python -m ocaffe.selftest JSON`: the process that runs the comparisons of selftest.py.

JSON is [device, gpu, math, names, process number of selftest.py, class of kernels, whether to build all programs first]. Each line of the output is a
JSON object for selftest.py.
"""
from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from typing import Any

from ocaffe.cl.child import end_with_parent
from ocaffe.cl.device import select_device
from ocaffe.cl.program import Programs
from ocaffe.errors import Error
from ocaffe.selftest.selftest import BUILD, all_cases, program_keys
from ocaffe.support import log


def main() -> None:
    spec, gpu, math, names, parent, kind, build = json.loads(sys.argv[1])
    end_with_parent(parent)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # some OpenCL runtimes print to stdout; send that to stderr

    def say(**answer: Any) -> None:  # in any thread
        out.write(json.dumps(answer) + "\n")
        out.flush()

    log.quiet()
    try:
        device = select_device(spec, gpu, math=math, kind=kind)
    except Error as error:
        say(refused=str(error))
        os._exit(0)
    say(device=f"{device.number}: {device.name} ({device.platform_name}, driver {device.driver_version})")
    cases = {case.name: case for case in all_cases()}
    if build:
        say(begin=BUILD)
        programs = Programs(device)
        programs.progress = lambda *counts: say(built=counts)
        with contextlib.suppress(Exception):  # a family whose programs do not build will tell why
            programs.build_all({key for name in names for key in program_keys(cases[name], device.target)}, device.target.free_memory // 2)
        del programs  # a driver may have loaded them to the device; each family takes its own from the cache
    for name in names:
        say(begin=name)
        begin = time.perf_counter()
        try:
            findings = cases[name].run(device)
        except Exception as problem:  # any failure of a driver; the context may be broken, so selftest.py starts a new process
            traceback.print_exc()
            say(name=name, seconds=time.perf_counter() - begin, problem=f"{type(problem).__name__}: {problem}")
            break
        say(name=name, seconds=time.perf_counter() - begin, findings=findings)
    sys.stderr.flush()
    os._exit(0)  # all results are sent; some runtimes crash when they are unloaded


if __name__ == "__main__":
    main()
