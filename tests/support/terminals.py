"""Terminals, pipes and broken streams as the standard streams of a command."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import struct
import subprocess
import tempfile
import termios
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.broker_process import warren
from tests.support.polling import PATIENCE

NARROW: Final = 40
"""Columns of the terminals."""


@dataclass(frozen=True)
class Ended:
    """Exit status and output of a command that has ended."""

    status: int
    out: str
    err: str

    @property
    def error_lines(self) -> list[str]:
        return self.err.splitlines()


Terminal = Callable[[Sequence[str], Path], Ended]
"""Function that runs `warren WORDS` in a folder, with the standard streams of its kind."""


def environment(**values: str) -> dict[str, str]:
    """Return an environment in which only `values` decide about encodings, colours and widths."""
    decisive = (
        "COLUMNS",
        "LINES",
        "NO_COLOR",
        "FORCE_COLOR",
        "TERM",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "AMQP_URL",
    )
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in decisive and not name.startswith("PYTHON")
    }
    return {**kept, "LC_ALL": "C.UTF-8", "TERM": "xterm", **values}


def piped(words: Sequence[str], folder: Path, *, encoding: str = "utf-8", **values: str) -> Ended:
    """Run a command whose output goes to pipes."""
    return _run(warren(*words), folder, environment(**values), stdout=subprocess.PIPE, encoding=encoding)


def in_locale_c(words: Sequence[str], folder: Path) -> Ended:
    """Run a command in the locale C, without Python's coercion to UTF-8; the output has to be ASCII."""
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    return piped(words, folder, encoding="ascii", **plain)


def in_cp1252(words: Sequence[str], folder: Path) -> Ended:
    """Run a command whose output Python encodes as in a pipe on Windows."""
    return piped(words, folder, encoding="cp1252", PYTHONIOENCODING="cp1252")


def without_reader(words: Sequence[str], folder: Path) -> Ended:
    """Run a command whose standard output is a pipe that nobody reads any more."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return _run(warren(*words), folder, environment(), stdout=writing)
    finally:
        os.close(writing)


def on_a_full_disk(words: Sequence[str], folder: Path) -> Ended:
    """Run a command whose standard output is a file on a full disk."""
    with open("/dev/full", "wb") as full:
        return _run(warren(*words), folder, environment(), stdout=full.fileno())


def closed(*redirections: str) -> Terminal:
    """Return a terminal in which streams are closed, as the shell closes them with `>&-`."""

    def run(words: Sequence[str], folder: Path) -> Ended:
        command = ["sh", "-c", f'exec "$0" "$@" {" ".join(redirections)}', *warren(*words)]
        return _run(command, folder, environment(), stdout=subprocess.PIPE)

    return run


def on_a_narrow_terminal(words: Sequence[str], folder: Path, **values: str) -> Ended:
    """Run a command on a pseudo-terminal of 40 columns. Standard error is a pipe."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, NARROW, 0, 0))
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [str(word) for word in warren(*words)],
            stdin=slave,
            stdout=slave,
            stderr=errors,
            cwd=folder,
            env=environment(**values),
            start_new_session=True,
        )
        os.close(slave)
        shown = bytearray()
        with os.fdopen(master, "rb", buffering=0) as terminal:
            try:
                while part := terminal.read(65536):
                    shown += part
            except OSError as error:
                # So Linux reports the end of the last process on a terminal.
                assert error.errno == errno.EIO  # noqa: PT017
        status = process.wait(PATIENCE)
        errors.seek(0)
        return Ended(status, shown.decode().replace("\r\n", "\n"), errors.read().decode())


def without_colours(words: Sequence[str], folder: Path) -> Ended:
    """Run a command on a pseudo-terminal with NO_COLOR."""
    return on_a_narrow_terminal(words, folder, NO_COLOR="1")


def _run(
    command: Sequence[str | Path],
    folder: Path,
    variables: Mapping[str, str],
    *,
    stdout: int,
    encoding: str = "utf-8",
) -> Ended:
    done = subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=variables,
        timeout=PATIENCE,
        check=False,
    )
    return Ended(done.returncode, (done.stdout or b"").decode(encoding), done.stderr.decode(encoding))


TERMINALS: Final[dict[str, Terminal]] = {
    "no reader": without_reader,
    "full disk": on_a_full_disk,
    "stdout closed": closed(">&-"),
    "all closed": closed("<&-", ">&-", "2>&-"),
    "locale C": in_locale_c,
    "cp1252": in_cp1252,
    "narrow": on_a_narrow_terminal,
    "NO_COLOR": without_colours,
}
"""Terminals by name, other than `piped`."""
