"""Load Caffe files in the front ends of compilers: `PYTHON benchmarks/target_judges.py tpu-mlir|rknn [--compute] NET ..`, in a Python that has the package.

A NET is the path of the files without their endings. For each a line `RESULT {...}` is printed: `loaded` is '' or the error. Beside NET.in.npz (inputs) and
NET.exp.npz (expected outputs), tpu-mlir's real Caffe computes the net; `real` is the largest difference, as a share of the largest magnitude.
With --compute, tpu-mlir's Top operators and rknn-toolkit2's simulator (in float16) compute it too. `error` is, as a share of the outputs' variation: 0
for equal outputs, about 1 for unrelated ones. A net that takes a compiler longer than --seconds is ended: `stopped` is this limit.
"""
from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

TOP_PASSES = ("--struct-optimize", "--shape-infer", "--canonicalize", "--extra-optimize")  # those of the package's model_transform
HALF = 100 * 2**-11  # of the magnitude: a hundredth of it is the rounding of an output in float16
Report = Callable[..., None]


def difference(base: str, outputs: dict[str, Any]) -> float:
    with np.load(f"{base}.exp.npz") as expected:
        return max(
            float(np.abs(outputs[name] - expected[name]).max() / max(1e-30, np.abs(expected[name]).max()))
            if name in outputs and outputs[name].shape == expected[name].shape else float("inf")
            for name in expected.files
        )  # fmt: skip


def spread(found: list[Any], expected: list[Any], least: float = 1e-3) -> float:
    """Return the error of outputs, as a share of the variation of the expected ones, or of `least` of their magnitude.

    Each is compared with the nearest output of its size.
    """
    worst = 0.0
    for wanted in expected:
        largest = float(np.abs(wanted).max(initial=0))
        scale = max(float(wanted.std()), least * largest, 1e-6) if wanted.size > 1 else max(largest, 0.1)
        sizes = [np.asarray(values, np.float64).reshape(wanted.shape) for values in found if np.size(values) == wanted.size]
        worst = max(worst, min((float(np.sqrt(np.mean((values - wanted) ** 2))) / scale for values in sizes), default=float("inf")))
    return worst if np.isfinite(worst) else 1e9


def arrays(path: str) -> dict[str, Any]:
    with np.load(path) as data:
        return {name: data[name] for name in data.files}


def apart(judge: Callable[[str, bool, Report], None], base: str, compute: bool, seconds: int) -> dict[str, Any]:
    """Judge in a process of its own, because a fatal error of a compiler ends it. `judge` reports each part that it has found."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        def report(**part: Any) -> None:
            os.write(write, json.dumps(part).encode() + b"\n")

        signal.alarm(seconds)  # the default action ends a process that runs a compiler's own code
        try:
            judge(base, compute, report)
        except BaseException as problem:
            report(ended=f"{type(problem).__name__}: {' '.join(str(problem).split())[-200:]}")
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        row: dict[str, Any] = {name: value for line in stream for name, value in json.loads(line).items()}
    status = os.waitpid(child, 0)[1]
    if status == signal.SIGALRM:
        return row | {"stopped": seconds}
    ended = row.pop("ended", f"the process ended with status {status}" if status else "")
    if ended:
        row["not computed" if "loaded" in row else "loaded"] = ended
    return row


def tpu_mlir(base: str, compute: bool, report: Report) -> None:
    """Compute the net in tpu-mlir's Caffe, convert it to Top operators, and compute these."""
    from transform.CaffeConverter import CaffeConverter

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        made = CaffeConverter("net", f"{base}.prototxt", f"{base}.caffemodel", [], [], {})
        if Path(f"{base}.in.npz").exists():
            for name, values in arrays(f"{base}.in.npz").items():
                made.net.blobs[name].reshape(*values.shape)
                made.net.blobs[name].data[...] = values
            report(real=difference(base, {name: np.array(values) for name, values in made.net.forward().items()}))
        made.generate_mlir("origin.mlir")
        system = {"LD_LIBRARY_PATH": f"/lib/{sysconfig.get_config_var('MULTIARCH')}"}  # the package has a libc, which the system's loader cannot start
        done = subprocess.run(["tpuc-opt", "origin.mlir", *TOP_PASSES, "-o", "net.mlir"], env=os.environ | system, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"tpuc-opt: {' '.join(done.stderr.split())[:150] or done.returncode}")
        report(loaded="")
        if compute:
            report(error=spread(top_outputs(arrays(f"{base}.in.npz")), list(arrays(f"{base}.exp.npz").values())))
        os.chdir("/")


def top_outputs(given: dict[str, Any]) -> list[Any]:
    """Return the outputs that tpu-mlir's interpreter computes from net.mlir."""
    import pymlir

    made = pymlir.module()
    made.load("net.mlir")
    for name, values in zip(made.input_names, given.values()):  # an input that a layer changes in place has another name there
        made.set_tensor(name, values, values.shape)
    made.invoke(True)
    tensors = made.get_all_tensor()
    return [tensors[name] for name in made.output_names]


def rknn(base: str, compute: bool, report: Report) -> None:
    """Load and build the net, and simulate it. The toolkit prints the types that it does not know and goes on, so its messages count."""
    from rknn.api import RKNN

    with tempfile.TemporaryFile() as said:
        for number in (1, 2):
            os.dup2(said.fileno(), number)
        made = RKNN(verbose=False)
        made.config(target_platform="rk3588")
        problem = "load_caffe failed" if made.load_caffe(model=f"{base}.prototxt", blobs=f"{base}.caffemodel") else ""
        if not problem and made.build(do_quantization=False) != 0:
            problem = "build failed"
        sys.stdout.flush()
        said.seek(0)
        lines = [line.partition(": ")[2].strip() for line in said.read().decode(errors="replace").splitlines()]
        refused = [line for line in lines if "Current not support" in line] or [line for line in lines if problem and "Error" in line]
        report(loaded=" ".join([problem, *refused[-1:]]).strip()[:200])
        if compute and not problem and not refused:
            made.init_runtime()
            given = list(arrays(f"{base}.in.npz").values())
            found = made.inference(inputs=given, data_format=["nchw"] * len(given))
            report(error=spread(found, list(arrays(f"{base}.exp.npz").values()), HALF))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("tpu-mlir", "rknn"))
    parser.add_argument("bases", nargs="+", metavar="NET")
    parser.add_argument("--compute", action="store_true")
    parser.add_argument("--seconds", type=int, default=0, help="the most that a net may take; 0: no limit")
    options = parser.parse_args()
    if options.kind == "tpu-mlir":
        spec = importlib.util.find_spec("tpu_mlir")
        assert spec is not None and spec.submodule_search_locations
        root = Path(next(iter(spec.submodule_search_locations)))
        os.environ |= {"TPUC_ROOT": str(root), "GLOG_minloglevel": "2", "PATH": f"{root / 'bin'}:{os.environ['PATH']}"}
        sys.path.insert(0, str(root / "python"))
    for base in options.bases:
        row = apart({"tpu-mlir": tpu_mlir, "rknn": rknn}[options.kind], str(Path(base).resolve()), options.compute, options.seconds)
        print("\nRESULT " + json.dumps({"net": Path(base).name, **row}), flush=True)


if __name__ == "__main__":
    main()
