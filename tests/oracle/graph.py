"""What is before and after what in a net, for the tables."""
from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.formats.filter import filter_net
from ocaffe.graph.splits import insert_splits
from ocaffe.layers.base import registry
from tests.oracle.case import Case

UNDEFINED = (  # types that compare values, or multiply them by 0
    "Accuracy", "ArgMax", "Pooling", "SPP", "Eltwise", "Threshold", "Clip", "ReLU", "ReLU6", "PReLU", "ELU", "BNLL", "ROIPooling", "HingeLoss",
    "Normalize",
)  # fmt: skip
OWNERS = ("LSTM", "RNN", "Parameter")  # types whose tops share memory with blobs of the layer
VIEWS = ("Reshape", "Flatten", "Split")


class Graph:
    """The layers of a case after the rules and the splits, with the paths between them. A blob that is changed in place has one name and all paths."""

    def __init__(self, case: Case, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays = arrays  # Caffe's
        state = proto.NetState(phase=case.phase, level=case.level, stage=case.stages)
        try:
            self.net = insert_splits(filter_net(case.built, state))
        except Error:
            self.net = case.built
        self.layers = {layer.name: layer for layer in self.net.layer}
        self.weighted = {top for layer in self.net.layer for top, weight in zip(layer.top, loss_weights(layer)) if weight}
        self.learning: set[str] = set()  # layers with such a parameter
        self.learned: set[str] = set()  # blobs with a learned parameter before them
        for layer in self.net.layer:
            rates = [*(spec.lr_mult for spec in layer.param), *[1.0] * 10]
            learns = any(rate for rate, learned in zip(rates, _parameters(case, layer)) if learned) and not layer.bn_param.frozen
            if learns:
                self.learning.add(layer.name)
            if learns or self.net.force_backward or any(bottom in self.learned for bottom in layer.bottom):
                self.learned.update(layer.top)

        self.backward, self.down = _needs(self.net, self.learning, self.weighted)
        self.of_caffe = _needs(self.net, {layer.name for layer in self.net.layer if _learns_in_caffe(case, layer)}, self.weighted)
        self.needed = self._needed()  # blobs whose diffs a backward pass computes or reads

    def _needed(self) -> set[str]:
        wanted: set[str] = set()
        needed: set[str] = set()
        for layer in reversed(self.net.layer):
            if not (set(layer.top) & (wanted | self.weighted) or (self.net.force_backward and layer.top)):
                continue
            asked = list(layer.propagate_down) or [True] * len(layer.bottom)
            passed = [bottom for bottom, down in zip(layer.bottom, asked) if down and bottom in self.learned]
            if passed or layer.name in self.learning:
                wanted.update(passed)
                needed.update(passed, layer.top if self.net.force_backward else set(layer.top) & (wanted | self.weighted))
        return needed

    def learns(self, layer: Any, index: int) -> bool:
        """Whether Caffe computes the gradient of a parameter."""
        rates = [spec.lr_mult for spec in layer.param]
        return bool(self.net.force_backward or index >= len(rates) or rates[index])

    def sharing(self, name: str) -> list[str]:
        """The layers that share a parameter with a layer."""
        shared = {spec.name for spec in self.layers[name].param if spec.name} if name in self.layers else set()
        return [layer.name for layer in self.net.layer if any(spec.name in shared for spec in layer.param)]

    def around(self, name: str) -> tuple[set[str], set[str]]:
        """The names of the layers before and after a blob or layer, with those that make or read it."""
        before: set[str] = set()
        after: set[str] = set()
        blobs = {name, *(self.layers[name].bottom if name in self.layers else ())}
        for layer in reversed(self.net.layer):
            if layer.name == name or blobs & set(layer.top):
                before.add(layer.name)
                blobs.update(layer.bottom)
        blobs = {name, *(self.layers[name].top if name in self.layers else ())}
        for layer in self.net.layer:
            if layer.name == name or blobs & set(layer.bottom):
                after.add(layer.name)
                blobs.update(layer.top)
        return before, after

    def types_before(self, name: str) -> set[str]:
        return {self.layers[layer].type for layer in self.around(name)[0]}

    def types_after(self, name: str) -> set[str]:
        return {self.layers[layer].type for layer in self.around(name)[1]}


def shares(layer: Any) -> bool:
    """Whether Caffe's top has the memory of the bottom."""
    own = layer.permute_param
    same = layer.type == "Permute" and list(own.order) == list(range(len(own.order)))
    return layer.type in VIEWS or same or (layer.type in ("Slice", "Concat") and len(layer.top) == len(layer.bottom) == 1)


def _needs(net: Any, learning: set[str], weighted: set[str]) -> tuple[set[str], dict[str, list[bool]]]:
    """The layers that run backward, and for each layer the bottoms to which it passes a gradient. The rules are those of Net::Init of Caffe."""
    known: set[str] = set()  # blobs with a gradient, from the front
    backward: set[str] = set()
    down: dict[str, list[bool]] = {}
    for layer in net.layer:
        down[layer.name] = list(layer.propagate_down) or [bottom in known for bottom in layer.bottom]
        if layer.name in learning or known & set(layer.bottom):
            backward.add(layer.name)
            known.update(layer.top)
    under: set[str] = set()  # blobs that a loss depends on
    cut: set[str] = set()  # blobs to which a reader passes nothing
    for layer in reversed(net.layer):
        counts = bool(set(layer.top) & (weighted | under))
        skipped = layer.name in backward and set(layer.top) <= cut
        if skipped or not counts:
            backward.discard(layer.name)
            down[layer.name] = [False] * len(layer.bottom)
        under.update(layer.bottom if counts else ())
        cut.update(bottom for bottom, passed in zip(layer.bottom, down[layer.name]) if not passed)
    if net.force_backward:
        backward = {layer.name for layer in net.layer}
        for layer in net.layer:
            closed = {"LSTMUnit": (2,), "ContrastiveLoss": (2,), "LSTM": (1,), "RNN": (1,), "EuclideanLoss": ()}
            without = closed.get(layer.type, (1,) if layer.type.endswith("Loss") else ())
            down[layer.name] = [passed or index not in without for index, passed in enumerate(down[layer.name])]
    for layer in net.layer:
        if layer.type in ("LSTM", "RNN") and layer.name in backward:  # their inner net computes the gradient of each input
            states = (2 if layer.type == "LSTM" else 1) * layer.recurrent_param.expose_hidden
            down[layer.name] = [passed or index in (0, 2)[: len(layer.bottom) - 1 - states] for index, passed in enumerate(down[layer.name])]
    return backward, down


def loss_weights(layer: Any) -> list[float]:
    return list(layer.loss_weight) or [1.0] * (layer.type in registry() and registry()[layer.type].is_loss)


def _parameters(case: Case, layer: Any) -> list[bool]:
    """For each parameter whether a solver can change it."""
    phase = proto.TRAIN if case.phase == "TRAIN" else proto.TEST
    try:
        made = registry()[layer.type].implementation(layer)(layer, phase)
        made.infer(*(case.shapes[_unsplit(bottom)] for bottom in layer.bottom))
        return [spec.learned for spec in made.parameters()]
    except (Error, KeyError):
        return []


def _learns_in_caffe(case: Case, layer: Any) -> bool:
    """Whether Net::Init counts a layer as one that learns. It reads lr_mult of the prototxt, so that the statistics of BatchNorm count."""
    rates = [*(spec.lr_mult for spec in layer.param), *[1.0] * 10]
    return any(rate for rate, _ in zip(rates, _parameters(case, layer)))


def _unsplit(blob: str) -> str:
    """The name of the blob of which a Split layer made this one."""
    return re.sub(r"_[^_]+_\d+_split_\d+$", "", blob)
