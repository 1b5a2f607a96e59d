"""Make a net smaller while a test still finds the difference."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.oracle.case import Case, Shape, Step
from tests.oracle.judge import Finding

SIMPLER: Sequence[dict[str, Any]] = ({"steps": [Step()]}, {"form": "today"}, {"stages": (), "level": 0}, {"kept": None}, {"debug": ""})
Test = Callable[[Case], list[Finding]]


def shrink(case: Case, test: Test, kind: str, most: int = 60) -> Case:
    """Drop layers, passes and forms while `test` finds something of the part `kind`. It runs at most `most` times.

    A blob whose layer is dropped becomes an input.
    """
    left = most

    def fails(smaller: Case) -> bool:
        nonlocal left
        left -= 1
        return any(finding.part == kind for finding in test(smaller))

    for fields in SIMPLER:
        simpler = case.changed(**fields)
        if left and simpler != case and fails(simpler):
            case = simpler
    again = True
    while again:
        again = False
        for index in reversed(range(len(case.net.layer))):
            if index >= len(case.net.layer) or case.net.layer[index].type == "Input" or not left:
                continue
            smaller = without(case, index)
            if smaller is not None and fails(smaller):
                case, again = smaller, True
    return unread(case)


def without(case: Case, index: int) -> Case | None:
    """The case without a layer, or None if an input in its place would need a shape that is not known."""
    net = type(case.net)()
    net.CopyFrom(case.net)
    dropped = net.layer[index]
    del net.layer[index]
    needed = [top for top in dropped.top if top not in dropped.bottom and any(top in layer.bottom for layer in net.layer[index:])]
    if any(top not in case.shapes for top in needed):
        return None
    inputs = dict(case.inputs)
    for number, top in enumerate(needed):
        _insert(net, index + number, top, case.shapes[top])
        inputs[top] = ("normal", 1.0)
    ends = {top for layer in net.layer for top in layer.top}
    diffs = [name for name in {*case.diffs, *dropped.bottom} if name in ends] if case.diffs else []
    kept = None if case.kept is None else [*case.kept, *needed, *diffs]
    return unread(case.changed(net=net, inputs=inputs, kept=kept, diffs=diffs))


def _insert(net: Any, index: int, name: str, shape: Shape) -> None:
    layers = list(net.layer)
    made = type(layers[0])(name=name, type="Input", top=[name])
    made.input_param.shape.add(dim=shape)
    del net.layer[:]
    net.layer.extend([*layers[:index], made, *layers[index:]])


def unread(case: Case) -> Case:
    """The case without the inputs that no layer reads."""
    net = type(case.net)()
    net.CopyFrom(case.net)
    read = {bottom for layer in net.layer for bottom in layer.bottom}
    kept = [layer for layer in net.layer if layer.type != "Input" or set(layer.top) & read]
    if not kept:
        return case
    net.ClearField("layer")
    net.layer.extend(kept)
    names = {top for layer in kept for top in layer.top}
    steps = [Step({name: shape for name, shape in step.shapes.items() if name in names}, step.reshape) for step in case.steps]
    kept = None if case.kept is None else sorted(names & set(case.kept))
    return case.changed(net=net, kept=kept, inputs={name: spec for name, spec in case.inputs.items() if name in names}, steps=steps)
