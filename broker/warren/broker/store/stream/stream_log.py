"""A stream's log: messages get their offsets, wait for the next batch as chunks, and are read once they are on the disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Optional

from mypy_extensions import i64

from warren.broker.store.files import Files
from warren.broker.store.stream.chunk_format import (
    CHUNK_HEADER,
    MESSAGES,
    OFFSETS,
    SEGMENT_HEADER,
    Chunk,
    encode_chunk,
    encode_offsets,
    pack_length,
    segment_header,
)
from warren.broker.store.stream.stream_segment import StreamSegment

if TYPE_CHECKING:
    from warren.broker.store.log.log import Log

CHUNK: Final = 256 * 1024
"""A chunk that has grown to this many bytes is closed."""
BATCH: Final = 8 * 1024 * 1024
"""A batch that holds so many bytes of one stream is closed, so that those who wait for it do not wait for more."""
SEGMENT: Final = 64 * 1024 * 1024
"""Default size of a segment in bytes."""
SMALLEST: Final = 4096
"""No segment is smaller, whatever is asked for."""
NAMES: Final = 1000
"""Stored offsets a stream; with more, those that were stored the longest ago go."""


class StreamWrite:
    """What a batch writes to one segment of a stream: `pieces`, back to back, from `start` on."""

    def __init__(self, path: str, start: i64) -> None:
        self.path = path
        self.start = start
        self.pieces: list[bytes] = []


class StreamPart:
    """What one batch holds of one stream."""

    def __init__(self, stream: StreamLog) -> None:
        self.stream = stream
        self.writes: list[StreamWrite] = []
        self.ends: list[tuple[StreamSegment, int]] = []
        """How far each segment may be read when this is on the disk."""
        self.chunks: list[Chunk] = []
        self.size: i64 = 0


class StreamLog:
    """One stream, on the disk or in memory. Its methods run on the event loop; only segments are read elsewhere.

    Messages below `committed` are on the disk: those are shown to consumers. `next_offset` is the next message's.

    :param write_soon: what has the stream's part written with the next batch where there is no `log`.
    :param now_ms: the time in milliseconds since 1970; the times of chunks never go back.
    """

    def __init__(
        self,
        identity: int,
        incarnation: int,
        folder: str,
        files: Files,
        log: Optional[Log],  # noqa: UP045
        write_soon: Callable[[StreamLog], None],
        now_ms: Callable[[], int],
    ) -> None:
        self.identity = identity
        self.incarnation = incarnation
        self.folder = folder
        self.files = files
        self.log = log
        self.segments: list[StreamSegment] = []
        self.next_offset: i64 = 0
        self.committed: i64 = 0
        self.timestamp: i64 = -1
        self.offsets: dict[bytes, int] = {}
        """Consumers' stored offsets: by name, the next one to be consumed."""
        self.deleted = False
        self.touched = False
        self.waiting = False
        """It has messages for the next batch."""
        self.keep_chunks = False
        """Somebody is at the end of the stream: what is committed is handed on."""
        self.on_committed: Callable[[list[Chunk]], None] = _ignore
        self.on_removed: Callable[[list[str]], None] = _ignore
        self.max_bytes: i64 = -1
        self.segment_size: i64 = SEGMENT
        self.chunk_size: i64 = CHUNK
        self._write_soon = write_soon
        self._now_ms = now_ms
        self._changed: dict[bytes, int] = {}
        self._entries: list[bytes] = []
        self._count: i64 = 0
        self._bytes: i64 = 0
        self._part: Optional[StreamPart] = None  # noqa: UP045

    # -- what it holds

    @property
    def first(self) -> i64:
        """The offset of the oldest message."""
        return self.segments[0].first if self.segments else self.committed

    @property
    def last_chunk(self) -> i64:
        """The first offset of the last chunk on the disk; the next offset where there is none."""
        for segment in reversed(self.segments):
            if segment.timestamp >= 0:
                return segment.last_chunk
        return self.next_offset

    def size(self) -> i64:
        """Bytes on the disk."""
        total: i64 = 0
        for segment in self.segments:
            total += segment.size
        return total

    # -- appending

    def append(self, head: bytes, content: bytes) -> None:
        """One message, whose offset is `next_offset`; `head + content` is what readers get back."""
        length: i64 = len(head) + len(content)
        size: i64 = length + 4
        log = self.log
        # No chunk is larger than a segment: retention could not take a part of it.
        room: i64 = max(self.segment_size, SMALLEST) - SEGMENT_HEADER - CHUNK_HEADER
        if (
            (self._bytes + size > self.chunk_size or self._bytes + size > room)
            and self._count
            and (log is None or not log.grouped)
        ):
            self._close_chunk()
            if self._part is not None and self._part.size > BATCH and log is not None:
                log.seal()
        entries = self._entries
        entries.append(pack_length(length))
        entries.append(head)
        entries.append(content)
        self._count += 1
        self._bytes += size
        self.next_offset += 1
        if log is not None:
            log.unwritten += size
        if not self.waiting:
            self.waiting = True
            if log is not None:
                log.expect(self, True)
            else:
                self._write_soon(self)

    def store_offset(self, name: bytes, offset: i64) -> None:
        """A consumer's next offset; on the disk with the next batch, after 200 ms at the latest."""
        if self.deleted:
            return
        self.offsets.pop(name, None)
        self.offsets[name] = offset
        if len(self.offsets) > NAMES:
            oldest = next(iter(self.offsets))
            del self.offsets[oldest]
            self._changed.pop(oldest, None)
        self._changed[name] = offset
        if self.log is not None:
            self.log.expect(self, False)

    def cut(self) -> Optional[StreamPart]:  # noqa: UP045
        """What was appended since the last time, as a part of the batch that is being closed."""
        self.touched = False
        self.waiting = False
        if self.deleted:
            return None
        if self._count:
            self._close_chunk()
        if self._changed:
            self._write_offsets(self._changed)
            self._changed = {}
        part = self._part
        self._part = None
        return part

    def commit(self, part: StreamPart) -> None:
        """A part is on the disk."""
        if self.deleted:
            return
        for segment, end in part.ends:
            segment.end = end
        for chunk in part.chunks:
            self.committed = chunk.first + chunk.count
        if part.chunks:
            self.on_committed(part.chunks)

    def _close_chunk(self) -> None:
        payload = b"".join(self._entries)
        first: i64 = self.next_offset - self._count
        timestamp: i64 = max(self._now_ms(), self.timestamp)
        self.timestamp = timestamp
        segment = self._room(CHUNK_HEADER + len(payload), first)
        head = encode_chunk(MESSAGES, self._count, first, timestamp, payload, segment.seed)
        segment.place(first, timestamp)
        part = self._collecting()
        self._put(part, segment, head, payload)
        part.size += self._bytes
        part.chunks.append(
            Chunk(MESSAGES, first, self._count, timestamp, payload if self.keep_chunks else b"")
        )
        self._entries = []
        self._count = 0
        self._bytes = 0

    def _write_offsets(self, offsets: dict[bytes, int]) -> None:
        payload = encode_offsets(offsets)
        segment = self._room(CHUNK_HEADER + len(payload), self.next_offset)
        head = encode_chunk(
            OFFSETS, len(offsets), self.next_offset, max(self.timestamp, 0), payload, segment.seed
        )
        self._put(self._collecting(), segment, head, payload)

    def _collecting(self) -> StreamPart:
        part = self._part
        if part is None:
            part = StreamPart(self)
            self._part = part
        return part

    def _put(self, part: StreamPart, segment: StreamSegment, head: bytes, payload: bytes) -> None:
        writes = part.writes
        if not writes or writes[-1].path != segment.path:
            writes.append(StreamWrite(segment.path, segment.position))
        pieces = writes[-1].pieces
        pieces.append(head)
        pieces.append(payload)
        segment.position += len(head) + len(payload)
        segment.size = segment.position
        ends = part.ends
        if ends and ends[-1][0] is segment:
            ends.pop()
        ends.append((segment, int(segment.position)))

    def _room(self, size: i64, first: i64) -> StreamSegment:
        """The segment that a chunk goes to, whose first message is `first`."""
        segment = self.segments[-1] if self.segments else None
        if segment is not None and not segment.closed:
            if segment.position + size <= max(self.segment_size, SMALLEST) or segment.timestamp < 0:
                return segment
            self._end(segment, first)
        fresh = StreamSegment(self.identity, self.incarnation, first, self.folder)
        self.segments.append(fresh)
        self._put(self._collecting(), fresh, segment_header(self.incarnation, int(first), fresh.seed), b"")
        if self.offsets:
            # Of the offsets only the last segment's are read at a start.
            payload = encode_offsets(self.offsets)
            head = encode_chunk(
                OFFSETS, len(self.offsets), first, max(self.timestamp, 0), payload, fresh.seed
            )
            self._put(self._collecting(), fresh, head, payload)
        return fresh

    def _end(self, segment: StreamSegment, next_offset: i64) -> None:
        """Close a segment; what it holds is read up to its index."""
        chunks_end = int(segment.position)
        part = self._collecting()
        self._put(part, segment, segment.closing(next_offset), b"")
        part.ends[-1] = (segment, chunks_end)

    # -- retention

    def retain(self, not_before: i64) -> bool:
        """Remove the oldest segments while they are too many, or all their messages older than that time (milliseconds).

        The last segment stays, whatever its age and size. What is being read of a removed one is read no further.

        :return: whether one is yet to go, once what follows it is on the disk.
        """
        removed = 0
        held_back = False
        total = self.size()
        while len(self.segments) - removed > 1:
            oldest = self.segments[removed]
            following = self.segments[removed + 1]
            if not ((0 <= self.max_bytes < total) or oldest.timestamp < not_before):
                break
            if following.first >= self.committed:
                held_back = True
                break
            total -= oldest.size
            removed += 1
        if removed:
            paths = [segment.path for segment in self.segments[:removed]]
            del self.segments[:removed]
            self.on_removed(paths)
        return held_back

    def drop(self) -> list[str]:
        """The stream is deleted: its files, which are to be removed."""
        self.deleted = True
        if self.log is not None:
            self.log.unwritten -= self._bytes + (self._part.size if self._part is not None else 0)
        self._entries = []
        self._count = 0
        self._bytes = 0
        self._part = None
        return [segment.path for segment in self.segments]


def _ignore(_: object) -> None:
    return


__all__ = ["BATCH", "CHUNK", "NAMES", "SEGMENT", "StreamLog", "StreamPart", "StreamWrite"]
