"""Every command of the tutorials runs, and the pages are easy to read."""
from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.docs.commands import ROOT, blocks
from tests.docs.readability import longest_sentence, reading_ease
from tests.zoo.digits import write_folders

PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
NEEDS = {"from-caffe": ["sklearn"], "from-pytorch": ["torch"]}  # packages besides ocaffe's own
FEW = ("3", "7", "8")
FILES = {  # results that show that a tutorial did its work
    "own-folder": ["mynet/best.caffemodel", "mynet/more_iter_20.caffemodel"],
    "fine-tune": ["tuned/best.caffemodel", "frozen/lenet_iter_20.caffemodel"],
    "from-caffe": ["examples/digits/lenet_iter_600.solverstate"],
    "from-pytorch": ["net.caffemodel", "mynet/best.caffemodel", "tuned.onnx"],
    "low-memory": ["net/resnet20_iter_10.caffemodel"],
}


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a folder with the images of the tutorials, and with the programs `ocaffe` and `python` in bin."""
    write_folders(tmp_path / "drawn", 30)
    (tmp_path / "photos").mkdir()
    for path in sorted((tmp_path / "drawn").iterdir()):
        path.rename(tmp_path / "photos" / path.name.removeprefix("digit"))
    for name in FEW:
        shutil.copytree(tmp_path / "photos" / name, tmp_path / "few" / name)
    (tmp_path / "bin").mkdir()
    for name, start in (("ocaffe", "-m ocaffe"), ("python", "")):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {start} "$@"\n')
        program.chmod(0o755)
    return tmp_path


def run(given: list[str], folder: pathlib.Path) -> str:
    """Run blocks in one shell that ends at the first error, and return its output."""
    paths = {"PYTHONPATH": str(ROOT), "PATH": str(folder / "bin")}
    own = {name: os.pathsep.join(filter(None, [path, os.environ.get(name)])) for name, path in paths.items()} | {"OCAFFE_DEBUG": ""}
    if os.environ.get("OCAFFE_TEST_DEVICE"):
        own["OCAFFE_DEVICE"] = os.environ["OCAFFE_TEST_DEVICE"]
    done = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", "\n".join(given)], cwd=folder, env={**os.environ, **own}, capture_output=True, text=True)
    logs = "\n".join(f"{path.name}: {path.read_text()[-500:]}" for path in folder.rglob("*.log"))
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}\n{logs}"
    return done.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="the tutorials are for a POSIX shell")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_run(page: pathlib.Path, folder: pathlib.Path) -> None:
    missing = [name for name in NEEDS.get(page.stem, []) if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"the tutorial needs {missing[0]}")
    run(blocks(page), folder)
    assert all((folder / name).exists() for name in FILES[page.stem])


@pytest.mark.skipif(shutil.which("bash") is None, reason="the tutorials are for a POSIX shell")
def test_from_pytorch_after_the_export(folder: pathlib.Path) -> None:
    """All commands but the export, which needs PyTorch, with a model of the same structure."""
    first, *others = blocks(ROOT / "docs" / "tutorials" / "from-pytorch.md")
    assert "export.py" in first and "export.py" not in "".join(others)
    write_model(folder / "model.onnx")
    output = run(others, folder)
    assert all((folder / name).exists() for name in FILES["from-pytorch"])
    assert "with 10 outputs" in output and "tuned.onnx: " in output


def write_model(path: pathlib.Path) -> None:
    """Write a convolution, normalization, ReLU, pooling and a product with five outputs."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    dice = np.random.default_rng(1)
    weights = {
        "0.weight": dice.normal(0, 0.2, (16, 3, 3, 3)), "0.bias": np.zeros(16), "1.scale": np.ones(16), "1.bias": np.zeros(16), "1.mean": np.zeros(16),
        "1.var": np.ones(16), "2.weight": dice.normal(0, 0.02, (5, 16 * 16 * 16)), "2.bias": np.zeros(5),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "0.weight", "0.bias"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["a", "1.scale", "1.bias", "1.mean", "1.var"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("MaxPool", ["c"], ["d"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["d"], ["e"]),
        helper.make_node("Gemm", ["e", "2.weight", "2.bias"], ["y"], transB=1),
    ]
    inputs, outputs = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [1, 3, 32, 32]), ("y", [1, 5])))
    tensors = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "small", [inputs], [outputs], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_easy_to_read(page: pathlib.Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count("\n") <= 100
    assert reading_ease(text) >= 50
    assert longest_sentence(text) <= 30


def test_readability_tells_easy_from_hard() -> None:
    hard = "Simultaneous optimisation considerations necessitate comprehensive characterisation of heterogeneous accelerator architectures."
    assert reading_ease("The cat sat on the mat. It was a big cat.") > 100 > 20 > reading_ease(hard)
    assert longest_sentence("One two three. Four `five six` seven!\n\n```sh\na b c d e f g\n```\n\n| a b c d e f g |\n") == 3
