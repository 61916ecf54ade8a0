"""Standard input and output of commands as UTF-8, whatever the locale and PYTHONIOENCODING."""

from __future__ import annotations

import sys

from warren.core.errors import UsageError


def read_line(what: str) -> str | None:
    """Return the next line of standard input without its end; None at the end of the input.

    :param what: name of the value in the line, for the error text
    :raises UsageError: if the line is not UTF-8
    """
    # Bytes, and not text of `sys.stdin`: the same file gives the same value when it is passed by its name.
    line = sys.stdin.buffer.readline()
    if not line:
        return None
    try:
        return line.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise UsageError(f"the {what} on standard input is not UTF-8 (byte {error.start + 1})") from None


def write_document(text: str) -> None:
    """Write a JSON or YAML document to standard output.

    A lone surrogate, which UTF-8 cannot encode, is written as an escape sequence of JSON.
    """
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
    sys.stdout.buffer.flush()


__all__ = ["read_line", "write_document"]
