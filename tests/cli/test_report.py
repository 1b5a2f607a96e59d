"""`ocaffe report`: each section survives the failures of the others, and nothing in the file names the user or the machine."""
from __future__ import annotations

import json
import os
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ocaffe.cl.device import Device
from ocaffe.cl.kernel_facts import kernel_facts, logged_spill, messages_about
from ocaffe.cl.program import ProgramKey, Programs
from ocaffe.cli import INTERRUPTED, main
from ocaffe.selftest import section
from ocaffe.selftest.privacy import Scrubber
from ocaffe.selftest.report import FORMAT, Report, merge, summary, system, text_of
from ocaffe.selftest.selftest import ending

# A process in the place of `python -m`, with the module and its argument. It does what bad drivers do.
CHILD = """
import json, os, sys, time
home = os.path.expanduser("~")
if sys.argv[1] == "ocaffe":
    print("Device id:      0:0, the default\\nName:           made up\\nRuntime library: " + home + "/drivers of mine/libmade.so (an icd file)")
    sys.exit()
name = json.loads(sys.argv[2])[0]
facts = {"work_group_limit": 64, "private_bytes": 8, "spill_bytes": 0, "logged_spill": 12, "defines": "", "log": ["12 bytes spill stores in " + home + "/a.cl"]}
kernel = {"kernel": "conv_gpu.forward", "launches": 2, "problem": "spills registers", "local": [256], **facts}
good = {"batch": 1, "ms": 1.5, "mib": 2, "launches": 3, "loss": 7.0, "kernels": [kernel]}
def say(**answer): print(json.dumps(answer), flush=True)
def crash():
    print("driver of alice on wonder-land: out of luck at " + home + "/x.cl:3", file=sys.stderr, flush=True)
    os.abort()
def hang():
    print("waiting", file=sys.stderr, flush=True)
    time.sleep(60)
net, _, phase = name.partition(" ")
if net == "rates":
    say(gflops=12.3456789)
if net == "alexnet": # hangs at once
    hang()
if net == "googlenet" and phase != "TEST": # crashes in TRAIN, after the compilers of both
    crash()
if net == "googlenet":
    say(phase="TEST", **good)
if net in ("lenet", "vgg16"):
    print("a line of the driver")
    for done in (1, 2):
        say(built=[done, 2])
if net == "lenet":
    say(phase="TEST", **good)
    crash()
if net == "vgg16":
    say(phase="TEST", word="does not fit", problem="the TEST net needs 600 MiB\\n  fix: less")
    hang()
"""


