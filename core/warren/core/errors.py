"""Exit statuses of all commands, and the errors that end a command with one line of text."""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """Exit status of a `warren` command."""

    SUCCESS = 0
    FAILED = 1
    """The command ran, and its result is negative: a check that does not hold, a message that was not accepted."""
    USAGE = 2
    """The input is wrong; one line on standard error names the error and what to change."""
    IO = 74
    """The disk or the network failed (`EX_IOERR` of sysexits.h)."""
    INTERRUPTED = 130
    OUTPUT_CLOSED = 141
    """The reader of standard output went away before it had read everything, as with `warren ... | head`: 128 and the number
    of SIGPIPE, which is the status that a shell shows for other tools."""


class UsageError(Exception):
    """Error in the input of a command, which then exits with 2. The text is one line: what is wrong and what to do."""


def missing_extra_error(extra: str, purpose: str) -> UsageError:
    """Return the error for a feature whose optional dependencies are not installed.

    :param extra: name of the extra of the package `warren`, such as "redis"
    :param purpose: feature that needs the packages, as the subject of the error text
    """
    return UsageError(f"{purpose} needs packages that are not installed: pip install 'warrenmq[{extra}]'")


__all__ = ["ExitStatus", "UsageError", "missing_extra_error"]
