"""The layers that learn normalised box targets. Tests and snapshots have weights that predict the targets themselves, as py-faster-rcnn writes them.

Source: rbgirshick/py-faster-rcnn and YuwenXiong/py-R-FCN, lib/fast_rcnn/train.py, SolverWrapper.snapshot.
"""
from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ocaffe.compiler.network import Network, node_shape
from ocaffe.formats.weights import Weights, fit
from ocaffe.ir.graph import Node
from ocaffe.support import log

LAYERS = re.compile(r"(bbox_pred|rfcn_bbox)(_\d+)?")  # with the number of classes in projects of `ocaffe new`
SUFFIX = "_normalized"  # of the layers of a snapshot that hold the weights as they are trained, for an exact resume


class BoxTargets:
    """The layers of `network` that learn normalised targets: none unless a data layer of ours gives it the boxes."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._trained: dict[str, list[np.ndarray]] = {}  # the weights as they are trained, while the net has the others
        self._factors: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # by layer: for each output, the factor, and the number to add
        nodes = network.graph.nodes
        normal = next((node.layer.box_normal for node in nodes if node.layer.box_normal is not None), None)
        if normal is None or not any(node.layer.type == "RoIData" for node in nodes):
            return
        means, deviations = normal
        for node in nodes:
            if LAYERS.fullmatch(node.name) and node.params:
                outputs = node.params[0].shape[0]
                if outputs % len(means):
                    fact = f"Layer '{node.name}' has {outputs} outputs, and there are {len(means)} targets"
                    log.warning("solver.cpp:464", f"{fact}: snapshots have its weights as they are trained")
                    continue
                self._factors[node.name] = tuple(np.repeat(each, outputs // len(means)) for each in (deviations, means))  # type: ignore[assignment]

    @property
    def trained(self) -> Mapping[str, Sequence[np.ndarray]]:
        """The weights as they are trained, by the names of layers in a snapshot; empty unless the net has the others."""
        return {name + SUFFIX: arrays for name, arrays in self._trained.items()}

    @contextlib.contextmanager
    def usable(self, wanted: bool = True) -> Iterator[None]:
        """Context in which the net predicts the targets themselves; with `wanted` False, the normalised ones. Contexts can be nested."""
        before = bool(self._trained)
        self._put(wanted)
        try:
            yield
        finally:
            self._put(before)

    def restore(self, weights: Weights) -> None:
        """Set the weights as they were trained, from those of a snapshot that has them."""
        stored = {layer.name: layer.blobs for layer in weights.layers}
        for node in self._nodes():
            for parameter, blob in zip(node.params, stored.get(node.name + SUFFIX, ())):
                values = None if blob is None else fit(blob, node_shape(parameter, node.name))
                if values is not None:
                    self.network.session.write(parameter.data, np.asarray(values, np.float32).reshape(parameter.shape))

    def _nodes(self) -> list[Node]:
        return [node for node in self.network.graph.nodes if node.name in self._factors]

    def _put(self, usable: bool) -> None:
        if usable == bool(self._trained):
            return
        session = self.network.session
        for node in self._nodes():
            if not usable:
                for parameter, array in zip(node.params, self._trained[node.name]):
                    session.write(parameter.data, array)
                continue
            arrays = self._trained[node.name] = [session.read(parameter.data).copy() for parameter in node.params]
            factor, shift = self._factors[node.name]
            for index, (parameter, array) in enumerate(zip(node.params, arrays)):
                scaled = array.reshape(len(factor), -1) * factor[:, None] + (shift[:, None] if index else 0)
                session.write(parameter.data, np.asarray(scaled, np.float32).reshape(array.shape))
        if not usable:
            self._trained.clear()
