"""The text reader, compared with protobuf's, and its errors."""
from __future__ import annotations

import math
from pathlib import Path

import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.formats.text import parse, read_net, read_solver, without_private, write_text

pytestmark = pytest.mark.quick

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
REAL = ROOT.parent / "shared" / "real" / "prototxts"  # public prototxts, not part of the repository


def net_files(folder: Path) -> list[Path]:
    return sorted(path for suffix in ("*.prototxt", "*.pt") for path in folder.rglob(suffix))


def check_like_protobuf(path: Path) -> None:
    solver = "solver" in path.name
    message = (read_solver if solver else read_net)(path)
    expected = text_format.Parse(path.read_bytes(), type(message)())
    assert without_private(message) == expected, path


@pytest.mark.parametrize("folder", ["layers", "nets", "forks", "solvers", "upgrade", "weights", "data", "errors", "files"])
def test_golden_files_parse_as_protobuf_parses_them(folder):
    files = net_files(GOLDEN / folder)
    assert files
    for path in files:
        if path.name != "unknown_field.prototxt":
            check_like_protobuf(path)


@pytest.mark.skipif(not REAL.exists(), reason="needs the public prototxts")
def test_all_public_files_parse():
    for path in net_files(REAL):
        check_like_protobuf(path)


LIKE_PROTOBUF = [
    'name: "a" force_backward: true',
    'name: "a"; force_backward: t, debug_info: 0',
    "name: 'single' input: \"a\" input: 'b'",
    'input: ["a", "b"] input_dim: [1, 2, 3] input_dim: 4',
    "input_dim: []",
    "input_shape { dim: 1 dim: -1 } input_shape < dim: [2, 3] > input_shape: { dim: 0x10 } input_shape: < dim: 017 >",
    "input_shape: [{ dim: 1 }, < dim: 2 >] input_shape [ { dim: 3 } ]",
    "state { } layer { include {} include: {} }",
    "# comment\nname: \"a\" # another 'one'\n#last",
    r'name: "tab\t nl\n q\" \' \\ \101 \x41 \u00e9 \U0001f600"',
    'name: "one" \'two\' "three"',
    'name: "ünïcode"',
    "layer { loss_weight: 1 loss_weight: -1.5 loss_weight: .5 loss_weight: 1. loss_weight: 1e-3 loss_weight: 2E+2f loss_weight: 3f }",
    "layer { loss_weight: inf loss_weight: -inf loss_weight: infinity loss_weight: -0.0 }",
    "layer { phase: TEST } layer { phase: 0 } layer { pooling_param { pool: 1 round_mode: FLOOR } }",
    "layer { propagate_down: [true, True, t, 1, false, False, f, 0] }",
    "layer{name:\"x\"type:'y'bottom:'z'}",
    "layers { type: CONVOLUTION blobs_lr: 1 convolution_param { num_output: 4294967295 } } layers { type: 14 }",
    "layer { name: 'a' }\r\nlayer { name: 'b' }\r\n",
]


@pytest.mark.parametrize("text", LIKE_PROTOBUF)
def test_syntax_as_protobuf_reads_it(text):
    assert without_private(parse(text, proto.NetParameter)) == text_format.Parse(text, proto.NetParameter())


def test_syntax_that_only_protobuf_in_cpp_reads():
    assert parse("layer { loss_weight: - 1 }", proto.NetParameter).layer[0].loss_weight == [-1]
    assert parse(r'name: "\?"', proto.NetParameter).name == "?"


def test_nan():
    assert math.isnan(parse("base_lr: nan", proto.SolverParameter).base_lr)


def test_bytes_keep_what_is_no_text():
    assert parse(r'data: "\000\377"', proto.Datum).data == b"\x00\xff"


def test_a_byte_order_mark_is_no_error(tmp_path):
    path = tmp_path / "net.prototxt"
    path.write_bytes(b'\xef\xbb\xbfname: "a"')
    assert read_net(path).name == "a"


def test_a_comment_need_not_be_utf8(tmp_path):
    path = tmp_path / "net.prototxt"
    path.write_bytes(b'# \xcd\xf8\xc2\xe7\nname: "a"')
    assert read_net(path).name == "a"


