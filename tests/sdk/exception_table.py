"""Table of docs/handle.md: the outcome of a message whose handler ends with an exception, for every kind of exception.

`test_exceptions.py` runs each cell on a broker. `python -m tests.sdk.exception_table` writes the table into the page,
between `<!-- exceptions -->` and `<!-- end of exceptions -->`; a test fails while the page says something else.
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[2] / "docs" / "handle.md"
PLACE: Final = re.compile(r"(<!-- exceptions -->\n).*?(<!-- end of exceptions -->)", re.DOTALL)


class Source(StrEnum):
    """Kinds of handlers: the columns of the table."""

    CLASSIC = "Classic queue"
    QUORUM = "Quorum queue"
    STREAM = "Stream"
    BATCH = "Batch"
    REQUEST = "Request"
    THREAD = "Plain function"


class Kind(StrEnum):
    """Kinds of exceptions: the rows of the table."""

    EXCEPTION = "an `Exception`"
    WITHOUT_TEXT = "an exception whose `__str__` and `__repr__` raise"
    UNPICKLABLE = "an exception that cannot be pickled"
    FOREIGN_CANCELLATION = "`CancelledError` of another task that it awaited"
    OWN_CANCELLATION = "`CancelledError`, because it cancelled its own task"
    GENERATOR_EXIT = "`GeneratorExit`"
    BASE_EXCEPTION = "another `BaseException`"
    SYSTEM_EXIT = "`SystemExit` (`sys.exit()`)"
    KEYBOARD_INTERRUPT = "`KeyboardInterrupt`"
    STOP = "`CancelledError`, because the App stops"


class Outcome(StrEnum):
    """Outcomes of a message, as the cells of the table name them."""

    RETRIED_LETTER = "retried, then dead-lettered"
    LETTER = "dead-lettered at once"
    RETRIED_REPLY = "retried, then an error reply"
    REPLY = "error reply at once"
    ENDS = "the program ends; handled again"
    AGAIN = "handled again"


RETRIED: Final = (Kind.EXCEPTION, Kind.WITHOUT_TEXT, Kind.UNPICKLABLE)
ENDING: Final = (Kind.SYSTEM_EXIT, Kind.KEYBOARD_INTERRUPT)


def outcome(kind: Kind, source: Source) -> Outcome:
    """Return the cell of the table: the rule that holds for all kinds of handlers."""
    is_request = source is Source.REQUEST
    if kind is Kind.STOP:
        return Outcome.AGAIN
    if kind in ENDING:
        return Outcome.ENDS
    if kind in RETRIED:
        return Outcome.RETRIED_REPLY if is_request else Outcome.RETRIED_LETTER
    return Outcome.REPLY if is_request else Outcome.LETTER


def table() -> str:
    rows = [f"| {kind} | {' | '.join(outcome(kind, source) for source in Source)} |" for kind in Kind]
    return "\n".join(
        [f"| The handler raises | {' | '.join(Source)} |", f"|---|{'---|' * len(Source)}", *rows]
    )


def page_with_table() -> str:
    """Return the text of the page with the current table."""
    text = PAGE.read_text()
    assert len(PLACE.findall(text)) == 1, "the page has not one place for the table"
    return PLACE.sub(lambda found: f"{found[1]}\n{table()}\n\n{found[2]}", text)


if __name__ == "__main__":
    PAGE.write_text(page_with_table())
