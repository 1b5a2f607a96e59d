"""Signs in the losses of a training that it cannot succeed: values that are not finite, that grow at once, or that stay 0."""
from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from ocaffe.ir.graph import Graph
from ocaffe.support.log import number

DIVERGED = (
    "labels must be below the number of scores (`ocaffe lint` checks this), data in a sane range; else a lower base_lr, warmup_iter or clip_gradients; "
    "debug_info: true shows the first layer with such values"
)
FIRST = 50  # iterations in which growth is watched
ZEROS = 10  # iterations with a loss of 0, after which it is reported
SPAN = 5  # losses whose mean is compared with the first ones, because those of small batches vary
FLAT = 500  # iterations after which a loss that is still that of a guess is reported
FLAT_SHARE = 0.01  # of that loss: the largest difference of the mean of the last losses
MEANT = 50  # losses in that mean
GROWTH = 10  # times the largest of the first losses
NEW_GROWTH = 2  # times the first loss of a detector with new predictions, which all batches have in common; rates ten times too high reach 2.2
UNLEARNED = {  # by a layer: the reason for a loss of 0, and the subjects of the rules
    "MultiBoxLoss": ("no box of the batches matches a prior", "boxes, labels and priors"),
    "AnchorTarget": ("no anchor lies inside the images", "boxes, labels and anchors"),
}


class FirstLosses:
    """Warns of each sign once. Growth and zeros are watched in trainings that begin with iteration 0."""

    def __init__(self, param: Any, graph: Graph, copied: set[int]) -> None:
        """`param` is the SolverParameter, `copied` has the ids of the parameters that files of weights have set."""
        self.param = param
        types = {node.layer.type for node in graph.nodes}  # of a Python layer: that of its module
        self._boxes = "MultiBoxLoss" in types
        self._reason, self._checked = next((each for kind, each in UNLEARNED.items() if kind in types), ("nothing is learned", "the labels"))
        self._new = self._boxes and any(id(parameter) not in copied for parameter in graph.params)
        self._losses: list[float] = []
        self._guess = _guess(graph)
        self._last: deque[float] = deque(maxlen=MEANT)
        self._open = {"infinite", "zero", "grown", "flat"}  # signs that were not reported

    def add(self, loss: float, iteration: int) -> Iterator[str]:
        """Yield warnings after a pass of `iteration`."""
        rate = f"base_lr {self.param.base_lr:g}"
        lint = f"`ocaffe lint` with this solver checks {self._checked}"
        if not self._losses and iteration:
            self._open -= {"zero", "grown", "flat"}
        if not np.isfinite(loss):
            if "infinite" in self._open:
                yield f"Iteration {iteration}: the loss is {number(loss)} with {rate}; no snapshot is written if weights are NaN or infinite: {DIVERGED}"
            self._open.clear()
        yield from self._flat(loss, iteration, rate)
        if iteration >= FIRST or not self._open & {"zero", "grown"}:
            return
        self._losses.append(loss)
        if "zero" in self._open and iteration == ZEROS - 1:
            self._open.remove("zero")
            if not any(self._losses):
                yield f"Iteration {iteration}: the loss was 0 in all iterations: {self._reason}; {lint}"
        first, last = self._losses[0], float(np.mean(self._losses[-SPAN:]))
        limit = NEW_GROWTH * first if self._new else GROWTH * max(map(abs, self._losses[:SPAN]))
        if "grown" in self._open and len(self._losses) > SPAN and last > limit > 0:
            self._open.remove("grown")
            remedy = f"lower it to {self.param.base_lr / 10:g}, or set warmup_iter or clip_gradients"
            yield f"Iteration {iteration}: the loss grew from {number(first)} to {number(last)} with {rate}: {remedy}; {lint}"

    def _flat(self, loss: float, iteration: int, rate: str) -> Iterator[str]:
        """Yield a warning if the loss is still that of a guess after FLAT iterations."""
        if self._guess is None or "flat" not in self._open or iteration > FLAT:
            return
        self._last.append(loss)
        classes, value = self._guess
        if iteration == FLAT and abs(float(np.mean(self._last)) - value) < FLAT_SHARE * value:
            self._open.remove("flat")
            rates = f"base_lr {self.param.base_lr * 10:g} and {self.param.base_lr / 10:g}"
            remedy = f"try {rates}, weight_filler xavier or msra, and check that images and labels belong together"
            yield f"Iteration {iteration}: the loss is still {number(np.mean(self._last))}, that of a guess among {classes} classes, with {rate}: {remedy}"


def _guess(graph: Graph) -> tuple[int, float] | None:
    """Return the number of classes and the loss of equal scores, ln(classes) times its weight, of a net with one softmax loss; else None."""
    losses = [node for node in graph.nodes if any(top.loss_weight for top in node.tops)]
    if len(losses) != 1 or losses[0].layer.param.type != "SoftmaxWithLoss" or len(losses[0].bottoms[0].shape) < 2:
        return None
    axis = losses[0].layer.param.softmax_param.axis
    classes = losses[0].bottoms[0].shape[axis]
    return (classes, float(np.log(classes)) * losses[0].tops[0].loss_weight) if classes > 1 else None
