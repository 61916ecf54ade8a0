"""Standard input of commands as bytes and as UTF-8, whatever the locale and PYTHONIOENCODING."""

from __future__ import annotations

import sys

from warren.core.errors import UsageError


def read_line(what: str) -> str | None:
    """Return the next line of standard input without its end; None at the end of the input.

    :param what: name of the value in the line, for the error text
    :raises UsageError: if the line is not UTF-8
    """
    # Bytes, and not text of `sys.stdin`: the same file gives the same value when it is passed by its name.
    try:
        line = sys.stdin.buffer.readline()
    except OSError as error:
        raise UsageError(f"cannot read standard input: {error.strerror or error}") from None
    if not line:
        return None
    try:
        return line.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise UsageError(f"the {what} on standard input is not UTF-8 (byte {error.start + 1})") from None


def read_bytes() -> bytes:
    """Return all bytes of standard input.

    :raises UsageError: if it cannot be read, for example because it is a folder
    """
    try:
        return sys.stdin.buffer.read()
    except OSError as error:
        raise UsageError(f"cannot read standard input: {error.strerror or error}") from None


__all__ = ["read_bytes", "read_line"]
