"""Counters of a virtual host that outlive the channels and queues that they count."""

from __future__ import annotations

from typing import Final, NamedTuple

from warren.broker.model.message_counts import MessageCounts

CONFIRMED: Final = "confirmed"
"""Value of `DeathCause.reason` for dead letters that their targets have accepted."""


class DeathCause(NamedTuple):
    """Cause for which messages have left a queue, as counters tell them apart.

    :ivar queue_type: type of the queue: `classic`, `quorum` or `stream`.
    :ivar strategy: how the queue dead-letters: `disabled`, `at_most_once` or `at_least_once`.
    :ivar reason: `rejected`, `expired`, `maxlen` or `delivery_limit`; or CONFIRMED, which counts dead letters of the
        strategy at-least-once once more when they have arrived.
    """

    queue_type: str
    strategy: str
    reason: str


class VirtualHostTotals:
    """Counters of a virtual host, or of all deleted ones together; they only grow."""

    def __init__(self) -> None:
        self.queues_declared = 0
        """Declarations of queues that succeeded, of new and of existing ones."""
        self.queues_created = 0
        self.queues_deleted = 0
        self.ended_channels = MessageCounts()
        """Messages of the channels that have ended."""
        self.deleted_queues: dict[str, MessageCounts] = {}
        """Messages of the queues that were deleted, by the type of the queue."""
        self.dead_letters: dict[DeathCause, int] = {}
        """Messages that have died in queues."""

    def add_deleted_queue(self, kind: str, counts: MessageCounts) -> None:
        """Add the messages of a queue that is being deleted.

        :param kind: its type: `classic`, `quorum` or `stream`.
        """
        self.deleted_queues.setdefault(kind, MessageCounts()).add(counts)

    def add_dead_letters(self, cause: DeathCause, count: int) -> None:
        """Add messages that have died for one cause."""
        self.dead_letters[cause] = self.dead_letters.get(cause, 0) + count

    def add(self, other: VirtualHostTotals) -> None:
        """Add other counters to these."""
        self.queues_declared += other.queues_declared
        self.queues_created += other.queues_created
        self.queues_deleted += other.queues_deleted
        self.ended_channels.add(other.ended_channels)
        for kind, counts in other.deleted_queues.items():
            self.add_deleted_queue(kind, counts)
        for cause, count in other.dead_letters.items():
            self.add_dead_letters(cause, count)
