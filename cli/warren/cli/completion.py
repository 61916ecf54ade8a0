"""`warren completion SHELL`: print a script for shell completion of `warren`.

The script calls `warren completion words`, which prints the candidates for the word being typed. To start fast, that
imports only the module of the command on the line.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from warren.core.argument_parser import CommandParser
from warren.core.command_output import write_line, write_lines
from warren.core.errors import ExitStatus

# The same group as in the dispatcher, which no command imports.
GROUP = "warren.commands"

SCRIPTS = {
    "bash": """_warren() {
    local IFS=$'\\n'
    local found="$(warren completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)"
    COMPREPLY=($(compgen -W "$found" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _warren warren
""",
    "zsh": """#compdef warren
_warren() {
    local -a found
    found=(${(f)"$(warren completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    (( ${#found} )) && compadd -a found || _files
}
compdef _warren warren
""",
    "fish": """complete -c warren -e
complete -c warren -a '(warren completion words -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
""",
}


def main(arguments: Sequence[str]) -> int:
    """Print a completion script; for `warren completion words`, print the candidates, one on each line. Return 0."""
    parser = CommandParser(
        "warren completion",
        'Print a script that completes warren\'s words: eval "$(warren completion bash)" in ~/.bashrc, '
        "warren completion zsh > ~/.zfunc/_warren, warren completion fish > ~/.config/fish/completions/warren.fish",
    )
    parser.add_argument("shell", choices=[*SCRIPTS, "words"], metavar="bash|zsh|fish")
    parser.add_argument("typed", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(list(arguments))
    if options.shell != "words":
        write_lines(SCRIPTS[options.shell].rstrip("\n"))
        return ExitStatus.SUCCESS
    typed = options.typed[1:] if options.typed[:1] == ["--"] else options.typed
    for word in words(typed or [""]):
        write_line(word)
    return ExitStatus.SUCCESS


def complete(before: Sequence[str], last: str) -> Sequence[str]:
    """Return the candidates for `warren completion`: the shells, until one has been typed.

    :param before: complete words after `warren completion`
    :param last: beginning of the last word; unused, because the caller selects the candidates that begin with it
    """
    return [] if before else sorted(SCRIPTS)


def words(typed: Sequence[str]) -> list[str]:
    """Return the completions of the last word of a command line.

    :param typed: words after `warren`; the last one is the beginning of the word to complete, or empty
    :return: possible words; empty if only a file name is possible there: the shell completes that itself
    """
    points = {point.name: point for point in entry_points(group=GROUP)}
    *before, last = typed
    if not before:
        return _starting_with(sorted(points), last)
    point = points.get(before[0])
    if point is None:
        return []
    module = import_module(point.module)
    own: Callable[[Sequence[str], str], Iterable[str]] | None = getattr(module, "complete", None)
    if own is not None:
        return _starting_with(own(before[1:], last), last)
    return _starting_with(_of_typer(module, before[1:], last), last)


def _of_typer(module: Any, before: Sequence[str], last: str) -> list[str]:
    """Return the candidates for the last word of a command line from the typer application in a command's module.

    :param module: the imported module of the command
    :param before: words between the command and the last word
    :param last: beginning of the last word
    """
    applications = [each for each in vars(module).values() if type(each).__name__ == "Typer"]
    if not applications:
        return []
    from typer.main import get_command

    command: Any = get_command(applications[0])
    rest = list(before)
    while hasattr(command, "commands"):
        chosen = next((word for word in rest if word in command.commands), None)
        if chosen is None:
            return list(command.commands)
        rest = rest[rest.index(chosen) + 1 :]
        command = command.commands[chosen]
    options = [
        each for each in command.params if getattr(each, "opts", None) and each.opts[0].startswith("-")
    ]
    if rest:
        pending = next((each for each in options if rest[-1] in each.opts and not each.is_flag), None)
        if pending is not None:
            context = command.make_context("", [], resilient_parsing=True)
            return [str(item.value) for item in pending.shell_complete(context, last)]
    if not last.startswith("-"):
        return []
    return sorted(name for each in options for name in (*each.opts, *each.secondary_opts))


def _starting_with(found: Iterable[str], start: str) -> list[str]:
    return [word for word in found if word.startswith(start)]
