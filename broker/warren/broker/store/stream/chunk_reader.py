"""Reading of a stream's segments, several chunks at a time; damaged places are skipped and reported."""

from __future__ import annotations

import errno
import zlib
from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from warren.broker.store.errors import reason
from warren.broker.store.file_system.files_protocol import Files
from warren.broker.store.stream.chunk_format import (
    CHUNK_HEADER,
    INDEX,
    MESSAGES,
    PRODUCERS,
    SEGMENT_HEADER,
    Chunk,
    decode_chunk_header,
    find_chunk,
)
from warren.broker.store.stream.stream_segment import StreamSegment

READ_SIZE: Final = 512 * 1024
"""Approximate bytes of a segment that are read at a time."""

# The ways to give the start of a read.
BY_POSITION: Final = 0
BY_OFFSET: Final = 1
BY_TIME: Final = 2


class StreamRead:
    """One read of about `READ_SIZE` bytes from a segment, and its result.

    :param start_by: BY_POSITION begins at `position`. BY_OFFSET and BY_TIME find the beginning in the segment's index,
        and leave out chunks before `target`.
    :param target: for BY_OFFSET a message's offset, for BY_TIME a time in milliseconds since 1970.
    :param position: for BY_POSITION the file position of a chunk.
    """

    def __init__(self, segment: StreamSegment, start_by: i64, target: i64, position: i64) -> None:
        self.segment = segment
        self.start_by = start_by
        self.target = target
        self.position = position
        """File position at which the next read continues, unless `ended`."""
        self.end: i64 = segment.end
        """File position up to which the segment may be read."""
        self.chunks: list[Chunk] = []
        """The chunks of messages that were read."""
        self.ended = False
        """True if the segment has been read up to `end`."""
        self.segment_removed = False
        """True if the segment's file does not exist any more."""
        self.damage: list[tuple[int, str]] = []
        """Damaged places, each as (file position, description)."""
        self.error = ""
        """Reason why the segment cannot be read; empty if it can."""

    def run(self, files: Files) -> None:
        """Read from the segment file, in any thread. A failure sets `segment_removed` or `error`, and is not raised."""
        try:
            if self.start_by != BY_POSITION:
                self.position = self._find_start(files)
            while not self.chunks and not self.ended:
                self._read_block(files)
        except OSError as error:
            if error.errno == errno.ENOENT:
                self.segment_removed = True
            else:
                self.error = f"cannot read {self.segment.path}: {reason(error)}"

    def _find_start(self, files: Files) -> i64:
        index = self.segment.index(files)
        if self.segment.index_is_damaged:
            text = "the index is damaged: the segment is read from its beginning"
            self.damage.append((int(self.segment.end), text))
        by_offset = self.start_by == BY_OFFSET
        position = index.before_offset(self.target) if by_offset else index.before_time(self.target)
        # A position beyond `end` is of a chunk that is yet to be written.
        return position if SEGMENT_HEADER <= position <= self.end else i64(SEGMENT_HEADER)

    def _read_block(self, files: Files) -> None:
        if self.position >= self.end:
            self.ended = True
            return
        scanner = ChunkScanner(self.segment, self.position, self.end)
        for chunk in scanner.next_chunks(files):
            if chunk.kind != MESSAGES:
                continue
            if self.start_by == BY_OFFSET and chunk.first + chunk.count <= self.target:
                continue
            if self.start_by == BY_TIME and chunk.timestamp < self.target:
                continue
            self.chunks.append(chunk)
        self.position = scanner.position
        self.damage.extend(scanner.damage)
        if self.position >= self.end:
            self.ended = True


