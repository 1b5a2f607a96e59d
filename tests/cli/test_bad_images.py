"""Images that cannot be read, in every command that reads images: the message names the image, and each flag that it advises is one of the command."""
from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cli import main
from ocaffe.cli.parsers import NESTED, parser_of
from tests.data.pictures import save
from tests.data.small_databases import image, png, write

NET = """
name: "net"
layer { name: "data" type: "TYPE" top: "data" top: "label" SOURCE }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
SOURCES = {  # by type of layer
    "ImageData": 'image_data_param { source: "photos" batch_size: 4 }',
    "Data": 'data_param { source: "db" backend: LMDB batch_size: 4 } transform_param { force_color: true }',
}
OF_NETS = {  # commands that run a net with a data layer
    "train": ["--solver", "solver.prototxt"],
    "test": ["--model", "net.prototxt", "--weights", "given.caffemodel", "--iterations", "1"],
    "time": ["--model", "net.prototxt", "--iterations", "1"],
    "compare": ["--model", "net.prototxt"],
    "extract_features": ["given.caffemodel", "net.prototxt", "ip", "features", "1", "lmdb"],
}
OF_DATA = {  # other commands that read images
    "dataset folder": ["photos", "out", "--test", "0"],
    "dataset show": ["photos"],
    "dataset show of a database": ["db"],
    "compute_image_mean": ["db"],
}
WITHOUT_DEVICE = ("dataset", "compute_image_mean")


@pytest.fixture
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder with four images in photos and in the database db. The second one cannot be read."""
    monkeypatch.chdir(tmp_path)
    for n in range(4):
        save(tmp_path / "photos" / "ab"[n == 3] / f"{n}.png", image(n))
    bad = (tmp_path / "photos" / "a" / "1.png").read_bytes()[:60]
    (tmp_path / "photos" / "a" / "1.png").write_bytes(bad)
    write(tmp_path / "db", [png(0), png(1).replace(b"IDAT", b"XXXX"), png(2), png(3)])
    (tmp_path / "solver.prototxt").write_text('net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 2 snapshot_after_train: false')
    return tmp_path


def flags_of(command: list[str]) -> set[str]:
    name, *rest = command
    nested = rest[:1] if rest and rest[0] in NESTED.get(name, ()) else []
    return {flag for action in parser_of(name, *nested)._actions for flag in action.option_strings}


def check(command: list[str], arguments: list[str], device: Any, capfd: pytest.CaptureFixture[str]) -> None:
    chosen = [] if command[0] in WITHOUT_DEVICE else ["--device", device.number]
    assert main([*command, *arguments, *chosen]) == 1
    said = capfd.readouterr().err.partition("error: ")[2]
    assert "1.png: it cannot be decoded" in said or "record 1 (key '00000001'): it cannot be decoded" in said, said
    advised = {flag.replace("_", "-") for flag in re.findall(r"--[a-z][\w-]*", said)}
    assert advised <= flags_of(command), said
    assert advised or "{ skip_bad_records: N }" in said or "make the database again" in said, said
    if flag := re.search(r"--(?:set )?skip.bad.records.\w+", said):  # the advice works
        assert main([*command, *arguments, *chosen, *flag[0].replace("N", "1").split()]) == 0


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("command", OF_NETS)
def test_commands_of_nets(here: pathlib.Path, command: str, source: str, device: Any, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "net.prototxt").write_text(NET.replace("TYPE", "Input").replace("SOURCE", "input_param { shape { dim: [4, 3, 6, 8] } shape { dim: 4 } }"))
    with Net("net.prototxt", proto.TEST, device=device) as net:
        net.save("given.caffemodel")
    (here / "net.prototxt").write_text(NET.replace("TYPE", source).replace("SOURCE", SOURCES[source]))
    check([command], OF_NETS[command], device, capfd)


@pytest.mark.parametrize("command", OF_DATA)
def test_commands_of_data(here: pathlib.Path, command: str, device: Any, capfd: pytest.CaptureFixture[str]) -> None:
    check(command.removesuffix(" of a database").split(), OF_DATA[command], device, capfd)
