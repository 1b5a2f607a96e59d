"""Flags in all spellings of gflags: -f v, --f v, -f=v, --f=v, booleans --f and --nof. Dashes and underscores are equivalent."""
from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NoReturn

from ocaffe.data.bad_records import BadRecord
from ocaffe.errors import Error
from ocaffe.formats.states import check_stages
from ocaffe.ir.target import MATHS
from ocaffe.shown import command, lines_of, say
from ocaffe.support import log
from ocaffe.support.finite import LARGEST
from ocaffe.support.whole import MOST_DIGITS, signed, whole

AUTO_BATCH = -(1 << 40)  # the value of --batch auto
AUTO_SHARE = 0.95  # of the free memory; drivers need the rest for programs and queues
CAFFE_COMMANDS = ("train", "test", "time", "device_query")
CAFFE_FLAGS = ("gpu", "solver", "model", "phase", "level", "stage", "snapshot", "weights", "iterations", "sigint_effect", "sighup_effect")
_MOST_SECONDS = 1_000_000
_SHOWN = 60  # characters of a value in an error
_TRUTH = {"true": True, "t": True, "1": True, "yes": True, "y": True, "false": False, "f": False, "0": False, "no": False, "n": False}


def nearest(name: str, names: Iterable[str], count: int = 1) -> list[str]:
    """Return the names that are nearest to `name`, at most `count`."""
    return difflib.get_close_matches(name, list(names), count, 0.6)


