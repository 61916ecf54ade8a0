"""What every command of Warren shares: exit codes, and errors that a user reads in one line."""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """The exit status of every `warren` command."""

    SUCCESS = 0
    FAILED = 1
    """A check failed: the program ran, and what it was asked to verify does not hold."""
    USAGE = 2
    """Wrong use: the input is at fault, and one line says what to change."""
    IO = 74
    """An input or output error (sysexits EX_IOERR): the disk or the network is at fault."""
    INTERRUPTED = 130


class UsageError(Exception):
    """The input is wrong. Its text is one line: what is wrong and what to do. Ends a command with status 2."""


def missing_extra_error(extra: str, purpose: str) -> UsageError:
    """The error of a command whose optional dependencies are not installed."""
    return UsageError(f"{purpose} needs packages that are not installed: pip install 'warren[{extra}]'")


__all__ = ["ExitStatus", "UsageError", "missing_extra_error"]
