"""Quantize nets, and run them in tpu-mlir's simulator of the BM1684X: `python benchmarks/quantize_tpu_mlir.py NET WEIGHTS .. --tpu-mlir PYTHON --json FILE`.

A NET is a train_val prototxt with a data layer, or with --mnist FOLDER a net in the folder of benchmarks/quantization.py, with the images of its task.
PYTHON has the package tpu-mlir. `ocaffe` quantizes on the first images of TRAIN. The same arrays are tpu-mlir's calibration images. Then the test images go
through the net in floats, ocaffe's simulation, tpu-mlir's integers with ocaffe's table, and tpu-mlir's integers with the table of its own run_calibration,
for the folded net in floats. For each: top-1, agreement with floats, cosine of the outputs.
"""
from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 32
OURS, OWN = "ours", "own"  # the two deployments
CHIP = "bm1684x"
JUDGE = "--judge"


# -- in tpu-mlir's Python --------------------------------------------------------------------------------------------


def judge(folder: Path) -> None:
    """Deploy both nets in the folder, and write the outputs of its test batches."""
    spec = importlib.util.find_spec("tpu_mlir")
    assert spec is not None and spec.submodule_search_locations
    root = Path(next(iter(spec.submodule_search_locations)))
    os.environ |= {"TPUC_ROOT": str(root), "GLOG_minloglevel": "2", "PATH": f"{root / 'bin'}:{os.environ['PATH']}"}
    sys.path.insert(0, str(root / "python"))
    os.chdir(folder)
    for name in (OURS, OWN):
        tool("model_transform", "--model_name", name, "--model_def", f"{name}.prototxt", "--model_data", f"{name}.caffemodel", "--mlir", f"{name}.mlir")
    tool("run_calibration", f"{OWN}.mlir", "--data_list", "calibration.txt", "--input_num", str(len(Path("calibration.txt").read_text().split())),
         "-o", f"{OWN}.table")  # fmt: skip
    for name in (OURS, OWN):
        tool("model_deploy", "--mlir", f"{name}.mlir", "--quantize", "INT8", "--chip", CHIP, "--calibration_table", f"{name}.table", "--model",
             f"{name}.bmodel", "--not_gen_bmodel", "--debug", "--skip_validation")  # fmt: skip
        np.save(f"{name}.npy", np.concatenate(list(outputs(f"{name}_{CHIP}_int8_sym_tpu.mlir", np.load("test.npy")))))


def tool(name: str, *arguments: str) -> None:
    """Run a tool of the package. It sets a path to a libc of its own, which the system's programs cannot load."""
    code = "import os, runpy, sys, tpu_mlir; os.environ['LD_LIBRARY_PATH'] = sys.argv.pop(1); " \
           "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    path = Path(os.environ["TPUC_ROOT"]) / "python" / "tools" / f"{name}.py"
    places = os.pathsep.join([str(path.parents[1]), os.environ.get("PYTHONPATH", "")])
    with open(f"{name}.log", "a", encoding="utf-8") as log:
        done = subprocess.run([sys.executable, "-c", code, f"/lib/{sysconfig.get_config_var('MULTIARCH')}", str(path), *arguments],
                              env=os.environ | {"PYTHONPATH": places}, stdout=log, stderr=log)  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{name}: {Path(f'{name}.log').read_text(encoding='utf-8', errors='replace')[-1500:]}")


def outputs(mlir: str, images: np.ndarray) -> Iterator[np.ndarray]:
    import pymlir

    pymlir.set_mem_mode("value_mem")  # else the tensors of larger nets are read as zeros

    made = pymlir.module()
    made.load(mlir)
    for begin in range(0, len(images), BATCH):
        made.set_tensor(made.input_names[0], images[begin : begin + BATCH], images[begin : begin + BATCH].shape)
        made.invoke(True)
        found = made.get_all_tensor()[made.output_names[0]]
        yield np.array(found).reshape(BATCH, -1)


# -- in ocaffe's Python ----------------------------------------------------------------------------------------------


