#!/usr/bin/env python3
"""Accuracy of LeNet on handwritten digits with and without augmentation, on the images of the test set.

    benchmarks/augmentation.py [--seeds 3] [--iterations 2000] [--fields "affine { rotation: 10 }"] [--device SPEC]

It makes the databases of `ocaffe dataset digits` in a temporary folder and trains lenet_digits with and without the
fields in transform_param, once for each seed, for the same number of iterations. It prints a table of test errors.
"""
import argparse
import pathlib
import statistics
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from google.protobuf import text_format  # noqa: E402

from ocaffe import log, proto  # noqa: E402
from ocaffe.cl.device import Device, select_device  # noqa: E402
from ocaffe.cli.dataset import make  # noqa: E402
from ocaffe.formats.text import read_net, read_solver  # noqa: E402
from ocaffe.solver.solver import Solver  # noqa: E402

FIELDS = "affine { rotation: 10 translation: 0.08 min_zoom: 0.9 max_zoom: 1.1 }"
TEST_IMAGES, TEST_BATCH = 360, 60


def test_error(folder: str, fields: str, seed: int, iterations: int, device: Device) -> float:
    """Train and return the share of wrong answers, in percent."""
    param = read_solver(str(ROOT / "zoo/lenet_digits/solver.prototxt"))
    net = read_net(str(ROOT / "zoo/lenet_digits/train_val.prototxt"))
    for layer in net.layer:
        if layer.type == "Data":
            part = "train" if proto.TRAIN in [rule.phase for rule in layer.include] else "test"
            layer.data_param.source = f"{folder}/digits_{part}_lmdb"
            if part == "train":
                text_format.Merge(fields, layer.transform_param)
            else:
                layer.data_param.batch_size = TEST_BATCH
    for name in ("net", "test_interval", "display", "snapshot"):
        param.ClearField(name)
    param.net_param.CopyFrom(net)
    param.test_interval, param.random_seed, param.max_iter = 10**9, seed, iterations
    param.snapshot_after_train = param.test_initialization = False
    del param.test_iter[:]
    param.test_iter.append(TEST_IMAGES // TEST_BATCH)
    solver = Solver(param, device)
    solver.step(iterations)
    accuracy = next(float(np.ravel(value)[0]) for name, value, *_ in solver.test(0) if name == "accuracy")
    solver.close()
    return 100 * (1 - accuracy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--fields", default=FIELDS)
    parser.add_argument("--device")
    options = parser.parse_args()
    log.quiet(2)
    device = select_device(options.device)
    with tempfile.TemporaryDirectory() as folder:
        make("digits", folder, None)
        print("| fields | test errors in %, by seed | mean |\n|---|---|---|")
        for fields in ("", options.fields):
            errors = [test_error(folder, fields, seed, options.iterations, device) for seed in range(1, options.seeds + 1)]
            print(f"| {f'`{fields}`' if fields else 'none'} | {', '.join(f'{error:.2f}' for error in errors)} | {statistics.mean(errors):.2f} |", flush=True)


if __name__ == "__main__":
    main()
