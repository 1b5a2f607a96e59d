"""draw_net: every layer and blob is in the picture, boxes do not overlap, edges follow the data."""
from __future__ import annotations

import itertools
import os
import pathlib
import random
import xml.etree.ElementTree as ElementTree

import pytest
from PIL import Image

from ocaffe.cli import main
from ocaffe.formats.text import read_net
from ocaffe.tools.drawing.diagram import MARGIN, Picture, picture
from ocaffe.tools.drawing.layout import NODE_GAP, layout

pytestmark = pytest.mark.quick

ROOT = pathlib.Path(__file__).resolve().parents[3]
NET = str(ROOT / "tests" / "golden" / "files" / "train_net.prototxt")
SVG = "{http://www.w3.org/2000/svg}"


def overlapping(drawn: Picture) -> list[tuple[list[str], list[str]]]:
    found = []
    for (one, first), (two, second) in itertools.combinations(drawn.boxes, 2):
        if one[0] < two[0] + two[2] and two[0] < one[0] + one[2] and one[1] < two[1] + two[3] and two[1] < one[1] + one[3]:
            found.append((first.lines, second.lines))
    return found


def ends(drawn: Picture) -> list[tuple[str, str]]:
    """Return the first lines of the boxes that the curves connect."""
    def at(point: tuple[float, float]) -> str:
        (found,) = [node.lines[0] for (x, y, w, h), node in drawn.boxes if x - 0.01 <= point[0] <= x + w + 0.01 and y - 0.01 <= point[1] <= y + h + 0.01]
        return found

    return [(at(points[0]), at(points[-1])) for points, _ in drawn.curves]


@pytest.mark.parametrize("direction", ["LR", "TB", "RL", "BT"])
@pytest.mark.parametrize("net", ["googlenet/train_val", "resnet18/deploy"])
def test_boxes_and_curves(net: str, direction: str) -> None:
    message = read_net(ROOT / "zoo" / f"{net}.prototxt")
    drawn = picture(message, direction)
    assert not overlapping(drawn)
    names = [node.lines[0] for _, node in drawn.boxes if not node.round]
    assert names == [layer.name for layer in message.layer]
    assert all(x >= MARGIN - 0.01 and x + w <= drawn.size[0] - MARGIN + 0.01 and y >= MARGIN - 0.01 for (x, y, w, _), _ in drawn.boxes)
    axis, sign = (0 if direction in ("LR", "RL") else 1), (1 if direction in ("LR", "TB") else -1)
    for points, _ in drawn.curves:
        steps = [(second[axis] - first[axis]) * sign for first, second in itertools.pairwise(points)]
        assert min(steps) >= -0.01
    used = {(source, target) for source, target in ends(drawn)}
    if net == "resnet18/deploy":
        assert {("scale2a_branch2b", "res2a"), ("pool1", "res2a"), ("res2a", "res2a_relu"), ("prob", "prob")} <= used
        assert ("bn_conv1", "conv1_relu") not in used  # in place, so one follows the other


def test_random_graphs() -> None:
    dice = random.Random(7)
    for _ in range(30):
        count = dice.randint(1, 25)
        edges = [(a, b) for a, b in itertools.combinations(range(count), 2) if dice.random() < 0.12]
        sizes = [(dice.uniform(10, 60), dice.uniform(10, 90)) for _ in range(count)]
        made = layout(sizes, edges)
        for (a, first), (b, second) in itertools.combinations(list(zip(made.places, sizes)), 2):
            apart_along = abs(a[0] - b[0]) >= (first[0] + second[0]) / 2 - 0.01
            assert apart_along or abs(a[1] - b[1]) >= (first[1] + second[1]) / 2 + NODE_GAP - 0.01
        for (source, target), route in zip(edges, made.routes):
            assert made.places[source][0] < made.places[target][0] and len(route) % 2 == 0


