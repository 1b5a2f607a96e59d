"""ocaffe completion SHELL: print a script that completes commands, flags and files."""
from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from ocaffe.cli import COMMANDS
from ocaffe.cli.flags import Parser, spelling
from ocaffe.cli.parsers import parser_of
from ocaffe.shown import say

SHELLS = {
    "bash": 'eval "$(ocaffe completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(ocaffe completion zsh)" in ~/.zshrc, after compinit',
    "fish": "ocaffe completion fish > ~/.config/fish/completions/ocaffe.fish",
}


def main(argv: Sequence[str]) -> int:
    lines = [f"{name}: {text}" for name, text in SHELLS.items()]
    parser = Parser("completion", f"Print a script that completes commands, flags and files. To use it, {'; '.join(lines)}.")
    parser.add_argument("shell", metavar="SHELL", choices=list(SHELLS), help=", ".join(SHELLS))
    shell = parser.parse(argv).shell
    say(*{"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]())
    return 0


def _flags() -> Iterator[tuple[str, list[argparse.Action]]]:
    """Yield each command with the actions of its flags, in the order of the help."""
    for command in COMMANDS:
        actions = parser_of(command)._actions
        yield command, [action for action in actions if action.option_strings and action.help != argparse.SUPPRESS]


def _cases() -> Iterator[str]:
    for command, actions in _flags():
        yield f'    {command}) words="{" ".join(map(spelling, actions))}" ;;'


def _bash() -> list[str]:
    return [
        "_ocaffe() {", '  local words current="${COMP_WORDS[COMP_CWORD]}"', "  if [ \"$COMP_CWORD\" = 1 ]; then",
        f'    words="{" ".join(COMMANDS)}"', '    COMPREPLY=($(compgen -W "$words" -- "$current"))', "    return", "  fi",
        '  case "${COMP_WORDS[1]}" in', *_cases(), "  esac", '  COMPREPLY=()',
        '  [[ "$current" != -* ]] || COMPREPLY=($(compgen -W "$words" -- "$current"))', "}", "complete -o default -F _ocaffe ocaffe",
    ]  # fmt: skip


def _zsh() -> list[str]:
    return [
        "_ocaffe() {", "  local words_ command=${words[2]}", "  if (( CURRENT == 2 )); then", f"    compadd -- {' '.join(COMMANDS)}", "    return", "  fi",
        '  case "$command" in', *(line.replace("words=", "words_=") for line in _cases()), "  esac",
        '  if [[ "${words[CURRENT]}" == -* ]]; then', "    compadd -- ${=words_}", "  else", "    _files", "  fi", "}", "compdef _ocaffe ocaffe",
    ]  # fmt: skip


def _fish() -> Iterator[str]:
    for command, text in COMMANDS.items():
        yield f"complete -c ocaffe -n __fish_use_subcommand -f -a {command} -d {_quoted(text)}"
    for command, actions in _flags():
        for action in actions:
            value = "" if action.nargs == 0 else " -r"
            text = _quoted((action.help or "").replace("%%", "%").strip())
            yield f"complete -c ocaffe -n '__fish_seen_subcommand_from {command}' -l {spelling(action).lstrip('-')}{value} -d {text}"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
