"""The index files of one log: load an index, build it where there is none that can be used, and store it."""

from __future__ import annotations

from typing import Final

from warren.broker.store.file_system.files_protocol import Files
from warren.broker.store.index.index_builder import IndexBuilder
from warren.broker.store.index.index_format import Describe, SegmentIndex, index_path, load_index
from warren.broker.store.log.record_format import segment_seed
from warren.broker.store.log.segment_reader import UNFINISHED, Damage, SegmentReader, segment_path

PART_SIZE: Final = 1024 * 1024
"""Default of the bytes of an index file that are written at once. The index of a segment of small messages has 9 MiB."""


class IndexStore:
    """Loading, building and storing of the indexes of one log's segments.

    :param folder: the folder of the segments and their indexes.
    :param identity: the data folder's random number, which seeds the checksums.
    :param block: size of a block of the segments in bytes.
    :param describe: returns priority, expiry and body size of an encoded message, for its index entry.
    :param part_size: bytes of an index file that are written at once.
    """

    def __init__(
        self,
        folder: str,
        files: Files,
        identity: int,
        block: int,
        describe: Describe,
        part_size: int = PART_SIZE,
    ) -> None:
        self.folder = folder
        self.files = files
        self.identity = identity
        self.block = block
        self.describe = describe
        self.part_size = part_size

    def reader(self, number: int) -> SegmentReader:
        """Return a reader of segment `number`."""
        path, seed = segment_path(self.folder, number), segment_seed(self.identity, number)
        return SegmentReader(self.files, path, number, seed, self.block)

    def builder(self, number: int) -> IndexBuilder:
        """Return a builder of the index of segment `number`. It is still empty."""
        return IndexBuilder(number, self.describe)

    def load(self, number: int, size: int) -> SegmentIndex | None:
        """Load the index of segment `number`, of `size` bytes, from its file.

        :return: None if the file is missing or damaged, or does not match the segment.
        """
        return load_index(self.files, self.folder, number, size, segment_seed(self.identity, number))

    def build(self, number: int, damage: list[Damage]) -> tuple[SegmentIndex, int]:
        """Read segment `number`. Return its index, in memory, and the offset at which its last intact record ends.

        :param damage: list to which descriptions of the places that cannot be read are appended.
        """
        reader, builder = self.reader(number), self.builder(number)
        while (record := reader.next_beginning()) is not None:
            if record is not UNFINISHED:
                builder.add(record)
        index = builder.finish(self.files.size(segment_path(self.folder, number)))
        damage += reader.damage
        if builder.repeated:
            damage.append(repeated_messages(number, builder.repeated))
        return index, reader.end

    def rebuild(self, number: int) -> SegmentIndex:
        """Build the index of segment `number` again, in memory. Damage of the segment is not reported a second time."""
        return self.build(number, [])[0]

    def encode(self, index: SegmentIndex) -> bytes:
        """Return the content of the file of an index."""
        return index.encode(segment_seed(self.identity, int(index.segment)))

    def store(self, index: SegmentIndex) -> None:
        """Write an index to its file. It is not synced: it can be built again.

        :raises OSError: there is no room, or the disk failed; the index stays in memory.
        """
        content = self.encode(index)
        written = 0
        while written < len(content):
            written = self.store_part(index, content, written)

    def store_part(self, index: SegmentIndex, content: bytes, start: int) -> int:
        """Write the next part of an index to its file, and return the offset at which it ends.

        A file that lacks parts is not used: `load` compares its size. With the last part, the index leaves memory.

        :param content: the content of the whole file.
        :param start: offset of the part; 0 begins the file.
        :raises OSError: there is no room, or the disk failed; the index stays in memory.
        """
        path = index_path(self.folder, int(index.segment))
        part = content[start : start + self.part_size]
        try:
            handle = self.files.open(path)
            try:
                if not start:
                    self.files.truncate(handle, 0)
                self.files.write(handle, part, start)
            finally:
                self.files.close(handle)
        except OSError:
            self.files.unlink(path)
            raise
        end = start + len(part)
        if end == len(content):
            index.move_to_file(end)
        return end


def repeated_messages(number: int, count: int) -> Damage:
    """Return the report that segment `number` holds `count` messages twice."""
    text = (
        f"segment {number} holds {count} messages twice: a part of it was written over others, which are lost, "
        "or between them"
    )
    return Damage(0, text)


__all__ = ["IndexStore", "repeated_messages"]
