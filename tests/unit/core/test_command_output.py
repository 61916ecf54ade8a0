"""Writer of all commands: tables of every width, and streams that end, fill up or are not blocking."""

from __future__ import annotations

import fcntl
import io
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import pytest

from tests.support.polling import PATIENCE
from tests.support.standard_input import standard_input
from warren.core import command_output
from warren.core.errors import ExitStatus, UsageError
from warren.core.text_escapes import escape_value

COLUMNS = ("id", "type", "error", "bytes")
ROWS = [
    ("letter-1", "order.placed", "ValueError: no such customer: [red]42[/red]", "17"),
    ("größe", "日本", "line\nbreak\t\x1b[31m", "123456"),
]


class Screen(io.StringIO):
    """Standard output that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], io.StringIO]:
    """Return a function that makes standard output a terminal of that many columns."""

    def make(columns: int) -> io.StringIO:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setattr("sys.stdout", screen := Screen())
        return screen

    return make


def test_a_row_is_one_line_where_the_output_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    command_output.write_table(COLUMNS, ROWS, right=("bytes",), title="letters")
    title, head, first, second = capsys.readouterr().out.splitlines()
    assert title == "letters"
    assert head.split() == list(COLUMNS)
    assert first == "letter-1  order.placed  ValueError: no such customer: [red]42[/red]      17"
    assert second.startswith("größe     日本          line\\nbreak\\t\\x1b[31m ")
    assert second.endswith(" 123456")


@pytest.mark.parametrize("columns", range(10, 90))
def test_a_table_fits_every_terminal_and_loses_nothing(
    terminal: Callable[[int], io.StringIO], columns: int
) -> None:
    screen = terminal(columns)
    command_output.write_table(COLUMNS, ROWS, right=("bytes",))
    lines = screen.getvalue().splitlines()
    assert not re.search(r"[\x00-\x1f]", "".join(lines))
    if lines[0].split() == list(COLUMNS):
        assert max(map(command_output.display_width, lines)) <= columns
        expected = "".join([*COLUMNS, *(escape_value(cell) for row in ROWS for cell in row)])
        assert Counter("".join(lines).replace(" ", "")) == Counter(expected.replace(" ", ""))
        assert columns >= 40
    else:
        assert lines[:5] == ["id: letter-1", "type: order.placed", f"error: {ROWS[0][2]}", "bytes: 17", ""]


def test_long_values_are_wrapped_within_their_column(terminal: Callable[[int], io.StringIO]) -> None:
    screen = terminal(30)
    command_output.write_table(("id", "text"), [("1", "a" * 60), ("2", "日" * 20)])
    assert screen.getvalue().splitlines() == [
        "id  text",
        f"1   {'a' * 26}",
        f"    {'a' * 26}",
        f"    {'a' * 8}",
        f"2   {'日' * 13}",
        f"    {'日' * 7}",
    ]


def test_an_empty_table_has_its_head(capsys: pytest.CaptureFixture[str]) -> None:
    command_output.write_table(COLUMNS, [])
    assert capsys.readouterr().out.split() == list(COLUMNS)


def test_a_style_colours_one_line(
    terminal: Callable[[int], io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = terminal(40)
    monkeypatch.setenv("TERM", "xterm")
    command_output.write_line("plain", style="red")
    monkeypatch.setenv("NO_COLOR", "")
    command_output.write_line("red\x1b[0m", style="red")
    monkeypatch.setenv("TERM", "dumb")
    command_output.write_line("dumb", style="red")
    assert screen.getvalue() == "plain\n\x1b[31mred\\x1b[0m\x1b[0m\ndumb\n"


@pytest.mark.parametrize(
    ("answer", "agreed"), [("y\n", True), (" YES \n", True), ("n\n", False), ("\n", False), ("", False)]
)
def test_a_question_is_answered_on_standard_input(
    answer: str, agreed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", standard_input(answer))
    assert command_output.confirm("Delete\x1b?") is agreed
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "Delete\\x1b? [y/N]: ")


class Broken(Exception):
    """Error of a component, with an exit status."""

    exit_status = 74


def ends(error: BaseException) -> Callable[[], int]:
    def work() -> int:
        raise error

    return work


@pytest.mark.parametrize(
    ("work", "status", "text"),
    [
        (ends(UsageError("wrong\nword")), ExitStatus.USAGE, "warren x: wrong\\nword\n"),
        (ends(Broken("gone")), ExitStatus.IO, "warren x: gone\n"),
        (ends(KeyboardInterrupt()), ExitStatus.INTERRUPTED, ""),
        (ends(command_output.OutputClosed()), ExitStatus.OUTPUT_CLOSED, ""),
        (ends(SystemExit()), 0, ""),
        (ends(SystemExit(3)), 3, ""),
        (ends(SystemExit("text")), 1, "text\n"),
    ],
)
def test_an_exception_ends_a_command_with_its_status(
    work: Callable[[], int], status: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_output.run_command("warren x", work) == status
    assert capsys.readouterr().err == text


def test_a_lost_connection_is_not_taken_for_a_reader_that_went_away() -> None:
    with pytest.raises(BrokenPipeError):
        command_output.run_command("warren x", ends(BrokenPipeError(32, "Broken pipe")))


PROGRAM = """
import sys
from warren.core.command_output import prepare_streams, run_command, write_error, write_line
prepare_streams()
def work():
    for number in range(20000):
        write_line(f"line {number}")
    write_error("done")
    return 0
sys.exit(run_command("warren x", work))
"""


@pytest.mark.processes
@pytest.mark.parametrize("options", [[], ["-u"]])
def test_output_is_whole_in_a_pipe_that_is_not_blocking(options: list[str]) -> None:
    """Another process that has the same pipe or terminal may have made it so."""
    reading, writing = os.pipe()
    flags = fcntl.fcntl(writing, fcntl.F_GETFL)
    fcntl.fcntl(writing, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    command = subprocess.Popen(
        [sys.executable, *options, "-c", PROGRAM], stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as output:
        lines = output.read().splitlines()
    assert command.communicate(timeout=PATIENCE)[1] == "done\n"
    assert command.returncode == 0
    assert lines == [f"line {number}" for number in range(20000)]


@pytest.mark.processes
def test_a_full_disk_on_standard_error_changes_no_status() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            stdout=subprocess.PIPE,
            stderr=full,
            timeout=PATIENCE,
            check=False,
        )
    assert (done.returncode, done.stdout.count(b"\n")) == (0, 20000)
