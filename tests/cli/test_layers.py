"""`ocaffe layers`, the page made from it, and the message for unknown types."""
from __future__ import annotations

import pathlib
import re

import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.cli import main
from ocaffe.errors import Error
from ocaffe.formats.foreign import FIELDS, FOREIGN, PARAMS, USE
from ocaffe.formats.text import parse
from ocaffe.graph.build import build
from ocaffe.layers.base import registry
from ocaffe.layers.catalogue import catalogue, markdown

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
    assert not set(registry()) & set(FOREIGN) and set(USE) <= set(FOREIGN) and set(PARAMS.values()) <= set(FOREIGN)
    for key in FIELDS:  # none is in the schema
        message, _, name = key.partition(".")
        descriptor = getattr(proto, message).DESCRIPTOR
        values = {value.name for field in descriptor.fields if field.enum_type for value in field.enum_type.values}
        assert name not in descriptor.fields_by_name and name not in values, key


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


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('layer { type: "ImResize" imresize_param { factor: 8 } }', "'imresize_param': it is of the layer type ImResize of caffe_rtpose\n  fix: it enlarges"),
        ('layer { type: "OPData" op_transform_param { stride: 8 } }', "'op_transform_param': it is of the layer type OPData of OpenPose's training\n  fix:"),
        ("layers { type: MULTI_STAGE_MEANFIELD }", "no 'MULTI_STAGE_MEANFIELD' for its 'type': it is of the layer type MultiStageMeanfield of CRF-RNN"),
        ("layers { type: GATHER }", "no 'GATHER' for its 'type': it is of Lyp100208/Caffe_action: it collects the samples"),
        ('layer { type: "DenseCRF" dense_crf2_param { } }', "no field 'dense_crf2_param'\n  fix: did you mean 'dense_crf_param'?"),
        ('layer { type: "Zyx" zyx_param { } }', "no field 'zyx_param'\n  fix:"),
        ("layer { convolution_param { imresize_param: 1 } }", "ConvolutionParameter has no field 'imresize_param'\n  fix:"),
        ("layer { multibox_loss_param { conf_loss_type: FocalLoss } }", "no 'FocalLoss' for its 'conf_loss_type': it is of SSD_windows_caffe"),
        ("layer { image_data_param { new_dim: 256 } }", "'new_dim': it is of yihui-he/caffe-pro: it resizes the shorter side\n  fix: random_resize_param"),
    ],
)
def test_unknown_field_of_a_fork(text: str, told: str) -> None:
    """The error for a field or a V1 type of a layer that ocaffe does not have names the layer, and says what to use."""
    with pytest.raises(Error) as caught:
        parse(text, proto.NetParameter, "some.prototxt")
    assert told in str(caught.value) and "some.prototxt:1" in str(caught.value)
    warnings: list[str] = []
    parse(text, proto.NetParameter, "some.prototxt", True, warnings.append)
    assert len(warnings) == 1


def test_unknown_field_of_a_solver() -> None:
    with pytest.raises(Error, match=r"'prune_method': it is of Caffe_IncReg: it prunes filters during the training\n  fix: remove it"):
        parse('base_lr: 1 prune_method: "Reg_Col"', proto.SolverParameter, "solver.prototxt")
