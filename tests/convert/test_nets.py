"""Export of whole nets, of the zoo and of others, with batch 1 and 3."""
from __future__ import annotations

from typing import Any

import pytest

from ocaffe import proto
from ocaffe.compiler.network import phase_net
from ocaffe.convert.deploy import deploy
from ocaffe.convert.export import Options, export
from ocaffe.convert.verify import random_inputs, verify
from ocaffe.formats.text import read_net
from ocaffe.formats.upgrade import upgrade_net
from tests.convert.test_convert import ROOT, random_weights

pytestmark = pytest.mark.unoptimised

ZOO = ROOT / "zoo"
REAL = ROOT.parent / "shared" / "real"


def zoo() -> list[str]:
    return sorted(path.name for path in ZOO.iterdir() if (path / "deploy.prototxt").exists())


# verified layer by layer for seconds each, only by `pytest -m sweep`
LONG = (
    "alexnet", "caffenet", "densenet121", "efficientnet_lite1", "efficientnet_lite2", "faster_rcnn_zf", "fcn8s", "inception_v3", "mobilenet_ssd",
    "mobilenet_yolov3_lite", "resnet50", "resnet101", "resnet152", "segnet", "segnet_basic", "shufflenet_v2", "ssd300_vgg16", "unet", "vgg16", "vgg19",
)  # fmt: skip

SLOW = ("googlenet", "vit_tiny")  # about ten seconds each

ONE_IMAGE = ("faster_rcnn_zf",)  # Proposal takes one image
# The layers of these nets are compared, not their outputs. Of thousands of detections two have scores so near that rounding swaps their rows; of two
# nearly equal values in a pooling window rounding chooses the other one, and Upsample puts it elsewhere.
SWAPPED = ("mobilenet_yolov3_lite", "point_shapes", "segnet", "segnet_basic")


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.sweep if name in LONG else pytest.mark.long if name in SLOW else ()) for name in zoo()])
def test_zoo(name: str, device: Any) -> None:
    message = upgrade_net(read_net(str(ZOO / name / "deploy.prototxt")))
    batches = (1,) if name in ONE_IMAGE else (1, 3)
    exported = export(message, random_weights(message), Options(dynamic_batch=len(batches) > 1))
    found = verify(exported, [random_inputs(exported.graph, batch=batch) for batch in batches], device)
    assert found.share <= 1 if name in SWAPPED else found.worst <= 1e-4


@pytest.mark.skipif(not REAL.is_dir(), reason="../shared/real is not here")
@pytest.mark.parametrize(("folder", "net"), [("lenet_ljf", "lenet"), ("mtcnn_det3", "det3"), ("ultralight_RFB320", "RFB-320")])
@pytest.mark.parametrize("fold", [False, True], ids=["plain", "folded"])
def test_models_of_others(folder: str, net: str, fold: bool, device: Any) -> None:
    (weights,) = (REAL / "models" / folder).glob("*.caffemodel")
    exported = export(str(REAL / "models" / folder / f"{net}.prototxt"), str(weights), Options(dynamic_batch=True, fold=fold))
    assert verify(exported, [random_inputs(exported.graph, batch=batch) for batch in (1, 3)], device).worst <= 1e-4


PUBLIC: dict[str, dict[str, tuple[int, ...]]] = {  # part of a path, shapes of data tops
    "MobileNet-SSD/voc/MobileNetSSD_test": {"data": (1, 3, 300, 300)},
    "shufflenet_v2_1x_deploy": {},
    "SqueezeNet_v1.1/train_val": {"data": (1, 3, 227, 227)},
    "resnet_110/test": {"data": (1, 3, 32, 32)},
    "tsn_bn_inception_rgb_train_val": {"data": (1, 9, 224, 224)},
}


@pytest.mark.skipif(not REAL.is_dir(), reason="../shared/real is not here")
@pytest.mark.parametrize("part", PUBLIC)
def test_public_prototxts(part: str, device: Any) -> None:
    (file,) = (path for path in (REAL / "prototxts").rglob("*.prototxt") if part in str(path))
    options = Options(shapes=PUBLIC[part], activate=True, dynamic_batch=True)
    message = upgrade_net(read_net(str(file), allow_unknown_fields=True))
    deployed = deploy(phase_net(message, proto.TEST), shapes=options.shapes, activate=True).message
    exported = export(message, random_weights(deployed), options)
    assert verify(exported, [random_inputs(exported.graph, batch=batch) for batch in (1, 2)], device).worst <= 1e-4
