"""Whose turn it is: a queue's consumers, and in which order those that have room are served.

In turn, those of higher priority first (https://www.rabbitmq.com/docs/consumer-priority); with a single active consumer,
one of them alone until it goes (https://www.rabbitmq.com/docs/consumers#single-active-consumer).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from warren.broker.model.queue.consumer import Consumer


class Round:
    """The consumers of one queue."""

    ranked: bool = False
    """Some have a priority of their own."""

    def __init__(self, single: bool) -> None:
        self.single = single
        self.all: list[Consumer] = []
        self.active: deque[Consumer] = deque()
        """Those that have room, the next one first."""
        self.sole: Optional[Consumer] = None  # noqa: UP045
        """Where only one is active: which."""

    def add(self, consumer: Consumer) -> None:
        self.all.append(consumer)
        if consumer.priority:
            self.ranked = True
        if not self.single:
            self.admit(consumer)
        elif self.sole is None:
            self.sole = consumer
            self.admit(consumer)

    def remove(self, consumer: Consumer) -> bool:
        """Take one out for good; False if it was not there. With a single active consumer, the next one takes over."""
        if consumer not in self.all:
            return False
        self.all.remove(consumer)
        if consumer in self.active:
            self.active.remove(consumer)
        # What it still has unacknowledged may come back later, and must not bring it back.
        consumer.stalled = False
        if consumer is self.sole:
            self.sole = None
            if self.all:
                self.sole = max(self.all, key=priority)
                self.admit(self.sole)
        return True

    def admit(self, consumer: Consumer) -> None:
        if consumer.has_room():
            self.place(consumer)
        else:
            consumer.stalled = True

    def place(self, consumer: Consumer) -> None:
        """Behind all of its own priority and above."""
        consumer.stalled = False
        if not self.ranked:
            self.active.append(consumer)
            return
        at = len(self.active)
        while at and self.active[at - 1].priority < consumer.priority:
            at -= 1
        self.active.insert(at, consumer)

    def suspend(self, consumer: Consumer) -> None:
        """It has no room, for a reason outside the queue."""
        if consumer in self.active:
            self.active.remove(consumer)
            consumer.stalled = True

    def turn(self) -> None:
        """The first got a message and has room for more: the next one's turn."""
        if self.ranked:
            self.place(self.active.popleft())
        else:
            self.active.rotate(-1)

    def clear(self) -> list[Consumer]:
        """All of them, taken out."""
        consumers = self.all
        self.all = []
        self.active.clear()
        self.sole = None
        for consumer in consumers:
            consumer.stalled = False
        return consumers


def priority(consumer: Consumer) -> int:
    return consumer.priority
