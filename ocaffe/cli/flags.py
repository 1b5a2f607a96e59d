"""Flags as gflags took them: -f v, --f v, -f=v, --f=v, booleans --f and --nof, dashes and underscores alike."""
from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from ocaffe.errors import Error

AUTO_SHARE = 0.95  # of the free memory: drivers need some for programs and queues
TRUTHS = {**dict.fromkeys(("true", "t", "1", "yes"), True), **dict.fromkeys(("false", "f", "0", "no"), False)}
CAFFE_FLAGS = ("gpu", "solver", "model", "phase", "level", "stage", "snapshot", "weights", "iterations", "sigint_effect", "sighup_effect")


class Parser(argparse.ArgumentParser):
    """argparse with gflags' spellings; a wrong flag is an Error, and every flag may be given once with one dash or two."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(prog=f"ocaffe {command}", description=description, allow_abbrev=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter)

    def flag(self, name: str, default: Any = "", help: str = "", choices: Sequence[str] | None = None) -> None:
        """A flag whose type is that of its default; a False default makes a switch with --no<name>."""
        spellings = [dashes + spelled for spelled in dict.fromkeys((name, name.replace("_", "-"))) for dashes in ("--", "-")]
        if default is False:
            self.add_argument(*spellings, dest=name, action=_Switch, nargs="?", default=False, help=help)
            self.add_argument(f"--no{name}", f"-no{name}", dest=name, action="store_const", const=False, default=False, help=argparse.SUPPRESS)
        else:
            self.add_argument(*spellings, dest=name, type=type(default), default=default, help=help or " ", choices=choices)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Flags of Caffe's other commands are taken and ignored, as gflags did: scripts hand all they have to every command."""
        for name in CAFFE_FLAGS:
            if f"--{name}" not in self._option_string_actions:
                self.add_argument(f"--{name}", f"-{name}", dest=f"ignored_{name}", help=argparse.SUPPRESS)
        return self.parse_intermixed_args(list(self._bare_switches(argv)))

    def _bare_switches(self, argv: Sequence[str]) -> Iterator[str]:
        """A switch takes a value behind a space only if that is one: `--fold net.prototxt` is a switch and a file."""
        for arg, after in zip(argv, [*argv[1:], ""]):
            switch = isinstance(self._option_string_actions.get(arg), _Switch)
            yield f"{arg}=true" if switch and after.lower() not in TRUTHS else arg

    def error(self, message: str) -> NoReturn:
        raise Error(message, place=self.prog, fix=f"`{self.prog} --help` lists the flags")


class _Switch(argparse.Action):
    """--flag, --flag=true, --flag=false."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None) -> None:
        text = str(values).lower() if values is not None else "true"
        if text not in TRUTHS:
            parser.error(f"{option_string}: '{values}' is neither true nor false")
        setattr(namespace, self.dest, TRUTHS[text])


def device_flags(parser: Parser) -> None:
    parser.flag("gpu", "", "run on the GPU with this id (ids as device_query lists them)")
    parser.flag("device", "", "run on this OpenCL device: PLATFORM:INDEX or a part of its name; default: the best one")


def memory_flags(parser: Parser) -> None:
    parser.flag("memory_limit", "", "most memory on the device: bytes, or a number with K, M or G, or auto: what is free; recomputes to keep it")
    parser.flag("recompute", "cheap", "what backward computes again instead of keeping it", choices=("cheap", "none"))


def memory_limit(text: str, free: int | None = None) -> int | None:
    """Bytes of a --memory-limit; None without one. `free` is what 'auto' means."""
    if not text:
        return None
    if text == "auto" and free is not None:
        return int(free * AUTO_SHARE)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise Error(f"--memory-limit is '{text}'", fix="bytes, or a number with K, M or G: --memory-limit 7.5G")
    return int(float(match[1]) * 1024 ** " KMG".index(match[2].upper() or " "))


def state_flags(parser: Parser) -> None:
    parser.flag("level", 0, "network level")
    parser.flag("stage", "", "network stages, separated by ','")
    parser.flag("allow_unknown_fields", False, "warn of unknown fields in a prototxt instead of refusing it")


def stages(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def required(options: argparse.Namespace, name: str, what: str, command: str) -> str:
    """The value of a flag that must be given."""
    value = getattr(options, name)
    if not value:
        raise Error(f"{what} is missing", place=f"ocaffe {command}", fix=f"give --{name} FILE")
    return str(value)
