"""The upgrade tools, compared with the output of Caffe's tools for the same old files."""
from __future__ import annotations

import pathlib
from typing import Any

import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.cli import main
from ocaffe.formats.binary import read_net_binary
from ocaffe.formats.text import write_text

pytestmark = pytest.mark.quick

UPGRADE = pathlib.Path(__file__).resolve().parents[1] / "golden" / "upgrade"
OLD = sorted(path.stem for path in UPGRADE.glob("*.prototxt") if (UPGRADE / f"{path.stem}.upgraded.prototxt").exists())


def parsed(path: pathlib.Path, kind: Any) -> str:
    return write_text(text_format.Parse(path.read_text(), kind()))


@pytest.mark.parametrize("name", OLD)
def test_text(name: str, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    command, kind = ("upgrade_solver_proto_text", proto.SolverParameter) if name.startswith("solver") else ("upgrade_net_proto_text", proto.NetParameter)
    out = tmp_path / "new.prototxt"
    assert main([command, str(UPGRADE / f"{name}.prototxt"), str(out)]) == 0
    assert parsed(out, kind) == parsed(UPGRADE / f"{name}.upgraded.prototxt", kind)
    assert f"to {out}" in capfd.readouterr().err
    content = out.read_bytes()
    assert main([command, str(out), str(out)]) == 0  # overwrite the input
    assert out.read_bytes() == content and "already in latest proto format" in capfd.readouterr().err


def test_binary(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "new.caffemodel"
    assert main(["upgrade_net_proto_binary", str(UPGRADE / "v1_weights.caffemodel"), str(out)]) == 0
    found, expected = (read_net_binary(path) for path in (out, UPGRADE / "v1_weights.upgraded.caffemodel"))
    for net in (found, expected):
        net.ClearField("source_file")
    assert found == expected


@pytest.mark.parametrize("command", ["upgrade_net_proto_text", "upgrade_net_proto_binary", "upgrade_solver_proto_text"])
def test_refused(command: str, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A file of another kind is refused, and the existing output file is kept."""
    bad, out = tmp_path / "bad", tmp_path / "out"
    bad.write_bytes(b"\x0a\xff\xff" if command.endswith("binary") else b"layer { nonsense }")
    out.write_text("kept")
    for arguments, told in (([str(bad), str(out)], str(bad)), ([str(tmp_path / "none"), str(out)], "none"), ([str(bad)], "OUT")):
        assert main([command, *arguments]) == 1
        assert told in capfd.readouterr().err and out.read_text() == "kept"
