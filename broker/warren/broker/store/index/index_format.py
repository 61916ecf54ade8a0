"""A segment's index: where each queue's messages stand in it, and what its records end or mark in others.

It is made from the segment's records once nothing more is written to it, and kept in a file beside it. Delta is made of
it: a message that waits there costs no memory. A start reads it in the place of the records. It can be made again from the
segment at any time, so it is not synced; one that does not fit its segment is not used.

    header      magic, version, segment, its size, number of rows, entries, ranges, marks; CRC of header and directory
    directory   rows: one a queue, priority and kind; acknowledged ranges; marks; a CRC for each page of entries
    entries     of each row, in order of their sequence
"""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from warren.broker.store.files import Files
from warren.broker.store.log.record_format import (
    ACK,
    BUNDLE,
    FAN_OUT,
    GROUP,
    HEADER,
    MARK,
    MESSAGE,
    SPILL,
    Record,
    entries,
    fan_out_targets,
    unpack_pairs,
)
from warren.broker.store.sequence_ranges import merge

logger = logging.getLogger(__name__)

Describe = Callable[[bytes], tuple[int, int, int]]
"""A payload's priority, expiry in milliseconds since 1970 (0 is none), and size of its body: the store does not read
messages itself."""

Entry = tuple[int, int, int, int, int, int, int]
"""Sequence, expiry, offset of the record, size of the body, priority, flags, size of the record's payload
(of a bundle: of the message)."""


def opaque(payload: bytes) -> tuple[int, int, int]:
    """Of a payload of which nothing else is known."""
    return 0, 0, len(payload)


VERSION: Final = 1
TRANSIENT: Final = 1
"""Flag of a row and its entries: written to make room in memory only; they do not outlive the process."""
EXPIRES: Final = 2
"""Flag of a row: some of its messages expire."""

_MAGIC: Final = b"WIDX"
_HEADER: Final = struct.Struct("<4sHHQQIIII")
_CRC: Final = struct.Struct("<I")
_ROW: Final = struct.Struct("<QQQQQIIBBH")
_TRIPLE: Final = struct.Struct("<QQQ")
_ENTRY: Final = struct.Struct("<QQIIBBHI")
_SEQUENCE: Final = struct.Struct("<Q")
PAGE: Final = 1024
"""Entries that share a CRC and are read together."""
_PAGE_BYTES: Final = PAGE * _ENTRY.size


class Row:
    """The messages that one queue has in one segment with one priority."""

    def __init__(self, incarnation: int, priority: int, flags: int) -> None:
        self.incarnation = incarnation
        self.priority = priority
        self.flags = flags
        self.first: i64 = 0
        self.last: i64 = 0
        self.bodies: i64 = 0
        self.bytes: i64 = 0
        """Of their records."""
        self.start: i64 = 0
        """Where in the segment's entries they begin."""
        self.count: i64 = 0

    @property
    def transient(self) -> bool:
        return self.flags & TRANSIENT != 0


class SegmentIndex:
    """The index of one segment, in memory (`entries` is not None) or in its file."""

    def __init__(
        self,
        segment: i64,
        size: i64,
        rows: dict[int, list[Row]],
        acks: dict[int, list[int]],
        marks: list[tuple[int, int, int]],
        checks: list[int],
        entries: bytes | None,
        count: i64,
    ) -> None:
        self.segment = segment
        self.size = size
        """Of the segment."""
        self.rows = rows
        self.acks = acks
        """Ranges (first, last, first, last, ...) that records in this segment acknowledge, by queue."""
        self.marks = marks
        self.checks = checks
        self.entries = entries
        self.count = count
        self.entries_at: i64 = 0

    def replace(self, other: SegmentIndex) -> None:
        """Its file is damaged: take what was made anew from the segment."""
        self.rows, self.acks, self.marks = other.rows, other.acks, other.marks
        self.checks, self.entries, self.count = other.checks, other.entries, other.count

    def encode(self, seed: int) -> bytes:
        """What its file holds."""
        assert self.entries is not None
        rows = [row for group in self.rows.values() for row in group]
        directory = [
            _ROW.pack(
                row.incarnation,
                row.first,
                row.last,
                row.bodies,
                row.bytes,
                row.start,
                row.count,
                row.priority,
                row.flags,
                0,
            )
            for row in rows
        ]
        ranges = 0
        for incarnation, runs in self.acks.items():
            for at in range(0, len(runs), 2):
                directory.append(_TRIPLE.pack(incarnation, runs[at], runs[at + 1]))
                ranges += 1
        directory += [_TRIPLE.pack(*mark) for mark in self.marks]
        directory += [_CRC.pack(check) for check in self.checks]
        header = _HEADER.pack(
            _MAGIC, VERSION, 0, self.segment, self.size, len(rows), self.count, ranges, len(self.marks)
        )
        listed = b"".join(directory)
        check = zlib.crc32(listed, zlib.crc32(header, seed))
        return b"".join((header, _CRC.pack(check), listed, self.entries))

    def stored(self, size: i64) -> None:
        """It stands in its file now, `size` bytes long."""
        assert self.entries is not None
        self.entries_at = size - len(self.entries)
        self.entries = None


