"""Output of all commands: the one place that writes to standard output and standard error.

Texts are escaped here (see `text_escapes`), so that nothing that came in a message controls the terminal; characters that
the output's encoding lacks are escaped, too. A reader that has gone away, a full disk and a closed stream end a command in
an orderly way, with one line at most.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import shutil
import sys
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TextIO

from warren.core.errors import ExitStatus, UsageError
from warren.core.text_escapes import escape, escape_json, escape_lines, escape_value, json_text

STYLES: Final = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "cyan": 36}
"""Styles of lines, and their numbers in a terminal's escape sequence (ECMA-48, SGR)."""
COLUMN_GAP: Final = "  "
NARROWEST_COLUMN: Final = 10
"""Characters below which the columns of a table are not narrowed; it is then shown row by row, as `name: value`."""


class OutputClosed(Exception):
    """The reader of standard output has gone away, as `head` does. The command ends without a text."""

    exit_status = ExitStatus.OUTPUT_CLOSED


class OutputFailed(Exception):
    """Standard output cannot be written, for example because the disk is full."""

    exit_status = ExitStatus.IO


class _StandardOutput(io.FileIO):
    """File descriptor of standard output; its errors are those of this module, which no handler of `OSError` takes for
    an error of a file or socket. After an error, output is discarded: the interpreter's last flush raises none."""

    _failed = False

    def write(self, data: Any, /) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest and not self._failed:
            try:
                rest = rest[os.write(self.fileno(), rest) :]
            except BlockingIOError:
                # Another process that has the same pipe or terminal may have made it non-blocking.
                select.select([], [self.fileno()], [])
            except OSError as error:
                self._failed = True
                # Windows reports a pipe without a reader as EINVAL.
                if isinstance(error, ConnectionError) or (error.errno == errno.EINVAL and os.name == "nt"):
                    raise OutputClosed from None
                raise OutputFailed(f"cannot write the output: {error.strerror}") from None
        return size


class _StandardError(io.FileIO):
    """File descriptor of standard error. Its errors are ignored, as they could be reported nowhere."""

    def write(self, data: Any, /) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:
            try:
                rest = rest[os.write(self.fileno(), rest) :]
            except BlockingIOError:
                select.select([], [self.fileno()], [])
            except OSError:
                break
        return size