def test_lines():
    lines: dict[str, int] = {}
    net = parse(
        'name: "a"\nlayer {\n  name: "p"\n  bottom: "x"\n  bottom: "y"\n  pooling_param {\n    kernel_size:\n 3 }\n}\n\nlayer { }',
        proto.NetParameter,
        lines=lines,
    )
    assert [layer.source_line for layer in net.layer] == [2, 11]
    assert lines["layer[0].pooling_param"] == 6
    assert lines["layer[0].pooling_param.kernel_size"] == 7
    assert lines["layer[0].bottom[1]"] == 5
    assert lines["layer[1]"] == 11
    assert [layer.source_line for layer in parse("layers { }\nlayers { }", proto.NetParameter).layers] == [1, 2]


def test_written_text_has_no_private_fields(tmp_path):
    path = tmp_path / "net.prototxt"
    path.write_text('name: "a"\nlayer { name: "b" }\nlayers { name: "c" }\n')
    net = read_net(path)
    assert (net.source_file, net.layer[0].source_line) == (str(path), 2)
    assert "source" not in write_text(net)
    assert "source" not in write_text(proto.SolverParameter(net_param=net, test_net_param=[net]))
    assert net.source_file == str(path), "the message itself stays as it was"


@pytest.mark.parametrize("text", ["kernel_size: [2, 3, 4]", "kernel_size: 2 kernel_size: 3 kernel_size: 4", "kernel_size: [2, 3] kernel_size: 4"])
def test_pooling_takes_sizes_for_each_axis(text: str) -> None:
    """A single size stays in BVLC's field. Several go to the field of Intel's fork."""
    p = parse(f"{text} stride: 2 pad: 0 pad: 1", proto.PoolingParameter)
    assert list(p.kernel_size_3d) == [2, 3, 4] and not p.HasField("kernel_size") and p.stride == 2 and not p.stride_3d and list(p.pad_3d) == [0, 1]


def test_true_and_false_in_number_fields() -> None:
    """A number that is 0 or 1 by default is a switch in some forks. Other numbers do not take these words."""
    p = parse("softmax: false rescore: true bias_match: False", proto.RegionLossParameter)
    assert (p.softmax, p.rescore, p.bias_match) == (0, 1, 0)
    with pytest.raises(Error, match="'num' needs an integer, found true"):
        parse("num: true", proto.RegionLossParameter)


def test_names_of_other_forks() -> None:
    transform = parse("crop_height: 3 crop_width: 5", proto.TransformationParameter)
    assert (transform.crop_h, transform.crop_w) == (3, 5) and not transform.HasField("crop_height")
    with pytest.raises(Error, match="crop_h"):
        parse("crop_h: 3 crop_height: 5", proto.TransformationParameter)
    assert parse("richness: 100", proto.NetParameter).richness == 100


