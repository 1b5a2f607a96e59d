"""The zoo's nets with their data in memory, for the benchmarks of whole steps and their peers."""
from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ocaffe import proto  # noqa: E402
from ocaffe.compiler.network import phase_net  # noqa: E402
from ocaffe.formats.text import read_net  # noqa: E402

BATCHES = {"lenet": 64, "alexnet": 32, "googlenet": 16, "resnet50": 8, "vgg16": 4, "mobilenet_v2": 16}  # of a training step
SMALL = {"lenet": (1, 28, 28)}
IMAGE = (3, 224, 224)
CLASSES = 10  # labels are below this; every net has more classes


def resident(net: str, batch: int, phase: int) -> Any:
    """The NetParameter of one phase with an Input layer in place of its data layer, without Accuracy and (in TEST) the loss, which peers leave out."""
    message = phase_net(read_net(str(ROOT / "zoo" / net / "train_val.prototxt")), phase)
    kept = [layer for layer in message.layer if layer.type not in ("Data", "Accuracy") and (phase == proto.TRAIN or layer.type != "SoftmaxWithLoss")]
    crops = [layer.transform_param.crop_size for layer in message.layer if layer.type == "Data"]
    size = crops[0] or SMALL[net][1]
    result = proto.NetParameter(name=message.name)
    data = result.layer.add(name="data", type="Input", top=["data"])
    data.input_param.shape.add(dim=(batch, SMALL.get(net, IMAGE)[0], size, size))
    if phase == proto.TRAIN:
        data.top.append("label")
        data.input_param.shape.add(dim=(batch,))
    result.layer.extend(kept)
    for layer in result.layer:
        del layer.include[:]
    return result


def constant(message: Any) -> Any:
    """The same net with constants instead of inputs, so that a solver can run it."""
    result = proto.NetParameter()
    result.CopyFrom(message)
    for layer in result.layer:
        if layer.type == "Input":
            layer.type = "DummyData"
            for top, shape in zip(layer.top, layer.input_param.shape):
                layer.dummy_data_param.shape.add().CopyFrom(shape)
                layer.dummy_data_param.data_filler.add(type="constant", value=1.0 if top == "label" else 0.5)
            layer.ClearField("input_param")
    return result