class _Help(argparse.HelpFormatter):
    """Help with one spelling of each flag, and with defaults that say something."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        return " ".join([spelling(action), *([self._format_args(action, action.dest.upper())] if action.nargs != 0 else [])])

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        silent = not action.default or action.default in (" ", argparse.SUPPRESS) or not action.option_strings
        return text if silent or "default" in text else f"{text.rstrip()} (default: %(default)s)".lstrip()


def spelling(action: argparse.Action) -> str:
    """Return the flag as help has it: two dashes, and dashes in the name."""
    return next((flag for flag in action.option_strings if flag.startswith("--") and "_" not in flag), action.option_strings[0])


class Parser(argparse.ArgumentParser):
    """argparse with gflags' spellings: one dash or two for every flag. A wrong flag raises Error."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(prog=f"ocaffe {command}", description=description, allow_abbrev=False, formatter_class=_Help)
        self._fields: set[str] = set()  # former flags that set a field of the solver

    def flag(self, name: str, default: Any = "", help: str = "", choices: Sequence[str] | None = None, least: int | None = None) -> None:
        """Add a flag with the type of its default. A default of False makes a switch with --no<name>. `least`: of the numbers that may be given."""
        spellings = [dashes + spelled for spelled in dict.fromkeys((name.replace("_", "-"), name)) for dashes in ("--", "-")]
        if default is False:
            self.add_argument(*spellings, dest=name, action="store_true", default=False, help=help)
            negative = [dashes + "no" + spelled.lstrip("-") for spelled in spellings for dashes in ("--", "-")]
            self.add_argument(*dict.fromkeys(negative), dest=name, action="store_false", default=False, help=argparse.SUPPRESS)
        else:
            kind = _NUMBERS.get(type(default), str) if least is None else partial(_at_least, least)
            self.add_argument(*spellings, dest=name, type=kind, default=default, help=help or " ", choices=choices)

    def former(self, *fields: str) -> None:
        """Accept flags of older versions, for one release. Each set the field of the solver with its name, as --set does."""
        self._fields.update(fields)

    def renewed(self, argv: Sequence[str]) -> list[str]:
        """Return the arguments with --set in place of former flags. A line on stderr says what to type."""
        words, rest = list[str](), list(argv)
        while rest:
            word = rest.pop(0)
            name, equals, value = word.partition("=")
            field = name.lstrip("-").replace("-", "_")
            if not name.startswith("-") or field not in self._fields or not (equals or rest):
                words.append(word)
                continue
            words += (new := ["--set", f"{field}={value if equals else rest.pop(0)}"])
            log.tell(f"hint: {name} will go; type {command(*new)}")
        return words

    def parse(self, argv: Sequence[str], intermixed: bool = False) -> argparse.Namespace:
        """Parse the flags. `intermixed`: files may be between them.

        Caffe's commands were one program, so each accepts the flags of the others and ignores them.
        """
        for name in CAFFE_FLAGS if self.prog.split()[-1] in CAFFE_COMMANDS else ():
            if f"--{name}" not in self._option_string_actions:
                self.add_argument(f"--{name}", f"-{name}", dest=f"ignored_{name}", help=argparse.SUPPRESS)
        parse = self.parse_intermixed_args if intermixed else self.parse_args
        return parse([self._without_value(arg) for arg in self.renewed(argv)])

    def _without_value(self, arg: str) -> str:
        """Return --switch for --switch=true, and --noswitch for --switch=false.

        As in gflags, a value after a space is the next argument.
        """
        name, equals, value = arg.partition("=")
        action = self._option_string_actions.get(name)
        if not equals or action is None or action.nargs != 0:
            return arg
        if value.lower() not in _TRUTH:
            self.error(f"{name}: '{value}' is neither true nor false; {name}=true and {name}=false are possible")
        return f"--{'' if _TRUTH[value.lower()] == action.const else 'no'}{action.dest}"

    def print_help(self, file: Any = None) -> None:
        """Print the help as other texts are printed. argparse ignores a stdout that cannot be written."""
        say(lines_of(self.format_help().rstrip("\n")))

    def error(self, message: str) -> NoReturn:
        fix = f"`{self.prog} --help` lists the flags"
        unknown = re.match(r"unrecognized arguments: (-{1,2}[\w-]+)", message)
        if unknown:
            flags = {spelling(action) for action in self._actions if action.option_strings and action.help != argparse.SUPPRESS}
            near = nearest("--" + unknown[1].lstrip("-").replace("_", "-"), flags)
            fix = f"did you mean {near[0]}? {fix}" if near else fix
        message = re.sub(r"(argument -[^\s/:]+)/[^\s:]+", r"\1", message)  # one spelling of the flag
        raise self._plain(message) or Error(message, place=self.prog, fix=fix)

    def _plain(self, message: str) -> Error | None:
        """Return the error for a usual message of argparse in plain words."""
        if missing := re.match(r"the following arguments are required: (.*)", message):
            words = [str(action.metavar or action.dest).upper() for action in self._actions if not action.option_strings]
            fact = f"{missing[1].replace(', ', ' and ')} {'are' if ',' in missing[1] else 'is'} missing"
            return Error(fact, place=self.prog, fix=" ".join([self.prog, *words]))
        about = re.match(r"argument (-[^\s:]+): (.*)", message, re.DOTALL)
        if about is None:
            return None
        flag, fact = about[1], about[2]
        if fact == "expected one argument":
            return Error(f"{flag} has no value", place=self.prog, fix=f"{flag} VALUE; `{self.prog} --help` describes it")
        if least := re.fullmatch(r"('.*') is not (a whole number of at least \d+)", fact):
            return Error(f"{flag} is {least[1]}", place=self.prog, fix=f"{flag} with {least[2]}")
        if number := re.fullmatch(r"('.*') is not (a whole number|a number|a finite number)( of .*)?", fact):
            given = f"{flag} is {number[1]}, which is not {number[2]}{number[3] or ''}"
            return Error(given, place=self.prog, fix=f"give {number[2]}, such as {flag} {self._example(flag)}")
        if choice := re.fullmatch(r"invalid choice: (.*?) \(choose from (.*)\)", fact):
            return Error(f"{flag} is {choice[1]}", place=self.prog, fix=f"{flag} with one of {choice[2]}".replace("'", ""))
        return None

    def _example(self, flag: str) -> str:
        default = self._option_string_actions[flag].default
        return str(default) if isinstance(default, (int, float)) else "1"


def _at_least(least: int, text: str) -> int:
    """Return the whole number in `text`."""
    if whole(text) < least:
        raise argparse.ArgumentTypeError(f"{_quoted(text)} is not a whole number of at least {least}")
    return whole(text)


def whole_number(text: str) -> int:
    """Return the whole number in `text`, which may have a sign."""
    number = signed(text.strip())
    if number is None:
        most = f" of at most {MOST_DIGITS} digits" * (len(text) > MOST_DIGITS)
        raise argparse.ArgumentTypeError(f"{_quoted(text)} is not a whole number{most}")
    return number


