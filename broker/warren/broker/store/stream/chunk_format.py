"""On-disk format of a stream's segments: encoding of chunks, checksums, and the search for the next chunk after damage.

A segment is a file named by the stream's incarnation (the stream's number in the data folder) and the offset of its
first message. It begins with a header (`_SEGMENT`); chunks follow. A chunk is a header (`_CHUNK`, then the CRC of its
bytes) and a payload, whose CRC is in the header. All numbers are little-endian. The CRC of a header has a different
initial value (seed) in each segment, so that only bytes that were written for this segment can pass for a header. A
batch appends one chunk, or several large ones. A damaged or incomplete chunk is skipped as a whole.

    MESSAGES  count, offset of the first, time in milliseconds; payload: entries, each its length (4) and its bytes
    OFFSETS   count, next offset, time; payload: consumers' stored offsets: length of the name (1), name, offset (8)
    PRODUCERS count, next offset, time; payload: last publishing ids of all producers, encoded as stored offsets
    INDEX     the last chunk of a closed segment; payload: places (offset, time, position: 8 each), then the trailer

The trailer (`_TRAILER`) ends the file: position of the INDEX chunk, next offset, time and first offset of the last
MESSAGES chunk, CRC.
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
PRODUCERS: Final = 4

SEGMENT_HEADER: Final = 36
CHUNK_HEADER: Final = 36
TRAILER: Final = 36

_TITLE: Final = b"warrenst"
_MAGIC: Final = b"\xd7\x5c"
_SEGMENT = struct.Struct("<8sIIQQ")
_CHUNK = struct.Struct("<2sBBIQqII")
_TRAILER = struct.Struct("<QQqQ")
_CRC = struct.Struct("<I")
_INDEX_ENTRY = struct.Struct("<QqQ")
_OFFSET = struct.Struct("<Q")
_SEED = struct.Struct("<QQQ")

pack_length: Final = _CRC.pack


class Chunk:
    """A chunk of a stream: messages, or stored offsets, that were written together; read from disk or just written."""

    def __init__(self, kind: i64, first: i64, count: i64, timestamp: i64, payload: bytes) -> None:
        self.kind = kind
        """MESSAGES, OFFSETS or PRODUCERS."""
        self.first = first
        """Offset of the first message."""
        self.count = count
        """Number of messages."""
        self.timestamp = timestamp
        """Time of writing in milliseconds since 1970."""
        self.payload = payload
        """The encoded entries; empty in a chunk that was just written and that no consumer takes from memory."""


class ChunkHeader:
    """Decoded header of a chunk: kind, first offset, number of entries, time, and length and CRC of the payload."""

    def __init__(self, kind: i64, count: i64, first: i64, timestamp: i64, length: i64, check: i64) -> None:
        self.kind = kind
        self.count = count
        self.first = first
        self.timestamp = timestamp
        self.length = length
        self.check = check


class SparseIndex:
    """A segment's sparse index: offset, time and file position of some of its chunks, in order."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.times: list[int] = []
        self.positions: list[int] = []

    def add(self, offset: i64, timestamp: i64, position: i64) -> None:
        """Add a chunk by its first offset, its time and its file position."""
        self.offsets.append(offset)
        self.times.append(timestamp)
        self.positions.append(position)

    def before_offset(self, offset: i64) -> i64:
        """Return the file position of the last indexed chunk that begins at or before an offset; 0 if there is none."""
        return self._position(self.offsets, offset, True)

    def before_time(self, timestamp: i64) -> i64:
        """Return the file position of the last indexed chunk that is older than a time; 0 if there is none.

        A reader that wants the messages since that time begins there: the index lists only some chunks.
        """
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
    """Trailer, the last bytes of a closed segment: where its index stands, and offset and time of its last chunk."""

    def __init__(self, position: i64, next_offset: i64, timestamp: i64, last_chunk: i64) -> None:
        self.position = position
        """Position of the INDEX chunk in the file."""
        self.next_offset = next_offset
        """Offset of the first message of the next segment."""
        self.timestamp = timestamp
        """Time of the last MESSAGES chunk in milliseconds since 1970."""
        self.last_chunk = last_chunk
        """Offset of the first message in the last MESSAGES chunk."""


def stream_seed(identity: int, incarnation: int, first: int) -> int:
    """Return the initial value of the CRCs of a segment's headers, so that headers of other segments fail.

    :param identity: the data folder's random number.
    :param incarnation: the unique number of the stream.
    :param first: offset of the segment's first message.
    """
    return zlib.crc32(_SEED.pack(identity, incarnation, first))


def segment_name(incarnation: int, first: int) -> str:
    """Return the file name of a segment.

    :param incarnation: the stream's unique number in the data folder.
    :param first: offset of the segment's first message.
    """
    return f"{incarnation:016x}-{first:016x}.stream"


def parse_segment_name(name: str) -> tuple[int, int] | None:
    """Return (incarnation, first offset) from a segment's file name; None for a file that is no segment.

    The incarnation is the stream's unique number in the data folder.
    """
    stem, dot, suffix = name.partition(".")
    incarnation, dash, first = stem.partition("-")
    if not dot or suffix != "stream" or not dash or len(incarnation) != 16 or len(first) != 16:
        return None
    try:
        return int(incarnation, 16), int(first, 16)
    except ValueError:
        return None


def encode_segment_header(incarnation: int, first: int, seed: int) -> bytes:
    """Return the header with which the file of a segment begins.

    :param incarnation: the stream's unique number in the data folder.
    :param first: offset of the segment's first message.
    :param seed: initial value of the header's CRC.
    """
    header = _SEGMENT.pack(_TITLE, VERSION, 0, incarnation, first)
    return header + _CRC.pack(zlib.crc32(header, seed))


