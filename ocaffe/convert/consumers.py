"""Compare an exported model with ocaffe in a runtime that reads ONNX. The runtime has a process of its own, so its crash or hang is an error message."""
from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ocaffe.convert import consumer_process
from ocaffe.convert.export import Exported
from ocaffe.convert.model import save
from ocaffe.convert.reference import unjudged
from ocaffe.convert.verify import FINITE, HALF_TOLERANCE, INSTALL, TOLERANCE, Feeds, Verified, difference, opened, run_net
from ocaffe.errors import Error
from ocaffe.onnx.graph import UNROLLED, origin, type_of
from ocaffe.shown import flag
from ocaffe.support.interpreter import interpreter

OPENCV = "'opencv-python-headless>=5'"
CONSUMERS = {  # the values of --verify-in, and the packages that have them; without an engine OpenCV takes ENGINE_AUTO
    "opencv": OPENCV, "opencv-classic": OPENCV, "opencv-new": OPENCV, "onnxruntime": "onnxruntime", "openvino": "openvino", "reference": "onnx",
}  # fmt: skip
RUNS = 5  # a runtime that reads memory before it is written has other results in each run
LIMIT = 600.0  # seconds
RECURRENT = ("RNN", "LSTM", "ConvLSTM")  # layers whose time steps are a loop
REGIONS = ("Proposal", "PSROIPooling")  # layers of detectors for which runtimes lack nodes


def verify_in(
    consumer: str, exported: Exported, feeds: Sequence[Feeds], device: Any = None, tolerance: float | None = None, python: str = ""
) -> Verified:
    """Compare the outputs in a runtime of CONSUMERS with those of ocaffe, for every set of inputs.

    `python` is the interpreter that has the runtime, by default the present one.
    Raises Error if an output differs by more than `tolerance` of its largest magnitude, if runs
    with equal inputs differ, or if the runtime cannot run the model.
    """
    tolerance = tolerance or (HALF_TOLERANCE if exported.options.fp16 else TOLERANCE)
    names, before = exported.deployed.outputs, _before(exported)
    values = [info.name for info in exported.model.graph.output]
    wrong = sorted(set(unjudged(exported.model).values())) if consumer == "reference" else []
    if wrong:
        raise Error(f"onnx's reference does not compute {' and '.join(wrong)} right", fix=f"{INSTALL}, and --verify-in onnxruntime")
    worst, version = dict.fromkeys(names, 0.0), ""
    with tempfile.TemporaryDirectory(prefix="ocaffe") as folder, opened(exported, device, [*names, *before]) as net:
        model = Path(folder) / "model.onnx"
        save(exported.model, model)
        for given in feeds:
            expected = run_net(net, exported, given, [*names, *before])
            for name, value in expected.items():
                if not np.isfinite(value).all():
                    raise Error(f"blob '{name}' has values in ocaffe that are not finite, for which runtimes give different results", fix=FINITE)
            try:
                version, results = run_in(consumer, model, given, values, python=python)
            except Error as problem:
                problem.fix = remedy(consumer, exported) if problem.fix == OTHER else problem.fix
                raise
            for number, name in enumerate(names):
                runs = [result[number] for result in results]
                if any(not np.array_equal(run, runs[0], equal_nan=True) for run in runs):
                    fact = f"output '{name}' differs among {RUNS} runs of {consumer} {version} with equal inputs"
                    raise Error(fact, fix=remedy(consumer, exported, _unsteady(consumer)))
                if runs[0].shape != expected[name].shape:
                    fact = f"output '{name}' is {_text(runs[0])} in {consumer} {version}, but {_text(expected[name])} in ocaffe"
                    raise Error(fact, fix=remedy(consumer, exported))
                error = difference(runs[0], expected[name])
                if not error <= tolerance:
                    fact = f"output '{name}' of {consumer} {version} differs by {error:.3g} of its largest magnitude; the tolerance is {tolerance:g}"
                    raise Error(fact, fix=remedy(consumer, exported))
                worst[name] = max(worst[name], error)
    return Verified(f"{consumer} {version}", worst, what="")


OTHER = "leave out --verify-in to compare in onnxruntime, which names the first blob that differs; the file was not written"


def _unsteady(consumer: str) -> str:
    """Return the remedy if a runtime gives different results for equal inputs, so that no comparison can judge the model."""
    package = CONSUMERS.get(consumer.partition("-")[0], consumer)
    return f"the fault is in {consumer}: pip install -U {package}, and run the command again; --noverify writes the file without comparing"


