"""Dispatcher of `warren COMMAND`: find the module of a command and import that one only.

Each command is registered in the entry point group `warren.commands`: a function that takes the arguments and returns an
exit status. This module imports the standard library only, so that `warren broker` starts fast.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points, version

from warren.core.command_output import prepare_streams, run_command, write_error, write_line, write_lines
from warren.core.documentation_links import documentation_reference
from warren.core.errors import ExitStatus, UsageError

GROUP = "warren.commands"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. An exception with an `exit_status` is printed as one line.

    :param arguments: words after `warren`; None for those of this process
    """
    prepare_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = words[0] if words else ""
    return run_command(f"warren {name}", lambda: _dispatch(name, words[1:]))


def _dispatch(name: str, words: list[str]) -> int:
    """Run the command of this name with the arguments `words`, and return its exit status."""
    commands = {point.name: point for point in entry_points(group=GROUP)}
    if name in ("", "-h", "--help", "help"):
        write_lines(usage(commands))
        return ExitStatus.SUCCESS if name else ExitStatus.USAGE
    if name == "--version":
        write_line(f"warren {version('warrenmq')}")
        return ExitStatus.SUCCESS
    point = commands.get(name)
    if point is None:
        write_error(f"warren: no command {name!r}; the commands are {', '.join(sorted(commands))}")
        return ExitStatus.USAGE
    try:
        return int(point.load()(words) or 0)
    except UnicodeEncodeError as error:
        # Python keeps the bytes of arguments that are not in the encoding of the locale as lone surrogates.
        foreign = next((word for word in words if any("\ud800" <= each <= "\udfff" for each in word)), None)
        if foreign is None:
            raise
        raise UsageError(
            f"the argument {foreign!r} is not {error.encoding}: write it in the encoding of the locale, or set a locale"
            " with UTF-8, such as LC_ALL=C.UTF-8"
        ) from None


def usage(commands: dict[str, EntryPoint]) -> str:
    """Return the help text, which lists all commands with their summaries.

    :param commands: entry points by name of the command
    """
    width = max(map(len, commands), default=0)
    lines = ["usage: warren COMMAND [ARGUMENT ...]", "", "commands:"]
    lines += [
        f"  {name:<{width}}  {command_summary(commands[name].module)}".rstrip() for name in sorted(commands)
    ]
    help_page = documentation_reference("troubleshooting", "command-line")
    return "\n".join([*lines, "", f"`warren COMMAND --help` describes a command. Errors: {help_page}"])


def command_summary(module: str) -> str:
    """Return the first line of a module's docstring. The module is found and read, but not imported."""
    path: Sequence[str] | None = None
    spec = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}".lstrip(".")
        finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
        spec = next((found for find in finders if find and (found := find(name, path, None))), None)
        if spec is None:
            return ""
        path = spec.submodule_search_locations
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return ""
    with open(spec.origin, encoding="utf-8") as file:
        line = file.readline().strip().strip('"').rstrip(".")
    text = line.partition("`: ")[2] if line.startswith("`") else line
    return text.partition("; ")[0]


if __name__ == "__main__":
    sys.exit(main())
