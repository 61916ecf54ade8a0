"""On-disk format of the log's records and blocks: encoding, checksums, and the search for the next record after damage.

A segment is a sequence of blocks. A block begins with a header (`_BLOCK`): the offset of the first record that begins
in the block (0 if none does), and a CRC. Without their headers, the blocks form one stream of records; a record may run
over any number of blocks. A record is a header (`_HEADER`, then the CRC of its bytes) and a payload, whose CRC is in
the header. All numbers are little-endian. The CRC of a header has a different initial value (seed) in each segment, so
that only bytes that were written for this segment can pass for a header.

A queue is named by its incarnation, a number that no other queue of the data folder has had or will have; a message by
the incarnation and its sequence, the number of the message in the queue.

    MESSAGE         incarnation, sequence; payload: the message, opaque
    FAN_OUT         incarnation and sequence of the first target; payload: number of targets, (incarnation, sequence) of
                    each, the message
    ACK             incarnation, first sequence; payload: ranges (first, last)
    DELIVERY_COUNT  incarnation, first sequence; payload: pairs (sequence, count)
    GROUP           0, number of entries; payload: entries that are recovered all or none: header without CRCs
                    (`_ENTRY`), then its payload
    SPILL           as MESSAGE, of a message that left memory and does not outlive the process
    BUNDLE          incarnation, first sequence; payload: messages of one queue with successive sequences and the same
                    head: their number, the size of the head, the head, the size of each content, the contents
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
DELIVERY_COUNT: Final = 0xC4
GROUP: Final = 0xC5
SPILL: Final = 0xC6
BUNDLE: Final = 0xC7

BLOCK: Final = 65536
"""Size of a block in bytes. Tests use smaller blocks."""
BLOCK_HEADER: Final = 8
"""Size of a block's header in bytes."""
HEADER: Final = 29
"""Size of a record's header in bytes, its CRC included."""
BUNDLE_HEADER: Final = 8
"""Bytes of a BUNDLE record's payload before the head that its messages share."""
BUNDLE_ENTRY: Final = 4
"""Bytes that a BUNDLE record takes for each of its messages, besides the content."""
POSITION_SHIFT: Final = 32
"""A log position is the number of a segment, shifted left by this many bits, plus an offset in the segment."""
FIRST_TRANSIENT_INCARNATION: Final = 1 << 62
"""Lowest incarnation (number of a queue in the log) of queues whose messages do not outlive the process.

The definitions database, which numbers the other queues, does not use such high numbers.
"""

_HEADER = struct.Struct("<BIQQI")
_CRC = struct.Struct("<I")
_BLOCK = struct.Struct("<II")
_BLOCK_CHECK = struct.Struct("<QI")
_ENTRY = struct.Struct("<BIQQ")
_PAIR = struct.Struct("<QQ")
_COUNTS = struct.Struct("<II")
_KINDS = re.compile(rb"[\xc1-\xc7]")

CHECK_PART: Final = 4096
"""Bytes that `checksum` passes to `zlib.crc32` at a time, few enough that it keeps the interpreter's lock."""
LARGE_RECORD: Final = 4 * 1024 * 1024
"""Bytes of a message from which on its record is not copied, is checked by the writer thread, and begins a batch."""
MOST_LOCKED: Final = 128 * 1024
"""Most bytes whose checksum is computed with the interpreter's lock held; other threads need not wait for more."""

pack_header: Final = _HEADER.pack
pack_crc: Final = _CRC.pack


class Record:
    """A record that was read from a segment. `offset` is the position of its header in the segment's file.

    `kind` is its type, such as MESSAGE; `incarnation` and `sequence` name a queue and a message in it. `size` is that of
    the payload, of which `payload` may be only the beginning.
    """

    def __init__(
        self, kind: int, incarnation: int, sequence: int, payload: bytes, offset: int, size: int = -1
    ) -> None:
        self.kind = kind
        self.incarnation = incarnation
        self.sequence = sequence
        self.payload = payload
        self.offset = offset
        self.size = size if size >= 0 else len(payload)


class UnfinishedHeader:
    """Header of a large record, whose payload the writer thread reads for the checksum.

    The event loop would keep all clients waiting meanwhile: for 40 ms with 128 MiB.

    :param parts: the parts of the payload.
    :param seed: initial value of the header's CRC.
    """

    def __init__(self, kind: int, incarnation: int, sequence: int, parts: list[bytes], seed: int) -> None:
        self.data = bytearray(HEADER)
        """The encoded header, zeros until it is finished."""
        self.length = sum(map(len, parts))
        """Bytes of the payload."""
        self._kind = kind
        self._incarnation = incarnation
        self._sequence = sequence
        self._parts = parts
        self._seed = seed

    def finish(self) -> None:
        """Compute the checksums and encode the header, unless that was done before."""
        if not self._parts:
            return
        check = 0
        for part in self._parts:
            check = zlib.crc32(part, check)
        self._parts = []
        header = pack_header(self._kind, self.length, self._incarnation, self._sequence, check)
        self.data[:] = header + pack_crc(zlib.crc32(header, self._seed))


