"""Writes docs/onnx-consumers.md from benchmarks/onnx_consumers.json: `python docs/make_onnx_consumers.py`."""
from __future__ import annotations

import json
import pathlib
from typing import Any

PAGE = pathlib.Path(__file__).parent / "onnx-consumers.md"
RESULTS = PAGE.parents[1] / "benchmarks" / "onnx_consumers.json"
TOLERANCE = 1e-4
TITLES = {"onnxruntime": "onnxruntime", "reference": "onnx reference", "openvino": "OpenVINO", "ncnn": "ncnn",
          "opencv-classic": "OpenCV, CLASSIC", "opencv-new": "OpenCV, NEW", "opencv-auto": "OpenCV, AUTO"}  # fmt: skip
HEAD = """# Runtimes that read the exported models

`benchmarks/onnx_consumers.py` exports nets and runs each one five times in each runtime, in the reference once.
`docs/make_onnx_consumers.py` makes this page. A number is the largest difference from ocaffe's outputs, as a share of the
largest magnitude of the output. A runtime passes if all runs are equal and the difference is at most 1e-4. The weights
are random, except where "trained" is said. The batch is 1, and the opset is 17.

ncnn reads the model after its converter pnnx. The columns of OpenCV are its three engines; AUTO is the default.
"""


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
    """Return the text of the page."""
    record = json.loads(RESULTS.read_text(encoding="utf-8"))
    notes: list[str] = []
    rows = [[net, *(cell(results[runtime], notes) for runtime in TITLES)] for net, results in record.items()]
    versions = {runtime: next((found[runtime]["version"] for found in record.values() if "version" in found[runtime]), "") for runtime in TITLES}
    passed = [sum(found[runtime].get("difference", 1) <= TOLERANCE for found in record.values()) for runtime in TITLES]
    table = [["net", *TITLES.values()], ["---"] * (len(TITLES) + 1), *rows, ["version", *versions.values()], [f"pass, of {len(rows)}", *map(str, passed)]]
    lines = [f"| {' | '.join(row)} |" for row in table]
    errors = [f"{number}. `{error}`" for number, error in enumerate(notes, 1)]
    return "\n".join([HEAD, *lines, "", "## Errors", "", *errors, ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