def _finite(text: str) -> float:
    """Return the number in `text`. NaN and infinity make no sense for any flag, and neither do numbers that a float of 32 bits cannot hold."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{_quoted(text)} is not a number") from None
    if not abs(number) <= LARGEST:
        raise argparse.ArgumentTypeError(f"{_quoted(text)} is not a finite number of 32 bits")
    return number


def _quoted(text: str) -> str:
    """Return the value of a flag for an error. It can have thousands of digits."""
    return f"'{text}'" if len(text) <= _SHOWN else f"'{text[:_SHOWN]}...'"


_NUMBERS: dict[type, Callable[[str], Any]] = {int: whole_number, float: _finite}  # by the type of a flag's default


def _several(least: int, text: str) -> tuple[int, ...]:
    """Return the whole numbers in `text`, separated by ','."""
    return tuple(_at_least(least, part) for part in text.split(","))


def device_flags(parser: Parser) -> None:
    parser.flag("gpu", "", "run on the GPU with this id (ids as device_query lists them)")
    parser.flag("device", "", "run on this OpenCL device: PLATFORM:INDEX or a part of its name; default: the best one")
    math_flag(parser)


def timeout_flag(parser: Parser, what: str) -> None:
    parser.flag("timeout", 300.0, f"seconds after which a {what} without a result counts as hanging")


def check_timeout(seconds: float, command: str) -> None:
    """Raise Error for a --timeout that no clock of the system takes, or that leaves no time."""
    if not 0 < seconds <= _MOST_SECONDS:
        fix = f"--timeout 300, or another number of seconds above 0 and up to {_MOST_SECONDS:,}"
        raise Error(f"--timeout is {seconds:g}", place=f"ocaffe {command}", fix=fix)


def kind_flag(parser: Parser) -> None:
    parser.flag("kind", "", "class of kernels: cpu, or gpu, which finds faults of a GPU's kernels on a CPU; default: the device's own")


def math_flag(parser: Parser) -> None:
    parser.flag("math", "", "arithmetic of products: fp32 (as exact as float; default), ieee (only float multiply-adds), tf32, bf16, fp16 (matrix units)",
                choices=MATHS)  # fmt: skip


def memory_flags(parser: Parser) -> None:
    parser.flag("memory_limit", "", "memory limit on the device: bytes, a number with K, M or G, or auto (the free memory); recomputes to stay below it")
    parser.flag("recompute", "auto", "values to recompute in backward; auto: none if a GPU has the memory, else cheap ones", choices=("auto", "cheap", "none"))


def slowdown_flag(parser: Parser) -> None:
    parser.flag("max_slowdown", "", "more time that a step may take, such as 10%%: choose the smallest memory limit that keeps it by predicted times")


def max_slowdown(options: argparse.Namespace) -> float | None:
    """Return the share of --max-slowdown, 0.1 for 10%; None without one. Raises Error for a wrong one, and with flags that it contradicts."""
    if not options.max_slowdown:
        return None
    text = options.max_slowdown.strip()
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)\s*%", text)
    if match is None:
        fix = f"--max-slowdown {text}%" if re.fullmatch(r"\d{1,6}(\.\d{1,6})?", text) else "give a number with %, such as --max-slowdown 10%"
        raise Error(f"--max-slowdown is {_quoted(text)}, which is not a share of at least 0%", fix=fix)
    if getattr(options, "memory_limit", ""):
        fact = f"--max-slowdown {text} chooses a memory limit, and --memory-limit {options.memory_limit} is given too"
        raise Error(fact, fix="leave out --memory-limit, or --max-slowdown")
    if getattr(options, "recompute", "auto") == "none":
        raise Error(f"--max-slowdown is {text}, and with --recompute none no plan can take less memory", fix="leave out --recompute none, or --max-slowdown")
    return float(match[1]) / 100


def batch_flag(parser: Parser, what: str = "batch size of data and inputs, in place of the files'") -> None:
    parser.flag("batch", 0, what, least=1)


def auto_batch_flag(parser: Parser, what: str, least: int | None = None) -> None:
    """Add --batch as a whole number, 0 by default, or AUTO_BATCH for 'auto'. `least`: the least number that may be given."""
    parser.add_argument("--batch", "-batch", type=partial(_batch, least), default=0, metavar="BATCH", help=f"{what}; auto: the largest one that fits")


def _batch(least: int | None, text: str) -> int:
    """Return the whole number in `text`, AUTO_BATCH for 'auto'."""
    return AUTO_BATCH if text == "auto" else whole_number(text) if least is None else _at_least(least, text)


def batches_flag(parser: Parser, what: str) -> None:
    """Add --batch as a tuple of whole numbers, which are separated by ','."""
    parser.add_argument("--batch", "-batch", type=partial(_several, 1), default=(), help=what)


def shape_flag(parser: Parser) -> None:
    parser.flag(
        "shape", "",
        "shape of images whose source does not exist, such as 3x224x224, or of tops of data layers: data:2x3x8x8,label:2x1; default: 3 channels and the "
        "layer's crop_size",
    )  # fmt: skip


def shapes_of(text: str, command: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a --shape by blob. Raise Error."""
    shapes = {}
    for part in filter(None, text.split(",")):
        name, _, sizes = part.rpartition(":")
        if not name or not all(whole(size) > 0 for size in sizes.split("x")):
            raise Error(f"--shape has '{part}'", place=f"ocaffe {command}", fix="--shape=BLOB:SIZExSIZEx.., for example --shape=data:1x3x224x224")
        shapes[name] = tuple(int(size) for size in sizes.split("x"))
    return shapes