def checksum(data: bytes, start: int = 0) -> int:
    """Return the CRC-32 of bytes. Keep the interpreter's lock meanwhile, unless they are many.

    `zlib.crc32` releases the lock for more than 5 KiB, but for microseconds only. Another thread that waits for the lock
    wakes up too late to take it, and its wait for the switch interval begins anew. So an event loop that encodes a record
    in each interval kept the log's writer thread waiting for tens of milliseconds.

    :param start: CRC-32 of the bytes before.
    """
    size = len(data)
    if size <= CHECK_PART or size > MOST_LOCKED:
        return zlib.crc32(data, start)
    view = memoryview(data)
    for at in range(0, size, CHECK_PART):
        start = zlib.crc32(view[at : at + CHECK_PART], start)
    return start


def segment_seed(identity: int, segment: int) -> int:
    """Return the initial value of the CRCs of a segment's headers, so that headers of other segments fail.

    :param identity: the data folder's random number.
    :param segment: the number of the segment.
    """
    return zlib.crc32(_PAIR.pack(identity, segment))


def encode_record(kind: int, incarnation: int, sequence: int, payload: bytes, seed: int) -> bytes:
    """Return an encoded record: header, CRC and payload.

    :param kind: the type of the record, such as MESSAGE.
    :param incarnation: the number that names the queue in the log.
    :param sequence: the number of the message in its queue.
    :param seed: initial value of the header's CRC.
    """
    header = pack_header(kind, len(payload), incarnation, sequence, checksum(payload))
    return header + pack_crc(zlib.crc32(header, seed)) + payload


def encode_block_header(seed: int, block: int, first: int) -> bytes:
    """Return the header of a block.

    :param seed: initial value of its CRC.
    :param block: number of the block in the segment.
    :param first: offset in the block of the first record that begins there; 0 if none does.
    """
    return _BLOCK.pack(first, zlib.crc32(_BLOCK_CHECK.pack(block, first), seed))


def decode_block_header(header: bytes, seed: int, block: int) -> int:
    """Return the offset in a block of the first record that begins there, from the block's header.

    Return 0 if no record begins in the block, and -1 if the header is damaged.

    :param seed: initial value of the header's CRC.
    :param block: number of the block in the segment.
    """
    if len(header) < BLOCK_HEADER:
        return -1
    first, check = _BLOCK.unpack_from(header)
    if check != zlib.crc32(_BLOCK_CHECK.pack(block, first), seed):
        return -1
    return int(first)


def decode_record_header(buffer: bytes, position: int, seed: int) -> tuple[int, int, int, int, int] | None:
    """Return the fields of the record header at a position of a buffer; None if there is no intact header.

    The fields are type, length of the payload, incarnation (number of the queue), sequence number of the message, and
    CRC of the payload.

    :param seed: initial value of the header's CRC.
    """
    header = buffer[position : position + HEADER - 4]
    if len(buffer) - position < HEADER:
        return None
    if _CRC.unpack_from(buffer, position + HEADER - 4)[0] != zlib.crc32(header, seed):
        return None
    kind, length, incarnation, sequence, check = _HEADER.unpack(header)
    return kind, length, incarnation, sequence, check


def find_record_header(buffer: bytes, start: int, stop: int, seed: int) -> int:
    """Return the first position in `buffer` with an intact record header; -1 if there is none.

    The search begins at `start` and ends before `stop`.

    :param seed: initial value of the header's CRC.
    """
    position = start
    while (match := _KINDS.search(buffer, position, stop)) is not None:
        position = match.start()
        if decode_record_header(buffer, position, seed) is not None:
            return position
        position += 1
    return -1


def encode_group_entry(kind: int, incarnation: int, sequence: int, payload: bytes) -> bytes:
    """Encode one entry of a GROUP record. After a crash, recovery finds all entries of a group, or none.

    :param kind: the type of the entry, such as MESSAGE.
    :param incarnation: the number that names the queue in the log.
    :param sequence: the number of the message in its queue.
    :param payload: the payload as in a record of this type.
    """
    return _ENTRY.pack(kind, len(payload), incarnation, sequence) + payload


def expand_record(record: Record) -> list[Record]:
    """Return the single records that a record combines: entries of a GROUP, messages of a BUNDLE, or only itself."""
    if record.kind == BUNDLE:
        return _expand_bundle(record)
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


def encode_bundle(head: bytes, contents: list[bytes]) -> bytes:
    """Return the payload of a BUNDLE record, which stores several messages of one queue that begin with the same bytes.

    :param head: the bytes with which each of the messages begins.
    :param contents: the rest of each message.
    """
    count: i64 = len(contents)
    sizes = struct.pack(f"<{count}I", *map(len, contents))
    return b"".join((_COUNTS.pack(count, len(head)), head, sizes, *contents))


def bundle_head(payload: bytes) -> bytes:
    """Return the head from the payload of a BUNDLE record: the bytes with which each of its messages begins."""
    size: i64 = _COUNTS.unpack_from(payload)[1]
    return payload[BUNDLE_HEADER : BUNDLE_HEADER + size]


