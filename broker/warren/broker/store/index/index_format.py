"""Format of a segment's index: the positions of each queue's messages, and the acknowledgements in the segment.

An index is built from the segment's records once the segment is closed, and kept in a file beside it. A message that a
queue can find by the index need not be in memory. A start of the broker reads the indexes in place of the records. An
index can be rebuilt from its segment at any time, so it is not synced; an index that does not match its segment is
ignored and rebuilt. Spilled messages are those that were written only to leave memory.

    header      magic, version, segment, its size, number of rows, entries, ranges, marks; CRC of header and directory
    directory   rows: one for each queue, priority and kind (persistent or spilled); acknowledged ranges;
                marks (delivery counts); a CRC for each page of entries
    entries     of each row, in order of the sequence numbers of the messages
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from warren.broker.store.file_system.files_protocol import Files

Describe = Callable[[bytes], tuple[int, int, int]]
"""Function that decodes a stored message for its index entry, since the store does not know the encoding.

It returns (priority, expiry in milliseconds since 1970 or 0, size of the body in bytes).
"""

IndexEntry = tuple[int, int, int, int, int, int, int]
"""Index entry of one message: (sequence number, expiry, offset, body size, priority, flags, payload size).

The expiry is in milliseconds since 1970, or 0. The offset is that of the message's record in the segment. The payload
is that of the record, or if the record is a BUNDLE of several messages, the message. Sizes are in bytes.
"""


def describe_opaque(payload: bytes) -> tuple[int, int, int]:
    """Return (0, 0, size) for a stored message of unknown encoding: priority 0, no expiry, the size of the payload.

    Tests use this default. The broker passes a function that decodes the message.
    """
    return 0, 0, len(payload)


VERSION: Final = 1
TRANSIENT: Final = 1
"""Flag of a row and its entries: the messages were written only to leave memory, and do not outlive the process."""
EXPIRES: Final = 2
"""Flag of a row: some of its messages expire."""

_MAGIC: Final = b"WIDX"
_HEADER: Final = struct.Struct("<4sHHQQIIII")
_CRC: Final = struct.Struct("<I")
_ROW: Final = struct.Struct("<QQQQQIIBBH")
_TRIPLE: Final = struct.Struct("<QQQ")
INDEX_ENTRY: Final = struct.Struct("<QQIIBBHI")
"""Binary format of an `IndexEntry`. Its seventh field is reserved, and is not in the tuple."""
PAGE: Final = 1024
"""Number of index entries in a page. The entries of a page are read together and have one CRC."""
PAGE_BYTES: Final = PAGE * INDEX_ENTRY.size


class IndexRow:
    """Row of a segment's index: the messages of one queue and priority that the segment holds.

    They are either all persistent, or all spilled (written only to leave memory).
    """

    def __init__(self, incarnation: int, priority: int, flags: int) -> None:
        self.incarnation = incarnation
        self.priority = priority
        self.flags = flags
        """Combination of TRANSIENT and EXPIRES."""
        self.first: i64 = 0
        """Lowest sequence number of these messages."""
        self.last: i64 = 0
        """Highest sequence number of these messages."""
        self.bodies: i64 = 0
        """Bytes of the message bodies."""
        self.bytes: i64 = 0
        """Bytes of the log records of these messages."""
        self.start: i64 = 0
        """Position of the row's first entry among all entries of the index, counted from 0."""
        self.count: i64 = 0
        """Number of entries of the row, one for each message."""

    @property
    def is_transient(self) -> bool:
        """True if its messages are spilled (written only to leave memory): they do not survive a restart."""
        return self.flags & TRANSIENT != 0


