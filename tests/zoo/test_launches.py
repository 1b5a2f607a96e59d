"""The number of launches of a training step of the zoo's nets on an H100, from the plan. No device is needed."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ocaffe import proto
from ocaffe.cl import tuned_tables
from ocaffe.compiler.compile import compile_net
from ocaffe.compiler.network import phase_net
from ocaffe.formats.text import read_net, read_solver
from ocaffe.graph.build import build
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.ir.launch import Upload
from ocaffe.ir.target import Target
from ocaffe.solver.update import Updater
from ocaffe.support.switches import Switches
from tests.harness import preferring

ZOO = Path(__file__).parents[2] / "zoo"
H100 = Target(kind="gpu", runtime="nvidia", name="NVIDIA H100 80GB HBM3", compute_units=132, vector_width=4, local_memory=48 << 10,
              global_memory=80 << 30, free_memory=80 << 30, max_allocation=1 << 40, unified_memory=False, tensor_cores=True, device_fence="PTX")  # fmt: skip
BATCH = 64
IMAGES = {"lenet": (1, 28, 28), "resnet50": (3, 224, 224)}


@pytest.mark.parametrize(
    ("net", "math", "winograd", "most"),
    # Bounds of the present numbers. The goal for ResNet-50 is 450: Winograd's algorithm takes three launches, not one (docs/kernel-log.md, "Launches, again").
    [("lenet", "fp32", True, 22), ("lenet", "tf32", True, 22),
     ("resnet50", "fp32", True, 521), ("resnet50", "tf32", True, 506), ("resnet50", "fp32", False, 422)],
)
def test_a_step_takes_few_launches(net: str, math: str, winograd: bool, most: int) -> None:
    """With data on the device, SGD and the shipped tuned tables there are only kernels and no transfers."""
    target = replace(H100, math=math)
    target = replace(target, tuned=tuned_tables.merged(tuned_tables.shipped(target)))
    assert target.tuned.choices
    if not winograd:
        target = preferring(target, "direct")
    message = phase_net(read_net(str(ZOO / net / "train_val.prototxt")), proto.TRAIN)
    for layer in message.layer:
        if layer.type == "Data":
            layer.type = "DummyData"
            for dims in ((BATCH, *IMAGES[net]), (BATCH,)):
                layer.dummy_data_param.shape.add().dim.extend(dims)
    graph = build(message, proto.TRAIN)
    group = ParameterGroup(graph.params)
    update = Updater(group, read_solver(str(ZOO / net / "solver.prototxt")))
    schedule = compile_net(graph, group, target, NetOptions(), Switches(), update).recording.schedule
    assert not any(isinstance(launch, Upload) for launch in schedule)
    assert len(schedule) <= most