ERRORS = [  # message, text, line, text in the error, text in the remedy
    ("NetParameter", "layer {\n relu_param { slope: 1 } }", 2, "ReLUParameter has no field 'slope'", ""),
    ("NetParameter", "layer {\n pooling_param { kernal_size: 1 } }", 2, "has no field 'kernal_size'", "did you mean 'kernel_size'?"),
    ("SolverParameter", 'base_lr: 1\nlayer { }', 2, "SolverParameter has no field 'layer'", "this looks like a net"),
    ("NetParameter", 'name: "x"\nbase_lr: 1', 2, "NetParameter has no field 'base_lr'", "this looks like a solver"),
    ("NetParameter", 'name: "x"\ntest_offset: 1\nlayer { }', 2, "NetParameter has no field 'test_offset'", "--allow-unknown-fields"),
    ("NetParameter", 'layer {\n num_output: 3\n}', 2, "LayerParameter has no field 'num_output'", "convolution_param"),
    ("NetParameter", "source_file: 'x'", 1, "no field 'source_file'", ""),
    ("NetParameter", "excluded { }", 1, "no field 'excluded'", ""),
    ("NetParameter", "layer { source_line: 3 }", 1, "no field 'source_line'", ""),
    ("NetParameter", "layer { pooling_param { pool: MAXIMUM } }", 1, "PoolingParameter has no 'MAXIMUM' for its 'pool'", "MAX"),
    ("NetParameter", "layer { pooling_param { pool: 7 } }", 1, "no '7' for its 'pool'", "MAX, AVE, STOCHASTIC"),
    ("NetParameter", 'layer { pooling_param { pool: "MAX" } }', 1, "needs a name without quotes", "pool: MAX"),
    ("NetParameter", "layer { type: CONVOLUTION }", 1, "'type' needs a string in quotes", "layers { }"),
    ("NetParameter", 'layers { type: "Convolution" }', 1, "'type' needs a name without quotes", "`layer { }`"),
    ("NetParameter", "name: lenet", 1, "'name' needs a string", 'name: "lenet"'),
    ("NetParameter", 'name: "a"\nname: "b"', 2, "has 'name' only once, but it appears again (first on line 1)", ""),
    ("NetParameter", "state {}\nstate {}", 2, "has 'state' only once", ""),
    ("NetParameter", "name: ['a']", 1, "has 'name' only once, but this is a list", ""),
    ("NetParameter", "layer {\n clip_param { min: 0 } }", 2, "ClipParameter needs the field 'max'", ""),
    ("NetParameter", "layer {\n name: 'x'\n", 1, "not closed", ""),
    ("NetParameter", "layer { name: 'x' }\n}", 2, "'}' closes a message that was not opened", ""),
    ("NetParameter", "layer < name: 'x' }", 1, "'}' closes a message", ""),
    ("NetParameter", "layer 3", 1, "expected a message in braces after 'layer'", "write layer { ... }"),
    ("NetParameter", "name 'x'", 1, "expected : after 'name'", "write name: VALUE"),
    ("NetParameter", "name: 'x", 1, "not closed on its line", ""),
    ("NetParameter", "name: 'x\ny'", 1, "not closed on its line", ""),
    ("NetParameter", "\n\nname: “x”", 3, "'“' does not belong here", "plain quotes"),
    ("NetParameter", r"name: '\q'", 1, r"unknown escape \q", "backslash"),
    ("NetParameter", r"name: '\777'", 1, "is 511, larger than a byte", "octal number"),
    ("NetParameter", r"name: '\xff'", 1, "not UTF-8", ""),
    ("NetParameter", r"name: '\Uffffffff'", 1, "stands for no character", "save the file as UTF-8"),
    ("NetParameter", "force_backward: 2", 1, "needs true or false, found 2", ""),
    ("NetParameter", "force_backward: yes", 1, "needs true or false, found yes", ""),
    ("NetParameter", "input_dim: 1.5", 1, "needs an integer, found 1.5", ""),
    ("NetParameter", "input_dim: 2147483648", 1, "is 2147483648, outside", "a number from"),
    ("NetParameter", "input_dim: 09", 1, "octal", "write 9"),
    ("NetParameter", "layer { convolution_param { num_output: -1 } }", 1, "is -1, outside 0 to", ""),
    ("NetParameter", "input_dim: [1 2]", 1, "expected ',' or ']'", ""),
    ("NetParameter", "layer { loss_weight: 1decay }", 1, "needs a space before 'd'", ""),
    ("SolverParameter", "base_lr: fast", 1, "needs a number, found fast", ""),
    ("SolverParameter", "base_lr: 0x10", 1, "not a decimal number", ""),
    ("SolverParameter", "base_lr: 010", 1, "not a decimal number", ""),
    ("SolverParameter", "base_lr:", 1, "found the end of the file", ""),
    ("SolverParameter", "1: 3", 1, "expected a field of SolverParameter, found 1", ""),
    ("NetParameter", "layer { x { " * 3, 1, "no field 'x'", ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "ids"),
    [("device_id: [0,1,2]", [0, 1, 2]), ("device_id: 3 device_id: 1", [3, 1]), ("device_id: [2]", [2]), ("device_id: 2 device_id: [0, 1]", [2, 0, 1]),
     ("device_id: []", []), ("device_id: 2", [])],
)  # fmt: skip
def test_list_of_devices(text, ids):
    """TSN's solvers list the devices of all ranks. BVLC's field has the first one."""
    solver = parse(text, proto.SolverParameter, "solver.prototxt")
    assert list(solver.device_ids) == ids and solver.device_id == (ids[0] if ids else 2 if "2" in text else 0)
    assert parse(write_text(solver), proto.SolverParameter, "written") == solver


