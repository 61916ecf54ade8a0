"""Makes a segment's index where there is none that can be used."""

from __future__ import annotations

from typing import Final

from warren.broker.store.files import Files
from warren.broker.store.index.index_format import (
    Describe,
    IndexBuilder,
    SegmentIndex,
    index_path,
    read_index,
)
from warren.broker.store.log.record_format import seed_of
from warren.broker.store.log.segment_reader import Damage, SegmentReader, segment_path

SLICE: Final = 512 * 1024
"""Bytes that are read at a time while others wait for the same thread."""


class Indexer:
    """What it takes to index the segments of one log."""

    def __init__(self, folder: str, files: Files, identity: int, block: int, describe: Describe) -> None:
        self.folder = folder
        self.files = files
        self.identity = identity
        self.block = block
        self.describe = describe

    def reader(self, number: int) -> SegmentReader:
        path, seed = segment_path(self.folder, number), seed_of(self.identity, number)
        return SegmentReader(self.files, path, number, seed, self.block)

    def builder(self, number: int) -> IndexBuilder:
        return IndexBuilder(number, self.describe)

    def stored(self, number: int, size: int) -> SegmentIndex | None:
        """The index in the file, if it is of that segment as it is now."""
        return read_index(self.files, self.folder, number, size, seed_of(self.identity, number))

    def build(self, number: int, damage: list[Damage]) -> tuple[SegmentIndex, int]:
        """Read the whole segment; returns its index, in memory, and where the last intact record ends.

        :param damage: what could not be read is added to it.
        """
        reader, builder = self.reader(number), self.builder(number)
        while (record := reader.next()) is not None:
            builder.add(record)
        damage += reader.damage
        return builder.finish(self.files.size(segment_path(self.folder, number))), reader.end

    def rebuild(self, number: int) -> SegmentIndex:
        """As `build`, for one that was read before: what is damaged is known already."""
        return self.build(number, [])[0]

    def store(self, index: SegmentIndex) -> None:
        """Write an index to its file. Not synced: it can be made again.

        :raises OSError: there is no room, or the disk failed; the index stays in memory.
        """
        number = int(index.segment)
        data = index.encode(seed_of(self.identity, number))
        path = index_path(self.folder, number)
        try:
            handle = self.files.open(path)
            try:
                self.files.truncate(handle, 0)
                self.files.write(handle, data, 0)
            finally:
                self.files.close(handle)
        except OSError:
            self.files.unlink(path)
            raise
        index.stored(len(data))


class IndexJob:
    """A segment on its way to being indexed, a slice at a time; one that is in memory only has to be written."""

    def __init__(self, indexer: Indexer, number: int, index: SegmentIndex | None) -> None:
        self.number = number
        self.index = index
        self.finished = False
        self.error = ""
        self.damage: list[Damage] = []
        self._indexer = indexer
        self._reader = indexer.reader(number)
        self._builder = indexer.builder(number)

    def work(self) -> None:
        """One slice of it.

        :raises OSError: the disk cannot be read or written.
        """
        if self.index is None:
            size = 0
            while size < SLICE:
                record = self._reader.next()
                if record is None:
                    whole = self._indexer.files.size(segment_path(self._indexer.folder, self.number))
                    self.index = self._builder.finish(whole)
                    self.damage = self._reader.damage
                    return
                self._builder.add(record)
                size += len(record.payload) + 64
        else:
            self._indexer.store(self.index)
            self.finished = True


__all__ = ["IndexJob", "Indexer"]
