"""The log of one stream: appending of messages and stored offsets as chunks, and the removal of old segments."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Optional

from mypy_extensions import i64

from warren.broker.store.file_system.files_protocol import Files
from warren.broker.store.stream.chunk_format import (
    CHUNK_HEADER,
    MESSAGES,
    OFFSETS,
    PRODUCERS,
    SEGMENT_HEADER,
    Chunk,
    encode_chunk_header,
    encode_offsets,
    encode_segment_header,
    pack_length,
)
from warren.broker.store.stream.producer_ids import ProducerIds
from warren.broker.store.stream.stream_retention import count_expired_segments
from warren.broker.store.stream.stream_segment import StreamSegment

if TYPE_CHECKING:
    from warren.broker.store.log.log import Log

CHUNK_SIZE: Final = 256 * 1024
"""Default of the bytes after which a chunk (batch of messages) is closed and the next one is begun."""
BATCH_SIZE: Final = 8 * 1024 * 1024
"""Bytes of one stream after which a batch is closed, so that the confirms of its first messages are not delayed by
later messages."""
SEGMENT_SIZE: Final = 64 * 1024 * 1024
"""Default size of a segment in bytes."""
MIN_SEGMENT_SIZE: Final = 4096
"""Smallest size of a segment in bytes. A smaller x-stream-max-segment-size-bytes counts as this."""
MAX_STORED_OFFSETS: Final = 1000
"""Most stored offsets of a stream; beyond that, the ones stored the longest ago are dropped."""


class StreamWrite:
    """Bytes that a batch writes to one segment of a stream: `pieces`, back to back, from file position `start`."""

    def __init__(self, incarnation: int, segment: StreamSegment) -> None:
        self.path = segment.path
        self.start: i64 = segment.position
        self.pieces: list[bytes] = []
        self.incarnation = incarnation
        """The stream's number in the data folder."""
        self.first: i64 = segment.first
        """First offset of the segment."""
        self.next_offset: i64 = segment.first
        """Offset behind the last message of the bytes to write, or before them."""


class StreamBatch:
    """One stream's part of a batch of the log: the bytes to write, and the chunks that consumers get afterwards."""

    def __init__(self, stream: StreamLog) -> None:
        self.stream = stream
        self.writes: list[StreamWrite] = []
        self.ends: list[tuple[StreamSegment, int]] = []
        """Segments that the batch writes to, each with the file position up to which it may be read afterwards."""
        self.closed: list[StreamSegment] = []
        """Segments whose index and trailer the batch writes."""
        self.chunks: list[Chunk] = []
        """The chunks of messages."""
        self.size: i64 = 0
        """Bytes of messages, for the log's count of unwritten bytes."""


