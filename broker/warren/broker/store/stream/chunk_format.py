"""The format of a stream's segments: how chunks are encoded, checked and found again after damage.

A segment is a file named by the stream's incarnation and the offset of its first message. It begins with a header
(`_SEGMENT`); chunks follow. A chunk is a header (`_CHUNK`, then the CRC of its bytes) and a payload, whose CRC stands in
the header. All numbers are little-endian. The CRCs of headers begin with the segment's seed, so that only what was written
for this place can pass for a header. What one batch appends is one chunk, or several large ones; a chunk counts whole or
not at all.

    MESSAGES  count, offset of the first, time in milliseconds; payload: entries, each its length (4) and its bytes
    OFFSETS   count, next offset, time; payload: consumers' stored offsets: length of the name (1), name, offset (8)
    INDEX     the last chunk of a closed segment; payload: places (offset, time, position: 8 each), then the trailer

The trailer (`_TRAILER`) ends the file: position of the INDEX chunk, next offset, time and first offset of the last MESSAGES
chunk, CRC.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from mypy_extensions import i64

VERSION: Final = 1
MESSAGES: Final = 1
OFFSETS: Final = 2
INDEX: Final = 3

SEGMENT_HEADER: Final = 36
CHUNK_HEADER: Final = 36
TRAILER: Final = 36

_TITLE: Final = b"warrenst"
_MAGIC: Final = b"\xd7\x5c"
_SEGMENT = struct.Struct("<8sIIQQ")
_CHUNK = struct.Struct("<2sBBIQqII")
_TRAILER = struct.Struct("<QQqQ")
_CRC = struct.Struct("<I")
_PLACE = struct.Struct("<QqQ")
_OFFSET = struct.Struct("<Q")
_SEED = struct.Struct("<QQQ")

pack_length: Final = _CRC.pack


class Chunk:
    """A chunk as it was read, or as it is about to be read by those who are at the end of the stream."""

    def __init__(self, kind: i64, first: i64, count: i64, timestamp: i64, payload: bytes) -> None:
        self.kind = kind
        self.first = first
        self.count = count
        self.timestamp = timestamp
        self.payload = payload


class Head:
    """The header of a chunk."""

    def __init__(self, kind: i64, count: i64, first: i64, timestamp: i64, length: i64, check: i64) -> None:
        self.kind = kind
        self.count = count
        self.first = first
        self.timestamp = timestamp
        self.length = length
        self.check = check


class Places:
    """A segment's sparse index: the offset, the time and the position of a chunk now and then."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.times: list[int] = []
        self.positions: list[int] = []

    def add(self, offset: i64, timestamp: i64, position: i64) -> None:
        self.offsets.append(offset)
        self.times.append(timestamp)
        self.positions.append(position)

    def before_offset(self, offset: i64) -> i64:
        """The last position known at which that offset has not been passed; 0 if none is known."""
        return self._position(self.offsets, offset, True)

    def before_time(self, timestamp: i64) -> i64:
        """The last position known before which all chunks are older than that time; 0 if none is known."""
        return self._position(self.times, timestamp, False)

    def _position(self, values: list[int], value: i64, inclusive: bool) -> i64:
        low: i64 = 0
        high: i64 = len(values)
        while low < high:
            middle: i64 = (low + high) // 2
            found: i64 = values[middle]
            if found < value or (inclusive and found == value):
                low = middle + 1
            else:
                high = middle
        return 0 if low == 0 else i64(self.positions[low - 1])


class Trailer:
    """The end of a closed segment."""

    def __init__(self, position: i64, next_offset: i64, timestamp: i64, last_chunk: i64) -> None:
        self.position = position
        self.next_offset = next_offset
        self.timestamp = timestamp
        self.last_chunk = last_chunk


def stream_seed(identity: int, incarnation: int, first: int) -> int:
    """The seed of a segment's header CRCs."""
    return zlib.crc32(_SEED.pack(identity, incarnation, first))


def segment_name(incarnation: int, first: int) -> str:
    return f"{incarnation:016x}-{first:016x}.stream"


def read_segment_name(name: str) -> tuple[int, int] | None:
    """The incarnation and the first offset in a segment's name; None if it is no such name."""
    stem, dot, suffix = name.partition(".")
    incarnation, dash, first = stem.partition("-")
    if not dot or suffix != "stream" or not dash or len(incarnation) != 16 or len(first) != 16:
        return None
    try:
        return int(incarnation, 16), int(first, 16)
    except ValueError:
        return None


