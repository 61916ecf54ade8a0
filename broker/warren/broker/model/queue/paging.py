"""Paging of a queue's messages: contents leave memory for the log on disk, and are read back."""

from __future__ import annotations

import logging

from mypy_extensions import i64

from warren.broker.model.message import Message
from warren.broker.model.message_codec import apply_mark, fill_message, message_head
from warren.broker.store.log.log import Log
from warren.broker.store.log.queue_log import QueueLog

logger = logging.getLogger(__name__)


class QueuePager:
    """Access of one queue to its messages in the log.

    Messages of a queue that is not durable are written only when they are paged out, and do not survive a restart.

    :param records: the queue's handle in the log; None for a queue that is not durable.
    :param name: the name of the queue, for log events.
    """

    def __init__(self, log: Log, records: QueueLog | None, name: bytes) -> None:
        self.log = log
        self.name = name
        self.durable = records is not None
        self.queue_log = records if records is not None else log.transient_queue()
        self.delivered_before_restart: i64 = 0
        """Highest sequence number of the messages that may have been delivered before a crash.

        They are marked redelivered when they are read.
        """
        self.last_exchange = b""
        self.last_key = b""

    @property
    def failed(self) -> bool:
        """True if the disk cannot be read any more."""
        return self.log.failed

    def write(self, message: Message) -> None:
        """Write a message that is not in the log to the log, so that its content can leave memory."""
        head = message_head(message)
        message.log_position = self.log.spill(self.queue_log, message.sequence, head, message.content)
        message.stored = True

    def is_on_disk(self, message: Message) -> bool:
        """Return True if a message is on disk, so that its content can leave memory."""
        if not message.log_position:
            message.log_position = self.log.lookup.locate(self.queue_log, message.sequence)
        return 0 < message.log_position < self.log.written_position

    def indexed_before(self) -> i64:
        """Return the log position (segment and offset, as one number) before which all segment files have an index.

        Only messages before it can leave memory entirely (move to the delta), because they are then found by the index.
        """
        return self.log.indexed_up_to()

    def request_index(self) -> None:
        """Ask the log to index more of its segment files, so that messages in them can leave memory entirely."""
        self.log.request_indexes()

    def load_contents(self, messages: list[Message]) -> bool:
        """Read the contents of messages from disk. A damaged message stays without content.

        Return False if the disk cannot be read.
        """
        wanted = [(int(message.sequence), int(message.log_position)) for message in messages]
        payloads = self.log.lookup.payloads(self.queue_log, wanted)
        if self.log.failed:
            return False
        for message, payload in zip(messages, payloads, strict=True):
            if payload is not None:
                fill_message(message, payload)
                # Equal names become the same object: the framing of deliveries compares identities first.
                if message.exchange == self.last_exchange:
                    message.exchange = self.last_exchange
                else:
                    self.last_exchange = message.exchange
                if message.routing_key == self.last_key:
                    message.routing_key = self.last_key
                else:
                    self.last_key = message.routing_key
        return True

    def read_range(self, lowest: i64, highest: i64, first: i64, last: i64) -> tuple[list[Message], int]:
        """Return some messages from the beginning of a range, and the sequence number at which the next call continues.

        The messages are without contents. Those that have left the queue are omitted.

        :param lowest: the lowest priority.
        :param highest: the highest priority.
        :param first: the sequence number to begin at.
        :param last: the last sequence number of the range.
        """
        found, following = self.log.lookup.find(self.queue_log, lowest, highest, first, last)
        counts = self.queue_log.counts
        messages: list[Message] = []
        for sequence, expires, place, body, priority, transient in found:
            message = Message(b"", b"", b"", body, 0)
            message.sequence = sequence
            message.expires = expires
            message.log_position = place
            message.priority = priority
            message.persistent = not transient
            message.stored = True
            if sequence <= self.delivered_before_restart:
                message.redelivered = True
            if counts:
                apply_mark(message, counts.get(sequence, 0))
            messages.append(message)
        return messages, following

    def acknowledge(self, message: Message) -> None:
        """Record in the log that a message has left the queue."""
        self.log.acknowledge(self.queue_log, message.sequence)
        message.stored = False

    def acknowledge_next(
        self, lowest: i64, highest: i64, first: i64, last: i64, excluded: dict[int, bool]
    ) -> i64:
        """Record in the log that the next messages of a range have left the queue.

        Return the sequence number at which the next call continues; it is higher than `last` when none is left.

        :param lowest: the lowest priority.
        :param highest: the highest priority.
        :param first: the lowest sequence number.
        :param last: the highest sequence number.
        :param excluded: sequence numbers of messages in the range that stay.
        """
        found, following = self.log.lookup.find(self.queue_log, lowest, highest, first, last)
        for entry in found:
            if entry[0] not in excluded:
                self.log.acknowledge(self.queue_log, entry[0])
        return following

    def report_damaged(self, message: Message) -> None:
        """Log an error about a message whose record on disk is damaged, and remove the record."""
        logger.error(
            "event=queue.message_lost queue=%r sequence=%d",
            self.name.decode(errors="replace"),
            message.sequence,
        )
        self.acknowledge(message)

    def report_missing(self, count: int) -> None:
        """Log an error about messages whose records on disk are missing.

        :param count: the number of messages.
        """
        logger.error("event=queue.messages_lost queue=%r count=%d", self.name.decode(errors="replace"), count)

    def drop(self) -> None:
        """Remove all messages of the queue from the log, because it is deleted."""
        self.log.drop_queue(self.queue_log)
