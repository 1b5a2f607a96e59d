"""Fine-tune a trained net for another task: all layers but the last stay as they are.

    python finetune.py DIR [iterations]

DIR is that of train_lenet.py. The new task is to tell odd digits from even ones. Layers keep their names, so copy_from finds their weights; `lr_mult: 0`
freezes them, and nothing is computed for them in backward; the last layer has a new name and begins from its filler. Images come from arrays, by way of a
MemoryData layer.
"""
from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import ocaffe as caffe
from ocaffe import layers as L
from ocaffe import params as P
from ocaffe.proto import caffe_pb2
from ocaffe.tools.datasets.sets import SETS

BATCH = 60


def odd_or_even() -> caffe.NetSpec:
    n = caffe.NetSpec()
    frozen = [dict(lr_mult=0), dict(lr_mult=0)]
    n.data, n.label = L.MemoryData(batch_size=BATCH, channels=1, height=28, width=28, ntop=2)
    n.conv1 = L.Convolution(n.data, kernel_size=5, num_output=20, param=frozen)
    n.pool1 = L.Pooling(n.conv1, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    n.conv2 = L.Convolution(n.pool1, kernel_size=5, num_output=50, param=frozen)
    n.pool2 = L.Pooling(n.conv2, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    n.ip1 = L.InnerProduct(n.pool2, num_output=500, param=frozen)
    n.relu1 = L.ReLU(n.ip1, in_place=True)
    n.odd = L.InnerProduct(n.relu1, num_output=2, weight_filler=dict(type="xavier"))
    n.accuracy = L.Accuracy(n.odd, n.label)
    n.loss = L.SoftmaxWithLoss(n.odd, n.label)
    return n


def main(folder: Path, iterations: int) -> None:
    digits = SETS["digits"](None).parts["train"]
    rows = len(digits.labels) // BATCH * BATCH
    images, labels = digits.images[:rows] / np.float32(256), digits.labels[:rows] % 2

    param = caffe_pb2.SolverParameter(base_lr=0.05, lr_policy="fixed", momentum=0.9, max_iter=iterations, random_seed=1, snapshot_prefix=str(folder / "odd"))
    param.net_param.CopyFrom(odd_or_even().to_proto())
    with caffe.get_solver(param) as solver:
        solver.net.copy_from(str(folder / "lenet.caffemodel"))
        solver.net.set_input_arrays(images, labels)
        before = {name: blobs[0].data.copy() for name, blobs in solver.net.params.items()}
        for _ in range(4):
            solver.step(max(1, iterations // 4))
            print(f"iteration {solver.iter}: loss {float(solver.net.blobs['loss'].data):.3f}, accuracy {float(solver.net.blobs['accuracy'].data):.3f}")
        for name, blobs in solver.net.params.items():
            print(f"{name}: {'frozen' if np.array_equal(blobs[0].data, before[name]) else 'trained'}")
        solver.net.save(str(folder / "odd.caffemodel"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 200)
