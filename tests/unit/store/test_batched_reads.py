"""Reading many messages back takes few reads, however they were written."""

from __future__ import annotations

from tests.unit.store.log_run import LogRun
from tests.unit.store.simulated_disk import Disk


class CountingDisk(Disk):
    """Counts the bytes that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes_read = 0

    def read(self, path: str, offset: int, size: int) -> bytes:
        data = super().read(path, offset, size)
        self.bytes_read += len(data)
        return data


def test_the_messages_of_a_large_group_are_read_with_few_reads() -> None:
    disk = CountingDisk()
    run = LogRun(disk, (1, 2), segment_size=1 << 16)
    run.log.begin_group()
    for number in range(1, 1001):
        run.log.append_message(run.queue(1), number, b"", b"%d:" % number + b"x" * 50)
        run.log.fan_out([(run.queue(1), 2000 + number), (run.queue(2), number)], b"", b"%d:both" % number)
    run.log.end_group()
    run.log.request_indexes()
    run.sync_all()
    run.log.append_message(run.queue(2), 5000, b"", bytes(1 << 16))
    run.sync_all()
    run.run_until(lambda: run.log.lookup.locate(run.queue(1), 1) > 0)
    disk.bytes_read = 0
    positions = [(number, int(run.log.lookup.locate(run.queue(1), number))) for number in range(1, 1001)]
    positions += [(number, int(run.log.lookup.locate(run.queue(1), number))) for number in range(2001, 3001)]
    payloads = run.log.lookup.payloads(run.queue(1), positions)
    assert payloads[:1000] == [b"%d:" % number + b"x" * 50 for number in range(1, 1001)]
    assert payloads[1000:] == [b"%d:both" % number for number in range(1, 1001)]
    assert disk.bytes_read < 4 * len(disk.segment(1).content)
