"""Building of a segment's index from the segment's records."""

from __future__ import annotations

import zlib

from mypy_extensions import i64

from warren.broker.store.index.index_format import (
    EXPIRES,
    INDEX_ENTRY,
    PAGE_BYTES,
    TRANSIENT,
    Describe,
    IndexRow,
    SegmentIndex,
)
from warren.broker.store.log.record_format import (
    ACK,
    BUNDLE,
    DELIVERY_COUNT,
    FAN_OUT,
    GROUP,
    HEADER,
    MESSAGE,
    SPILL,
    Record,
    decode_fan_out,
    expand_record,
    unpack_pairs,
)
from warren.broker.store.sequence_ranges import merge_ranges


class _RowBuilder:
    """Collector of one row of an index: the entries of a queue's messages of one priority.

    The messages are either all persistent, or all spilled, which means written only to leave memory.
    """

    def __init__(self, row: IndexRow) -> None:
        self.row = row
        self.packed = bytearray()
        """Encoded entries back to back. As objects they would take three times the memory, and there may be 300,000."""
        self.is_ordered = True
        """True while each message has a higher sequence number than the one before."""


class IndexBuilder:
    """Builder of a segment's index from the records of the segment, which are added in order."""

    def __init__(self, segment: int, describe: Describe) -> None:
        self._segment = segment
        self._describe = describe
        self._rows: dict[tuple[int, int, int], _RowBuilder] = {}
        self._acks: dict[int, list[int]] = {}
        self._marks: list[tuple[int, int, int]] = []
        self.repeated = 0
        """Number of persistent messages that the segment holds twice, once it was finished.

        A part of the segment was written over another one, whose messages are lost if it held any.
        """

    def add(self, record: Record) -> None:
        """Add the messages, acknowledgements or delivery counts of the segment's next intact record.

        Of the record of one message, the beginning is enough (`SegmentReader.next_beginning`).
        """
        kind = record.kind
        if kind == MESSAGE:
            self._add_message(record, record.incarnation, record.sequence, record.payload, record.size, 0)
        elif kind == SPILL:
            self._add_message(
                record, record.incarnation, record.sequence, record.payload, record.size, TRANSIENT
            )
        elif kind == BUNDLE:
            # Each message counts as a record of its own, which is what a copy of it costs.
            for item in expand_record(record):
                self._add_message(record, item.incarnation, item.sequence, item.payload, len(item.payload), 0)
        elif kind == GROUP:
            size = len(record.payload)
            for item in expand_record(record):
                if item.kind == MESSAGE:
                    self._add_message(record, item.incarnation, item.sequence, item.payload, size, 0)
                else:
                    self._add_other(record, item, size)
        else:
            self._add_other(record, record, record.size)

    def finish(self, size: int) -> SegmentIndex:
        """Return the index of the segment.

        :param size: size of the segment in bytes.
        """
        rows: dict[int, list[IndexRow]] = {}
        parts: list[bytes] = []
        start: i64 = 0
        for key in sorted(self._rows):
            builder = self._rows[key]
            packed_row = bytes(builder.packed)
            builder.packed = bytearray()
            row = builder.row
            if not builder.is_ordered:
                before: i64 = row.count
                packed_row = _sort_entries(packed_row)
                _correct_row(row, packed_row)
                if not row.is_transient:
                    self.repeated += int(before - row.count)
            row.start = start
            start += row.count
            parts.append(packed_row)
            rows.setdefault(row.incarnation, []).append(row)
        packed = b"".join(parts)
        checks = [zlib.crc32(packed[at : at + PAGE_BYTES]) for at in range(0, len(packed), PAGE_BYTES)]
        acks = {incarnation: merge_ranges(ranges) for incarnation, ranges in self._acks.items()}
        return SegmentIndex(self._segment, size, rows, acks, self._marks, checks, packed, start)

    def _add_other(self, whole: Record, item: Record, size: i64) -> None:
        if item.kind == FAN_OUT:
            table, content = decode_fan_out(item.payload)
            at: i64 = 0
            while at < len(table):
                self._add_message(whole, table[at], table[at + 1], content, size, 0, len(table) // 2)
                at += 2
        elif item.kind == ACK:
            self._acks.setdefault(item.incarnation, []).extend(unpack_pairs(item.payload))
        elif item.kind == DELIVERY_COUNT:
            values = unpack_pairs(item.payload)
            for sequence, count in zip(values[::2], values[1::2], strict=True):
                self._marks.append((item.incarnation, sequence, count))

    def _add_message(
        self,
        record: Record,
        incarnation: int,
        sequence: i64,
        payload: bytes,
        size: i64,
        flags: i64,
        sharers: i64 = 1,
    ) -> None:
        priority, expires, body = self._describe(payload)
        key = (incarnation, priority, int(flags))
        builder = self._rows.get(key)
        if builder is None:
            builder = self._rows[key] = _RowBuilder(IndexRow(incarnation, priority, int(flags)))
            builder.row.first = sequence
        row = builder.row
        if sequence <= row.last:
            builder.is_ordered = False
        if sequence < row.first:
            row.first = sequence
        if sequence > row.last:
            row.last = sequence
        row.count += 1
        row.bodies += body
        row.bytes += (HEADER + size) // sharers
        if expires:
            row.flags |= EXPIRES
        builder.packed += INDEX_ENTRY.pack(sequence, expires, record.offset, body, priority, flags, 0, size)


def _sort_entries(packed: bytes) -> bytes:
    """Sort encoded index entries, joined in one bytes object, by the sequence numbers of their messages.

    Of entries with the same number one is kept: a message was spilled twice, or a disk wrote its record in two places.
    """
    size = INDEX_ENTRY.size
    # The bytes are little-endian: they do not sort as the numbers do.
    found = {
        _sequence_of(entry): entry for entry in (packed[at : at + size] for at in range(0, len(packed), size))
    }
    return b"".join([found[sequence] for sequence in sorted(found)])


def _correct_row(row: IndexRow, packed: bytes) -> None:
    """Correct the totals of a row for entries that were dropped.

    :param packed: the encoded entries that are left.
    """
    count: i64 = len(packed) // INDEX_ENTRY.size
    if count == row.count:
        return
    # A share of the records' bytes: an entry does not tell how many messages share its record.
    row.bytes = row.bytes * count // row.count
    row.count = count
    row.bodies = 0
    for values in INDEX_ENTRY.iter_unpack(packed):
        row.bodies += values[3]


def _sequence_of(packed: bytes) -> int:
    return int.from_bytes(packed[:8], "little")


__all__ = ["IndexBuilder"]
