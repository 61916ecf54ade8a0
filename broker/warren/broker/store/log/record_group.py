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
    checksum,
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
        """The records of the group that were added since the last call of `join`, encoded as entries of a GROUP record."""
        self.count: i64 = 0
        """Number of all entries."""
        self.parts: list[bytes] = []
        """Payload of the record up to the last call of `join`, in parts."""
        self.length: i64 = 0
        """Bytes of `parts`."""
        self.check = 0
        """CRC-32 of `parts`."""
        self.added: dict[QueueLog, list[int]] = {}
        """Messages that the group adds: of each queue the bytes that they take in the log, then ranges of sequence numbers:
        first, last, first, last, ...
        """
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
        self.add_entry(encode_group_entry(MESSAGE, queue.incarnation, sequence, payload))
        self.note_added(queue, sequence, size)
        self.size += size

    def add_fan_out(self, targets: list[tuple[QueueLog, int]], payload: bytes, share: i64) -> None:
        """Add one message for several queues to the group.

        :param targets: the queues, each with the sequence number of the message there.
        :param payload: the payload of its FAN_OUT record.
        :param share: bytes that each queue counts as its use of the log: the record's size divided among the queues.
        """
        queue, sequence = targets[0]
        self.add_entry(encode_group_entry(FAN_OUT, queue.incarnation, sequence, payload))
        self.size += len(payload)
        for queue, sequence in targets:
            self.note_added(queue, sequence, share)

    def add_entry(self, entry: bytes) -> None:
        """Add an encoded entry to the record."""
        self.entries.append(entry)
        self.count += 1

    def note_added(self, queue: QueueLog, sequence: i64, size: i64) -> None:
        """Note a message that the group adds.

        :param sequence: the number of the message in its queue.
        :param size: bytes that it takes in the log.
        """
        added = self.added.get(queue)
        if added is None:
            self.added[queue] = [size, sequence, sequence]
            return
        added[0] += size
        if added[-1] == sequence - 1:
            added[-1] = sequence
        else:
            added.append(sequence)
            added.append(sequence)

    def join(self) -> None:
        """Join the new entries to a part of the payload, and extend its checksum.

        A group that collects its entries in slices does so at the end of each slice, since both take long for all of them.
        """
        if self.entries:
            part = b"".join(self.entries)
            self.entries = []
            self.parts.append(part)
            self.length += len(part)
            self.check = checksum(part, self.check)

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
        self.add_entry(encode_group_entry(DELIVERY_COUNT, queue.incarnation, sequence, payload))
        self.size += PAIR

    def encode_acknowledgements(self) -> None:
        """Add the acknowledgements to the entries, those of each queue as one entry. Call it once, at the end."""
        for queue, ranges in self.ended.items():
            if len(ranges) > 2:
                ranges[:] = merge_ranges(ranges)
            self.add_entry(encode_group_entry(ACK, queue.incarnation, ranges[0], pack_pairs(ranges)))


__all__ = ["RecordGroup"]
