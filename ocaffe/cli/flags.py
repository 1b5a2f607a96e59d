"""Flags as gflags took them: -f v, --f v, -f=v, --f=v, booleans --f and --nof, dashes and underscores alike."""
from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from ocaffe.errors import Error

AUTO_SHARE = 0.95  # of the free memory: drivers need some for programs and queues
CAFFE_COMMANDS = ("train", "test", "time", "device_query")
CAFFE_FLAGS = ("gpu", "solver", "model", "phase", "level", "stage", "snapshot", "weights", "iterations", "sigint_effect", "sighup_effect")
_TRUTH = {"true": True, "t": True, "1": True, "yes": True, "y": True, "false": False, "f": False, "0": False, "no": False, "n": False}


class Parser(argparse.ArgumentParser):
    """argparse with gflags' spellings; a wrong flag is an Error, and every flag may be given once with one dash or two."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(prog=f"ocaffe {command}", description=description, allow_abbrev=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter)

    def flag(self, name: str, default: Any = "", help: str = "", choices: Sequence[str] | None = None) -> None:
        """A flag whose type is that of its default; a False default makes a switch with --no<name>."""
        spellings = [dashes + spelled for spelled in dict.fromkeys((name, name.replace("_", "-"))) for dashes in ("--", "-")]
        if default is False:
            self.add_argument(*spellings, dest=name, action="store_true", default=False, help=help)
            negative = [dashes + "no" + spelled.lstrip("-") for spelled in spellings for dashes in ("--", "-")]
            self.add_argument(*dict.fromkeys(negative), dest=name, action="store_false", default=False, help=argparse.SUPPRESS)
        else:
            self.add_argument(*spellings, dest=name, type=type(default), default=default, help=help or " ", choices=choices)

    def parse(self, argv: Sequence[str], intermixed: bool = False) -> argparse.Namespace:
        """The values of the flags; `intermixed`: files may stand between them.

        `caffe` was one program: its commands take each other's flags and ignore them.
        """
        for name in CAFFE_FLAGS if self.prog.split()[-1] in CAFFE_COMMANDS else ():
            if f"--{name}" not in self._option_string_actions:
                self.add_argument(f"--{name}", f"-{name}", dest=f"ignored_{name}", help=argparse.SUPPRESS)
        parse = self.parse_intermixed_args if intermixed else self.parse_args
        return parse([self._without_value(arg) for arg in argv])

    def _without_value(self, arg: str) -> str:
        """--switch=true as --switch, --switch=false as --noswitch. (A value behind a space would be the next argument, as in gflags.)"""
        name, equals, value = arg.partition("=")
        action = self._option_string_actions.get(name)
        if not equals or action is None or action.nargs != 0:
            return arg
        if value.lower() not in _TRUTH:
            self.error(f"{name}: '{value}' is neither true nor false")
        return f"--{'' if _TRUTH[value.lower()] == action.const else 'no'}{action.dest}"

    def error(self, message: str) -> NoReturn:
        raise Error(message, place=self.prog, fix=f"`{self.prog} --help` lists the flags")


def device_flags(parser: Parser) -> None:
    parser.flag("gpu", "", "run on the GPU with this id (ids as device_query lists them)")
    parser.flag("device", "", "run on this OpenCL device: PLATFORM:INDEX or a part of its name; default: the best one")
    parser.flag("math", "", "what products are made of: fp32 (as exact as float; default), ieee (float multiply-adds alone), tf32, bf16, fp16 (tensor cores)")


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
        raise Error(f"{what} {'are' if what.endswith('weights') else 'is'} missing", place=f"ocaffe {command}", fix=f"give --{name} FILE")
    return str(value)
