"""Keep the layers of a net that its include and exclude rules allow in a given state (phase, level, stages)."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ocaffe import proto
from ocaffe.errors import Error, Place

Log = Callable[[str], None]


def filter_net(net: Any, state: Any = None, log: Log | None = None) -> Any:
    """Return a new net with the layers that apply in `state`, a NetState. The default is the net's own state.

    `state` becomes the `state` of the new net. Rules are OR-ed and the fields of one rule are AND-ed, so an empty rule
    always applies. `log` gets Caffe's line for each rule that does not apply. Raises Error for a layer with both kinds of rule.
    """
    state = net.state if state is None else state
    filtered = proto.NetParameter()
    filtered.CopyFrom(net)
    del filtered.layer[:]
    filtered.state.CopyFrom(state)
    for layer in net.layer:
        if layer.include and layer.exclude:
            raise Error(
                "the layer has include and exclude rules; only one kind is possible",
                place=Place(net.source_file or "net", layer.source_line),
                layer=f"{layer.name!r} ({layer.type})",
                fix="turn the exclude rules into include rules, or the other way round",
            )
        rules = layer.include or layer.exclude
        applies = any(_meets(state, rule, layer.name, log) for rule in rules)
        if applies if layer.include else not applies:
            filtered.layer.append(layer)
    return filtered


def _meets(state: Any, rule: Any, layer: str, log: Log | None) -> bool:
    reason = _difference(state, rule)
    if reason and log:
        log(f"The NetState {reason} specified by a rule in layer {layer}")
    return not reason


def _difference(state: Any, rule: Any) -> str:
    """Return why `state` does not match `rule`, in the words of Caffe's log, or '' if it matches."""
    if rule.HasField("phase") and rule.phase != state.phase:
        return f"phase ({state.phase}) differed from the phase ({rule.phase})"
    if rule.HasField("min_level") and state.level < rule.min_level:
        # Caffe writes "above" here too, although the level is below. The line stays the same for log parsers.
        return f"level ({state.level}) is above the min_level ({rule.min_level})"
    if rule.HasField("max_level") and state.level > rule.max_level:
        return f"level ({state.level}) is above the max_level ({rule.max_level})"
    for stage in rule.stage:
        if stage not in state.stage:
            return f"did not contain stage '{stage}'"
    for stage in rule.not_stage:
        if stage in state.stage:
            return f"contained a not_stage '{stage}'"
    return ""
