"""The commands as a user calls them: all spellings of flags, log lines, exit status, and an error for each kind of bad input."""
from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import Any

import lmdb
import pytest

from ocaffe.cli import main

pytestmark = pytest.mark.quick

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"


@pytest.fixture(autouse=True)
def workplace(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(GOLDEN / "files", tmp_path / "files")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def spec(device: Any) -> str:
    """Return the device in the format of --device."""
    return str(device.number)


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="names are Unicode")
@pytest.mark.parametrize("command", ["dataset show {} --out s.png", "fit {} --out fo --net lenet --iterations 2", "new lenet --data {} --out fo"])
def test_names_that_are_not_utf_8(command: str, spec: str, capfd: pytest.CaptureFixture[str]) -> None:
    folder = "d\udcff"
    for name in "ab":
        os.makedirs(f"{folder}/{name}")
        for number in range(5):
            shutil.copy(next((GOLDEN / "files").rglob("*.png")), f"{folder}/{name}/{number}.png")
    assert main(command.format(folder).split()) == 1
    told = capfd.readouterr().err
    assert told.startswith("error: ") and "not UTF-8" in told and "rename" in told


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
def test_a_pipe_as_an_own_file(capfd: pytest.CaptureFixture[str]) -> None:
    os.makedirs("snap")
    os.mkfifo("snap/s.lock")
    os.mkfifo("snap/p.svg")
    pathlib.Path("s.prototxt").write_text('net: "files/train_net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1 snapshot_prefix: "snap/s"')
    for command in ("train --solver s.prototxt", "train --solver s.prototxt --log snap/s.lock", "train --solver s.prototxt --log_json snap/s.lock",
                    "draw_net files/train_net.prototxt snap/p.svg", "plan --solver s.prototxt --html snap/s.lock"):  # fmt: skip
        assert main(command.split()) == 1
        told = capfd.readouterr().err
        assert "error: " in told and "it is a pipe, not a plain file" in told and "fix: " in told


def train(spec: str, *flags: str) -> int:
    return main(["train", f"--device={spec}", *flags])


def solver(**changes: str) -> str:
    """Write a copy of the golden solver with other settings and return its path."""
    text = pathlib.Path("files/solver.prototxt").read_text()
    for name, value in changes.items():
        text = re.sub(rf"^{name}:.*\n", "", text, flags=re.M) + f"{name}: {value}\n"
    pathlib.Path("changed.prototxt").write_text(text)
    return "changed.prototxt"


def net(old: str, new: str) -> str:
    """Write a copy of the golden net with one text replaced, and a solver for it."""
    text = pathlib.Path("files/train_net.prototxt").read_text()
    assert old in text
    pathlib.Path("net.prototxt").write_text(text.replace(old, new))
    return solver(net='"net.prototxt"')


# the regular expressions of parse_log.py and their use
ITERATION = re.compile(r"Iteration (\d+)")
TRAIN_OUTPUT = re.compile(r"Train net output #(\d+): (\S+) = ([\.\deE+-]+)")
TEST_OUTPUT = re.compile(r"Test net output #(\d+): (\S+) = ([\.\deE+-]+)")
RATE = re.compile(r"lr = ([-+]?[0-9]*\.?[0-9]+([eE]?[-+]?[0-9]+)?)")


def parse_log(text: str) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    iteration, rate = -1.0, float("nan")
    rows: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
    for line in text.splitlines():
        if match := ITERATION.search(line):
            iteration = float(match[1])
        if iteration == -1:
            continue
        if match := RATE.search(line):
            rate = float(match[1])
        for table, pattern in zip(rows, (TRAIN_OUTPUT, TEST_OUTPUT)):
            if match := pattern.search(line):
                if not table or table[-1]["NumIters"] != iteration:
                    table.append({"NumIters": iteration, "LearningRate": rate})
                table[-1][match[2]] = float(match[3])
    return rows


