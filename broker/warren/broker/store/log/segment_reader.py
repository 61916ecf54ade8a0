"""Sequential reading of a segment, record by record in bounded memory; damaged places are skipped and reported."""

from __future__ import annotations

import zlib
from typing import Final

from warren.broker.store.file_system.files_protocol import Files
from warren.broker.store.log.record_format import (
    BLOCK_HEADER,
    BUNDLE,
    FAN_OUT,
    GROUP,
    HEADER,
    MESSAGE,
    SPILL,
    Record,
    decode_block_header,
    decode_record_header,
    fan_out_start,
    find_record_header,
)

_READ = 4 * 65536
"""Bytes that one read from a segment's file requests."""
BEGINNING: Final = 2048
"""Bytes at the beginning of a message that `next_beginning` returns at least: its head and content header fit in."""
PART: Final = 128 * 1024
"""Bytes of a longer record that one call of `next_beginning` reads."""
UNFINISHED: Final = Record(0, 0, 0, b"", -1)
"""Result of `next_beginning` while it has to be called again for the same record."""


class Damage:
    """A place in a segment that could not be read.

    :param offset: its file position.
    :param text: description in one line, for the operator.
    """

    def __init__(self, offset: int, text: str) -> None:
        self.offset = offset
        self.text = text


class _LongRecord:
    """Record that is read in parts: its header, the beginning of its payload, and the checksum so far."""

    def __init__(
        self, kind: int, incarnation: int, sequence: int, length: int, check: int, start: int
    ) -> None:
        self.kind = kind
        self.incarnation = incarnation
        self.sequence = sequence
        self.length = length
        self.check = check
        """CRC of the payload by the record's header."""
        self.start = start
        """Position of the record among the bytes of the segment, counted without the headers of blocks."""
        self.left = length
        """Bytes of the payload that have yet to be read."""
        self.found = 0
        """CRC of the bytes that were read."""
        self.beginning = b""

    def add(self, part: bytes) -> None:
        """Add the next bytes of the payload."""
        self.left -= len(part)
        self.found = zlib.crc32(part, self.found)
        if not self.beginning or len(self.beginning) < self.wanted():
            self.beginning += part

    def wanted(self) -> int:
        """Return the number of bytes that the beginning has at least, if the payload has so many."""
        return BEGINNING + (fan_out_start(self.beginning) if self.kind == FAN_OUT else 0)


