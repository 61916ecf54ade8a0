"""Segments of the log: the files that its records are written to, and their order."""

from __future__ import annotations

from typing import Final, Optional

from mypy_extensions import i64

from warren.broker.store.index.index_format import SegmentIndex

NEVER: Final = 1 << 62
"""A segment number that is not reached."""


class Segment:
    """One file of the log. It counts the live messages (those still in their queue) in the file, and their bytes."""

    def __init__(self, number: i64, size: i64) -> None:
        self.number = number
        self.size: i64 = size
        """Bytes of records, without room that was preallocated."""
        self.live: i64 = 0
        """Number of live messages in the segment (those still in their queue)."""
        self.live_bytes: i64 = 0
        """Approximate bytes that the records of these live messages take."""
        self.batch: i64 = 0
        """Number of the batch of records that must be on disk before the file may be deleted.

        This is the last batch that writes to the file, or that acknowledges one of the messages in it.
        """
        self.change: i64 = 0
        """Number of the change of the definitions database that must be on disk before the file may be deleted.

        This is the last deletion of a queue that has messages in the file; 0 if there was none.
        """
        self.is_damaged = False
        """True if the file has places that cannot be read. It is then kept under another name when it is deleted."""
        self.index: Optional[SegmentIndex] = None  # noqa: UP045
        """The segment's index, once the segment is closed and has been indexed."""


class SegmentList:
    """The segments of the log, oldest first. Records are appended to the last one.

    :param segment_size: bytes after which a segment is closed.
    """

    def __init__(self, segments: list[Segment], segment_size: i64) -> None:
        self.segments = segments
        self.segment_size = segment_size

    def size(self) -> i64:
        """Return the size of all segments together in bytes, without room that was preallocated."""
        total: i64 = 0
        for segment in self.segments:
            total += segment.size
        return total

    def live_bytes(self) -> i64:
        """Return approximately how many bytes of the segments belong to messages that are still in their queue."""
        total: i64 = 0
        for segment in self.segments:
            total += segment.live_bytes
        return total


__all__ = ["NEVER", "Segment", "SegmentList"]
