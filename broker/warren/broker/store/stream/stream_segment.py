"""One segment of a stream: its file, the part of it that may be read, and its sparse index."""

from __future__ import annotations

from typing import Final, Optional
from zlib import crc32

from mypy_extensions import i64

from warren.broker.store.file_system.files_protocol import Files
from warren.broker.store.stream.chunk_format import (
    CHUNK_HEADER,
    INDEX,
    SEGMENT_HEADER,
    TRAILER,
    SparseIndex,
    decode_chunk_header,
    decode_sparse_index,
    encode_chunk_header,
    encode_sparse_index,
    encode_trailer,
    segment_name,
    stream_seed,
)

SPACING: Final = 65536
"""Approximate number of bytes between two chunks that a segment's sparse index lists."""


class StreamSegment:
    """A segment's file and its state in memory. The index of a closed segment is in its file only."""

    def __init__(self, identity: int, incarnation: int, first: i64, folder: str) -> None:
        self.first = first
        """Offset of the first message."""
        self.path = f"{folder}/{segment_name(incarnation, first)}"
        self.seed = stream_seed(identity, incarnation, first)
        """Initial value of the checksums of the segment's headers."""
        self.size: i64 = 0
        """Bytes of the file, with those that are yet to be written."""
        self.end: i64 = SEGMENT_HEADER
        """File position behind the last chunk that is on disk."""
        self.position: i64 = 0
        """File position of the next chunk. The bytes beyond `end` are yet to be written."""
        self.timestamp: i64 = -1
        """Time of the last message in milliseconds since 1970; -1 if there is none."""
        self.last_chunk: i64 = first
        """First offset of the last chunk of messages."""
        self.sparse_index: Optional[SparseIndex] = SparseIndex()  # noqa: UP045
        """The index; None if it is in the file only."""
        self.is_damaged = False
        """True if messages at its end are lost: nothing is appended behind the gap in the offsets."""
        self.index_is_stored = False
        """True if the index is in the file, and not yet to be written."""
        self.index_is_damaged = False
        """True if the index in the file was found to be damaged."""
        self.closed = False
        """True if the segment ends with its index and trailer. Nothing more is appended then."""

    def add_chunk(self, offset: i64, timestamp: i64) -> None:
        """Note a chunk of messages that begins at the file position in the attribute `position`.

        It is added to the sparse index if the last chunk in the index begins at least `SPACING` bytes before it.

        :param offset: offset of the first message.
        :param timestamp: time of the chunk in milliseconds since 1970.
        """
        index = self.sparse_index
        if index is not None:
            known = index.positions
            if not known or self.position - known[-1] >= SPACING:
                index.add(offset, timestamp, self.position)
        self.timestamp = timestamp
        self.last_chunk = offset

    def close(self, next_offset: i64) -> bytes:
        """Close the segment and return the index and trailer that end its file; the index leaves memory."""
        index = self.sparse_index
        assert index is not None
        at = self.position
        payload = encode_sparse_index(index)
        head = encode_chunk_header(INDEX, len(index.offsets), next_offset, self.timestamp, payload, self.seed)
        trailer = encode_trailer(at, next_offset, self.timestamp, self.last_chunk, self.seed)
        self.sparse_index = None
        self.closed = True
        return b"".join((head, payload, trailer))

    def index(self, files: Files) -> SparseIndex:
        """Return the segment's sparse index, read from its file if it is not in memory.

        If it is damaged, return an empty one, with which the segment is read from its beginning, and set
        `index_is_damaged`.

        :raises OSError: the file cannot be read.
        """
        index = self.sparse_index
        if index is not None:
            return index
        data = files.read(self.path, self.end, self.size - self.end - TRAILER)
        head = decode_chunk_header(data, 0, self.seed)
        payload = data[CHUNK_HEADER:]
        if head is None or head.kind != INDEX or head.length != len(payload) or crc32(payload) != head.check:
            self.index_is_damaged = self.index_is_stored
            return SparseIndex()
        return decode_sparse_index(payload)


__all__ = ["SPACING", "StreamSegment"]
