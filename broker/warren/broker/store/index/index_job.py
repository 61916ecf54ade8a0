"""Job of the writer thread that indexes a segment in steps.

Between two steps the thread can write new messages to the log, which need not wait until a whole segment is read.
"""

from __future__ import annotations

from typing import Final

from warren.broker.store.index.index_format import SegmentIndex
from warren.broker.store.index.index_store import IndexStore, repeated_messages
from warren.broker.store.log.segment_reader import PART, UNFINISHED, Damage, segment_path

SLICE: Final = 32 * 1024
"""Bytes of a segment that one step of an index job reads. With messages of 16 bytes they take 3 ms."""


class IndexJob:
    """Job of the writer thread that reads one segment, about `SLICE` bytes at a time, and then writes its index file.

    :param number: number of the segment.
    :param index: the segment's index if it was built before and only its file is missing; None to build it.
    """

    def __init__(self, store: IndexStore, number: int, index: SegmentIndex | None) -> None:
        self.number = number
        """Number of the segment."""
        self.index = index
        """The index, once the segment has been read."""
        self.finished = False
        """True once the index was written or the job failed."""
        self.error = ""
        """Reason why the job failed; empty if it did not."""
        self.is_shortage = False
        """True if it can succeed later: the disk is full, or the process has no file descriptor left."""
        self.damage: list[Damage] = []
        """Places of the segment that cannot be read."""
        self._store = store
        self._reader = store.reader(number)
        self._builder = store.builder(number)
        self._content = b""
        """Content of the index file, once it is encoded."""
        self._written = 0
        """Bytes of `_content` that are written."""

    def run_slice(self) -> None:
        """Index the records in the next `SLICE` bytes of the segment, or write a part of the index file if all are read.

        :raises OSError: the disk cannot be read or written.
        """
        if self.index is None:
            size = 0
            while size < SLICE:
                record = self._reader.next_beginning()
                if record is UNFINISHED:
                    size += PART
                    continue
                if record is None:
                    whole = self._store.files.size(segment_path(self._store.folder, self.number))
                    self.index = self._builder.finish(whole)
                    self.damage = self._reader.damage
                    if self._builder.repeated:
                        self.damage.append(repeated_messages(self.number, self._builder.repeated))
                    return
                self._builder.add(record)
                size += len(record.payload) + 64
        else:
            if not self._content:
                self._content = self._store.encode(self.index)
            self._written = self._store.store_part(self.index, self._content, self._written)
            self.finished = self._written == len(self._content)


__all__ = ["IndexJob"]
