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
    always applies. `log` gets Caffe's line for each rule that does not apply. Layers that are left out are named in `excluded`, without their settings.
    Raises Error for a layer with both kinds of rule.
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
        if keeps(state, layer, log):
            filtered.layer.append(layer)
        else:
            filtered.excluded.add(name=layer.name, type=layer.type, top=layer.top, include=layer.include, exclude=layer.exclude, source_line=layer.source_line)
    return filtered


def keeps(state: Any, layer: Any, log: Log | None = None) -> bool:
    """Return whether the rules of `layer` keep it in `state`. `log` gets Caffe's line for each rule that does not apply."""
    applies = any(_meets(state, rule, layer.name, log) for rule in layer.include or layer.exclude)
    return applies if layer.include else not applies


def decisive_rule(state: Any, layer: Any) -> Any:
    """Return the rule that leaves out `layer` in `state`: the include rule with the fewest differences, or the exclude rule that applies."""
    if layer.include:
        return min(layer.include, key=lambda rule: len(_differences(state, rule)))
    return next(rule for rule in layer.exclude if not _differences(state, rule))


def _meets(state: Any, rule: Any, layer: str, log: Log | None) -> bool:
    reason = _difference(state, rule)
    if reason and log:
        log(f"The NetState {reason} specified by a rule in layer {layer}")
    return not reason


def _difference(state: Any, rule: Any) -> str:
    """Return the first reason why `state` does not match `rule`, or '' if it matches."""
    return next(iter(_differences(state, rule)), "")


def _differences(state: Any, rule: Any) -> list[str]:
    """Return why `state` does not match `rule`, in the words and the order of Caffe's log."""
    found = []
    if rule.HasField("phase") and rule.phase != state.phase:
        found.append(f"phase ({state.phase}) differed from the phase ({rule.phase})")
    if rule.HasField("min_level") and state.level < rule.min_level:
        # Caffe writes "above" here too, although the level is below. The line stays the same for log parsers.
        found.append(f"level ({state.level}) is above the min_level ({rule.min_level})")
    if rule.HasField("max_level") and state.level > rule.max_level:
        found.append(f"level ({state.level}) is above the max_level ({rule.max_level})")
    found += [f"did not contain stage '{stage}'" for stage in rule.stage if stage not in state.stage]
    found += [f"contained a not_stage '{stage}'" for stage in rule.not_stage if stage in state.stage]
    return found
