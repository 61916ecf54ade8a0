"""A group of records under construction: they become one record, so that a crash leaves all or none of them."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.broker.store.log.queue_log import QueueLog
from warren.broker.store.log.record_format import (
    ACK,
    DELIVERY_COUNT,
    FAN_OUT,
    HEADER,
    MESSAGE,
    encode_group_entry,
    pack_pairs,
)
from warren.broker.store.sequence_ranges import merge_ranges

PAIR: Final = 16
"""Bytes of a pair of numbers, such as a range of acknowledged messages."""


class RecordGroup:
    """Group of records under construction: its encoded entries, and the messages that it appends and acknowledges."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        """The records of the group, encoded as entries of a GROUP record."""
        self.added: list[tuple[QueueLog, int, int]] = []
        """Messages that the group adds: (queue, sequence number, bytes that the message takes in the log)."""
        self.ended: dict[QueueLog, list[int]] = {}
        """Messages that the group acknowledges: of each queue ranges of sequence numbers: first, last, first, last, ..."""
        self.size: i64 = 0
        """Approximate bytes of the record."""

    def add_message(self, queue: QueueLog, sequence: i64, payload: bytes) -> None:
        """Add a message of one queue to the group.

        :param sequence: the number of the message in its queue.
        :param payload: the encoded message: head and content.
        """
        size: i64 = HEADER + len(payload)
        self.entries.append(encode_group_entry(MESSAGE, queue.incarnation, sequence, payload))
        self.added.append((queue, sequence, size))
        self.size += size

    def add_fan_out(self, targets: list[tuple[QueueLog, int]], payload: bytes, share: i64) -> None:
        """Add one message for several queues to the group.

        :param targets: the queues, each with the sequence number of the message there.
        :param payload: the payload of its FAN_OUT record.
        :param share: bytes that each queue counts as its use of the log: the record's size divided among the queues.
        """
        queue, sequence = targets[0]
        self.entries.append(encode_group_entry(FAN_OUT, queue.incarnation, sequence, payload))
        self.size += len(payload)
        for queue, sequence in targets:
            self.added.append((queue, sequence, share))

    def acknowledge(self, queue: QueueLog, sequence: i64) -> None:
        """Add the acknowledgement of a message to the group."""
        ranges = self.ended.get(queue)
        if ranges is None:
            ranges = []
            self.ended[queue] = ranges
        if ranges and ranges[-1] == sequence - 1:
            ranges[-1] = sequence
        else:
            ranges.append(sequence)
            ranges.append(sequence)
            self.size += PAIR

    def record_delivery_count(self, queue: QueueLog, sequence: i64, count: i64) -> None:
        """Add the new delivery count of a message to the group."""
        payload = pack_pairs([sequence, count])
        self.entries.append(encode_group_entry(DELIVERY_COUNT, queue.incarnation, sequence, payload))
        self.size += PAIR

    def encode_acknowledgements(self) -> None:
        """Add the acknowledgements to the entries, those of each queue as one entry. Call it once, at the end."""
        for queue, ranges in self.ended.items():
            if len(ranges) > 2:
                ranges[:] = merge_ranges(ranges)
            self.entries.append(encode_group_entry(ACK, queue.incarnation, ranges[0], pack_pairs(ranges)))


__all__ = ["RecordGroup"]
