"""Load Caffe files in the front ends of compilers: `PYTHON benchmarks/target_judges.py tpu-mlir|rknn NET ..`, in a Python that has the package.

A NET is the path of the files without their endings. For each a line `RESULT {...}` is printed: `loaded` is '' or the error. Beside NET.in.npz (inputs) and
NET.exp.npz (expected outputs), tpu-mlir's real Caffe computes the net; `real` is the largest difference, as a share of the largest magnitude.
"""
from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def difference(base: str, outputs: dict[str, Any]) -> float:
    with np.load(f"{base}.exp.npz") as expected:
        return max(
            float(np.abs(outputs[name] - expected[name]).max() / max(1e-30, np.abs(expected[name]).max()))
            if name in outputs and outputs[name].shape == expected[name].shape else float("inf")
            for name in expected.files
        )  # fmt: skip


def apart(judge: Callable[[str], dict[str, Any]], base: str) -> dict[str, Any]:
    """Judge in a process of its own, because a fatal error of a compiler ends it."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            row = judge(base)
        except BaseException as problem:
            row = {"loaded": f"{type(problem).__name__}: {str(problem)[:200]}"}
        os.write(write, json.dumps(row).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        text = stream.read()
    status = os.waitpid(child, 0)[1]
    return json.loads(text) if text else {"loaded": f"the process ended with status {status}"}


def tpu_mlir(base: str) -> dict[str, Any]:
    """Compute the net in tpu-mlir's Caffe, then convert it to Top operators."""
    from transform.CaffeConverter import CaffeConverter

    row: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        made = CaffeConverter("net", f"{base}.prototxt", f"{base}.caffemodel", [], [], {})
        if Path(f"{base}.in.npz").exists():
            with np.load(f"{base}.in.npz") as given:
                for name in given.files:
                    made.net.blobs[name].reshape(*given[name].shape)
                    made.net.blobs[name].data[...] = given[name]
            row["real"] = difference(base, {name: np.array(values) for name, values in made.net.forward().items()})
        try:
            made.generate_mlir("net.mlir")
            row["loaded"] = ""
        except Exception as problem:
            row["loaded"] = f"{type(problem).__name__}: {str(problem)[:200]}"
        os.chdir("/")
    return row


def rknn(base: str) -> dict[str, Any]:
    """Load and build the net. The toolkit prints the types that it does not know and goes on, so its messages count."""
    from rknn.api import RKNN

    with tempfile.TemporaryFile() as said:
        keep = os.dup(1), os.dup(2)
        for number in (1, 2):
            os.dup2(said.fileno(), number)
        try:
            made = RKNN(verbose=False)
            made.config(target_platform="rk3588")
            code = made.load_caffe(model=f"{base}.prototxt", blobs=f"{base}.caffemodel")
            problem = "" if code == 0 else f"load_caffe returned {code}"
            if not problem and made.build(do_quantization=False) != 0:
                problem = "build failed"
            made.release()
        except BaseException as error:
            problem = f"{type(error).__name__}: {' '.join(str(error).split())[-200:]}"
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, old in zip((1, 2), keep):
                os.dup2(old, number)
        said.seek(0)
        refused = [line for line in said.read().decode(errors="replace").splitlines() if "Current not support" in line]
    return {"loaded": refused[0].partition("load_caffe:")[2].strip()[:100] if refused else problem}


def main() -> None:
    kind, *bases = sys.argv[1:]
    if kind == "tpu-mlir":
        spec = importlib.util.find_spec("tpu_mlir")
        assert spec is not None and spec.submodule_search_locations
        root = Path(next(iter(spec.submodule_search_locations)))
        os.environ |= {"TPUC_ROOT": str(root), "GLOG_minloglevel": "2", "PATH": f"{root / 'bin'}:{os.environ['PATH']}"}
        sys.path.insert(0, str(root / "python"))
    for base in bases:
        row = apart({"tpu-mlir": tpu_mlir, "rknn": rknn}[kind], str(Path(base).resolve()))
        print("\nRESULT " + json.dumps({"net": Path(base).name, **row}), flush=True)


if __name__ == "__main__":
    main()
