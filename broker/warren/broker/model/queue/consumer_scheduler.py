"""Whose turn it is: a queue's consumers, and in which order those that have room are served.

In turn, those of higher priority first (https://www.rabbitmq.com/docs/consumer-priority); with a single active consumer,
one of them alone until it goes (https://www.rabbitmq.com/docs/consumers#single-active-consumer).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from warren.broker.model.queue.consumer import Consumer


class ConsumerScheduler:
    """The consumers of one queue."""

    has_priorities: bool = False
    """Some have a priority of their own."""

    def __init__(self, single: bool) -> None:
        self.single_active = single
        self.consumers: list[Consumer] = []
        self.ready_consumers: deque[Consumer] = deque()
        """Those that have room, the next one first."""
        self.single_active_consumer: Optional[Consumer] = None  # noqa: UP045
        """Where only one is active: which."""

    def add(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)
        if consumer.priority:
            self.has_priorities = True
        if not self.single_active:
            self.admit(consumer)
        elif self.single_active_consumer is None:
            self.single_active_consumer = consumer
            self.admit(consumer)

    def remove(self, consumer: Consumer) -> bool:
        """Take one out for good; False if it was not there. With a single active consumer, the next one takes over."""
        if consumer not in self.consumers:
            return False
        self.consumers.remove(consumer)
        if consumer in self.ready_consumers:
            self.ready_consumers.remove(consumer)
        # What it still has unacknowledged may come back later, and must not bring it back.
        consumer.stalled = False
        if consumer is self.single_active_consumer:
            self.single_active_consumer = None
            if self.consumers:
                self.single_active_consumer = max(self.consumers, key=priority)
                self.admit(self.single_active_consumer)
        return True

    def admit(self, consumer: Consumer) -> None:
        if consumer.has_room():
            self.insert(consumer)
        else:
            consumer.stalled = True

    def insert(self, consumer: Consumer) -> None:
        """Behind all of its own priority and above."""
        consumer.stalled = False
        if not self.has_priorities:
            self.ready_consumers.append(consumer)
            return
        at = len(self.ready_consumers)
        while at and self.ready_consumers[at - 1].priority < consumer.priority:
            at -= 1
        self.ready_consumers.insert(at, consumer)

    def suspend(self, consumer: Consumer) -> None:
        """It has no room, for a reason outside the queue."""
        if consumer in self.ready_consumers:
            self.ready_consumers.remove(consumer)
            consumer.stalled = True

    def rotate(self) -> None:
        """The first got a message and has room for more: the next one's turn."""
        if self.has_priorities:
            self.insert(self.ready_consumers.popleft())
        else:
            self.ready_consumers.rotate(-1)

    def clear(self) -> list[Consumer]:
        """All of them, taken out."""
        consumers = self.consumers
        self.consumers = []
        self.ready_consumers.clear()
        self.single_active_consumer = None
        for consumer in consumers:
            consumer.stalled = False
        return consumers


def priority(consumer: Consumer) -> int:
    return consumer.priority
