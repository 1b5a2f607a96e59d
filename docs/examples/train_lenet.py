"""Train LeNet on handwritten digits, the nets and the solver written in Python.

    python train_lenet.py DIR [iterations]

The digits are scikit-learn's, which need no network (`ocaffe dataset mnist DIR` makes MNIST in the same form). DIR gets the databases, the prototxts, and
lenet.caffemodel with deploy.prototxt, which the other examples take.
"""
from __future__ import annotations

import sys
from pathlib import Path

import ocaffe as caffe
from ocaffe import layers as L
from ocaffe import params as P
from ocaffe.cli.dataset import make
from ocaffe.proto import caffe_pb2

BATCH, TEST_BATCH, TEST_BATCHES = 64, 60, 6  # the 360 images for testing in six batches


def body(n: caffe.NetSpec) -> None:
    """What all three nets have in common. `n.data` is there already."""
    weights = dict(type="xavier")
    learn = [dict(lr_mult=1), dict(lr_mult=2)]
    n.conv1 = L.Convolution(n.data, kernel_size=5, num_output=20, weight_filler=weights, param=learn)
    n.pool1 = L.Pooling(n.conv1, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    n.conv2 = L.Convolution(n.pool1, kernel_size=5, num_output=50, weight_filler=weights, param=learn)
    n.pool2 = L.Pooling(n.conv2, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    n.ip1 = L.InnerProduct(n.pool2, num_output=500, weight_filler=weights, param=learn)
    n.relu1 = L.ReLU(n.ip1, in_place=True)
    n.ip2 = L.InnerProduct(n.relu1, num_output=10, weight_filler=weights, param=learn)


def learning_net(database: Path, batch: int) -> str:
    n = caffe.NetSpec()
    scale = dict(scale=1 / 256)
    n.data, n.label = L.Data(source=str(database), backend=P.Data.LMDB, batch_size=batch, transform_param=scale, ntop=2)
    body(n)
    n.accuracy = L.Accuracy(n.ip2, n.label, include=dict(phase=caffe.TEST))
    n.loss = L.SoftmaxWithLoss(n.ip2, n.label)
    return str(n.to_proto())


def deploy_net() -> str:
    n = caffe.NetSpec()
    n.data = L.Input(shape=dict(dim=[1, 1, 28, 28]))
    body(n)
    n.prob = L.Softmax(n.ip2)
    return str(n.to_proto())


def main(folder: Path, iterations: int) -> None:
    if not (folder / "digits_train_lmdb").exists():
        make("digits", str(folder), None)
    (folder / "train.prototxt").write_text(learning_net(folder / "digits_train_lmdb", BATCH))
    (folder / "test.prototxt").write_text(learning_net(folder / "digits_test_lmdb", TEST_BATCH))
    (folder / "deploy.prototxt").write_text(deploy_net())

    solver_param = caffe_pb2.SolverParameter()
    solver_param.train_net = str(folder / "train.prototxt")
    solver_param.test_net.append(str(folder / "test.prototxt"))
    solver_param.test_iter.append(TEST_BATCHES)
    solver_param.test_interval = iterations + 1  # the loop below tests when it likes
    solver_param.test_initialization = False
    solver_param.base_lr, solver_param.momentum, solver_param.weight_decay = 0.01, 0.9, 0.0005
    solver_param.lr_policy, solver_param.gamma, solver_param.power = "inv", 0.0001, 0.75
    solver_param.max_iter, solver_param.random_seed = iterations, 1
    solver_param.snapshot_prefix = str(folder / "lenet")

    with caffe.get_solver(solver_param) as solver:
        every = max(1, iterations // 4)
        while solver.iter < iterations:
            solver.step(min(every, iterations - solver.iter))
            loss = float(solver.net.blobs["loss"].data)
            test = solver.test_nets[0]
            right = [float(test.forward()["accuracy"]) for _ in range(TEST_BATCHES)]
            print(f"iteration {solver.iter}: loss {loss:.3f}, accuracy {sum(right) / len(right):.3f}")
        solver.net.save(str(folder / "lenet.caffemodel"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1000)
