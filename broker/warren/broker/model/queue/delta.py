"""The part of a queue that is on the disk only: of what waits there nothing is in memory."""

from __future__ import annotations

from typing import Optional

from mypy_extensions import i64

from warren.broker.model.message import Message
from warren.broker.model.queue.paging import QueuePager


class Delta:
    """A range of sequences, some priorities of them. Every live message in it waits here, except for `holes`.

    :param lowest: the priorities, to `highest`.
    """

    def __init__(self, lowest: i64, highest: i64) -> None:
        self.lowest = lowest
        self.highest = highest
        self.count: i64 = 0
        self.bytes: i64 = 0
        """Of their bodies."""
        self.first: i64 = 0
        self.last: i64 = 0
        self.excluded: dict[int, bool] = {}

    def prepend(self, message: Message) -> None:
        """A message that comes before all that are here."""
        if not self.count:
            self.last = message.sequence
        self.first = message.sequence
        self._add(message)

    def append(self, message: Message) -> None:
        """A message that comes after all that are here."""
        self.last = message.sequence
        self._add(message)

    def _add(self, message: Message) -> None:
        self.count += 1
        self.bytes += message.body_size

    def read(self, pager: QueuePager) -> Optional[list[Message]]:  # noqa: UP045
        """The next messages, taken out, without their contents; None if they cannot be read now.

        Nothing is left once the range has been read through. If more should have been there, `lost` tells.
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
        return self.first > self.last

    def acknowledge_all(self, pager: QueuePager) -> None:
        """All of them are over."""
        if self.count:
            pager.acknowledge_range(self.lowest, self.highest, self.first, self.last, self.excluded)
        self.clear()

    def clear(self) -> None:
        self.count = 0
        self.bytes = 0
        self.excluded = {}