def test_train_writes_caffes_log(spec: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Repeat a run of real Caffe (golden/files/caffe_train.log): parse_log's expressions find the same rows and numbers."""
    assert train(spec, "--solver=files/solver.prototxt", "--weights=files/init.caffemodel") == 0
    ours = capfd.readouterr().err
    caffe = (GOLDEN / "files" / "caffe_train.log").read_text()
    for mine, theirs in zip(parse_log(ours), parse_log(caffe)):
        assert [row.keys() for row in mine] == [row.keys() for row in theirs]
        for a, b in zip(mine, theirs):
            assert a == pytest.approx(b, rel=2e-3, abs=1e-5, nan_ok=True)
    prefix = re.compile(r"^[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ \S+:\d+\] ")
    assert [line for line in ours.splitlines() if re.match(r"[IWEF]\d{4}", line) and not prefix.match(line)] == []
    assert same_lines(ours) == same_lines(caffe)


def debug_lines(text: str) -> list[tuple[str, list[float]]]:
    """Return the lines of debug_info as words and numbers."""
    found = re.findall(r"net\.cpp:\d+\]     (\[(?:Forward|Backward)\] .*)", text)
    number = r"(?<=[ (])[\d.]+(?:e[-+]\d+)?(?=[,)]|$)"
    return [(re.sub(number, "#", line), [float(n) for n in re.findall(number, line)]) for line in found]


def test_debug_info_as_caffe(spec: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert train(spec, "--solver", "files/solver_debug.prototxt", "--weights", "files/init.caffemodel") == 0
    mine = debug_lines(capfd.readouterr().err)
    caffe = debug_lines((GOLDEN / "files" / "caffe_train_debug.log").read_text())
    assert len(caffe) == 52 and [words for words, _ in mine] == [words for words, _ in caffe]
    for (words, numbers), (_, expected) in zip(mine, caffe):
        assert numbers == pytest.approx(expected, rel=1e-4, abs=1e-6), words


def same_lines(text: str) -> list[str]:
    """Return the lines that scripts search for, without prefix and numbers."""
    keep = re.compile(r"Solving|Learning Rate Policy|Iteration|net output|Snapshotting|Optimization Done|Starting|Finetuning|scaffolding|Setting up"
                      r"|Top shape|needs backward|not need backward|produces output|initialization done|<-|->|Memory required|loss weight")  # fmt: skip
    lines = [re.sub(r"^.*?\] ", "", line) for line in text.splitlines() if keep.search(line)]
    return [re.sub(r"-?\d+\.?\d*(e[-+]?\d+)?", "#", re.sub(r"\(.* iter/s.*? iters\)", "(speed)", line)) for line in lines]


def test_resume_from_caffes_state(spec: str, capfd: pytest.CaptureFixture[str]) -> None:
    path = solver(snapshot_prefix='"files/again"')
    assert train(spec, "-solver", path, "-snapshot", "files/train_iter_8.solverstate") == 0
    mine, theirs = (parse_log(text)[0] for text in (capfd.readouterr().err, (GOLDEN / "files" / "caffe_train_resume.log").read_text()))
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs):
        assert a == pytest.approx(b, rel=2e-3, abs=1e-5, nan_ok=True)


@pytest.mark.parametrize(
    "flags",
    [
        ["test", "-model", "files/train_net.prototxt", "-weights", "files/train_iter_16.caffemodel", "-iterations", "4"],
        ["--model=files/train_net.prototxt", "--weights=files/train_iter_16.caffemodel.h5", "test", "--iterations=4"],
        ["-model=files/train_net.prototxt", "-weights=files/train_iter_16.caffemodel", "-iterations=4", "test"],
    ],
    ids=["one dash", "command last, hdf5", "one dash and ="],
)
def test_test_writes_caffes_log(spec: str, flags: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*flags, f"--device={spec}"]) == 0
    pattern = re.compile(r"caffe.cpp:\d+\] ((?:Batch \d+, )?\w+ ?[=:] ?.*)")
    mine, theirs = (pattern.findall(text) for text in (capfd.readouterr().err, (GOLDEN / "files" / "caffe_test.log").read_text()))
    assert len(mine) == len(theirs) > 5
    for a, b in zip(mine, theirs):
        number = r"-?\d+\.?\d*(?:e[-+]?\d+)?"
        assert re.sub(number, "#", a) == re.sub(number, "#", b)
        assert [float(x) for x in re.findall(number, a)] == pytest.approx([float(x) for x in re.findall(number, b)], rel=5e-3, abs=1e-5)


def test_time_writes_caffes_log(spec: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["time", "--model", "files/train_net.prototxt", "--iterations", "2", "--device", spec]) == 0
    text = capfd.readouterr().err
    for line in ("*** Benchmark begins ***", "Average time per layer: ", "     conv1\tforward: ", "     conv1\tbackward: ", "Average Forward pass: ",
                 "Average Backward pass: ", "Average Forward-Backward: ", "Total Time: ", "*** Benchmark ends ***"):  # fmt: skip
        assert line in text


def test_plan_needs_no_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--solver", "files/solver.prototxt"]) == 0
    text = capsys.readouterr().out
    assert "lower bound" in text and "parameters" in text and "BVLC Caffe" in text
    for stage, expected in (("net", "layer {"), ("graph", "Convolution"), ("schedule", "backward")):
        assert main(["plan", "--solver", "files/solver.prototxt", "--dump", stage]) == 0
        assert expected in capsys.readouterr().out