def _locate_bundled(payload: bytes) -> list[tuple[int, int]]:
    """Return (start, stop) of each message, without the shared head, in a BUNDLE's payload."""
    count, shared = _COUNTS.unpack_from(payload)
    at: i64 = BUNDLE_HEADER + shared
    start: i64 = at + BUNDLE_ENTRY * count
    found: list[tuple[int, int]] = []
    for size in struct.unpack_from(f"<{count}I", payload, at):
        stop: i64 = start + size
        found.append((int(start), int(stop)))
        start = stop
    return found


def _expand_bundle(record: Record) -> list[Record]:
    payload = record.payload
    head = bundle_head(payload)
    found: list[Record] = []
    sequence = record.sequence
    for start, stop in _locate_bundled(payload):
        message = head + payload[start:stop]
        found.append(Record(MESSAGE, record.incarnation, sequence + len(found), message, record.offset))
    return found


def locate_messages(
    kind: int, incarnation: int, sequence: int, payload: bytes
) -> dict[tuple[int, int], tuple[int, int]]:
    """Return (start, stop) of each message in the payload of a GROUP, FAN_OUT or BUNDLE record.

    The keys of the dict are (incarnation, sequence): the queue's number in the log and the message's number in the
    queue. In a BUNDLE, the head that its messages share is not between start and stop.

    :param kind: the type of the record. For other types the dict is empty.
    :param incarnation: the queue's number in the header of the record.
    :param sequence: the sequence number in the header of the record.
    """
    found: dict[tuple[int, int], tuple[int, int]] = {}
    if kind == BUNDLE:
        for span in _locate_bundled(payload):
            found[(incarnation, sequence + len(found))] = span
    elif kind == FAN_OUT:
        _locate_targets(payload, 0, len(payload), found)
    elif kind == GROUP:
        position: i64 = 0
        while position < len(payload):
            inner, length, target, number = _ENTRY.unpack_from(payload, position)
            start: i64 = position + 21
            position = start + length
            if inner == MESSAGE:
                found[(target, number)] = (int(start), int(position))
            elif inner == FAN_OUT:
                _locate_targets(payload, start, position, found)
    return found


def _locate_targets(
    payload: bytes, start: i64, stop: i64, found: dict[tuple[int, int], tuple[int, int]]
) -> None:
    count: i64 = _CRC.unpack_from(payload, start)[0]
    content: i64 = start + 4 + 16 * count
    at: i64 = start + 4
    while at < content:
        incarnation, sequence = _PAIR.unpack_from(payload, at)
        found[(incarnation, sequence)] = (int(content), int(stop))
        at += 16


def pack_pairs(values: list[int]) -> bytes:
    """Encode pairs of numbers, given one after the other in a flat list, as the payload of an ACK or DELIVERY_COUNT.

    The pairs are first and last sequence number of a range for ACK, sequence number and count for DELIVERY_COUNT.
    """
    return struct.pack(f"<{len(values)}Q", *values)


def unpack_pairs(payload: bytes) -> list[int]:
    """Return the pairs of numbers in the payload of an ACK or DELIVERY_COUNT, one after the other in a flat list."""
    return list(struct.unpack(f"<{len(payload) // 8}Q", payload))


def encode_fan_out_targets(targets: list[int]) -> bytes:
    """Return the beginning of a FAN_OUT's payload, which names the queues of its message.

    :param targets: flat list: for each queue its incarnation (number in the log) and the message's number in it.
    """
    return _CRC.pack(len(targets) // 2) + pack_pairs(targets)


def fan_out_start(payload: bytes) -> int:
    """Return the offset of the message in the payload of a FAN_OUT, from the payload's first four bytes."""
    return 4 + 16 * int(_CRC.unpack_from(payload)[0])


def decode_fan_out(payload: bytes) -> tuple[list[int], bytes]:
    """Return the targets in the payload of a FAN_OUT, and its message.

    The targets are a flat list: for each queue its incarnation (number in the log) and the message's number in it.
    """
    end = fan_out_start(payload)
    return unpack_pairs(payload[4:end]), payload[end:]


__all__ = [
    "ACK",
    "BLOCK",
    "BLOCK_HEADER",
    "BUNDLE",
    "BUNDLE_ENTRY",
    "BUNDLE_HEADER",
    "CHECK_PART",
    "DELIVERY_COUNT",
    "FAN_OUT",
    "GROUP",
    "HEADER",
    "LARGE_RECORD",
    "MESSAGE",
    "MOST_LOCKED",
    "POSITION_SHIFT",
    "SPILL",
    "Record",
    "UnfinishedHeader",
    "bundle_head",
    "checksum",
    "decode_block_header",
    "decode_fan_out",
    "decode_record_header",
    "encode_block_header",
    "encode_bundle",
    "encode_fan_out_targets",
    "encode_group_entry",
    "encode_record",
    "expand_record",
    "fan_out_start",
    "find_record_header",
    "locate_messages",
    "pack_crc",
    "pack_header",
    "pack_pairs",
    "segment_seed",
    "unpack_pairs",
]
