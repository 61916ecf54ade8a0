"""Index jobs: the log's writer thread indexes a segment in steps, between which it writes batches."""

from __future__ import annotations

import pytest

from tests.unit.store.log_run import LogRun
from tests.unit.store.simulated_disk import Disk
from warren.broker.store.index.index_format import describe_opaque, load_index
from warren.broker.store.index.index_job import IndexJob
from warren.broker.store.index.index_store import IndexStore
from warren.broker.store.log.record_format import segment_seed

PART = 1000
"""Bytes of an index file that one step writes in these tests."""
LOG = "/disk/log"
PATH = f"{LOG}/0000000000000001.idx"
COUNT = 300


def built_job() -> tuple[IndexJob, Disk, int]:
    """Write a segment. Return a job that has read it and has the index file to write, the disk, and the identity."""
    run = LogRun(Disk(), block=65536, segment_size=1 << 20)
    for number in range(1, COUNT + 1):
        run.log.append_message(run.queue(), number, b"head", b"%d" % number)
    identity = run.recovery.identity
    disk = run.close()
    job = IndexJob(IndexStore(LOG, disk, identity, 65536, describe_opaque, PART), 1, None)
    while job.index is None:
        job.run_slice()
    return job, disk, identity


def test_an_index_file_is_written_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    job, disk, identity = built_job()
    writes: list[int] = []
    write = disk.write

    def noted(handle: int, data: bytes, offset: int) -> None:
        writes.append(len(data))
        write(handle, data, offset)

    monkeypatch.setattr(disk, "write", noted)
    steps = 0
    while not job.finished:
        job.run_slice()
        steps += 1
        assert len(writes) == steps
    assert max(writes) == PART
    assert steps > 5
    assert job.index is not None
    assert job.index.entries is None
    index = load_index(disk, LOG, 1, int(job.index.size), segment_seed(identity, 1))
    assert index is not None
    assert index.count == COUNT


def test_an_index_file_that_lacks_parts_is_not_used() -> None:
    job, disk, identity = built_job()
    job.run_slice()
    job.run_slice()
    assert disk.size(PATH) == 2 * PART
    assert job.index is not None
    assert job.index.entries is not None, "entries are read from memory until the file is whole"
    assert load_index(disk, LOG, 1, int(job.index.size), segment_seed(identity, 1)) is None
    after = LogRun(disk.kill(), block=65536, segment_size=1 << 20)
    assert after.recovery.damage == []
    assert len(after.messages()) == COUNT
    after.close()


def test_an_index_file_without_room_for_all_parts_is_removed() -> None:
    job, disk, _ = built_job()
    disk.free_bytes = 3 * PART
    for _ in range(3):
        job.run_slice()
    with pytest.raises(OSError, match="No space"):
        job.run_slice()
    assert PATH not in disk.files
    assert job.index is not None
    assert job.index.entries is not None
