"""Reading of entries from the indexes of segments, with a cache of pages."""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from warren.broker.store.file_system.files_protocol import Files
from warren.broker.store.index.index_format import (
    INDEX_ENTRY,
    PAGE,
    PAGE_BYTES,
    IndexEntry,
    IndexRow,
    SegmentIndex,
    index_path,
)

logger = logging.getLogger(__name__)

_SEQUENCE: Final = struct.Struct("<Q")


class IndexReader:
    """Reader of index entries, from memory or from index files. It caches the pages of entries that it read last.

    :param rebuild: function that builds the index of a segment, given by number, again if the index file is damaged.
    :param limit: number of pages in the cache.
    """

    def __init__(
        self, folder: str, files: Files, rebuild: Callable[[int], SegmentIndex], limit: int = 64
    ) -> None:
        self._rebuild = rebuild
        self._folder = folder
        self._files = files
        self._limit = limit
        self._pages: dict[tuple[int, int], bytes] = {}

    def entries(self, index: SegmentIndex, row: IndexRow, first: i64, last: i64) -> list[IndexEntry]:
        """Return the entries of an index row (one queue's messages of one priority) in a range of sequence numbers.

        If the index file is damaged, the index is first built again from the segment.

        :raises OSError: the disk cannot be read.
        """
        try:
            return self._entries(index, row, first, last)
        except ValueError as error:
            logger.error("event=index.damage_found segment=%d reason=%r", int(index.segment), str(error))
        # Nothing is lost: the segment holds all of it.
        index.replace(self._rebuild(int(index.segment)))
        for other in index.rows.get(row.incarnation, ()):
            if other.priority == row.priority and other.is_transient == row.is_transient:
                return self._entries(index, other, first, last)
        return []

    def _entries(self, index: SegmentIndex, row: IndexRow, first: i64, last: i64) -> list[IndexEntry]:
        found: list[IndexEntry] = []
        at: i64 = self._find(index, row, first)
        end: i64 = row.start + row.count
        if last < row.last:
            end = self._find(index, row, last + 1)
        while at < end:
            number: i64 = at // PAGE
            stop: i64 = min(end, (number + 1) * PAGE)
            base: i64 = number * PAGE
            page = self._page(index, number)
            part = page[(at - base) * INDEX_ENTRY.size : (stop - base) * INDEX_ENTRY.size]
            for values in INDEX_ENTRY.iter_unpack(part):
                found.append(  # noqa: PERF401  (a comprehension cannot unpack into native tuples)
                    (values[0], values[1], values[2], values[3], values[4], values[5], values[7])
                )
            at = stop
        return found

    def _find(self, index: SegmentIndex, row: IndexRow, sequence: i64) -> i64:
        """Return the number of an index row's first entry whose message has at least this sequence number.

        Entries are numbered over the whole index, from 0. If the row has no such entry, return the number after that
        of its last entry.
        """
        if sequence <= row.first:
            return row.start
        if sequence > row.last:
            return row.start + row.count
        if row.last - row.first + 1 == row.count:
            return row.start + sequence - row.first
        low: i64 = row.start
        high: i64 = row.start + row.count
        while low < high:
            middle: i64 = (low + high) // 2
            if self._sequence(index, middle) < sequence:
                low = middle + 1
            else:
                high = middle
        return low

    def _sequence(self, index: SegmentIndex, at: i64) -> i64:
        page = self._page(index, at // PAGE)
        sequence: i64 = _SEQUENCE.unpack_from(page, at % PAGE * INDEX_ENTRY.size)[0]
        return sequence

    def _page(self, index: SegmentIndex, number: i64) -> bytes:
        """Return page `number` of an index: up to `PAGE` encoded entries, which have one checksum.

        :raises OSError: the disk cannot be read.
        :raises ValueError: the page is damaged.
        """
        held = index.entries
        start: i64 = number * PAGE_BYTES
        if held is not None:
            return held[start : start + PAGE_BYTES]
        key = (int(index.segment), int(number))
        page = self._pages.get(key)
        if page is None:
            size: i64 = min(PAGE_BYTES, index.count * INDEX_ENTRY.size - start)
            page = self._files.read(index_path(self._folder, index.segment), index.entries_at + start, size)
            if zlib.crc32(page) != index.checks[number]:
                raise ValueError(f"page {number} of the index does not match its checksum")
            while len(self._pages) >= self._limit:
                del self._pages[next(iter(self._pages))]
            self._pages[key] = page
        return page


__all__ = ["IndexReader"]
