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


NOTES = """## Causes

* OpenCV and onnx's reference have no MaxRoiPool, the node of ROIPooling. `--cut-at` ends the model before the layer.
* OpenCV has no Scan, the node of LSTM and RNN. onnxruntime and OpenVINO have it.
* `ENGINE_CLASSIC` of OpenCV, and ncnn, have no nodes whose sizes depend on values. DetectionOutput and Proposal need
  them. The rows with `--cut-at` end with the locations and confidences. docs/after-opencv-5.md decodes them.
* `ENGINE_CLASSIC` has no numbers of 64 bits, which PSROIPooling needs.
* onnx 1.23's reference computes two nodes wrong: LRN across channels, and ConvTranspose in groups. The other runtimes
  agree with Caffe. The reference is slow, and has 60 s for each net.
* OpenCV's message "an empty net" means that it does not know a node. Its log on the screen names the node.

## Forms of nodes

These forms were chosen because a runtime computes the usual form wrong.

| layer | usual form | fault | form in the model |
|---|---|---|---|
| AVE Pooling with pads, LRN within a channel | AveragePool with `count_include_pad` | `ENGINE_CLASSIC` of OpenCV 5.0 ignores the attribute; the difference is 0.7 of the magnitude | Pad with zeros, AveragePool without pads |
| the same | Pad without `mode` | pnnx writes a layer that ncnn does not load | Pad with `mode="constant"`, which is also the default |
| Proposal | NonMaxSuppression of scores with a threshold below 0 | OpenCV 5.0 refuses a threshold below 0 | ranks take the place of the scores |

MobileNet-SSD with `--fillers` is not a test of a runtime. The filler of BatchNorm sets the variance to 0, so the blobs
overflow, in ocaffe too. Runtimes have different results after an overflow. `--verify-in` says so.
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
    return "\n".join([HEAD, *lines, "", NOTES, "## Errors", "", *errors, ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
