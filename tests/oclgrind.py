"""Run golden cases under Oclgrind, which detects accesses outside of buffers and races: `python -m tests.oclgrind [pytest arguments]`.

It needs Debian's package `oclgrind` and takes some minutes. Every tensor gets a buffer of exactly its size (OCAFFE_DEBUG=plan=separate). The exit status is 1
if Oclgrind reports an error. Oclgrind 21.10 computes some built-in functions of a vector and a scalar wrongly: min(int8, int) uses the scalar for one
lane only. So cases with averages and labels compute wrong numbers; these failures are ignored.
"""
from __future__ import annotations

import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile

LIBRARY = pathlib.Path("/usr/lib/oclgrind/liboclgrind-rt-icd.so")


def main() -> int:
    if not LIBRARY.exists():
        print(f"{LIBRARY} is not there: install Debian's package oclgrind", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "oclgrind.icd").write_text(f"{LIBRARY}\n")
        report = pathlib.Path(folder, "report")
        environment = {
            **os.environ, "OCL_ICD_VENDORS": folder, "OCAFFE_DEBUG": "verify,plan=separate", "OCLGRIND_LOG": str(report), "OCLGRIND_MAX_ERRORS": "10000",
            "OCLGRIND_DATA_RACES": "1",
        }  # fmt: skip
        tests = str(pathlib.Path(__file__).with_name("test_golden.py"))
        command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:benchmark", "--timeout", "3600", tests, *(sys.argv[1:] or ["-k", "plain"])]
        status = subprocess.run(command, env=environment, check=False).returncode
        text = report.read_text(errors="replace") if report.exists() else ""
    found = collections.Counter(re.findall(r"^(\w.*?)(?: at .*)?\n\s*Kernel:\s*(\w+)", text, flags=re.M))
    for (what, kernel), count in found.most_common():
        print(f"{count:6} {kernel}: {what}")
    if text.strip():
        print(text[:4000])
    return int(status > 1 or bool(text.strip()))  # pytest returns 1 if tests failed


if __name__ == "__main__":
    sys.exit(main())