@pytest.mark.parametrize(("message", "text", "line", "fact", "fix"), ERRORS, ids=[row[1][:40] for row in ERRORS])
def test_errors(message, text, line, fact, fix):
    with pytest.raises(Error) as caught:
        parse(text, getattr(proto, message), "net.prototxt")
    assert fact in caught.value.fact
    assert caught.value.place == ("net.prototxt", line)
    assert fix in (caught.value.fix or "")


def test_unknown_fields_can_be_allowed():
    text = """
        name: "a"
        magic: 3
        layer {
          name: "b" spell { deep { x: -1 list: [1, { y: "}" }] } more < z: 'a' "b" > }
          pooling_param { pool: HARDEST kernel_size: 2 kernal: [] }
        }
        strength: -inf;
        type: "c"
    """
    warnings: list[str] = []
    net = parse(text, proto.NetParameter, "net.prototxt", allow_unknown_fields=True, warn=warnings.append)
    expected = 'name: "a" layer { name: "b" pooling_param { kernel_size: 2 } }'
    assert without_private(net) == text_format.Parse(expected, proto.NetParameter())
    assert [line.split(":")[1] for line in warnings] == ["3", "5", "6", "6", "8", "9"]
    assert "net.prototxt:6: PoolingParameter has no 'HARDEST' for its 'pool'; it is ignored" in warnings


@pytest.mark.parametrize("text", ["magic { a: 1", "magic: [1, ", "magic: }", "magic { 3 }", "magic: " + "{ a " * 200])
def test_what_is_skipped_must_still_be_text_format(text):
    with pytest.raises(Error):
        parse(text, proto.NetParameter, allow_unknown_fields=True)


def test_nesting_is_limited():
    with pytest.raises(Error, match="nested more than"):
        parse("layer { moe_param { gating_net { " * 100, proto.NetParameter)


FILES = [  # content, text in the error
    (b"", "empty"),
    (b"\x0a\x05LeNet\xa2\x06\x03\x0a\x01x", "binary file"),
    (b"\x89HDF\r\n\x1a\n....", "HDF5"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n", "Git LFS pointer"),
    (b"\n<!DOCTYPE html><html>", "web page"),
    (b"PK\x03\x04....", "zip archive"),
    ("name: 'x'".encode("utf-16"), "UTF-16"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "fact"), FILES, ids=[row[1] for row in FILES])
def test_files_that_are_no_prototxt(tmp_path, content, fact):
    path = tmp_path / "net.prototxt"
    path.write_bytes(content)
    with pytest.raises(Error, match=fact) as caught:
        read_net(path)
    assert caught.value.place == str(path)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(Error, match="no such file"):
        read_net(tmp_path / "none.prototxt")
    with pytest.raises(Error, match="is a folder"):
        read_solver(tmp_path)


@pytest.mark.parametrize(
    ("text", "line", "fact", "fix"),
    [
        ("layer {\n  name: 'a'\n  input_param { shape { dim: 1 }\n}\nlayer {\n  name: 'b'\n}\n", 3, "not closed before line 4", "write } at the end of line 3"),
        ("layer {\n  name: 'a'\n  input_param { shape { dim: 1 } } }\n}\nlayer {\n  name: 'b'\n}\n", 3, "closes no message", "remove one '}' from line 3"),
        ("layer {\n  name: 'a' # }\n  type: '}'\nlayer {\n  name: 'b'\n}\n", 1, "not closed before line 4", "write } before line 4"),
        ("layer {\n  name: 'a'\n  convolution_param {\n    weight_filler { value: 0\n    bias_term: false\n  }\n}\n", 4, "not closed", "the end of line 4"),
        ("layer {\n  name: 'a'\n  dropout_param {\n    dropout_ratio: 0.5\n}\n", 3, "not closed before line 5", "write } before line 5"),
        ("layer {\nname: 'a'\nlayer { name: 'b' }\n", 3, "a layer begins within another message", "write } before this line"),
    ],
)
def test_the_line_of_a_wrong_brace(text, line, fact, fix):
    """A brace that is missing or too many shifts the messages after it. The indentation tells where it is."""
    with pytest.raises(Error) as caught:
        parse(text, proto.NetParameter, "net.prototxt")
    assert caught.value.place == ("net.prototxt", line)
    assert fact in caught.value.fact and fix in str(caught.value.fix)