def test_plan_without_recomputation(capsys: pytest.CaptureFixture[str]) -> None:
    layers = """
        layer {{ name: "conv{i}" type: "Convolution" bottom: "x{i}" top: "y{i}" convolution_param {{ num_output: 8 kernel_size: 3 pad: 1 }} }}
        layer {{ name: "bn{i}" type: "BatchNorm" bottom: "y{i}" top: "x{j}" }}
        layer {{ name: "relu{i}" type: "ReLU" bottom: "x{j}" top: "x{j}" }}"""
    ends = """layer { name: "x" type: "DummyData" top: "x0" top: "t" dummy_data_param { shape { dim: [64, 8, 32, 32] } } }
        layer { name: "loss" type: "EuclideanLoss" bottom: "x6" bottom: "t" top: "loss" }"""
    data, loss = ends.splitlines()
    pathlib.Path("net.prototxt").write_text(data + "".join(layers.format(i=i, j=i + 1) for i in range(6)) + loss)

    def total(*flags: str) -> int:
        assert main(["plan", "--solver", solver(net='"net.prototxt"'), "--json", "plan.json", *flags]) == 0
        return int(json.loads(pathlib.Path("plan.json").read_text())["total_bytes"])

    assert total("--recompute=none") > 1.1 * total() == 1.1 * total("--recompute=cheap")
    capsys.readouterr()
    assert total("--memory-limit=1G") and "recomputes nothing" not in capsys.readouterr().out  # a limited plan recomputes on GPUs too
    assert total() and "a GPU with 8 times as much memory recomputes nothing" in capsys.readouterr().out


