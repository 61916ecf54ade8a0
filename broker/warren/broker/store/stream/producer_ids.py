"""Publishing ids of a stream's producers: the last id of each, and how messages and segments hold them.

A message that was published with a publishing id ends its header table with the offset, the producer and the id, in this
order. The broker writes these headers, so that no other message ends like this: behind the offset there is nothing
else. At a start, the ids are read from the last segment, which begins with the ids of all segments before it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from warren.broker.store.stream.chunk_format import Chunk
from warren.wire.content import header_table
from warren.wire.field_tables import long_field

MAX_PRODUCERS: Final = 1000
"""Most producers of a stream whose last id is remembered; beyond that, the one that has not published for the longest time
is forgotten."""
LONGEST_NAME: Final = 255
"""Most bytes of a producer's name."""
PRODUCER: Final = "x-warren-producer"
PUBLISHING_ID: Final = "x-warren-publishing-id"

_PRODUCER: Final = b"\x11x-warren-producerS"
_ID: Final = b"\x16x-warren-publishing-idl"
_ID_SIZE: Final = len(_ID) + 8
_OFFSET: Final = b"\x0fx-stream-offsetl"
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_LENGTH: Final = struct.Struct("<I")


class ProducerIds:
    """Last publishing ids of a stream's producers, by name."""

    def __init__(self) -> None:
        self.latest: dict[bytes, int] = {}
        """Ids of all messages that were appended, the producer that published last at the end."""
        self.stored: dict[bytes, int] = {}
        """Ids of the messages in the chunks that were encoded: they are in a segment, or will be with the next batch."""
        self._collected: dict[bytes, int] = {}

    def is_duplicate(self, producer: bytes, number: int) -> bool:
        """Return True if a message with this id, or a higher one, was appended before."""
        return number <= self.latest.get(producer, -1)

    def add(self, producer: bytes, number: int) -> bytes:
        """Record the id of a message that is appended.

        Return the name of the producer that is forgotten; empty if none is.
        """
        self._collected.pop(producer, None)
        self._collected[producer] = number
        return _add(self.latest, producer, number)

    def chunk_closed(self) -> None:
        """Move the ids of the messages in a chunk that was encoded to `stored`."""
        for producer, number in self._collected.items():
            _add(self.stored, producer, number)
        self._collected = {}

    def restore(self, ids: dict[bytes, int]) -> None:
        """Set the ids that were found in the segments at a start."""
        self.latest = dict(ids)
        self.stored = dict(ids)


def _add(ids: dict[bytes, int], producer: bytes, number: int) -> bytes:
    ids.pop(producer, None)
    ids[producer] = number
    if len(ids) <= MAX_PRODUCERS:
        return b""
    oldest = next(iter(ids))
    del ids[oldest]
    return oldest


def encode_publishing_id(offset: int, producer: bytes, number: int) -> bytes:
    """Return the fields that end the header table of a message with a publishing id."""
    return b"".join(
        (
            _OFFSET,
            _U64.pack(offset),
            _PRODUCER,
            _U32.pack(len(producer)),
            producer,
            _ID[:-1],
            long_field(number).raw,
        )
    )


def update_ids(ids: dict[bytes, int], chunk: Chunk) -> None:
    """Add the publishing ids of the messages in a chunk that was read from a segment."""
    if _ID not in chunk.payload:
        return
    for offset, entry in _entries(chunk):
        start = 2 + entry[0] + entry[1]
        identity = _identity(header_table(entry[start:]), offset) if _ID in entry else None
        if identity is not None:
            _add(ids, *identity)


def _entries(chunk: Chunk) -> Iterator[tuple[int, bytes]]:
    at = 0
    payload = chunk.payload
    for offset in range(int(chunk.first), int(chunk.first + chunk.count)):
        (size,) = _LENGTH.unpack_from(payload, at)
        yield offset, payload[at + 4 : at + 4 + size]
        at += 4 + size


def _identity(table: bytes, offset: int) -> tuple[bytes, int] | None:
    """Return producer and id of a message from its header table; None if it was published without."""
    end = len(table) - _ID_SIZE
    if not table.startswith(_ID, max(end, 0)):
        return None
    head = _OFFSET + _U64.pack(offset) + _PRODUCER
    at = table.rfind(head, 0, end)
    while at >= 0:
        name_at = at + len(head) + 4
        # The name may contain the same bytes.
        if name_at <= end and _U32.unpack_from(table, name_at - 4)[0] == end - name_at:
            return table[name_at:end], _U64.unpack_from(table, end + len(_ID))[0]
        at = table.rfind(head, 0, at + len(head) - 1)
    return None


__all__ = [
    "LONGEST_NAME",
    "MAX_PRODUCERS",
    "PRODUCER",
    "PUBLISHING_ID",
    "ProducerIds",
    "encode_publishing_id",
    "update_ids",
]
