"""Outcome of the message that is being handled, noted for the log where it is decided."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_outcome: ContextVar[list[str] | None] = ContextVar("warren_handling_outcome", default=None)


@contextmanager
def noted_outcome() -> Iterator[list[str]]:
    """Collect the outcome that is noted within the block: a list with one word, or empty."""
    noted: list[str] = []
    token = _outcome.set(noted)
    try:
        yield noted
    finally:
        _outcome.reset(token)


def note_outcome(word: str) -> None:
    """Note what became of an acknowledged message beside being handled, such as `delayed`; ignored unless collected."""
    noted = _outcome.get()
    if noted is not None:
        noted[:] = [word]
