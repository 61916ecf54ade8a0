"""The end of the log, where records are laid out in blocks and segments until the next batch is written."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from .fetch import PLACE
from .record import BLOCK_HEADER, HEADER, block_header, encode, seed_of
from .segments import Segment
from .writer import Chunk

SEGMENT_SIZE: Final = 16 * 1024 * 1024
"""Default size of a segment in bytes."""


class Tail:
    """Lays out records behind the last one.

    A record of `size` bytes may be appended to `pieces` as it is (and `offset` raised) while `offset + size
    <= stop`; one that reaches over the end of its block goes through `split`. `size` is what the batch has
    collected so far.
    """

    def __init__(self, identity: int, block: i64, segment_size: i64, segment: Segment, offset: i64) -> None:
        self.segment = segment
        self.base: i64 = 0
        """The place at which the segment begins."""
        self.seed = 0
        self.offset: i64 = 0
        self.stop: i64 = 0
        self.pieces: list[bytes] = []
        self.size: i64 = 0
        self.spilled: i64 = 0
        """How much of it need not be durable."""
        self._identity = identity
        self._block: i64 = block
        self._segment_size: i64 = segment_size
        self._start: i64 = 0
        self._chunks: list[Chunk] = []
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

    def put(self, kind: int, incarnation: i64, sequence: i64, payload: bytes) -> i64:
        """A record other than a message; returns its size."""
        size: i64 = HEADER + len(payload)
        data = encode(kind, incarnation, sequence, payload, self.seed)
        if self.offset + size > self.stop:
            self.split(data)
        else:
            self.pieces.append(data)
            self.offset += size
        self.size += size
        return size

    def split(self, data: bytes) -> None:
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
                self.pieces.append(block_header(self.seed, self.offset // self._block, first))
                self.offset += BLOCK_HEADER
                within = BLOCK_HEADER
            part: i64 = min(size - at, self._block - within)
            self.pieces.append(data[at : at + part])
            self.offset += part
            at += part
        self._set_stop()

    def cut(self, batch: i64) -> None:
        """What was appended to this segment becomes a part of that batch."""
        if self.pieces:
            self._chunks.append(Chunk(self.segment.number, self._start, self.pieces))
            self.pieces = []
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
