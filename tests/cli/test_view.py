"""The output of `ocaffe train` on a terminal and elsewhere, and the flags that replace fields of the solver."""
from __future__ import annotations

import os
import pathlib
import re
import struct
import subprocess
import sys
from typing import Any

import pytest

from ocaffe.cli import main
from ocaffe.cli.view import continued
from ocaffe.tools.training_logs.logs import read_log

pty, fcntl, termios = (pytest.importorskip(name, reason="terminals of POSIX") for name in ("pty", "fcntl", "termios"))
ROOT = pathlib.Path(__file__).resolve().parents[2]
NET = """name: "small"
layer { name: "d" type: "DummyData" top: "data" top: "label" dummy_data_param { data_filler { type: "gaussian" } data_filler { type: "constant" value: 1 }
  shape { dim: 4 dim: 3 } shape { dim: 4 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy" include { phase: TEST } }"""
SOLVER = """net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 6 display: 2 test_iter: 1 test_interval: 3 snapshot_prefix: "out/s" """


@pytest.fixture
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("net.prototxt").write_text(NET)
    pathlib.Path("solver.prototxt").write_text(SOLVER)
    return tmp_path


def on_terminal(*arguments: str, **environment: str) -> tuple[int, str]:
    """Run a command with a terminal as its stderr. Return its status and the text on the terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", **environment}
    with subprocess.Popen([sys.executable, "-m", "ocaffe", *arguments], stderr=theirs, stdout=subprocess.DEVNULL, env=variables) as process:
        os.close(theirs)
        text = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # Linux: the other side is closed
                break
            if not part:
                break
            text += part
    os.close(ours)
    return process.returncode, text.decode()


def test_short_view(here: pathlib.Path, device: Any) -> None:
    status, said = on_terminal("train", "--solver", "solver.prototxt", "--device", device.number, NO_COLOR="1")
    assert status == 0, said
    for text in ("net     small: 3 layers, 8 parameters, batches of 4", "memory  ", "device  ", "log     out/s.log (-v prints it here)"):
        assert text in said
    assert re.search(r"iteration 3, test: .*accuracy [01]", said) and "done at iteration 6" in said and "6/6" in said and "loss=" in said
    assert "Setting up" not in said and "\x1b[1m" not in said and "Traceback" not in said
    log = read_log("out/s.log")  # Caffe's whole log is in the file
    assert [row["NumIters"] for row in log.loss] == [0, 2, 4, 6] and [row["NumIters"] for row in log.test] == [0, 3, 6]


def test_images_are_counted_once(here: pathlib.Path, device: Any) -> None:
    """A net with a layer for images and another one for labels, as for segmentation."""
    layer = 'layer { name: "%s" type: "DummyData" top: "%s" dummy_data_param { shape { dim: 4 %s } } }'
    net = "\n".join([layer % ("d", "data", "dim: 3"), layer % ("l", "label", ""), NET[NET.index('layer { name: "ip"') :]])
    pathlib.Path("net.prototxt").write_text(net)
    status, said = on_terminal("train", "--solver", "solver.prototxt", "--device", device.number)
    assert status == 0 and "batches of 4" in said, said


def test_command_that_continues() -> None:
    given = ["--solver", "a b.prototxt", "-weights=w", "--snapshot", "s", "--set", "base_lr=1", "--batch=4"]
    assert continued(given) == "ocaffe train --solver 'a b.prototxt' --set base_lr=1 --batch=4 --snapshot auto"


def test_whole_log_with_v(here: pathlib.Path, device: Any) -> None:
    status, said = on_terminal("train", "--solver", "solver.prototxt", "--device", device.number, "-v")
    assert status == 0 and "Setting up ip" in said and not pathlib.Path("out/s.log").exists()
    status, said = on_terminal("train", "--solver", "solver.prototxt", "--device", device.number, "--quiet")
    assert status == 0 and "Iteration" not in said and "memory" not in said


def test_colors_of_errors(here: pathlib.Path) -> None:
    assert "\x1b[31;1merror:\x1b[0m" in on_terminal("train", "--solver", "none.prototxt")[1]
    assert on_terminal("train", "--solver", "none.prototxt", NO_COLOR="1")[1].startswith("error: none.prototxt")


def test_log_without_a_terminal(here: pathlib.Path, device: Any, capfd: pytest.CaptureFixture[str]) -> None:
    command = ["train", "--solver", "solver.prototxt", "--device", device.number]
    assert main([*command, "--log", "new/run.log"]) == 0
    said = capfd.readouterr().err
    written = pathlib.Path("new/run.log").read_text()
    assert "Setting up ip" in written and said.splitlines()[-1] == written.splitlines()[-1]
    assert main([*command, "--quiet"]) == 0 and "Iteration" not in capfd.readouterr().err
    pathlib.Path("file").write_text("")
    assert main([*command, "--log", "file/run.log"]) == 1 and "the log cannot be written" in capfd.readouterr().err
    assert main([*command, "-v", "--quiet"]) == 1 and "both given" in capfd.readouterr().err


def test_fields_on_the_command_line(here: pathlib.Path, device: Any, capfd: pytest.CaptureFixture[str]) -> None:
    command = ["train", "--solver", "solver.prototxt", "--device", device.number]
    assert main([*command, "--set", "base_lr=0.25", "--set", "type=Adam", "--set", "max_iter=2"]) == 0
    said = capfd.readouterr().err
    assert "Iteration 0, lr = 0.25" in said and pathlib.Path("out/s_iter_2.solverstate").exists() and "Solver scaffolding done" in said
    for setting, text in (("base_lr=0.1,0.2", "`ocaffe sweep` trains with each"), ("base_lrr=1", "base_lr"), ("base_lr", "FIELD=VALUE")):
        assert main([*command, "--set", setting]) == 1
        assert text in capfd.readouterr().err


def test_batch(here: pathlib.Path, device: Any, capfd: pytest.CaptureFixture[str]) -> None:
    data = 'layer { name: "d" type: "MemoryData" top: "data" top: "label" memory_data_param { batch_size: 4 channels: 3 height: 1 width: 1 } }'
    pathlib.Path("net.prototxt").write_text(data + NET[NET.index("\nlayer { name: \"ip\"") :])
    assert main(["summary", "net.prototxt", "--batch", "7"]) == 0 and "7 x 3" in capfd.readouterr().out
    pathlib.Path("net.prototxt").write_text(NET.replace("DummyData", "Input").replace("dummy_data_param", "input_param").replace(
        'data_filler { type: "gaussian" } data_filler { type: "constant" value: 1 }', ""))  # fmt: skip
    assert main(["time", "--model", "net.prototxt", "--batch", "5", "--iterations", "1", "--device", device.number]) == 0
    assert "Top shape: 5 3" in capfd.readouterr().err


def test_commands_and_flags_that_are_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian"]) == 1 and "did you mean `ocaffe train`?" in capsys.readouterr().err
    assert main(["train", "--solvr", "x"]) == 1 and "did you mean --solver?" in capsys.readouterr().err
    assert main(["layers", "Convlution"]) == 1 and "did you mean Convolution" in capsys.readouterr().err
    assert main(["layers", "convolution"]) == 0 and "convolution_param {" in capsys.readouterr().out


def test_help_has_one_spelling(capsys: pytest.CaptureFixture[str]) -> None:
    from ocaffe.cli import COMMANDS, usage
    from ocaffe.cli.parsers import parser_of

    assert "ONNX model to Caffe" in usage()
    for command in COMMANDS:
        text = parser_of(command).format_help()
        assert "(default: )" not in text and not re.search(r"--\w+_\w+", text), command


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "solver" in script and "memory-limit" in script
    if shell == "bash":
        path = tmp_path / "c.bash"
        path.write_text(script)
        ask = f"source {path}; COMP_WORDS=(ocaffe %s); COMP_CWORD=%d; _ocaffe; echo ${{COMPREPLY[@]}}"
        for words, index, found in (("tra", 1, "train"), ("train --memo", 2, "--memory-limit")):
            done = subprocess.run(["bash", "-c", ask % (words, index)], capture_output=True, text=True, check=True)
            assert done.stdout.strip() == found


def test_ctrl_c_during_imports() -> None:
    run = "import sys, importlib.abc\nclass Finder(importlib.abc.MetaPathFinder):\n  def find_spec(self, name, *_):\n"
    run += "    if name == 'ocaffe.cli': raise KeyboardInterrupt\n"
    run += "from ocaffe.__main__ import main\nsys.meta_path.insert(0, Finder())\nsys.exit(main())"
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 130 and done.stderr.strip() == "interrupted"
