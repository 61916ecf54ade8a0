"""Reading a stream's segments: blocks of whole chunks, checked, with what is damaged left out and reported."""

from __future__ import annotations

import errno
import zlib
from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from warren.broker.store.errors import reason
from warren.broker.store.files import Files
from warren.broker.store.stream.chunk_format import (
    CHUNK_HEADER,
    INDEX,
    MESSAGES,
    SEGMENT_HEADER,
    Chunk,
    chunk_head,
    find_chunk,
)
from warren.broker.store.stream.stream_segment import StreamSegment

BLOCK: Final = 512 * 1024
"""Bytes that are read at a time."""

BY_POSITION: Final = 0
BY_OFFSET: Final = 1
BY_TIME: Final = 2


class StreamRead:
    """One read: from where in a segment to where, and what came of it.

    With BY_OFFSET and BY_TIME the index says where to begin, and chunks before `target` (an offset; a time in
    milliseconds) are left out. `position` is where the next read goes on, unless `ended`.
    """

    def __init__(self, segment: StreamSegment, how: i64, target: i64, position: i64) -> None:
        self.segment = segment
        self.how = how
        self.target = target
        self.position = position
        self.end: i64 = segment.end
        self.chunks: list[Chunk] = []
        self.ended = False
        """All of the segment, as far as it could be read when the read was asked for, has been read."""
        self.gone = False
        """The segment has been removed."""
        self.damage: list[tuple[int, str]] = []
        """Where something is damaged, and how."""
        self.error = ""

    def run(self, files: Files) -> None:
        """Do it; called in a thread. What goes wrong is noted, not raised."""
        try:
            if self.how != BY_POSITION:
                self.position = self._begin(files)
            while not self.chunks and not self.ended:
                self._block(files)
        except OSError as error:
            if error.errno == errno.ENOENT:
                self.gone = True
            else:
                self.error = f"cannot read {self.segment.path}: {reason(error)}"

    def _begin(self, files: Files) -> i64:
        places = self.segment.index(files)
        by_offset = self.how == BY_OFFSET
        position = places.before_offset(self.target) if by_offset else places.before_time(self.target)
        # A place beyond what may be read belongs to what is yet to be written.
        return position if SEGMENT_HEADER <= position <= self.end else i64(SEGMENT_HEADER)

    def _block(self, files: Files) -> None:
        if self.position >= self.end:
            self.ended = True
            return
        walk = Walk(self.segment, self.position, self.end)
        for chunk in walk.block(files):
            if chunk.kind != MESSAGES:
                continue
            if self.how == BY_OFFSET and chunk.first + chunk.count <= self.target:
                continue
            if self.how == BY_TIME and chunk.timestamp < self.target:
                continue
            self.chunks.append(chunk)
        self.position = walk.position
        self.damage.extend(walk.damage)
        if self.position >= self.end:
            self.ended = True


class Walk:
    """Goes over a segment's chunks, block by block; `position` is the end of the last intact one, or of what was skipped."""

    def __init__(self, segment: StreamSegment, position: i64, end: i64) -> None:
        self.segment = segment
        self.position = position
        self.end = end
        self.starts: list[int] = []
        """Where the chunks of the last block stand."""
        self.damage: list[tuple[int, str]] = []
        self.torn: i64 = -1
        """From where on nothing intact has come yet; -1 if what came last is intact."""
        self.index: i64 = -1
        """Where the segment's index stands, once it was met, and the offset that follows the segment."""
        self.following: i64 = -1

    def block(self, files: Files) -> list[Chunk]:
        """The next chunks, those of about a block; none at the end, or if all of a block is damaged."""
        chunks: list[Chunk] = []
        self.starts = []
        seed = self.segment.seed
        data = files.read(self.segment.path, self.position, min(i64(BLOCK), self.end - self.position))
        at: i64 = 0
        size: i64 = len(data)
        base: i64 = self.position
        while at < size:
            head = chunk_head(data, at, seed)
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
                self._report(base + at, f"messages {head.first} to {head.first + head.count - 1} are damaged")
            elif head.kind == INDEX:
                self.torn = -1
                self.index = base + at
                self.following = head.first
                self.position = self.end
                return chunks
            else:
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
        """No chunk stands at `start`: go on with the next one, if any follows."""
        at: i64 = start + 1
        while at < self.end:
            # Blocks overlap, so that a header on the border is seen whole.
            data = files.read(self.segment.path, at, min(i64(BLOCK), self.end - at))
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
"""Runs a read elsewhere and calls back on the loop when it is done."""

__all__ = ["BLOCK", "BY_OFFSET", "BY_POSITION", "BY_TIME", "ReadSoon", "StreamRead", "Walk"]
