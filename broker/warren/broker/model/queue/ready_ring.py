"""Ring of the consumers of a queue that can take a message, in the order in which they get one.

The consumers link to each other, so that one of thousands is added, removed and passed over in a time that does not
depend on their number.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from warren.broker.model.queue.consumer import Consumer


class ReadyRing:
    """Ready consumers of one queue: those with a higher priority first, and those of one priority take turns.

    A consumer is in it if its `next_ready` is not None.
    """

    first: Optional[Consumer] = None  # noqa: UP045
    """The consumer that gets the next message; None if no consumer can take one."""

    def __init__(self) -> None:
        self.has_priorities = False
        """True if consumers may have a priority other than 0. Only then are there `priorities` and `last_of`."""
        self.priorities: list[int] = []
        """Priorities of the consumers in the ring, in ascending order."""
        self.last_of: dict[int, Consumer] = {}
        """The last consumer of each of these priorities."""

    def allow_priorities(self) -> None:
        """Prepare for consumers with a priority other than 0."""
        if not self.has_priorities:
            self.has_priorities = True
            if self.first is not None:
                self.priorities.append(0)
                self.last_of[0] = previous(self.first)

    def insert(self, consumer: Consumer) -> None:
        """Insert a consumer behind all those with the same or a higher priority; move it if it is in the ring already."""
        if consumer.next_ready is not None:
            self.remove(consumer)
        first = self.first
        if first is None:
            consumer.next_ready = consumer.previous_ready = consumer
            self.first = consumer
        else:
            behind = previous(first)
            if self.has_priorities:
                at = bisect_left(self.priorities, consumer.priority)
                if at < len(self.priorities):
                    behind = self.last_of[self.priorities[at]]
                else:
                    self.first = consumer
            ahead = following(behind)
            consumer.previous_ready = behind
            consumer.next_ready = ahead
            behind.next_ready = consumer
            ahead.previous_ready = consumer
        if self.has_priorities:
            if consumer.priority not in self.last_of:
                insort(self.priorities, consumer.priority)
            self.last_of[consumer.priority] = consumer

    def remove(self, consumer: Consumer) -> bool:
        """Remove a consumer. Return False if it is not in the ring."""
        ahead = consumer.next_ready
        if ahead is None:
            return False
        behind = previous(consumer)
        if self.last_of.get(consumer.priority) is consumer:
            if behind.priority == consumer.priority and behind is not consumer:
                self.last_of[consumer.priority] = behind
            else:
                del self.last_of[consumer.priority]
                del self.priorities[bisect_left(self.priorities, consumer.priority)]
        if ahead is consumer:
            self.first = None
        else:
            behind.next_ready = ahead
            ahead.previous_ready = behind
            if self.first is consumer:
                self.first = ahead
        consumer.next_ready = consumer.previous_ready = None
        return True

    def rotate(self) -> None:
        """Move the first consumer behind the others of its priority."""
        first = self.first
        if first is None or first.next_ready is first:
            return
        if self.has_priorities:
            self.insert(first)
        else:
            self.first = first.next_ready

    def in_order(self) -> list[Consumer]:
        """Return all consumers in the order in which they get messages."""
        found: list[Consumer] = []
        consumer = self.first
        while consumer is not None:
            found.append(consumer)
            consumer = consumer.next_ready
            if consumer is self.first:
                break
        return found

    def clear(self) -> None:
        """Remove all consumers."""
        for consumer in self.in_order():
            consumer.next_ready = consumer.previous_ready = None
        self.first = None
        self.priorities.clear()
        self.last_of.clear()


def following(consumer: Consumer) -> Consumer:
    ahead = consumer.next_ready
    assert ahead is not None
    return ahead


def previous(consumer: Consumer) -> Consumer:
    behind = consumer.previous_ready
    assert behind is not None
    return behind
