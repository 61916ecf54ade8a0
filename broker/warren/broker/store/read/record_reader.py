"""Reading of messages from the log by their log position (segment and offset, as one number), many at a time."""

from __future__ import annotations

import zlib
from typing import Final, Optional

from mypy_extensions import i64

from warren.broker.store.file_system.files_protocol import Files
from warren.broker.store.log.record_format import (
    BLOCK_HEADER,
    BUNDLE,
    HEADER,
    MESSAGE,
    POSITION_SHIFT,
    SPILL,
    bundle_head,
    decode_record_header,
    locate_messages,
    segment_seed,
)
from warren.broker.store.log.segment_reader import segment_path

_READ_AHEAD: Final = 4
"""Largest number of successive blocks that are read at once."""
_EVERYTHING: Final = 1 << 62
"""Log position higher than all others; the value of `RecordReader.end` while the log is not being written."""
_CACHED_BLOCKS: Final = 64
"""Number of blocks that the reader caches at most; they take 4 MiB."""

crc32: Final = zlib.crc32


class RecordReader:
    """Reader of messages of one log by log position. It checks that the record there is intact and holds the message.

    :param identity: the data folder's random number, which seeds the checksums.
    :param block: size of a block in bytes.
    """

    def __init__(self, folder: str, files: Files, identity: int, block: i64) -> None:
        self._folder = folder
        self._files = files
        self._identity = identity
        self._block: i64 = block
        self.end: i64 = _EVERYTHING
        """Log position up to which records are written. The file may be longer, with preallocated zeros at its end."""
        self._blocks: dict[int, bytes] = {}
        # The group, fan-out or bundle that was read last.
        self._shared_at: i64 = -1
        self._shared = b""
        self._shared_head = b""
        self._shared_spans: dict[tuple[int, int], tuple[int, int]] = {}
        self._segment: i64 = -1
        self._seed = 0

    def payloads(self, incarnation: i64, wanted: list[tuple[int, int]]) -> list[Optional[bytes]]:  # noqa: UP045
        """Return the payload of each message; None for one that is not at its position, or not intact.

        :param incarnation: the number that names the queue of the messages in the log.
        :param wanted: (sequence number, log position) of each message.
        :raises OSError: the disk cannot be read (a deleted segment is no error).
        """
        found: list[Optional[bytes]] = []  # noqa: UP045
        count: i64 = len(wanted)
        at: i64 = 0
        while at < count:
            sequence, position = wanted[at]
            until: i64 = position
            if at + 1 < count:
                until = wanted[count - 1][1]
            try:
                found.append(self._payload(incarnation, sequence, position, until))
            except FileNotFoundError:
                found.append(None)
            at += 1
        return found

    def _payload(self, incarnation: i64, sequence: i64, position: i64, until: i64) -> Optional[bytes]:  # noqa: UP045
        if position == self._shared_at:
            return self._from_shared(incarnation, sequence)
        segment: i64 = position >> POSITION_SHIFT
        offset: i64 = position & ((1 << POSITION_SHIFT) - 1)
        if segment != self._segment:
            self._segment = segment
            self._seed = segment_seed(self._identity, segment)
        block: i64 = self._block
        number: i64 = offset // block
        within: i64 = offset % block
        if within >= BLOCK_HEADER:
            within -= BLOCK_HEADER
        else:
            # The position was noted before the block had its header.
            within = 0
        ahead: i64 = 1
        if until > position and until >> POSITION_SHIFT == segment:
            ahead = min(_READ_AHEAD, (until & ((1 << POSITION_SHIFT) - 1)) // block - number + 1)
        data = self._read(segment, number, ahead)
        room: i64 = block - BLOCK_HEADER
        if len(data) - within < HEADER:
            if len(data) < room:
                return None
            number += 1
            data = data[within:] + self._read(segment, number, ahead)
            within = 0
        header = decode_record_header(data, within, self._seed)
        if header is None:
            return None
        kind, length, found_incarnation, found_sequence, check = header
        start: i64 = within + HEADER
        stop: i64 = start + length
        if len(data) < stop:
            parts = [data]
            size: i64 = len(data)
            while size < stop:
                number += 1
                part = self._read(segment, number, min(_READ_AHEAD, (stop - size) // room + 1))
                if not part:
                    return None
                parts.append(part)
                size += len(part)
            data = b"".join(parts)
        payload = data[start:stop]
        if crc32(payload) != check:
            return None
        if kind in (MESSAGE, SPILL):
            return payload if found_incarnation == incarnation and found_sequence == sequence else None
        self._shared_at = position
        self._shared = payload
        self._shared_head = bundle_head(payload) if kind == BUNDLE else b""
        self._shared_spans = locate_messages(kind, found_incarnation, found_sequence, payload)
        return self._from_shared(incarnation, sequence)

    def _from_shared(self, incarnation: i64, sequence: i64) -> Optional[bytes]:  # noqa: UP045
        """Return a message from the record of several messages that was read last; None if the record does not hold it.

        Groups, fan-outs and bundles are such records. One is read and decoded once for successive messages in it.
        """
        found = self._shared_spans.get((int(incarnation), int(sequence)))
        if found is None:
            return None
        content = self._shared[found[0] : found[1]]
        return self._shared_head + content if self._shared_head else content

    def _read(self, segment: i64, number: i64, ahead: i64) -> bytes:
        """Return a block of a segment without its header, from the cache or from disk.

        :param segment: number of the segment.
        :param number: number of the block in the segment.
        :param ahead: number of successive blocks to read and cache if the block is not cached, itself included.
        """
        key: i64 = segment << POSITION_SHIFT | number
        held = self._blocks.get(int(key))
        if held is not None:
            return held
        block: i64 = self._block
        data = self._files.read(segment_path(self._folder, segment), number * block, block * ahead)
        at: i64 = block
        while at < len(data):
            self._cache(key + at // block, data[at : at + block])
            at += block
        return self._cache(key, data[:block])

    def _cache(self, key: i64, data: bytes) -> bytes:
        stripped = data[BLOCK_HEADER:]
        # More may be written behind a block that is not full, and over one that is only preallocated.
        block: i64 = self._block
        behind: i64 = (key & ((1 << POSITION_SHIFT) - 1)) * block + block
        if len(data) == block and (key >> POSITION_SHIFT << POSITION_SHIFT | behind) <= self.end:
            blocks = self._blocks
            while len(blocks) >= _CACHED_BLOCKS:
                del blocks[next(iter(blocks))]
            blocks[int(key)] = stripped
        return stripped


__all__ = ["RecordReader"]
