"""Two ranks score detectors and segmentations as one does."""
from __future__ import annotations

import pathlib
import re
from typing import Any

import h5py
import numpy as np

from ocaffe import proto
from tests.layers.test_detection_evaluate import batch
from tests.parallel.launch import environment, finished, needs_mpi, python

ROWS, BATCHES = 16, 5
NET = f"""
layer {{ name: "rows" type: "HDF5Data" top: "det" top: "gt" top: "scores" top: "label" hdf5_data_param {{ source: "list.txt" batch_size: {ROWS} }} }}
layer {{ name: "det1" type: "Reshape" bottom: "det" top: "det1" reshape_param {{ shape {{ dim: 1 dim: 1 dim: -1 dim: 7 }} }} }}
layer {{ name: "gt1" type: "Reshape" bottom: "gt" top: "gt1" reshape_param {{ shape {{ dim: 1 dim: 1 dim: -1 dim: 8 }} }} }}
layer {{ name: "eval" type: "DetectionEvaluate" bottom: "det1" bottom: "gt1" top: "eval" detection_evaluate_param {{ num_classes: 4 }} }}
layer {{ name: "ip" type: "InnerProduct" bottom: "scores" top: "ip" inner_product_param {{ num_output: 4 }} }}
layer {{ name: "seg" type: "SegAccuracy" bottom: "ip" bottom: "label" top: "seg" }}
"""


def rows_of(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return detections and true boxes of a batch, filled up with rows without a box."""
    found, true = np.full((ROWS, 7), -1.0), np.full((ROWS, 8), -1.0)
    for whole, part in zip((found, true), batch(rng)):
        whole[: len(part)] = part[:ROWS]
    return found, true


@needs_mpi
def test_two_ranks(device: Any, tmp_path: pathlib.Path) -> None:
    """The third of five batches and the last one belong to rank 0."""
    variables, rng = environment(device), np.random.default_rng(5)
    data = {"scores": rng.normal(0, 1, (ROWS * BATCHES, 4)), "label": rng.integers(0, 4, (ROWS * BATCHES, 1))}
    data["det"], data["gt"] = (np.concatenate(part) for part in zip(*(rows_of(rng) for _ in range(BATCHES))))
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        for name, array in data.items():
            file[name] = np.float32(array)
    (tmp_path / "list.txt").write_text(f"{tmp_path}/rows.h5\n")
    (tmp_path / "net.prototxt").write_text(NET)
    weights = proto.NetParameter(layer=[proto.LayerParameter(name="ip")])
    for values in (np.eye(4), np.zeros(4)):
        weights.layer[0].blobs.add(data=values.ravel()).shape.dim.extend(values.shape)
    (tmp_path / "net.caffemodel").write_bytes(weights.SerializeToString())
    command = ["-m", "ocaffe", "test", "--model", "net.prototxt", "--weights", "net.caffemodel", "--iterations", str(BATCHES), "--scores", "scores.json"]
    printed, written = [], []
    for ranks in (1, 2):
        printed.append(finished(python(ranks, *command), tmp_path, variables).stdout)
        written.append((tmp_path / "scores.json").read_text())
    one, two = (re.findall(r"^(?:eval|seg/mean_iou|seg\[\d\]) .*$", text, re.M) for text in printed)
    assert one == two and len(one) == 5, "\n".join(printed)
    assert written[0] == written[1] and '"seg/mean_iou"' in written[0]
    assert re.match(r"eval +0\.\d+", one[0])