class StreamLog:
    """One stream, on disk or in memory. Its methods run on the event loop; its segments are read in other threads.

    :param identity: the data folder's random number, which seeds the checksums.
    :param incarnation: the number that names the stream; no other queue of the data folder has it.
    :param log: the log whose batches write the stream; None keeps the stream in memory.
    :param write_soon: function for a stream without a log: it schedules the writing of the stream's appended messages
        for the next iteration of the event loop.
    :param now_ms: returns the time in milliseconds since 1970. The times of chunks never go back, even if it does.
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
        """The segments, oldest first."""
        self.next_offset: i64 = 0
        """Offset of the next message that is appended."""
        self.committed: i64 = 0
        """Offset up to which (exclusive) messages are on disk, so that consumers may read them."""
        self.timestamp: i64 = -1
        """Time of the last chunk in milliseconds since 1970; -1 if there is none."""
        self.offsets: dict[bytes, int] = {}
        """Stored offsets of consumers: by name, the offset of the next message to deliver."""
        self.producers = ProducerIds()
        """Last publishing ids of the producers that have published with any."""
        self.deleted = False
        self.has_changes = False
        """True if the stream has messages or stored offsets to write with the next batch."""
        self.has_messages = False
        """True if it has messages for the next batch."""
        self.keep_chunks = False
        """True if a consumer has read up to the end of the stream.

        New chunks are then passed to `on_committed` with their payloads, and are not read from disk for the consumer.
        """
        self.on_committed: Callable[[list[Chunk]], None] = _ignore
        """Callback for chunks of messages that are on disk now, so that they may be delivered."""
        self.on_removed: Callable[[list[str]], None] = _ignore
        """Callback that removes the segment files with these paths."""
        self.max_bytes: i64 = -1
        """Greatest size of the stream in bytes; -1 for no limit."""
        self.segment_size: i64 = SEGMENT_SIZE
        """Bytes after which a segment is closed."""
        self.chunk_size: i64 = CHUNK_SIZE
        """Bytes after which a chunk (batch of messages) is closed and the next one is begun."""
        self._write_soon = write_soon
        self._now_ms = now_ms
        self._changed: dict[bytes, int] = {}
        self._writes_soon = False
        self._entries: list[bytes] = []
        self._count: i64 = 0
        self._bytes: i64 = 0
        self._part: Optional[StreamBatch] = None  # noqa: UP045

    # Content

    @property
    def first(self) -> i64:
        """Offset of the oldest message; if no message is stored, that of the next one to be written."""
        return self.segments[0].first if self.segments else self.committed

    @property
    def last_chunk(self) -> i64:
        """Offset of the first message in the last chunk; that of the next message to append if no message is stored."""
        for segment in reversed(self.segments):
            if segment.timestamp >= 0:
                return segment.last_chunk
        return self.next_offset

    def size(self) -> i64:
        """Return the bytes of all segments."""
        total: i64 = 0
        for segment in self.segments:
            total += segment.size
        return total

    # Appending

    def append(self, head: bytes, content: bytes) -> None:
        """Append the message `head + content`, which gets the offset in the attribute `next_offset`."""
        length: i64 = len(head) + len(content)
        size: i64 = length + 4
        log = self.log
        # No chunk is larger than a segment: retention could not remove a part of it.
        room: i64 = max(self.segment_size, MIN_SEGMENT_SIZE) - SEGMENT_HEADER - CHUNK_HEADER
        if (
            (self._bytes + size > self.chunk_size or self._bytes + size > room)
            and self._count
            and (log is None or not log.in_group)
        ):
            self._close_chunk()
            if self._part is not None and self._part.size > BATCH_SIZE and log is not None:
                log.close_batch()
        entries = self._entries
        entries.append(pack_length(length))
        entries.append(head)
        entries.append(content)
        self._count += 1
        self._bytes += size
        self.next_offset += 1
        if log is not None:
            log.unwritten_bytes += size
        if not self.has_messages:
            self.has_messages = True
            if log is not None:
                log.add_pending_stream(self, True)
            else:
                self._write_soon(self)

    def store_offset(self, name: bytes, offset: i64) -> None:
        """Store the offset at which a consumer continues. It is written with the next batch.

        If no message causes a batch, the offset is written after the log's `ack_delay`.

        :param name: name under which the offset is stored.
        """
        if self.deleted:
            return
        self.offsets.pop(name, None)
        self.offsets[name] = offset
        if len(self.offsets) > MAX_STORED_OFFSETS:
            oldest = next(iter(self.offsets))
            del self.offsets[oldest]
            self._changed.pop(oldest, None)
        self._changed[name] = offset
        if self.log is not None:
            self.log.add_pending_stream(self, False)

    def write_soon(self) -> None:
        """Have the next batch written soon, even if there is nothing else to write: a confirm waits for it."""
        if self.log is not None and not self.deleted:
            self._writes_soon = True
            self.log.add_pending_stream(self, True)

    def take_batch(self) -> Optional[StreamBatch]:  # noqa: UP045
        """Return the messages and stored offsets appended since the last call, for the batch of the log being closed.

        Return None if there are none.
        """
        self.has_changes = False
        self.has_messages = False
        if self.deleted:
            return None
        if self._count:
            self._close_chunk()
        if self._changed or self._writes_soon:
            # Without changes it is empty: the batch has something to write, so that confirms can wait for it.
            self._write_offsets(self._changed)
            self._changed = {}
            self._writes_soon = False
        part = self._part
        self._part = None
        return part

    def commit(self, part: StreamBatch) -> None:
        """Make the messages of a batch available to consumers, because the batch is on disk.

        :param part: the part of the batch that belongs to this stream.
        """
        if self.deleted:
            return
        for segment, end in part.ends:
            segment.end = end
        for segment in part.closed:
            segment.index_is_stored = True
        for chunk in part.chunks:
            self.committed = chunk.first + chunk.count
        if part.chunks:
            self.on_committed(part.chunks)

    def _close_chunk(self) -> None:
        """Encode the messages appended so far as a chunk of the batch."""
        payload = b"".join(self._entries)
        first: i64 = self.next_offset - self._count
        timestamp: i64 = max(self._now_ms(), self.timestamp)
        self.timestamp = timestamp
        segment = self._segment_for(CHUNK_HEADER + len(payload), first)
        head = encode_chunk_header(MESSAGES, self._count, first, timestamp, payload, segment.seed)
        segment.add_chunk(first, timestamp)
        part = self._current_part()
        self._write(part, segment, head, payload, first + self._count)
        part.size += self._bytes
        part.chunks.append(
            Chunk(MESSAGES, first, self._count, timestamp, payload if self.keep_chunks else b"")
        )
        self._entries = []
        self._count = 0
        self._bytes = 0
        self.producers.chunk_closed()

    def _write_offsets(self, offsets: dict[bytes, int]) -> None:
        payload = encode_offsets(offsets)
        segment = self._segment_for(CHUNK_HEADER + len(payload), self.next_offset)
        head = encode_chunk_header(
            OFFSETS, len(offsets), self.next_offset, max(self.timestamp, 0), payload, segment.seed
        )
        self._write(self._current_part(), segment, head, payload, self.next_offset)

    def _current_part(self) -> StreamBatch:
        part = self._part
        if part is None:
            part = StreamBatch(self)
            self._part = part
        return part

    def _write(
        self, part: StreamBatch, segment: StreamSegment, head: bytes, payload: bytes, next_offset: i64
    ) -> None:
        """Add bytes to those that the batch writes to a segment.

        :param next_offset: offset behind the last message of the segment, with these bytes.
        """
        writes = part.writes
        if not writes or writes[-1].path != segment.path:
            writes.append(StreamWrite(self.incarnation, segment))
        writes[-1].next_offset = next_offset
        pieces = writes[-1].pieces
        pieces.append(head)
        pieces.append(payload)
        segment.position += len(head) + len(payload)
        segment.size = segment.position
        ends = part.ends
        if ends and ends[-1][0] is segment:
            ends.pop()
        ends.append((segment, int(segment.position)))

    def _segment_for(self, size: i64, first: i64) -> StreamSegment:
        """Return the segment that takes the next chunk (batch of messages); begin a new one if the last one is full.

        :param size: size of the chunk in bytes.
        :param first: offset of the chunk's first message.
        """
        segment = self.segments[-1] if self.segments else None
        if segment is not None and not segment.closed:
            if segment.is_damaged:
                # Behind a gap in the offsets, so that within a segment they have none.
                has_room = first == segment.first
            else:
                has_room = segment.position + size <= max(self.segment_size, MIN_SEGMENT_SIZE)
                has_room = has_room or segment.timestamp < 0
            if has_room:
                return segment
            self._close_segment(segment, first)
        fresh = StreamSegment(self.identity, self.incarnation, first, self.folder)
        self.segments.append(fresh)
        header = encode_segment_header(self.incarnation, int(first), fresh.seed)
        self._write(self._current_part(), fresh, header, b"", first)
        if self.offsets:
            # A start reads the stored offsets from the last segment only.
            payload = encode_offsets(self.offsets)
            head = encode_chunk_header(
                OFFSETS, len(self.offsets), first, max(self.timestamp, 0), payload, fresh.seed
            )
            self._write(self._current_part(), fresh, head, payload, first)
        if self.producers.stored:
            # Without the messages of this chunk: they are not written yet.
            payload = encode_offsets(self.producers.stored)
            head = encode_chunk_header(
                PRODUCERS, len(self.producers.stored), first, max(self.timestamp, 0), payload, fresh.seed
            )
            self._write(self._current_part(), fresh, head, payload, first)
        return fresh

    def _close_segment(self, segment: StreamSegment, next_offset: i64) -> None:
        """End a segment with its index and its trailer; consumers read only the chunks before them."""
        chunks_end = int(segment.position)
        part = self._current_part()
        self._write(part, segment, segment.close(next_offset), b"", next_offset)
        part.ends[-1] = (segment, chunks_end)
        part.closed.append(segment)

    # Retention

    def apply_retention(self, not_before: i64) -> bool:
        """Remove the oldest segment as long as the stream is larger than allowed, or all messages of it are too old.

        A consumer that is reading a removed segment gets nothing more of it.

        :param not_before: time in milliseconds since 1970; older messages are too old.
        :return: True if another segment may be removed once the messages after it are on disk: the caller tries again
            then.
        """
        removed, held_back = count_expired_segments(self.segments, self.max_bytes, not_before, self.committed)
        if removed:
            paths = [segment.path for segment in self.segments[:removed]]
            del self.segments[:removed]
            self.on_removed(paths)
        return held_back

    def drop(self) -> list[str]:
        """Forget the content of a deleted stream; return the paths of its segments, for the caller to remove."""
        self.deleted = True
        if self.log is not None:
            self.log.unwritten_bytes -= self._bytes + (self._part.size if self._part is not None else 0)
        self._entries = []
        self._count = 0
        self._bytes = 0
        self._part = None
        return [segment.path for segment in self.segments]


def _ignore(_: object) -> None:
    return


__all__ = [
    "BATCH_SIZE",
    "CHUNK_SIZE",
    "MAX_STORED_OFFSETS",
    "SEGMENT_SIZE",
    "StreamBatch",
    "StreamLog",
    "StreamWrite",
]
