"""Reading messages back costs what they take, however they were written."""

from __future__ import annotations

from tests.unit.store.disk import Disk
from tests.unit.store.node import Node


class CountingDisk(Disk):
    """Counts the bytes that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes_read = 0

    def read(self, path: str, offset: int, size: int) -> bytes:
        data = super().read(path, offset, size)
        self.bytes_read += len(data)
        return data


def test_the_messages_of_a_large_group_are_read_together() -> None:
    disk = CountingDisk()
    node = Node(disk, (1, 2), segment_size=1 << 16)
    node.log.begin_group()
    for number in range(1, 1001):
        node.log.append_message(node.queue(1), number, b"", b"%d:" % number + b"x" * 50)
        node.log.fan_out([(node.queue(1), 2000 + number), (node.queue(2), number)], b"", b"%d:both" % number)
    node.log.end_group()
    node.log.request_indexes()
    node.settle()
    node.log.append_message(node.queue(2), 5000, b"", bytes(1 << 16))
    node.settle()
    node.run_until(lambda: node.log.lookup.locate(node.queue(1), 1) > 0)
    disk.bytes_read = 0
    places = [(number, int(node.log.lookup.locate(node.queue(1), number))) for number in range(1, 1001)]
    places += [(number, int(node.log.lookup.locate(node.queue(1), number))) for number in range(2001, 3001)]
    payloads = node.log.lookup.payloads(node.queue(1), places)
    assert payloads[:1000] == [b"%d:" % number + b"x" * 50 for number in range(1, 1001)]
    assert payloads[1000:] == [b"%d:both" % number for number in range(1, 1001)]
    assert disk.bytes_read < 4 * len(disk.segment(1).content)