def _other(consumer: str) -> str:
    """Return the remedy if nothing else is known, for a model that was not written: a comparison that finds the first blob, or none."""
    if consumer == "onnxruntime":
        return "leave out --verify-in: ocaffe then compares each blob and names the first that differs; --noverify writes the model unchecked"
    return OTHER




def _before(exported: Exported) -> list[str]:
    """Return the inputs of the last layers. Their overflow may not show in an output: DetectionOutput drops scores that are not a number."""
    producers = [exported.graph.blobs[name].producer for name in exported.deployed.outputs]
    return sorted({origin(bottom).name for producer in producers if producer for bottom in producer.bottoms} - set(exported.deployed.outputs))


def _text(array: np.ndarray) -> str:
    return " x ".join(map(str, array.shape)) or "one value"


def remedy(consumer: str, exported: Exported, other: str = "") -> str:
    """Return what helps if a runtime cannot run the model: the flag that cuts it, another engine of OpenCV, fixed steps. Else `other`, or what helps always."""
    facts = [cut(exported)]
    if facts[0] and consumer == "opencv-classic":
        facts.append("or ENGINE_AUTO, OpenCV's default, which runs these layers")
    if consumer.startswith("opencv") and any(node.op_type == "Scan" for node in exported.model.graph.node):
        steps = max((node.bottoms[0].shape[0] for node in exported.graph.nodes if type_of(node) in RECURRENT), default=0)
        fewer = f", and export at most {UNROLLED} of the {steps} time steps by --shape" * (steps > UNROLLED)
        first = "leave out --dynamic-batch" if exported.options.dynamic_batch else "leave the batch size fixed"
        facts.insert(0, f"{first}{fewer}: OpenCV has no Scan, the loop of recurrent layers, and a model of fixed steps needs none")
    return "; ".join(filter(None, facts)) or other or _other(consumer)


def cut(exported: Exported) -> str:
    """Return the flag that ends the model before a detector's last layers, and the work that is then left. Empty if the net has no such layer."""
    nodes = exported.graph.nodes
    if any(type_of(node) == "DetectionOutput" for node in nodes):
        return "--raw-detection ends the model before DetectionOutput; then decode the boxes and suppress overlaps as docs/after-opencv-5.md shows"
    first = next((node for node in nodes if type_of(node) in REGIONS), None)
    if first is None:
        return ""
    blobs = ",".join(blob.name for blob in map(origin, first.bottoms) if blob.producer is not None and blob.producer.bottoms)
    return f"{flag('cut-at', blobs)} ends the model before {first.layer.title}; compute that layer and those after it in your own code"


def run_in(
    runtime: str, model: Path, feeds: Feeds, names: Sequence[str], *, runs: int = RUNS, python: str = "", limit: float = LIMIT
) -> tuple[str, list[list[np.ndarray]]]:
    """Return the version of a runtime, and for each run the outputs `names`. Raises Error if it is missing, fails, crashes or needs more than `limit` s."""
    with tempfile.TemporaryDirectory(prefix="ocaffe") as name:
        folder = Path(name)
        inputs, results = folder / "inputs.npz", folder / "results.npz"
        np.savez(inputs, **{str(number): value for number, value in enumerate(feeds.values())})  # type: ignore[arg-type]
        request = {"runtime": runtime, "model": str(model), "inputs": str(inputs), "results": str(results), "names": [list(feeds), list(names)], "runs": runs}
        (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        command = [python or interpreter(), str(consumer_process.__file__), str(folder / "request.json")]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit)
        except subprocess.TimeoutExpired:
            raise Error(f"{runtime} has no result after {limit:g} s", fix=OTHER) from None
        if done.returncode:
            raise _failed(runtime, done)
        with np.load(results) as held:
            return str(held["version"]), [[held[f"{run}.{number}"] for number in range(len(names))] for run in range(runs)]


def _failed(runtime: str, done: subprocess.CompletedProcess[str]) -> Error:
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip(" \t^>~")]
    if lines and lines[-1].startswith("missing: "):
        package = CONSUMERS.get(runtime.partition("-")[0], runtime)
        return Error(f"the Python module '{lines[-1].removeprefix('missing: ')}' of {runtime} is not installed", fix=f"pip install {package}")
    if done.returncode < 0:
        return Error(f"{runtime} ends by signal {-done.returncode} when it runs the model", fix=OTHER)
    start = next((number for number in reversed(range(len(lines))) if ("Error:" in lines[number] or ".error:" in lines[number])), len(lines) - 1)
    reason = " ".join(lines[max(start, 0) :])[:500]
    return Error(f"{runtime} does not run the model: {reason or f'status {done.returncode}'}", fix=OTHER)
