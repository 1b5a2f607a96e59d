"""`ocaffe layers`, the page made from it, and the message for unknown types."""
from __future__ import annotations

import pathlib
import re

import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.cli import main
from ocaffe.errors import Error
from ocaffe.graph.build import build
from ocaffe.layers.base import registry
from ocaffe.layers.catalogue import catalogue, markdown
from ocaffe.layers.foreign import FOREIGN, USE

pytestmark = pytest.mark.quick

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_page_is_fresh() -> None:
    assert (ROOT / "docs" / "layer-types.md").read_text() == markdown(), "run `ocaffe layers --write docs/layer-types.md`"


def test_page_is_written(tmp_path: pathlib.Path) -> None:
    assert main(["layers", "--write", str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text() == markdown()


def test_every_type_is_described() -> None:
    for entry in catalogue():
        assert len(entry.summary) > 8 and entry.summary.endswith("."), f"{entry.type}: {entry.summary!r}"
    assert not set(registry()) & set(FOREIGN) and set(USE) <= set(FOREIGN)


def test_list_and_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["layers"]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n{name} " in f"\n{listed}" for name in registry())
    assert main(["layers", "--type", "innerPRODUCT"]) == 0
    one = capsys.readouterr().out
    assert "InnerProduct (BVLC Caffe)" in one and re.search(r"bias_term +bool = true\n.*weight_filler +FillerParameter\n", one)
    assert main(["layers", "--type", "Poling"]) == 1
    assert "Pooling" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("Convolutoin", "did you mean 'Convolution'"),
        ("convolution", "did you mean 'Convolution'"),
        ("CropCenter2", "'CropCenter2', a type of waifu2x\n  fix: no code of it is public; if it cuts the middle out, CropCenter with crop_size"),
        ("imageGtData", "'imageGtData', a type of MS-CNN\n  fix: it reads images and makes DetectionLoss's labels"),
        ("DenseCRF", "'DenseCRF', a type of DeepLab and PSPNet\n  fix: `ocaffe layers` lists"),
        ("Zyx", "ocaffe layers"),
    ],
)
def test_unknown_type(wrong: str, told: str) -> None:
    net = text_format.Parse(f'layer {{ name: "l" type: "{wrong}" top: "x" }}', proto.NetParameter())
    net.source_file, net.layer[0].source_line = "some.prototxt", 7
    with pytest.raises(Error) as caught:
        build(net, proto.TEST)
    assert told in str(caught.value) and "some.prototxt:7" in str(caught.value)