def batches(net: str, weights: str, phase: int, count: int, output: str = "") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the first images of a phase, their labels, and an output."""
    from ocaffe.api.net import Net
    from ocaffe.formats.batch import batched
    from ocaffe.formats.text import read_net

    images, labels, values = [], [], []
    with Net(batched(read_net(net), BATCH), phase, weights=weights) as made:
        data, label = (top for layer in made._network.graph.nodes[:1] for top in layer.layer.param.top)
        for _ in range(count // BATCH):
            made.forward()
            images.append(np.array(made.blobs[data].data))
            labels.append(np.array(made.blobs[label].data).reshape(-1).astype(int))
            values.append(np.array(made.blobs[output].data).reshape(BATCH, -1) if output else np.zeros((BATCH, 1)))
    return np.concatenate(images), np.concatenate(labels), np.concatenate(values)


def scenes(net: str, folded: Any, mnist: str, count: int, calibration: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return calibration images of the task of quantization.py, test images, their labels, and the outputs in floats."""
    import quantization

    from ocaffe.quantize.images import Images
    from ocaffe.tools.datasets.sets import mnist as read_mnist

    made, factor = read_mnist(mnist), quantization.BUILT[Path(net).stem][2]
    given, _ = quantization.scenes(made.parts["train"], calibration, 1, 2)
    test, labels = quantization.scenes(made.parts["test"], count // quantization.BATCH * quantization.BATCH, 2, 2)
    floats = quantization.scores(folded, Images(len(test), quantization.BATCH, arrays=lambda: quantization.batches(test, factor)), None)
    return quantization.enlarged(given, factor), quantization.enlarged(test, factor), labels, floats


def measured(net: str, weights: str, python: str, count: int, calibration: int, mnist: str) -> dict[str, Any]:
    from ocaffe import proto
    from ocaffe.api.net import Net
    from ocaffe.convert.caffe.rewrite import rewrite
    from ocaffe.convert.options import Options
    from ocaffe.formats.batch import batched
    from ocaffe.formats.text import read_net, write_text
    from ocaffe.formats.weights import write_weights
    from ocaffe.quantize.formats import FORMATS
    from ocaffe.quantize.images import Images
    from ocaffe.quantize.output import write_all
    from ocaffe.quantize.quantize import Settings, quantize
    from ocaffe.quantize.scheme import read_scheme

    folded = rewrite(batched(read_net(net), BATCH), weights, Options(fold=True)).net
    output = folded.outputs[0]
    if mnist:
        given, test, labels, floats = scenes(net, folded, mnist, count, calibration)
    else:
        given, _, _ = batches(net, weights, proto.TRAIN, calibration)
        test, labels, floats = batches(net, weights, proto.TEST, count, folded.blobs.get(output, output))
    name = next(top for layer in folded.layers if layer.type == "Input" for top in layer.top)
    images = Images(len(given), BATCH, arrays=lambda: ({name: given[begin : begin + BATCH]} for begin in range(0, len(given), BATCH)))
    made = quantize(folded, Settings(read_scheme("tpu-mlir")), images)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        write_all(folder, made, FORMATS)
        for old, new in (("net.prototxt", f"{OURS}.prototxt"), ("net.caffemodel", f"{OURS}.caffemodel"), ("tpu-mlir.table", f"{OURS}.table")):
            (folder / old).rename(folder / new)
        message = made.source.message()
        (folder / f"{OWN}.prototxt").write_text(write_text(message))
        write_weights(folder / f"{OWN}.caffemodel", message, made.source.weights())
        for number in range(0, len(given), BATCH):
            np.savez(folder / f"{number}.npz", **{name: given[number : number + BATCH]})
        (folder / "calibration.txt").write_text("\n".join(str(folder / f"{number}.npz") for number in range(0, len(given), BATCH)))
        np.save(folder / "test.npy", test)
        with Net(str(folder / "quantized.prototxt"), proto.TEST, weights=str(folder / "quantized.caffemodel")) as simulation:
            parts = [simulation.forward(**{name: test[begin : begin + BATCH]})[output].reshape(BATCH, -1).copy() for begin in range(0, len(test), BATCH)]
        done = subprocess.run([python, __file__, JUDGE, str(folder)], capture_output=True, text=True)
        if done.returncode:
            return {"net": net, "error": done.stderr[-1500:]}
        rows = {"floats": floats, "simulation": np.concatenate(parts), "tpu-mlir, our table": np.load(folder / f"{OURS}.npy"),
                "tpu-mlir, its own": np.load(folder / f"{OWN}.npy")}  # fmt: skip
    found: dict[str, Any] = {"net": net, "images": len(test), "calibration": len(given)}
    for title, values in rows.items():
        found[title] = {"top-1": float((values.argmax(1) == labels).mean()), "agree with floats": float((values.argmax(1) == floats.argmax(1)).mean()),
                        "cosine with floats": cosine(values, floats), "cosine with simulation": cosine(values, rows["simulation"])}  # fmt: skip
    return found


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    """Return the mean cosine of the outputs of an image."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    return float(((a * b).sum(1) / np.maximum(np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-30)).mean())


def main() -> None:
    if sys.argv[1:2] == [JUDGE]:
        return judge(Path(sys.argv[2]))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", help="NET WEIGHTS, for each net")
    parser.add_argument("--tpu-mlir", required=True, help="a Python with tpu-mlir")
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--calibration", type=int, default=256)
    parser.add_argument("--mnist", default="", help="MNIST's folder, for nets of benchmarks/quantization.py")
    parser.add_argument("--json", help="write the rows to this file")
    options = parser.parse_args()
    rows = []
    for net, weights in zip(options.files[::2], options.files[1::2]):
        rows.append(measured(net, weights, options.tpu_mlir, options.images, options.calibration, options.mnist))
        print(json.dumps(rows[-1], indent=1), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
