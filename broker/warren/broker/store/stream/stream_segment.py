"""One segment of a stream: where it is, how far it may be read, and its sparse index."""

from __future__ import annotations

from typing import Final, Optional

from mypy_extensions import i64

from warren.broker.store.files import Files
from warren.broker.store.stream.chunk_format import (
    CHUNK_HEADER,
    INDEX,
    SEGMENT_HEADER,
    TRAILER,
    Places,
    chunk_head,
    encode_chunk,
    encode_places,
    encode_trailer,
    read_places,
    segment_name,
    stream_seed,
)

SPACING: Final = 65536
"""The index of a segment has a place for about every so many bytes."""


class StreamSegment:
    """A segment's file, and what is known of it in memory; a closed one's index stays on the disk until it is looked at.

    `end` is where its chunks end, as far as they are on the disk; `size` is what the file takes there.
    """

    def __init__(self, identity: int, incarnation: int, first: i64, folder: str) -> None:
        self.first = first
        self.path = f"{folder}/{segment_name(incarnation, first)}"
        self.seed = stream_seed(identity, incarnation, first)
        self.size: i64 = 0
        self.end: i64 = SEGMENT_HEADER
        self.position: i64 = 0
        """Where the next chunk goes; beyond `end` lies what is yet to be written."""
        self.timestamp: i64 = -1
        """Of its last message; -1 if it has none."""
        self.last_chunk: i64 = first
        self.places: Optional[Places] = Places()  # noqa: UP045
        self.closed = False

    def place(self, offset: i64, timestamp: i64) -> None:
        """A chunk of messages goes to `position`."""
        places = self.places
        if places is not None:
            known = places.positions
            if not known or self.position - known[-1] >= SPACING:
                places.add(offset, timestamp, self.position)
        self.timestamp = timestamp
        self.last_chunk = offset

    def closing(self, next_offset: i64) -> bytes:
        """The index and the trailer, with which the segment ends; its index is no longer kept in memory."""
        places = self.places
        assert places is not None
        at = self.position
        payload = encode_places(places)
        head = encode_chunk(INDEX, len(places.offsets), next_offset, self.timestamp, payload, self.seed)
        trailer = encode_trailer(at, next_offset, self.timestamp, self.last_chunk, self.seed)
        self.places = None
        self.closed = True
        return b"".join((head, payload, trailer))

    def index(self, files: Files) -> Places:
        """Its index, read from the disk if it is not in memory; without one, its beginning is all that is known.

        :raises OSError: it cannot be read.
        """
        places = self.places
        if places is not None:
            return places
        data = files.read(self.path, self.end, self.size - self.end - TRAILER)
        head = chunk_head(data, 0, self.seed)
        if head is None or head.kind != INDEX:
            return Places()
        return read_places(data[CHUNK_HEADER:])


__all__ = ["SPACING", "StreamSegment"]
