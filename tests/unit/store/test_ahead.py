"""Room that is made ahead in a segment's file: quick syncs, and nothing of it is seen by who reads the file."""

from __future__ import annotations

import pytest

from tests.unit.store.disk import Disk
from tests.unit.store.node import Node
from tests.unit.store.test_log import publish
from warren.broker.store.log.group_commit import Sync
from warren.broker.store.log.log import EARLY
from warren.broker.store.log.segment_writer import SMALL_BATCH

AHEAD = 1000


def size(disk: Disk, number: int = 1) -> int:
    return len(disk.segment(number).content)


def test_small_batches_do_not_change_the_size_of_the_file() -> None:
    node = Node(Disk(), preallocate=AHEAD)
    publish(node, 1, 1)
    node.settle()
    made = size(node.disk)
    assert made == node.written + AHEAD
    number = 1
    while node.written < made - 200:
        number += 1
        publish(node, number, number)
        node.settle()
        assert size(node.disk) == made
    while node.written <= made:
        number += 1
        publish(node, number, number)
        node.settle()
    assert made + AHEAD - 200 < size(node.disk) <= node.written + AHEAD
    after = Node(node.kill())
    assert set(after.messages()) == set(range(1, number + 1))
    assert after.recovery.damage == []


def test_a_killed_process_leaves_zeros_and_recovery_cuts_them_off() -> None:
    node = Node(Disk(), preallocate=AHEAD)
    publish(node, 1, 3)
    node.settle()
    written, disk = node.written, node.kill()
    assert disk.segment(1).content[written:] == bytes(AHEAD)
    after = Node(disk)
    assert after.recovery.damage == []
    assert set(after.messages()) == {1, 2, 3}
    assert size(disk) == written
    assert disk.segment(1).unsynced == []


def test_a_clean_stop_leaves_a_file_that_ends_with_its_records() -> None:
    node = Node(Disk(), preallocate=AHEAD)
    publish(node, 1, 3)
    node.settle()
    written, disk = node.written, node.close()
    assert size(disk) == written
    assert disk.segment(1).unsynced == [], "the end is on the disk before the stop is marked as clean"
    after = Node(disk)
    assert after.recovery.clean
    assert after.recovery.damage == []
    assert set(after.messages()) == {1, 2, 3}


def test_a_segment_that_has_a_successor_ends_with_its_records_on_the_disk() -> None:
    node = Node(Disk(), segment_size=600, preallocate=AHEAD)
    publish(node, 1, 3)
    node.settle()
    first, written = node.log.written_position >> 32, node.written
    number = 3
    while node.log.written_position >> 32 == first:
        number += 1
        publish(node, number, number)
        node.settle()
        if node.log.written_position >> 32 == first:
            written = node.written
    ended = node.disk.segment(first)
    assert len(ended.content) == written
    assert ended.unsynced == []
    after = Node(node.kill())
    assert after.recovery.damage == []
    assert set(after.messages()) == set(range(1, number + 1))


def test_a_segment_that_is_closed_without_a_successor_is_indexed_as_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = Node(Disk(), segment_size=1 << 23, preallocate=AHEAD)
    for number in range(1, 100):
        node.log.append_message(node.queue(), number, b"", b"%d:" % number + bytes(EARLY // 100))
    node.settle()
    publish(node, 100, 110)
    node.settle()
    written = node.written
    assert size(node.disk) > written > EARLY
    node.log.roll_segment()
    node.gate.commit()  # So that the log looks for segments to index.
    node.run_until(lambda: node.log.lookup.locate(node.queue(), 1) > 0)
    assert size(node.disk) == written
    assert caplog.records == [], "no damage"
    after = Node(node.close())
    assert after.recovery.damage == []
    assert len(after.messages()) == 110


def test_a_large_batch_is_appended() -> None:
    node = Node(Disk(), segment_size=1 << 20, preallocate=AHEAD)
    node.log.append_message(node.queue(), 1, b"", bytes(SMALL_BATCH))
    node.settle()
    assert size(node.disk) == node.written
    publish(node, 2, 2)
    node.settle()
    assert size(node.disk) == node.written + AHEAD


@pytest.mark.parametrize("sync", [Sync.OFF, Sync.BATCH])
def test_what_is_not_synced_needs_no_room_ahead(sync: Sync) -> None:
    node = Node(Disk(), sync=sync, preallocate=AHEAD)
    if sync is Sync.OFF:
        publish(node, 1, 3)
    else:
        node.log.spill(node.queue(), 1, b"head", b"content")
    node.settle()
    assert size(node.disk) == node.written > 0


def test_a_disk_with_room_for_the_batch_only_takes_the_batch() -> None:
    node = Node(Disk(), preallocate=AHEAD)
    node.disk.room = 500
    publish(node, 1, 3)
    node.settle()
    assert node.full == []
    assert size(node.disk) == node.written
    assert set(Node(node.kill()).messages()) == {1, 2, 3}


def test_a_full_disk_takes_what_has_its_room_already() -> None:
    node = Node(Disk(), preallocate=AHEAD)
    publish(node, 1, 1)
    node.settle()
    node.disk.room = 0
    publish(node, 2, 4)
    node.settle()
    assert node.full == []
    assert set(Node(node.kill()).messages()) == {1, 2, 3, 4}


def test_what_is_written_over_a_block_that_was_read_before_is_found() -> None:
    node = Node(Disk(), block=4096, segment_size=1 << 16, preallocate=8192)
    places = []
    for number in range(1, 60):
        node.log.acknowledge(node.queue(), number + 1000)  # So that each message is a record of its own.
        places.append((number, int(node.log.append_message(node.queue(), number, b"", b"%d" % number * 40))))
        node.settle()
        found = node.log.lookup.payloads(node.queue(), places)
        assert found == [b"%d" % n * 40 for n in range(1, number + 1)]
    assert node.written > 4096, "more than the block that was made ahead is read"