def made(nets: list[str], script: str = CHILD, timeout: float = 20.0, busy: list[str] | None = None) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return the content of a report, the lines on the terminal, and the sections in their order. `busy` gets the texts about the present section."""
    busy = [] if busy is None else busy
    lines: list[str] = []
    order: list[str] = []
    report = Report(None, None, None, 0, timeout, lines.append, lambda: order.append(list(report.content)[-1]), busy.append)
    report.command = [sys.executable, "-c", script]
    report.make(nets, [])
    return report.content, lines, order


@pytest.fixture
def alice(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """A user with a home folder, in which the process runs, and a host."""
    home = tmp_path / "Alice Liddell"
    home.mkdir()
    for name in ("USER", "LOGNAME", "USERNAME"):
        monkeypatch.setenv(name, "alice")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.setattr(socket, "gethostname", lambda: "wonder-land.example.org")
    monkeypatch.chdir(home)
    yield home


def test_bad_drivers_end_only_their_part() -> None:
    content, lines, order = made(["lenet", "vgg16", "alexnet", "googlenet"], timeout=1.5, busy=(busy := []))
    rows = {f"{row['net']} {row['phase']}": row for row in content["nets"]}
    assert rows["lenet TEST"]["ms"] == 1.5 and content["rates"]["gflops"] == 12.35
    assert rows["lenet TRAIN"]["word"] == "crashed" and rows["lenet TRAIN"]["problem"][0] == "its process ended with signal SIGABRT"
    assert rows["vgg16 TEST"]["word"] == "does not fit" and rows["vgg16 TEST"]["problem"] == ["the TEST net needs 600 MiB", "  fix: less"]
    assert rows["vgg16 TRAIN"]["word"] == "timed out" and rows["vgg16 TRAIN"]["problem"] == ["no result after 1.5 s", "waiting"]
    assert rows["alexnet TEST"]["word"] == rows["alexnet TRAIN"]["word"] == "timed out"
    assert rows["googlenet TEST"]["ms"] == 1.5 and rows["googlenet TRAIN"]["word"] == "crashed"  # in processes of their own
    assert busy[:4] == ["rates: begins", "lenet: begins", "lenet: compiled 1 of 2 programs", "lenet: compiled 2 of 2 programs"]
    assert order[:4] == ["system", "devices", "selftest", "rates"]  # each section is on disk before the next one begins
    assert content["devices"] == [{"Device id": "0:0, the default", "Name": "made up", "Runtime library": "<folder>/libmade.so (an icd file)"}]
    assert next(summary(content)) == (
        "sections without a result: lenet TRAIN (crashed), vgg16 TEST (does not fit), vgg16 TRAIN (timed out), alexnet TEST (timed out), "
        "alexnet TRAIN (timed out), googlenet TRAIN (crashed)"
    )
    assert content["complete"]
    assert list(summary(content))[1:] == ["kernels with a problem: 1 of 1", "  conv_gpu.forward spills registers"]
    assert any(line.startswith("vgg16 TEST") and "does not fit: the TEST net needs 600 MiB" in line for line in lines)


def test_without_a_device_the_report_tells_why() -> None:
    content, _, _ = made(["lenet"], "import sys; print('error: no OpenCL device\\n  fix: install one', file=sys.stderr); sys.exit(1)")
    assert content["devices"]["word"] == "failed" and content["devices"]["problem"] == ["error: no OpenCL device", "  fix: install one"]
    assert "nets" not in content and not content["complete"] and content["system"]["python"] and content["format"] == FORMAT
    assert next(iter(summary(content))) == "sections without a result: devices (failed)"


def test_nothing_names_the_user_or_the_machine(alice: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCAFFE_CACHE", str(alice / "cache"))
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{alice}/lib:/opt/of alice/lib")
    monkeypatch.setenv("OTHER_SECRET", "password")
    text = text_of(made(["lenet"])[0])
    for private in ("alice", "liddell", "wonder", "password", "drivers of mine", str(pathlib.Path.cwd().parent), sys.prefix):
        assert private.lower() not in text.lower(), private
    assert "libmade.so" in text and json.loads(text)["system"]["variables"]["OCAFFE_CACHE"] == "<folder>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/bob/my/kernel.cl:3:5: error: x", "<folder>/kernel.cl:3:5: error: x"),
        ("(/usr/lib/libMesaOpenCL.so.1, /etc/OpenCL/vendors/mesa.icd)", "(<folder>/libMesaOpenCL.so.1, <folder>/mesa.icd)"),
        ("cc '/opt/my own/a.c' -o /opt/b.o and c / d", "cc '<folder>/a.c' -o <folder>/b.o and c / d"),
        (r"C:\Users\bob\drv\intelocl64.dll: no", r"<folder>/intelocl64.dll: no"),
        (r"'D:\\builds\\bob\\x.cl'", "'<folder>/x.cl'"),
        (r"\\server\share\x.cl", "<folder>/x.cl"),
        ("a/b, 12 / 7, 8x8 /1, 3/4/5, I/O", "a/b, 12 / 7, 8x8 /1, 3/4/5, I/O"),
        ("x = a /b; // a comment / of / it", "x = a /b; // a comment / of / it"),
        ("see https://www.khronos.org/opencl/page", "see https://www.khronos.org/opencl/page"),
        ("ALICE@Wonder-Land said alicePlus", "<user>@<host> said alicePlus"),
        ("/tmp/pytest-of-alice/x", "<folder>"),  # x may be a folder
        ("/tmp/pytest-of-alice/x.log", "<folder>/x.log"),
        ("at /dev/null/ and /dev/null", "at <folder>/ and <folder>/null"),
        ("1.5 GFLOP/s, 3.0/4.5, and/or, docs/report.md, x/y/z", "1.5 GFLOP/s, 3.0/4.5, and/or, docs/report.md, x/y/z"),
    ],
)
def test_scrubbed(alice: pathlib.Path, text: str, expected: str) -> None:
    assert Scrubber().text(text) == expected


SPELLINGS = [
    "OCAFFE_CACHE ../acmesecret/cache", "./acmesecret/lib/x.so", "//nas/acmesecret/x.so", "file:///home/bob/acmesecret/x.cl:12", "file:/acmesecret/x.cl",
    "/data/bob's acmesecret/lib/n.so", "/opt/a,acmesecret/lib/c.so", "/mnt/proj(acmesecret)/lib/a.so", "/opt/(acmesecret)/lib/a.so", "/opt/a;acmesecret/b.so",
    "/opt/'acmesecret'/b.so", '/opt/x"acmesecret/b.so', "/opt/<acmesecret>/b.so", "/opt/a:acmesecret/b.so", "/opt/my\\ acmesecret/lib/x.so",
    "/opt/acmesecret", "OCAFFE_CACHE=/opt/acmesecret", "/opt/acmesecret/", "LD_LIBRARY_PATH=/usr/lib:/opt/acmesecret:/opt/acmesecret/lib",
    "~/acmesecret/x.so", "~bob/acmesecret/x.so", "$HOME/acmesecret/x.so", "${HOME}/acmesecret/x.so", "%USERPROFILE%\\acmesecret\\x.dll",
    r"..\acmesecret\x.dll", r"C:\acmesecret\x.dll", "C:/acmesecret/x.dll", r"\\nas\acmesecret\x.dll", r"C:\\acmesecret\\x.dll",
    r"\/opt\/acmesecret\/x.so",
    "%2Fopt%2Facmesecret%2Fx.so", "path=%2fopt%2facmesecret%2fx.so", "file%3A%2F%2F%2Fopt%2Facmesecret%2Fx.so", "C:%5Cacmesecret%5Cx.dll",
    "'my acmesecret/x.so'",
    "opt%2Facmesecret%2Fx.so", "acmesecret/lib/x.so", "build/acmesecret/kernel.cl:3:5: error",
    'File "acmesecret/tool.py", line 3, in f',
    '  File "/opt/acmesecret/tool.py", line 3, in f', "-I/opt/acmesecret/include/a.h", "-L/opt/acmesecret/lib", "/OPT/ACMESECRET/X.SO",
    "/opt//acmesecret//x.so",
    "/opt/../acmesecret/x.so", "/opt/acmesecret/x.so\n/opt/acmesecret/y.so", "(/opt/acmesecret/x.so)", "</opt/acmesecret/x.so>", "[/opt/acmesecret/x.so]",
    "'/opt/acmesecret/my file.so'", "a=/opt/acmesecret/x.so,b=/opt/acmesecret/y.so", "/opt/\nacmesecret/x.so",
    "see /opt/acmesecret/b and /opt/acmesecret/c.so",
]  # fmt: skip


@pytest.mark.parametrize("text", SPELLINGS)
def test_no_folder_in_any_spelling(alice: pathlib.Path, text: str) -> None:
    assert "acmesecret" not in Scrubber().text(text).lower()
    assert "acmesecret" not in json.dumps(Scrubber().value({"variables": [text, {"x": text.split("\n")}]})).lower()


@pytest.mark.parametrize("divided", ["{home}", "{home}/lib/x.so", "{link}/x.so", "file://{home}/x.so"])
def test_a_known_folder_in_any_spelling(divided: str, alice: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "acme secret"
    home.mkdir()
    (tmp_path / "mylink").symlink_to(home)
    monkeypatch.setenv("HOME", str(tmp_path / "mylink"))
    scrubber = Scrubber()
    text = divided.format(home=home, link=tmp_path / "mylink")
    for spelt in (
        text, text.upper(), text.replace("/", "\\"), text.replace("/", "\\\\"), text.replace(" ", "\\ "), text.replace(" ", "%20"),
        text.replace("/", "%2F").replace(" ", "%20"), text.replace("acme", "ac\n  me"), text.replace("acme", "ac\\\nme"), text.replace("/", "/\n"),
    ):  # fmt: skip
        found = scrubber.text(spelt).lower()
        assert "acme" not in found.replace("\n", "") and "secret" not in found and "mylink" not in found, (spelt, found)


def test_a_folder_without_a_slash_in_a_variable(alice: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCAFFE_CACHE", "acmesecret")
    monkeypatch.setenv("LD_LIBRARY_PATH", "acmesecret:/opt/acmesecret")
    monkeypatch.setenv("OCAFFE_TUNED", "off")
    found = made(["lenet"])[0]["system"]["variables"]
    assert (found["OCAFFE_CACHE"], found["LD_LIBRARY_PATH"], found["OCAFFE_TUNED"]) == ("<folder>", "<folder>:<folder>", "off")


@pytest.mark.parametrize("part", ["/", "\\", "%2F", "/a b", "a'", "\\ ", "~/", "/\n", "a%2F", "$a/"])
def test_a_long_text_takes_no_long_time(part: str) -> None:
    begin = time.monotonic()
    Scrubber().text(part * 10000)
    assert time.monotonic() - begin < 10


def test_a_home_with_spaces_and_the_slashes_of_windows(alice: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = r"C:\Users\Alice Liddell"
    monkeypatch.setattr(os.path, "expanduser", lambda path: home)
    scrubber = Scrubber()
    for text in (home + r"\my\x.cl", home.replace("\\", "\\\\") + r"\\x.cl", home.replace("\\", "/") + "/x.cl", home.lower() + r"\x.cl"):
        assert scrubber.text(text) == "<folder>/x.cl"
    assert scrubber.text(home) == "<folder>"


def test_a_host_of_one_letter_does_not_spoil_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "a")
    assert Scrubber().text("a device") == "a device"


def test_the_file_has_a_line_for_each_row() -> None:
    content, _, _ = made(["lenet"])
    text = text_of(content)
    assert json.loads(text) == content
    assert sum(line.startswith('  {"net"') for line in text.splitlines()) == 2


def test_kernels_of_several_sections_are_merged() -> None:
    row = {"kernel": "gemm_gpu.gemm", "launches": 2, "problem": "", "log": []}
    kernels: dict[str, Any] = {}
    merge(kernels, "lenet TEST", [row, {**row, "private_bytes": 8}])
    merge(kernels, "lenet TRAIN", [row, row])
    assert [found["launches"] for found in kernels.values()] == [{"lenet TEST": 2, "lenet TRAIN": 4}, {"lenet TEST": 2}]


def test_wrong_nets_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--nets", "lenet,resnet81"]) == 1
    assert "--nets has 'resnet81'" in (said := capsys.readouterr().err) and "did you mean resnet18?" in said


# -- the sections on a device -----------------------------------------------------------------------------------------------


def test_a_net_on_a_device(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(section, "PASSES", 2)
    monkeypatch.setenv("OCAFFE_CL_LOG", "1")
    test, train = section.measured("lenet", device, 0)
    assert (test["phase"], train["phase"]) == section.PHASES and "loss" not in test and 0 < train["loss"] < 10 and train["mib"] > 3
    for found in (test, train):
        assert found["passes"] == 2 and found["ms"] >= found["fastest_ms"] > 0
        assert sum(row["launches"] for row in found["kernels"]) <= found["launches"]
        assert all(row["work_group_limit"] >= 1 for row in found["kernels"])


def test_a_net_that_does_not_fit(device: Device) -> None:
    (answer,) = section.measured("lenet TRAIN", device, 1 << 20)
    assert answer["phase"] == "TRAIN" and answer["word"] == "does not fit" and "1.0 MiB are allowed" in answer["problem"]


def test_a_failure_of_the_device() -> None:
    assert section.failure(ZeroDivisionError("no")) == {"word": "failed", "problem": "ZeroDivisionError: no"}


def test_a_whole_report(device: Device, tmp_path: pathlib.Path) -> None:
    """The real processes, without nets and with one family of the self-test."""
    lines: list[str] = []
    report = Report(device.number, None, "gpu", 0, 120.0, lines.append, lambda: None)
    report.make([], ["argmax"])
    content = report.content
    assert any(found["Device id"].startswith(device.number) for found in content["devices"])
    assert content["kind"] == "gpu" and content["selftest"]["passed"] == 1 and device.name in content["selftest"]["device"]
    assert content["rates"]["gflops"] > 0 and content["rates"]["launch_us"] > 0


def test_an_interruption_keeps_the_sections_so_far(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(self: Report, nets: list[str]) -> None:
        self._add("system", system())
        raise KeyboardInterrupt

    monkeypatch.setattr(Report, "make", interrupted)
    file = tmp_path / "report.json"
    assert main(["report", "--output", str(file)]) == INTERRUPTED
    content = json.loads(file.read_text())
    assert content["system"]["python"] and not content["complete"]
    assert "with the sections until the interruption" in capsys.readouterr().out


def test_the_command_writes_its_file(tmp_path: pathlib.Path) -> None:
    """No runtime is found in an empty folder of runtimes: the file tells it."""
    file = tmp_path / "report.json"
    environment = {**os.environ, "OCL_ICD_VENDORS": str(tmp_path / "none")}
    root = pathlib.Path(section.__file__).parents[2]
    run = subprocess.run([sys.executable, "-m", "ocaffe", "report", "--output", file], env=environment, capture_output=True, text=True, cwd=root)
    assert run.returncode == 0, run.stderr
    assert "no OpenCL device" in json.loads(file.read_text())["devices"]["problem"][0]
    assert "Read it, then attach it to an issue" in run.stdout


# -- messages of compilers -----------------------------------------------------------------------------------------------

PTXAS = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'pack' for 'sm_90'
ptxas info    : Function properties for pack
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 30 registers
ptxas info    : Compiling entry function 'pack_all' for 'sm_90'
    24 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
"""
IGC = "warning: kernel 'pack': compiled SIMD8 allocated 128 regs and spilled around 377\nwarning: kernel 'pack_all': compiled SIMD32"


