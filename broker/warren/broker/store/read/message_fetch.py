"""Reads messages back from the log by their place, many at a time."""

from __future__ import annotations

import zlib
from typing import Final, Optional

from mypy_extensions import i64

from warren.broker.store.files import Files
from warren.broker.store.log.record_format import (
    BLOCK_HEADER,
    BUNDLE,
    HEADER,
    MESSAGE,
    SPILL,
    bundle_head,
    header_at,
    messages_in,
    seed_of,
)
from warren.broker.store.log.segment_reader import segment_path

PLACE: Final = 32
"""A place is the number of a segment, shifted by this, and an offset in it."""
_AHEAD: Final = 4
"""Blocks that are read at once where the messages that are wanted reach so far."""
_EVERYTHING: Final = 1 << 62
"""Behind every place: nothing is being written."""
_KEPT: Final = 64
"""Blocks that are kept in memory: 4 MiB."""

crc32: Final = zlib.crc32


class Fetch:
    """Messages by place, for one log. A record is given out only if it is intact and the one that was meant."""

    def __init__(self, folder: str, files: Files, identity: int, block: i64) -> None:
        self._folder = folder
        self._files = files
        self._identity = identity
        self._block: i64 = block
        self.end: i64 = _EVERYTHING
        """The place up to which the log is written. The file may be longer."""
        self._blocks: dict[int, bytes] = {}
        self._shared_at: i64 = -1
        self._shared = b""
        self._shared_head = b""
        self._shared_places: dict[tuple[int, int], tuple[int, int]] = {}
        self._segment: i64 = -1
        self._seed = 0

    def payloads(self, incarnation: i64, wanted: list[tuple[int, int]]) -> list[Optional[bytes]]:  # noqa: UP045
        """The payload of each message (sequence, place); None where something else stands there now, or nothing intact.

        :raises OSError: the disk cannot be read (a segment that is gone is no error).
        """
        found: list[Optional[bytes]] = []  # noqa: UP045
        count: i64 = len(wanted)
        at: i64 = 0
        while at < count:
            sequence, place = wanted[at]
            until: i64 = place
            if at + 1 < count:
                until = wanted[count - 1][1]
            try:
                found.append(self._payload(incarnation, sequence, place, until))
            except FileNotFoundError:
                found.append(None)
            at += 1
        return found

    def _payload(self, incarnation: i64, sequence: i64, place: i64, until: i64) -> Optional[bytes]:  # noqa: UP045
        if place == self._shared_at:
            return self._of_shared(incarnation, sequence)
        segment: i64 = place >> PLACE
        offset: i64 = place & ((1 << PLACE) - 1)
        if segment != self._segment:
            self._segment = segment
            self._seed = seed_of(self._identity, segment)
        block: i64 = self._block
        number: i64 = offset // block
        within: i64 = offset % block
        if within >= BLOCK_HEADER:
            within -= BLOCK_HEADER
        else:
            # The place was noted before the block had its header.
            within = 0
        ahead: i64 = 1
        if until > place and until >> PLACE == segment:
            ahead = min(_AHEAD, (until & ((1 << PLACE) - 1)) // block - number + 1)
        data = self._read(segment, number, ahead)
        room: i64 = block - BLOCK_HEADER
        if len(data) - within < HEADER:
            if len(data) < room:
                return None
            number += 1
            data = data[within:] + self._read(segment, number, ahead)
            within = 0
        header = header_at(data, within, self._seed)
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
                part = self._read(segment, number, min(_AHEAD, (stop - size) // room + 1))
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
        self._shared_at = place
        self._shared = payload
        self._shared_head = bundle_head(payload) if kind == BUNDLE else b""
        self._shared_places = messages_in(kind, found_incarnation, found_sequence, payload)
        return self._of_shared(incarnation, sequence)

    def _of_shared(self, incarnation: i64, sequence: i64) -> Optional[bytes]:  # noqa: UP045
        """A message of the group, fan-out or bundle that was read last; to read it for each would cost their square."""
        found = self._shared_places.get((int(incarnation), int(sequence)))
        if found is None:
            return None
        content = self._shared[found[0] : found[1]]
        return self._shared_head + content if self._shared_head else content

    def _read(self, segment: i64, number: i64, ahead: i64) -> bytes:
        """A block without its header; as many as `ahead` are read at once."""
        key: i64 = segment << PLACE | number
        held = self._blocks.get(int(key))
        if held is not None:
            return held
        block: i64 = self._block
        data = self._files.read(segment_path(self._folder, segment), number * block, block * ahead)
        at: i64 = block
        while at < len(data):
            self._keep(key + at // block, data[at : at + block])
            at += block
        return self._keep(key, data[:block])

    def _keep(self, key: i64, data: bytes) -> bytes:
        stripped = data[BLOCK_HEADER:]
        # More may be written behind a block that is not full, and over one that was only made ahead.
        block: i64 = self._block
        behind: i64 = (key & ((1 << PLACE) - 1)) * block + block
        if len(data) == block and (key >> PLACE << PLACE | behind) <= self.end:
            blocks = self._blocks
            while len(blocks) >= _KEPT:
                del blocks[next(iter(blocks))]
            blocks[int(key)] = stripped
        return stripped


__all__ = ["PLACE", "Fetch"]
