"""Log lines with text from messages: no value begins a line of its own or controls a terminal."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from warren.core.log_output import JsonLines, TextLines

FORGED = "2026-01-01 00:00:00,000 INFO warren event=app.stopped"
HOSTILE = f"42\n{FORGED}\x1b[2J\x9b\u202e\ud83d ö"


def record(*, failed: bool = False, stack: str | None = None) -> logging.LogRecord:
    error = None
    if failed:
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            error = sys.exc_info()
    arguments = (HOSTILE,)
    made = logging.LogRecord(
        "warren", logging.WARNING, "f", 1, "event=message.dropped message_id=%s", arguments, error
    )
    made.stack_info = stack
    return made


def test_a_record_is_one_line_of_text() -> None:
    line = TextLines().format(record())
    shown = rf"42\n{FORGED}\x1b[2J\x9b\u202e\ud83d ö"
    assert line.endswith(f" WARNING warren event=message.dropped message_id={shown}")
    assert "\n" not in line


@pytest.mark.parametrize("formatted_before", [True, False])
def test_a_traceback_is_indented(formatted_before: bool) -> None:
    made = record(failed=True, stack="Stack:\n  here")
    if formatted_before:
        # Another handler; the formatter of `logging` keeps the text of the traceback for the next.
        assert FORGED in logging.Formatter().format(made)
    first, *others = TextLines().format(made).split("\n")
    assert "message_id=42" in first
    assert f"    {FORGED}" in "\n".join(others)
    assert all(line.startswith("    ") for line in others)
    assert "\x1b" not in "".join(others)


def test_a_line_of_json_is_valid_in_every_encoding() -> None:
    line = JsonLines().format(record(failed=True))
    assert line.isascii()
    assert json.loads(line)["fields"] == {"message_id": HOSTILE}
    assert json.loads(line)["message"].endswith(HOSTILE)


def test_a_number_that_json_lacks_is_a_text() -> None:
    made = logging.LogRecord(
        "warren", logging.INFO, "f", 1, "event=app.stopped seconds=%s", (float("nan"),), None
    )
    assert json.loads(JsonLines().format(made))["fields"] == {"seconds": "NaN"}
