"""`ocaffe time --profile` and `ocaffe tune`: their output and files. Times are not tested."""
from __future__ import annotations

import json
import pathlib
import re
from typing import Any
from xml.etree import ElementTree

import pytest

import ocaffe as caffe
from ocaffe.cl import tuned_tables
from ocaffe.cl.device import Device, with_kind
from ocaffe.cl.peaks import Peaks
from ocaffe.cli import main, tune
from ocaffe.formats.state import read_state
from ocaffe.ir.target import Target
from ocaffe.kernels.matmul import families, gemm_gpu
from ocaffe.profiling import family_row
from tests.api.nets import net as net_of

NET = """
name: "tiny <net>"
layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {
  shape { dim: 4 dim: 3 dim: 8 dim: 8 } shape { dim: 4 } data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 1 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 6 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "a<b" type: "Convolution" bottom: "conv" top: "b" convolution_param { num_output: 5 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "b" top: "b" }
layer { name: "ip" type: "InnerProduct" bottom: "b" top: "ip" inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
SOLVER = 'net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 max_iter: 4 snapshot: 2 snapshot_prefix: "tiny" random_seed: 3 display: 1'
CONV, B, IP = 2 * 4 * 6 * 64 * 27, 2 * 4 * 5 * 36 * 54, 2 * 4 * 3 * 180  # floating-point operations of forward


@pytest.fixture(autouse=True)
def workplace(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pathlib.Path(tmp_path / "net.prototxt").write_text(NET)
    pathlib.Path(tmp_path / "solver.prototxt").write_text(SOLVER)
    monkeypatch.chdir(tmp_path)


def profiled(device: Device, *flags: str) -> dict[str, Any]:
    assert main(["time", *flags, "--profile", "--iterations=2", "--json=p.json", "--html=p.html", f"--device={device.number}"]) == 0
    return dict(json.loads(pathlib.Path("p.json").read_text()))


def flops(record: dict[str, Any], *phases: str) -> int:
    return sum(launch["flops"] for launch in record["launches"] if launch["phase"] in phases)


def test_profile_of_a_training(device: Device, capfd: pytest.CaptureFixture[str]) -> None:
    record = profiled(device, "--solver=solver.prototxt")
    assert flops(record, "forward") == CONV + B + IP and flops(record, "backward") == CONV + 2 * (B + IP), "no gradient of data"
    assert {launch["phase"] for launch in record["launches"]} >= {"forward", "backward", "update"}
    assert all(launch["ms"] > 0 and launch["bytes"] > 0 for launch in record["launches"])
    for launch in record["launches"]:
        best = 1e3 * max(launch["flops"] / record["peaks"]["gflops"], launch["bytes"] / record["peaks"]["gbytes"]) * 1e-9
        assert launch["of_peak"] == pytest.approx(best / launch["ms"])
    assert record["device_ms"] == pytest.approx(sum(record[f"{part}_ms"] for part in ("forward", "backward", "update")))
    assert [layer["name"] for layer in record["layers"]] == ["data", "conv", "a<b", "relu", "ip", "loss"]
    out = capfd.readouterr()
    assert "measured peaks: " in out.out and "update.update" in out.out and "Benchmark begins" not in out.err
    assert not list(pathlib.Path().glob("tiny*")), "nothing is written"


def test_profile_of_a_net_as_a_page(device: Device) -> None:
    record = profiled(device, "--model=net.prototxt", "--phase=TEST")
    assert flops(record, "forward") == CONV + B + IP and {launch["phase"] for launch in record["launches"]} == {"forward"}
    text = pathlib.Path("p.html").read_text()
    assert "<script" not in text and "http" not in text and "prefers-color-scheme: dark" in text
    pictures = [ElementTree.fromstring(each) for each in re.findall(r"<svg.*?</svg>", text, re.S)]
    assert len(pictures) == 2
    skyline, roofline = pictures
    count = len(record["launches"])
    assert len(skyline.findall("g")) == count
    assert len(roofline.findall("circle")) == sum(launch["kind"] not in ("transfer", "host") for launch in record["launches"])
    titles = [title.text or "" for title in roofline.iter("title")]
    assert any(title.startswith("a<b, forward\n") for title in titles) and all("of peak" in title for title in titles)
    rows = re.findall(r"<tr><td.*?</tr>", text.split("<h2>Launches</h2>")[1].split("<details>")[0])
    times = [float(re.findall(r"<td class=\"\">([\d.]+)</td>", row)[0]) for row in rows]
    assert len(rows) == count and times == sorted(times, reverse=True)
    for picture in pictures:
        width, height = (float(number) for number in picture.attrib["viewBox"].split()[2:])
        for shape in picture.iter():
            for name, most in (("x", width), ("y", height), ("cx", width), ("cy", height), ("x2", width), ("y2", height)):
                assert 0 <= float(shape.attrib.get(name, 0)) <= most + 1, ElementTree.tostring(shape)


def test_profile_of_a_python_net_is_the_same(device: Device) -> None:
    with net_of(device, NET, caffe.TRAIN) as net:
        profile = net.profile(2)
        assert sum(launch.flops for launch in profile.launches if launch.phase == "forward") == CONV + B + IP
        assert profile.backward_ms > 0 and profile.peaks.gflops > 0
        assert profile.forward_ms == pytest.approx(sum(layer.forward_ms for layer in profile.layers))
        assert "measured peaks" in str(profile) and "a<b" in str(profile)
        with pytest.raises(caffe.Error, match="over 0 iterations"):
            net.profile(0)


def test_what_cannot_be_profiled(device: Device, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["time", "--profile", "--model=net.prototxt", "--solver=solver.prototxt", f"--device={device.number}"]) == 1
    assert "--model and --solver are both given" in capfd.readouterr().err
    assert main(["time", "--profile", f"--device={device.number}"]) == 1
    assert "the model is missing" in capfd.readouterr().err


def test_tune(device: Device, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned_tables, "part", lambda name: tmp_path / name)
    monkeypatch.setattr(tuned_tables, "_shipped_files", list)
    spec = f"--device={device.number}"
    assert main(["tune", "--model=net.prototxt", spec]) == 0
    out = capfd.readouterr().out
    path = tuned_tables.user_file(device.target)
    assert path is not None and str(path) in out and path.exists()
    measured = re.findall(r"^ *\d+ %  (\w+ .*) fp32: ", out, re.M)
    assert measured and f"{len(measured)} measured" in out
    path.write_text(tuned_tables.table({}, {"gemm 1x2x3x0x0 fp32": "other"}))
    assert main(["tune", "--list", spec]) == 0
    assert f"gemm 1x2x3x0x0 fp32: other\n1 of {path} (" in capfd.readouterr().out
    assert main(["tune", "--model=net.prototxt", spec]) == 0
    assert "gemm 1x2x3x0x0 fp32" in path.read_text(), "what was not measured stays"
    capfd.readouterr()
    report = tmp_path / "tuned_mine.json"
    assert main(["tune", "--report", f"--output={report}", spec]) == 0
    assert f"{len(measured)} measured problems" in capfd.readouterr().out
    written = json.loads(report.read_text())
    assert written["about"]["driver"] == device.driver_version and all(" ms " in text for text in written["measured"].values())
    monkeypatch.setattr(tuned_tables, "_shipped_files", lambda: [("mine.json", tuned_tables.parse(report.read_text(), "mine.json"))])
    assert tuned_tables.shipped(device.target) == [("mine.json", tuned_tables.read(path))], "ocaffe can ship the file as it is"
    monkeypatch.setattr(tuned_tables, "_shipped_files", list)
    path.write_text("{")
    assert main(["tune", "--list", spec]) == 1
    assert f"{path}:1" in capfd.readouterr().err
    assert main(["tune", "--reset", spec]) == 0
    assert not path.exists() and str(path) in capfd.readouterr().out
    assert main(["tune", "--reset", spec]) == 0
    assert "you have no table" in capfd.readouterr().out
    assert main(["tune", "--report", spec]) == 1
    assert "run `ocaffe tune` first" in capfd.readouterr().err


ROW = """\
    # gfx1101:xnack-: 30 units at 2 GHz, by its driver. Measured: 30000 GFLOP/s, a copy 480 GB/s, a launch 6.2 us. Otherwise as RDNA 3.
    Family('gfx1101', AMD, r"^gfx1101", WAVES_OF_32, unroll=2, registers=196608, extra_registers=80, local_memory=131072, local_floats=64, memory_floats=2.0,
           launch=12000, matrix=512, matrix_registers=150),
