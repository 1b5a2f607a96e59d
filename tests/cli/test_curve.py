"""`ocaffe plan --curve`, and `--max-slowdown` of plan, train, new and fit."""
from __future__ import annotations

import itertools
import json
import pathlib
import re
from typing import Any

import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.cli import main, planning
from ocaffe.formats.text import read_net
from ocaffe.graph.options import NetOptions
from ocaffe.ir.rates import Rates
from ocaffe.ir.target import Target
from ocaffe.memory.curve import Curve, table, trace
from ocaffe.solver.planning import Machine, solver_to_plan
from tests.harness import treat_as_large
from tests.memory.test_html import Page
from tests.memory.test_limit import deep_solver
from tests.zoo.digits import write_folders


@pytest.fixture(autouse=True)
def workplace(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a solver whose net can take less memory, and one whose net cannot."""
    monkeypatch.chdir(tmp_path)
    treat_as_large(monkeypatch, 4096)
    param = deep_solver(8)
    pathlib.Path("net.prototxt").write_text(text_format.MessageToString(param.net_param))
    param.ClearField("net_param")
    param.net = "net.prototxt"
    pathlib.Path("solver.prototxt").write_text(text_format.MessageToString(param))
    pathlib.Path("fixed.prototxt").write_text("""
        layer { name: "x" type: "Input" top: "x" input_param { shape { dim: [2, 8] } } }
        layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 4 } }
        layer { name: "loss" type: "Reduction" bottom: "ip" top: "loss" loss_weight: 1 }""")


def planned(*flags: str) -> Any:
    """Return the JSON of `ocaffe plan`."""
    assert main(["plan", "--json", "plan.json", *flags]) == 0
    return json.loads(pathlib.Path("plan.json").read_text())


def test_table_json_and_picture(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned("--solver", "solver.prototxt", "--curve", "--html", "plan.html")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "solver.prototxt: times are predicted for 'generic CPU' with assumed speeds" and lines[2] == "batch 4:"
    [curve] = found["curves"]
    points = curve["points"]
    assert len(points) >= 3 and curve["images"] == 4 and found["predicted_for"] in lines[0]
    assert points[0]["memory_limit"] is None and points[0]["total_bytes"] == found["total_bytes"] and points[0]["slowdown"] == 0
    for larger, smaller in itertools.pairwise(points):
        assert smaller["total_bytes"] < larger["total_bytes"]
        assert smaller["step_seconds"] > larger["step_seconds"] or larger is points[0]  # the plan without a limit is always shown
    rows = [line.split()[0] for line in lines[4:-1]]
    assert rows == ["none", *(point["memory_limit"] for point in points[1:])]
    best = [point for point in points if point["knee"]]
    assert [line.split()[0] for line in lines if line.endswith("<- knee")] == [point["memory_limit"] for point in best] and len(best) == 1
    assert all(point["image_seconds"] == pytest.approx(point["step_seconds"] / 4) for point in points)
    assert any(point["recomputed_launches"] > points[0]["recomputed_launches"] and point["equal_bits"] for point in points[1:])
    for point in points[1:]:  # what the table names can be typed
        again = planned("--solver", "solver.prototxt", "--memory-limit", point["memory_limit"])
        assert again["total_bytes"] == point["total_bytes"] <= point["limit_bytes"] and "curves" not in again
        assert again["nets"][0]["pieces"] == point["microbatches"] and (point["microbatches"] == 1) == point["equal_bits"]
    text, page = pathlib.Path("plan.html").read_text(), Page()
    page.feed(text)
    shown = [attributes for tag, attributes in page.tags if attributes.get("class") == "point"]
    assert len(shown) == len(points) and text.count('class="knee"') == 1 and text.count("<svg") == 2
    assert all(72 <= float(each["cx"] or 0) <= 1136 and 30 <= float(each["cy"] or 0) <= 376 for each in shown)  # within the axes
    assert f"knee {best[0]['memory_limit']}" in text and "--memory-limit  " in text


def test_the_smallest_plan_of_the_curve_is_the_smallest_that_is_kept() -> None:
    last = planned("--solver", "solver.prototxt", "--curve")["curves"][0]["points"][-1]
    assert main(["plan", "--solver", "solver.prototxt", "--memory-limit", str(int(0.95 * last["total_bytes"]))]) == 1


def test_batches_are_further_curves(capsys: pytest.CaptureFixture[str]) -> None:
    net = text_format.Parse(pathlib.Path("net.prototxt").read_text(), proto.NetParameter())
    net.layer[0].type = "Input"
    net.layer[0].input_param.shape.extend(net.layer[0].dummy_data_param.shape)
    net.layer[0].ClearField("dummy_data_param")
    pathlib.Path("net.prototxt").write_text(text_format.MessageToString(net))
    found = planned("--solver", "solver.prototxt", "--curve", "--batch", "2,6", "--html", "plan.html")
    first, second = found["curves"]
    assert [first["name"], first["images"], second["name"], second["images"]] == ["batch 2", 2, "batch 6", 6]
    assert first["points"][0]["total_bytes"] == found["total_bytes"] < second["points"][0]["total_bytes"]
    assert second["points"] == planned("--solver", "solver.prototxt", "--curve", "--batch", "6")["curves"][0]["points"]
    text = capsys.readouterr().out
    assert "batch 2:" in text and "batch 6:" in text and pathlib.Path("plan.html").read_text().count("<polyline") == 2


def test_a_step_has_iter_size_passes() -> None:
    once = planned("--solver", "solver.prototxt", "--curve")["curves"][0]
    pathlib.Path("solver.prototxt").write_text(pathlib.Path("solver.prototxt").read_text() + "iter_size: 3")
    thrice = planned("--solver", "solver.prototxt", "--curve")["curves"][0]
    assert (once["images"], thrice["images"]) == (4, 12)
    assert 2.5 < thrice["points"][0]["step_seconds"] / once["points"][0]["step_seconds"] <= 3.1


def test_a_net_that_cannot_shrink(capsys: pytest.CaptureFixture[str]) -> None:
    [curve] = planned("--model", "fixed.prototxt", "--phase", "TRAIN", "--curve", "--html", "plan.html")["curves"]
    assert len(curve["points"]) == 1 and "no smaller memory is possible" in capsys.readouterr().out
    assert planned("--model", "fixed.prototxt", "--phase", "TRAIN", "--max-slowdown", "50%")["total_bytes"] == curve["points"][0]["total_bytes"]
    assert "no smaller memory takes at most 50 % more time, so that there is no memory limit" in capsys.readouterr().out


def test_the_device_of_the_flags_is_meant(device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--solver", "solver.prototxt", "--curve", "--device", device.number]) == 0
    assert re.search(r"times are predicted for '.+' with its measured speeds", capsys.readouterr().out)


def test_values_in_the_hosts_memory_have_a_column() -> None:
    rates = Rates(to_host=1e12, from_host=1e12)
    target = Target(kind="gpu", unified_memory=False, rates=rates)
    nets = solver_to_plan(deep_solver(8), read_net, NetOptions(recompute="cheap"))
    points = trace(nets.plans(Machine(target, rates, "a GPU")))
    assert points[0].host_bytes == 0 < points[-1].host_bytes
    assert "host" in next(table(Curve("batch 4", 4, points))).split()


def test_the_largest_slowdown(capsys: pytest.CaptureFixture[str]) -> None:
    points = planned("--solver", "solver.prototxt", "--curve")["curves"][0]["points"]
    capsys.readouterr()
    sizes = []
    for percent in (0, 8, 1000):
        found = planned("--solver", "solver.prototxt", f"--max-slowdown={percent}%")
        said = re.search(r"memory limit (\w+): predicted (-?[\d.]+) % more time, .* instead of", text := capsys.readouterr().out)
        sizes.append(found["total_bytes"])
        if said is None:
            assert "so that there is no memory limit" in text and found["total_bytes"] == points[0]["total_bytes"]
        else:
            assert float(said[2]) <= percent + 0.05
            assert planned("--solver", "solver.prototxt", "--memory-limit", said[1])["total_bytes"] == found["total_bytes"]
            capsys.readouterr()
        within = [point["total_bytes"] for point in points if point["slowdown"] <= percent / 100]
        assert found["total_bytes"] <= 1.05 * min(within)
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] < sizes[0]


WRONG = {
    "nan": "--max-slowdown is 'nan', which is not a share of at least 0%\n  fix: give a number with %, such as --max-slowdown 10%",
    "-5%": "--max-slowdown is '-5%', which is not a share of at least 0%\n  fix: give a number with %, such as --max-slowdown 10%",
    "abc": "--max-slowdown is 'abc', which is not",
    "inf%": "--max-slowdown is 'inf%', which is not",
    "1e9%": "--max-slowdown is '1e9%', which is not",
    " ": "--max-slowdown is '', which is not",
    "9" * 5000 + "%": "9...', which is not a share",
    "%": "--max-slowdown is '%', which is not",
    "10": "--max-slowdown is '10', which is not a share of at least 0%\n  fix: --max-slowdown 10%",
}


@pytest.mark.parametrize("command", [
    ["plan", "--solver", "solver.prototxt"], ["train", "--solver", "solver.prototxt"], ["sweep", "solver.prototxt", "--set", "base_lr=1,2"],
    ["new", "lenet", "--data", "photos", "--out", "out"], ["fit", "photos", "--out", "out"],
], ids=lambda command: command[0])  # fmt: skip
def test_wrong_slowdowns(command: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    write_folders(pathlib.Path("photos"), 4, classes=2)
    before = sorted(pathlib.Path(".").rglob("*"))
    for text, fact in WRONG.items():
        assert main([*command, f"--max-slowdown={text}"]) == 1
        assert fact in capfd.readouterr().err
    if command[0] in ("plan", "train"):
        assert main([*command, "--max-slowdown", "5%", "--memory-limit", "1G"]) == 1
        assert "--max-slowdown 5% chooses a memory limit, and --memory-limit 1G is given too\n  fix: leave out" in capfd.readouterr().err
        assert main([*command, "--max-slowdown", "5%", "--recompute", "none"]) == 1
        assert "--recompute none no plan can take less memory" in capfd.readouterr().err
    assert sorted(pathlib.Path(".").rglob("*")) == before


@pytest.mark.parametrize(("flags", "fact"), [
    (["--curve", "--memory-limit", "1G"], "--curve shows the plans for all limits, and --memory-limit 1G is given too"),
    (["--curve", "--dump", "net"], "--curve and --dump are both given"),
    (["--batch", "2,4"], "--batch is 2,4, several sizes, and a plan has one\n  fix: --batch 2, or --curve to compare them"),
    (["--curve", "--batch", "2,0"], "--batch is '0'\n  fix: --batch with a whole number of at least 1"),
    (["--curve", "--batch", "2,"], "--batch is ''\n  fix: --batch with a whole number of at least 1"),
])  # fmt: skip
def test_flags_that_contradict_each_other(flags: list[str], fact: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--solver", "solver.prototxt", *flags]) == 1
    assert fact in capsys.readouterr().err


def test_training_within_a_slowdown(device: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """The training keeps the limit of the log. Its weights are those of a training without a limit, because it only recomputes."""
    weights = {}
    for name, flags in (("free", ["--recompute", "cheap"]), ("slow", ["--recompute", "cheap", "--max-slowdown", "8%"])):
        pathlib.Path(f"{name}.prototxt").write_text(
            pathlib.Path("solver.prototxt").read_text().replace("snapshot_after_train: false", f'snapshot_prefix: "{name}"')
        )
        assert main(["train", "--solver", f"{name}.prototxt", "--device", device.number, *flags]) == 0
        weights[name] = pathlib.Path(f"{name}_iter_10.caffemodel").read_bytes()
    log = capfd.readouterr().err
    assert weights["slow"] == weights["free"]
    limit = re.search(r"memory limit (\w+): predicted ([\d.]+) % more time, (.+) instead of (.+)", log)
    assert limit is not None and 0 < float(limit[2]) <= 8
    assert planned("--solver", "solver.prototxt", "--device", device.number, "--memory-limit", limit[1])["nets"][0]["pieces"] == 1


@pytest.mark.parametrize("flags", [[], ["--max-slowdown", "20%"]], ids=["sentence", "limit"])
def test_new_says_what_less_memory_costs(flags: list[str], device: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(planning, "PATIENCE", 60.0)
    monkeypatch.setattr(planning, "QUICK", 60.0)
    write_folders(pathlib.Path("photos"), 8, classes=2)
    command = ["new", "resnet20", "--data", "photos", "--size", "16", "--batch", "8", "--device", device.number]
    if not flags:
        assert main([*command, "--out", "small"]) == 0
        assert ("longer" in capsys.readouterr().out) != device.target.is_cpu  # so little memory is worth no sentence on a CPU
    monkeypatch.setattr(planning, "WORTH", 0)
    assert main([*command, "--out", "out", *flags]) == 0
    text = capsys.readouterr().out
    follow = text.splitlines()[-1].removeprefix("next: ocaffe ").split()
    if flags:
        said = re.search(r"memory limit (\w+): predicted ([\d.]+) % more time, .*, on '.*' with assumed speeds", text)
        assert said is not None and follow[-2:] == ["--memory-limit", said[1]] and float(said[2]) <= 20
    else:
        said = re.search(r"memory      with [\d.]+ \wiB this takes (-?[\d.]+) % longer, as predicted: add --max-slowdown 10%", text)
        assert said is not None and float(said[1]) <= 10 and "--memory-limit" not in text
    assert main(["plan", *follow[1:], "--device", device.number]) == 0  # the command that it prints has a plan on the device that it was chosen for


def test_nets_that_take_long_to_plan_have_no_sentence(monkeypatch: pytest.MonkeyPatch, device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(planning, "WORTH", 0)
    write_folders(pathlib.Path("photos"), 8, classes=2)
    for number, (name, value) in enumerate((("QUICK", 0.0), ("PATIENCE", 0.0))):
        with monkeypatch.context() as patch:
            patch.setattr(planning, "QUICK", 60.0)
            patch.setattr(planning, name, value)
            assert main(["new", "resnet20", "--data", "photos", "--size", "16", "--batch", "8", "--out", f"{number} out", "--device", device.number]) == 0
        assert f"ocaffe plan --solver '{number} out/solver.prototxt' --curve shows its time with less memory" in capsys.readouterr().out


def test_fit_within_a_slowdown(device: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    write_folders(pathlib.Path("photos"), 8, classes=2)
    command = ["fit", "photos", "--net", "resnet20", "--size", "16", "--iterations", "4", "--batch", "8", "--out", "out", "--device", device.number]
    assert main([*command, "--max-slowdown", "30%"]) == 0
    text = capsys.readouterr().out
    said = re.search(r"memory    limit (\w+): predicted ([\d.]+) % more time", text)
    assert said is not None and float(said[2]) <= 30
    assert f"memory limit {said[1]}: predicted" in pathlib.Path("out/train.log").read_text()
    assert "--max-slowdown 30% " in next(line for line in text.splitlines() if line.startswith("train on"))
