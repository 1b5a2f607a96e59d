"""The flags --imdb, --proposals and --cfg: settings from a file of py-faster-rcnn, and the layers that get them."""
from __future__ import annotations

import pathlib

import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.formats.param_str import read_settings
from ocaffe.tools.py_faster_rcnn import Configuration, configured, read_configuration

pytestmark = pytest.mark.quick

TEXT = """# a comment
EXP_DIR: faster_rcnn_end2end
TRAIN:
  HAS_RPN: True
  SCALES: [400, 600]  # pixels
  RPN_BATCHSIZE: 64
  BATCH_SIZE: -1
  RPN_POST_NMS_TOP_N: 300

TEST:
  SCALES: (700,)
  RPN_POST_NMS_TOP_N: 100
PIXEL_MEANS: [[[1, 2, 3.5]]]
"""
NET = """layer { name: "d" type: "Python" top: "a" top: "b" top: "c" include { phase: TRAIN }
    python_param { module: "roi_data_layer.layer" layer: "RoIDataLayer" param_str: "'num_classes': 21" } }
  layer { name: "e" type: "RoIData" top: "a" top: "b" top: "c" include { phase: TEST } python_param { param_str: "'num_classes': 3, 'scales': [50]" } }
  layer { name: "f" type: "Python" python_param { module: "rpn.anchor_target_layer" layer: "AnchorTargetLayer" param_str: "'feat_stride': 16" } }
  layer { name: "p" type: "Proposal" python_param { param_str: "{'feat_stride': 16}" } }
  layer { name: "s" type: "ProposalTarget" python_param { param_str: "'num_classes': 21" } }
  layer { name: "r" type: "ReLU" bottom: "a" top: "a" }"""
FAST = 'layer { name: "d" type: "RoIData" top: "a" top: "b" top: "c" top: "d" top: "e" top: "f" }'


def file(tmp_path: pathlib.Path, text: str) -> str:
    (tmp_path / "a.yml").write_text(text)
    return str(tmp_path / "a.yml")


def test_settings_of_the_layers(tmp_path: pathlib.Path) -> None:
    settings = read_configuration(file(tmp_path, TEXT))
    assert Configuration("TRAIN", "SCALES", [400, 600]) in settings and Configuration("", "PIXEL_MEANS", [1, 2, 3.5]) in settings
    net = text_format.Parse(NET, proto.NetParameter())
    found = {phase: {layer.name: read_settings(layer.python_param.param_str) for layer in configured(net, phase, "db", "", settings).layer} for phase in (0, 1)}
    assert found[proto.TRAIN] == {
        "d": {"num_classes": 21, "source": "db", "scales": [400, 600], "pixel_means": [1, 2, 3.5]},
        "e": {"num_classes": 3, "source": "db", "scales": [700], "pixel_means": [1, 2, 3.5]},
        "f": {"feat_stride": 16, "batch_size": 64}, "p": {"feat_stride": 16, "post_nms_topn": 300}, "s": {"num_classes": 21, "batch_size": -1}, "r": {},
    }  # fmt: skip
    assert found[proto.TEST]["p"] == {"feat_stride": 16, "post_nms_topn": 100} and found[proto.TEST]["f"] == {"feat_stride": 16}
    fast = configured(text_format.Parse(FAST, proto.NetParameter()), proto.TRAIN, "db", "p.npz", settings)
    assert read_settings(fast.layer[0].python_param.param_str) == {
        "source": "db", "proposals": "p.npz", "scales": [400, 600], "batch_size": -1, "pixel_means": [1, 2, 3.5],
    }  # fmt: skip


@pytest.mark.parametrize(
    "text, fact",
    [
        ("TRAIN:\n  BG_TRESH_LO: 0.0", "'BG_TRESH_LO' is no key of py-faster-rcnn's config.py"),
        ("VALIDATE:\n  NMS: 0.3", "there is no section 'VALIDATE'"),
        ("TRAIN:\n  SCALES: six", "'SCALES' has the value 'six'"),
        ("TRAIN:\n  - 600", "'- 600' is not a key with a value"),
        ("  SCALES: [600]", "is not a key with a value"),
        ("TRAIN:\n  BBOX_REG: False", "'BBOX_REG' is False"),
    ],
)
def test_mistakes_in_a_file(tmp_path: pathlib.Path, text: str, fact: str) -> None:
    with pytest.raises(Error) as caught:
        read_configuration(file(tmp_path, text))
    assert fact in str(caught.value) and "a.yml" in str(caught.value)


def test_nets_without_the_layer() -> None:
    net = text_format.Parse('layer { name: "r" type: "ReLU" bottom: "a" top: "a" }', proto.NetParameter())
    with pytest.raises(Error, match="the net has no layer RoIDataLayer"):
        configured(net, proto.TRAIN, "db")
    with pytest.raises(Error, match="no RoIDataLayer with 5 or 6 tops"):
        configured(text_format.Parse(NET, proto.NetParameter()), proto.TRAIN, "db", "p.npz")
    with pytest.raises(Error, match="cannot be read"):
        read_configuration("none.yml")
