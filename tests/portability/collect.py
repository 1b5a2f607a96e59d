"""Summarise the logs of rusticl.sh and oclgrind.sh: `python -m tests.portability.collect LOGS STACK [FILE.json]`. docs/devices.md shows the results.

A log is named 'RUN CLASS [WORK-ITEMS BYTES].log'. The result is a list of objects with these fields:

    stack     the runtime and its version
    run       selftest, golden or lenet
    kind      the class of kernels, gpu or cpu
    limits    {"max_work_group": work-items, "local_memory": bytes}, where they are imitated
    passed, refused, failed, skipped   numbers of families or golden cases. Refused: the error names the limit of the device.
    accuracy, iteration                of lenet's last test

The exit status is 1 if a run failed, or if its log is not complete.
"""
from __future__ import annotations

import json
import pathlib
import re
import sys
from typing import Any

ACCURACY = 0.97  # that lenet must reach
LIMIT = re.compile(r"\(CL_(?:DEVICE|KERNEL)_\w+\)")


def selftest(text: str) -> dict[str, Any]:
    """Count the families. A family that did not pass is followed by lines that begin with blanks."""
    passed, total = map(int, re.findall(r"^(\d+) of (\d+) families passed", text, re.MULTILINE)[-1])
    wrong = re.findall(r"^(\S.*?)  +(?:FAILED|CRASHED|HANGS)\b.*\n((?: {4}.*\n)*)", text, re.MULTILINE)
    refused = [name for name, detail in wrong if LIMIT.search(detail)]
    failed = [name for name, detail in wrong if not LIMIT.search(detail)]
    assert passed + len(wrong) == total, f"{passed} passed and {len(wrong)} others are not {total} families"
    return {"passed": passed, "refused": len(refused), "failed": len(failed), **({"names": refused + failed} if wrong else {})}


def golden(text: str) -> dict[str, Any]:
    last = re.findall(r"^.*\bpassed\b.* in .*s\b.*$", text, re.MULTILINE)[-1]
    count = {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", last)}
    return {"passed": count["passed"], "refused": 0, "failed": count.get("failed", 0) + count.get("error", 0), "skipped": count.get("skipped", 0)}


def lenet(text: str) -> dict[str, Any]:
    iteration, last = re.findall(r"Iteration (\d+), Testing net.*?Test net output #0: accuracy = (\S+)", text, re.DOTALL)[-1]
    accuracy = float(last)
    return {"passed": int(accuracy >= ACCURACY), "refused": 0, "failed": int(accuracy < ACCURACY), "accuracy": accuracy, "iteration": int(iteration)}


READERS = {"selftest": selftest, "golden": golden, "lenet": lenet}


def collect(logs: pathlib.Path, stack: str) -> list[dict[str, Any]]:
    """Return the results of all logs of a folder."""
    results = []
    for path in sorted(logs.glob("*.log")):
        run, kind, *limits = path.stem.split()
        named = {"limits": dict(zip(("max_work_group", "local_memory"), map(int, limits)))} if limits else {}
        try:
            found = READERS[run](path.read_text(errors="replace"))
        except IndexError:
            raise SystemExit(f"{path}: the run did not end, or it ended without its last line") from None
        results.append({"stack": stack, "run": run, "kind": kind, **named, **found})
    return results


def main() -> int:
    logs, stack, *file = sys.argv[1:]
    results = collect(pathlib.Path(logs), stack)
    text = "[\n" + ",\n".join(" " + json.dumps(result) for result in results) + "\n]\n"
    print(text, end="")
    if file:
        path = pathlib.Path(file[0])
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return int(any(result["failed"] for result in results))


if __name__ == "__main__":
    sys.exit(main())
