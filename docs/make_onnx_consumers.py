"""Writes the tables of docs/onnx-consumers.md from benchmarks/onnx_consumers.json: `python docs/make_onnx_consumers.py`."""
from __future__ import annotations

import json
import pathlib
from typing import Any

PAGE = pathlib.Path(__file__).parent / "onnx-consumers.md"
RESULTS = PAGE.parents[1] / "benchmarks" / "onnx_consumers.json"
TOLERANCE, END = 1e-4, "<!-- end -->"
TITLES = {"onnxruntime": "onnxruntime", "reference": "onnx reference", "openvino": "OpenVINO", "ncnn": "ncnn",
          "opencv-classic": "OpenCV, CLASSIC", "opencv-new": "OpenCV, NEW", "opencv-auto": "OpenCV, AUTO"}  # fmt: skip


def cell(result: dict[str, Any], notes: list[str]) -> str:
    """Return the difference, or the number of a note that has the error."""
    if "error" not in result:
        text = f"{result['difference']:.1g}"
        return text if result["difference"] <= TOLERANCE else f"**{text}**"
    error = " ".join(result["error"].split()).replace("`", "'").replace("|", "/")
    if error not in notes:
        notes.append(error)
    return f"**error {notes.index(error) + 1}**"


def page() -> str:
    """Return the text of the page with new tables."""
    record = json.loads(RESULTS.read_text(encoding="utf-8"))
    notes: list[str] = []
    rows = [[net, *(cell(results[runtime], notes) for runtime in TITLES)] for net, results in record.items()]
    versions = {runtime: next((found[runtime]["version"] for found in record.values() if "version" in found[runtime]), "") for runtime in TITLES}
    passed = [sum(found[runtime].get("difference", 1) <= TOLERANCE for found in record.values()) for runtime in TITLES]
    table = [["net", *TITLES.values()], ["---"] * (len(TITLES) + 1), *rows, ["version", *versions.values()], [f"pass, of {len(rows)}", *map(str, passed)]]
    lines = [f"| {' | '.join(row)} |" for row in table]
    errors = ["| error | message |", "| --- | --- |", *(f"| {number} | `{error}` |" for number, error in enumerate(notes, 1))]
    text = PAGE.read_text(encoding="utf-8")
    for name, made in (("results", lines), ("errors", errors)):
        start = f"<!-- table {name} -->\n"
        before, _, after = text.partition(start)
        text = "\n".join([before + start, *made, "", END]) + after.partition(END)[2]
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
