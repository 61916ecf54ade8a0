"""The log's format: how records and blocks are encoded, checked and found again after damage.

A segment is a sequence of blocks. A block begins with a header (`_BLOCK`): the offset in the block at which
the first record begins that starts there (0: none does), and a CRC. What is left of the blocks is one stream
of records; a record may run over any number of blocks. A record is a header (`_HEADER`, then the CRC of its
bytes) and a payload, whose CRC stands in the header. All numbers are little-endian. The CRCs of headers begin
with the segment's seed, so that only what was written for this place in this log can pass for a header.

    MESSAGE   incarnation, sequence; payload: the message, opaque
    FAN_OUT   of the first target; payload: number of targets, (incarnation, sequence) of each, the message
    ACK       incarnation, first sequence; payload: ranges (first, last)
    MARK      incarnation, first sequence; payload: pairs (sequence, count)
    GROUP     payload: entries that hold together: header without CRCs (`_ENTRY`), then its payload
    SPILL     as MESSAGE, of a message that does not outlive the process: it was written to make room in memory
    BUNDLE    incarnation, first sequence; payload: messages of one queue with successive sequences that begin alike:
              their number, the size of what they share, that, the size of what each has besides, and that of each
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import Final

from mypy_extensions import i64

MESSAGE: Final = 0xC1
FAN_OUT: Final = 0xC2
ACK: Final = 0xC3
MARK: Final = 0xC4
GROUP: Final = 0xC5
SPILL: Final = 0xC6
BUNDLE: Final = 0xC7

BLOCK: Final = 65536
"""Size of a block in bytes. Tests use smaller ones."""
BLOCK_HEADER: Final = 8
HEADER: Final = 29
BUNDLE_HEADER: Final = 8
BUNDLE_ENTRY: Final = 4
"""What a bundle takes for each of its messages, besides the message."""
LARGEST: Final = 0xFFFF_FFFF
"""Largest payload of a record in bytes."""

_HEADER = struct.Struct("<BIQQI")
_CRC = struct.Struct("<I")
_BLOCK = struct.Struct("<II")
_PLACE = struct.Struct("<QI")
_ENTRY = struct.Struct("<BIQQ")
_PAIR = struct.Struct("<QQ")
_COUNTS = struct.Struct("<II")
_KINDS = re.compile(rb"[\xc1-\xc7]")

pack_header: Final = _HEADER.pack
pack_crc: Final = _CRC.pack


class Record:
    """A record as it was read; `offset` is where it begins in the file, for reports."""

    def __init__(self, kind: int, incarnation: int, sequence: int, payload: bytes, offset: int) -> None:
        self.kind = kind
        self.incarnation = incarnation
        self.sequence = sequence
        self.payload = payload
        self.offset = offset


def seed_of(identity: int, segment: int) -> int:
    """The seed of a segment's header CRCs."""
    return zlib.crc32(_PAIR.pack(identity, segment))


def encode(kind: int, incarnation: int, sequence: int, payload: bytes, seed: int) -> bytes:
    """One record."""
    header = pack_header(kind, len(payload), incarnation, sequence, zlib.crc32(payload))
    return header + pack_crc(zlib.crc32(header, seed)) + payload


def block_header(seed: int, block: int, first: int) -> bytes:
    """The header of a block in which a record begins at `first` (0: none does)."""
    return _BLOCK.pack(first, zlib.crc32(_PLACE.pack(block, first), seed))


def first_record(header: bytes, seed: int, block: int) -> int:
    """The offset that a block's header gives, or -1 if the header is damaged."""
    if len(header) < BLOCK_HEADER:
        return -1
    first, check = _BLOCK.unpack_from(header)
    if check != zlib.crc32(_PLACE.pack(block, first), seed):
        return -1
    return int(first)


def header_at(buffer: bytes, position: int, seed: int) -> tuple[int, int, int, int, int] | None:
    """Type, length, incarnation, sequence and payload CRC of the record header that stands there, if one
    does."""
    header = buffer[position : position + HEADER - 4]
    if len(buffer) - position < HEADER:
        return None
    if _CRC.unpack_from(buffer, position + HEADER - 4)[0] != zlib.crc32(header, seed):
        return None
    kind, length, incarnation, sequence, check = _HEADER.unpack(header)
    return kind, length, incarnation, sequence, check


def find_header(buffer: bytes, start: int, stop: int, seed: int) -> int:
    """The first position from `start` to before `stop` at which a record header stands, or -1."""
    position = start
    while (match := _KINDS.search(buffer, position, stop)) is not None:
        position = match.start()
        if header_at(buffer, position, seed) is not None:
            return position
        position += 1
    return -1


def entry(kind: int, incarnation: int, sequence: int, payload: bytes) -> bytes:
    """A record as it stands in a group."""
    return _ENTRY.pack(kind, len(payload), incarnation, sequence) + payload