class Built:
    kernel_names = "pack;pack_all"


@pytest.mark.parametrize(
    ("log", "function", "spill", "lines"), [(PTXAS, "pack", 0, 5), (PTXAS, "pack_all", 12, 3), (IGC, "pack", 377, 1), (IGC, "pack_all", 0, 1)]
)
def test_spills_of_a_function(log: str, function: str, spill: int, lines: int) -> None:
    found = messages_about(log, Built, function)
    assert len(found) == lines and logged_spill(found) == spill


def test_facts_of_a_kernel(device: Device) -> None:
    key = ProgramKey("kernel __attribute__((reqd_work_group_size(4, 1, 1))) void one(global float* x) { local float y[8]; y[get_local_id(0)] = x[0]; "
                     "barrier(CLK_LOCAL_MEM_FENCE); x[1] = y[3 - get_local_id(0)]; }\n")  # fmt: skip
    facts = kernel_facts(device, Programs(device).build_all([key])[key], "one")
    assert facts["work_group_limit"] >= 4 and facts["local_bytes"] >= 32


def test_problems_of_a_kernel() -> None:
    fine = {"work_group_limit": 256, "private_bytes": 8, "spill_bytes": 0, "logged_spill": 0}
    assert section.problem_of(fine, 256, is_cpu=True) == "" and section.problem_of(fine, 256, is_cpu=False) == "has private memory"
    assert section.problem_of({**fine, "spill_bytes": 4}, 512, is_cpu=True) == "spills registers, is launched with 512 work-items, and 256 are allowed"


@pytest.mark.parametrize(("status", "text"), [(-11, "signal SIGSEGV"), (3, "exit status 3"), (0xC0000005, "exit status 0xc0000005")])
def test_endings(status: int, text: str) -> None:
    assert ending(status) == text