def segment_header(incarnation: int, first: int, seed: int) -> bytes:
    header = _SEGMENT.pack(_TITLE, VERSION, 0, incarnation, first)
    return header + _CRC.pack(zlib.crc32(header, seed))


def segment_version(data: bytes, seed: int) -> int:
    """The format version in a segment's header; 0 if it is damaged."""
    if len(data) < SEGMENT_HEADER:
        return 0
    if _CRC.unpack_from(data, SEGMENT_HEADER - 4)[0] != zlib.crc32(data[: SEGMENT_HEADER - 4], seed):
        return 0
    title, version, _, _, _ = _SEGMENT.unpack_from(data)
    return int(version) if title == _TITLE else 0


def encode_chunk(kind: int, count: i64, first: i64, timestamp: i64, payload: bytes, seed: int) -> bytes:
    """The header of a chunk with this payload."""
    header = _CHUNK.pack(_MAGIC, kind, 0, count, first, timestamp, len(payload), zlib.crc32(payload))
    return header + _CRC.pack(zlib.crc32(header, seed))


def chunk_head(data: bytes, at: i64, seed: int) -> Head | None:
    """The chunk header that stands there, if one does."""
    if len(data) - at < CHUNK_HEADER:
        return None
    header = data[at : at + CHUNK_HEADER - 4]
    if _CRC.unpack_from(data, at + CHUNK_HEADER - 4)[0] != zlib.crc32(header, seed):
        return None
    magic, kind, _, count, first, timestamp, length, check = _CHUNK.unpack(header)
    if magic != _MAGIC:
        return None
    return Head(kind, count, first, timestamp, length, check)


def find_chunk(data: bytes, start: i64, seed: int) -> i64:
    """The first position from `start` on at which a chunk header stands, or -1."""
    at: i64 = data.find(_MAGIC, start)
    while at >= 0:
        if chunk_head(data, at, seed) is not None:
            return at
        at = data.find(_MAGIC, at + 1)
    return -1


def encode_places(places: Places) -> bytes:
    return b"".join(
        [
            _PLACE.pack(places.offsets[at], places.times[at], places.positions[at])
            for at in range(len(places.offsets))
        ]
    )


def read_places(payload: bytes) -> Places:
    places = Places()
    for offset, timestamp, position in _PLACE.iter_unpack(payload):
        places.add(offset, timestamp, position)
    return places


def encode_trailer(position: i64, next_offset: i64, timestamp: i64, last_chunk: i64, seed: int) -> bytes:
    data = _TRAILER.pack(position, next_offset, timestamp, last_chunk)
    return data + _CRC.pack(zlib.crc32(data, seed))


def read_trailer(data: bytes, seed: int) -> Trailer | None:
    """The trailer in the last bytes of a segment, if it has one."""
    if len(data) != TRAILER or _CRC.unpack_from(data, TRAILER - 4)[0] != zlib.crc32(
        data[: TRAILER - 4], seed
    ):
        return None
    position, next_offset, timestamp, last_chunk = _TRAILER.unpack_from(data)
    return Trailer(position, next_offset, timestamp, last_chunk)


def encode_offsets(offsets: dict[bytes, int]) -> bytes:
    parts: list[bytes] = []
    for name, offset in offsets.items():
        parts.append(bytes((len(name),)))
        parts.append(name)
        parts.append(_OFFSET.pack(offset))
    return b"".join(parts)


def read_offsets(payload: bytes) -> dict[bytes, int]:
    offsets: dict[bytes, int] = {}
    at: i64 = 0
    while at < len(payload):
        end: i64 = at + 1 + i64(payload[at])
        offsets[payload[at + 1 : end]] = _OFFSET.unpack_from(payload, end)[0]
        at = end + 8
    return offsets


__all__ = [
    "CHUNK_HEADER",
    "INDEX",
    "MESSAGES",
    "OFFSETS",
    "SEGMENT_HEADER",
    "TRAILER",
    "VERSION",
    "Chunk",
    "Head",
    "Places",
    "Trailer",
    "chunk_head",
    "encode_chunk",
    "encode_offsets",
    "encode_places",
    "encode_trailer",
    "find_chunk",
    "pack_length",
    "read_offsets",
    "read_places",
    "read_segment_name",
    "read_trailer",
    "segment_header",
    "segment_name",
    "segment_version",
    "stream_seed",
]
