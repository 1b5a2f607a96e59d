"""The state (phase, level, stages) in which the rules of a layer would keep it, in the words of commands, scripts and solvers."""
from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ocaffe import proto
from ocaffe.errors import Error, names_text
from ocaffe.formats.filter import decisive_rule, keeps
from ocaffe.shown import flag, literal


class Ways(NamedTuple):
    """How to get a state: the flags of commands, the arguments of caffe.Net, and a field of the solver, which is '' for another phase."""

    flags: str
    script: str
    solver: str


def ways_to_keep(state: Any, layer: Any) -> Ways | None:
    """Return how to get the state, near to `state`, that keeps `layer`. `state` is a NetState that leaves it out. None if no single change keeps it."""
    wanted = next((each for each in _states(state, layer) if keeps(each, layer)), None)
    if wanted is None:
        return None
    phase = proto.Phase.Name(wanted.phase)
    changes = {"phase": wanted.phase != state.phase, "level": wanted.level != state.level, "stage": list(wanted.stage) != stages_of(state)}
    flags = {"phase": f"--phase={phase}", "level": f"--level={wanted.level}", "stage": flag("stage", ",".join(wanted.stage))}
    names = ", ".join(map(literal, wanted.stage))
    script = {"phase": f"caffe.{phase}", "level": f"level={wanted.level}", "stage": f"stages=[{names}]"}
    fields = {"level": f"level: {wanted.level}", "stage": " ".join(f"stage: {literal(stage)}" for stage in wanted.stage)}
    words = [[text for name, text in each.items() if changes[name]] for each in (flags, script, fields)]
    field = "train_state" if state.phase == proto.TRAIN else "test_state"
    return Ways(" ".join(words[0]), ", ".join(words[1]), "" if changes["phase"] else f"{field} {{ {' '.join(words[2])} }}")


def named_stages(net: Any) -> list[str]:
    """Return the stages that rules of a net name, also those of layers that a filter has left out, in the order of the file."""
    layers = sorted((*net.layer, *net.excluded), key=lambda layer: layer.source_line)
    rules = [rule for layer in (*layers, *net.layers) for rule in (*layer.include, *layer.exclude)]
    return list(dict.fromkeys(stage for rule in rules for stage in (*rule.stage, *rule.not_stage)))


def unnamed_stages(stages: Iterable[str], *nets: Any) -> Iterator[tuple[str, str, str]]:
    """Yield each stage that no rule of the nets names, one that is meant or '', and a remark. Caffe is silent about such a typing mistake."""
    named = list(dict.fromkeys(stage for net in nets for stage in named_stages(net)))
    found = f"the rules of layers name {names_text(named)}" if named else "no layer has a rule with a stage"
    for stage in filter(None, stages):
        if stage not in named:
            yield stage, next(iter(difflib.get_close_matches(stage.lower(), named, 1, 0.6)), ""), found


def check_stages(stages: Iterable[str], *nets: Any) -> None:
    """Raise Error for a stage of --stage that no rule of the nets names."""
    for stage, near, found in unnamed_stages(stages, *nets):
        fix = f"did you mean {flag('stage', near)}? {found}" if near else f"leave it out, or name another: {found}"
        raise Error(f"--stage names '{stage}', and no rule of a layer does", place=nets[0].source_file or None, fix=fix)


def stages_of(state: Any) -> list[str]:
    """Return the stages of `state` that have a name. Caffe's own commands add an empty one."""
    return [stage for stage in state.stage if stage]


def _states(state: Any, layer: Any) -> Iterator[Any]:
    """Yield states that differ from `state` by what the decisive rule says: for an include rule by all of it, for an exclude rule by one of its fields."""
    rule = decisive_rule(state, layer)
    stages = stages_of(state)
    given = {name: getattr(rule, name) for name in ("phase", "min_level", "max_level") if rule.HasField(name)}
    if layer.include:
        level = max(state.level, given.get("min_level", state.level))
        level = min(level, given.get("max_level", level))
        wanted = [stage for stage in dict.fromkeys([*stages, *rule.stage]) if stage not in rule.not_stage]
        yield proto.NetState(phase=given.get("phase", state.phase), level=level, stage=wanted)
        return
    for stage in rule.stage:
        yield proto.NetState(phase=state.phase, level=state.level, stage=[each for each in stages if each != stage])
    for stage in rule.not_stage:
        yield proto.NetState(phase=state.phase, level=state.level, stage=[*stages, stage])
    for name, step in (("min_level", -1), ("max_level", 1)):
        if name in given:
            yield proto.NetState(phase=state.phase, level=given[name] + step, stage=stages)
    yield proto.NetState(phase=proto.TEST if state.phase == proto.TRAIN else proto.TRAIN, level=state.level, stage=stages)
