"""Consumer scheduling: selects the consumer that gets the next message of a queue.

Consumers that can take messages take turns, those with a higher priority first
(https://www.rabbitmq.com/docs/consumer-priority). With a single active consumer, one consumer gets all messages until
it leaves (https://www.rabbitmq.com/docs/consumers#single-active-consumer).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from warren.broker.model.queue.consumer import Consumer


class ConsumerScheduler:
    """Consumers of one queue, and the order in which they get messages.

    A consumer has room if its prefetch, channel and connection allow another message. Those with room are the ready
    ones.
    """

    has_priorities: bool = False
    """True if at least one consumer has had a priority other than 0."""

    def __init__(self, single: bool) -> None:
        self.single_active = single
        self.consumers: list[Consumer] = []
        self.ready_consumers: deque[Consumer] = deque()
        """Consumers that have room, in the order in which they get messages."""
        self.single_active_consumer: Optional[Consumer] = None  # noqa: UP045
        """The only consumer that gets messages, if the queue has a single active consumer; otherwise None."""

    def add(self, consumer: Consumer) -> None:
        """Add a new consumer. It gets messages if it has room, and with a single active consumer if it is the first."""
        self.consumers.append(consumer)
        if consumer.priority:
            self.has_priorities = True
        if not self.single_active:
            self.admit(consumer)
        elif self.single_active_consumer is None:
            self.single_active_consumer = consumer
            self.admit(consumer)

    def remove(self, consumer: Consumer) -> bool:
        """Remove a consumer that was cancelled. Return False if it was not there.

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
        """Add a consumer to the ready consumers if it can take a message; otherwise mark it as stalled."""
        if consumer.has_room():
            self.insert(consumer)
        else:
            consumer.stalled = True

    def insert(self, consumer: Consumer) -> None:
        """Insert a consumer into the ready consumers, behind all those with the same or a higher priority.

        The ready consumers are those that can take a message, in the order in which they get one.
        """
        consumer.stalled = False
        if not self.has_priorities:
            self.ready_consumers.append(consumer)
            return
        at = len(self.ready_consumers)
        while at and self.ready_consumers[at - 1].priority < consumer.priority:
            at -= 1
        self.ready_consumers.insert(at, consumer)

    def suspend(self, consumer: Consumer) -> None:
        """Remove a consumer from the ready consumers, because its channel or connection cannot take more messages now.

        It is stalled until `insert` is called.
        """
        if consumer in self.ready_consumers:
            self.ready_consumers.remove(consumer)
            consumer.stalled = True

    def rotate(self) -> None:
        """Move the first ready consumer behind the others of its priority, after it got a message."""
        if self.has_priorities:
            self.insert(self.ready_consumers.popleft())
        else:
            self.ready_consumers.rotate(-1)

    def clear(self) -> list[Consumer]:
        """Remove and return all consumers, because the queue is deleted."""
        consumers = self.consumers
        self.consumers = []
        self.ready_consumers.clear()
        self.single_active_consumer = None
        for consumer in consumers:
            consumer.stalled = False
        return consumers


def priority(consumer: Consumer) -> int:
    return consumer.priority