def segment_version(data: bytes, seed: int) -> int:
    """Return the format version in a segment's header; 0 if the header is damaged.

    :param data: the first bytes of the segment's file.
    :param seed: initial value of the header's CRC.
    """
    if len(data) < SEGMENT_HEADER:
        return 0
    if _CRC.unpack_from(data, SEGMENT_HEADER - 4)[0] != zlib.crc32(data[: SEGMENT_HEADER - 4], seed):
        return 0
    title, version, _, _, _ = _SEGMENT.unpack_from(data)
    return int(version) if title == _TITLE else 0


def encode_chunk_header(
    kind: int, count: i64, first: i64, timestamp: i64, payload: bytes, seed: int
) -> bytes:
    """Return the header of a chunk.

    :param kind: MESSAGES, OFFSETS or INDEX.
    :param count: number of messages, or of entries, in the payload.
    :param first: offset of the first message; in other kinds of chunks the next offset of the stream.
    :param timestamp: milliseconds since 1970.
    :param seed: initial value of the header's CRC.
    """
    header = _CHUNK.pack(_MAGIC, kind, 0, count, first, timestamp, len(payload), zlib.crc32(payload))
    return header + _CRC.pack(zlib.crc32(header, seed))


def decode_chunk_header(data: bytes, at: i64, seed: int) -> ChunkHeader | None:
    """Return the chunk header at a position of the data; None if there is no intact header.

    :param seed: initial value of the header's CRC.
    """
    if len(data) - at < CHUNK_HEADER:
        return None
    header = data[at : at + CHUNK_HEADER - 4]
    if _CRC.unpack_from(data, at + CHUNK_HEADER - 4)[0] != zlib.crc32(header, seed):
        return None
    magic, kind, _, count, first, timestamp, length, check = _CHUNK.unpack(header)
    if magic != _MAGIC:
        return None
    return ChunkHeader(kind, count, first, timestamp, length, check)


def find_chunk(data: bytes, start: i64, seed: int) -> i64:
    """Return the first position in `data`, from `start` on, with an intact chunk header; -1 if there is none.

    :param seed: initial value of the header's CRC.
    """
    at: i64 = data.find(_MAGIC, start)
    while at >= 0:
        if decode_chunk_header(data, at, seed) is not None:
            return at
        at = data.find(_MAGIC, at + 1)
    return -1


def encode_sparse_index(index: SparseIndex) -> bytes:
    """Return a sparse index as the payload of an INDEX chunk, without the trailer that follows it."""
    return b"".join(
        [
            _INDEX_ENTRY.pack(index.offsets[at], index.times[at], index.positions[at])
            for at in range(len(index.offsets))
        ]
    )


def decode_sparse_index(payload: bytes) -> SparseIndex:
    """Return the sparse index in the payload of an INDEX chunk; `payload` does not include the trailer."""
    index = SparseIndex()
    for offset, timestamp, position in _INDEX_ENTRY.iter_unpack(payload):
        index.add(offset, timestamp, position)
    return index


def encode_trailer(position: i64, next_offset: i64, timestamp: i64, last_chunk: i64, seed: int) -> bytes:
    """Return the trailer, the last bytes of a closed segment.

    :param position: file position of the INDEX chunk.
    :param next_offset: offset of the first message of the next segment.
    :param timestamp: time of the last MESSAGES chunk in milliseconds since 1970.
    :param last_chunk: first offset of the last MESSAGES chunk.
    :param seed: initial value of the trailer's CRC.
    """
    data = _TRAILER.pack(position, next_offset, timestamp, last_chunk)
    return data + _CRC.pack(zlib.crc32(data, seed))


def decode_trailer(data: bytes, seed: int) -> Trailer | None:
    """Return the trailer in `data`, the last `TRAILER` bytes of a closed segment; None if they are no intact trailer.

    :param seed: initial value of the trailer's CRC.
    """
    if len(data) != TRAILER or _CRC.unpack_from(data, TRAILER - 4)[0] != zlib.crc32(
        data[: TRAILER - 4], seed
    ):
        return None
    position, next_offset, timestamp, last_chunk = _TRAILER.unpack_from(data)
    return Trailer(position, next_offset, timestamp, last_chunk)


def encode_offsets(offsets: dict[bytes, int]) -> bytes:
    """Return the payload of an OFFSETS chunk: consumers' stored offsets by name; or of a PRODUCERS chunk."""
    parts: list[bytes] = []
    for name, offset in offsets.items():
        parts.append(bytes((len(name),)))
        parts.append(name)
        parts.append(_OFFSET.pack(offset))
    return b"".join(parts)


def decode_offsets(payload: bytes) -> dict[bytes, int]:
    """Return the consumers' stored offsets, by name, from the payload of an OFFSETS chunk; or of a PRODUCERS chunk."""
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
    "PRODUCERS",
    "SEGMENT_HEADER",
    "TRAILER",
    "VERSION",
    "Chunk",
    "ChunkHeader",
    "SparseIndex",
    "Trailer",
    "decode_chunk_header",
    "decode_offsets",
    "decode_sparse_index",
    "decode_trailer",
    "encode_chunk_header",
    "encode_offsets",
    "encode_segment_header",
    "encode_sparse_index",
    "encode_trailer",
    "find_chunk",
    "pack_length",
    "parse_segment_name",
    "segment_name",
    "segment_version",
    "stream_seed",
]
