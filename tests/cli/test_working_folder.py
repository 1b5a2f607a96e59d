"""Every command in a working directory that no longer exists: absolute names work, and an error says what is missing."""
from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

from ocaffe.cli import COMMANDS, GROUPS, main
from ocaffe.cli.dataset import COMMANDS as DATA
from ocaffe.cli.dataset import FORMATS
from ocaffe.support import cache
from ocaffe.support.here import GONE, REMEDY, absolute, here, working_folder

pytestmark = [pytest.mark.quick, pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps the folder of a program")]

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = """import json, os, sys, traceback
os.rmdir(os.getcwd())
from ocaffe.__main__ import main
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    try:
        status = main()
    except BaseException:
        traceback.print_exc()
        status = -1
    print("STATUS", status, file=sys.stderr)
"""
# Arguments of each command that end with an error. NO is a file or folder that does not exist, OUT a name to write.
CALLS: dict[str, list[str]] = {
    "fit": ["NO --out OUT"],
    "predict": ["NO NO.png", "--model NO --weights NO NO.png"],
    "new": ["lenet --data NO --out OUT", "NO --out OUT"],
    "zoo": ["get none --to OUT"],
    "train": ["--solver NO"],
    "test": ["--model NO --weights NO"],
    "time": ["--model NO"],
    "device_query": ["--none"],
    "plan": ["--model NO"],
    "summary": ["NO"],
    "lint": ["NO"],
    "plot": ["NO --output OUT.svg"],
    "layers": ["none"],
    "compare": ["--model NO"],
    "sweep": ["NO --out OUT --set base_lr=1,2"],
    "tune": ["--model NO"],
    "selftest": ["--none"],
    "report": ["--nets none --output NO/OUT"],
    "convert": ["NO.prototxt NO.caffemodel OUT.onnx", "NO.onnx OUT.prototxt OUT.caffemodel", "NO.caffemodel OUT.h5", "--summary NO"],
    "quantize": ["NO NO --out OUT"],
    "dataset": ["mnist OUT --from NO", "anchors NO", "folder NO OUT", "proposals NO OUT --model NO", "masks NO NO OUT", "shapes OUT --images 0",
                "show NO --out OUT.png", "text OUT --images 0", *(f"{name} NO OUT" for name in FORMATS)],
    "convert_imageset": ["NO/ NO OUT"],
    "convert_annoset": ["NO/ NO OUT"],
    "create_label_map": ["NO OUT"],
    "compute_image_mean": ["NO OUT"],
    "extract_features": ["NO NO a OUT 1 lmdb"],
    "upgrade_net_proto_text": ["NO OUT"],
    "upgrade_net_proto_binary": ["NO OUT"],
    "upgrade_solver_proto_text": ["NO OUT"],
    "classify": ["NO OUT --mean_file= --model_def NO --pretrained_model NO"],
    "detect": ["NO OUT --crop_mode list --mean_file= --model_def NO --pretrained_model NO"],
    "draw_net": ["NO OUT.svg"],
    "parse_log": ["NO OUT"],
    "install-links": ["/dev/null/links"],
    "completion": ["none"],
}  # fmt: skip


def called(folder: pathlib.Path, *calls: list[str], **variables: str) -> list[tuple[int, str]]:
    """Run `ocaffe` with each list of arguments, in a subfolder of `folder` that is removed before. Return the status and the text on stderr of each."""
    gone = folder / "gone"
    gone.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-c", PROGRAM, json.dumps(calls)]
    done = subprocess.run(command, cwd=gone, env=environment, capture_output=True, text=True, errors="surrogateescape", timeout=300)
    assert done.returncode == 0 and not gone.exists(), done.stderr
    *texts, _ = done.stderr.split("STATUS ")
    statuses = [int(part.split()[0]) for part in done.stderr.split("STATUS ")[1:]]
    assert len(statuses) == len(calls)
    return list(zip(statuses, texts))


def test_every_command_is_called() -> None:
    assert CALLS.keys() == COMMANDS.keys()
    assert {call.split()[0] for call in CALLS["dataset"]} == {"mnist", *DATA, *FORMATS}


@pytest.mark.parametrize("group", GROUPS)
def test_an_error_names_the_folder(group: str, tmp_path: pathlib.Path) -> None:
    """The files have absolute names, then relative ones."""
    calls = [
        [command, *(word.replace("NO", f"{begin}no").replace("OUT", f"{begin}out") for word in text.split(" "))]
        for command in GROUPS[group] for text in CALLS[command] for begin in (f"{tmp_path}/", "")
    ]  # fmt: skip
    for call, (status, told) in zip(calls, called(tmp_path, *calls)):
        assert status == 1 and "Traceback" not in told, (call, told)
        assert "error: " in told and "fix: " in told and GONE in told and REMEDY in told, (call, told)
    assert not list(tmp_path.iterdir())


def test_absolute_names_work(tmp_path: pathlib.Path) -> None:
    """Also with relative folders in variables, and with errors in an own list of images."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "list.txt").write_text("none.png 0\n")
    (out / "net.prototxt").write_text(
        'layer { name: "d" type: "ImageData" top: "d" top: "l" image_data_param { source: "' + str(out / "list.txt") + '" batch_size: 1 root_folder: "some" } }'
    )
    calls = [["report", "--nets", "none", "--timeout", "0.5", "--output", f"{out}/report.json", "--debug"], ["new", "lenet", "--out", f"{out}/lenet"],
             ["summary", f"{out}/lenet/deploy.prototxt"], ["install-links", f"{out}/links"], ["draw_net", f"{out}/lenet/deploy.prototxt", f"{out}/n.svg"],
             ["lint", f"{out}/lenet/deploy.prototxt"]]  # fmt: skip
    path = os.pathsep.join(("", "bin", os.environ.get("PATH", "")))
    for call, (status, told) in zip(calls, called(tmp_path, *calls, PATH=path, GLOG_log_dir="logs")):
        assert status == 0 and "Traceback" not in told, (call, told)
    assert json.loads((out / "report.json").read_text()) and (out / "n.svg").stat().st_size > 1000
    ((status, told),) = called(tmp_path, ["report", "--nets", "none", "--output", f"{out}/again.json"], TMPDIR="temporary")
    assert status == 1 and "error: " in told and GONE in told and "Traceback" not in told
    ((status, told),) = called(tmp_path, ["report", "--nets", "none", "--timeout", "0.5", "--output", f"{out}/home.json", "--debug"], HOME="relative")
    assert status == 0, told
    ((status, told),) = called(tmp_path, ["time", "--model", f"{out}/net.prototxt", "--iterations", "1"])
    assert status == 1 and "list.txt, line 1" in told and GONE in told and "Traceback" not in told


def test_the_text_of_errors(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    assert working_folder() == here() == str(gone) and absolute("a/../b") == f"{gone}/b"
    gone.rmdir()
    assert working_folder() is None and "no longer exists" in here()
    monkeypatch.setenv("OCAFFE_CACHE", "cache")
    cache._root.cache_clear()
    assert cache.cache_root() is None
    assert absolute("a/../b") == "b" and absolute("/a/../b") == "/b"


def test_without_a_folder_for_temporary_files(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`tempfile` raises an error without a file name then, as if the working directory were gone."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "none")])
    assert main(["report", "--nets", "none", "--output", str(tmp_path / "report.json")]) == 1
    told = capsys.readouterr().err
    assert "no folder for temporary files" in told and "TMPDIR" in told and GONE not in told and "Traceback" not in told
