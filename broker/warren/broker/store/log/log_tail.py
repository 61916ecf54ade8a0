"""The end of the log, where records are laid out in blocks and segments until the next batch is written."""

from __future__ import annotations

import zlib
from typing import Final

from mypy_extensions import i64

from warren.broker.store.log.live_segments import Segment
from warren.broker.store.log.record_format import (
    BLOCK_HEADER,
    BUNDLE,
    BUNDLE_ENTRY,
    BUNDLE_HEADER,
    HEADER,
    MESSAGE,
    block_header,
    bundle,
    encode,
    pack_crc,
    pack_header,
    seed_of,
)
from warren.broker.store.log.writer_thread import Chunk
from warren.broker.store.read.message_fetch import PLACE

SEGMENT_SIZE: Final = 16 * 1024 * 1024
"""Default size of a segment in bytes."""
BUNDLE_SIZE: Final = 8 * 1024
"""A bundle takes no more messages than fit in so many bytes: so much is lost with one damaged byte."""

crc32: Final = zlib.crc32


class Tail:
    """Lays out records behind the last one.

    Messages of one queue that begin alike and come one after the other are bundled: one record, one header and two
    checksums for all of them. A bundle is laid out when it is finished, which is before anything else is appended, so that
    its place is known from the start. `size` is what the batch has collected so far, what is in the bundle included.
    """

    def __init__(self, identity: int, block: i64, segment_size: i64, segment: Segment, offset: i64) -> None:
        self.segment = segment
        self.base: i64 = 0
        """The place at which the segment begins."""
        self.place: i64 = 0
        """Where the bundle that collects will stand."""
        self.seed = 0
        self.offset: i64 = 0
        self.stop: i64 = 0
        self.size: i64 = 0
        self.spilled: i64 = 0
        """How much of it need not be durable."""
        self._identity = identity
        self._block: i64 = block
        self._segment_size: i64 = segment_size
        self._start: i64 = 0
        self._pieces: list[bytes] = []
        self._chunks: list[Chunk] = []
        # The bundle that collects, if it has contents.
        self._contents: list[bytes] = []
        self._head = b""
        self._head_crc = 0
        self._incarnation: i64 = 0
        self._first: i64 = 0
        self._next: i64 = 0
        self._bundled: i64 = 0
        """Bytes that it takes, or that its only message would take as a record of its own."""
        self._room: i64 = 0
        self.enter(segment, offset)

    def enter(self, segment: Segment, offset: i64) -> None:
        """Go on at `offset` of a segment."""
        self.segment = segment
        self.base = segment.number << PLACE
        self.seed = seed_of(self._identity, segment.number)
        self.offset = offset
        self._start = offset
        self._set_stop()

    def overflows(self, size: i64) -> bool:
        """Whether a record of `size` bytes belongs in a new segment. A new one takes a record of any size."""
        return self.offset > 0 and self.offset + size > self._segment_size

    def join(self, incarnation: i64, sequence: i64, head: bytes, content: bytes) -> i64:
        """A message goes into the bundle that collects; returns what it adds to the size of the batch, 0 if it does not fit.

        It stands at `place` as well.
        """
        contents = self._contents
        if (
            not contents
            or head is not self._head
            or sequence != self._next
            or incarnation != self._incarnation
        ):
            return 0
        size: i64 = BUNDLE_ENTRY + len(content)
        if len(contents) == 1:
            size += BUNDLE_HEADER + BUNDLE_ENTRY
        if self._bundled + size > self._room:
            return 0
        contents.append(content)
        self._next += 1
        self._bundled += size
        self.size += size
        return size

    def begin(self, incarnation: i64, sequence: i64, head: bytes, content: bytes) -> None:
        """A message that the next ones may join; what was bundled before has to be finished."""
        size: i64 = HEADER + len(head) + len(content)
        self._contents = [content]
        if head is not self._head:
            self._head = head
            self._head_crc = crc32(head)
        self._incarnation = incarnation
        self._first = sequence
        self._next = sequence + 1
        self._bundled = size
        # It must not make the segment too large: its place is given away already.
        self._room = min(BUNDLE_SIZE, self._segment_size - self.offset)
        self.place = self.base + self.offset
        self.size += size

    def finish(self) -> None:
        """Lay out what is bundled."""
        contents = self._contents
        if not contents:
            return
        self._contents = []
        head = self._head
        if len(contents) > 1:
            self._lay(encode(BUNDLE, self._incarnation, self._first, bundle(head, contents), self.seed))
            return
        # As it came, not joined: it may be large.
        content = contents[0]
        length: i64 = len(head) + len(content)
        check = crc32(content, self._head_crc)
        header = pack_header(MESSAGE, length, self._incarnation, self._first, check)
        parts = [header, pack_crc(crc32(header, self.seed)), head, content]
        if self.offset + HEADER + length > self.stop:
            self._split(b"".join(parts))
        else:
            self._pieces += parts
            self.offset += HEADER + length

    def put(self, kind: int, incarnation: i64, sequence: i64, payload: bytes) -> i64:
        """A record by itself; what was bundled before has to be finished. Returns its size."""
        data = encode(kind, incarnation, sequence, payload, self.seed)
        size: i64 = len(data)
        self._lay(data)
        self.size += size
        return size

    def _lay(self, data: bytes) -> None:
        """A record comes next."""
        size: i64 = len(data)
        if self.offset + size > self.stop:
            self._split(data)
        else:
            self._pieces.append(data)
            self.offset += size

    def _split(self, data: bytes) -> None:
        """A record that begins at the end of a block or runs over it: put the headers of blocks in
        between."""
        at: i64 = 0
        size: i64 = len(data)
        while at < size:
            within: i64 = self.offset % self._block
            if within == 0:
                rest: i64 = BLOCK_HEADER + size - at
                first: i64 = BLOCK_HEADER
                if at > 0:
                    first = rest if rest < self._block else 0
                self._pieces.append(block_header(self.seed, self.offset // self._block, first))
                self.offset += BLOCK_HEADER
                within = BLOCK_HEADER
            part: i64 = min(size - at, self._block - within)
            self._pieces.append(data[at : at + part])
            self.offset += part
            at += part
        self._set_stop()

    def cut(self, batch: i64) -> None:
        """What was appended to this segment becomes a part of that batch."""
        self.finish()
        if self._pieces:
            self._chunks.append(Chunk(self.segment.number, self._start, self._pieces))
            self._pieces = []
            self._start = self.offset
            self.segment.size = self.offset
            self.segment.batch = batch

    def take(self) -> list[Chunk]:
        """The parts of the batch; the next one collects from here on."""
        chunks = self._chunks
        self._chunks = []
        self.size = 0
        self.spilled = 0
        return chunks

    def _set_stop(self) -> None:
        end: i64 = (self.offset + self._block - 1) // self._block * self._block
        self.stop = min(end, self._segment_size)


__all__ = ["SEGMENT_SIZE", "Tail"]
