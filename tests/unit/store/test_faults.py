"""What the log does when the disk is full or fails."""

from __future__ import annotations

import pytest

from tests.unit.store.disk import Disk
from tests.unit.store.node import Node
from tests.unit.store.test_log import acknowledge, publish
from warren.broker.store.errors import StoreError
from warren.core.errors import ExitStatus


def test_after_a_failed_sync_nothing_is_confirmed_and_nothing_written_any_more() -> None:
    node = Node(Disk())
    publish(node, 1, 1)
    node.sync()
    node.disk.fail_syncs = True
    publish(node, 2, 2)
    node.run_until(lambda: node.log.failed)
    assert node.failures == ["cannot write the log in /disk/log: Input/output error"]
    node.disk.fail_syncs = False
    before = bytes(node.disk.segment(1).content)
    publish(node, 3, 3)
    acknowledge(node, 1, 1)
    for _ in range(20):
        node.step()
    after = node.close()
    assert node.synced == [1]
    assert bytes(after.segment(1).content) == before
    assert node.failures == ["cannot write the log in /disk/log: Input/output error"]
    assert not Node(after).recovery.clean


def test_after_a_failed_write_nothing_is_confirmed() -> None:
    node = Node(Disk())
    publish(node, 1, 1)
    node.sync()
    node.disk.fail_writes = True
    publish(node, 2, 2)
    node.run_until(lambda: node.log.failed)
    assert node.failures == ["cannot write the log in /disk/log: Input/output error"]
    assert set(Node(node.kill()).messages()) == {1}


def test_a_disk_that_fails_at_the_end_is_told_of() -> None:
    node = Node(Disk())
    publish(node, 1, 1)
    node.sync()
    node.disk.fail_syncs = True
    node.close()
    assert node.log.failed
    assert node.failures == ["cannot mark the log as closed in /disk/log: Input/output error"]


def test_a_full_disk_is_waited_for_and_loses_nothing() -> None:
    node = Node(Disk(), segment_size=1 << 20)
    publish(node, 1, 10)
    node.sync()
    whole = node.written
    node.disk.room = 500
    publish(node, 11, 30)
    node.run_until(lambda: node.log.disk_full)
    publish(node, 31, 40)
    for _ in range(50):
        node.step()
    assert node.full == [True]
    assert node.synced == [1]
    assert len(node.disk.segment(1).content) == whole, "what was written of the batch is taken back"
    assert node.log.unwritten_bytes > 0
    node.disk.room = None
    node.settle()
    assert node.full == [True, False]
    assert not node.log.disk_full
    assert node.synced == [1, 2, 3]
    assert set(Node(node.kill()).messages()) == set(range(1, 41))


def test_a_full_disk_that_has_no_room_for_a_new_segment_either() -> None:
    node = Node(Disk(), segment_size=600)
    publish(node, 1, 5)
    node.sync()
    node.disk.room = 0
    publish(node, 6, 40)
    node.run_until(lambda: node.log.disk_full)
    node.disk.room = None
    node.settle()
    after = Node(node.kill())
    assert set(after.messages()) == set(range(1, 41))
    assert after.recovery.damage == []


def test_consumers_make_room_on_a_full_disk() -> None:
    node = Node(Disk(), segment_size=2000, slack=1 << 20)
    publish(node, 1, 100)
    node.sync()
    node.disk.room = 100
    publish(node, 101, 110)
    node.run_until(lambda: node.log.disk_full)
    acknowledge(node, 1, 90)
    node.run_until(lambda: not node.log.disk_full)
    node.settle()
    assert set(Node(node.kill()).messages()) == set(range(91, 111))


def test_a_dead_letter_on_a_full_disk_keeps_its_original_until_it_is_written() -> None:
    node = Node(Disk(), (1, 2), segment_size=600)
    publish(node, 1, 10)
    node.sync()
    node.disk.room = 0
    for number in range(1, 11):
        node.log.begin_group()
        node.log.acknowledge(node.queue(1), number)
        node.log.append_message(node.queue(2), number, b"", b"dead letter")
        node.log.end_group()
    node.run_until(lambda: node.log.disk_full)
    for _ in range(50):
        node.step()
    after = Node(node.kill(), (1, 2))
    assert set(after.messages(1)) | set(after.messages(2)) == set(range(1, 11))


def test_closing_on_a_full_disk_says_so() -> None:
    node = Node(Disk())
    publish(node, 1, 1)
    node.sync()
    node.disk.room = 0
    publish(node, 2, 3)
    node.run_until(lambda: node.log.disk_full)
    with pytest.raises(StoreError, match="no room left in /disk/log") as caught:
        node.loop.run_until_complete(node.log.close())
    assert caught.value.status is ExitStatus.IO
    after = Node(node.kill())
    assert set(after.messages()) == {1}
    assert not after.recovery.clean


def test_what_cannot_be_read_is_reported_by_compaction_and_given_up(caplog: pytest.LogCaptureFixture) -> None:
    node = Node(Disk(), (1, 2), segment_size=2000, slack=2000)
    publish(node, 1, 1, queue=2)
    node.log.append_message(node.queue(2), 2, b"", b"damaged")
    node.sync()
    content = node.disk.segment(1).content
    content[content.index(b"damaged")] ^= 1
    for first in range(1, 400, 20):
        publish(node, first, first + 19)
        acknowledge(node, first, first + 19)
        node.sync()
    node.run_until(lambda: 1 not in node.disk.segments())
    node.settle()
    assert "message 2 of queue 2 is damaged" in caplog.text
    assert "event=log.messages_lost segment=1 queue=2 messages=1 first=2 last=2" in caplog.text
    assert set(Node(node.kill(), (1, 2)).messages(2)) == {1}
