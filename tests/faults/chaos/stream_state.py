"""Checks of a stream: a message keeps its offset, readers skip none, and the last reader finds all messages.

A crash may leave a gap in the offsets: a batch that was not synced can lose some of its chunks and keep later ones. No
message in it was confirmed or read before, and none may be read there later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.faults.chaos.history import number, publisher


@dataclass
class StreamState:
    """The messages of one stream that clients have read."""

    messages: dict[int, str] = field(default_factory=dict)
    """Messages by offset."""
    offsets: dict[str, int] = field(default_factory=dict)
    """Offsets by message."""
    last: dict[str, int] = field(default_factory=dict)
    """Last offset that each reader received."""
    numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    """Last message number by reader and publisher."""
    whole: str = ""
    """Name of the reader that reads the whole stream."""
    found: set[str] = field(default_factory=set)
    """Messages that this reader has read."""
    gaps: dict[tuple[int, int], str] = field(default_factory=dict)
    """First reader that skipped offsets from the first number to the second (exclusive), after a crash."""
    has_crashed: bool = False
    """The broker crashed since the stream was created: there may be gaps."""

    def read(self, reader: str, message: str, offset: int, fault: Callable[[str, str], None]) -> None:
        """Take a message that a reader received.

        :param fault: called with `offset` or `order` and a description for each fault.
        """
        if self.messages.setdefault(offset, message) != message:
            fault("offset", f"{message} is at offset {offset}, where {self.messages[offset]} was read before")
        if self.offsets.setdefault(message, offset) != offset:
            fault(
                "offset", f"{message} is at offset {offset}, and was read at {self.offsets[message]} before"
            )
        expected = self.last.get(reader, -1 if reader == self.whole else offset - 1) + 1
        if offset > expected and self.has_crashed:
            self.gaps.setdefault((expected, offset), reader)
        elif offset != expected:
            fault("order", f"{reader} got offset {offset} where {expected} was next")
        self.last[reader] = offset
        key = reader, publisher(message)
        if number(message) <= self.numbers.get(key, 0):
            fault("order", f"{message} came after number {self.numbers[key]}")
        self.numbers[key] = number(message)
        if reader == self.whole:
            self.found.add(message)

    def skipped(self) -> list[str]:
        """Return descriptions of messages that one reader skipped, and another one read."""
        return [
            f"{reader} got offset {end} where {first} was next, and {self.messages[offset]} is at {offset}"
            for (first, end), reader in self.gaps.items()
            for offset in range(first, end)
            if offset in self.messages
        ]

    def missing(self, due: list[str]) -> list[str]:
        """Return the messages that the whole reader missed, of those read before and the confirmed ones in `due`."""
        return sorted((self.offsets.keys() | set(due)) - self.found)
