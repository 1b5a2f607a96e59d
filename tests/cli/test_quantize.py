"""`ocaffe quantize`: from a trained net to its integers, by the command line."""
from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

from ocaffe.cli import main
from ocaffe.evaluation.sidecar import sidecar_of
from ocaffe.formats.text import read_net
from ocaffe.formats.weights import read_weights
from ocaffe.quantize.scheme import schemes

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = ROOT / "tests" / "golden" / "files"
NET, WEIGHTS = "files/train_net.prototxt", "files/train_iter_16.caffemodel"


@pytest.fixture(autouse=True)
def workplace(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    shutil.copytree(FILES, tmp_path / "files")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def quantize(device: Any, *flags: str, status: int = 0) -> None:
    assert main(["quantize", NET, WEIGHTS, "--out=q", f"--device={device.number}", "--images=12", "--batch=4", *flags]) == status


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    capsys.readouterr()
    assert main(["quantize", *args]) == 1
    told = capsys.readouterr().err
    assert "error: " in told and not pathlib.Path("q").exists() and not [name for name in os.listdir() if name.startswith((".q", "q."))]
    return told


def outputs(text: str) -> list[str]:
    return re.findall(r"^(?:accuracy|loss) +([-.\de]+)", text, re.MULTILINE)


def test_the_whole_task(device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The files are complete, and `test` scores the net that rounds, with floats and with integers."""
    quantize(device, "--steps=5")
    told = capsys.readouterr().out
    assert "2 products with integers" in told and f"ocaffe test --model {NET} --quantized q" in told
    names = {"net.prototxt", "net.caffemodel", "quantized.prototxt", "quantized.caffemodel", "quantization.json", "report.html"}
    assert names <= set(os.listdir("q"))
    table = json.loads(pathlib.Path("q/quantization.json").read_text())
    assert table["scheme"] == "int8" and table["products"] == ["conv1", "ip1"] and list(table["values"]) == ["data", "conv1", "ip1"]
    page = pathlib.Path("q/report.html").read_text()
    assert page.count("<svg") == 3 and page.count("<img") == 12 and "<script" not in page and "http" not in page.replace("http://www.w3.org", "")
    kinds = [layer.type for layer in read_net("q/quantized.prototxt").layer]
    assert kinds == ["Input", "FakeQuantize", "Convolution", "ReLU", "FakeQuantize", "Pooling", "InnerProduct", "FakeQuantize"]
    weights = {layer.name: layer.blobs for layer in read_weights("q/net.caffemodel").layers}
    for name in ("conv1", "ip1"):
        by_output = np.asarray(weights[name][0]).reshape(4, -1)
        whole = by_output / (np.abs(by_output).max(axis=1, keepdims=True) / 127)
        np.testing.assert_allclose(whole, np.rint(whole), atol=1e-3)
    scores = []
    for flags in ([f"--weights={WEIGHTS}"], ["--quantized=q"], ["--quantized=q", "--integers"]):
        capsys.readouterr()
        assert main(["test", f"--model={NET}", f"--device={device.number}", "--iterations=3", *flags]) == 0
        scores.append([float(value) for value in outputs(capsys.readouterr().out)])
    plain, rounded, integers = map(np.array, scores)
    assert len(plain) == 2 and not np.array_equal(plain, rounded)
    np.testing.assert_allclose(rounded, plain, rtol=0.05)
    np.testing.assert_allclose(integers, rounded, rtol=2e-3)


@pytest.mark.parametrize("scheme", schemes())
def test_every_scheme(device: Any, scheme: str) -> None:
    quantize(device, "--steps=0", f"--scheme={scheme}")
    table = json.loads(pathlib.Path("q/quantization.json").read_text())
    values = table["values"].values()
    assert ("ip1" in table["values"]) == (not schemes()[scheme].inputs_only)
    if schemes()[scheme].power_of_two:
        assert all(np.log2(value["scale"]) % 1 == 0 for value in values)
    if schemes()[scheme].asymmetric:
        assert any(value["zero_point"] for value in values)
    if schemes()[scheme].unsigned:
        assert table["values"]["conv1"]["least"] == 0


@pytest.mark.parametrize("data", ["files/images", "files/images.txt"])
def test_images_of_a_folder_and_of_a_list(device: Any, data: str) -> None:
    pathlib.Path("files/images.txt").write_text("".join(f"images/im{number:02}.png {number}\n" for number in range(6)))
    args = ["quantize", NET, WEIGHTS, "--out=q", f"--data={data}", f"--device={device.number}", "--images=6", "--batch=2", "--steps=2", "--resize=24,28"]
    assert main(args) == 0
    assert "data" in json.loads(pathlib.Path("q/quantization.json").read_text())["values"]


def test_products_in_16_bits(device: Any) -> None:
    quantize(device, "--steps=0", "--mixed=1")
    table = json.loads(pathlib.Path("q/quantization.json").read_text())
    assert len(table["wide"]) == 1
    product = next(layer for layer in read_net("q/quantized.prototxt").layer if layer.name == table["wide"][0])
    assert product.weight_quantization_param.bits == 16 and "16 bits" in pathlib.Path("q/report.html").read_text()


def test_training_goes_on_and_ends_with_integers(device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The same command continues a training that was stopped. Its scales are learned."""
    quantize(device, "--steps=0", "--train=files/solver.prototxt")
    assert "trained" in capsys.readouterr().out and pathlib.Path("q/trained.txt").read_text() == "16 iterations\n"
    first = json.loads(pathlib.Path("q/quantization.json").read_text())
    assert {value["method"] for value in first["values"].values()} == {"trained"}
    # As if it had been stopped after the first snapshot.
    for name in ("train_iter_16.caffemodel", "train_iter_16.solverstate", "trained.txt"):
        pathlib.Path("q", name).unlink()
    quantize(device, "--steps=0", "--train=files/solver.prototxt")
    assert json.loads(pathlib.Path("q/quantization.json").read_text()) == first
    capsys.readouterr()
    assert main(["test", f"--model={NET}", f"--device={device.number}", "--iterations=2", "--quantized=q"]) == 0
    assert len(outputs(capsys.readouterr().out)) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="signals of POSIX")
def test_a_training_that_is_interrupted_goes_on(device: Any, workplace: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C leaves a snapshot and no integers of a training. The same command trains to the end."""
    long = pathlib.Path("files/solver.prototxt").read_text().replace("max_iter: 16", "max_iter: 100000000").replace("snapshot: 8", "snapshot: 0")
    pathlib.Path("long.prototxt").write_text(long)
    command = [sys.executable, "-m", "ocaffe", "quantize", NET, WEIGHTS, "--out=q", f"--device={device.number}", "--images=12", "--batch=4", "--steps=0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen([*command, "--train=long.prototxt"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        deadline = time.monotonic() + 60
        while not re.search(r"Iteration [1-9][0-9]* \(", (workplace / "q/train.log").read_text() if (workplace / "q/train.log").exists() else ""):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        told = process.communicate(timeout=60)[0]
    finally:
        process.kill()
    assert process.returncode == 0 and "the same command goes on" in told and not pathlib.Path("q/trained.txt").exists()
    (snapshot,) = pathlib.Path("q").glob("train_iter_*.solverstate")
    last = int(snapshot.stem.rpartition("_")[2])
    own = pathlib.Path("q/solver.prototxt")
    own.write_text(own.read_text().replace("max_iter: 100000000", f"max_iter: {last + 2}"))
    quantize(device, "--steps=0", "--train=long.prototxt")
    assert pathlib.Path("q/trained.txt").read_text() == f"{last + 2} iterations\n"


@pytest.mark.skipif(sys.platform != "linux", reason="signals of POSIX")
def test_a_killed_command_leaves_no_folder(device: Any, workplace: pathlib.Path) -> None:
    command = [sys.executable, "-m", "ocaffe", "quantize", NET, WEIGHTS, "--out=q", f"--device={device.number}", "--images=100000", "--steps=100000"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(3)
    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    assert not (workplace / "q").exists()


def test_mistakes_are_named(device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    own = [NET, WEIGHTS, f"--device={device.number}"]
    assert "--out FOLDER" in refused(capsys, *own)
    assert "--scheme int8" in refused(capsys, *own, "--out=q", "--scheme=int9")
    assert "--method auto" in refused(capsys, *own, "--out=q", "--method=best")
    assert "nowhere does not exist" in refused(capsys, *own, "--out=q", "--data=nowhere")
    pathlib.Path("list.txt").write_text("files/images/im00.png 1\nlost.png 0\n")
    assert "list.txt:2" in refused(capsys, *own, "--out=q", "--data=list.txt")
    pathlib.Path("broken.png").write_bytes(b"\x89PNG broken")
    pathlib.Path("list.txt").write_text("broken.png 1\n")
    assert "broken.png" in refused(capsys, *own, "--out=q", "--data=list.txt", "--resize=24,28")
    pathlib.Path("empty").mkdir()
    assert "empty has no image" in refused(capsys, *own, "--out=q", "--data=empty")
    assert "it is a PNG image, not text" in refused(capsys, *own, "--out=q", "--data=files/images/im00.png")
    assert "is no text" in refused(capsys, *own, "--out=q", f"--data={WEIGHTS}")
    image = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 8 } } }'
    pathlib.Path("soft.prototxt").write_text(f'{image} layer {{ name: "s" type: "Softmax" bottom: "x" top: "s" }}')
    given = ["--data=files/images", "--resize=8,8", "--mean=0", "--scale=1"]
    assert "no layer that computes with integers" in refused(capsys, "soft.prototxt", WEIGHTS, f"--device={device.number}", "--out=q", *given)
    assert "no images are given" in refused(capsys, "soft.prototxt", WEIGHTS, f"--device={device.number}", "--out=q")
    pathlib.Path("q").mkdir()
    capsys.readouterr()
    assert main(["quantize", *own, "--out=q"]) == 1
    assert "q exists" in capsys.readouterr().err


def test_mistakes_of_the_folder_are_named(device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for args in (["test", f"--model={NET}"], ["compare", NET], ["predict", f"--model={NET}", "files/images"]):
        capsys.readouterr()
        assert main([*args, "--quantized=q", f"--device={device.number}"]) == 1
        assert "q/quantized.prototxt does not exist" in capsys.readouterr().err
    assert main(["test", f"--model={NET}", f"--weights={WEIGHTS}", "--integers", f"--device={device.number}"]) == 1
    assert "--integers is given without --quantized" in capsys.readouterr().err
    assert main(["test", f"--model={NET}", f"--weights={WEIGHTS}", "--quantized=q", f"--device={device.number}"]) == 1
    assert "leave out --weights" in capsys.readouterr().err


def test_the_files_are_those_of_the_net(device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Batch size and preprocessing are the net's, not those of the calibration, and answers are probabilities as those in floats."""
    flags = ["--resize=24,28", "--data=files/images"]
    quantize(device, "--steps=0", *flags)
    used = int(re.search(r"; (\d+) images", capsys.readouterr().out)[1])  # type: ignore[index]
    assert 0 < used <= 12
    (layer,) = [layer for layer in read_net("q/quantized.prototxt").layer if layer.type == "Input"]
    assert layer.input_param.shape[0].dim[0] == 1
    answers = []
    for more in ([f"--weights={WEIGHTS}"], ["--quantized=q"]):
        assert main(["predict", f"--model={NET}", "--json", f"--device={device.number}", flags[0], *more, "files/images/im00.png"]) == 0
        answers.append({each["index"]: each["score"] for each in json.loads(capsys.readouterr().out)[0]["top"]})
    assert answers[0].keys() == answers[1].keys() and sum(answers[1].values()) == pytest.approx(1, abs=1e-3)
    assert all(abs(answers[0][index] - answers[1][index]) < 0.05 for index in answers[0])


def test_preprocessing_beside_the_weights_is_kept(device: Any) -> None:
    beside = pathlib.Path(sidecar_of(WEIGHTS))
    beside.write_text("{}")
    quantize(device, "--steps=0")
    assert pathlib.Path("q/quantized.json").read_text() == "{}"