def entries(record: Record) -> list[Record]:
    """The records that a record stands for: those of a group, the messages of a bundle, else itself alone."""
    if record.kind == BUNDLE:
        return _bundled(record)
    if record.kind != GROUP:
        return [record]
    found: list[Record] = []
    payload = record.payload
    position: i64 = 0
    while position < len(payload):
        kind, length, incarnation, sequence = _ENTRY.unpack_from(payload, position)
        start: i64 = position + 21
        position = start + length
        found.append(Record(kind, incarnation, sequence, payload[start:position], record.offset))
    return found


def bundle(head: bytes, contents: list[bytes]) -> bytes:
    """The payload of BUNDLE."""
    count: i64 = len(contents)
    sizes = struct.pack(f"<{count}I", *map(len, contents))
    return b"".join((_COUNTS.pack(count, len(head)), head, sizes, *contents))


def bundle_head(payload: bytes) -> bytes:
    """What the messages of a BUNDLE share."""
    size: i64 = _COUNTS.unpack_from(payload)[1]
    return payload[BUNDLE_HEADER : BUNDLE_HEADER + size]


def _contents(payload: bytes) -> list[tuple[int, int]]:
    """Where in the payload of BUNDLE stands what each message has for itself, in order of their sequences."""
    count, shared = _COUNTS.unpack_from(payload)
    at: i64 = BUNDLE_HEADER + shared
    start: i64 = at + BUNDLE_ENTRY * count
    found: list[tuple[int, int]] = []
    for size in struct.unpack_from(f"<{count}I", payload, at):
        stop: i64 = start + size
        found.append((int(start), int(stop)))
        start = stop
    return found


def _bundled(record: Record) -> list[Record]:
    payload = record.payload
    head = bundle_head(payload)
    found: list[Record] = []
    sequence = record.sequence
    for start, stop in _contents(payload):
        message = head + payload[start:stop]
        found.append(Record(MESSAGE, record.incarnation, sequence + len(found), message, record.offset))
    return found


def messages_in(
    kind: int, incarnation: int, sequence: int, payload: bytes
) -> dict[tuple[int, int], tuple[int, int]]:
    """Where in the payload of a group, a fan-out or a bundle each message stands, by incarnation and sequence; of a bundle
    without what its messages share."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    if kind == BUNDLE:
        for place in _contents(payload):
            found[(incarnation, sequence + len(found))] = place
    elif kind == FAN_OUT:
        _targets_in(payload, 0, len(payload), found)
    elif kind == GROUP:
        position: i64 = 0
        while position < len(payload):
            inner, length, target, number = _ENTRY.unpack_from(payload, position)
            start: i64 = position + 21
            position = start + length
            if inner == MESSAGE:
                found[(target, number)] = (int(start), int(position))
            elif inner == FAN_OUT:
                _targets_in(payload, start, position, found)
    return found


def _targets_in(payload: bytes, start: i64, stop: i64, found: dict[tuple[int, int], tuple[int, int]]) -> None:
    count: i64 = _CRC.unpack_from(payload, start)[0]
    content: i64 = start + 4 + 16 * count
    at: i64 = start + 4
    while at < content:
        incarnation, sequence = _PAIR.unpack_from(payload, at)
        found[(incarnation, sequence)] = (int(content), int(stop))
        at += 16


def pairs(values: list[int]) -> bytes:
    """A list of even length as the payload of ACK and MARK."""
    return struct.pack(f"<{len(values)}Q", *values)


def unpack_pairs(payload: bytes) -> list[int]:
    """What `pairs` packed."""
    return list(struct.unpack(f"<{len(payload) // 8}Q", payload))


def fan_out_table(targets: list[int]) -> bytes:
    """The beginning of the payload of FAN_OUT: `targets` is incarnation and sequence of each, in turn."""
    return _CRC.pack(len(targets) // 2) + pairs(targets)


def fan_out_targets(payload: bytes) -> tuple[list[int], bytes]:
    """The targets of a FAN_OUT, as `fan_out_table` takes them, and its message."""
    count = int(_CRC.unpack_from(payload)[0])
    end = 4 + 16 * count
    return unpack_pairs(payload[4:end]), payload[end:]


__all__ = [
    "ACK",
    "BLOCK",
    "BLOCK_HEADER",
    "BUNDLE",
    "BUNDLE_ENTRY",
    "BUNDLE_HEADER",
    "FAN_OUT",
    "GROUP",
    "HEADER",
    "LARGEST",
    "MARK",
    "MESSAGE",
    "SPILL",
    "Record",
    "block_header",
    "bundle",
    "bundle_head",
    "encode",
    "entries",
    "entry",
    "fan_out_table",
    "fan_out_targets",
    "find_header",
    "first_record",
    "header_at",
    "messages_in",
    "pack_crc",
    "pack_header",
    "pairs",
    "seed_of",
    "unpack_pairs",
]