def test_svg(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "net.svg"
    assert main(["draw_net", NET, str(out), "--rankdir=TB", "--display_lrm", "--phase", "TEST"]) == 0
    root = ElementTree.parse(out).getroot()
    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert {"conv1", "(Convolution)", "num_output: 4", "kernel 5, stride 2", "lr 1, 2; decay 1, 0", "accuracy", "MAX"} <= set(texts)
    assert texts.count("(Data)") == 1 and texts.count("label") == 2  # of the TEST net only; label goes to accuracy and loss
    assert main(["draw_net", NET, str(out)]) == 0
    assert out.read_text().count("(Data)") == 2 and "lr 1" not in out.read_text()


@pytest.mark.parametrize(("name", "kind"), [("net.png", "PNG"), ("net.jpg", "JPEG"), ("net.pdf", None)])
def test_pixels(name: str, kind: str | None, tmp_path: pathlib.Path) -> None:
    assert main(["draw_net", NET, str(tmp_path / name), "--phase=TRAIN"]) == 0
    if kind is None:
        assert (tmp_path / name).read_bytes().startswith(b"%PDF")
        return
    image = Image.open(tmp_path / name)
    assert image.format == kind and len(image.convert("RGB").getcolors(1 << 24) or ()) > 5
    if kind == "PNG":
        assert {(255, 171, 145), (207, 216, 220)} <= {color for _, color in image.getcolors(1 << 24) or ()}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([NET, "out.xyz"], ["xyz"]),
        ([NET, "out"], ["is not an image format"]),
        (["none.prototxt", "out.svg"], ["none.prototxt"]),
        ([NET, "out.docx"], ["docx", "ends in .svg"]),
        (["empty.prototxt", "out.svg"], ["empty.prototxt", "no layers to draw"]),
        ([NET, "out.svg", "--rankdir=XY"], ["XY"]),
        ([NET, "no/out.svg"], ["make the folder"]),
    ],
)
def test_refused(arguments: list[str], told: list[str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("empty.prototxt").write_text('name: "x"\n')
    assert main(["draw_net", *arguments]) == 1
    said = capfd.readouterr().err
    assert all(text in said for text in told), said


@pytest.mark.parametrize(
    ("command", "flags", "there", "absent"),
    [
        ("draw_net", ["--phase=TEST"], ["plain"], ["staged", "deep"]),
        ("draw_net", ["--phase=TEST", "--stage=b"], ["plain", "staged"], ["deep"]),
        ("draw_net", ["--phase=TEST", "--level=2"], ["plain", "deep"], ["staged"]),
        ("draw_net", [], ["plain", "staged", "deep"], []),
        ("summary", ["--stage=b"], ["plain", "staged"], ["deep"]),
        ("summary", ["--level", "2"], ["plain", "deep"], ["staged"]),
        ("lint", ["--stage=b"], ["staged"], ["plain", "deep"]),
        ("lint", ["--level=1"], ["deep"], ["plain", "staged"]),
    ],
)
def test_level_and_stage(
    command: str, flags: list[str], there: list[str], absent: list[str], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tools that read a net without running it have --level and --stage, and can allow unknown fields."""
    net = tmp_path / "net.prototxt"
    rules = {"staged": 'stage: "b"', "deep": "min_level: 1"}
    layer = 'layer {{ name: "{0}" type: "InnerProduct" bottom: "x" top: "{0}" include {{ {1} }} inner_product_param {{ num_output: 2 }} loss_weight: 1 }}'
    layers = [layer.format(name, rule) for name, rule in rules.items()]
    head = 'layer { name: "plain" type: "DummyData" top: "x" dummy_data_param { shape { dim: 1 dim: 2 } } }'
    net.write_text("state { phase: TRAIN }\n" + "\n".join([head, *layers]) + "\nodd: 1\n")
    allowed = ["--allow_unknown_fields"] if command != "lint" else []
    if not allowed:
        net.write_text(net.read_text().replace("odd: 1", ""))
    out = [str(tmp_path / "out.svg")] if command == "draw_net" else []
    status = main([command, *flags, *allowed, str(net), *out])
    said = (tmp_path / "out.svg").read_text() if out else capsys.readouterr().out
    assert status == (command == "lint") and all(name in said for name in there) and not any(name in said for name in absent), said


def text_of(layers: list[str]) -> str:
    data = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 } } }'
    return "\n".join([data, *layers])


def layer(number: int, bottoms: list[str], top: str) -> str:
    return f'layer {{ name: "r{number}" type: "Concat" {" ".join(f"bottom: {name!r}" for name in bottoms)} top: "{top}" }}'


MANY = {
    "layers": text_of([layer(n, ["data"], f"b{n}") for n in range(70_000)]),
    "lines": text_of([layer(n, ["b0" if n else "data"] * 200, f"b{n}") for n in range(1100)]),
    "producers of one blob": text_of([layer(n, *((["b"], "c") if n % 2 else (["data"], "b"))) for n in range(2000)]),
    "lines over many ranks": text_of([layer(n, ["data", f"b{n - 1}" if n else "data"], f"b{n}") for n in range(700)]),
}


@pytest.mark.parametrize("kind", MANY)
def test_the_parts_of_a_picture_have_a_limit(kind: str, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "n.prototxt").write_text(MANY[kind])
    assert main(["draw_net", str(tmp_path / "n.prototxt"), str(tmp_path / "n.svg")]) == 1
    told = capfd.readouterr().err
    assert f"{tmp_path / 'n.prototxt'}" in told and "and the limit is 200,000" in told and "--phase TEST" in told and os.listdir(tmp_path) == ["n.prototxt"]


def test_a_long_chain_is_drawn() -> None:
    count = 20_000
    places, routes, _ = layout([(60.0, 30.0)] * count, [(n, n + 1) for n in range(count - 1)])
    assert len(places) == count and len(routes) == count - 1


def test_a_source_lies_next_to_the_first_node_that_it_feeds() -> None:
    places, _, _ = layout([(10.0, 10.0)] * 6, [(0, 1), (1, 2), (2, 3), (4, 3), (4, 5)])
    assert places[4][0] == places[0][0] and places[5][0] == places[1][0]
    places, _, _ = layout([(10.0, 10.0)] * 5, [(0, 1), (1, 2), (2, 3), (4, 3)])
    assert places[4][0] == places[2][0]


@pytest.mark.parametrize("suffix", [".jpg", ".pdf", ".webp", ".xbm"])
def test_a_format_that_does_not_take_the_picture(suffix: str, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    """JPEG, which PDF uses too, has at most 65,535 pixels a side, WebP 16,383; XBM has two colors."""
    blobs = ["data", *(f"x{number}" for number in range(500))]
    layers = [f'layer {{ name: "{"a" * 100}{top}" type: "ReLU" bottom: "{bottom}" top: "{top}" }}' for bottom, top in itertools.pairwise(blobs)]
    (tmp_path / "n.prototxt").write_text(text_of(layers))
    assert main(["draw_net", str(tmp_path / "n.prototxt"), str(tmp_path / f"n{suffix}")]) == 1
    told = capfd.readouterr().err
    assert f"{tmp_path / 'n.prototxt'}" in told and "cannot be written as" in told and ".svg or .png" in told and os.listdir(tmp_path) == ["n.prototxt"]
    assert main(["draw_net", str(tmp_path / "n.prototxt"), str(tmp_path / "n.png")]) == 0