class SegmentReader:
    """Reader of the intact records of one segment, in order.

    :param number: number of the segment, for reports.
    :param seed: initial value of the checksums of the segment's headers.
    :param block: size of a block in bytes.
    """

    def __init__(self, files: Files, path: str, number: int, seed: int, block: int) -> None:
        self.damage: list[Damage] = []
        """Places that could not be read and were skipped so far."""
        self.end = 0
        """Offset in the file at which the last intact record ends."""
        self._files = files
        self._path = path
        self.number = number
        self._seed = seed
        self._block = block
        self._block_room = block - BLOCK_HEADER
        self._size = -1
        self._next_block = 0
        self._buffer = b""
        self._base = 0
        """Position of the buffer's first byte among the bytes of the segment, counted without the headers of blocks."""
        self._at = 0
        self._long: _LongRecord | None = None
        """The record that `next_beginning` has read in part."""

    def next(self) -> Record | None:
        """Return the next intact record; None at the end of the segment."""
        while True:
            left = self._fill(HEADER)
            if left < HEADER:
                if left:
                    self._report(self._at, f"{left} bytes at the end are not a record")
                    self._at += left
                return None
            found = decode_record_header(self._buffer, self._at, self._seed)
            if found is None:
                if not self._find_next_record():
                    return None
                continue
            kind, length, incarnation, sequence, check = found
            start = self._at
            available = self._fill(HEADER + length)
            start = self._at
            name = self._describe(kind, incarnation, sequence)
            if available < HEADER + length:
                self._report(start, f"{name} is cut short")
                self._at += available
                return None
            self._at = start + HEADER + length
            payload = self._buffer[start + HEADER : self._at]
            if zlib.crc32(payload) != check:
                self._report(start, f"{name} is damaged")
                continue
            record = Record(kind, incarnation, sequence, payload, self._offset(self._base + start))
            position = self._base + self._at
            # Behind the last byte, not at the next byte's offset: that one may lie beyond a block header.
            self.end = self._offset(position - 1) + 1
            return record

    def next_beginning(self) -> Record | None:
        """Return the next intact record as `next` does, but of a message of more than `PART` bytes only the beginning.

        Such a record is read and checked in parts, one for each call: return `UNFINISHED` until all of it is read. Its
        `size` is that of the whole payload.
        """
        if self._long is None:
            left = self._fill(HEADER)
            found = decode_record_header(self._buffer, self._at, self._seed) if left >= HEADER else None
            if found is None or found[1] <= PART or found[0] not in (MESSAGE, SPILL, FAN_OUT):
                return self.next()
            kind, length, incarnation, sequence, check = found
            self._long = _LongRecord(kind, incarnation, sequence, length, check, self._base + self._at)
            self._at += HEADER
        long = self._long
        size = min(long.left, PART)
        available = min(self._fill(size), size)
        long.add(self._buffer[self._at : self._at + available])
        self._at += available
        if available == size and long.left:
            return UNFINISHED
        self._long = None
        name = self._describe(long.kind, long.incarnation, long.sequence)
        if available < size:
            self._report_position(long.start, f"{name} is cut short")
            return None
        if long.found != long.check:
            self._report_position(long.start, f"{name} is damaged")
            return UNFINISHED
        self.end = self._offset(self._base + self._at - 1) + 1
        offset = self._offset(long.start)
        return Record(long.kind, long.incarnation, long.sequence, long.beginning, offset, long.length)

    def _fill(self, wanted: int) -> int:
        """Read from the file until the buffer holds `wanted` bytes not used for a record yet, or the file ends.

        :return: the number of these bytes in the buffer.
        """
        available = len(self._buffer) - self._at
        if available >= wanted:
            return available
        if self._size < 0:
            self._size = self._files.size(self._path)
        parts = [self._buffer[self._at :]]
        self._base += self._at
        self._at = 0
        while available < wanted and self._next_block * self._block < self._size:
            blocks = max(1, max(_READ, wanted - available) // self._block)
            start = self._next_block * self._block
            data = self._files.read(self._path, start, min(blocks * self._block, self._size - start))
            if not data:
                break
            for begin in range(0, len(data), self._block):
                part = data[begin + BLOCK_HEADER : begin + self._block]
                parts.append(part)
                available += len(part)
            self._next_block += blocks
        self._buffer = b"".join(parts)
        return available

    def _find_next_record(self) -> bool:
        """Go to the next intact record after a damaged header. Return False if there is none.

        The rest of this block is searched byte by byte. The header of each later block holds the offset of the first
        record in it; a block whose header is damaged too is searched like the first.
        """
        begin = self._base + self._at
        position = begin + 1
        while True:
            block, within = divmod(position, self._block_room)
            if block * self._block >= self._size:
                break
            if within == 0 and block > 0:
                header = self._files.read(self._path, block * self._block, BLOCK_HEADER)
                first = decode_block_header(header, self._seed, block)
                if first == 0:
                    position += self._block_room
                    continue
                if BLOCK_HEADER <= first < self._block:
                    position += first - BLOCK_HEADER
            stop = (block + 1) * self._block_room
            if not self._seek(position, stop):
                break
            found = find_record_header(self._buffer, self._at, self._at + stop - position, self._seed)
            if found >= 0:
                self._at = found
                self._report_position(begin, f"{self._base + found - begin} bytes are not a record")
                return True
            position = stop
        end = self._base + len(self._buffer)
        self._at = len(self._buffer)
        self._report_position(begin, f"{max(end - begin, 1)} bytes are not a record")
        return False

    def _seek(self, start: int, stop: int) -> bool:
        """Fill the buffer with the segment's bytes from `start` to `stop`, and with those of one more record header.

        Both are counted in bytes of the segment without its block headers, as records may run over several blocks.

        :return: False if the segment ends before `start`.
        """
        while start > self._base + len(self._buffer):
            self._at = len(self._buffer)
            if not self._fill(1):
                return False
        self._at = start - self._base
        return self._fill(stop - start + HEADER) > 0

    def _describe(self, kind: int, incarnation: int, sequence: int) -> str:
        if kind == MESSAGE:
            return f"message {sequence} of queue {incarnation}"
        if kind == GROUP:
            return "a group of records"
        if kind == BUNDLE:
            return f"a bundle of messages of queue {incarnation} from message {sequence}"
        return f"a record of type {kind - MESSAGE + 1} of queue {incarnation} from message {sequence}"

    def _offset(self, position: int) -> int:
        return position + (position // self._block_room + 1) * BLOCK_HEADER

    def _report(self, at: int, text: str) -> None:
        self._report_position(self._base + at, text)

    def _report_position(self, position: int, text: str) -> None:
        offset = self._offset(position)
        self.damage.append(Damage(offset, f"segment {self.number}, offset {offset}: {text}"))


def segment_path(folder: str, number: int) -> str:
    """Return the path of the file of segment `number` of the log in `folder`."""
    return f"{folder}/{number:016d}.log"


__all__ = ["BEGINNING", "PART", "UNFINISHED", "Damage", "SegmentReader", "segment_path"]