class ChunkScanner:
    """Reader of a segment's chunks (batches of messages), from one file position to another.

    :param position: file position of the first chunk to read.
    :param end: file position up to which to read.
    """

    def __init__(self, segment: StreamSegment, position: i64, end: i64) -> None:
        self.segment = segment
        self.position = position
        """File position up to which the segment was read: the end of the last intact chunk or of skipped bytes."""
        self.end = end
        self.starts: list[int] = []
        """File positions of the chunks that `next_chunks` returned last."""
        self.damage: list[tuple[int, str]] = []
        """Damaged places, each as (file position, description)."""
        self.torn: i64 = -1
        """File position of damaged bytes after which there is no intact chunk; -1 if the last chunk read is intact."""
        self.index: i64 = -1
        """File position of the segment's index, once it was read; else -1."""
        self._seen: set[int] = set()
        """First offsets of the chunks of messages that were read."""
        self._next: i64 = -1
        """Offset behind the last message that was read; -1 if none was read."""
        self.following: i64 = -1
        """Offset of the first message of the next segment, once this segment's index was read; else -1."""

    def next_chunks(self, files: Files) -> list[Chunk]:
        """Return the intact chunks in the next `READ_SIZE` bytes or so.

        The list may be empty before the end, because all of these bytes are damaged. The end is reached when `position`
        is `end`.

        :raises OSError: the segment cannot be read.
        """
        chunks: list[Chunk] = []
        self.starts = []
        seed = self.segment.seed
        data = files.read(self.segment.path, self.position, min(i64(READ_SIZE), self.end - self.position))
        at: i64 = 0
        size: i64 = len(data)
        base: i64 = self.position
        while at < size:
            head = decode_chunk_header(data, at, seed)
            if head is None:
                if size - at < CHUNK_HEADER and base + size < self.end and at > 0:
                    break
                return self._skip(files, base + at, chunks)
            stop: i64 = at + CHUNK_HEADER + head.length
            if stop > size:
                if at > 0 and base + stop <= self.end:
                    break
                if base + stop > self.end:
                    return self._skip(files, base + at, chunks)
                # Larger than a block.
                data = files.read(self.segment.path, base, stop)
                size = len(data)
                if stop > size:
                    return self._skip(files, base + at, chunks)
            payload = data[at + CHUNK_HEADER : stop]
            if zlib.crc32(payload) != head.check:
                text = f"messages {head.first} to {head.first + head.count - 1} are damaged"
                if head.kind != MESSAGES:
                    text = "the index is damaged" if head.kind == INDEX else "stored offsets are damaged"
                    if head.kind == PRODUCERS:
                        text = "the publishing ids of producers are damaged"
                self._report(base + at, text)
                # Behind a chunk that was cut short, the next one begins within the length that its header states.
                inner = find_chunk(data[: stop + CHUNK_HEADER], at + CHUNK_HEADER, seed)
                if inner >= 0:
                    stop = inner
            elif head.kind == INDEX:
                self.torn = -1
                self.index = base + at
                self.following = head.first
                self.position = self.end
                return chunks
            elif head.kind == MESSAGES and int(head.first) in self._seen:
                last = head.first + head.count - 1
                self._report(base + at, f"messages {head.first} to {last} are here a second time")
                self.torn = -1
            else:
                if head.kind == MESSAGES:
                    if 0 <= self._next < head.first and self.torn < 0:
                        # What was here was written over.
                        self._report(base + at, f"messages {self._next} to {head.first - 1} are missing")
                    self._seen.add(int(head.first))
                    self._next = head.first + head.count
                self.starts.append(int(base + at))
                chunks.append(Chunk(head.kind, head.first, head.count, head.timestamp, payload))
                self.torn = -1
            at = stop
            self.position = base + stop
        if size == 0:
            self._report(base, f"{self.end - base} bytes are missing")
            self.position = self.end
        return chunks

    def _skip(self, files: Files, start: i64, chunks: list[Chunk]) -> list[Chunk]:
        """Skip the damaged bytes from `start` to the next intact chunk, or to the end, and add them to `damage`.

        :return: `chunks`: the intact chunks before the damaged bytes.
        """
        at: i64 = start + 1
        while at < self.end:
            # Blocks overlap, so that a header on the border is found.
            data = files.read(self.segment.path, at, min(i64(READ_SIZE), self.end - at))
            found = find_chunk(data, 0, self.segment.seed)
            if found >= 0:
                self._report(start, f"{at + found - start} bytes are damaged")
                self.position = at + found
                return chunks
            if len(data) <= CHUNK_HEADER:
                break
            at += len(data) - CHUNK_HEADER
        self._report(start, f"{self.end - start} bytes are damaged")
        self.position = self.end
        return chunks

    def _report(self, position: i64, text: str) -> None:
        if self.torn < 0:
            self.torn = position
        self.damage.append((int(position), text))


ReadSoon = Callable[[StreamRead, Callable[[StreamRead], None]], None]
"""Function that does a read in another thread, and then calls the given callback on the event loop."""

__all__ = ["BY_OFFSET", "BY_POSITION", "BY_TIME", "READ_SIZE", "ChunkScanner", "ReadSoon", "StreamRead"]
