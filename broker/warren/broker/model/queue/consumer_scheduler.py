"""Consumer scheduling: selects the consumer that gets the next message of a queue.

Consumers that can take messages take turns, those with a higher priority first
(https://www.rabbitmq.com/docs/consumer-priority). With a single active consumer, one consumer gets all messages until
it leaves (https://www.rabbitmq.com/docs/consumers#single-active-consumer).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Optional

from warren.broker.model.queue.ready_ring import ReadyRing

if TYPE_CHECKING:
    from warren.broker.model.queue.consumer import Consumer


class ConsumerScheduler:
    """Consumers of one queue, and the order in which they get messages.

    A consumer has room if its prefetch, channel and connection allow another message. Those with room are the ready
    ones.
    """

    def __init__(self, single: bool, higher_takes_over: bool) -> None:
        """Create the scheduler of a queue without consumers.

        :param single: True if the queue has a single active consumer.
        :param higher_takes_over: True if a new consumer with a higher priority takes the role of that one.
        """
        self.single_active = single
        self.higher_takes_over = higher_takes_over
        self.consumers: OrderedDict[Consumer, bool] = OrderedDict()
        """All consumers, as an ordered set. Not a plain dict: that takes long to find its first key after many deletions."""
        self.ready = ReadyRing()
        """Consumers that have room, in the order in which they get messages."""
        self.single_active_consumer: Optional[Consumer] = None  # noqa: UP045
        """The only consumer that gets messages, if the queue has a single active consumer; otherwise None."""
        self.role_is_vacant = False
        """True if the single active consumer has left, until `fill_role` passes its role."""

    def add(self, consumer: Consumer) -> None:
        """Add a new consumer. It gets messages if it has room, and with a single active consumer if it is the first."""
        self.fill_role()
        self.consumers[consumer] = True
        if consumer.priority:
            self.ready.allow_priorities()
        if not self.single_active:
            self.admit(consumer)
        elif self.single_active_consumer is None:
            self.single_active_consumer = consumer
            self.admit(consumer)
        elif self.higher_takes_over and consumer.priority > self.single_active_consumer.priority:
            self.quiesce(self.single_active_consumer)

    def quiesce(self, active: Consumer) -> None:
        """Let one with a higher priority take over from the single active consumer, as soon as its deliveries are settled.

        It gets no further ones until then (https://www.rabbitmq.com/docs/consumers#sac-consumer-priority).
        """
        active.quiesces = True
        self.suspend(active)
        self.on_settled(active)

    def on_settled(self, active: Consumer) -> None:
        """End the quiescing of the single active consumer if all deliveries to it are settled.

        The one with the highest priority takes over. If none has a higher one any more, this one goes on.
        """
        if active.unacked:
            return
        active.quiesces = False
        active.stalled = False
        if any(other.priority > active.priority and not other.timed_out for other in self.consumers):
            self.pass_role()
        else:
            self.admit(active)

    def remove(self, consumer: Consumer) -> bool:
        """Remove a consumer that was cancelled. Return False if it was not there.

        If it was the single active consumer, the caller calls `fill_role`, once it has removed all that leave.
        """
        if consumer not in self.consumers:
            return False
        del self.consumers[consumer]
        self.ready.remove(consumer)
        # Its unacknowledged messages may be settled later, and that must not resume it.
        consumer.stalled = False
        consumer.quiesces = False
        if consumer is self.single_active_consumer:
            self.single_active_consumer = None
            self.role_is_vacant = True
        return True

    def fill_role(self) -> None:
        """Let the consumer with the highest priority take over, if the single active consumer has left."""
        if self.role_is_vacant:
            self.pass_role()

    def pass_role(self) -> None:
        """Make the consumer with the highest priority the single active one, of those that are not timed out."""
        self.role_is_vacant = False
        self.single_active_consumer = None
        waiting = [consumer for consumer in self.consumers if not consumer.timed_out]
        if waiting:
            self.single_active_consumer = max(waiting, key=priority)
            self.admit(self.single_active_consumer)

    def suspend_timed_out(self, consumer: Consumer) -> None:
        """Suspend a consumer whose deliveries have timed out; if it was the single active one, another takes over."""
        self.suspend(consumer)
        if consumer is self.single_active_consumer:
            # It waits for the role now: no acknowledgement of its may resume it.
            consumer.stalled = False
            consumer.quiesces = False
            self.pass_role()

    def resume_timed_out(self, consumer: Consumer) -> None:
        """Admit a consumer again whose timed out deliveries are settled.

        With a single active consumer, it takes the role if nobody has it, and otherwise waits for it.
        """
        if self.single_active:
            self.fill_role()
            if self.single_active_consumer is not None:
                return
            self.single_active_consumer = consumer
        self.admit(consumer)

    def admit(self, consumer: Consumer) -> None:
        """Add a consumer to the ready consumers if it can take a message; otherwise mark it as stalled."""
        if consumer.has_room():
            self.insert(consumer)
        else:
            consumer.stalled = True

    def insert(self, consumer: Consumer) -> None:
        """Insert a consumer into the ready consumers, behind all those with the same or a higher priority."""
        consumer.stalled = False
        self.ready.insert(consumer)

    def suspend(self, consumer: Consumer) -> None:
        """Remove a consumer from the ready consumers, because its channel or connection cannot take more messages now.

        It is stalled until `insert` is called.
        """
        if self.ready.remove(consumer):
            consumer.stalled = True

    def clear(self) -> list[Consumer]:
        """Remove and return all consumers, because the queue is deleted."""
        consumers = list(self.consumers)
        self.consumers.clear()
        self.ready.clear()
        self.single_active_consumer = None
        self.role_is_vacant = False
        for consumer in consumers:
            consumer.stalled = False
        return consumers


def priority(consumer: Consumer) -> int:
    return consumer.priority
