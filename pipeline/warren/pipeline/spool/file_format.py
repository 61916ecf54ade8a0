"""The file format of a spool: chunks of messages, each whole or not there at all.

A chunk is written and synced in one go: a header (what it is, position of its first message, how many there are, bytes that
follow, their CRC-32, and the header's own), a byte for each message that says whether it may have come before, the key of
each message, and then the messages as the broker delivered them: the frames of method, header and body, the body in one
piece. So the last byte of a chunk is a frame's end and never 0.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

from warren.pipeline.errors import PipelineError

KEY_BYTES = 16
"""Bytes of a message's key; of one that has none all of them are 0."""
NO_KEY = bytes(KEY_BYTES)
HEADER = struct.Struct(">4sQIIII")
MAX_CHUNK_BYTES = 1 << 30
"""Bytes of a chunk, at most: what says more is damaged."""
_MAGIC = b"WSP1"
_CRC = struct.Struct(">I")


class SpooledMessage(NamedTuple):
    """A message as it is kept."""

    frames: bytes
    key: bytes
    possible_duplicate: bool
    """Whether it may have come before, and nobody can know."""


class Chunk(NamedTuple):
    """Some messages of a file, one after the other."""

    first: int
    """Position of the first message."""
    length: int
    """Messages."""
    end: int
    """Byte of the file behind it."""
    possible_duplicate: bytes
    keys: bytes
    frames: bytes


class TornChunk(Exception):
    """The file ends in the middle of a chunk: it was being written when the process or the machine died."""


def encode_chunk(first: int, entries: Sequence[SpooledMessage]) -> bytes:
    """A chunk, whose first message has that position."""
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
    """The chunks between two bytes of a file.

    :raises Torn: for one at the end that is not whole
    :raises PipelineError: for one that is damaged
    """
    file.seek(begin)
    while begin < end:
        head = file.read(HEADER.size)
        if len(head) < HEADER.size:
            raise TornChunk
        magic, first, count, size, crc, own = HEADER.unpack(head)
        # Its size is believed only now: a wrong one that reaches past the end would look like a torn chunk.
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
    """A chunk that ends in zeros, up to the end of the file, is torn: a file system leaves them after a crash.

    :param last: what was read of it last, in vain
    """
    return damage_error(file, begin) if last[-1:] != b"\0" or any(file.read()) else TornChunk()


def damage_error(file: BinaryIO, place: int) -> PipelineError:
    return PipelineError(
        f"{file.name} is damaged at byte {place}: bring it back from a copy, or move the spool away and "
        "begin with a new checkpoint"
    )
