"""Standard input of a command that a test runs in this process."""

from __future__ import annotations

import io


def standard_input(content: str | bytes, encoding: str = "utf-8") -> io.TextIOWrapper:
    """Return a stream for `sys.stdin`, over bytes as in a process.

    :param content: the bytes that can be read, or a text in UTF-8.
    :param encoding: encoding that Python would choose for texts, by the locale or PYTHONIOENCODING.
    """
    return io.TextIOWrapper(
        io.BytesIO(content.encode() if isinstance(content, str) else content), encoding=encoding
    )
