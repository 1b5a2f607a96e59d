"""Old formats: compared with the output of Caffe's upgrade tools in golden/upgrade, and refused files."""
from __future__ import annotations

import os
from pathlib import Path

import pytest

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.formats.binary import read_net_binary, write_net_binary
from ocaffe.formats.text import parse, read_net, read_solver, without_private
from ocaffe.formats.upgrade import upgrade_net, upgrade_solver

pytestmark = pytest.mark.quick

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
NETS = sorted(path.name for path in (GOLDEN / "upgrade").glob("v*.prototxt") if "upgraded" not in path.name and "weights" not in path.name)


def upgraded(text: str, log=None):
    return upgrade_net(parse(text, proto.NetParameter, "net.prototxt"), log)


@pytest.mark.parametrize("name", NETS)
def test_nets_as_caffe_upgrades_them(name):
    path = GOLDEN / "upgrade" / name
    net = read_net(path)
    before = net.SerializeToString()
    log: list[str] = []
    new = upgrade_net(net, log.append)
    assert without_private(new) == without_private(read_net(path.with_suffix(".upgraded.prototxt")))
    assert net.SerializeToString() == before, "the given message stays as it was"
    assert log
    assert upgrade_net(new) is new


@pytest.mark.parametrize("name", ["solver_enum", "solver_enum0", "solver_nettrain"])
def test_solvers_as_caffe_upgrades_them(name):
    solver = upgrade_solver(read_solver(GOLDEN / "upgrade" / f"{name}.prototxt"))
    assert solver == read_solver(GOLDEN / "upgrade" / f"{name}.upgraded.prototxt")
    assert upgrade_solver(solver) is solver


def test_blobs_come_along_byte_for_byte(tmp_path):
    net = upgrade_net(read_net_binary(GOLDEN / "upgrade" / "v1_weights.caffemodel"))
    write_net_binary(tmp_path / "new.caffemodel", net)
    assert (tmp_path / "new.caffemodel").read_bytes() == (GOLDEN / "upgrade" / "v1_weights.upgraded.caffemodel").read_bytes()


def test_lines_survive():
    assert [layer.source_line for layer in upgrade_net(read_net(GOLDEN / "upgrade" / "v1_all_types.prototxt")).layer][:3] == [2, 3, 4]
    net = upgraded(
        'layers { layer { type: "padding" pad: 1 } bottom: "x" top: "p" }\nlayers { layer { type: "conv" } bottom: "p" top: "y" }'
    )
    assert [(layer.source_line, list(layer.convolution_param.pad)) for layer in net.layer] == [(2, [1])]


def test_v0_beside_v1_layers():
    net = upgraded('layers { layer { name: "a" type: "relu" } bottom: "x" top: "y" } layers { name: "b" type: TANH bottom: "y" top: "z" }')
    assert [(layer.name, layer.type) for layer in net.layer] == [("a", "ReLU"), ("b", "TanH")]


def test_log_says_what_was_done_and_dropped():
    log: list[str] = []
    upgraded('input: "x"\ninput_dim: [1, 1, 1, 1]\nlayers { layer { name: "a" type: "relu" num_output: 3 } }', log.append)
    assert log[0] == "net:3: a V0 layer of type 'relu' has no use for 'num_output'; it is dropped"
    assert [line.split(" from")[0] for line in log[1:]] == ["Upgraded the V0 layers", "Upgraded the V1 layers", "Upgraded the input fields"]


def test_fields_that_caffe_ignores_in_new_layers_are_told():
    log: list[str] = []
    net = read_net(GOLDEN / "upgrade" / "v2_data_transform.prototxt")
    assert upgrade_net(net, log.append) is net
    assert "scale, mean_file, crop_size, mirror of data_param have no effect" in log[0]


def test_frozen_batch_norm_needs_nothing():
    frozen = "param { lr_mult: 0 decay_mult: 0 } " * 3
    net = parse(f'layer {{ name: "b" type: "BatchNorm" {frozen} }}', proto.NetParameter)
    assert upgrade_net(net) is net
    upgraded('layer { name: "b" type: "BatchNorm" param { lr_mult: 0 } }')


REFUSED = [
    ('layer { name: "a" }\nlayers { name: "b" type: RELU }', "mixes 1 old-style `layers` with 1 new-style"),
    ('layers { layer { name: "a" type: "relux" } }', "unknown V0 layer type 'relux'"),
    ('layers { layer { type: "padding" } bottom: "x" top: "p" } layers { layer { type: "relu" } bottom: "p" }', "padding layer"),
    ('input: "a" input: "b" input_shape { dim: 1 }', "2 input and 1 input_shape"),
    ('input: "a" input_dim: [1, 2, 3]', "1 input and 3 input_dim"),
    ('input: "a" input_dim: [1, 2, 3, 4, 5, 6, 7, 8]', "1 input and 8 input_dim"),
    ('layer { name: "n" type: "BatchNorm" param { } param { } }', "param 0 has lr_mult 1"),
    ('layer { name: "n" type: "BatchNorm" param { lr_mult: 0 } param { lr_mult: 2 } }', "param 1 has lr_mult 2"),
]


@pytest.mark.parametrize(("text", "fact"), REFUSED, ids=[row[1] for row in REFUSED])
def test_refused(text, fact):
    with pytest.raises(Error, match=fact):
        upgraded(text)


def test_the_golden_net_that_caffe_refuses():
    with pytest.raises(Error, match="running statistics") as caught:
        upgrade_net(read_net(GOLDEN / "errors" / "bn_lr_mult_two.prototxt"))
    assert caught.value.place.line == 14


@pytest.mark.parametrize(("text", "fact"), [("solver_type: ADAM type: 'Adam'", "both type"), ("solver_type: SAG", "SAG is not supported")])
def test_refused_solvers(text, fact):
    with pytest.raises(Error, match=fact):
        upgrade_solver(parse(text, proto.SolverParameter))


@pytest.mark.parametrize("text", [b"con\xf6", b"\xff"])
@pytest.mark.parametrize("field", [1, 4])  # V1LayerParameter has bottom 2, top 3, name 4; LayerParameter has name 1
def test_text_that_is_not_utf8(tmp_path: Path, text: bytes, field: int) -> None:
    layer = bytes([field << 3 | 2, len(text)]) + text
    number = b"\x12" if field == 4 else b"\xa2\x06"  # layers = 2, layer = 100
    (tmp_path / "x.caffemodel").write_bytes(b"\x0a\x01n" + number + bytes([len(layer)]) + layer)
    with pytest.raises(Error, match="is damaged: a text in it is not UTF-8") as caught:
        read_net_binary(tmp_path / "x.caffemodel")
    assert caught.value.place == str(tmp_path / "x.caffemodel")


def test_larger_than_a_message(tmp_path: Path) -> None:
    path = tmp_path / "x.caffemodel"
    path.write_bytes(b"\x0a\x03net")
    os.truncate(path, 3 << 30)
    with pytest.raises(Error, match="has 3,221,225,472 bytes; a message of protobuf has at most 2,147,483,647") as caught:
        read_net_binary(path)
    assert "ocaffe convert" in str(caught.value.fix)
