"""Errors for names of blobs: a bottom that no layer makes before it is read, and a top that two layers make."""
from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any

from ocaffe import proto
from ocaffe.errors import Error, Place, names_text
from ocaffe.formats.filter import decisive_rule
from ocaffe.formats.states import stages_of, ways_to_keep
from ocaffe.formats.text import write_text

NEAR = 0.6  # similarity of names that are suggested
_TESTED = re.compile(r'(?:name|source): "[^"]*(?:test|val)', re.I)  # in a data layer that is meant for the TEST phase


def unknown_bottom(net: Any, index: int, number: int) -> Error:
    """Return the error for bottom `number` of layer `index` of a filtered net, which no layer before it makes."""
    layer = net.layer[index]
    name = layer.bottom[number]
    reason, fix = next(answer for answer in _answers(net, index, name) if answer)
    fact = f"unknown bottom blob '{name}' (bottom {number}): {reason}"
    return Error(fact, place=Place.of(net.source_file, layer.source_line), layer=f"'{layer.name}' ({layer.type})", fix=fix)


def repeated_top(net: Any, layer: Any, other: Any, name: str) -> Error:
    """Return the error for the top `name` of `layer`, which the earlier layer `other` makes too."""
    fact = f"top blob '{name}' is produced by more than one layer: layer {_where(net, other)} makes it too"
    fix = f"give the top another name, such as '{name}_{layer.name}'"
    if name in layer.bottom:
        fix += ": in place works only before any other layer reads the blob"
    elif layer.bottom and other.bottom:
        fix += f', and add an Eltwise layer if \'{name}\' is to be the sum: bottom: "{name}" bottom: "{name}_{layer.name}"'
    if not layer.bottom and not other.bottom:
        fix = _phases(layer, other) or f"give the top another name, or rules to both layers: they apply together in phase {proto.Phase.Name(net.state.phase)}"
    return Error(fact, place=Place.of(net.source_file, layer.source_line), layer=f"'{layer.name}' ({layer.type})", fix=fix)


def _phases(layer: Any, other: Any) -> str:
    """Return the rules that keep two layers without bottoms apart, '' if they have rules that say more than a phase."""
    free = [each for each in (other, layer) if not each.include and not each.exclude]
    given = [rule for each in (other, layer) if each not in free for rule in (*each.include, *each.exclude)]
    if not free or any(name.name not in ("phase", "source_line") for rule in given for name, _ in rule.ListFields()):
        return ""
    if len(free) == 2:
        tested = bool(_TESTED.search(write_text(other))) and not _TESTED.search(write_text(layer))
        names = [f"'{each.name}'" + (f" in line {each.source_line}" if each.source_line else "") for each in (other, layer)]
        train, test = names[::-1] if tested else names
        without = " (phase: beside the layer's name has no effect)" if any(each.HasField("phase") for each in free) else ""
        return f"write include {{ phase: TRAIN }} in layer {train} and include {{ phase: TEST }} in layer {test}{without}"
    taken = [rule.phase for rule in given if rule.HasField("phase")]
    phase = "TRAIN" if proto.TEST in taken else "TEST"
    return f"write include {{ phase: {phase} }} in layer '{free[0].name}'" if taken else ""


def _answers(net: Any, index: int, name: str) -> Iterator[tuple[str, str] | None]:
    """Yield causes with their remedies, the likeliest first. The last one is not None."""
    yield _made_later(net, index, name)
    yield _left_out(net, name)
    yield _named_otherwise(net, index, name)
    yield _made_by_none(net, index, name)


def _made_later(net: Any, index: int, name: str) -> tuple[str, str] | None:
    layer = net.layer[index]
    later = next((number for number in range(index + 1, len(net.layer)) if name in net.layer[number].top and name not in net.layer[number].bottom), None)
    if later is not None:
        maker = net.layer[later]
        if _depends(net, later, index):
            fact = f"layer {_where(net, maker)} makes it from tops of this layer, which is a loop"
            return fact, f"give a bottom of '{maker.name}' or of '{layer.name}' another name"
        return f"layer {_where(net, maker)} makes it, but comes later", f"move layer '{maker.name}' before layer '{layer.name}'"
    if name in layer.top:
        return "only this layer itself has that top", _input(name)
    return None


def _depends(net: Any, maker: int, reader: int) -> bool:
    """Return whether layer `maker` reads, also through layers between, a top of the earlier layer `reader`."""
    reached = set(net.layer[reader].top)
    for layer in net.layer[reader + 1 : maker]:
        if reached & set(layer.bottom):
            reached |= set(layer.top)
    return bool(reached & set(net.layer[maker].bottom))


def _left_out(net: Any, name: str) -> tuple[str, str] | None:
    """Return the answer if rules leave out all layers that make the blob in this state."""
    makers = [layer for layer in net.excluded if name in layer.top]
    if not makers:
        return None
    reasons, ways = [], []
    for layer in makers:
        rule = decisive_rule(net.state, layer)
        text = " ".join(["include" if layer.include else "exclude", "{", *write_text(rule).split(), "}"])
        at = Place.of(net.source_file, rule.source_line)
        reasons.append(f"layer {_where(net, layer)} makes it, but its rule {text}{f' ({at})' if at else ''} leaves it out")
        way = ways_to_keep(net.state, layer)
        ways += [way] if way is not None and way not in ways else []
    stages = stages_of(net.state)
    state = f"phase {proto.Phase.Name(net.state.phase)}, level {net.state.level}, {f'stage {names_text(stages)}' if stages else 'no stage'}"
    last = f"remove the rule of '{makers[0].name}'" if len(makers) == 1 else f"give another layer the top '{name}'"
    if not ways:
        return f"{'; '.join(reasons)}. The net is built for {state}", last
    script, solver = f"in a script: {ways[0].script}", f"; in a solver: {ways[0].solver}" if ways[0].solver else ""
    return f"{'; '.join(reasons)}. The net is built for {state}", f"{' or '.join(way.flags for way in ways)} ({script}{solver}), or {last}"


def _named_otherwise(net: Any, index: int, name: str) -> tuple[str, str] | None:
    earlier = list(net.layer[:index])
    named = next((layer for layer in reversed(earlier) if layer.name == name and layer.top), None)
    if named is not None:
        return f"it is the name of layer {_where(net, named)}, whose top is '{named.top[0]}'", f'bottom: "{named.top[0]}"'
    tops = {top: layer for layer in earlier for top in layer.top}
    folded = {top.strip().lower(): top for top in tops}
    near = [folded[key] for key in difflib.get_close_matches(name.strip().lower(), folded, 1, NEAR)]
    if near:
        return f"no layer makes it, and layer {_where(net, tops[near[0]])} makes '{near[0]}'", f'did you mean bottom: "{near[0]}"?'
    return None


def _made_by_none(net: Any, index: int, name: str) -> tuple[str, str]:
    tops = list(dict.fromkeys(top for layer in net.layer[:index] for top in layer.top))
    if not tops:
        return "no layer comes before this one", _input(name)
    return f"no layer makes it; the blobs at this layer are {names_text(tops[::-1])}", f"name one of these, or begin the net with {_input(name)}"


def _input(name: str) -> str:
    return f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ dim: 1 dim: 3 dim: 224 dim: 224 }} }} }} (with your sizes)'


def _where(net: Any, layer: Any) -> str:
    place = Place.of(net.source_file, layer.source_line)
    return f"'{layer.name}' ({place})" if place else f"'{layer.name}'"
