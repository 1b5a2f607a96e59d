"""Losses and accuracy."""
from __future__ import annotations

from typing import Any

from tests.oracle.case import count
from tests.oracle.draft import Draft, kind
from tests.oracle.values import Spec


def loss_fields(net: Draft, ignored: int | None) -> dict[str, Any]:
    fields = net.some(0.6, normalization=["FULL", "VALID", "BATCH_SIZE", "NONE"]) | net.some(0.2, normalize=[True, False])
    return {"loss_param": fields | ({"ignore_label": ignored} if ignored is not None else {})}


def scores_and_labels(net: Draft) -> tuple[str, str, int, int | None]:
    """A blob with scores, its labels, the axis of the classes as the prototxt has it, and the ignored label."""
    scores = net.blob(suits=lambda shape: len(shape) > 1)
    shape = net.shapes[scores]
    axis = net.random.randrange(len(shape)) if net.chance(0.4) else 1
    classes = shape[axis]
    ignored = net.pick(-1, 0, classes - 1, 255) if net.chance(0.4) else None
    spec: Spec = ("integers", 0, classes) if ignored is None else ("labels", 0, classes, ignored)
    rest = (*shape[:axis], *([1] if net.chance(0.4) else []), *shape[axis + 1 :]) or (1,)
    labels = net.input(rest, spec, "label")
    return scores, labels, axis - len(shape) if net.chance(0.3) else axis, ignored


@kind("SoftmaxWithLoss", weight=4)
def softmax_loss(net: Draft) -> None:
    scores, labels, axis, ignored = scores_and_labels(net)
    fields = {"softmax_param": {"axis": axis}} if axis != 1 or net.chance(0.2) else {}
    net.add("SoftmaxWithLoss", [scores, labels], open=False, **fields, **loss_fields(net, ignored))


@kind("InfogainLoss")
def infogain(net: Draft) -> None:
    scores, labels, axis, ignored = scores_and_labels(net)
    classes = net.shapes[scores][axis]
    gains = net.input(net.pick((classes, classes), (1, 1, classes, classes)), ("normal", 1.0), "gain")
    net.add("InfogainLoss", [scores, labels, gains], open=False, infogain_loss_param={"axis": axis}, **loss_fields(net, ignored))


@kind("MultinomialLogisticLoss")
def multinomial(net: Draft) -> None:
    samples, classes = net.pick(1, 2, 3), net.pick(1, 2, 4)
    scores = net.input((samples, classes, *net.pick((), (1, 1))), ("probabilities",))
    net.add("MultinomialLogisticLoss", [scores, net.input((samples,), ("integers", 0, classes), "label")], open=False)


@kind("SigmoidCrossEntropyLoss", weight=3)
def sigmoid_loss(net: Draft) -> None:
    scores = net.blob()
    ignored = net.pick(-1, 0, 1) if net.chance(0.4) else None
    spec: Spec = net.pick(("unit",), ("bits", 0.5)) if ignored is None else ("labels", 0, 2, ignored)
    net.add("SigmoidCrossEntropyLoss", [scores, net.input(net.shapes[scores], spec, "label")], open=False, **loss_fields(net, ignored))


@kind("EuclideanLoss")
def euclidean(net: Draft) -> None:
    name = net.blob()
    net.add("EuclideanLoss", [name, net.like(net.shapes[name])], open=False)


@kind("HingeLoss")
def hinge(net: Draft) -> None:
    name = net.blob(suits=lambda shape: len(shape) > 1)
    shape = net.shapes[name]
    labels = net.input(shape[:1], ("integers", 0, count(shape[1:])), "label")
    net.add("HingeLoss", [name, labels], open=False, hinge_loss_param=net.some(norm=["L1", "L2"]))


@kind("ContrastiveLoss")
def contrastive(net: Draft) -> None:
    shape = (net.pick(1, 2, 4), net.pick(1, 3), *net.pick((), (1, 1)))
    fields = net.some(margin=[1, 3, 10], legacy_version=[True, False])
    net.add("ContrastiveLoss", [net.data(shape), net.data(shape), net.input(shape[:1], ("bits", 0.5), "same")], open=False, contrastive_loss_param=fields)


@kind("Accuracy", weight=3)
def accuracy(net: Draft) -> None:
    scores, labels, axis, ignored = scores_and_labels(net)
    classes = net.shapes[scores][axis]
    fields = net.some(0.4, top_k=[net.random.randint(1, classes + net.chance(0.1))]) | ({"axis": axis} if axis != 1 else {})
    if ignored is not None:
        fields["ignore_label"] = ignored
    net.add("Accuracy", [scores, labels], 2 if net.chance(0.3) else 1, open=False, accuracy_param=fields)
