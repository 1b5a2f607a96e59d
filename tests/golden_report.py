"""Run the golden cases and record per device which passed, failed and were skipped: `python -m tests.golden_report [pytest arguments]`.

The table is tests/golden_report.json. Devices that are absent keep their rows.
"""
from __future__ import annotations

import json
import pathlib
import re
import sys
from typing import Any

import pytest

REPORT = pathlib.Path(__file__).with_suffix(".json")


class Collector:
    """A pytest plugin that records the outcome of every golden case."""

    def __init__(self) -> None:
        self.cases: dict[str, dict[str, dict[str, str]]] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        match = re.search(r"test_golden\.py::test_(?:unoptimised_)?case\[(\S+)-(layers|nets|data|forks)/(\S+)-(fused|plain)\]", report.nodeid)
        if match and (report.when == "call" or report.outcome != "passed"):
            device, folder, case, fuse = match.groups()
            reason = report.longrepr[2].removeprefix("Skipped: ") if report.skipped else ""
            outcome = f"skipped: {reason}" if report.skipped else report.outcome
            self.cases.setdefault(device, {}).setdefault(f"{folder}/{case}", {})[fuse] = outcome


def table(cases: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Return case names by outcome. A case whose outcome differs between fused and plain is listed under both outcomes."""
    result: dict[str, Any] = {"passed": [], "failed": {}, "skipped": {}}
    for name, outcomes in sorted(cases.items()):
        kinds = set(outcomes.values())
        if kinds == {"passed"} and len(outcomes) == 2:
            result["passed"].append(name)
        elif all(kind.startswith("skipped") for kind in kinds):
            result["skipped"][name] = kinds.pop().removeprefix("skipped: ")
        else:
            result["failed"][name] = outcomes
    counts = {key: len(value) for key, value in result.items()}
    return {"counts": counts, **result}


def main() -> int:
    collector = Collector()
    status = pytest.main(["-q", str(pathlib.Path(__file__).with_name("test_golden.py")), *sys.argv[1:]], plugins=[collector])
    report = json.loads(REPORT.read_text()) if REPORT.exists() else {}
    report.update({device: table(cases) for device, cases in collector.cases.items()})
    REPORT.write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")
    for device, rows in report.items():
        print(device, rows["counts"])
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
