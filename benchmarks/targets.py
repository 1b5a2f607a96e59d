"""Convert nets for targets, and load them in the compilers: `python benchmarks/targets.py NETS --target rknn --json benchmarks/targets.json --rknn PYTHON`.

NETS is a folder of ONNX models; `--make` exports the nets of tests/convert into it first. Each net is converted by the command line, and compared there.
`--tpu-mlir` and `--rknn` name Pythons with these packages. They load the files, by benchmarks/target_judges.py. The real Caffe in tpu-mlir computes the
outputs of nets for tpu-mlir and bvlc, which are compared with onnxruntime's.
"""
from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

JUDGES = Path(__file__).with_name("target_judges.py")
FURTHER = {
    "torchvision": ("alexnet", "squeezenet1_0", "mobilenet_v2", "shufflenet_v2_x1_0", "mnasnet1_0", "resnet18", "resnext50_32x4d", "googlenet", "inception_v3"),
    "timm": ("rexnet_100", "mobilenetv2_100", "ese_vovnet19b_dw", "dpn68", "darknet53", "lcnet_050"),
}


def make(folder: Path) -> None:
    """Export the nets that the folder lacks, with random statistics in BatchNorm, and random weights in the place of zeros."""
    import onnx
    import timm
    import torch
    import torchvision

    from tests.convert.exporters import export
    from tests.convert.heads import MODELS
    from tests.convert.modern_nets import IMAGE, NETS, Task

    for name, head in MODELS.items():
        if not (folder / f"head_{name}.onnx").exists():
            onnx.save(head(), folder / f"head_{name}.onnx")
    tasks: dict[str, Any] = dict(NETS)
    for name in FURTHER["torchvision"]:
        more = {"aux_logits": False} if name in ("googlenet", "inception_v3") else {}
        tasks[name] = lambda name=name, more=more: Task(getattr(torchvision.models, name)(weights=None, **more), torch.randn(IMAGE))
    for name in FURTHER["timm"]:
        tasks[name] = lambda name=name: Task(timm.create_model(name, pretrained=False), torch.randn(IMAGE))
    for name, task_of in tasks.items():
        if (folder / f"{name}.onnx").exists():
            continue
        torch.manual_seed(0)
        task = task_of()
        for module in task.net.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
        for name_of, parameter in task.net.named_parameters():
            if not parameter.any() and (parameter.ndim != 1 or name_of.endswith("weight")):  # zeros hide the layers before them
                torch.nn.init.normal_(parameter, std=0.02 if parameter.ndim != 1 else 0.5)
        export(task.net, task.x, folder / f"{name}.onnx", 18 if task.dynamo else 17, task.dynamo, norms=False)


