"""Effects of SIGINT, SIGHUP and SIGTERM on a training: take a snapshot, stop, or none.

The solver reads them once per iteration and per test batch.
"""
from __future__ import annotations

import signal
from types import FrameType
from typing import Any

from ocaffe.errors import Error

EFFECTS = ("snapshot", "stop", "none")


class Signals:
    """Context with signal handlers. `request()` returns and clears the effect of a received signal.

    A signal with the effect stop that arrives again before it was read has its default effect, which ends the process.
    """

    def __init__(self, sigint: str, sighup: str, sigterm: str = "stop") -> None:
        effects = {"SIGHUP": sighup, "SIGINT": sigint, "SIGTERM": sigterm}  # SIGHUP is read first, as in Caffe
        for name, effect in effects.items():
            if effect not in EFFECTS:
                raise Error(f"invalid signal effect '{effect}'", place=f"--{name.lower()}_effect", fix=f"give one of {', '.join(EFFECTS)}")
        self.effects = {getattr(signal, name): effect for name, effect in effects.items() if hasattr(signal, name)}  # Windows has no SIGHUP
        self._came: set[int] = set()
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number, effect in self.effects.items():
            if effect != "none":
                self._old[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number in self._came and self.effects[signal.Signals(number)] == "stop":  # received twice
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._came.add(number)

    def request(self) -> str:
        """Return '', 'snapshot' or 'stop'."""
        for number, effect in self.effects.items():
            if number in self._came and effect != "none":
                self._came.discard(number)
                return effect
        return ""
