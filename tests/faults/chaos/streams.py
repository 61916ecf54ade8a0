"""What clients have read of the streams: each message stays where it was read, and the last reader finds all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.faults.chaos.history import number, publisher


@dataclass
class Stream:
    """One stream, as far as it is known."""

    messages: dict[int, str] = field(default_factory=dict)
    """By offset."""
    offsets: dict[str, int] = field(default_factory=dict)
    """By message."""
    last: dict[str, int] = field(default_factory=dict)
    """The last offset of each reader."""
    numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    """The last number of each publisher that a reader has come by."""
    whole: str = ""
    """The reader that begins at the first message and reads all."""
    found: set[str] = field(default_factory=set)
    """What that one has read."""

    def read(self, reader: str, message: str, offset: int, fault: Callable[[str, str], None]) -> None:
        """:param fault: called with `place` or `order`, and what is wrong"""
        if self.messages.setdefault(offset, message) != message:
            fault("place", f"{message} is at offset {offset}, where {self.messages[offset]} was read before")
        if self.offsets.setdefault(message, offset) != offset:
            fault("place", f"{message} is at offset {offset}, and was read at {self.offsets[message]} before")
        expected = self.last.get(reader, -1 if reader == self.whole else offset - 1) + 1
        if offset != expected:
            fault("order", f"{reader} got offset {offset} where {expected} was next")
        self.last[reader] = offset
        key = reader, publisher(message)
        if number(message) <= self.numbers.get(key, 0):
            fault("order", f"{message} came after number {self.numbers[key]}")
        self.numbers[key] = number(message)
        if reader == self.whole:
            self.found.add(message)

    def missing(self, due: list[str]) -> list[str]:
        """What the whole reader has not found of what somebody had read, or was told that it is there."""
        return sorted((self.offsets.keys() | set(due)) - self.found)