@pytest.mark.parametrize("flags, fact", [
    (["--math=bf16"], "--math bf16 without a device: the plan is that of a CPU, which has only fp32, ieee"),
    (["--math=tf16"], "--math is 'tf16'\n  fix: --math with one of fp32"),
    (["--batch=-4"], "--batch is '-4'\n  fix: --batch with a whole number of at least 1"),
    (["--batch", "0"], "--batch is '0'\n  fix: --batch with a whole number of at least 1"),
    (["--level=x"], "--level is 'x', which is not a whole number\n  fix: give a whole number, such as --level 0"),
    (["--level"], "--level has no value\n  fix: --level VALUE; `ocaffe plan --help` describes it"),
])  # fmt: skip
def test_plan_refuses_wrong_values(flags: list[str], fact: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--solver", "files/solver.prototxt", *flags]) == 1
    text = capsys.readouterr().err
    assert fact in text and "fix: " in text


def test_json_log(spec: str) -> None:
    assert train(spec, "--solver", solver(snapshot_prefix='"s"'), "--log-json", "log.json") == 0
    records = [json.loads(line) for line in pathlib.Path("log.json").read_text().splitlines()]
    assert {record["phase"] for record in records} == {"train", "test"}
    assert all("loss" in record["outputs"] for record in records)


def test_usage_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 1 and "usage: ocaffe" in capsys.readouterr().err
    assert main(["nonsense"]) == 1
    assert main(["--version"]) == 0
    assert re.match(r"ocaffe version \d+\.\d+", capsys.readouterr().out)


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123\n"


def corrupt_record() -> None:
    with lmdb.open("files/lmdb_raw", lock=False) as env, env.begin(write=True) as transaction:
        with transaction.cursor() as cursor:
            cursor.first()
            cursor.next()
            key = cursor.key()
        transaction.put(key, b"\xff\xff\xff garbage")


BAD = {
    # name: (preparation, flags, text in the message)
    "missing solver": (lambda: None, ["--solver", "none.prototxt"], r"none\.prototxt"),
    "no solver given": (lambda: None, [], r"solver"),
    "missing net": (lambda: solver(net='"none.prototxt"'), ["--solver", "changed.prototxt"], r"none\.prototxt"),
    "missing weights": (lambda: None, ["--solver", "files/solver.prototxt", "--weights", "none.caffemodel"], r"none\.caffemodel"),
    "truncated weights": (
        lambda: pathlib.Path("cut.caffemodel").write_bytes(pathlib.Path("files/init.caffemodel").read_bytes()[:-40]),
        ["--solver", "files/solver.prototxt", "--weights", "cut.caffemodel"], r"cut\.caffemodel",
    ),
    "LFS pointer": (
        lambda: pathlib.Path("lfs.caffemodel").write_text(LFS),
        ["--solver", "files/solver.prototxt", "--weights", "lfs.caffemodel"], r"(?s)lfs\.caffemodel.*fix:",
    ),
    "wrong shapes": (
        lambda: net("num_output: 4", "num_output: 5"),
        ["--solver", "changed.prototxt", "--weights", "files/init.caffemodel"],
        r"(?s)init\.caffemodel: layer 'conv1'.*in the file, 5 x .* in the net.*fix: rename",
    ),
    "unknown layer": (
        lambda: net('type: "InnerProduct"', 'type: "InnerProdct"'),
        ["--solver", "changed.prototxt"], r"(?s)net\.prototxt:\d+: layer 'ip1'.*unknown layer type 'InnerProdct'.*InnerProduct",
    ),
    "unknown field": (
        lambda: net("batch_size: 4", "batch_sise: 4"), ["--solver", "changed.prototxt"], r"(?s)net\.prototxt:\d+.*batch_sise.*batch_size",
    ),
    "missing database": (
        lambda: shutil.rmtree("files/lmdb_raw"), ["--solver", "files/solver.prototxt"], r"(?s)train_net\.prototxt:\d+: layer 'data'.*lmdb_raw",
    ),
    "corrupt record": (corrupt_record, ["--solver", "files/solver.prototxt"], r"(?s)lmdb_raw.*00000001"),
    "snapshot and weights": (
        lambda: None, ["--solver", "files/solver.prototxt", "--snapshot", "a.solverstate", "--weights", "b.caffemodel"], r"leave out --weights to resume",
    ),
    "caffemodel as snapshot": (lambda: None, ["--solver", "files/solver.prototxt", "--snapshot", "files/train_iter_8.caffemodel"], r"caffemodel"),
    "wrong flag": (lambda: None, ["--solver", "files/solver.prototxt", "--gpus", "0"], r"--gpus"),
    "wrong signal effect": (lambda: None, ["--solver", "files/solver.prototxt", "--sigint_effect", "die"], r"die"),
    "unknown policy": (lambda: solver(lr_policy='"stepp"'), ["--solver", "changed.prototxt"], r"stepp"),
    "cannot snapshot": (lambda: solver(snapshot_prefix='"changed.prototxt/x"'), ["--solver", "changed.prototxt"], r"(?s)cannot write.*fix:"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str, spec: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The command prints one paragraph that starts with `error:` without traceback, exits with 1 and changes no file."""
    prepare, flags, message = BAD[name]
    prepare()
    before = {path: path.read_bytes() for path in pathlib.Path(".").rglob("*") if path.is_file() and path.name != "lock.mdb"}
    assert train(spec, *flags) == 1
    text = capfd.readouterr().err
    told, _, last = text[text.index("error: ") :].partition("\nocaffe train failed: ")
    assert re.search(message, told), told
    assert "Traceback" not in text and len(told.splitlines()) <= 4
    assert last in ("", " ".join(told.removeprefix("error: ").split()) + "\n")  # under log lines, the last line has the whole error
    assert bool(last) == bool(re.search(r"^[IW]\d{4} ", text, re.M))
    assert {path: path.read_bytes() for path in before} == before


def test_errors_do_not_end_in_a_signal(spec: str) -> None:
    """The process exits with status 1, not 134 as Caffe does."""
    command = [sys.executable, "-m", "ocaffe", "train", "--solver", "none.prototxt", "--device", spec]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1 and done.stderr.startswith("error: none.prototxt")


def test_gpus_that_are_not_there_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--solver", "files/solver.prototxt", "--gpu", "98,99"]) == 1
    assert "error: --gpu 98: " in capfd.readouterr().err


def test_flags_of_other_commands_are_taken(spec: str) -> None:
    """gflags are global, so scripts pass flags of `train` to `time` and `test`."""
    assert main(["time", "-model", "files/train_net.prototxt", "-weights", "nowhere", "-solver=x", "-iterations", "1", "--device", spec]) == 0


@pytest.mark.parametrize("command", ["time", "test"])
def test_no_iterations_is_an_error(command: str, spec: str, capfd: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", "files/train_net.prototxt", "--weights", "files/init.caffemodel", "--iterations", "0", "--device", spec]
    assert main([command, *flags]) == 1
    assert "--iterations is 0" in capfd.readouterr().err


def test_unknown_fields_can_be_allowed(spec: str, capfd: pytest.CaptureFixture[str]) -> None:
    path = net("batch_size: 4", "batch_size: 4 frobnicate: 3")
    assert train(spec, "--solver", path, "--allow_unknown_fields") == 0
    assert "frobnicate" in capfd.readouterr().err