def index_path(folder: str, number: int) -> str:
    """The file of a segment's index."""
    return f"{folder}/{number:016d}.idx"


def read_index(files: Files, folder: str, number: int, size: int, seed: int) -> SegmentIndex | None:
    """The index of a segment of that size; None if there is none that can be used."""
    path = index_path(folder, number)
    try:
        length = files.size(path)
        head = files.read(path, 0, _HEADER.size + _CRC.size)
        if len(head) < _HEADER.size + _CRC.size:
            return None
        magic, version, _, segment, indexed, row_count, count, ranges, mark_count = _HEADER.unpack_from(head)
        pages = (count + PAGE - 1) // PAGE
        listed_size = row_count * _ROW.size + (ranges + mark_count) * _TRIPLE.size + pages * _CRC.size
        whole = len(head) + listed_size + count * _ENTRY.size
        if magic != _MAGIC or version != VERSION or (segment, indexed, whole) != (number, size, length):
            return None
        listed = files.read(path, len(head), listed_size)
    except OSError:
        return None
    if _CRC.unpack_from(head, _HEADER.size)[0] != zlib.crc32(listed, zlib.crc32(head[: _HEADER.size], seed)):
        return None
    rows: dict[int, list[Row]] = {}
    at = row_count * _ROW.size
    for values in _ROW.iter_unpack(listed[:at]):
        row = Row(values[0], values[7], values[8])
        row.first, row.last, row.bodies, row.bytes, row.start, row.count = values[1:7]
        rows.setdefault(row.incarnation, []).append(row)
    acks: dict[int, list[int]] = {}
    end = at + ranges * _TRIPLE.size
    for incarnation, first, last in _TRIPLE.iter_unpack(listed[at:end]):
        acks.setdefault(incarnation, []).extend((first, last))
    at, end = end, end + mark_count * _TRIPLE.size
    marks = [(values[0], values[1], values[2]) for values in _TRIPLE.iter_unpack(listed[at:end])]
    checks = [values[0] for values in _CRC.iter_unpack(listed[end:])]
    index = SegmentIndex(number, size, rows, acks, marks, checks, None, count)
    index.entries_at = len(head) + listed_size
    return index