def bad_records_flag(parser: Parser) -> None:
    parser.flag("skip_bad_records", 0, "records of a data layer that may be bad (damaged, no image); each is named, and the next one takes its place")


def refuse_escape(text: str, command: str) -> None:
    """Raise Error if --delimiter is a backslash and a letter: the shell passed both on, and meant is one character."""
    if re.fullmatch(r"\\[a-z]", text):
        fact = f"--delimiter is '{text}', two characters: a backslash and the letter {text[1]}"
        raise Error(fact, place=f"ocaffe {command}", fix=f"--delimiter=$'{text}'" + ", which is a tab in bash and zsh" * (text[1] == "t"))


@contextlib.contextmanager
def naming_bad_records(flag: str = "--skip-bad-records N") -> Iterator[None]:
    """Context of a command with a flag that lets bad records pass: the remedy for one names the flag, with N in place of the number."""
    try:
        yield
    except BadRecord as problem:
        problem.fix = f"{problem.fix}, or {flag}"
        raise


def memory_limit(text: str, free: int | None = None) -> int | None:
    """Return the bytes of a --memory-limit; None without one. `free` is the free memory, for 'auto'."""
    if not text:
        return None
    if text == "auto" and free is not None:
        return int(free * AUTO_SHARE)
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)\s*([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise Error(f"--memory-limit is '{text}'", fix="give bytes, or a number with K, M or G, such as --memory-limit 7.5G")
    return int(float(match[1]) * 1024 ** " KMG".index(match[2].upper() or " "))


def state_flags(parser: Parser) -> None:
    parser.flag("level", 0, "network level")
    parser.flag("stage", "", "network stages, separated by ','")
    parser.flag("allow_unknown_fields", False, "warn of unknown fields in a prototxt instead of rejecting it")


def stages(text: str, *nets: Any) -> tuple[str, ...]:
    """Return the stages in the value of --stage. Raises Error for one that no rule of the nets names, if some are given."""
    found = tuple(text.split(",")) if text else ()
    if nets:
        check_stages(found, *nets)
    return found


def check_outputs(command: str, inputs: Iterable[str], **outputs: str) -> None:
    """Raise Error if a file to write, by the name of its flag, is one of the files to read, or a file in a folder to read. Empty names are none."""
    for flag, output in outputs.items():
        for given in filter(None, inputs):
            inside = os.path.isdir(given) and os.path.exists(output) and os.path.realpath(os.path.dirname(output) or ".") == os.path.realpath(given)
            if inside or _is_same(output, given):
                raise Error(f"--{flag} is {output}, which is also read", place=f"ocaffe {command}", fix=f"give --{flag} another name")


def _is_same(output: str, given: str) -> bool:
    """Whether two names are those of one file that exists."""
    return os.path.exists(output) and os.path.exists(given) and os.path.samefile(output, given)


def refuse_overwriting(command: str, inputs: Iterable[str | None], outputs: Iterable[str]) -> None:
    """Raise Error if a file to write is one of the files to read, also by another name. Empty names are none."""
    files = [given for given in inputs if given]
    for output in outputs:
        same = next((given for given in files if _is_same(output, given)), None)
        if same is not None:
            fact = f"the output {output} is the input {same}" if output != same else f"{output} is an input and an output"
            raise Error(fact, place=f"ocaffe {command}", fix="give the output another name; --force does not write over an input")


def required(options: argparse.Namespace, name: str, what: str, command: str) -> str:
    """Return the value of a required flag."""
    value = getattr(options, name)
    if not value:
        raise Error(f"{what} {'are' if what.endswith('weights') else 'is'} missing", place=f"ocaffe {command}", fix=f"give --{name} FILE")
    return str(value)
