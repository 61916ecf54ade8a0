"""Jobs of the log's writer thread: write a batch, delete segments, read part of a segment for compaction, stop."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from typing import Final

from warren.broker.store.index.index_job import IndexJob
from warren.broker.store.log.record_format import Record, UnfinishedHeader
from warren.broker.store.log.segment_reader import SegmentReader
from warren.broker.store.stream.stream_log import StreamBatch

PART_SIZE: Final = 1024 * 1024
"""Bytes from which on a write is divided."""


class SegmentWrite:
    """Bytes that a batch writes to one segment: `pieces`, back to back, from offset `start` to before `end`.

    :param headers: headers of records, in `pieces`, which are finished before they are written.
    """

    def __init__(
        self,
        segment: int,
        start: int,
        end: int,
        pieces: Sequence[bytes | memoryview],
        headers: Sequence[UnfinishedHeader] = (),
    ) -> None:
        self.segment = segment
        self.start = start
        self.end = end
        self.pieces = pieces
        self.headers = headers

    def parts(self) -> Iterator[bytes]:
        """Return the bytes in parts of about a MiB, each joined when it is asked for.

        A thread that joins views of hundreds of megabytes would stop all others meanwhile.
        """
        for header in self.headers:
            header.finish()
        if self.end - self.start <= PART_SIZE:
            yield b"".join(self.pieces)
            return
        pieces = self.pieces
        # Not by the size of each piece: a loop over 100,000 of them would need the interpreter's lock for 20 ms, which a
        # busy event loop gives it bit by bit only.
        count = max(1, PART_SIZE * len(pieces) // (self.end - self.start))
        for first in range(0, len(pieces), count):
            yield b"".join(pieces[first : first + count])


class Batch:
    """Records that are written and synced together (group commit).

    :param number: number of the batch, from 1.
    :param writes: the bytes to write, one item for each segment.
    :param size: bytes of its records. The log subtracts them from its unwritten bytes when the batch is on disk.
    :param change: number of the change of the definitions database that must be on disk before the batch is confirmed.
    :param end: log position at which its last record ends.
    :param durable: False if it holds only messages that are written to leave memory: it is not synced then.
    :param streams: the messages and stored offsets of streams that are written with it, one part for each stream.
    """

    def __init__(
        self,
        number: int,
        writes: list[SegmentWrite],
        size: int,
        change: int,
        end: int,
        durable: bool,
        streams: list[StreamBatch],
    ) -> None:
        self.number = number
        self.writes = writes
        self.size = size
        self.change = change
        self.streams = streams
        self.end = end
        self.durable = durable
        self.submitted_at = 0.0
        """Time at which it was passed to the writer thread, by `time.monotonic()`."""


class DeleteSegments:
    """Job that deletes segments of the log, given by number, oldest first.

    :param damaged: those of them that have places which cannot be read. Their files get another name instead.
    """

    def __init__(self, segments: list[int], damaged: set[int]) -> None:
        self.segments = segments
        self.damaged = damaged


class DeleteStreamSegments:
    """Job that deletes segments of streams, given by path, oldest first.

    :param dropped: incarnation (the number in the data folder) of a stream that is deleted with all its segments; -1 if
        the segments are removed for another reason.
    """

    def __init__(self, paths: list[str], dropped: int = -1) -> None:
        self.paths = paths
        self.dropped = dropped


class CompactionRead:
    """Job that reads the next records, about `size` bytes of them, of the segment that is being compacted.

    :param reader: reads the segment; the next job for the segment continues with it.
    """

    def __init__(self, reader: SegmentReader, size: int) -> None:
        self.reader = reader
        self.size = size
        self.records: list[Record] = []
        self.finished = False
        """True if the segment has no more records."""
        self.error = ""
        """Reason why the segment cannot be read; empty if it can."""
        self.is_shortage = False
        """True if it can be read later: the process has no file descriptor left."""


class CleanEnd:
    """The state of the log at a clean stop.

    :param segment: number of the last segment.
    :param size: size of the last segment in bytes.
    :param delivered: for each queue, by its number in the log, the highest sequence number of a message that may have
        been delivered before an earlier crash.
    """

    def __init__(self, segment: int, size: int, delivered: dict[int, int]) -> None:
        self.segment = segment
        self.size = size
        self.delivered = delivered


class StopWriter:
    """Job that ends the writer thread. If `end` is given, the stop is first marked as clean."""

    def __init__(self, end: CleanEnd | None) -> None:
        self.end = end


Job = Batch | DeleteSegments | DeleteStreamSegments | CompactionRead | IndexJob | StopWriter
JobQueue = queue.SimpleQueue[Job]
"""Queue of the writer thread's jobs, which it does in this order."""

__all__ = [
    "Batch",
    "CleanEnd",
    "CompactionRead",
    "DeleteSegments",
    "DeleteStreamSegments",
    "Job",
    "JobQueue",
    "SegmentWrite",
    "StopWriter",
]
