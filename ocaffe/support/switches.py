"""The debug switches: `OCAFFE_DEBUG=poison,fuse=0,plan=none` (docs/pipeline.md). No other file reads this variable."""
from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ocaffe.errors import Error
from ocaffe.shown import Lines, command
from ocaffe.support.whole import whole

VARIABLE = "OCAFFE_DEBUG"
OFF = "OFF"
_PLANS = {"none": {"share": False}, "separate": {"share": False, "separate": True}}
_FENCES = ("off", "PTX", "SCOPE", "AMD")
_BOUNDED = ("max_work_group", "local_memory", "max_allocation")  # fields of Target
_MAX_SCALE = 1 << 24
# Variables of older versions, without OCAFFE_. Words with their names have their values, except for RECOMPUTE. To be removed after one release.
_GONE = ("VERIFY", "PLAN", "POISON", "FUSE", "JOIN", "WGMMA", "FENCE", "LIMITS", "GRADIENT_SCALE", "RECOMPUTE")


@dataclass(frozen=True)
class Switches:
    """Settings that help to find a fault. A usual run has the defaults."""

    verify: bool = False  # check the schedule after every pass
    poison: bool = False  # fill memory with NaN after its last use
    share: bool = True  # plan=none: every Ref has its own memory
    separate: bool = False  # plan=separate: every Ref also has its own buffer of exactly its size, so that a checker detects accesses beyond it
    fuse: bool = True
    join: bool = True  # join=0: no launch is part of a task graph
    wgmma: bool = True  # wgmma=0: use mma.sync, without a trial
    fence: str = ""  # OFF, or the fence of the device; "": its own choice
    limits: tuple[tuple[str, int], ...] = ()  # upper bounds of fields of Target
    gradient_scale: int = 0  # 0: that of Target
    single: bool = False  # runs may stop after any launch, so none is part of a task graph. No word sets it

    @property
    def joined(self) -> bool:
        """Whether launches may be joined to task graphs.

        They are not in a plain run, nor for a checker, which reports the launch of an access, nor if memory is filled between launches.
        """
        return self.join and self.fuse and not self.separate and not self.single and not self.poison

    @staticmethod
    def read() -> Switches:
        """Return the switches of $OCAFFE_DEBUG. Raises Error for an unknown word, and for a variable of an older version."""
        text = os.environ.get(VARIABLE, "")
        gone = {name: value for name in _GONE if (value := os.environ.get(f"OCAFFE_{name}"))}
        if gone:
            raise _of_today(text, gone)
        return _parsed(text)


class _Word(NamedTuple):
    """A word of the variable."""

    spelled: str  # as messages show it
    fields: Callable[[str], Mapping[str, Any] | None]  # those that its value sets; None: there is no such value


def _on_or_off(name: str) -> _Word:
    return _Word(name if not getattr(Switches, name) else f"{name}=0", lambda value: {name: value != "0"} if value in ("", "0", "1") else None)


def _fence(value: str) -> Mapping[str, Any] | None:
    return {"fence": value.upper()} if value.upper() in map(str.upper, _FENCES) else None


def _limits(value: str) -> Mapping[str, Any] | None:
    bounds = [(name, number) for name, _, number in (part.partition("=") for part in value.split(":"))]
    right = all(name in _BOUNDED and whole(number) > 0 for name, number in bounds)
    return {"limits": tuple((name, int(number)) for name, number in bounds)} if right else None


def _scale(value: str) -> Mapping[str, Any] | None:
    scale = whole(value, 0)
    return {"gradient_scale": scale} if 0 < scale <= _MAX_SCALE and not scale & (scale - 1) else None


