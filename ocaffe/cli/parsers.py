"""The parser of each command, for completion and for the page of commands. A command makes its parser when it is called, so it is called for its help."""
from __future__ import annotations

import argparse
import importlib

from ocaffe.cli import dataset, zoo
from ocaffe.cli.flags import Parser

NESTED = {"dataset": (*dataset.COMMANDS, *dataset.FORMATS), "zoo": (*zoo.COMMANDS,)}  # commands with commands of their own


class _Found(Exception):
    """Ends a command as soon as its parser is complete."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def parser_of(command: str, *nested: str) -> argparse.ArgumentParser:
    """Return the parser of a command."""

    def found(parser: Parser, file: object = None) -> None:
        raise _Found(parser)

    before = Parser.print_help
    Parser.print_help = found  # type: ignore[assignment, method-assign]
    try:
        importlib.import_module(f"ocaffe.cli.{command.replace('-', '_')}").main([*nested, "--help"])
    except _Found as result:
        return result.parser
    finally:
        Parser.print_help = before  # type: ignore[method-assign]
    raise AssertionError(f"ocaffe {command} has no help")
