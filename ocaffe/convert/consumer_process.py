"""Run an ONNX model in one runtime: `python consumer_process.py REQUEST.json`, in a process of its own.

The Python that runs it may lack ocaffe, so it imports numpy and the runtime only. The request has `runtime`, `model` (a path), `inputs` and
`results` (.npz files), `names` (of the inputs and of the outputs) and `runs`. The results are `version`, and `RUN.OUTPUT` for each run and output.
"""
from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

Run = Callable[[dict[str, Any], list[str]], list[Any]]  # values of the inputs by name, names of the outputs -> values of the outputs


def onnxruntime(model: str) -> tuple[str, Run]:
    import onnxruntime as runtime

    settings = runtime.SessionOptions()
    settings.log_severity_level = 4  # as in ocaffe/convert/verify.py
    session = runtime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    return runtime.__version__, lambda feeds, names: session.run(names, feeds)


def reference(model: str) -> tuple[str, Run]:
    import onnx
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(model)
    return onnx.__version__, lambda feeds, names: list(evaluator.run(names, feeds))


def openvino(model: str) -> tuple[str, Run]:
    import openvino as runtime

    # On processors with bfloat16 the default of OpenVINO is less precise.
    compiled = runtime.Core().compile_model(runtime.convert_model(model), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(feeds: dict[str, Any], names: list[str]) -> list[Any]:
        found = compiled(feeds)
        return [found[compiled.output(name)] for name in names]

    return runtime.__version__.split("-")[0], run


def opencv(model: str, engine: str = "") -> tuple[str, Run]:
    import cv2

    chosen = {"engine": getattr(cv2.dnn, f"ENGINE_{engine.upper()}")} if engine else {}
    net = cv2.dnn.readNetFromONNX(model, **chosen)
    if net.empty():
        raise RuntimeError("readNetFromONNX returns an empty net")

    def run(feeds: dict[str, Any], names: list[str]) -> list[Any]:
        for name, value in feeds.items():
            net.setInput(value, name)
        return list(net.forward(names))

    return cv2.__version__, run


def ncnn(model: str) -> tuple[str, Run]:
    """Convert the model by pnnx, and run it in ncnn. The blobs of ncnn are in0, in1, .. and out0, out1, ...

    They lack the axis that pnnx takes for the batch. The program that pnnx writes beside the model names it for each blob.
    """
    import pathlib
    import re
    import subprocess

    import ncnn as runtime

    folder = pathlib.Path(model).parent
    done = subprocess.run([str(pathlib.Path(sys.executable).with_name("pnnx")), model, "fp16=0"], cwd=folder, capture_output=True, text=True)
    param = next(iter(folder.glob("*.ncnn.param")), None)
    if done.returncode or param is None:
        raise RuntimeError(f"pnnx ends with {done.returncode}: {done.stderr.strip()[-200:]}")
    program = param.with_name(param.name.replace(".ncnn.param", "_ncnn.py")).read_text()
    axes = [int(axis) for axis in re.findall(r"batch_index=(\d+)", program)]  # of the inputs, then of the outputs
    net = runtime.Net()
    net.opt.use_vulkan_compute = False
    for name in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage"):
        setattr(net.opt, f"use_{name}", False)
    if net.load_param(str(param)) or net.load_model(str(param.with_suffix(".bin"))):
        raise RuntimeError("ncnn does not load what pnnx wrote")

    def run(feeds: dict[str, Any], names: list[str]) -> list[Any]:
        extractor = net.create_extractor()
        for number, value in enumerate(feeds.values()):
            extractor.input(f"in{number}", runtime.Mat(np.ascontiguousarray(value), batch_index=axes[number]).clone())
        results = []
        for number in range(len(names)):
            failed, value = extractor.extract(f"out{number}")
            if failed:
                raise RuntimeError(f"ncnn does not compute out{number}")
            results.append(value.numpy(batch_index=axes[len(feeds) + number]))
        return results

    return runtime.__version__, run


def main(request: dict[str, Any]) -> None:
    name, _, engine = request["runtime"].partition("-")
    try:
        version, run = globals()[name](request["model"], *filter(None, [engine]))
    except ModuleNotFoundError as problem:
        sys.exit(f"missing: {problem.name}")
    with np.load(request["inputs"]) as held:
        feeds = {name: held[str(number)] for number, name in enumerate(request["names"][0])}
    results: dict[str, Any] = {"version": np.array(version)}
    for turn in range(request["runs"]):
        results |= {f"{turn}.{number}": np.asarray(value) for number, value in enumerate(run(feeds, request["names"][1]))}
    np.savez(request["results"], **results)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        main(json.load(file))