class Pages:
    """Reads entries from the files of indexes, and keeps the pages that it read last.

    :param rebuild: makes a segment's index anew from the segment.
    """

    def __init__(
        self, folder: str, files: Files, rebuild: Callable[[int], SegmentIndex], limit: int = 64
    ) -> None:
        self._rebuild = rebuild
        self._folder = folder
        self._files = files
        self._limit = limit
        self._pages: dict[tuple[int, int], bytes] = {}

    def page(self, index: SegmentIndex, number: i64) -> bytes:
        """Some entries that belong together.

        :raises OSError: the disk cannot be read.
        :raises ValueError: what was read is not what was written.
        """
        held = index.entries
        start: i64 = number * _PAGE_BYTES
        if held is not None:
            return held[start : start + _PAGE_BYTES]
        key = (int(index.segment), int(number))
        page = self._pages.get(key)
        if page is None:
            size: i64 = min(_PAGE_BYTES, index.count * _ENTRY.size - start)
            page = self._files.read(index_path(self._folder, index.segment), index.entries_at + start, size)
            if zlib.crc32(page) != index.checks[number]:
                raise ValueError(f"the index of segment {index.segment} is damaged")
            while len(self._pages) >= self._limit:
                del self._pages[next(iter(self._pages))]
            self._pages[key] = page
        return page

    def sequence(self, index: SegmentIndex, at: i64) -> i64:
        """The sequence of an entry."""
        page = self.page(index, at // PAGE)
        sequence: i64 = _SEQUENCE.unpack_from(page, at % PAGE * _ENTRY.size)[0]
        return sequence

    def find(self, index: SegmentIndex, row: Row, sequence: i64) -> i64:
        """Where in a row the first entry of that sequence or a later one stands."""
        if sequence <= row.first:
            return row.start
        if sequence > row.last:
            return row.start + row.count
        if row.last - row.first + 1 == row.count:
            return row.start + sequence - row.first
        low: i64 = row.start
        high: i64 = row.start + row.count
        while low < high:
            middle: i64 = (low + high) // 2
            if self.sequence(index, middle) < sequence:
                low = middle + 1
            else:
                high = middle
        return low

    def entries(self, index: SegmentIndex, row: Row, first: i64, last: i64) -> list[Entry]:
        """A row's entries with sequences from `first` to `last`.

        :raises OSError: the disk cannot be read.
        """
        try:
            return self._entries(index, row, first, last)
        except ValueError as error:
            logger.error("event=index_damaged detail=%r", str(error))
        # Nothing is lost: the segment has it all.
        index.replace(self._rebuild(int(index.segment)))
        for other in index.rows.get(row.incarnation, ()):
            if other.priority == row.priority and other.transient == row.transient:
                return self._entries(index, other, first, last)
        return []

    def _entries(self, index: SegmentIndex, row: Row, first: i64, last: i64) -> list[Entry]:
        found: list[Entry] = []
        at: i64 = self.find(index, row, first)
        end: i64 = row.start + row.count
        if last < row.last:
            end = self.find(index, row, last + 1)
        while at < end:
            number: i64 = at // PAGE
            stop: i64 = min(end, (number + 1) * PAGE)
            base: i64 = number * PAGE
            page = self.page(index, number)
            for values in _ENTRY.iter_unpack(page[(at - base) * _ENTRY.size : (stop - base) * _ENTRY.size]):
                found.append(  # noqa: PERF401  (a comprehension cannot unpack into native tuples)
                    (values[0], values[1], values[2], values[3], values[4], values[5], values[7])
                )
            at = stop
        return found


class _Group:
    """The entries of a row that is being made."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.packed = bytearray()
        """Entries back to back: as objects they would take three times the memory, and a segment holds 300,000 and more."""
        self.in_order = True


class IndexBuilder:
    """Makes a segment's index from its records, in order."""

    def __init__(self, segment: int, describe: Describe) -> None:
        self._segment = segment
        self._describe = describe
        self._groups: dict[tuple[int, int, int], _Group] = {}
        self._acks: dict[int, list[int]] = {}
        self._marks: list[tuple[int, int, int]] = []

    def add(self, record: Record) -> None:
        """The next intact record."""
        kind = record.kind
        if kind == MESSAGE:
            self._message(record, record.incarnation, record.sequence, record.payload, len(record.payload), 0)
        elif kind == SPILL:
            self._message(
                record, record.incarnation, record.sequence, record.payload, len(record.payload), TRANSIENT
            )
        elif kind == BUNDLE:
            # Each counts as if it stood alone, which is what a copy costs.
            for item in entries(record):
                self._message(record, item.incarnation, item.sequence, item.payload, len(item.payload), 0)
        elif kind == GROUP:
            size = len(record.payload)
            for item in entries(record):
                if item.kind == MESSAGE:
                    self._message(record, item.incarnation, item.sequence, item.payload, size, 0)
                else:
                    self._other(record, item, size)
        else:
            self._other(record, record, len(record.payload))

    def _other(self, whole: Record, item: Record, size: i64) -> None:
        if item.kind == FAN_OUT:
            table, content = fan_out_targets(item.payload)
            at: i64 = 0
            while at < len(table):
                self._message(whole, table[at], table[at + 1], content, size, 0, len(table) // 2)
                at += 2
        elif item.kind == ACK:
            self._acks.setdefault(item.incarnation, []).extend(unpack_pairs(item.payload))
        elif item.kind == MARK:
            values = unpack_pairs(item.payload)
            for sequence, count in zip(values[::2], values[1::2], strict=True):
                self._marks.append((item.incarnation, sequence, count))

    def _message(
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
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(Row(incarnation, priority, int(flags)))
            group.row.first = sequence
        row = group.row
        if sequence < row.last:
            group.in_order = False
        if sequence < row.first:
            row.first = sequence
        if sequence > row.last:
            row.last = sequence
        row.count += 1
        row.bodies += body
        row.bytes += (HEADER + size) // sharers
        if expires:
            row.flags |= EXPIRES
        group.packed += _ENTRY.pack(sequence, expires, record.offset, body, priority, flags, 0, size)

    def finish(self, size: int) -> SegmentIndex:
        """The index of the segment, which is `size` bytes long."""
        rows: dict[int, list[Row]] = {}
        parts: list[bytes] = []
        start: i64 = 0
        for key in sorted(self._groups):
            group = self._groups[key]
            packed_row = bytes(group.packed)
            group.packed = bytearray()
            if not group.in_order:
                packed_row = _sorted(packed_row)
            row = group.row
            row.start = start
            start += row.count
            parts.append(packed_row)
            rows.setdefault(row.incarnation, []).append(row)
        packed = b"".join(parts)
        checks = [zlib.crc32(packed[at : at + _PAGE_BYTES]) for at in range(0, len(packed), _PAGE_BYTES)]
        acks = {incarnation: merge(runs) for incarnation, runs in self._acks.items()}
        return SegmentIndex(self._segment, size, rows, acks, self._marks, checks, packed, start)


def _sorted(packed: bytes) -> bytes:
    """Entries in order of their sequences."""
    size = _ENTRY.size
    found = [packed[at : at + size] for at in range(0, len(packed), size)]
    # Little endian: the bytes do not sort as the numbers do.
    found.sort(key=_sequence_of)
    return b"".join(found)


def _sequence_of(packed: bytes) -> int:
    return int.from_bytes(packed[:8], "little")


__all__ = [
    "EXPIRES",
    "PAGE",
    "TRANSIENT",
    "Describe",
    "Entry",
    "IndexBuilder",
    "Pages",
    "Row",
    "SegmentIndex",
    "index_path",
    "opaque",
    "read_index",
]
