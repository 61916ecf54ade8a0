"""Consumer scheduling: priorities, single active consumer, round-robin.

Consumers that have room take turns, those with a higher priority first (https://www.rabbitmq.com/docs/consumer-priority).
With a single active consumer, one consumer gets all messages until it leaves
(https://www.rabbitmq.com/docs/consumers#single-active-consumer).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from warren.broker.model.queue.consumer import Consumer


class ConsumerScheduler:
    """The consumers of one queue, and the order in which they get messages."""

    has_priorities: bool = False
    """At least one consumer has had a priority other than 0."""

    def __init__(self, single: bool) -> None:
        self.single_active = single
        self.consumers: list[Consumer] = []
        self.ready_consumers: deque[Consumer] = deque()
        """Consumers that have room, the next one first."""
        self.single_active_consumer: Optional[Consumer] = None  # noqa: UP045
        """The active consumer of a queue with a single active consumer; None if it has no consumer."""

    def add(self, consumer: Consumer) -> None:
        """Add a consumer."""
        self.consumers.append(consumer)
        if consumer.priority:
            self.has_priorities = True
        if not self.single_active:
            self.admit(consumer)
        elif self.single_active_consumer is None:
            self.single_active_consumer = consumer
            self.admit(consumer)

    def remove(self, consumer: Consumer) -> bool:
        """Remove a consumer for good. Return False if it was not there.

        If it was the single active consumer, the one with the highest priority takes over.
        """
        if consumer not in self.consumers:
            return False
        self.consumers.remove(consumer)
        if consumer in self.ready_consumers:
            self.ready_consumers.remove(consumer)
        # Its unacknowledged messages may be settled later, and that must not resume it.
        consumer.stalled = False
        if consumer is self.single_active_consumer:
            self.single_active_consumer = None
            if self.consumers:
                self.single_active_consumer = max(self.consumers, key=priority)
                self.admit(self.single_active_consumer)
        return True

    def admit(self, consumer: Consumer) -> None:
        """Put a consumer among the ready ones if it has room."""
        if consumer.has_room():
            self.insert(consumer)
        else:
            consumer.stalled = True

    def insert(self, consumer: Consumer) -> None:
        """Put a consumer after all ready consumers of the same or a higher priority."""
        consumer.stalled = False
        if not self.has_priorities:
            self.ready_consumers.append(consumer)
            return
        at = len(self.ready_consumers)
        while at and self.ready_consumers[at - 1].priority < consumer.priority:
            at -= 1
        self.ready_consumers.insert(at, consumer)

    def suspend(self, consumer: Consumer) -> None:
        """Remove a consumer from the ready ones until it is inserted again: its channel or its connection has no room."""
        if consumer in self.ready_consumers:
            self.ready_consumers.remove(consumer)
            consumer.stalled = True

    def rotate(self) -> None:
        """Move the first ready consumer to the end of its priority."""
        if self.has_priorities:
            self.insert(self.ready_consumers.popleft())
        else:
            self.ready_consumers.rotate(-1)

    def clear(self) -> list[Consumer]:
        """Remove and return all consumers."""
        consumers = self.consumers
        self.consumers = []
        self.ready_consumers.clear()
        self.single_active_consumer = None
        for consumer in consumers:
            consumer.stalled = False
        return consumers


def priority(consumer: Consumer) -> int:
    return consumer.priority
