"""Counts of launches and fusions in the plans of the zoo's nets, without a device.

`python -m tests.zoo.counts` writes tests/zoo/counts.json, which tests/zoo/test_counts.py compares. Run it only after a change that should change the counts,
and say in the commit why they changed.
"""
from __future__ import annotations

import json
import pathlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ocaffe import log, proto
from ocaffe.cl import tuned_tables
from ocaffe.compiler.compile import CompiledNet, compile_net
from ocaffe.compiler.network import phase_net
from ocaffe.formats.text import read_net, read_solver
from ocaffe.graph.build import build
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.ir.launch import NO_ACTIVATION, Bias, Launch
from ocaffe.ir.target import Target
from ocaffe.kernels.expression.expression import Pointwise, Reduce
from ocaffe.solver.update import Updater
from ocaffe.support.switches import Switches
from ocaffe.zoo.templates import DATA, data_shapes

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILE = pathlib.Path(__file__).with_name("counts.json")
BATCH = 16
IMAGES = {
    "lenet": (1, 28, 28), "lenet_digits": (1, 28, 28), "vit_digits": (1, 28, 28), "cifar10_quick": (3, 32, 32), "alexnet": (3, 227, 227),
    "inception_v3": (3, 299, 299), "segnet": (3, 360, 480), "segnet_basic": (3, 360, 480), "unet": (1, 256, 256), "mtcnn_pnet": (3, 12, 12),
    "mtcnn_rnet": (3, 24, 24), "mtcnn_onet": (3, 48, 48), "ssd300_vgg16": (3, 300, 300), "mobilenet_ssd": (3, 300, 300), "ssd_shapes": (3, 128, 128),
    "crnn": (1, 32, 128), "faster_rcnn_zf": (3, 320, 480),
    "mobilenet_yolov3_lite": (3, 416, 416), "yolo_shapes": (3, 128, 128), "point_shapes": (3, 128, 128),
}  # fmt: skip
H100 = Target(kind="gpu", runtime="nvidia", name="NVIDIA H100 80GB HBM3", compute_units=132, vector_width=4, local_memory=48 << 10,
              global_memory=80 << 30, free_memory=80 << 30, max_allocation=1 << 40, unified_memory=False, tensor_cores=True, device_fence="PTX")  # fmt: skip
TARGETS = {
    "cpu": Target(max_allocation=1 << 40, vector_width=16),
    "gpu": Target(kind="gpu", compute_units=60, vector_width=4, max_allocation=1 << 40, unified_memory=False),
    "H100": H100,
    "H100 bf16": replace(H100, math="bf16"),
}
# more of the same layers as another net: no plan of them shows something new
REPEATED = frozenset({"efficientnet_lite1", "efficientnet_lite2", "vgg19", "resnet101", "resnet152"})
# counted in one phase and on one target, because their plans take seconds
LONG = {
    "densenet121": "TEST", "efficientnet_lite0": "TRAIN", "fcn8s": "TRAIN", "inception_v3": "TRAIN", "mobilenet_ssd": "TEST", "mobilenet_yolov3_lite": "TRAIN",
    "segnet": "TRAIN", "shufflenet_v2": "TRAIN", "ssd300_vgg16": "TRAIN", "unet": "TRAIN",
}  # fmt: skip
REDUCTIONS = {"1": "statistics", "2": "BatchNorm gradients", "3": "bias gradients"}  # values of the define CHANNEL_REDUCTION
MASKS = {"1": "ReLU backward by signs", "2": "ReLU backward by bits", "3": "ReLU backward by the pooled output"}  # of FUSED_RELU


def cases() -> Iterator[tuple[str, str, str]]:
    """Yield the nets with the phases and the targets for which they are counted."""
    for net in sorted(folder.name for folder in (ROOT / "zoo").iterdir() if (folder / "solver.prototxt").exists()):
        if net in LONG:
            yield net, LONG[net], "H100"
        elif net not in REPEATED:
            yield from ((net, phase, name) for phase in ("TRAIN", "TEST") for name in TARGETS)


def compiled(
    net: str, phase: str, target: Target, options: NetOptions | None = None, switches: Switches | None = None, batch: int = BATCH, data: str = "DummyData"
) -> CompiledNet:
    """The plan of a net of the zoo for a batch of constant data, in TRAIN with backward and update. `data`: the layer that supplies it, or "Input"."""
    target = replace(target, tuned=tuned_tables.merged(tuned_tables.shipped(target)))
    number = getattr(proto, phase)
    message = phase_net(read_net(str(ROOT / "zoo" / net / "train_val.prototxt")), number)
    for layer in message.layer:
        if layer.type in DATA:
            shapes = data_shapes(layer, batch, IMAGES.get(net, (3, 224, 224)))
            layer.type = data
            layer.ClearField("transform_param")
            for dims in shapes:
                (layer.input_param if data == "Input" else layer.dummy_data_param).shape.add().dim.extend(dims)
    graph = build(message, number)
    group = ParameterGroup(graph.params)
    update = Updater(group, read_solver(str(ROOT / "zoo" / net / "solver.prototxt"))) if phase == "TRAIN" else None
    return compile_net(graph, group, target, replace(options or NetOptions(), backward=phase == "TRAIN"), switches or Switches(), update)


def counted(net: str, phase: str, target: Target) -> dict[str, Any]:
    """Launches by kind, fusions by kind, and the launches that each pass removed or added."""
    found = compiled(net, phase, target)
    schedule = found.recording.schedule
    return {
        "launches": len(schedule),
        "plan_bytes": found.plan.total,
        "kinds": dict(sorted(Counter(kind(launch) for launch in schedule).items())),
        "fusions": dict(sorted(Counter(fusion for launch in schedule for fusion in fusions(launch)).items())),
        "passes": {each.name: each.after - each.before for each in found.passes if each.after != each.before},
    }


def kind(launch: Launch) -> str:
    if isinstance(launch.lower, Pointwise):
        return "pointwise"
    if isinstance(launch.lower, Reduce):
        return "reduction"
    return launch.what if launch.call is not None else type(launch).__name__


def fusions(launch: Launch) -> Iterator[str]:
    """The fusions that passes applied to a launch."""
    if launch.call is None:
        return
    defines = dict(launch.call.defines)
    if "CHANNEL_REDUCTION" in defines:
        yield REDUCTIONS[defines["CHANNEL_REDUCTION"]]
    if "FUSED_RELU" in defines:
        yield MASKS[defines["FUSED_RELU"]]
    if any(name.endswith("_T") and value == "bfloat" for name, value in launch.call.defines):
        yield "bfloat16 operands"
    if launch.epilogue is not None:
        if launch.scalar(launch.epilogue.bias) == Bias.TABLE:
            yield "epilogue with factors and offsets"
        activation = [launch.scalar(index) for index in launch.epilogue.activation]
        if "FUSED_RELU" not in defines and any(given != none for given, none in zip(activation, NO_ACTIVATION)):
            yield "epilogue with activation"
        if launch.phase == "forward" and launch.scalar(launch.epilogue.accumulate):
            yield "epilogue with residual sum"


def main() -> None:
    log.quiet(2)
    counts = {f"{net} {phase} {name}": counted(net, phase, TARGETS[name]) for net, phase, name in cases()}
    FILE.write_text(json.dumps(counts, indent=1) + "\n")
    print(f"{len(counts)} plans in {FILE}")


if __name__ == "__main__":
    main()