def prepare_streams() -> None:
    """Make the standard streams of this process safe to use; call it first in a process.

    A stream that was closed (`>&-`) is connected with the null device, so that no file or socket gets its descriptor.
    Characters that the encoding of standard output or standard error lacks are written as escapes.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8")
    sys.stdout = _prepared(sys.stdout, 1, _StandardOutput)
    sys.stderr = _prepared(sys.stderr, 2, _StandardError)


def _prepared(stream: TextIO | None, descriptor: int, kind: type[io.FileIO]) -> TextIO:
    if stream is None:
        return io.TextIOWrapper(kind(descriptor, "w", closefd=False), "utf-8", "backslashreplace", "\n")
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)
    if not isinstance(stream, io.TextIOWrapper) or type(raw) is not io.FileIO:
        # A console of Windows, or a replacement by a test or a program that runs a command in its process.
        return stream
    is_buffered = not stream.write_through and kind is _StandardOutput
    opened = kind(raw.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(opened) if is_buffered else opened,
        stream.encoding,
        "backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=not is_buffered,
    )


def run_command(name: str, work: Callable[[], int]) -> int:
    """Run a command and return its exit status. An exception with an `exit_status` is printed as one line.

    :param name: beginning of the error lines, such as `warren dlq`.
    :param work: the command; returns its exit status.
    """
    try:
        status = _status_of(work)
        sys.stdout.flush()
        return status
    except OutputClosed as closed:
        return closed.exit_status
    except UsageError as error:
        write_error(f"{name}: {error}")
        return ExitStatus.USAGE
    except KeyboardInterrupt:
        return ExitStatus.INTERRUPTED
    except Exception as error:
        # Errors of the components have an exit status and a text of one line; any other exception is a bug in Warren.
        own_status = getattr(error, "exit_status", None)
        if own_status is None:
            raise
        write_error(f"{name}: {error}")
        return int(own_status)
    finally:
        # The status is decided, and output that cannot be written is discarded from now on.
        with contextlib.suppress(OutputClosed, OutputFailed):
            sys.stdout.flush()


def _status_of(work: Callable[[], int]) -> int:
    try:
        return work()
    except SystemExit as end:
        # argparse ends the process after a help page, whose last part is not written yet.
        if end.code is None or isinstance(end.code, int):
            return end.code or ExitStatus.SUCCESS
        write_error(str(end.code))
        return ExitStatus.FAILED


def write_line(text: str = "", *, style: str | None = None, flush: bool = False) -> None:
    """Write a line to standard output. Control characters in the text are escaped, line breaks and tabs included.

    :param style: one of `STYLES`, used on a terminal unless the environment variable NO_COLOR is set.
    :param flush: write it at once, even if the output is a pipe or a file.
    """
    line = escape(text)
    if style is not None and line and _is_coloured():
        line = f"\x1b[{STYLES[style]}m{line}\x1b[0m"
    sys.stdout.write(f"{line}\n")
    if flush:
        sys.stdout.flush()


def write_lines(text: str, *, flush: bool = False) -> None:
    """Write a text of several lines to standard output. Its control characters are escaped, except line breaks and tabs.

    :param flush: write it at once, even if the output is a pipe or a file.
    """
    sys.stdout.write(f"{escape_lines(text)}\n")
    if flush:
        sys.stdout.flush()


def write_row(cells: Iterable[str]) -> None:
    """Write values, separated by tabs, as a line to standard output; each value is escaped."""
    sys.stdout.write("\t".join(map(escape_value, cells)) + "\n")


def write_fields(fields: Mapping[str, Any], body: str) -> None:
    """Write a message for people to standard output: a line for each field, those of a table indented, then its body.

    :param fields: the fields by name; `body` is left out, and None is an empty text.
    :param body: the body as text.
    """
    for name, value in fields.items():
        if isinstance(value, Mapping):
            write_line(f"{name}:")
            for inner, text in value.items():
                write_line(f"  {escape_value(str(inner))}: {escape_value(str(text))}")
        elif name != "body":
            write_line(f"{name}: {'' if value is None else escape_value(str(value))}")
    write_lines(f"\n{body}")


def write_json(value: Any, *, indent: int | None = 2) -> None:
    """Write a value as one JSON document to standard output; see `json_text`.

    Characters beyond ASCII are written as they are if the output is UTF-8, and as `\\uNNNN` otherwise.
    """
    write_json_text(json_text(value, indent=indent))


def write_json_text(text: str) -> None:
    """Write a JSON document that is already encoded to standard output; see `write_json`."""
    sys.stdout.write(f"{escape_json(text, ascii_only=not output_is_utf8())}\n")


def write_document(text: str) -> None:
    """Write the text of a file, such as YAML or HTML, to standard output: in UTF-8, whatever the locale.

    A lone surrogate, which UTF-8 cannot encode, is written as an escape sequence of JSON.
    """
    sys.stdout.flush()
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:
        sys.stdout.write(text)
        return
    buffer.write(text.encode("utf-8", "backslashreplace"))
    buffer.flush()


def write_error(text: str) -> None:
    """Write a line to standard error: an error, or a note about the progress. Control characters are escaped."""
    sys.stderr.write(f"{escape(text)}\n")
    sys.stderr.flush()


def write_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = (), title: str = ""
) -> None:
    """Write a table for people to standard output. Its values are escaped and never shortened.

    On a terminal, long values are wrapped within their columns; if the terminal is too narrow for that, each row is
    written as lines `name: value`. Elsewhere a row is always one line.

    :param right: names of the columns that are aligned at the right, such as numbers.
    :param title: line above the table; it is left out if empty.
    """
    if title:
        write_line(title, style="bold")
    cells = [[escape_value(cell) for cell in row] for row in rows]
    widths = [max(display_width(cell) for cell in column) for column in zip(columns, *cells, strict=True)]
    if output_is_terminal():
        narrowed = _narrowed(columns, widths, shutil.get_terminal_size().columns)
        if narrowed is None:
            for row in cells:
                for name, cell in zip(columns, row, strict=True):
                    write_line(f"{name}: {cell}")
                write_line()
            return
        widths = narrowed
    aligned_right = [name in right for name in columns]
    for index, row in enumerate([list(columns), *cells]):
        wrapped = [_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
        for number in range(max(map(len, wrapped))):
            parts = (lines[number] if number < len(lines) else "" for lines in wrapped)
            line = COLUMN_GAP.join(map(_padded, parts, widths, aligned_right)).rstrip()
            write_line(line, style="bold" if index == 0 else None)


def _narrowed(columns: Sequence[str], widths: Sequence[int], terminal: int) -> list[int] | None:
    """Return the widths of columns that fit into a terminal; None if it is too narrow."""
    least = [
        min(width, max(len(name), NARROWEST_COLUMN)) for name, width in zip(columns, widths, strict=True)
    ]
    free = terminal - len(COLUMN_GAP) * (len(columns) - 1) - sum(least)
    if free < 0:
        return None
    result = list(least)
    # Narrow columns get all that they need first, and the widest share the rest.
    order = sorted(range(len(result)), key=lambda index: widths[index] - least[index])
    for position, index in enumerate(order):
        share = min(widths[index] - least[index], free // (len(order) - position))
        result[index] += share
        free -= share
    return result


def _wrapped(text: str, width: int) -> list[str]:
    lines, used = [""], 0
    for character in text:
        own = display_width(character)
        if used + own > width and lines[-1]:
            lines.append("")
            used = 0
        lines[-1] += character
        used += own
    return lines


def _padded(text: str, width: int, at_right: bool) -> str:
    blanks = " " * (width - display_width(text))
    return f"{blanks}{text}" if at_right else f"{text}{blanks}"


def display_width(text: str) -> int:
    """Return the number of columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0
        if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf")
        else 2
        if unicodedata.east_asian_width(character) in "WF"
        else 1
        for character in text
    )


