"""Preallocated room in a segment's file: syncs do not change its size, and readers never find the zeros."""

from __future__ import annotations

import pytest

from tests.unit.store.log_run import LogRun
from tests.unit.store.simulated_disk import Disk
from tests.unit.store.test_log import publish
from warren.broker.store.log.group_commit import Sync
from warren.broker.store.log.log import MIN_ROLLED_SIZE
from warren.broker.store.log.segment_writer import SMALL_BATCH

AHEAD = 1000


def size(disk: Disk, number: int = 1) -> int:
    return len(disk.segment(number).content)


def test_small_batches_do_not_change_the_size_of_the_file() -> None:
    run = LogRun(Disk(), preallocate=AHEAD)
    publish(run, 1, 1)
    run.sync_all()
    made = size(run.disk)
    assert made == run.written + AHEAD
    number = 1
    while run.written < made - 200:
        number += 1
        publish(run, number, number)
        run.sync_all()
        assert size(run.disk) == made
    while run.written <= made:
        number += 1
        publish(run, number, number)
        run.sync_all()
    assert made + AHEAD - 200 < size(run.disk) <= run.written + AHEAD
    after = LogRun(run.kill())
    assert set(after.messages()) == set(range(1, number + 1))
    assert after.recovery.damage == []


def test_recovery_cuts_off_the_zeros_that_a_killed_process_leaves() -> None:
    run = LogRun(Disk(), preallocate=AHEAD)
    publish(run, 1, 3)
    run.sync_all()
    written, disk = run.written, run.kill()
    assert disk.segment(1).content[written:] == bytes(AHEAD)
    after = LogRun(disk)
    assert after.recovery.damage == []
    assert set(after.messages()) == {1, 2, 3}
    assert size(disk) == written
    assert disk.segment(1).unsynced == []


def test_a_clean_stop_cuts_off_the_zeros() -> None:
    run = LogRun(Disk(), preallocate=AHEAD)
    publish(run, 1, 3)
    run.sync_all()
    written, disk = run.written, run.close()
    assert size(disk) == written
    assert disk.segment(1).unsynced == [], "the end is on disk before the stop is marked as clean"
    after = LogRun(disk)
    assert after.recovery.clean
    assert after.recovery.damage == []
    assert set(after.messages()) == {1, 2, 3}


def test_a_closed_segment_ends_with_its_records_on_disk() -> None:
    run = LogRun(Disk(), segment_size=600, preallocate=AHEAD)
    publish(run, 1, 3)
    run.sync_all()
    first, written = run.log.written_position >> 32, run.written
    number = 3
    while run.log.written_position >> 32 == first:
        number += 1
        publish(run, number, number)
        run.sync_all()
        if run.log.written_position >> 32 == first:
            written = run.written
    ended = run.disk.segment(first)
    assert len(ended.content) == written
    assert ended.unsynced == []
    after = LogRun(run.kill())
    assert after.recovery.damage == []
    assert set(after.messages()) == set(range(1, number + 1))


def test_a_rolled_segment_is_indexed_without_its_zeros(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = LogRun(Disk(), segment_size=1 << 23, preallocate=AHEAD)
    for number in range(1, 100):
        run.log.append_message(run.queue(), number, b"", b"%d:" % number + bytes(MIN_ROLLED_SIZE // 100))
    run.sync_all()
    publish(run, 100, 110)
    run.sync_all()
    written = run.written
    assert size(run.disk) > written > MIN_ROLLED_SIZE
    run.log.roll_segment()
    run.gate.commit()  # Makes the log look for segments to index.
    run.run_until(lambda: run.log.lookup.locate(run.queue(), 1) > 0)
    assert size(run.disk) == written
    assert caplog.records == [], "no damage"
    after = LogRun(run.close())
    assert after.recovery.damage == []
    assert len(after.messages()) == 110


def test_a_large_batch_preallocates_nothing() -> None:
    run = LogRun(Disk(), segment_size=1 << 20, preallocate=AHEAD)
    run.log.append_message(run.queue(), 1, b"", bytes(SMALL_BATCH))
    run.sync_all()
    assert size(run.disk) == run.written
    publish(run, 2, 2)
    run.sync_all()
    assert size(run.disk) == run.written + AHEAD


@pytest.mark.parametrize("sync", [Sync.OFF, Sync.BATCH])
def test_writes_that_are_not_synced_preallocate_nothing(sync: Sync) -> None:
    run = LogRun(Disk(), sync=sync, preallocate=AHEAD)
    if sync is Sync.OFF:
        publish(run, 1, 3)
    else:
        run.log.spill(run.queue(), 1, b"head", b"content")
    run.sync_all()
    assert size(run.disk) == run.written > 0


def test_a_batch_that_fits_without_preallocation_is_written_without_it() -> None:
    run = LogRun(Disk(), preallocate=AHEAD)
    run.disk.free_bytes = 500
    publish(run, 1, 3)
    run.sync_all()
    assert run.full == []
    assert size(run.disk) == run.written
    assert set(LogRun(run.kill()).messages()) == {1, 2, 3}


def test_a_full_disk_accepts_writes_into_preallocated_room() -> None:
    run = LogRun(Disk(), preallocate=AHEAD)
    publish(run, 1, 1)
    run.sync_all()
    run.disk.free_bytes = 0
    publish(run, 2, 4)
    run.sync_all()
    assert run.full == []
    assert set(LogRun(run.kill()).messages()) == {1, 2, 3, 4}


def test_a_block_that_was_read_before_it_was_full_is_read_again() -> None:
    run = LogRun(Disk(), block=4096, segment_size=1 << 16, preallocate=8192)
    positions = []
    for number in range(1, 60):
        run.log.acknowledge(run.queue(), number + 1000)  # Makes each message a record of its own.
        positions.append((number, int(run.log.append_message(run.queue(), number, b"", b"%d" % number * 40))))
        run.sync_all()
        found = run.log.lookup.payloads(run.queue(), positions)
        assert found == [b"%d" % n * 40 for n in range(1, number + 1)]
    assert run.written > 4096, "reads reach beyond the preallocated block"