_WORDS: Mapping[str, _Word] = {
    "verify": _on_or_off("verify"),
    "poison": _on_or_off("poison"),
    "plan": _Word(f"plan={'|'.join(_PLANS)}", _PLANS.get),
    "fuse": _on_or_off("fuse"),
    "join": _on_or_off("join"),
    "wgmma": _on_or_off("wgmma"),
    "fence": _Word(f"fence={'|'.join(_FENCES)}", _fence),
    "limits": _Word(f"limits={':'.join(f'{name}=NUMBER' for name in _BOUNDED)}", _limits),
    "gradient_scale": _Word(f"gradient_scale=1|2|4|8|...|{_MAX_SCALE}", _scale),
}


_EFFECTS = {  # what the words do, for those who set a variable of an older version
    "verify": "ocaffe checks its plan of a net in more ways", "poison": "memory is filled with NaN after its last use",
    "plan": "blobs do not share memory",
    "fuse": "layers are not merged into one step", "join": "steps are not started together on CPUs",
    "wgmma": "another way of multiplying matrices on some GPUs", "fence": "another way of adding up sums on GPUs",
    "limits": "a device is used as if it were smaller", "gradient_scale": "gradients are multiplied by this number while they are computed",
}  # fmt: skip


@functools.cache
def _parsed(text: str) -> Switches:
    fields: dict[str, Any] = {}
    given: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        place, word = f"{VARIABLE}={text}", _WORDS.get(name)
        if word is None:
            known = ", ".join(each.spelled for each in _WORDS.values())
            raise Error(f"the word '{part}' is unknown", place=place, fix=Lines(_without(text, part), f"    the words are {known}"))
        found = word.fields(value)
        if found is None:
            raise Error(f"'{name}' is '{value}'", place=place, fix=_corrected(text, part, word.spelled))
        if name in given:
            raise Error(f"'{name}' is given twice", place=place, fix=_without(text, part))
        given.append(name)
        fields.update(found)
    return Switches(**fields)


def _without(text: str, part: str, instead: str = "") -> str:
    """Return the line for a shell that sets the variable without its last `part`, or with `instead` in its place. It is unset if nothing is left."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    at = len(words) - 1 - words[::-1].index(part)
    words[at : at + 1] = [instead] if instead else []
    return _export(*words) if words else f"unset {VARIABLE}"


def _export(*words: str) -> str:
    return command("export", f"{VARIABLE}={','.join(words)}")


def export_without(word: str) -> str:
    """Return the line for a shell that sets the variable without a word and its value."""
    text = os.environ.get(VARIABLE, "")
    return _without(text, next(part.strip() for part in text.split(",") if part.strip().partition("=")[0] == word))


def _corrected(text: str, part: str, spelled: str) -> Lines:
    """Return the line for a shell with a right value in `part`, and the other values."""
    first, *others = spelled.split("|")
    return Lines(_without(text, part, first), *([f"    other values are {', '.join(others)}"] if others else []))


def _of_today(text: str, gone: Mapping[str, str]) -> Error:
    """Return the Error that says what to write in place of variables of an older version."""
    old = [f"OCAFFE_{name}" for name in gone]
    fact = f"{', '.join(old)} {'is' if len(gone) == 1 else 'are'} set in the environment, and ocaffe no longer reads " + ("it" if len(gone) == 1 else "them")
    words = [f"{name.lower()}={value.replace(',', ':')}" for name, value in gone.items()]
    kept = [word for word in words if (found := _WORDS.get(word.partition("=")[0])) and found.fields(word.partition("=")[2]) is not None]
    fix = [f"unset {' '.join(old)}; grep -n {old[0]} ~/.bashrc ~/.profile", "    and remove the line that grep finds, which sets it in each new shell"]
    if kept:
        effect = " and ".join(_EFFECTS[word.partition("=")[0]] for word in kept)
        fix.append(f"    to keep the effect ({effect}): {_export(*filter(None, [text, *kept]))}")
    if "RECOMPUTE" in gone:
        fix.append("    to keep all values in memory, instead of computing some again: add --recompute none to train, time or plan")
    return Error(fact, fix=Lines(*fix))