def confirm(question: str) -> bool:
    """Ask a question on standard error, and return whether the answer on standard input is yes; the default is no."""
    sys.stderr.write(f"{escape(question)} [y/N]: ")
    sys.stderr.flush()
    # Bytes: an answer in another encoding is no error, but no.
    return sys.stdin.buffer.readline().strip().lower() in (b"y", b"yes")


def input_is_terminal() -> bool:
    """Return whether somebody can answer a question on standard input."""
    return sys.stdin.isatty()


def output_is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()


def output_is_utf8() -> bool:
    """Return whether standard output is UTF-8, and not a narrower encoding."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return encoding.lower().replace("-", "").replace("_", "") == "utf8"


def output_can_write(text: str) -> bool:
    """Return whether the encoding of standard output has all characters of a text."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def buffer_lines() -> None:
    """Write each line of standard output at its end; Python keeps the lines for a pipe or a file until there are many."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


def _is_coloured() -> bool:
    """Return whether lines have styles (https://no-color.org)."""
    environment = os.environ
    return output_is_terminal() and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


__all__ = [
    "OutputClosed",
    "OutputFailed",
    "buffer_lines",
    "confirm",
    "display_width",
    "input_is_terminal",
    "output_can_write",
    "output_is_terminal",
    "output_is_utf8",
    "prepare_streams",
    "run_command",
    "write_document",
    "write_error",
    "write_fields",
    "write_json",
    "write_json_text",
    "write_line",
    "write_lines",
    "write_row",
    "write_table",
]
