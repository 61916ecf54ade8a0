"""Delta: the messages of a backing queue that are on disk only and take no memory."""

from __future__ import annotations

from typing import Optional

from mypy_extensions import i64

from warren.broker.model.message import Message
from warren.broker.model.queue.paging import QueuePager


class Delta:
    """Messages of a backing queue that are on disk only. Memory holds the range of their sequence numbers and no more.

    The delta consists of all messages of the queue that are not settled, have a sequence number from `first` to `last`
    and one of these priorities, and are not in `excluded`.

    :param lowest: lowest priority of the messages.
    :param highest: highest priority of the messages.
    """

    def __init__(self, lowest: i64, highest: i64) -> None:
        self.lowest = lowest
        self.highest = highest
        self.count: i64 = 0
        self.bytes: i64 = 0
        """Bytes of the bodies of the messages in the delta."""
        self.first: i64 = 0
        """Lowest sequence number that a message of the delta may have."""
        self.last: i64 = 0
        """Highest sequence number that a message of the delta may have."""
        self.excluded: dict[int, bool] = {}
        """Sequence numbers from `first` to `last` of messages that are elsewhere, such as dead letters to retry."""
        self.removed: dict[int, bool] = {}
        """Sequence numbers of messages that were removed one by one, from here or from memory. The log lists them until
        their removal is written, and the messages around one that was in memory may move here before."""

    def prepend(self, message: Message) -> None:
        """Add a message whose sequence number is lower than those of all messages in the delta."""
        if not self.count:
            self.last = message.sequence
        self.first = message.sequence
        self._add(message)

    def append(self, message: Message) -> None:
        """Add a message whose sequence number is higher than those of all messages in the delta."""
        self.last = message.sequence
        self._add(message)

    def _add(self, message: Message) -> None:
        self.count += 1
        self.bytes += message.body_size

    def read(self, pager: QueuePager) -> Optional[list[Message]]:  # noqa: UP045
        """Remove some messages with the lowest sequence numbers from the delta, and return them without contents.

        Return None if the disk cannot be read. If the delta is `exhausted` and its attribute `count` is not 0, the
        log has lost that many messages.

        :param pager: access of the queue to its messages in the log.
        """
        messages, following = pager.read_range(self.lowest, self.highest, self.first, self.last)
        if pager.failed:
            return None
        if self.excluded or self.removed:
            messages = [message for message in messages if self._has(int(message.sequence))]
        for message in messages:
            self.count -= 1
            self.bytes -= message.body_size
        self.first = following
        return messages

    def peek(self, pager: QueuePager, first: i64, limit: i64) -> list[Message]:
        """Return messages from a sequence number on, without contents, and leave them in the delta.

        :param limit: sequence numbers that are searched first; if none has a message, the search goes on to the next.
        """
        start: i64 = first if first > self.first else self.first
        last: i64 = self.last
        if not self.count or start > last:
            return []
        near: i64 = start + limit - 1
        found, _ = pager.read_range(self.lowest, self.highest, start, near if near < last else last)
        if not found and near < last:
            found, _ = pager.read_range(self.lowest, self.highest, near + 1, last)
        return [message for message in found if self._has(int(message.sequence))]

    def remove(self, pager: QueuePager, sequence: i64) -> Optional[Message]:  # noqa: UP045
        """Remove one message and return it without its content; None if it is not here. The log is left as it is."""
        if sequence < self.first or sequence > self.last or not self._has(int(sequence)):
            return None
        found, _ = pager.read_range(self.lowest, self.highest, sequence, sequence)
        if not found:
            return None
        self.removed[int(sequence)] = True
        self.count -= 1
        self.bytes -= found[0].body_size
        return found[0]

    def removal_written(self, sequence: i64) -> None:
        """Handle the write of a removal: the log does not list the message any more."""
        self.removed.pop(int(sequence), None)

    def _has(self, sequence: int) -> bool:
        """Return whether a message that the log lists in the range is in the delta."""
        return sequence not in self.excluded and sequence not in self.removed

    @property
    def exhausted(self) -> bool:
        """True after all messages with sequence numbers up to `last` have been read from disk."""
        return self.first > self.last

    def acknowledge_next(self, pager: QueuePager) -> bool:
        """Record in the log that the next messages of the delta have left the queue; return False if none is left."""
        elsewhere = {**self.excluded, **self.removed} if self.removed else self.excluded
        self.first = pager.acknowledge_next(self.lowest, self.highest, self.first, self.last, elsewhere)
        return not self.exhausted

    def clear(self) -> None:
        """Empty the delta (the messages that are on disk only), and leave the log as it is.

        `removed` stays: another range may hold these messages before their removal is written.
        """
        self.count = 0
        self.bytes = 0
        self.excluded = {}
