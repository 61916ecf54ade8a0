"""Reads a segment record by record in bounded memory, and goes on after damage."""

from __future__ import annotations

import zlib

from warren.broker.store.files import Files
from warren.broker.store.log.record_format import (
    BLOCK_HEADER,
    BUNDLE,
    GROUP,
    HEADER,
    MESSAGE,
    Record,
    find_header,
    first_record,
    header_at,
)

_READ = 4 * 65536
"""How many bytes are read at a time."""


class Damage:
    """A place in a segment that could not be read; `text` is one line for the operator."""

    def __init__(self, offset: int, text: str) -> None:
        self.offset = offset
        self.text = text


class SegmentReader:
    """Yields the intact records of one segment in order.

    `damage` is what was passed over so far; `end` is the offset behind the last intact record.
    """

    def __init__(self, files: Files, path: str, number: int, seed: int, block: int) -> None:
        self.damage: list[Damage] = []
        self.end = 0
        self._files = files
        self._path = path
        self.number = number
        self._seed = seed
        self._block = block
        self._room = block - BLOCK_HEADER
        self._size = -1
        self._next_block = 0
        self._buffer = b""
        self._base = 0
        """Position of the buffer in the stream of records, that is, without the headers of blocks."""
        self._at = 0

    def next(self) -> Record | None:
        """The next intact record, or None at the end."""
        while True:
            left = self._fill(HEADER)
            if left < HEADER:
                if left:
                    self._report(self._at, f"{left} bytes at the end are no record")
                    self._at += left
                return None
            found = header_at(self._buffer, self._at, self._seed)
            if found is None:
                if not self._find():
                    return None
                continue
            kind, length, incarnation, sequence, check = found
            start = self._at
            available = self._fill(HEADER + length)
            start = self._at
            name = self._name(kind, incarnation, sequence)
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
            # Behind the last byte, not at the next byte's place: that one may lie beyond a block header.
            self.end = self._offset(position - 1) + 1
            return record

    def _fill(self, wanted: int) -> int:
        """Have `wanted` bytes in the buffer if the file has them; returns how many there are."""
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

    def _find(self) -> bool:
        """After a header that is none: go to the next record, through the rest of this block and then by the
        headers of the blocks that follow; a block whose header is damaged too is searched."""
        begin = self._base + self._at
        place = begin + 1
        while True:
            block, within = divmod(place, self._room)
            if block * self._block >= self._size:
                break
            if within == 0 and block > 0:
                header = self._files.read(self._path, block * self._block, BLOCK_HEADER)
                first = first_record(header, self._seed, block)
                if first == 0:
                    place += self._room
                    continue
                if BLOCK_HEADER <= first < self._block:
                    place += first - BLOCK_HEADER
            stop = (block + 1) * self._room
            if not self._seek(place, stop):
                break
            found = find_header(self._buffer, self._at, self._at + stop - place, self._seed)
            if found >= 0:
                self._at = found
                self._report_place(begin, f"{self._base + found - begin} bytes are no record")
                return True
            place = stop
        end = self._base + len(self._buffer)
        self._at = len(self._buffer)
        self._report_place(begin, f"{max(end - begin, 1)} bytes are no record")
        return False

    def _seek(self, place: int, stop: int) -> bool:
        """Have the stream from `place` to `stop`, and a header's length more, in the buffer; whether it goes
        so far."""
        while place > self._base + len(self._buffer):
            self._at = len(self._buffer)
            if not self._fill(1):
                return False
        self._at = place - self._base
        return self._fill(stop - place + HEADER) > 0

    def _name(self, kind: int, incarnation: int, sequence: int) -> str:
        if kind == MESSAGE:
            return f"message {sequence} of queue {incarnation}"
        if kind == GROUP:
            return "a group of records"
        if kind == BUNDLE:
            return f"a bundle of messages of queue {incarnation} from message {sequence}"
        return f"a record of type {kind - MESSAGE + 1} of queue {incarnation} from message {sequence}"

    def _offset(self, position: int) -> int:
        return position + (position // self._room + 1) * BLOCK_HEADER

    def _report(self, at: int, text: str) -> None:
        self._report_place(self._base + at, text)

    def _report_place(self, position: int, text: str) -> None:
        offset = self._offset(position)
        self.damage.append(Damage(offset, f"segment {self.number}, offset {offset}: {text}"))


def segment_path(folder: str, number: int) -> str:
    """The file of a segment."""
    return f"{folder}/{number:016d}.log"


__all__ = ["Damage", "SegmentReader", "segment_path"]
