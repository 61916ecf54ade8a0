"""Format of the files of a spool, which keep acknowledged messages of a queue until Spark has processed them.

A file is a sequence of chunks, each of which is complete or absent after a crash. A chunk is written and synced at
once. It consists of a header (magic, position of its first message, number of messages, length of the rest, CRC-32 of
the rest, CRC-32 of the header itself), a byte for each message that marks a possible duplicate, the deduplication key
of each message, and the messages as the broker delivered them: frames of method, header and body, the body in one
frame. The last byte of a chunk is therefore the end of a frame and never 0, by which a chunk that a crash cut off is
recognised.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

from warren.pipeline.errors import PipelineError

KEY_BYTES = 16
"""Length in bytes of a deduplication key, the digest that identifies a message; it is all zero for a message without
one."""
NO_KEY = bytes(KEY_BYTES)
HEADER = struct.Struct(">4sQIIII")
MAX_CHUNK_BYTES = 1 << 30
"""Largest size of a chunk in bytes; a chunk whose header states a larger one is damaged."""
_MAGIC = b"WSP1"
_CRC = struct.Struct(">I")


class SpooledMessage(NamedTuple):
    """Message as it is written to a spool's file: its AMQP frames as delivered, and its deduplication key."""

    frames: bytes
    key: bytes
    possible_duplicate: bool
    """True if the message was redelivered and has no deduplication key, so it is unknown whether the spool already
    contains it."""


class Chunk(NamedTuple):
    """Consecutive messages of a spool's file that were written and synced at once.

    For each message, `possible_duplicate` has one byte (1 if it may be a duplicate), `keys` its deduplication key of 16
    bytes, and `frames` its AMQP frames as delivered.
    """

    first: int
    """Position of the first message: its number since the spool was created."""
    length: int
    """Number of messages."""
    end: int
    """Byte offset in the file at which the chunk ends."""
    possible_duplicate: bytes
    keys: bytes
    frames: bytes


class TornChunk(Exception):
    """Error: a file ends in the middle of a chunk, which was being written when the process or the machine died."""


def encode_chunk(first: int, entries: Sequence[SpooledMessage]) -> bytes:
    """Encode consecutive messages as a chunk, the unit in which a spool's file is written and synced.

    :param first: position of the first message: its number since the spool was created
    """
    rest = b"".join(
        (
            bytes([entry.possible_duplicate for entry in entries]),
            *(entry.key for entry in entries),
            *(entry.frames for entry in entries),
        )
    )
    head = HEADER.pack(_MAGIC, first, len(entries), len(rest), zlib.crc32(rest), 0)[: -_CRC.size]
    return b"".join((head, _CRC.pack(zlib.crc32(head)), rest))


def read_chunks(file: BinaryIO, begin: int, end: int) -> Iterator[Chunk]:
    """Yield the chunks that lie between two byte offsets of a spool's file.

    :param begin: byte offset at which a chunk begins
    :param end: byte offset at which a chunk ends
    :raises TornChunk: if the last chunk is incomplete
    :raises PipelineError: if a chunk is damaged
    """
    file.seek(begin)
    while begin < end:
        head = file.read(HEADER.size)
        if len(head) < HEADER.size:
            raise TornChunk
        magic, first, count, size, crc, own = HEADER.unpack(head)
        # Check the header first: a wrong size that reaches past the end would look like a torn chunk.
        if magic != _MAGIC or zlib.crc32(head[: -_CRC.size]) != own or size > MAX_CHUNK_BYTES:
            raise torn_or_damaged(file, begin, head)
        rest = file.read(size)
        following = begin + HEADER.size + size
        if len(rest) < size:
            raise TornChunk
        if zlib.crc32(rest) != crc:
            raise torn_or_damaged(file, begin, rest)
        keys_end = count * (KEY_BYTES + 1)
        yield Chunk(first, count, following, rest[:count], rest[count:keys_end], rest[keys_end:])
        begin = following


def torn_or_damaged(file: BinaryIO, begin: int, last: bytes) -> TornChunk | PipelineError:
    """Return the error for an invalid chunk: `TornChunk` if what was read of it ends in a zero byte and only zeros
    follow in the file, else an error that the file is damaged.

    A file system leaves such zeros when the machine crashes during a write; a complete chunk never ends in a zero.

    :param begin: byte offset of the chunk
    :param last: bytes of the chunk that were read last
    """
    return damage_error(file, begin) if last[-1:] != b"\0" or any(file.read()) else TornChunk()


def damage_error(file: BinaryIO, place: int) -> PipelineError:
    """Return the error for a damaged file.

    :param place: byte offset of the damaged chunk
    """
    return PipelineError(
        f"{file.name} is damaged at byte {place}: restore it from a backup, or move the spool away and "
        "begin with a new checkpoint"
    )
