"""The estimate of Caffe's memory (ocaffe/memory/caffe_estimate.py), compared with measured allocations of BVLC Caffe.

In the measurements data came from Input layers, so there were no prefetched batches.
"""
from __future__ import annotations

import pathlib

import pytest

from ocaffe import proto
from ocaffe.compiler.network import phase_net
from ocaffe.formats.text import read_net
from ocaffe.graph.build import build
from ocaffe.memory.caffe_estimate import SOLVER_BLOBS, caffe_memory

pytestmark = pytest.mark.quick

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SEEN = [  # net, batch, phase, MiB on Caffe's heap
    ("alexnet", 256, "TRAIN", 4069), ("alexnet", 64, "TRAIN", 1553), ("googlenet", 64, "TRAIN", 5052), ("vgg16", 64, "TRAIN", 9712),
    ("resnet50", 64, "TRAIN", 21556),
    ("alexnet", 64, "TEST", 741), ("googlenet", 64, "TEST", 2300), ("vgg16", 64, "TEST", 4934), ("resnet50", 64, "TEST", 11984),
]  # fmt: skip


@pytest.mark.parametrize(("net", "batch", "phase", "seen"), SEEN)
def test_rules_give_what_was_seen(net: str, batch: int, phase: str, seen: int) -> None:
    message = read_net(str(ROOT / f"zoo/{net}/train_val.prototxt"))
    for layer in message.layer:
        if layer.type == "Data":
            size = layer.transform_param.crop_size
            layer.type = "DummyData"
            for dims in ((batch, 3, size, size), (batch,)):
                layer.dummy_data_param.shape.add().dim.extend(dims)
    graph = build(phase_net(message, getattr(proto, phase)), getattr(proto, phase))
    train = phase == "TRAIN"
    found = caffe_memory(graph if train else None, [] if train else [graph], SOLVER_BLOBS["SGD"])
    assert sum(found.values()) / 2**20 == pytest.approx(seen, rel=0.004)
