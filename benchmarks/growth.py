#!/usr/bin/env python3
"""Seconds of commands on files of growing size: nets of many layers in several forms, logs, weights, lists, solvers and ONNX models.

    benchmarks/growth.py [FORMS ..] [--sizes 100 1000 10000] [--limit 300] [--json benchmarks/growth.json]

The size is the number of layers, lines or nodes. Each command is a process of its own, so the times contain the start of Python. The last column is the
exponent: log(t3 / t2) / log(n3 / n2) for the two largest sizes, after the time of the smallest was taken off. 1 is linear, 2 quadratic.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from ocaffe import proto

X = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 4 dim: 4 } } }'
FC = 'inner_product_param { num_output: 8 weight_filler { type: "xavier" } }'


def _layer(name: str, kind: str, bottoms: str | list[str], more: str = "", top: str = "") -> str:
    read = " ".join(f'bottom: "{bottom}"' for bottom in ([bottoms] if isinstance(bottoms, str) else bottoms))
    return f'layer {{ name: "{name}" type: "{kind}" {read} top: "{top or name}" {more} }}'


def _chain(n: int, step: Callable[[str, int], list[str]]) -> tuple[list[str], str]:
    """Return layers, n of them at most, of which each reads the one before it, and the last top."""
    layers, last = [X], "x"
    while len(layers) <= n:
        layers += step(last, len(layers))
        last = layers[-1].split(' top: "')[1].split('"')[0]
    return layers, last


def _conv(last: str, i: int) -> list[str]:
    conv = _layer(f"c{i}", "Convolution", last, 'convolution_param { num_output: 3 kernel_size: 3 pad: 1 weight_filler { type: "msra" } }')
    return [conv, _layer(f"r{i}", "ReLU", f"c{i}")]


def _normalized(last: str, i: int) -> list[str]:
    scale = _layer(f"s{i}", "Scale", f"b{i}", "scale_param { bias_term: true }", top=f"b{i}")
    return [_conv(last, i)[0], _layer(f"b{i}", "BatchNorm", f"c{i}"), scale, _layer(f"r{i}", "ReLU", f"b{i}")]


def _shared(last: str, i: int) -> list[str]:
    return [_layer(f"f{i}", "InnerProduct", last, f'param {{ name: "w{min(i, 2)}" }} param {{ name: "b" }} {FC}')]


def _wide(n: int, kind: str) -> tuple[list[str], str]:
    names = [f"r{i}" for i in range(n)]
    return [X, *(_layer(name, "TanH", "x") for name in names), _layer("s", kind, names)], "s"


def _slices(n: int) -> tuple[list[str], str]:
    tops = [f"t{i}" for i in range(n)]
    x = f'layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 2 dim: {n} dim: 2 }} }} }}'
    named = " ".join(f'top: "{top}"' for top in tops)
    return [x, f'layer {{ name: "s" type: "Slice" bottom: "x" {named} }}', _layer("c", "Concat", tops[::-1])], "c"


NETS: dict[str, Callable[[int], tuple[list[str], str]]] = {
    "pointwise layers": lambda n: _chain(n, lambda last, i: [_layer(f"r{i}", "ReLU", last)]),
    "pointwise layers in place": lambda n: _chain(n, lambda last, i: [_layer(f"r{i}", "Sigmoid", "x", top="x")]),
    "convolutions, ReLU": lambda n: _chain(n, _conv),
    "convolutions, BatchNorm": lambda n: _chain(n, _normalized),
    "residual sums": lambda n: _chain(n, lambda last, i: [_layer(f"t{i}", "TanH", last), _layer(f"e{i}", "Eltwise", [last, f"t{i}"])]),
    "pooling": lambda n: _chain(n, lambda last, i: [_layer(f"p{i}", "Pooling", last, "pooling_param { kernel_size: 3 pad: 1 }")]),
    "shared weights": lambda n: _chain(n, _shared),
    "Concat of all": lambda n: _wide(n, "Concat"),
    "Eltwise of all": lambda n: _wide(n, "Eltwise"),
    "Slice and Concat": _slices,
}


def net(form: str, n: int, folder: Path) -> dict[str, list[str]]:
    layers, last = NETS[form](n)
    (folder / "deploy.prototxt").write_text("\n".join(layers))
    loss = _layer("loss", "Reduction", last, "loss_weight: 1")
    (folder / "net.prototxt").write_text("\n".join(["force_backward: true", *layers, loss]))
    (folder / "solver.prototxt").write_text('net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1\n')
    return {
        "summary": ["summary", "deploy.prototxt"],
        "lint": ["lint", "deploy.prototxt"],
        "plan": ["plan", "--model", "deploy.prototxt"],
        "plan, training": ["plan", "--solver", "solver.prototxt"],
    }


def log(n: int, folder: Path) -> dict[str, list[str]]:
    with (folder / "train.log").open("w") as file:
        for i in range(n):
            file.write(f"I1129 00:24:05.148053 25800 solver.cpp:228] Iteration {i}, loss = {1 / (i + 1):.6f}\n")
            file.write("I1129 00:24:05.148056 25800 solver.cpp:244]     Train net output #0: loss = 0.25 (* 1 = 0.25 loss)\n")
            file.write(f"I1129 00:24:05.148059 25800 sgd_solver.cpp:106] Iteration {i}, lr = 0.01\n")
    (folder / "csv").mkdir()
    return {"parse_log": ["parse_log", "train.log", "csv"]}


def weights(n: int, folder: Path) -> dict[str, list[str]]:
    message = proto.NetParameter(name="net")
    for i in range(n):
        message.layer.add(name=f"l{i}", type="ReLU")
    (folder / "w.caffemodel").write_bytes(message.SerializeToString())
    return {"convert --summary": ["convert", "--summary", "w.caffemodel"], "upgrade": ["upgrade_net_proto_binary", "w.caffemodel", "new.caffemodel"]}


def lists(n: int, folder: Path) -> dict[str, list[str]]:
    from PIL import Image

    Image.new("RGB", (8, 8)).save(folder / "a.png")
    (folder / "list.txt").write_text("a.png 1\n" * n)
    source = 'image_data_param { source: "list.txt" batch_size: 2 }'
    (folder / "net.prototxt").write_text(f'layer {{ name: "d" type: "ImageData" top: "data" top: "label" {source} }}\n')
    return {"summary": ["summary", "net.prototxt"]}


def solver(n: int, folder: Path) -> dict[str, list[str]]:
    steps = "\n".join(f"stepvalue: {i}" for i in range(1, n + 1))
    (folder / "solver.prototxt").write_text(f'net: "n" base_lr: 0.1 lr_policy: "multistep" gamma: 0.9 max_iter: {2 * n}\n{steps}\n')
    return {"upgrade": ["upgrade_solver_proto_text", "solver.prototxt", "new.prototxt"]}


def model(n: int, folder: Path) -> dict[str, list[str]]:
    nodes = [helper.make_node("Relu", [f"r{i}" if i else "x"], [f"r{i + 1}"], name=f"n{i}") for i in range(n)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 4, 4]) for name in ("x", f"r{n}")]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(folder / "m.onnx"))
    return {"convert": ["convert", "--noverify", "m.onnx", "m.prototxt", "m.caffemodel"]}


FILES: dict[str, tuple[Callable[[int, Path], dict[str, list[str]]], int]] = {  # and the factor on the sizes
    "log": (log, 30),
    "weights without values": (weights, 100),
    "list of images": (lists, 100),
    "solver with stepvalue": (solver, 10),
    "ONNX model": (model, 1),
}


def run(command: list[str], folder: Path, limit: float) -> float | None:
    """Return the seconds of a command, or None if it was stopped at the limit. Raises RuntimeError if it fails."""
    begin = time.perf_counter()
    path = os.pathsep.join([str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "")])
    child = subprocess.Popen(
        [sys.executable, "-m", "ocaffe", *command], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    try:
        _, errors = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return None
    if child.returncode not in (0, 1 if command[0] == "lint" else 0):  # lint found something
        raise RuntimeError(f"{' '.join(command)}: status {child.returncode}\n{errors.decode()[-2000:]}")
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("forms", nargs="*", metavar="FORM", help=f"of {', '.join([*NETS, *FILES])}")
    parser.add_argument("--sizes", nargs=3, type=int, default=[100, 1000, 10000])
    parser.add_argument("--limit", type=float, default=300, help="seconds of a command")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, object]] = []
    print(f"| file | command | {' | '.join(f'{size:,}' for size in args.sizes)} | exponent |\n|---|---|{'---|' * len(args.sizes)}---|")
    for form in args.forms or [*NETS, *FILES]:
        factor = FILES[form][1] if form in FILES else 1
        times: dict[str, list[float | None]] = {}
        for size in args.sizes:
            with tempfile.TemporaryDirectory() as name:
                made = FILES[form][0](size * factor, Path(name)) if form in FILES else net(form, size, Path(name))
                for label, command in made.items():
                    times.setdefault(label, []).append(run(command, Path(name), args.limit))
        for label, (first, second, third) in times.items():
            grows = None
            if first is not None and second is not None and third is not None and third > second > first + 0.1:
                grows = math.log((third - first) / (second - first)) / math.log(args.sizes[2] / args.sizes[1])
            texts = [f"over {args.limit:.0f}" if t is None else f"{t:.1f}" for t in (first, second, third)]
            name = form if factor == 1 else f"{form}, x {factor}"
            print(f"| {name} | {label} | {' | '.join(texts)} | {'-' if grows is None else f'{grows:.2f}'} |", flush=True)
            rows.append({"file": name, "command": label, "seconds": [first, second, third], "exponent": grows})
    if args.json:
        args.json.write_text(json.dumps({"sizes": args.sizes, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