"""


@pytest.mark.parametrize(
    ("runtime", "name", "units", "lanes"),
    [
        ("amd", "gfx1101:xnack-", 30, 128), ("intel", "Intel(R) Arc(TM) B570 Graphics", 144, 128), ("arm", "Mali-G610 r0p0", 4, 1875),
        ("nvidia", "Card 5", 30, 128),
    ],
)
def test_a_row_of_the_table_of_families(runtime: str, name: str, units: int, lanes: int) -> None:
    target = Target(kind="gpu", runtime=runtime, name=name, compute_units=units)
    found = family_row.Measured(Peaks(30000, 480), 6.2e-6, 2000)
    text = family_row.text(target, found)
    assert runtime != "amd" or text == ROW
    assert max(map(len, text.splitlines())) <= 160
    (row,) = eval(f"[\n{text}]", vars(families))  # as pasted into the table
    assert row == family_row.row(target, found)
    assert re.match(f"(?:{row.runtime})$", runtime) and re.search(row.device, name, re.IGNORECASE) and not re.search(row.device, f"other {name}")
    assert (row.lanes, row.launch) == (lanes, 12000) and row.tiles is families.family_of(target).tiles
    assert row.memory_floats == pytest.approx(480e9 / 4 / 2e9 / gemm_gpu.units(target), rel=0.03)


def test_a_report_of_a_gpu_has_its_row(device: Device, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCAFFE_CACHE", str(tmp_path))
    monkeypatch.setattr(tuned_tables, "_shipped_files", list)
    info = with_kind(device.info, "gpu")
    path = tuned_tables.user_file(info.target)
    assert path is not None
    path.parent.mkdir(exist_ok=True)
    path.write_text(tuned_tables.table({}, {"gemm 1x2x3x0x0 fp32": "other"}))
    tune._report(info, str(tmp_path / "mine.json"))
    family = json.loads((tmp_path / "mine.json").read_text())["family"]
    assert family["of"] == "unknown" and family["launch_us"] > 0 and family["gflops"] > 0 and family["copy_gbytes"] > 0
    assert "\n".join(family["row"]) in capfd.readouterr().out
    (row,) = eval("[\n" + "\n".join(family["row"]) + "]", vars(families))
    assert re.search(row.device, device.name)


def test_training_says_which_choices_it_has(device: Device, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = pathlib.Path("choices.json")
    path.write_text(tuned_tables.table({}, {"gemm 1x2x3x0x0 fp32": "other"}))
    monkeypatch.setenv("OCAFFE_TUNED", str(path))
    flags = ["train", "--solver=solver.prototxt", f"--device={device.number}"]
    assert main(flags) == 0
    said = re.search(r"Tuned choices of kernels: 1 of choices.json \((\w{12})\)", capfd.readouterr().err)
    assert said
    kernels = json.loads(read_state("tiny_iter_2.solverstate").choices)
    assert kernels == {"device": device.name, "math": "fp32", "tuned": said[1]}
    resumed = [*flags, "--snapshot=tiny_iter_2.solverstate"]
    assert main(resumed) == 0
    assert "other kernels" not in capfd.readouterr().err
    monkeypatch.setenv("OCAFFE_TUNED", "off")
    assert main(resumed) == 0
    assert "the snapshot was made with other kernels" in capfd.readouterr().err