class SegmentIndex:
    """Index of one segment of the log: from a message's queue and sequence number to its record in the segment.

    It lists the acknowledgements and delivery counts in the segment as well. The entries, one for each message, are in
    memory until the index file is written, and then in that file only.
    """

    def __init__(
        self,
        segment: i64,
        size: i64,
        rows: dict[int, list[IndexRow]],
        acks: dict[int, list[int]],
        marks: list[tuple[int, int, int]],
        checks: list[int],
        entries: bytes | None,
        count: i64,
    ) -> None:
        self.segment = segment
        """Number of the segment."""
        self.size = size
        """Size of the segment in bytes."""
        self.rows = rows
        """Rows of each queue, by the queue's incarnation (the number that names the queue in the log)."""
        self.acks = acks
        """Messages that this segment's records acknowledge, by incarnation (the number of the queue in the log).

        Each list has ranges of sequence numbers: first, last, first, last, ...
        """
        self.marks = marks
        """Delivery counts in this segment's records: (number of the queue, sequence number of the message, count)."""
        self.checks = checks
        """CRC of each page of entries."""
        self.entries = entries
        """The encoded entries; None if they are in the file only."""
        self.count = count
        """Number of entries."""
        self.entries_at: i64 = 0
        """Offset of the entries in the file."""

    def replace(self, other: SegmentIndex) -> None:
        """Take over the rows and entries of a rebuilt index of the same segment, because the index file is damaged."""
        self.rows, self.acks, self.marks = other.rows, other.acks, other.marks
        self.checks, self.entries, self.count = other.checks, other.entries, other.count

    def encode(self, seed: int) -> bytes:
        """Encode the index as the content of its file.

        :param seed: initial value of the checksums.
        """
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
        range_count = 0
        for incarnation, ranges in self.acks.items():
            for at in range(0, len(ranges), 2):
                directory.append(_TRIPLE.pack(incarnation, ranges[at], ranges[at + 1]))
                range_count += 1
        directory += [_TRIPLE.pack(*mark) for mark in self.marks]
        directory += [_CRC.pack(check) for check in self.checks]
        header = _HEADER.pack(
            _MAGIC, VERSION, 0, self.segment, self.size, len(rows), self.count, range_count, len(self.marks)
        )
        listed = b"".join(directory)
        check = zlib.crc32(listed, zlib.crc32(header, seed))
        return b"".join((header, _CRC.pack(check), listed, self.entries))

    def move_to_file(self, size: i64) -> None:
        """Drop the entries from memory, because the index file holds them now.

        :param size: size of the index file in bytes.
        """
        assert self.entries is not None
        self.entries_at = size - len(self.entries)
        self.entries = None


def index_path(folder: str, number: int) -> str:
    """Return the path of the index file of segment `number` of the log in `folder`."""
    return f"{folder}/{number:016d}.idx"


def load_index(files: Files, folder: str, number: int, size: int, seed: int) -> SegmentIndex | None:
    """Load the index of segment `number`, of `size` bytes, from its file in `folder`.

    :param seed: initial value of the index file's checksums.
    :return: None if the file is missing or damaged, or does not match the segment. The index is then built again.
    """
    path = index_path(folder, number)
    try:
        length = files.size(path)
        head = files.read(path, 0, _HEADER.size + _CRC.size)
        if len(head) < _HEADER.size + _CRC.size:
            return None
        magic, version, _, segment, indexed, row_count, count, ranges, mark_count = _HEADER.unpack_from(head)
        pages = (count + PAGE - 1) // PAGE
        listed_size = row_count * _ROW.size + (ranges + mark_count) * _TRIPLE.size + pages * _CRC.size
        whole = len(head) + listed_size + count * INDEX_ENTRY.size
        if magic != _MAGIC or version != VERSION or (segment, indexed, whole) != (number, size, length):
            return None
        listed = files.read(path, len(head), listed_size)
    except OSError:
        return None
    if _CRC.unpack_from(head, _HEADER.size)[0] != zlib.crc32(listed, zlib.crc32(head[: _HEADER.size], seed)):
        return None
    rows: dict[int, list[IndexRow]] = {}
    at = row_count * _ROW.size
    for values in _ROW.iter_unpack(listed[:at]):
        row = IndexRow(values[0], values[7], values[8])
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


__all__ = [
    "EXPIRES",
    "INDEX_ENTRY",
    "PAGE",
    "PAGE_BYTES",
    "TRANSIENT",
    "Describe",
    "IndexEntry",
    "IndexRow",
    "SegmentIndex",
    "describe_opaque",
    "index_path",
    "load_index",
]
