"""The scores of weights over a whole test: means of outputs, and the sums of detectors and segmentations over all images."""
from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ocaffe import proto
from ocaffe.cl.device import Device
from ocaffe.cl.session import Session
from ocaffe.compiler.network import Network, phase_net
from ocaffe.formats.text import read_net
from ocaffe.formats.weights import read_weights
from ocaffe.graph.options import NetOptions
from ocaffe.parallel.world import ALONE
from ocaffe.solver.average_precision import Detections
from ocaffe.solver.scoring import Means, detections_of, restart_scores, run_batches, segmentation_counts


class Scores(NamedTuple):
    """`outputs`: the mean of each output with one value. `detections`, `segmentations`: by output, of DetectionEvaluate and SegAccuracy layers."""

    outputs: dict[str, float]
    detections: dict[str, Detections]
    segmentations: dict[str, np.ndarray]


def whole_test(net: str, weights: str, device: Device, batches: int, version: str) -> Scores:
    """Return the scores of the TEST net in the prototxt `net`, over `batches` batches. `version`: the rule of the average precision. Raise Error."""
    options = NetOptions(backward=False, prepack_weights=True)
    network = Network(phase_net(read_net(net), proto.TEST), proto.TEST, Session(device, False, apart=1), weights=[read := read_weights(weights)])
    network.limit_labels()
    network.fill_parameters()
    network.copy_weights(read)
    network.inputs.start()
    try:
        means = Means(detections_of(network.graph, version))
        restart_scores(network, ALONE)
        for compiled, fetched in run_batches(network, options, batches):
            means.add(network.loss(compiled, fetched), network.output_values(compiled, fetched))
        outputs = {name: float(values[0]) for name, values, _ in means.outputs if len(values) == 1}
        return Scores(outputs, dict(means.detections), segmentation_counts(network.graph, ALONE))
    finally:
        network.close()
