"""Writer of segments: large writes are divided, and a file is as it was if there is no room for all of one."""

from __future__ import annotations

import errno

from warren.broker.store.file_system.memory_files import MemoryFiles
from warren.broker.store.log.segment_reader import segment_path
from warren.broker.store.log.segment_writer import SegmentWriter
from warren.broker.store.log.write_statistics import WriteStatistics
from warren.broker.store.log.writer_jobs import PART_SIZE, SegmentWrite


class SmallDisk(MemoryFiles):
    """Disk that takes a number of writes."""

    writes_left = 1

    def write(self, handle: int, data: bytes, offset: int) -> None:
        if not self.writes_left:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.writes_left -= 1
        super().write(handle, data, offset)


def test_a_large_write_is_divided() -> None:
    piece = bytes(PART_SIZE // 4)
    pieces = [memoryview(piece)] * 10
    parts = list(SegmentWrite(1, 0, 10 * len(piece), pieces).parts())
    assert max(map(len, parts)) <= PART_SIZE
    assert b"".join(parts) == b"".join(pieces)


def test_a_small_write_is_one_part() -> None:
    assert list(SegmentWrite(1, 5, 8, [b"a", b"bc"]).parts()) == [b"abc"]


def test_a_write_without_room_for_its_second_part_leaves_the_file_as_it_was() -> None:
    files = SmallDisk()
    writer = SegmentWriter("log", files, 0, sync=True, statistics=WriteStatistics())
    assert writer.write(1, 0, [b"before"], durable=True)
    files.writes_left = 1
    assert not writer.write(1, 6, [b"first", b"second"], durable=True)
    path = segment_path("log", 1)
    assert files.size(path) == 6
    files.writes_left = 2
    assert writer.write(1, 6, [b"first", b"second"], durable=True)
    assert files.read(path, 0, 100) == b"beforefirstsecond"