def convert(model: Path, base: Path, target: str) -> dict[str, Any]:
    """Convert one model. Return what the command said."""
    command = [sys.executable, "-m", "ocaffe", "convert", str(model), f"{base}.prototxt", f"{base}.caffemodel", "--target", target, "--force"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        difference = re.search(r"difference of an output ([\d.e+-]+)", done.stdout)
        layers = re.search(r"caffemodel: (\d+) layers", done.stdout)
        assert layers, done.stdout
        return {"status": "written", "layers": int(layers[1]), "difference": float(difference[1]) if difference else compared(model, base)}
    text = " ".join(done.stderr.split())
    found = re.search(r"error: \S+ layer (.*?) \((\w+)\) (.*?) fix:", text)
    if not found:
        return {"status": "failed", "why": text[-300:]}
    return {"status": "refused", "layer": found[1].strip("'"), "type": found[2], "why": found[3]}


def count(models: list[Path], targets: list[str], record: dict[str, Any]) -> None:
    """Rewrite the nets for targets without comparing or writing them. Rows of nets that were written stay."""
    import onnx

    from ocaffe.convert.caffe.net import net_of
    from ocaffe.convert.import_model import load
    from ocaffe.convert.targets.rules.retarget import batch_inputs, retarget
    from ocaffe.convert.targets.table import read_table
    from ocaffe.errors import Error

    for model in models:
        message, arrays = load(model)
        source = net_of(message, arrays, [each.name for each in onnx.load(model).graph.output])
        for target in targets:
            try:
                row: dict[str, Any] = {"status": "rewritten", "layers": len(retarget(source, read_table(target), model.name, batch_inputs(source)).net.layers)}
            except Error as problem:
                name, _, kind = (problem.layer or "").rpartition(" ")
                row = {"status": "refused", "layer": name.strip("'"), "type": kind.strip("()"), "why": problem.fact}
            rows = record.setdefault(target, {})
            if row["status"] == "refused" or rows.get(model.stem, {}).get("status") != "written":
                rows[model.stem] = row
        print(model.stem, {target: record[target][model.stem]["status"] for target in targets}, flush=True)


def judge(python: str, kind: str, bases: list[Path], seconds: int) -> dict[str, dict[str, Any]]:
    """Return what the judge says of each net: `loaded` is '' or the error, `real` the largest difference of the real Caffe, `stopped` a limit of time."""
    done = subprocess.run([python, str(JUDGES), kind, "--seconds", str(seconds), *map(str, bases)], capture_output=True, text=True, errors="replace")
    lines = [line.partition("RESULT ")[2] for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return {row.pop("net"): row for row in map(json.loads, lines)}


def feeds(model: Path, base: Path) -> None:
    """Write inputs and onnxruntime's outputs beside the net."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    given = {}
    for each in session.get_inputs():
        shape = [size if isinstance(size, int) else 1 for size in each.shape]
        given[each.name] = rng.standard_normal(shape).astype(np.float32) if each.type == "tensor(float)" else rng.integers(0, 100, shape)
    np.savez(f"{base}.in.npz", **given)
    np.savez(f"{base}.exp.npz", **dict(zip([each.name for each in session.get_outputs()], session.run(None, given))))


def compared(model: Path, base: Path) -> float:
    """Return the largest difference from onnxruntime of a net that the command did not compare, as a share of the largest magnitude."""
    import ocaffe

    feeds(model, base)
    net = ocaffe.Net(f"{base}.prototxt", ocaffe.TEST, weights=f"{base}.caffemodel")
    with np.load(f"{base}.in.npz") as given, np.load(f"{base}.exp.npz") as expected:
        found = net.forward(**{name: given[name] for name in given.files})
        return max(float(np.abs(np.array(found[name]) - expected[name]).max() / np.abs(expected[name]).max()) for name in expected.files)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nets", type=Path)
    parser.add_argument("--target", default="bvlc")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="folder of the written nets")
    parser.add_argument("--count", default="", help="targets, separated by ',': only count the nets that can be rewritten, and compare none")
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--only", default="", help="names of nets, separated by ','")
    parser.add_argument("--tpu-mlir", default="")
    parser.add_argument("--rknn", default="")
    parser.add_argument("--seconds", type=int, default=0, help="the most that a compiler may take for a net; 0: no limit")
    options = parser.parse_args()
    if options.make:
        make(options.nets)
    record = json.loads(options.json.read_text()) if options.json.exists() else {}
    if options.count:
        count(sorted(options.nets.glob("*.onnx")), options.count.split(","), record)
        options.json.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
        return
    options.out.mkdir(parents=True, exist_ok=True)
    rows = record.setdefault(options.target, {})
    for model in sorted(options.nets.glob("*.onnx")):
        if options.only and model.stem not in options.only.split(","):
            continue
        rows[model.stem] = row = convert(model, options.out / model.stem, options.target)
        if row["status"] == "written":
            feeds(model, options.out / model.stem)
        print(model.stem, row, flush=True)
        options.json.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    written = [options.out / name for name, row in rows.items() if row["status"] == "written" and (options.out / f"{name}.prototxt").exists()]
    for python, kind, takes in ((options.tpu_mlir, "tpu-mlir", ("tpu-mlir", "bvlc", "caffe1")), (options.rknn, "rknn", ("rknn",))):
        if python and options.target in takes:
            for name, found in judge(python, kind, written, options.seconds).items():
                rows[name] |= found if options.target == kind else {key: value for key, value in found.items() if key == "real"}
                print(name, rows[name], flush=True)
    options.json.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
