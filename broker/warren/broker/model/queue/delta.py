"""The part of a backing queue that is on disk only: its messages take no memory."""

from __future__ import annotations

from typing import Optional

from mypy_extensions import i64

from warren.broker.model.message import Message
from warren.broker.model.queue.paging import QueuePager


class Delta:
    """All live messages in a range of sequences and priorities, except for `excluded`.

    :param lowest: lowest priority of the range.
    :param highest: highest priority of the range.
    """

    def __init__(self, lowest: i64, highest: i64) -> None:
        self.lowest = lowest
        self.highest = highest
        self.count: i64 = 0
        self.bytes: i64 = 0
        """Bytes of message bodies."""
        self.first: i64 = 0
        """Lowest sequence."""
        self.last: i64 = 0
        """Highest sequence."""
        self.excluded: dict[int, bool] = {}
        """Sequences of live messages in the range that are elsewhere."""

    def prepend(self, message: Message) -> None:
        """Add a message that comes before all others of the delta."""
        if not self.count:
            self.last = message.sequence
        self.first = message.sequence
        self._add(message)

    def append(self, message: Message) -> None:
        """Add a message that comes after all others of the delta."""
        self.last = message.sequence
        self._add(message)

    def _add(self, message: Message) -> None:
        self.count += 1
        self.bytes += message.body_size

    def read(self, pager: QueuePager) -> Optional[list[Message]]:  # noqa: UP045
        """Remove and return the next messages, without their contents; None if the disk cannot be read.

        When the range is exhausted and `count` is not 0, the log has lost messages.
        """
        messages, following = pager.read_range(self.lowest, self.highest, self.first, self.last)
        if pager.failed:
            return None
        if self.excluded:
            messages = [message for message in messages if int(message.sequence) not in self.excluded]
        for message in messages:
            self.count -= 1
            self.bytes -= message.body_size
        self.first = following
        return messages

    @property
    def exhausted(self) -> bool:
        """True when the whole range has been read."""
        return self.first > self.last

    def acknowledge_all(self, pager: QueuePager) -> None:
        """Acknowledge all messages of the delta in the log, and empty it."""
        if self.count:
            pager.acknowledge_range(self.lowest, self.highest, self.first, self.last, self.excluded)
        self.clear()

    def clear(self) -> None:
        """Empty the delta without a record in the log."""
        self.count = 0
        self.bytes = 0
        self.excluded = {}
