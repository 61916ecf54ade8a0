"""The command `warren`: finds the component that a subcommand belongs to and imports that one only.

Each component registers its command in the entry point group `warren.commands`; a command is a function that
takes its arguments and returns an exit status. The standard library only, so that `warren broker` starts in the time its
own imports take.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points, version

from warren.command import Exit, UsageError

GROUP = "warren.commands"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; a `UsageError` becomes one line on standard error."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    commands = {point.name: point for point in entry_points(group=GROUP)}
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage(commands))
        return Exit.DONE if words else Exit.USAGE
    if words[0] == "--version":
        print(f"warren {version('warren')}")
        return Exit.DONE
    name, rest = words[0], words[1:]
    point = commands.get(name)
    if point is None:
        print(f"warren: no command {name!r}; there are: {', '.join(sorted(commands))}", file=sys.stderr)
        return Exit.USAGE
    try:
        return int(point.load()(rest) or 0)
    except UsageError as error:
        print(f"warren {name}: {error}", file=sys.stderr)
        return Exit.USAGE
    except BrokenPipeError:
        # The reader of our output has gone (`warren ... | head`): nothing more can be said, and that is no error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    except Exception as error:
        # The components' own errors say in one line what is wrong, and what to end with; others are mistakes in Warren.
        status = getattr(error, "exit_status", None)
        if status is None:
            raise
        print(f"warren {name}: {error}", file=sys.stderr)
        return int(status)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED


def usage(commands: dict[str, EntryPoint]) -> str:
    lines = ["usage: warren COMMAND [ARGUMENT ...]", "", "commands:"]
    lines += [f"  {name}" for name in sorted(commands)]
    return "\n".join([*lines, "", "`warren COMMAND --help` tells more."])


if __name__ == "__main__":
    sys.exit(main())
